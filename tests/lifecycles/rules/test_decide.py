"""What is done with a run and with a target, as tables: the unit, what was seen of the outside, and what follows."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.run.decide import Seen as Around
from penstock.lifecycles.rules.run.decide import decide as decide_run
from penstock.lifecycles.rules.run.decide import next_reconciliation, reconciliations_by
from penstock.lifecycles.rules.run.flow import ended_as
from penstock.lifecycles.rules.run.machine import Mode, R, Run
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.lifecycles.rules.target.decide import Seen, decide
from penstock.lifecycles.rules.target.flow import event_key
from penstock.lifecycles.rules.target.machine import T, Target
from penstock.model.outcome import Act, Look, Wait
from penstock.model.unit import replace
from tests.support.price_shop import euros
from tests.support.prices import START as NOW

SETTINGS = RulesSettings()
RUN_ID = UUID(int=7)
BEFORE, AFTER, THEIRS = euros(1_000), euros(900), euros(777)
DOUBT = NOW - timedelta(hours=1)
SOON, LATER = NOW + timedelta(seconds=2), NOW + timedelta(days=1)
EARLIER = NOW - timedelta(minutes=1)


def target(**columns: Any) -> Target:
    given: dict[str, Any] = {
        "status": T.APPLYING,
        "rule_run_id": RUN_ID,
        "id": "v1",
        "account": "shop",
        "product_id": "p1",
        "sku": "S",
        "batch_key": "b",
        "before_json": BEFORE.as_json(),
        "after_json": AFTER.as_json(),
    }
    return Target(**given | columns)


@pytest.mark.parametrize(
    ("columns", "live", "expected"),
    [
        ({}, None, "look"),
        ({}, BEFORE, "send"),
        ({}, AFTER, "record"),
        ({}, THEIRS, "conflict"),
        ({}, Price(1_000, 1_200, "EUR"), "conflict"),  # the crossed-out price is part of it
        ({}, Price(1_000, None, "USD"), "conflict"),
        ({}, "gone", "gone"),
        ({"attempts": 3}, BEFORE, "send"),  # the fourth call
        ({"held": True}, None, "rest"),
        ({"held": True, "in_doubt_since": DOUBT}, None, "look"),
        # In doubt: a look settles it, and the last of its calls is not made again.
        ({"in_doubt_since": DOUBT}, None, "look"),
        ({"in_doubt_since": DOUBT}, BEFORE, "send"),
        ({"in_doubt_since": DOUBT}, AFTER, "record"),
        ({"in_doubt_since": DOUBT}, THEIRS, "conflict"),
        ({"in_doubt_since": DOUBT, "attempts": 3}, BEFORE, "send"),
        ({"in_doubt_since": DOUBT, "attempts": 3, "spent": True}, BEFORE, "give_up"),
        ({"in_doubt_since": DOUBT, "attempts": 3, "spent": True}, AFTER, "record"),
        ({"in_doubt_since": DOUBT, "attempts": 3, "spent": True}, THEIRS, "conflict"),
        # Stopped: nothing more is sent, and what may have left is looked at first.
        ({"halted": True}, None, "halt"),
        ({"halted": True, "attempts": 2}, None, "halt"),
        ({"halted": True, "in_doubt_since": DOUBT}, None, "look"),
        ({"halted": True, "doubts": 1}, None, "look"),
        ({"halted": True, "doubts": 1}, BEFORE, "halt"),
        ({"halted": True, "in_doubt_since": DOUBT}, AFTER, "record"),
        ({"halted": True, "in_doubt_since": DOUBT}, THEIRS, "conflict"),
        ({"halted": True, "in_doubt_since": DOUBT}, "gone", "gone"),
        # At rest.
        ({"status": T.PREVIEW}, None, "wait"),
        ({"status": T.QUEUED, "held": True}, None, "wait"),
        ({"status": T.APPLIED, "applied_at": NOW}, None, "wait"),
        ({"status": T.FAILED}, None, "wait"),
        ({"status": T.ROLLED_BACK, "applied_at": NOW}, None, "wait"),
    ],
)
def test_a_target(columns, live, expected):
    seen = None if live is None else Seen(None if live == "gone" else live)
    found = decide(target(**columns), NOW, SETTINGS, seen)
    assert _what(found) == expected
    if isinstance(found, Act):
        assert found.counts_attempt == (expected == "send")
    if isinstance(found, Wait):
        assert found.until is None


def test_an_event_has_one_key_for_each_attempt_and_round():
    assert event_key(target()) == f"{RUN_ID}:v1:apply:0"
    assert event_key(target(attempts=3)) == f"{RUN_ID}:v1:apply:3"
    assert event_key(target(attempts=1, retry_round=2)) == f"{RUN_ID}:v1:apply:1:r2"


def run(status: R, **columns: Any) -> Run:
    given: dict[str, Any] = {
        "status": status,
        "id": RUN_ID,
        "account": "shop",
        "currency": "EUR",
        "rule_name": "cut",
        "rule_version": 1,
        "metadata": {"actor": "ada"},
        "created_at": NOW,
        "target_count": 100,
    }
    if status not in (R.PREVIEW, R.QUEUED, R.APPLYING):
        given |= {"queued_at": NOW, "started_at": NOW, "finished_at": NOW}
    return Run(**given | columns)


LIMITS = {"summary": {"limits": {"stop_at": "10", "judged_from": 20}}}
PAUSED = {"mode": Mode.PAUSED, "mode_by": "ada", "mode_reason": "lunch"}
HALTING = {"mode": Mode.HALTING, "mode_by": "ada", "mode_reason": "wrong"}
FREE = Around()


@pytest.mark.parametrize(
    ("unit", "seen", "expected"),
    [
        (run(R.PREVIEW), None, "preview"),
        (run(R.PREVIEW, laid_at=NOW), None, "sum_up"),
        (run(R.PREVIEW, laid_at=NOW, previewed_at=NOW), None, None),
        (run(R.PREVIEW, laid_at=NOW, previewed_at=NOW, queue_when_ready=True), None, "queue"),
        (run(R.ROLLED_BACK), None, None),
        # Queued: its start, the run before it, a person.
        (run(R.QUEUED), None, "look"),
        (run(R.QUEUED), FREE, "start"),
        (run(R.QUEUED), Around(ahead="other"), SOON),
        (run(R.QUEUED, start_at=LATER), None, LATER),
        (run(R.QUEUED, start_at=EARLIER), FREE, "start"),
        (run(R.QUEUED, **PAUSED), FREE, None),
        (run(R.QUEUED, start_at=LATER, **HALTING), FREE, "start"),
        # Its end has come: no price of the sale is set any more.
        (run(R.QUEUED, end_at=EARLIER), FREE, "expire"),
        (run(R.QUEUED, end_at=EARLIER), Around(ahead="other"), "expire"),
        (run(R.QUEUED, end_at=LATER), FREE, "start"),
        (run(R.APPLYING, end_at=EARLIER), Around(unqueued=True), "expire"),
        (run(R.APPLYING, end_at=EARLIER, **PAUSED), Around(held=True), "expire"),
        (run(R.APPLYING, end_at=EARLIER, **HALTING), Around(held=True), "halt"),
        (run(R.APPLYING, end_at=EARLIER, applied_count=100), FREE, "finish"),
        # Applying.
        (run(R.APPLYING), None, "look"),
        (run(R.APPLYING), Around(unqueued=True), "include"),
        (run(R.APPLYING), Around(free=True), SOON),
        (run(R.APPLYING), Around(held=True), "release"),
        (run(R.APPLYING, applied_count=99), FREE, SOON),
        (run(R.APPLYING, applied_count=90, failed_count=9, rolled_back_count=1), FREE, "finish"),
        (run(R.APPLYING, applied_count=0, failed_count=0, target_count=0), FREE, "finish"),
        (run(R.APPLYING, **PAUSED), Around(unqueued=True), "include"),
        (run(R.APPLYING, **PAUSED), Around(free=True), "hold"),
        (run(R.APPLYING, **PAUSED), Around(held=True, moving=True), SOON),
        (run(R.APPLYING, **PAUSED), Around(held=True), None),
        (run(R.APPLYING, applied_count=100, **PAUSED), FREE, "finish"),
        (run(R.APPLYING, **HALTING), Around(unqueued=True), "halt"),
        (run(R.APPLYING, **HALTING), Around(free=True), "halt"),
        (run(R.APPLYING, **HALTING), Around(held=True), "halt"),
        (run(R.APPLYING, **HALTING), Around(unsettled=True), "halt"),
        (run(R.APPLYING, **HALTING), Around(in_doubt=1), SOON),
        (run(R.APPLYING, failed_count=100, **HALTING), FREE, "finish"),
        # Failures: more than a tenth of at least twenty.
        (run(R.APPLYING, failed_count=19, **LIMITS), FREE, SOON),
        (run(R.APPLYING, failed_count=20, **LIMITS), FREE, "stop"),
        (run(R.APPLYING, applied_count=27, failed_count=3, **LIMITS), FREE, SOON),
        (run(R.APPLYING, applied_count=26, failed_count=3, **LIMITS), FREE, "stop"),
        (run(R.APPLYING, applied_count=20, failed_count=40, failed_before=40, **LIMITS), FREE, SOON),
        (run(R.APPLYING, applied_count=20, failed_count=43, failed_before=40, **LIMITS), FREE, "stop"),
        (run(R.APPLYING, failed_count=50, **LIMITS, **HALTING), FREE, SOON),
        # Ended.
        (run(R.FAILED), FREE, None),
        (run(R.FAILED), Around(held=True), "retry"),
        (run(R.PARTIAL), Around(held=True), "retry"),
        (run(R.PARTIAL), Around(held=True, ahead="other"), SOON),
        (run(R.APPLIED), FREE, NOW + timedelta(minutes=1)),
        (run(R.APPLIED, finished_at=EARLIER), FREE, "reconcile"),
        (run(R.PARTIAL, finished_at=EARLIER), FREE, "reconcile"),
        (run(R.APPLIED, reconcile_wanted=True), FREE, "reconcile"),
        (run(R.APPLIED, reconcile_position="v5"), FREE, "reconcile"),
        (run(R.APPLIED, reconciled=1), FREE, NOW + timedelta(hours=1)),
        (run(R.APPLIED, reconciled=2), FREE, NOW + timedelta(days=1)),
        (run(R.APPLIED, reconciled=31), FREE, NOW + timedelta(days=30)),
        (run(R.APPLIED, reconciled=32), FREE, None),
        (run(R.APPLIED, reconciled=32, end_at=LATER), FREE, LATER),
        (run(R.APPLIED, end_at=SOON), FREE, SOON),
        (run(R.APPLIED, end_at=EARLIER), FREE, "end_sale"),
        (run(R.PARTIAL, end_at=EARLIER), FREE, "end_sale"),
        (run(R.FAILED, end_at=EARLIER), FREE, None),
        (run(R.APPLIED, end_at=EARLIER, sale_ended=True), FREE, NOW + timedelta(minutes=1)),
    ],
)
def test_a_run(unit, seen, expected):
    found = decide_run(unit, NOW, SETTINGS, seen)
    if isinstance(found, Wait):
        assert found.until == expected
        return
    assert _what(found) == expected
    assert not (isinstance(found, Act) and found.counts_attempt)
    assert not (isinstance(found, Look) and found.asks)


@pytest.mark.parametrize(
    ("unit", "seen", "words"),
    [
        (run(R.QUEUED), Around(ahead="abc"), ["run abc of shop is applying"]),
        (run(R.QUEUED, **PAUSED), FREE, ["paused by ada: lunch"]),
        (
            run(R.APPLYING, applied_count=1_000, failed_count=2, target_count=2_000),
            Around(in_doubt=3, parked=4),
            ["1,000 of 2,000 applied, 2 failed", "3 in doubt", "4 parked"],
        ),
    ],
)
def test_a_run_that_waits_says_for_what(unit, seen, words):
    found = decide_run(unit, NOW, SETTINGS, seen)
    assert isinstance(found, Wait)
    assert [word for word in words if word not in found.reason] == []


@pytest.mark.parametrize(
    ("applied", "failed", "rolled_back", "status"),
    [(3, 0, 0, R.APPLIED), (2, 0, 1, R.APPLIED), (1, 2, 0, R.PARTIAL), (0, 2, 1, R.PARTIAL), (0, 3, 0, R.FAILED)],
)
def test_a_run_ends_as_its_targets_did(applied, failed, rolled_back, status):
    counts = {"applied_count": applied, "failed_count": failed, "rolled_back_count": rolled_back}
    assert ended_as(run(R.APPLYING, target_count=3, **counts)) is status


def test_a_run_is_compared_at_once_after_an_hour_and_daily_for_thirty_days():
    unit, moments = run(R.APPLIED), []
    while (moment := next_reconciliation(unit, SETTINGS)) is not None:
        moments.append(moment - NOW)
        unit = replace(unit, reconciled=unit.reconciled + 1)
    assert moments == [timedelta(minutes=1), timedelta(hours=1), *(timedelta(days=n) for n in range(1, 31))]
    assert moments[0] <= timedelta(minutes=5)


def test_comparisons_that_were_missed_are_not_made_up_for():
    unit = run(R.APPLIED, reconciled=1)
    assert reconciliations_by(NOW, unit, SETTINGS) == 1
    assert reconciliations_by(NOW + timedelta(days=5), unit, SETTINGS) == 7
    assert reconciliations_by(NOW + timedelta(days=400), unit, SETTINGS) == 32


def _what(found: Any) -> str | None:
    if isinstance(found, Act):
        return found.what
    return "look" if isinstance(found, Look) else "wait"

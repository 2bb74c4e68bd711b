"""What people do to runs: pause and resume, stop, try again, one after the other, start and end at a time."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.lifecycles.rules import operations
from penstock.lifecycles.rules.run.machine import Kind, Mode, R
from penstock.lifecycles.rules.target.machine import T
from penstock.model.errors import Fatal, InDoubt, Rejected, Throttled, Transient
from tests.support.price_shop import After, PriceShop, Refuse, always, euros
from tests.support.prices import DAY, GATE, START, prices, target_ref

ONE = "p0000-v0"
EVERYTHING = {"selector": {"everything": True}, "transform": {"percent": "-10"}, "priority": 1}


# Pause and resume.


@pytest.mark.by_day
def test_a_paused_run_sends_nothing_until_it_is_resumed(rules_url):
    shop = PriceShop(30, 1)
    with prices(rules_url, shop) as bench:
        bench.slowly()
        run_id = bench.start()
        bench.work(10)
        bench.do(operations.pause, run_id, "lunch")
        bench.work(10)
        sent = len(shop.writes())
        assert 0 < sent < 30
        bench.work(120)
        assert len(shop.writes()) == sent
        assert bench.run(run_id).change_reason.startswith("paused by ada: lunch; ")
        waiting = [t for t in bench.targets(run_id) if t.status is T.QUEUED]
        assert waiting
        assert all(t.held and t.due_at is None for t in waiting)
        bench.do(operations.resume, run_id)
        bench.work(60)
        assert bench.run(run_id).status is R.APPLIED
        assert len(shop.writes()) == 30


def test_a_target_that_somebody_wakes_while_its_run_is_paused_rests_again(rules_url):
    shop = PriceShop(2, 1)
    with prices(rules_url, shop) as bench:
        bench.ledger.gates.pause(GATE, "ada", "later")
        run_id = bench.start()
        bench.work(5)
        bench.do(operations.pause, run_id)
        bench.work(5)
        bench.ledger.gates.resume(GATE, "ada")
        bench.ledger.wake([target_ref(run_id, ONE)], who="bob", reason="now")
        bench.work(10)
        assert shop.writes() == []
        assert (bench.target(run_id, ONE).status, bench.target(run_id, ONE).held) == (T.QUEUED, True)
        bench.do(operations.resume, run_id)
        bench.work(10)
        assert bench.run(run_id).status is R.APPLIED


# Stop.


@pytest.mark.by_day
def test_a_cancelled_run_gives_up_what_was_not_sent(rules_url):
    shop = PriceShop(30, 1)
    with prices(rules_url, shop) as bench:
        bench.slowly()
        run_id = bench.start()
        bench.work(10)
        bench.do(operations.cancel, run_id, "the wrong rule")
        bench.work(10)
        run = bench.run(run_id)
        assert run.status is R.PARTIAL
        assert run.error.endswith("; stopped: cancelled by ada: the wrong rule")
        halted = [t for t in bench.targets(run_id) if t.cause == "halted"]
        assert len(halted) == run.failed_count > 10
        for target in halted[:3]:
            assert shop.writes(target.id) == []
            edges = bench.edges("rule_target", target.unit_id)
            assert edges[-2:] == ["APPLYING", "FAILED"]


@pytest.mark.parametrize("closed", ["held", "stopped"])
def test_cancelling_works_behind_a_closed_gate(rules_url, closed):
    shop = PriceShop(5, 1)
    with prices(rules_url, shop) as bench:
        if closed == "held":
            bench.ledger.gates.pause(GATE, "ada", "later")
        else:
            shop.trouble = always("read", lambda: Fatal("no token"))
        run_id = bench.start()
        bench.work(10)
        calls = len(shop.calls)
        bench.do(operations.cancel, run_id)
        bench.work(10)
        assert bench.run(run_id).status is R.FAILED
        assert set(bench.ended(run_id).values()) == {"FAILED halted"}
        assert len(shop.calls) == calls


@pytest.mark.parametrize("arrived", [True, False])
def test_a_target_in_doubt_is_read_before_it_is_given_up(rules_url, arrived):
    shop = PriceShop(1, 1)
    lost = InDoubt("the connection closed")
    shop.trouble = lambda kind, _: (After(lost) if arrived else lost) if kind == "write" else None
    with prices(rules_url, shop) as bench:
        run_id = bench.start()
        bench.work(1)
        assert bench.target(run_id, ONE).in_doubt_since is not None
        bench.do(operations.cancel, run_id)
        bench.work(20)
        assert bench.ended(run_id) == {ONE: "APPLIED" if arrived else "FAILED halted"}
        assert bench.run(run_id).status is (R.APPLIED if arrived else R.FAILED)
        assert (len(shop.writes()), shop.calls[-1].kind) == (1, "read")


def test_a_target_in_doubt_that_is_cancelled_behind_a_closed_gate_waits_for_it(rules_url):
    """It passed through QUEUED by a throttle: no call is made before the gate opens, and then only a read."""
    shop = PriceShop(2, 1)
    shop.trouble = lambda kind, ids: After(InDoubt("closed")) if kind == "write" and ONE in ids else None
    with prices(rules_url, shop) as bench:
        run_id = bench.start()
        bench.work(1)
        shop.trouble = always("read", lambda: Throttled("slow down", 300.0))
        bench.work(10)
        assert bench.target(run_id, ONE).status is T.QUEUED
        shop.trouble = lambda *_: None
        calls = len(shop.calls)
        bench.do(operations.cancel, run_id)
        bench.work(60)
        assert len(shop.calls) == calls
        assert bench.run(run_id).status is R.APPLYING
        bench.work(300)
        assert bench.target(run_id, ONE).status is T.APPLIED
        assert [call.kind for call in shop.calls[calls:]] == ["read"]


def test_a_run_that_waits_for_its_start_can_be_cancelled(rules_url):
    shop = PriceShop(2, 1)
    with prices(rules_url, shop) as bench:
        run_id = bench.start(start_at=START + DAY)
        bench.work(10)
        assert bench.run(run_id).status is R.QUEUED
        bench.do(operations.cancel, run_id)
        bench.work(10)
        assert bench.run(run_id).status is R.FAILED
        assert shop.writes() == []


def test_a_run_stops_by_itself_when_too_many_targets_fail(rules_url):
    shop = PriceShop(100, 1)
    shop.trouble = always("write", lambda: Rejected("no"))
    with prices(rules_url, shop) as bench:
        bench.slowly()
        run_id = bench.apply(seconds=60)
        run = bench.run(run_id)
        assert run.status is R.FAILED
        assert run.mode_by == "kernel"
        assert "which is more than stop_at, 10 %" in run.mode_reason
        assert 20 <= len(shop.writes()) <= 25
        assert [severity for _, severity in bench.events("rules.stopped")] == ["critical"]
        assert {t.cause for t in bench.targets(run_id)} == {"refused", "halted"}


def test_a_retry_after_a_stop_is_judged_by_its_own_failures(rules_url):
    shop = PriceShop(40, 1)
    shop.trouble = always("write", lambda: Rejected("no"))
    with prices(rules_url, shop) as bench:
        bench.slowly()
        run_id = bench.apply(seconds=60)
        assert bench.run(run_id).mode is Mode.HALTING
        shop.trouble = lambda *_: None
        some = sorted(shop.prices)[:5]
        bench.retry(run_id, *some)
        bench.work(30)
        assert bench.run(run_id).status is R.PARTIAL
        assert {bench.target(run_id, one).status for one in some} == {T.APPLIED}


# Try again.


@pytest.mark.by_day
def test_failed_targets_are_tried_again_some_and_then_all(rules_url):
    shop = PriceShop(1, 3)
    shop.trouble = always("write", lambda: Transient("503"))
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        assert bench.run(run_id).status is R.FAILED
        finished = bench.run(run_id).finished_at
        shop.trouble = lambda *_: None
        bench.retry(run_id, ONE)
        bench.work()
        run = bench.run(run_id)
        assert (run.status, run.applied_count, run.failed_count, run.retry_round) == (R.PARTIAL, 1, 2, 1)
        assert run.finished_at > finished
        bench.retry(run_id)
        bench.work()
        run = bench.run(run_id)
        assert (run.status, run.applied_count, run.retry_round, run.error) == (R.APPLIED, 3, 2, None)
        keys = {key for key, _ in bench.events("automation.target.apply")}
        tried = {f"{run_id}:{one}:apply:{attempt}" for one in shop.prices for attempt in range(4)}
        assert keys == tried | {f"{run_id}:{one}:apply:0:r1" for one in shop.prices}
        assert bench.edges("rule_run", str(run_id))[2:] == [
            "APPLYING",
            "FAILED",
            *["APPLYING", "PARTIAL"],
            "APPLYING",
            "APPLIED",
        ]
        assert bench.hands("rule_run", str(run_id), "APPLYING")[1:] == ["api:ada", "api:ada"]


def test_a_retry_that_fails_again_counts_from_nought(rules_url):
    shop = PriceShop(1, 1)
    shop.trouble = always("write", lambda: Transient("503"))
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        bench.retry(run_id)
        bench.work()
        assert bench.run(run_id).status is R.FAILED
        assert len(shop.writes()) == 8
        keys = [key for key, _ in bench.events("automation.target.apply")]
        assert sorted(keys) == sorted(f"{run_id}:{ONE}:apply:{n}{again}" for n in range(4) for again in ("", ":r1"))
        assert bench.target(run_id, ONE).retry_round == 1


# One after the other.


@pytest.mark.by_day
def test_two_runs_of_an_account_apply_one_after_the_other(rules_url):
    shop = PriceShop(10, 1)
    with prices(rules_url, shop) as bench:
        bench.slowly()
        first = bench.start()
        bench.work(3)
        bench.rule("next", **{**EVERYTHING, "transform": {"percent": "-50"}})
        second = bench.start("next")
        bench.work(4)
        waiting = bench.run(second)
        assert waiting.status is R.QUEUED
        assert waiting.change_reason == f"run {first} of shop is applying; this one waits for it"
        bench.work(60)
        assert bench.run(first).status is R.APPLIED
        assert bench.run(first).finished_at <= bench.run(second).started_at
        # Its preview was made before the first had ended: what was changed since is not overwritten.
        assert set(bench.ended(second).values()) == {"FAILED conflict"}


def test_a_retry_waits_for_the_run_that_applies(rules_url):
    shop = PriceShop(10, 1)
    shop.trouble = always("write", lambda: Rejected("no"), ONE)
    with prices(rules_url, shop) as bench:
        first = bench.apply()
        shop.trouble = lambda *_: None
        bench.slowly()
        bench.rule("other", **{**EVERYTHING, "transform": {"percent": "-50"}})
        second = bench.start("other")
        bench.work(3)
        bench.retry(first, ONE)
        bench.work(3)
        assert bench.run(first).status is R.PARTIAL
        assert bench.run(first).change_reason == f"run {second} of shop is applying; retries wait for it"
        bench.work(60)
        assert bench.run(second).status is R.APPLIED
        # Meanwhile the second run has set that price.
        assert bench.target(first, ONE).cause == "conflict"


# A start and an end.


@pytest.mark.by_day
def test_a_sale_begins_and_ends_by_itself(rules_url):
    shop = PriceShop(2, 2)
    before = dict(shop.prices)
    with prices(rules_url, shop) as bench:
        run_id = bench.start(start_at=START + DAY, end_at=START + 3 * DAY)
        bench.hours(23)
        assert bench.run(run_id).change_reason == "waits for its start"
        assert shop.writes() == []
        bench.hours(2)
        assert bench.run(run_id).status is R.APPLIED
        assert bench.run(run_id).started_at - START - DAY < timedelta(seconds=5)
        assert shop.prices != before
        bench.hours(46)
        assert shop.prices != before
        bench.hours(2)
        assert shop.prices == before
        assert bench.run(run_id).status is R.ROLLED_BACK
        back = bench.runs()[-1]
        assert (back.kind, back.of_run_id, back.status) == (Kind.ROLLBACK, run_id, R.APPLIED)
        assert back.metadata["actor"] == "scheduler"
        assert bench.hands("rule_run", str(run_id), "ROLLED_BACK") == ["api:scheduler"]


def test_a_sale_ends_though_a_part_of_it_was_rolled_back_before(rules_url):
    shop = PriceShop(1, 2)
    before = dict(shop.prices)
    with prices(rules_url, shop) as bench:
        run_id = bench.start(end_at=START + DAY)
        bench.work(60)
        bench.roll_back(run_id, ONE)
        assert bench.run(run_id).status is R.APPLIED
        bench.hours(25)
        assert bench.run(run_id).status is R.ROLLED_BACK
        assert shop.prices == before


@pytest.mark.parametrize("begun", [False, True])
def test_a_sale_sets_no_price_after_its_end(rules_url, begun):
    """No worker was there in time, or the shop was slow."""
    shop = PriceShop(5, 1)
    before = dict(shop.prices)
    with prices(rules_url, shop) as bench:
        bench.slowly()
        end = START + (timedelta(seconds=4) if begun else DAY)
        run_id = bench.start(start_at=None if begun else START + DAY / 2, end_at=end)
        bench.work(3)
        if not begun:
            bench.time.advance(2 * DAY.total_seconds())
        bench.work(60)
        late = end + timedelta(seconds=3)
        assert [one.id for one in bench.targets(run_id) if one.applied_at is not None and one.applied_at > late] == []
        assert shop.prices == before
        run = bench.run(run_id)
        assert run.status is (R.ROLLED_BACK if begun else R.FAILED)
        assert run.error.endswith("stopped: its end has come")
        assert "FAILED halted" in bench.ended(run_id).values()
        if not begun:
            assert shop.writes() == []


def test_the_end_of_a_sale_is_begun_once(rules_url):
    """Somebody has set every price anew: the rollback fails, and nobody tries again day after day."""
    shop = PriceShop(1, 2)
    with prices(rules_url, shop) as bench:
        bench.start(end_at=START + DAY)
        bench.work(60)
        for one in shop.prices:
            shop.edit(one, euros(555))
        bench.hours(24 * 5)
        assert [run.status for run in bench.runs()] == [R.APPLIED, R.FAILED]
        assert set(shop.prices.values()) == {euros(555)}


def test_refused_variants_of_a_product_do_not_hold_up_their_siblings(rules_url):
    shop = PriceShop(1, 3)
    shop.trouble = always("write", lambda: Refuse({ONE: "INVALID: no"}), ONE)
    with prices(rules_url, shop) as bench:
        run_id = bench.apply()
        assert bench.ended(run_id) == {ONE: "FAILED refused", "p0000-v1": "APPLIED", "p0000-v2": "APPLIED"}

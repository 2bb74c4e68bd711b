"""What people do afterwards: retry what failed, roll back, leave targets as they are, compare and repair."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from penstock.lifecycles.rules.run.machine import Kind, R
from penstock.lifecycles.rules.target.machine import T
from penstock.model.errors import Rejected, Transient, UsageError
from penstock.model.unit import Ref
from penstock.operations import dead
from penstock.operations.bulk.actions import drive
from penstock.operations.carry import carry_out
from tests.support.price_shop import PriceShop, always, euros
from tests.support.rules import Desk, desk


def newest(at: Desk, kind: Kind) -> UUID:
    return [run.id for run in at.bench.runs() if run.kind is kind][-1]


def partial(at: Desk, *variants: str) -> UUID:
    """A run of which these variants were refused."""

    def trouble(kind: str, ids: object) -> Exception | None:
        return Rejected("no") if kind == "write" and any(one in variants for one in ids) else None  # type: ignore[attr-defined]

    at.bench.shop.trouble = trouble
    run = at.applied(seconds=30)
    at.bench.shop.trouble = lambda *_: None
    assert (run.status, run.failed_count) == (R.PARTIAL, len(variants))
    return run.id


@pytest.mark.by_day
def test_failed_targets_are_retried_and_the_run_takes_them_up(ledger_url):
    with desk(ledger_url, PriceShop(4, 1)) as at:
        run_id = partial(at, "p0001-v0", "p0002-v0")
        planned = at.plan("retry", run=str(run_id))
        assert planned.preview.says == f"try 2 targets of run {str(run_id)[:8]} again"
        at.do("retry", run=str(run_id), reason="")
        waiting = [t for t in at.bench.targets(run_id) if t.status is T.QUEUED]
        assert [(t.held, t.attempts, t.retry_round, t.cause) for t in waiting] == [(True, 0, 1, None)] * 2
        run = at.take_up(at.run(str(run_id)))
        assert (run.status, run.applied_count, run.retry_round) == (R.APPLIED, 4, 1)
        assert at.bench.hands("rule_target", f"{run_id}/p0001-v0", "QUEUED") == ["api:ada", "operator:ada"]
        at.refused("retry", "is APPLIED; every target is applied, so there is nothing to retry", run=str(run_id))


def test_some_targets_or_those_of_a_cause_are_retried(ledger_url):
    with desk(ledger_url, PriceShop(4, 1)) as at:
        run_id = partial(at, "p0001-v0", "p0002-v0")
        at.refused("retry", "no target failed for conflict", run=str(run_id), cause="conflict")
        at.refused("retry", "no such target: NO-SUCH", run=str(run_id), target=("NO-SUCH",))
        at.refused("retry", "no such target: SKU-p0000-v0", run=str(run_id), target=("SKU-p0000-v0",))
        assert at.plan("retry", run=str(run_id), cause="refused").preview.count == 2
        assert at.do("retry", run=str(run_id), target=("SKU-p0001-v0",)).count == 1
        run = at.take_up(at.run(str(run_id)))
        assert (run.status, run.applied_count, run.failed_count) == (R.PARTIAL, 3, 1)


def test_a_thousand_failed_targets_are_retried_by_a_bulk_action(ledger_url):
    with desk(ledger_url, PriceShop(260, 4), approve_above=10_000) as at:
        at.bench.shop.trouble = always("write", lambda: Rejected("no"))
        run = at.applied()
        at.bench.shop.trouble = lambda *_: None
        assert run.status is R.FAILED
        done = at.do("retry", run=str(run.id))
        action = drive(at.bench.ledger, Ref.parse(str(done.action)))
        assert action.moved == 1_040
        run = at.take_up(run, seconds=120)
        assert (run.status, run.applied_count) == (R.APPLIED, 1_040)


def test_the_generic_commands_for_dead_letters_work_for_targets(ledger_url):
    with desk(ledger_url, PriceShop(4, 1)) as at:
        run_id = partial(at, "p0001-v0", "p0002-v0")
        ref = f"rule_target:{run_id}/p0001-v0"
        at.do(dead.dismiss, units=(ref,), reason="not ours")
        assert [row.count for row in at.read("dead").rows] == [1]
        planned = at.plan("retry", run=str(run_id))
        assert (planned.preview.count, planned.preview.skipped) == (1, {"it was dismissed": 1})
        at.do(dead.retry, units=(f"rule_target:{run_id}/p0002-v0",), reason="again")
        run = at.take_up(at.run(str(run_id)))
        assert (run.status, run.applied_count, run.failed_count) == (R.PARTIAL, 3, 1)
        at.refused("retry", "all of them were dismissed", run=str(run_id))


def test_what_is_tried_again_while_its_run_is_rolled_back_keeps_nobody_from_ending(ledger_url):
    with desk(ledger_url, PriceShop(4, 1)) as at:
        run_id = partial(at, "p0001-v0")
        at.do("rollback", run=str(run_id))
        at.refused("retry", "is being rolled back by run", run=str(run_id))
        at.do(dead.retry, units=(f"rule_target:{run_id}/p0001-v0",), reason="again")
        at.bench.work(60)
        assert at.run(str(newest(at, Kind.ROLLBACK))).status is R.APPLIED
        run = at.run(str(run_id))
        assert (run.status, run.applied_count, run.rolled_back_count) == (R.APPLIED, 1, 3)
        at.do("rollback", run=str(run_id))
        at.bench.work(30)
        assert at.run(str(run_id)).status is R.ROLLED_BACK


def test_what_has_not_failed_is_not_retried(ledger_url):
    with desk(ledger_url) as at:
        run = at.preview()
        at.refused("retry", "is PREVIEW; only a run that has ended with failures is retried", run=str(run.id))
        at.do("queue", run=str(run.id))
        at.bench.work(30)
        at.do("rollback", run=str(run.id))
        at.bench.work(30)
        at.refused("retry", "is ROLLED_BACK; preview cut again to apply it anew", run=str(run.id))


@pytest.mark.by_day
def test_a_run_is_rolled_back_by_a_run_of_its_own_and_once(ledger_url):
    with desk(ledger_url) as at:
        run = at.applied(seconds=30)
        assert at.plan("rollback", run=str(run.id)).preview.says == (
            f"put back 4 prices that run {str(run.id)[:8]} has set"
        )
        at.do("rollback", run=str(run.id), reason="too cheap")
        at.refused("rollback", "is being rolled back by run", run=str(run.id))
        at.bench.work(30)
        assert at.run(str(run.id)).status is R.ROLLED_BACK
        assert at.bench.shop.prices["p0000-v0"] == euros(1_000)
        back = at.run(str(newest(at, Kind.ROLLBACK)))
        assert (back.status, back.metadata["actor"], back.metadata["reason"]) == (R.APPLIED, "ada", "too cheap")
        at.refused("rollback", f"was rolled back already by run {str(back.id)[:8]}", run=str(run.id))
        at.refused("rollback", "is itself a rollback", run=str(back.id))
        assert at.read("show", run=str(run.id)).progress.rolled_back_by == str(back.id)


def test_some_targets_are_rolled_back_and_the_rest_later(ledger_url):
    with desk(ledger_url) as at:
        run = at.applied(seconds=30)
        at.refused("rollback", "no such target: NO-SUCH", run=str(run.id), target=("NO-SUCH",))
        at.refused(
            "rollback",
            "SKU-p0000-v0 cannot both be",
            run=str(run.id),
            target=("p0000-v0",),
            leave=("SKU-p0000-v0",),
        )
        at.do("rollback", run=str(run.id), target=("SKU-p0000-v0", "p0001-v1"))
        at.bench.work(30)
        first = at.run(str(run.id))
        assert (first.status, first.rolled_back_count) == (R.APPLIED, 2)
        assert at.plan("rollback", run=str(run.id)).preview.says.startswith("put back 2 prices")
        at.do("rollback", run=str(run.id))
        at.bench.work(30)
        assert at.run(str(run.id)).status is R.ROLLED_BACK


def test_of_two_people_who_roll_back_one_does(ledger_url):
    with desk(ledger_url) as at:
        run = at.applied(seconds=30)
        first, second = (at.plan("rollback", run=str(run.id)) for _ in range(2))
        carry_out(at.bench.ledger, at.ask(), first)
        with pytest.raises(UsageError, match="is being rolled back by run"):
            carry_out(at.bench.ledger, at.ask(), second)
        at.bench.work(30)
        assert [run.kind for run in at.bench.runs()] == [Kind.APPLY, Kind.ROLLBACK]


def test_what_somebody_else_has_set_is_left_as_it_is_by_name(ledger_url):
    with desk(ledger_url) as at:
        run = at.applied(seconds=30)
        at.bench.shop.edit("p0000-v0", euros(777))
        at.do("rollback", run=str(run.id))
        at.bench.work(30)
        back = at.run(str(newest(at, Kind.ROLLBACK)))
        assert (back.status, at.run(str(run.id)).status) == (R.PARTIAL, R.APPLIED)
        (conflict,) = at.read("targets", run=str(back.id), failed=True).rows
        assert conflict.why == "the live price is 7.77 EUR; it was 9.00 EUR, and was to become 10.00 EUR"
        planned = at.plan("rollback", run=str(run.id), leave=("SKU-p0000-v0",))
        assert planned.preview.says == (
            f"leave 1 prices of run {str(run.id)[:8]} as they are, and count it as rolled back"
        )
        at.do("rollback", run=str(run.id), leave=("SKU-p0000-v0",), reason="theirs")
        at.bench.work(10)
        assert at.run(str(run.id)).status is R.ROLLED_BACK
        left = at.bench.target(run.id, "p0000-v0")
        assert (left.status, left.set_aside_by, left.set_aside_reason) == (T.APPLIED, "ada", "theirs")
        assert at.bench.shop.prices["p0000-v0"] == euros(777)


def test_targets_are_left_and_the_others_rolled_back_at_once(ledger_url):
    with desk(ledger_url) as at:
        run = at.applied(seconds=30)
        at.do("rollback", run=str(run.id), leave=("p0000-v0",), reason="sold")
        at.bench.work(30)
        ended = at.run(str(run.id))
        assert (ended.status, ended.rolled_back_count, ended.applied_count) == (R.ROLLED_BACK, 3, 1)
        assert at.bench.shop.prices["p0000-v0"] == euros(900)


def test_only_what_was_applied_is_rolled_back(ledger_url):
    with desk(ledger_url) as at:
        run = at.preview()
        at.refused("rollback", "is PREVIEW; only one that has applied prices", run=str(run.id))
        at.do("queue", run=str(run.id))
        at.refused("rollback", "'penstock rules cancel .*' ends it", run=str(run.id))
        at.do("cancel", run=str(run.id))
        at.bench.work(30)
        at.refused("rollback", "is FAILED; only one that has applied prices", run=str(run.id))


def test_a_run_is_compared_by_hand_and_what_differs_is_set_again(ledger_url):
    with desk(ledger_url) as at:
        run = at.applied(seconds=30)
        at.refused("reconcile", "was never compared", run=str(run.id), repair=True)
        at.bench.shop.prices["p0000-v0"] = euros(1_500)
        at.bench.shop.delete("p0001-v1")
        at.do("reconcile", run=str(run.id), reason="")
        at.refused("reconcile", "is being compared already", run=str(run.id))
        at.bench.work(10)
        (row,) = at.read("reports", run=str(run.id)).rows
        assert (row.occasion, row.total_checked, row.mismatches, row.missing) == ("by hand", 4, 2, 1)
        found = at.read("report", report=row.report)
        assert [(d.target_id, d.expected, d.actual, d.difference) for d in found.details] == [
            ("p0000-v0", 900, 1_500, 600),
            ("p0001-v1", 903, None, None),
        ]
        assert at.plan("reconcile", run=str(run.id), repair=True).preview.says == (
            f"set 1 prices of run {str(run.id)[:8]} again"
        )
        at.do("reconcile", run=str(run.id), repair=True)
        at.refused("reconcile", "was repaired already", run=str(run.id), repair=True)
        at.bench.work(30)
        repair = at.run(str(newest(at, Kind.REPAIR)))
        assert (repair.status, repair.target_count) == (R.APPLIED, 1)
        assert at.bench.shop.prices["p0000-v0"] == euros(900)


def test_a_report_without_differences_repairs_nothing(ledger_url):
    with desk(ledger_url) as at:
        run = at.applied(seconds=30)
        at.bench.work(120)
        at.refused("reconcile", "found no price that could be set again", run=str(run.id), repair=True)
        at.do("rollback", run=str(run.id))
        at.bench.work(30)
        at.refused("reconcile", "was rolled back; only prices that are applied are compared", run=str(run.id))


def test_a_paused_provider_does_not_keep_a_run_from_being_cancelled(ledger_url):
    with desk(ledger_url, PriceShop(4, 1)) as at:
        at.bench.shop.trouble = always("read", lambda: Transient("away"))
        run = at.queued()
        at.bench.work(5)
        at.do("cancel", run=str(run.id))
        at.bench.hours(timedelta(minutes=10).total_seconds() / 3600)
        assert at.run(str(run.id)).status is R.FAILED
        with pytest.raises(UsageError, match="has ended as FAILED"):
            at.plan("cancel", run=str(run.id))

"""What people do to runs: legal edges only, shown before they act, and never two runs at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.lifecycles.harvest import operations, readings
from penstock.lifecycles.harvest.feed import Span
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.run.machine import R, RunType
from penstock.model.errors import PlanChanged, Rejected, Throttled, Transient, UnknownUnit, UsageError
from penstock.operations.carry import carry_out
from tests.support.harvest import FEED, START, Bench, Catalogue, Stone, asking, on_bench, read, small, stones


def failing(source: Catalogue, spans: list[Span], number: int):
    """The page at 60 of so many partitions fails, for as long as they are in `spans`."""

    def trouble(what: str, span: Span, offset: int) -> None:
        if what == "page" and offset == 60 and (span in spans or len(spans) < number):
            if span not in spans:
                spans.append(span)
            raise Transient("away")

    return trouble


def test_a_retry_fetches_only_what_failed_from_where_it_was(ledger_url):
    source = Catalogue(stones(500))

    async def test(bench: Bench) -> None:
        spans: list[Span] = []
        source.trouble = failing(source, spans, 2)
        run = await bench.harvest()
        assert (run.status, run.failed_workers) == (R.FAILED, 2)
        source.calls.clear()
        source.trouble = lambda *_: None
        before = bench.ledger.get_many(bench.ledger.machine("harvest_run"), [run.unit_id])
        planned = bench.plan(operations.retry, run=str(run.run_id)).preview
        assert planned.says == f"fetch 2 of 5 partitions of run {run.run_id} again"
        # Two partitions, the records of their workers, the run, and the schedule that it takes.
        assert planned.count == 6
        assert bench.ledger.get_many(bench.ledger.machine("harvest_run"), [run.unit_id]) == before
        assert bench.do(operations.retry, run=str(run.run_id)[:8]).count == 6
        again = bench.run()
        assert (again.status, again.failed_workers, again.completed_workers) == (R.WORKERS_RUNNING, 0, 3)
        assert {w[1] for w in bench.workers()} == {"completed", "running"}
        run = await bench.settled()
        assert (run.status, run.failed_workers, run.completed_workers) == (R.COMPLETED, 0, 5)
        pages = [(span, offset) for what, span, offset in source.calls if what == "page"]
        assert {span for span, _ in pages} == set(spans)
        assert min(offset for _, offset in pages) == 60
        assert bench.raw() == {s.stone: s.payload() for s in source.stones}
        assert run.watermark_after == START
        assert {w[1] for w in bench.workers()} == {"completed"}

    on_bench(ledger_url, source, test)


def test_a_forced_run_is_consolidated_with_who_and_why_and_leaves_the_watermark(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        first = await bench.harvest()
        bench.clock.advance(8 * 86_400)
        source.trouble = failing(source, [], 1)
        run = await bench.harvest()
        assert (run.status, run.run_type) == (R.FAILED, RunType.FULL)
        with pytest.raises(UsageError, match="harvest force needs a reason"):
            bench.plan(operations.force, run=str(run.run_id), reason=" ")
        planned = bench.plan(operations.force, run=str(run.run_id)).preview
        assert planned.says == f"consolidate run {run.run_id} without 1 of its 3 partitions"
        assert planned.warnings == ["The watermark stays where it was, and nothing is deleted."]
        bench.do(operations.force, run=str(run.run_id))
        run = await bench.settled()
        assert (run.status, run.forced_by, run.forced_reason) == (R.COMPLETED, "ada", "because")
        assert run.watermark_after == run.watermark_before == first.watermark_after
        (mark,) = bench.read(readings.watermark_show).rows
        assert mark.last_updated_at == first.watermark_after
        # The next run is full again: this one did not count as such.
        bench.clock.advance(3_600)
        source.trouble = lambda *_: None
        assert (await bench.harvest()).run_type is RunType.FULL

    on_bench(ledger_url, source, test)


def test_only_what_failed_can_be_retried_or_forced(ledger_url):
    source = Catalogue(stones(60))

    async def test(bench: Bench) -> None:
        run = await bench.harvest()
        for action in (operations.retry, operations.force):
            with pytest.raises(UsageError, match="only a run that has failed can be"):
                bench.plan(action, run=str(run.run_id))
        with pytest.raises(UsageError, match="nothing to cancel"):
            bench.plan(operations.cancel, run=str(run.run_id))
        with pytest.raises(UnknownUnit, match="no run 'nonesuch'"):
            bench.plan(operations.retry, run="nonesuch")

    on_bench(ledger_url, source, test)


def test_a_run_is_not_brought_back_beside_another_or_after_a_later_one(ledger_url):
    source = Catalogue(stones(200))

    async def test(bench: Bench) -> None:
        source.trouble = failing(source, [], 1)
        first = await bench.harvest()
        assert first.status is R.FAILED
        bench.clock.advance(3_600)
        source.trouble = _away
        bench.tick()
        await bench.quiet()
        second = bench.run()
        assert second.status is R.WORKERS_RUNNING
        with pytest.raises(UsageError, match=f"run {second.run_id} of stones is under way"):
            bench.plan(operations.retry, run=str(first.run_id))
        with pytest.raises(UsageError, match="is under way"):
            bench.plan(operations.start, feed=FEED)
        source.trouble = lambda *_: None
        assert (await bench.settled()).status is R.COMPLETED
        with pytest.raises(UsageError, match="was started later and is completed"):
            bench.plan(operations.retry, run=str(first.run_id))

    on_bench(ledger_url, source, test)


def test_whoever_retries_while_a_scan_is_going_on_takes_the_schedule_from_it(ledger_url):
    source = Catalogue(stones(200))

    async def test(bench: Bench) -> None:
        source.trouble = failing(source, [], 1)
        failed = await bench.harvest()
        retried: list[str] = []

        def retry(what: str, span: Span, offset: int) -> None:
            if what == "count" and not retried:
                retried.append(bench.do(operations.retry, run=str(failed.run_id)).says)

        source.trouble = retry
        bench.clock.advance(3_600)
        run = await bench.harvest()
        assert len(retried) == 1
        assert [r.run_id for r in bench.runs()] == [failed.run_id]
        assert run.status is R.COMPLETED

    on_bench(ledger_url, source, test)


def test_a_cancelled_run_ends_first_and_its_partitions_by_a_bulk_action(ledger_url):
    source = Catalogue(stones(500))

    async def test(bench: Bench) -> None:
        source.trouble = _away
        bench.tick()
        await bench.quiet()
        planned = bench.plan(operations.cancel, run=str(bench.run().run_id)).preview
        assert (planned.count, planned.bulk) == (6, True)
        assert planned.says == f"cancel run {bench.run().run_id} with 5 partitions that have not ended"
        assert bench.run().status is R.WORKERS_RUNNING
        done = bench.do(operations.cancel, run=str(bench.run().run_id))
        assert bench.run().status is R.FAILED
        assert done.action is not None
        run = await bench.settled()
        assert (run.status, run.error) == (R.FAILED, "cancelled by ada: because")
        assert run.watermark_after is None
        assert [(p.status, p.error) for p in bench.partitions()] == [(P.FAILED, "cancelled by ada: because")] * 5
        assert {w[1] for w in bench.workers()} == {"failed"}
        assert bench.rows("SELECT status, moved, skipped FROM bulk_action") == [("done", 5, 0)]
        calls = len(source.calls)
        bench.clock.advance(7_200)
        await bench.quiet()
        assert len(source.calls) == calls
        source.trouble = lambda *_: None
        bench.do(operations.retry, run=str(run.run_id))
        assert (await bench.settled()).status is R.COMPLETED
        assert bench.raw() == {s.stone: s.payload() for s in source.stones}

    on_bench(ledger_url, source, test)


def test_a_cancelled_partition_ends_behind_a_closed_gate_and_under_a_feed_that_is_paused(ledger_url):
    """What ends a partition needs neither its provider nor its feed."""
    source = Catalogue(stones(300))

    async def throttled(bench: Bench) -> None:
        def slow(what: str, span: Span, offset: int) -> None:
            if what == "page" and offset >= 30:
                raise Throttled("slowly", 3_600)

        source.trouble = slow
        bench.tick()
        await bench.quiet()
        bench.do(operations.cancel, run=str(bench.run().run_id))
        await bench.quiet()
        assert bench.clock.now() < START + timedelta(hours=1)
        assert bench.run().status is R.FAILED
        assert {p.status for p in bench.partitions()} <= {P.FAILED, P.PENDING}
        assert P.FAILED in {p.status for p in bench.partitions()}
        assert not [p for p in bench.partitions() if p.due_at is not None]

    async def paused(bench: Bench) -> None:
        bench.clock.advance(7_200)
        bench.do(operations.retry, run=str(bench.run().run_id))
        await bench.quiet()
        assert {p.status for p in bench.partitions()} == {P.IN_PROGRESS}
        bench.do(operations.cancel, run=str(bench.run().run_id))
        await bench.quiet()
        assert {p.status for p in bench.partitions()} == {P.FAILED}

    on_bench(ledger_url, source, throttled)
    on_bench(ledger_url, source, paused, settings=small(paused=True))


def test_a_page_that_is_under_way_when_its_run_is_cancelled_is_the_last(ledger_url):
    """A partition that a worker holds is not moved by anybody else; it looks before each page whether it is wanted."""
    source = Catalogue(stones(300))
    asked: list[Any] = []

    async def test(bench: Bench) -> None:
        def cancelling(what: str, span: Span, offset: int) -> None:
            if what == "page" and offset == 30 and not asked:
                asked.append(bench.do(operations.cancel, run=str(bench.run().run_id)))
                asked.append(span)

        source.trouble = cancelling
        run = await bench.harvest()
        assert (run.status, run.error) == (R.FAILED, "cancelled by ada: because")
        assert max(offset for what, span, offset in source.calls if what == "page" and span == asked[1]) == 30
        assert not [p for p in bench.partitions() if p.status in (P.IN_PROGRESS, P.FETCHING_PAGES)]
        assert {w[1] for w in bench.workers()} == {"failed"}
        source.trouble = lambda *_: None
        bench.do(operations.retry, run=str(run.run_id))
        assert (await bench.settled()).status is R.COMPLETED
        assert bench.raw() == {s.stone: s.payload() for s in source.stones}

    on_bench(ledger_url, source, test)


def test_a_run_retried_before_a_worker_has_ended_its_partitions_goes_on(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        source.trouble = _away
        bench.tick()
        await bench.quiet()
        run = bench.run()
        for partition in bench.partitions():
            # As the bulk action leaves it.
            bench.ledger.move(
                _ref(partition), partition.status, **BY_HAND, error="cancelled by ada: because", due_at=None
            )
        bench.ledger.move(_ref(run), R.FAILED, **BY_HAND, error="cancelled by ada: because", due_at=None)
        with pytest.raises(UsageError, match="wait for a worker to end them"):
            bench.plan(operations.force, run=str(run.run_id))
        with pytest.raises(UsageError, match="nothing to cancel"):
            bench.plan(operations.cancel, run=str(run.run_id))
        source.trouble = lambda *_: None
        assert "fetch 3 of 3 partitions" in bench.do(operations.retry, run=str(run.run_id)).says
        assert (await bench.settled()).status is R.COMPLETED
        assert bench.raw() == {s.stone: s.payload() for s in source.stones}

    on_bench(ledger_url, source, test)


def test_a_full_run_can_be_asked_for(ledger_url):
    source = Catalogue(stones(60))

    async def test(bench: Bench) -> None:
        await bench.harvest()
        bench.clock.advance(3_600)
        assert bench.plan(operations.start, feed=FEED, full=True).preview.says == "start a full run of stones"
        await bench.quiet()
        assert len(bench.runs()) == 1
        bench.do(operations.start, feed=FEED, full=True)
        run = await bench.settled()
        assert (run.run_type, run.status) == (RunType.FULL, R.COMPLETED)
        births = bench.rows(
            "SELECT reason FROM transition_log WHERE unit_id = :run AND from_status IS NULL", run=run.unit_id
        )
        assert births == [("full: a full run was asked for (ada: because)",)]
        bench.clock.advance(3_600)
        assert (await bench.harvest()).run_type is RunType.INCREMENTAL

    on_bench(ledger_url, source, test)


def test_a_watermark_is_set_back_by_name_and_reason_and_read_from_there(ledger_url):
    source = Catalogue(stones(60))

    async def test(bench: Bench) -> None:
        with pytest.raises(UsageError, match="no watermark yet"):
            bench.plan(operations.watermark_set, feed=FEED, moment=START)
        await bench.harvest()
        earlier = START - timedelta(days=3)
        source.put(Stone(99, "long-ago", START - timedelta(days=2)))
        with pytest.raises(UsageError, match="would never be read"):
            bench.plan(operations.watermark_set, feed=FEED, moment=START + timedelta(hours=1))
        with pytest.raises(UsageError, match="has no time zone"):
            bench.plan(operations.watermark_set, feed=FEED, moment=earlier.replace(tzinfo=None))
        planned = bench.plan(operations.watermark_set, feed=FEED, moment=earlier).preview
        assert planned.says == (
            "set the watermark of stones back from 2026-11-02T12:00:00.000Z to 2026-10-30T12:00:00.000Z"
        )
        assert bench.read(readings.watermark_show).rows[0].last_updated_at == START
        bench.do(operations.watermark_set, feed=FEED, moment=earlier)
        (mark,) = bench.read(readings.watermark_show).rows
        assert (mark.last_updated_at, mark.set_by, mark.set_reason) == (earlier, "ada", "because")
        bench.clock.advance(3_600)
        run = await bench.harvest()
        assert run.watermark_before == earlier
        assert set(bench.raw()) == {"long-ago"}

    on_bench(ledger_url, source, test)


def test_a_plan_is_the_same_plan_a_minute_later(ledger_url):
    source = Catalogue(stones(500))

    async def test(bench: Bench) -> None:
        source.trouble = failing(source, [], 1)
        run = await bench.harvest()

        def digests() -> list[str]:
            moment = START - timedelta(days=1)
            plans = [bench.plan(action, run=str(run.run_id)) for action in (operations.retry, operations.force)]
            plans.append(bench.plan(operations.start, feed=FEED))
            if bench.rows("SELECT 1 FROM watermark"):
                plans.append(bench.plan(operations.watermark_set, feed=FEED, moment=moment))
            return [plan.preview.digest for plan in plans]

        bench.clock.advance(60)
        first = digests()
        bench.clock.advance(60)
        assert digests() == first
        assert len(set(first)) == len(first)

    on_bench(ledger_url, source, test)


def test_what_is_done_together_is_planned_again_where_a_unit_has_changed(ledger_url):
    """If that comes to the same it is done; otherwise a person looks again."""
    source = Catalogue(stones(500))

    async def test(bench: Bench) -> None:
        source.trouble = failing(source, [], 1)
        run = await bench.harvest()
        bench.worker.stop()
        bench.clock.advance(60)
        ask = asking(bench.ledger, bench.settings)
        plans = [bench.plan(operations.retry, run=str(run.run_id)) for _ in range(2)]
        bench.ledger.move(_ref(run), R.FAILED, **BY_HAND)
        (failed,) = [p for p in bench.partitions() if p.status is P.FAILED]
        assert carry_out(bench.ledger, ask, plans[0]).count == 4
        assert bench.run().status is R.WORKERS_RUNNING
        with pytest.raises(UsageError, match="only a run that has failed can be retried"):
            carry_out(bench.ledger, ask, plans[1])
        bench.ledger.move(_ref(run), R.FAILED, **BY_HAND, error="enough")
        with pytest.raises(PlanChanged, match="harvest retry: what it would change is no longer what was shown"):
            carry_out(bench.ledger, ask, plans[1])
        assert bench.run().status is R.FAILED
        assert bench.ledger.get(_ref(failed)).status is P.PENDING

    on_bench(ledger_url, source, test)


def test_progress_tells_how_fast_and_until_when(ledger_url):
    source = Catalogue(stones(500))

    async def test(bench: Bench) -> None:
        def slowly(what: str, span: Span, offset: int) -> None:
            if what == "page" and offset == 60:
                if bench.clock.now() < START + timedelta(seconds=10):
                    bench.clock.advance(10)
                raise Transient("away")

        source.trouble = slowly
        bench.tick()
        await bench.quiet()
        (row,) = bench.read(readings.runs).rows
        assert (row.status, row.records) == (R.WORKERS_RUNNING, 300)
        now = bench.read(readings.show, run=row.run)
        assert (now.run_id, now.expected_records, now.share) == (str(bench.run().run_id), 500, 0.6)
        assert now.rate == pytest.approx(30.0)
        assert now.progress == "300 of 500 records (60%), 30 records/s"
        assert now.ends_at is not None
        assert (now.ends_at - bench.clock.now()).total_seconds() == pytest.approx(200 / 30, abs=0.1)
        source.trouble = lambda *_: None
        await bench.settled()
        (row,) = bench.read(readings.runs, feed=FEED).rows
        shown = bench.read(readings.show, run=row.run)
        assert (shown.records, shown.share, shown.rate, shown.ends_at) == (500, 1.0, None, shown.completed_at)
        with pytest.raises(UsageError, match="no feed 'other'; it has stones"):
            bench.read(readings.runs, feed="other")

    on_bench(ledger_url, source, test)


def test_partitions_are_listed_with_what_went_wrong(ledger_url):
    source = Catalogue(stones(300))

    def broken(what: str, span: Span, offset: int) -> None:
        if what == "page" and span.low > 0:
            raise Rejected("the provider cannot sort that")

    async def test(bench: Bench) -> None:
        source.trouble = broken
        run = await bench.harvest()
        short = str(run.run_id)[:8]
        whole = bench.read(readings.partitions, run=short).rows
        assert [(p.partition_id, p.status) for p in whole] == [
            ("partition-0", P.COMPLETED),
            ("partition-1", P.FAILED),
            ("partition-2", P.FAILED),
        ]
        failed = bench.read(readings.partitions, run=short, failed=True).rows
        assert [p.why for p in failed] == ["Rejected: the provider cannot sort that"] * 2
        assert f"partitions {short} --failed" in bench.read(readings.show, run=short).hint
        source.trouble = lambda *_: None
        bench.clock.advance(3_600)
        run = await bench.harvest()
        page = bench.read(readings.partitions, run=str(run.run_id), failed=True)
        assert (page.rows, page.note) == ([], "no partition has failed")

    on_bench(ledger_url, source, test)


def test_what_becomes_of_a_feed_is_said(ledger_url):
    source = Catalogue(stones(60))

    async def test(bench: Bench) -> None:
        await bench.harvest()
        known = small(paused=True)
        known.feeds["fresh"] = small().feeds[FEED]
        told = {row.feed: row for row in read(bench.ledger, known, readings.feeds).rows}
        assert (told[FEED].state, told["fresh"].state) == ("paused", "new")
        known.feeds.clear()
        (gone,) = read(bench.ledger, known, readings.feeds).rows
        assert gone.state == "gone"
        assert "its watermark stay" in gone.says
        (active,) = bench.read(readings.feeds).rows
        assert (active.state, active.runs) == ("active", 1)

    on_bench(ledger_url, source, test)


BY_HAND: dict[str, Any] = {"actor": "operator", "who": "ada", "reason": "because"}


def _ref(unit: Any) -> Any:
    from penstock.lifecycles.harvest.partition.machine import Partition
    from penstock.model.unit import Ref

    return Ref("harvest_partition" if isinstance(unit, Partition) else "harvest_run", unit.unit_id)


def _away(what: str, span: Span, offset: int) -> None:
    if what == "page":
        raise Transient("away")

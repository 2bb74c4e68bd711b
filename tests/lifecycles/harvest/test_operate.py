"""What people do to runs: legal edges only, counted before they act, and never two runs at once."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.lifecycles.harvest import operate
from penstock.lifecycles.harvest import progress
from penstock.lifecycles.harvest.feed import Span
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.run.machine import R
from penstock.lifecycles.harvest.run.machine import RunType
from penstock.model.errors import Transient, UnknownUnit, UsageError
from tests.support.harvest import FEED, START, Bench, Catalogue, Stone, on_bench, stones

WHO: dict[str, Any] = {"who": "ada", "reason": "because"}


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
        planned = operate.retry(bench.ledger, str(run.run_id), **WHO, dry_run=True)
        assert planned.says == f"run {run.run_id} would fetch 2 of 5 partitions"
        assert bench.ledger.get_many(bench.ledger.machine("harvest_run"), [run.unit_id]) == before
        done = operate.retry(bench.ledger, str(run.run_id)[:8], **WHO)
        assert done.partitions == 2
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
        with pytest.raises(UsageError, match="say why"):
            operate.force(bench.ledger, str(run.run_id), who="ada", reason=" ")
        planned = operate.force(bench.ledger, str(run.run_id), **WHO, dry_run=True)
        assert "would be consolidated without 1 of 3 partitions" in planned.says
        operate.force(bench.ledger, str(run.run_id), **WHO)
        run = await bench.settled()
        assert (run.status, run.forced_by, run.forced_reason) == (R.COMPLETED, "ada", "because")
        assert run.watermark_after == run.watermark_before == first.watermark_after
        (mark,) = progress.list_watermarks(bench.ledger)
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
        for action in (operate.retry, operate.force):
            with pytest.raises(UsageError, match="only one that has failed"):
                action(bench.ledger, str(run.run_id), **WHO)
        with pytest.raises(UsageError, match="nothing to cancel"):
            operate.cancel(bench.ledger, str(run.run_id), **WHO)
        with pytest.raises(UnknownUnit, match="no run 'nonesuch'"):
            operate.retry(bench.ledger, "nonesuch", **WHO)

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
            operate.retry(bench.ledger, str(first.run_id), **WHO)
        with pytest.raises(UsageError, match="is under way"):
            operate.start(bench.ledger, FEED, full=False, **WHO)
        source.trouble = lambda *_: None
        assert (await bench.settled()).status is R.COMPLETED
        with pytest.raises(UsageError, match="was started later and is completed"):
            operate.retry(bench.ledger, str(first.run_id), **WHO)

    on_bench(ledger_url, source, test)


def test_whoever_retries_while_a_scan_is_going_on_takes_the_schedule_from_it(ledger_url):
    source = Catalogue(stones(200))

    async def test(bench: Bench) -> None:
        source.trouble = failing(source, [], 1)
        failed = await bench.harvest()
        retried: list[str] = []

        def retry(what: str, span: Span, offset: int) -> None:
            if what == "count" and not retried:
                retried.append(operate.retry(bench.ledger, str(failed.run_id), **WHO).says)

        source.trouble = retry
        bench.clock.advance(3_600)
        run = await bench.harvest()
        assert len(retried) == 1
        assert [r.run_id for r in bench.runs()] == [failed.run_id]
        assert run.status is R.COMPLETED

    on_bench(ledger_url, source, test)


def test_a_cancelled_run_ends_by_legal_edges_and_can_go_on(ledger_url):
    source = Catalogue(stones(500))

    async def test(bench: Bench) -> None:
        source.trouble = _away
        bench.tick()
        await bench.quiet()
        planned = operate.cancel(bench.ledger, str(bench.run().run_id), **WHO, dry_run=True)
        assert planned.partitions == 5
        assert bench.run().status is R.WORKERS_RUNNING
        operate.cancel(bench.ledger, str(bench.run().run_id), **WHO)
        run = await bench.settled()
        assert (run.status, run.error) == (R.FAILED, "cancelled by ada: because")
        assert run.watermark_after is None
        assert {p.status for p in bench.partitions()} == {P.FAILED}
        assert {w[1] for w in bench.workers()} == {"failed"}
        calls = len(source.calls)
        bench.clock.advance(7_200)
        await bench.quiet()
        assert len(source.calls) == calls
        source.trouble = lambda *_: None
        operate.retry(bench.ledger, str(run.run_id), **WHO)
        assert (await bench.settled()).status is R.COMPLETED

    on_bench(ledger_url, source, test)


def test_a_full_run_can_be_asked_for(ledger_url):
    source = Catalogue(stones(60))

    async def test(bench: Bench) -> None:
        await bench.harvest()
        bench.clock.advance(3_600)
        assert "would be started" in operate.start(bench.ledger, FEED, full=True, **WHO, dry_run=True).says
        await bench.quiet()
        assert len(bench.runs()) == 1
        operate.start(bench.ledger, FEED, full=True, **WHO)
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
            operate.set_watermark(bench.ledger, FEED, START, **WHO)
        await bench.harvest()
        earlier = START - timedelta(days=3)
        source.put(Stone(99, "long-ago", START - timedelta(days=2)))
        with pytest.raises(UsageError, match="would never be read"):
            operate.set_watermark(bench.ledger, FEED, START + timedelta(hours=1), **WHO)
        planned = operate.set_watermark(bench.ledger, FEED, earlier, **WHO, dry_run=True)
        assert (planned.before, planned.after) == (START, earlier)
        assert progress.list_watermarks(bench.ledger)[0].last_updated_at == START
        operate.set_watermark(bench.ledger, FEED, earlier, **WHO)
        (mark,) = progress.list_watermarks(bench.ledger)
        assert (mark.last_updated_at, mark.set_by, mark.set_reason) == (earlier, "ada", "because")
        bench.clock.advance(3_600)
        run = await bench.harvest()
        assert run.watermark_before == earlier
        assert set(bench.raw()) == {"long-ago"}

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
        ((run, now),) = [(s.run, s.progress) for s in progress.list_runs(bench.ledger)]
        assert run.status is R.WORKERS_RUNNING
        assert (now.fetched, now.expected) == (300, 500)
        assert now.rate == pytest.approx(30.0)
        assert now.eta is not None
        assert (now.eta - bench.clock.now()).total_seconds() == pytest.approx(200 / 30, abs=0.1)
        source.trouble = lambda *_: None
        await bench.settled()
        (shown,) = progress.list_runs(bench.ledger, FEED)
        assert (shown.progress.fetched, shown.progress.share, shown.progress.eta) == (500, 1.0, None)
        with pytest.raises(UsageError, match="no feed 'other'; it has stones"):
            progress.list_runs(bench.ledger, "other")

    on_bench(ledger_url, source, test)


def test_what_becomes_of_a_feed_is_said(ledger_url):
    source = Catalogue(stones(60))

    async def test(bench: Bench) -> None:
        await bench.harvest()
        told = {s.feed: s for s in progress.standings(bench.ledger, {FEED: True, "fresh": False})}
        assert (told[FEED].state, told["fresh"].state) == ("paused", "new")
        (gone,) = progress.standings(bench.ledger, {})
        assert gone.state == "gone"
        assert "its watermark stay" in gone.says

    on_bench(ledger_url, source, test)


def _away(what: str, span: Span, offset: int) -> None:
    if what == "page":
        raise Transient("away")

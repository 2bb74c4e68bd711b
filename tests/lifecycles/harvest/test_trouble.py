"""Harvests in trouble: people who interfere at the wrong moment, odd catalogues, clocks and providers."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from penstock.lifecycles.harvest import operations
from penstock.lifecycles.harvest.chunk.flow import Chunks
from penstock.lifecycles.harvest.chunk.machine import C
from penstock.lifecycles.harvest.feed import Feed, Span
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.run.consolidate import Consolidator
from penstock.lifecycles.harvest.run.machine import Phase, R, Run, RunType
from penstock.model.clock import VirtualClock
from penstock.model.errors import LedgerRefused, Rejected, Transient, UsageError
from penstock.model.outcome import Outcome
from penstock.worker.flow import Io
from tests.support.consolidation import FEEDS
from tests.support.harvest import FEED, Bench, Catalogue, Stone, on_bench, small, stones


class Present(Mapping[str, Any]):
    """The settings of the feeds that are there now: a test may take one away."""

    def __init__(self, feeds: Mapping[str, Feed]) -> None:
        self._feeds, self._settings = feeds, small().feeds

    def __getitem__(self, name: str) -> Any:
        if name not in self._feeds:
            raise KeyError(name)
        return self._settings[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._feeds)

    def __len__(self) -> int:
        return len(self._feeds)


def consolidated(feeds: Any = FEEDS, bounds: Any = None, **settings: Any) -> dict[str, Any]:
    """Options of a bench that really consolidates."""
    known = small(**{"chunk_rows": 50} | settings)
    present = msgspec.structs.replace(known, feeds=Present(feeds))
    consolidation = Consolidator(known, feeds, **bounds or {})
    return {"consolidation": consolidation, "more": [Chunks(present, feeds)], "feed": FEEDS[FEED]}


def mapped(mapping: Callable[[str], dict[str, Any]]) -> Feed:
    """The feed with another mapping."""
    return dataclasses.replace(FEEDS[FEED], map=mapping)


def prices(bench: Bench) -> dict[str, Decimal]:
    found = bench.rows("SELECT supplier_stone_id, price FROM diamonds WHERE deleted_at IS NULL")
    return {stone: Decimal(price) for stone, price in found}


def of(source: Catalogue) -> dict[str, Decimal]:
    return {s.stone: Decimal(s.price) for s in source.stones}


async def until(holds: Any) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is waited for happens in the ledger
            await asyncio.sleep(0.002)


def test_a_run_cancelled_while_it_consolidates_is_taken_up_again(ledger_url):
    source = Catalogue(stones(300))
    made: list[Any] = []

    def cancelling(payload: str) -> dict[str, Any]:
        bench = made[0]
        if len(made) == 1 and bench.run().completed_chunks >= 2:
            made.append(bench.do(operations.cancel, run=str(bench.run().run_id)))
        return FEEDS[FEED].map(payload)

    feeds = {FEED: mapped(cancelling)}

    async def test(bench: Bench) -> None:
        made.append(bench)
        run = await bench.harvest()
        assert (run.status, run.error) == (R.FAILED, "cancelled by ada: because")
        assert bench.rows("SELECT 1 FROM watermark") == []
        bench.do(operations.retry, run=str(run.run_id))
        run = await bench.settled()
        assert (run.status, run.records_consolidated) == (R.COMPLETED, 300)
        assert prices(bench) == of(source)
        assert {c for (c,) in bench.rows("SELECT status FROM harvest_chunk")} <= {C.DONE, C.FAILED}

    on_bench(ledger_url, source, test, **consolidated(feeds))


def test_of_two_people_who_retry_at_once_one_is_told(ledger_url):
    source = Catalogue(stones(300))

    def broken(what: str, span: Span, offset: int) -> None:
        if what == "page" and span.low > 0:
            raise Rejected("no")

    async def test(bench: Bench) -> None:
        source.trouble = broken
        run = await bench.harvest()
        assert run.status is R.FAILED
        bench.worker.stop()
        said: list[Any] = []
        ready = threading.Barrier(2)

        def act() -> None:
            ready.wait(30)
            try:
                said.append(bench.do(operations.retry, run=str(run.run_id)).says)
            except (UsageError, LedgerRefused) as error:
                said.append(str(error))

        people = [threading.Thread(target=act) for _ in range(2)]
        for person in people:
            person.start()
        for person in people:
            person.join(60)
        assert sum(one.startswith("fetch 2 of 3 partitions") for one in said) == 1, said
        told = ("only a run that has failed can be retried", "is under way", "changed")
        assert any(one in str(said) for one in told), said
        assert bench.run().failed_workers == 0

    on_bench(ledger_url, source, test)


def test_a_cancelled_run_fetches_nothing_more_whatever_was_being_counted(ledger_url):
    """A partition that was completed and not yet known to be whole must not begin anew under a run that has ended."""
    source = Catalogue(stones(300))
    once: list[Any] = []

    def cancelling(what: str, span: Span, offset: int) -> None:
        bench = once[0]
        pages = bench.partitions() if bench.runs() else []
        if what == "count" and len(once) == 1 and any(p.status is P.COMPLETED for p in pages):
            source.put(*(Stone(s.price, f"new-{s.stone}") for s in source.stones))
            once.append(bench.do(operations.cancel, run=str(bench.run().run_id)))

    source.trouble = cancelling

    async def test(bench: Bench) -> None:
        once.append(bench)
        run = await bench.harvest()
        assert (run.status, run.error) == (R.FAILED, "cancelled by ada: because")
        pages = source.asked("page")
        assert not [p for p in bench.partitions() if p.due_at is not None]
        bench.do(operations.force, run=str(run.run_id))
        run = await bench.settled()
        assert (run.status, source.asked("page")) == (R.COMPLETED, pages)
        assert bench.rows("SELECT 1 FROM watermark") == []

    on_bench(ledger_url, source, test, **consolidated())


def test_a_partition_that_was_being_counted_is_counted_when_its_run_is_retried(ledger_url):
    source = Catalogue(stones(300))
    once: list[Any] = []

    def cancelling(what: str, span: Span, offset: int) -> None:
        bench = once[0]
        pages = bench.partitions() if bench.runs() else []
        if what == "count" and len(once) == 1 and any(p.status is P.COMPLETED for p in pages):
            once.append(bench.do(operations.cancel, run=str(bench.run().run_id)))

    source.trouble = cancelling

    async def test(bench: Bench) -> None:
        once.append(bench)
        run = await bench.harvest()
        assert run.status is R.FAILED
        bench.do(operations.retry, run=str(run.run_id))
        run = await bench.settled()
        assert (run.status, run.completed_workers, run.verified_workers) == (R.COMPLETED, *[run.expected_workers] * 2)
        assert prices(bench) == of(source)

    on_bench(ledger_url, source, test, **consolidated())


@pytest.mark.parametrize("phase", ["triggered", "consolidating"])
def test_a_feed_that_is_no_longer_configured_waits_and_its_run_can_be_cancelled(ledger_url, phase):
    source, feeds = Catalogue(stones(300)), dict(FEEDS)

    def removing(what: str, span: Span, offset: int) -> None:
        if what == "page":
            feeds.clear()

    def removing_later(payload: str) -> dict[str, Any]:
        feeds.clear()
        return FEEDS[FEED].map(payload)

    if phase == "triggered":
        source.trouble = removing
    else:
        feeds[FEED] = mapped(removing_later)

    async def test(bench: Bench) -> None:
        bench.tick()
        await until(lambda: bench.runs() and bench.run().status is R.CONSOLIDATING and not feeds)
        await bench.quiet()
        run = bench.run()
        assert (run.status, run.parked_at, run.claimed_by) == (R.CONSOLIDATING, None, None)
        assert bench.alerts() == []
        first = str(run.run_id)
        if phase == "triggered":
            assert "configure it again or cancel the run" in run.change_reason
            feeds.update(FEEDS)
            run = await bench.settled()
            assert run.status is R.COMPLETED
            assert prices(bench) == of(source)
        else:
            bench.do(operations.cancel, run=first)
            assert bench.run().status is R.FAILED

    on_bench(ledger_url, source, test, **consolidated(feeds))


def test_a_chunk_that_killed_its_workers_does_not_hold_up_the_next_consolidation(ledger_url):
    source, feeds = Catalogue(stones(300)), dict(FEEDS)
    made: list[Any] = []

    def parking(payload: str) -> dict[str, Any]:
        bench = made[0]
        if len(made) == 1:
            made.append(True)
            chunk = "SELECT unit_id FROM harvest_chunk WHERE claimed_by IS NOT NULL LIMIT 1"
            park = (
                "UPDATE harvest_chunk SET parked_at = changed_at, parked_reason = 'it kills', version = version + 1,"
                f" claimed_by = NULL WHERE unit_id = ({chunk})"
            )
            bench.ledger.database.write(lambda cursor: cursor.run(park))
        return FEEDS[FEED].map(payload)

    feeds[FEED] = mapped(parking)

    async def test(bench: Bench) -> None:
        made.append(bench)
        bench.tick()
        await until(lambda: bench.runs() and bench.rows("SELECT 1 FROM harvest_chunk WHERE parked_at IS NOT NULL"))
        await bench.quiet()
        run = bench.run()
        assert (run.status, run.phase) == (R.CONSOLIDATING, Phase.PROCESSING_BATCH)
        bench.do(operations.cancel, run=str(run.run_id))
        bench.do(operations.retry, run=str(run.run_id))
        run = await bench.settled()
        assert (run.status, run.phase) == (R.COMPLETED, None)
        assert prices(bench) == of(source)

    on_bench(ledger_url, source, test, **consolidated(feeds))


class Late(Consolidator):
    """Somebody adds a raw row by hand, just before the run would complete."""

    bench: Bench

    async def step(self, run: Run, io: Io) -> Outcome[Run]:
        if run.phase is Phase.ADVANCING_WATERMARK and len(self.bench.raw()) == 300:
            columns = "partition_id, offer_id, payload, payload_hash, source_updated_at, fetched_at"
            mine = ("run_id", "supplier_stone_id", "position")
            sql = (
                f"INSERT INTO raw_diamonds_nivoda ({', '.join(mine)}, {columns}) SELECT run_id, 'late', position + 500,"
                f" {columns} FROM raw_diamonds_nivoda ORDER BY position LIMIT 1"
            )
            self.bench.ledger.database.write(lambda cursor: cursor.run(sql))
        return await super().step(run, io)


def test_a_row_that_comes_before_the_run_completes_is_consolidated_too(ledger_url):
    source, late = Catalogue(stones(300)), Late(small(chunk_rows=50), FEEDS)

    async def test(bench: Bench) -> None:
        late.bench = bench
        run = await bench.harvest()
        assert (run.status, run.records_consolidated) == (R.COMPLETED, 301)
        assert "late" in prices(bench)
        assert bench.rows("SELECT 1 FROM raw_diamonds_nivoda WHERE NOT consolidated") == []

    on_bench(ledger_url, source, test, consolidation=late, more=[Chunks(small(), FEEDS)], feed=FEEDS[FEED])


CATALOGUES = {
    "one stone": [Stone(700, "s1")],
    "all at one price": [Stone(700, f"s{n}") for n in range(500)],
    "all for nothing": [Stone(0, f"s{n}") for n in range(500)],
    "beyond price": [Stone(10**12, f"s{n}") for n in range(300)],
    "one beyond price": [*stones(300), Stone(10**13, "dear")],
}


@pytest.mark.parametrize("name", CATALOGUES)
def test_odd_catalogues_are_harvested_whole(ledger_url, name):
    source = Catalogue(CATALOGUES[name])

    async def test(bench: Bench) -> None:
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        assert run.scan_calls < 100
        assert prices(bench) == of(source)
        assert sum(p.expected_records for p in bench.partitions()) == len(source.stones)

    on_bench(ledger_url, source, test, **consolidated())


def test_a_clock_set_back_between_runs_loses_nothing(ledger_url):
    source, clock = Catalogue(stones(200)), VirtualClock()

    async def test(bench: Bench) -> None:
        first = await bench.harvest()
        bench.clock.advance(3_600)
        second = await bench.harvest()
        assert second.watermark_after > first.watermark_after

    on_bench(ledger_url, source, test, **consolidated(), clock=clock)
    mark = clock.now()
    back = VirtualClock(mark - timedelta(hours=5))

    async def later(bench: Bench) -> None:
        source.put(Stone(1, "updated", bench.clock.now()))
        bench.clock.advance(60)
        bench.tick()
        await bench.settled()
        third = min((r for r in bench.runs() if r.run_type is RunType.INCREMENTAL), key=lambda r: r.started_at)
        ((there,),) = bench.rows("SELECT last_updated_at FROM watermark")
        assert third.status is R.COMPLETED
        assert third.watermark_after < mark
        assert str(there)[:19].replace("T", " ") == str(mark)[:19]
        assert "updated" in prices(bench)

    on_bench(ledger_url, source, later, **consolidated(), clock=back)


def test_a_catalogue_that_vanishes_under_a_full_run_deletes_nothing(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        assert (await bench.harvest()).status is R.COMPLETED
        bench.clock.advance(3_600)
        bench.do(operations.start, feed=FEED, full=True)
        held = list(source.stones)

        def vanish(what: str, span: Span, offset: int) -> None:
            if what == "page":
                source.stones = []

        source.trouble = vanish
        run = await bench.settled()
        assert run.status is R.FAILED
        assert "it did not see 300 of 300 records" in run.error
        assert len(prices(bench)) == 300
        # The next run finds nothing from the start (H1), and is no better.
        bench.clock.advance(3_600)
        bench.do(operations.start, feed=FEED, full=True)
        run = await bench.settled()
        assert (run.status, run.expected_workers) == (R.FAILED, 0)
        assert "it did not see 300 of 300 records" in run.error
        assert len(prices(bench)) == 300
        # It was the provider's mistake.
        source.trouble, source.stones = lambda *_: None, held
        bench.clock.advance(3_600)
        bench.do(operations.start, feed=FEED, full=True)
        assert (await bench.settled()).status is R.COMPLETED
        assert len(prices(bench)) == 300

    on_bench(ledger_url, source, test, **consolidated(bounds={"judged_from": 100}))


def test_a_provider_that_is_down_for_hours_costs_a_run_and_no_record(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench) -> None:
        def down(what: str, span: Span, offset: int) -> None:
            if what == "page" and offset >= 30:
                raise Transient("connection refused")

        source.trouble = down
        run = await bench.harvest()
        assert (run.status, run.failed_workers) == (R.FAILED, run.expected_workers)
        failing = [("harvest.failed", "critical")]
        assert bench.alerts() == failing

        def away(what: str, span: Span, offset: int) -> None:
            raise Transient("connection refused")

        source.trouble = away
        bench.clock.advance(3_600)
        bench.tick()
        await bench.quiet()
        assert len(bench.runs()) == 1
        assert ("schedule.failed", "warning") in bench.alerts()
        source.trouble = lambda *_: None
        bench.do(operations.retry, run=str(run.run_id))
        run = await bench.settled()
        assert run.status is R.COMPLETED
        assert prices(bench) == of(source)

    on_bench(ledger_url, source, test, **consolidated())

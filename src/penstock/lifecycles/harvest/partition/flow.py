"""The flow of partitions: one page is one commit, so that a page counts once however often it is delivered.

A page's raw rows, the offset after it and the next due moment are one transaction, fenced by the partition's version:
of two workers that fetched the same page one commits, and the other's result is dropped. The claim is kept from page to
page, unless the provider's budget is counted: then every page takes its own place in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.columns import readable
from penstock.lifecycles.harvest.feed import Configured, Feed, Span, Window
from penstock.lifecycles.harvest.partition.decide import Alive, decide, doubt_of, is_short, turn_page
from penstock.lifecycles.harvest.partition.machine import (
    CALLS,
    P,
    Partition,
    W,
    WorkerRun,
    harvest_partition,
    harvest_worker,
    worker_run_id,
)
from penstock.lifecycles.harvest.partition.pages import Comparison, Known, Page
from penstock.lifecycles.harvest.run.machine import R
from penstock.lifecycles.harvest.settings import HarvestSettings
from penstock.lifecycles.harvest.tables import POSITIONS
from penstock.model.clock import Rng
from penstock.model.errors import Rejected, StepError
from penstock.model.outcome import Birth, Move, Outcome
from penstock.model.unit import replace
from penstock.worker.flow import Flow, Gate, Io

PAGES_PER_CLAIM = 64
"""After so many pages others may have the partition; the kernel allows a hundred turns over one claim."""


class Partitions(Flow[Partition, HarvestSettings, Alive]):
    """Fetches the partitions of every configured feed."""

    machine = harvest_partition
    decide = staticmethod(decide)
    #: For all the pages of one claim, however slowly they come.
    deadline = timedelta(minutes=30)
    charges_outages = False

    def __init__(self, settings: HarvestSettings, feeds: Mapping[str, Configured]) -> None:
        super().__init__(settings)
        self._feeds = feeds
        self._comparison = Comparison()

    def gate(self, unit: Partition) -> Gate:
        configured = self._feeds.get(unit.feed)
        # One that is given up needs no provider any more.
        return Gate() if configured is None or unit.error is not None else Gate(configured.gate)

    async def stop(self) -> None:
        await self._comparison.close()
        for configured in self._feeds.values():
            await configured.source.close()

    async def look(self, unit: Partition, io: Io) -> Alive:  # noqa: ARG002 - one shape
        source, window, span = self._feeds[unit.feed].source, window_of(unit), Span(unit.low, unit.high)
        if unit.status is P.COMPLETED:
            await source.page(window, span, 0, 1)
        else:
            await source.count(window, span)
        return Alive()

    async def act(self, what: str, unit: Partition, seen: Alive | None, io: Io) -> Outcome[Partition]:  # noqa: ARG002
        match what:
            case "fetch":
                return await self._fetch(unit, io)
            case "begin":
                return self._begin(unit, io)
            case "complete":
                return await self._complete(unit, io)
            case "recount" | "verify":
                return await self._verify(unit, io, recount=what == "recount")
            case "give_up":
                return await self._give_up(unit, str(unit.error), io)
            case _:
                after = replace(unit, duplicate_pages=unit.duplicate_pages + 1, due_at=None)
                return Outcome(unit, after, "delivered again; it is completed")

    def failed(self, unit: Partition, error: StepError, now: datetime, rng: Rng) -> Outcome[Partition] | None:
        """A partition fails after its retries; a count that cannot be had again is done without."""
        hopeless = isinstance(error, Rejected) or CALLS.exhausted(unit.attempts)
        text = readable(f"{type(error).__name__}: {error}")
        if unit.status is P.COMPLETED:
            attempts = CALLS.max_retries if hopeless else unit.attempts + 1
            return Outcome(unit, replace(unit, attempts=attempts, due_at=now + CALLS.delay(unit.attempts, rng)), text)
        if not hopeless:
            return None
        why = text if isinstance(error, Rejected) else f"{text} (after {unit.attempts} retries)"
        return Outcome(unit, replace(unit, error=why, attempts=0, due_at=now), why)

    def _begin(self, unit: Partition, io: Io) -> Outcome[Partition]:
        now, feed = io.now(), self._feeds[unit.feed].feed
        worker = WorkerRun(
            id=worker_run_id(unit.run_id, unit.partition_id),
            run_id=unit.run_id,
            partition_id=unit.partition_id,
            worker_id=unit.claimed_by or "",
            work_item_payload=work_item(unit, feed, self.settings),
            started_at=now,
        )
        after = replace(unit, begun_at=now, updated_at=now)
        born = Birth(worker, "its partition is claimed", if_absent=True)
        return Outcome(unit, after, "the worker starts", others=[born], keep_claim=True)

    async def _fetch(self, unit: Partition, io: Io) -> Outcome[Partition]:
        configured = self._feeds[unit.feed]
        offset, size = unit.next_offset, self.settings.page_size
        asked = io.now()
        items = await configured.source.page(window_of(unit), Span(unit.low, unit.high), offset, size + 1)
        now = io.now()
        came = Page.of(configured.feed, unit, items, asked)
        page = came.kept(size)
        known = await self._comparison.of(unit, page, io)
        if known.over is not None:
            return await self._give_up(unit, known.over, io)
        after = replace(
            turn_page(unit, came.records, self.settings),
            status=P.FETCHING_PAGES,
            records=unit.records + len(page.rows),
            pages=unit.pages + 1,
            attempts=0,
            updated_at=now,
            due_at=now,
        )
        return Outcome(
            unit,
            after,
            f"page {after.pages}",
            writes=page.writes(unit.expected_records - offset),
            others=_worker_told(unit, page, known),
            keep_claim=not configured.metered and after.pages % PAGES_PER_CLAIM != 0,
        )

    async def _complete(self, unit: Partition, io: Io) -> Outcome[Partition]:
        now = io.now()
        after = replace(unit, status=P.COMPLETED, completed=True, attempts=0, updated_at=now, due_at=now)
        worker = await io.ledger(lambda ledger: worker_of(ledger, unit))
        ended = replace(_held(worker, unit), status=W.COMPLETED, completed_at=now)
        reason = f"{unit.records:,} records in {unit.pages:,} pages"
        metered = self._feeds[unit.feed].metered
        return Outcome(unit, after, reason, others=[Move(worker, ended, reason)], keep_claim=not metered)

    async def _verify(self, unit: Partition, io: Io, *, recount: bool) -> Outcome[Partition]:
        """Compare what was found with what there is now; a full run reads again what may not be whole.

        Where that is in doubt, what was counted before matters too, whichever is more: while records vanished, others
        moved across the border of a page.
        """
        configured = self._feeds[unit.feed]
        there = await configured.source.count(window_of(unit), Span(unit.low, unit.high)) if recount else None
        found = await io.ledger(lambda ledger: found_records(ledger, configured.feed, unit))
        now = io.now()
        doubt = doubt_of(unit, found, there)
        counted = max(there or 0, unit.expected_records)
        short = doubt is not None and is_short(found, counted, self.settings.tolerance)
        if doubt is None and there and unit.window_to is None and not await self._has_page_of(unit, there, io):
            doubt = f"its pages hold fewer records than the {there:,} that are counted"
        hopeless = unit.rescans >= self.settings.rescans
        # Only a full run has a use for the proof, and what has no end would have none the next time either.
        unproved = doubt is not None and unit.window_to is None and unit.ended and recount
        if not short and (hopeless or not unproved):
            after = replace(
                unit, found_records=found, doubt=doubt, verified_at=now, attempts=0, updated_at=now, due_at=None
            )
            reason = f"{found:,} records of {counted:,}{f'; {doubt}' if doubt else ''}"
            return Outcome(unit, after, reason, parent_counts={"verified_workers": 1})
        over = await io.ledger(lambda ledger: _why_over(ledger, unit))
        if over is not None:
            # It is counted once more if its run is retried.
            return Outcome(unit, replace(unit, due_at=None), over)
        why = f"{found:,} of {counted:,} records were found" if short else str(doubt)
        after = replace(
            unit,
            status=P.PENDING,
            completed=False,
            next_offset=0,
            ended=False,
            coming=None,
            steps_back=0,
            doubt=None,
            expected_records=unit.expected_records if there is None else there,
            found_records=found,
            rescans=unit.rescans + 1,
            error=f"{why}, after it was fetched {unit.rescans + 1} times" if hopeless else None,
            attempts=0,
            updated_at=now,
            due_at=now,
        )
        worker = await io.ledger(lambda ledger: worker_of(ledger, unit))
        again = replace(_held(worker, unit), status=W.RUNNING, completed_at=None)
        return Outcome(unit, after, f"{why}: it is fetched again", others=[Move(worker, again, why)])

    async def _has_page_of(self, unit: Partition, last: int, io: Io) -> bool:
        """Whether there is still a page with the last record of a count.

        Where one was counted that is on no page, and another left after the last page, both numbers are the same.
        """
        configured = self._feeds[unit.feed]
        async with io.gate(configured.gate):
            return bool(await configured.source.page(window_of(unit), Span(unit.low, unit.high), last - 1, 1))

    async def _give_up(self, unit: Partition, why: str, io: Io) -> Outcome[Partition]:
        now = io.now()
        after = replace(unit, status=P.FAILED, error=why, updated_at=now, due_at=None)
        if unit.begun_at is None:
            return Outcome(unit, after, why)
        worker = await io.ledger(lambda ledger: worker_of(ledger, unit))
        ended = replace(_held(worker, unit), status=W.FAILED, completed_at=now, error_message=why)
        return Outcome(unit, after, why, others=[Move(worker, ended, why)])


def window_of(partition: Partition) -> Window:
    """What its pages are asked for."""
    return Window(partition.window_from, partition.window_to)


def worker_of(ledger: Ledger, partition: Partition) -> WorkerRun:
    """The worker's record of a partition that has begun."""
    worker_id = str(worker_run_id(partition.run_id, partition.partition_id))
    found: list[WorkerRun] = ledger.get_many(harvest_worker, [worker_id])
    return found[0]


def _why_over(ledger: Ledger, partition: Partition) -> str | None:
    """Why its run has ended before it did: somebody cancelled it; None while the run wants its pages."""
    sql = f"SELECT error FROM run_metadata WHERE unit_id = :run AND status = '{R.FAILED}'"
    found = ledger.read(lambda cursor: cursor.rows(sql, run=str(partition.run_id)))
    return str(found[0][0]) if found else None


def _held(worker: WorkerRun, partition: Partition) -> WorkerRun:
    """The record says who holds the partition now: whoever takes it over from a worker that died."""
    return replace(worker, worker_id=partition.claimed_by or worker.worker_id)


def _worker_told(partition: Partition, page: Page, known: Known) -> list[Move]:
    """The page in the worker's record: records that it brought for the first time, and who fetched them."""
    worker, fresh = known.worker, {*page.records} - known.records
    after = replace(_held(worker, partition), records_processed=worker.records_processed + len(fresh))
    return [Move(worker, after, "a page")] if after != worker else []


def found_records(ledger: Ledger, feed: Feed, partition: Partition) -> int:
    """How many distinct records of a partition there are: every one has one row, wherever pages overlapped."""
    first = partition.ordinal * POSITIONS
    run_id = ledger.database.sql.identifier("run_id")
    sql = f"SELECT count(*) FROM {feed.raw.name} WHERE run_id = {run_id} AND position >= :first AND position < :last"
    given = {"run_id": str(partition.run_id), "first": first, "last": first + POSITIONS}
    return int(ledger.read(lambda cursor: cursor.rows(sql, **given))[0][0])


def work_item(partition: Partition, feed: Feed, settings: HarvestSettings) -> dict[str, Any]:
    """What a worker is to fetch, and in which order."""
    return {
        "feed": partition.feed,
        "axis": feed.axis,
        "low": partition.low,
        "high": partition.high,
        "updated": [partition.window_from, partition.window_to],
        "expected_records": partition.expected_records,
        "page_size": settings.page_size,
        "order": dict(feed.order),
    }

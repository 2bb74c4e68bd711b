"""A page that has come: its raw rows, and what the ledger knows of them.

Pages of many partitions come at once, and each must be compared with what is there. Those that came while the last read
was under way are compared by one read together, as the group committer writes them together.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from penstock.ledger.ledger import Ledger
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor
from penstock.ledger.units import get_many
from penstock.lifecycles.harvest.feed import Feed
from penstock.lifecycles.harvest.partition.machine import Partition, WorkerRun, harvest_worker, worker_run_id
from penstock.lifecycles.harvest.run.machine import R
from penstock.lifecycles.harvest.tables import POSITIONS
from penstock.model.clock import instant_text
from penstock.model.outcome import Write
from penstock.worker.flow import Io


@dataclass(frozen=True, slots=True)
class Page:
    """Raw rows of a page, each a list of values in the order of `columns`, and their identities."""

    feed: Feed
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    records: Sequence[str]

    @classmethod
    def of(cls, feed: Feed, partition: Partition, items: Sequence[Any], asked: datetime) -> Page:
        """The records that came for the partition's next offset. Where they were found is their position."""
        own = [feed.raw_row(item) for item in items]
        names = list(dict.fromkeys(name for row in own for name in row))
        # Made plain once for the page instead of once for every row. What is fetched again is consolidated again.
        alike = {
            "run_id": str(partition.run_id),
            "partition_id": partition.partition_id,
            "fetched_at": instant_text(asked),
            "consolidated": False,
        }
        first, same = partition.ordinal * POSITIONS + partition.next_offset, tuple(alike.values())
        rows = [(*same, at, *map(row.get, names)) for at, row in enumerate(own, start=first)]
        return cls(feed, [*alike, "position", *names], rows, [row[feed.identity] for row in own])

    def kept(self, size: int) -> Page:
        """The first so many of them."""
        return Page(self.feed, self.columns, self.rows[:size], self.records[:size])

    def writes(self, counted: int) -> list[Write]:
        """Its rows, of which so many lie within the count. One past it does not take a row that another range has."""
        counted = max(0, counted)
        within = dict(zip(self.records[:counted], self.rows[:counted], strict=True))  # the last of a record counts
        past = dict(zip(reversed(self.records[counted:]), reversed(self.rows[counted:]), strict=True))
        found = [Write(self.feed.raw, [*within.values()], columns=self.columns)] if within else []
        if past:
            ignored = [*reversed(past.values())]
            found.append(Write(self.feed.raw, ignored, on_conflict="ignore", columns=self.columns))
        return found


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger knows of a page: who fetches its partition, and which of its records an earlier page brought.

    `over` says why the run has ended before the page came: somebody cancelled it. None while it wants its pages.
    """

    worker: WorkerRun
    records: set[str]
    over: str | None = None


_Question = tuple[Partition, Page]


class Comparison:
    """Compares pages with the ledger, those of many partitions at once."""

    def __init__(self) -> None:
        self._waiting: list[tuple[_Question, asyncio.Future[Known]]] = []
        self._reading: asyncio.Task[None] | None = None

    async def of(self, partition: Partition, page: Page, io: Io) -> Known:
        """What is known of a page of the partition, which has begun."""
        answer: asyncio.Future[Known] = asyncio.get_running_loop().create_future()
        self._waiting.append(((partition, page), answer))
        if self._reading is None:
            # A task of its own: the step that asked first may be cancelled, and the others are not.
            self._reading = asyncio.create_task(self._read_all(io))
        return await answer

    async def close(self) -> None:
        """Ask no more."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read_all(self, io: Io) -> None:
        try:
            while self._waiting:
                asked, self._waiting = [one for one in self._waiting if not one[1].done()], []
                try:
                    await self._read(asked, io)
                except Exception:  # noqa: BLE001 - one that cannot be read is nobody else's failure
                    for one in asked:
                        await self._read_alone(one, io)
        finally:
            self._reading = None

    async def _read(self, asked: Sequence[tuple[_Question, asyncio.Future[Known]]], io: Io) -> None:
        found = await io.ledger(lambda ledger: known_of(ledger, [question for question, _ in asked]))
        for (_, answer), known in zip(asked, found, strict=True):
            if not answer.done():
                answer.set_result(known)

    async def _read_alone(self, one: tuple[_Question, asyncio.Future[Known]], io: Io) -> None:
        try:
            await self._read([one], io)
        except Exception as error:  # noqa: BLE001 - it is raised in the step that asked
            if not one[1].done():
                one[1].set_exception(error)


def known_of(ledger: Ledger, pages: Sequence[_Question]) -> list[Known]:
    """What is known of each of the pages, of one moment."""
    ids = [str(worker_run_id(partition.run_id, partition.partition_id)) for partition, _ in pages]

    def work(cursor: Cursor) -> list[Known]:
        # Nobody has analysed a table that fills up: the planner would read all of a run for every page of it.
        ledger.database.sql.by_index(cursor)
        found: list[WorkerRun] = get_many(ledger.database, harvest_worker, ids, cursor)
        workers = {str(worker.id): worker for worker in found}
        over = _over(ledger, cursor, {partition.run_id for partition, _ in pages})
        there = _there(ledger, cursor, pages)
        return [
            Known(
                workers[worker_id],
                there[page.feed.raw.name, str(partition.run_id)] & {*page.records},
                over.get(str(partition.run_id)),
            )
            for worker_id, (partition, page) in zip(ids, pages, strict=True)
        ]

    return ledger.read(work)


def _over(ledger: Ledger, cursor: Cursor, runs: set[UUID]) -> Mapping[str, str]:
    source = statements.batch(ledger.database, {"unit_id": statements.TEXT})
    sql = f"SELECT unit_id, error FROM run_metadata JOIN {source} ON unit_id = n_unit_id WHERE status = '{R.FAILED}'"
    found = cursor.rows(sql, batch=statements.batch_text([[str(run)] for run in runs]))
    return {str(run): str(error) for run, error in found}


def _there(ledger: Ledger, cursor: Cursor, pages: Sequence[_Question]) -> Mapping[tuple[str, str], set[str]]:
    """Of each table and run the records that an earlier page brought, whichever partition's it was."""
    asked: dict[str, list[list[str]]] = {}
    feeds = {page.feed.raw.name: page.feed for _, page in pages}
    for partition, page in pages:
        run = str(partition.run_id)
        asked.setdefault(page.feed.raw.name, []).extend([run, record] for record in page.records)
    there: dict[tuple[str, str], set[str]] = defaultdict(set)
    for table, rows in asked.items():
        # The run in every row: asked for apart, it looks to a planner that knows nothing as if it left few rows. SQLite
        # goes through a cross join from left to right.
        source = statements.batch(ledger.database, {"run": feeds[table].raw.c.run_id.type, "record": statements.TEXT})
        which = f"CROSS JOIN {table} AS r WHERE r.run_id = n_run AND r.{feeds[table].identity} = n_record"
        for run, record in cursor.rows(
            f"SELECT n_run, n_record FROM {source} {which}", batch=statements.batch_text(rows)
        ):
            there[table, str(run)].add(str(record))
    return there

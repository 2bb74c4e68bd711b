"""The no-op that Penstock is measured with, and the real worker processes that carry it out.

A unit goes from QUEUED to DONE. Its guard, its history row and the fence of its claim are all there; the step itself
does nothing, or waits as a network call would.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from multiprocessing.context import SpawnContext
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Self

import structlog

from benchmarks.peers import common
from penstock.app.running import tune_interpreter
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.outcome import Act, Outcome
from penstock.model.state import State, done, rest
from penstock.model.unit import NO_GATE, Unit, replace
from penstock.worker.flow import Flow, Io
from penstock.worker.worker import Worker

SQLITE = "sqlite:///"
POLL_SECONDS = 0.005
READY_SECONDS = 60.0
FILL_AT_ONCE = 100_000


class Status(State):
    QUEUED = rest("QUEUED", "waits for a worker")
    DONE = done("DONE", "nothing was done")


class Noop(Unit):
    key = ("number",)

    status: Status = Status.QUEUED
    number: int


MACHINE = Machine(
    "noop",
    Noop,
    births={Status.QUEUED},
    terminal={Status.DONE},
    edges=[Edge(Status.QUEUED, Status.DONE, "done", {Actor.WORKER})],
)


class Noops(Flow[Noop, float, None]):
    """Its setting is how many seconds the step waits."""

    machine = MACHINE

    @staticmethod
    def decide(_unit: Noop, _now: datetime, _wait: float, _seen: None) -> Act:
        return Act("finish", "it is due")

    async def act(self, _what: str, unit: Noop, _seen: None, _io: Io) -> Outcome[Noop]:
        if self.settings:
            await asyncio.sleep(self.settings)
        return Outcome(unit, replace(unit, status=Status.DONE), "done")


def arguments(program: str, items: int) -> argparse.ArgumentParser:
    """The parser of one of Penstock's own programs."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{program}")
    parser.add_argument("--items", type=int, default=items, help="units (default %(default)s)")
    parser.add_argument(
        "--url",
        required=True,
        help="sqlite:///… of a file that need not exist, or postgresql://… of a role that may create databases",
    )
    return parser


@contextmanager
def scratch(url: str, name: str) -> Iterator[str]:
    """An empty ledger's address, gone afterwards: a new file beside that of `url`, or a new database on its server."""
    if not url.startswith(SQLITE):
        with common.scratch_database(url, name) as made:
            yield made
        return
    path = Path(f"{url.removeprefix(SQLITE)}-{name}")
    if path.exists():
        raise SystemExit(f"{path.name} exists")
    try:
        yield f"{SQLITE}{path}"
    finally:
        for suffix in ("", "-wal", "-shm", "-writer"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def database_of(url: str) -> str:
    return "sqlite" if url.startswith(SQLITE) else "postgresql"


def settle(url: str) -> None:
    """Start every run alike; a SQLite ledger has been checkpointed by the closing of its last connection."""
    if database_of(url) == "postgresql":
        common.settle(url)


def fill(ledger: Ledger, count: int, *, start: int = 0, gates: int = 0, first_gate: int = 0, days: int = 0) -> None:
    """Give birth to units by plain SQL, the oldest first, in `gates` gates in turn or in none.

    They are due since yesterday, or so many days later.
    """
    gate = _gate(gates, first_gate)
    sql = _fill_postgres(gate) if ledger.database.dialect == "postgresql" else _fill_sqlite(gate)
    for first in range(start, start + count, FILL_AT_ONCE):
        last = min(first + FILL_AT_ONCE, start + count) - 1

        def work(cursor: Cursor, first: int = first, last: int = last) -> None:
            unhurried(ledger, cursor)
            moment = ledger.clock.now() + timedelta(days=days)
            cursor.run(sql, first=first, last=last, moment=moment.isoformat(timespec="milliseconds"))

        ledger.database.write(work)


def gate_name(number: int | str) -> str:
    return f"gate{number}"


def _gate(gates: int, first: int) -> str:
    return f"'{gate_name('')}' || ({first} + i % {gates})" if gates else f"'{NO_GATE}'"


# From yesterday on, a hundred units to the millisecond: all are due.
def _fill_postgres(gate: str) -> str:
    return f"""INSERT INTO noop (unit_id, number, status, due_at, gate_id)
SELECT i::text, i, 'QUEUED', CAST(:moment AS timestamptz) - interval '1 day' + i / 100 * interval '1 millisecond', {gate}
  FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS i"""  # noqa: E501 - SQL reads best unbroken


def _fill_sqlite(gate: str) -> str:
    return f"""WITH RECURSIVE series(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM series WHERE i < :last)
INSERT INTO noop (unit_id, number, status, due_at, gate_id)
SELECT CAST(i AS TEXT), i, 'QUEUED',
       strftime('%Y-%m-%dT%H:%M:%fZ', :moment, printf('%+.3f seconds', i / 100 / 1000.0 - 86400)), {gate}
  FROM series"""


def unhurried(ledger: Ledger, cursor: Cursor) -> None:
    """A benchmark's own statements are large: a ledger's connection allows only what suits a worker's."""
    if ledger.database.dialect == "postgresql":
        cursor.run("SET LOCAL statement_timeout = 0")
        cursor.run("SET LOCAL enable_seqscan = on")


def finished(ledger: Ledger) -> int:
    """How many units are done, free again, and have both their history rows."""

    def work(cursor: Cursor) -> int:
        unhurried(ledger, cursor)
        done = cursor.rows("SELECT count(*) FROM noop WHERE status = 'DONE' AND claimed_by IS NULL")[0][0]
        logged = cursor.rows("SELECT count(*) FROM transition_log WHERE to_status IN ('QUEUED', 'DONE')")[0][0]
        return int(min(done, logged // 2))

    return ledger.database.write(work)


class Board:
    """What the processes of a fleet share: how much each has committed, when to start and when to stop."""

    def __init__(self, context: SpawnContext, processes: int) -> None:
        self.start: Barrier = context.Barrier(processes + 1)
        self.counts: Any = context.RawArray("q", processes)
        self.stop: Any = context.RawValue("b", 0)


class Fleet:
    """Worker processes that are connected and wait for the start; leaving the context ends them."""

    def __init__(self, url: str, processes: int, *, wait: float = 0.0) -> None:
        context = multiprocessing.get_context("spawn")
        self._board = Board(context, processes)
        self.members = [
            context.Process(target=_member, args=(url, wait, index, self._board), daemon=True)
            for index in range(processes)
        ]

    def __enter__(self) -> Self:
        for member in self.members:
            member.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._board.stop.value = 1
        for member in self.members:
            member.join(30)
            if member.is_alive():
                member.kill()

    def committed(self) -> int:
        return sum(self._board.counts)

    def run(self, items: int, watch: Callable[[int], None] = lambda _: None) -> float:
        """Let them go; the seconds until so many units are committed. `watch` is called with the count meanwhile."""
        self._board.start.wait(READY_SECONDS)
        started = time.perf_counter()
        while (count := self.committed()) < items:
            if time.perf_counter() - started > common.GIVE_UP_SECONDS:
                raise SystemExit(f"{count} of {items} units were committed in {common.GIVE_UP_SECONDS} seconds")
            if not all(member.is_alive() for member in self.members):
                raise SystemExit("a worker process died")
            watch(count)
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - started


def _member(url: str, wait: float, index: int, board: Board) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    tune_interpreter()
    with Ledger.open(url, [MACHINE]) as ledger:
        ledger.database.write(lambda cursor: cursor.rows("SELECT 1"))  # connected, as the peers are
        asyncio.run(_work(ledger, wait, index, board))


async def _work(ledger: Ledger, wait: float, index: int, board: Board) -> None:
    worker = Worker(ledger, [Noops(wait)])
    parent = os.getppid()
    board.start.wait(READY_SECONDS)
    running = asyncio.create_task(worker.run())
    while not board.stop.value and not running.done() and os.getppid() == parent:
        board.counts[index] = worker.counts.committed
        await asyncio.sleep(POLL_SECONDS)
    worker.stop()
    await running

"""A worker that runs until there is nothing left to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from penstock.ledger.incarnation import Incarnation
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.model.clock import VirtualClock
from penstock.model.errors import PenstockError
from penstock.model.machine import Machine
from penstock.model.simulation import simulate
from penstock.testing.faults import Faulty
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import AnyFlow
from penstock.worker.worker import Worker, WorkerSettings

T = TypeVar("T")
_LOOK_SECONDS = 0.01
_DEAD_SECONDS = 1.0
_CALLS = 200_000
_REAL = WorkerSettings(place_seconds=None, idle_seconds=0.1)
# Nobody else is there, and days pass in a second: what a worker does every few seconds would take most of that.
_VIRTUAL = WorkerSettings(
    lease_ms=600_000,
    renew_seconds=200.0,
    watch_seconds=300.0,
    idle_seconds=None,
    unknown_seconds=1e9,
    place_seconds=None,
)


class NeverIdle(PenstockError):
    """Steps follow upon steps without end, or the worker ended by itself."""


async def run_until_idle(
    ledger: Ledger,
    flows: Sequence[AnyFlow],
    *,
    within: timedelta = timedelta(days=1),
    settings: WorkerSettings | None = None,
) -> None:
    """Let a worker run until no unit of these flows is claimed, and none falls due `within` that time from now.

    A unit behind a gate counts when the gate opens; one that is parked, or whose gate is paused, does not. Where a
    fault kills the worker, another starts at once and takes over when the lease of the first has ended: ten minutes on
    virtual time. Raises NeverIdle for a flow that never comes to rest.
    """
    end = ledger.clock.elapsed() + within.total_seconds()
    watching = ledger.incarnation(served=[flow.machine.name for flow in flows])
    killed = asyncio.Event()
    for flow in flows:
        if isinstance(flow, Faulty):
            flow.killed = killed
    usual = _VIRTUAL if isinstance(ledger.clock, VirtualClock) else _REAL
    while not await _one_worker(ledger, flows, settings or usual, watching, killed, end):
        killed.clear()


def work_until_idle(
    ledger: Ledger,
    flows: Sequence[AnyFlow],
    *,
    within: timedelta = timedelta(days=1),
    settings: WorkerSettings | None = None,
) -> None:
    """`run_until_idle` for a test that is not asynchronous; on the ledger's own time, virtual or not."""

    async def main() -> None:
        await run_until_idle(ledger, flows, within=within, settings=settings)

    if isinstance(ledger.clock, VirtualClock):
        simulate(ledger.clock, main)
    else:
        asyncio.run(main())


class _Inline(InlineExecutor):
    """Virtual time stands still during steps that follow upon each other at once: only their number tells."""

    def __init__(self) -> None:
        self._calls = 0

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        self._calls += 1
        if self._calls > _CALLS:
            raise NeverIdle(f"{_CALLS:,} calls to the ledger, and there is still something to do")
        return work(*args)


async def _one_worker(  # noqa: PLR0917 - all that one incarnation works with
    ledger: Ledger,
    flows: Sequence[AnyFlow],
    settings: WorkerSettings,
    watching: Incarnation,
    killed: asyncio.Event,
    end: float,
) -> bool:
    """Whether it came to rest; False where it was killed."""
    executor = _Inline() if isinstance(ledger.clock, VirtualClock) else None
    worker = Worker(ledger, flows, settings, executor=executor)
    running = asyncio.create_task(worker.run())
    try:
        while not killed.is_set():
            if running.done():
                running.result()
                raise NeverIdle("the worker stopped by itself")
            seconds = 0.0 if worker.busy else _next(ledger, watching)
            if ledger.clock.elapsed() + seconds > end:
                worker.stop()
                await running
                return True
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(killed.wait(), max(seconds, _LOOK_SECONDS))
        return False
    finally:
        # Cancelled, it gives nothing back: what it held stays claimed until its lease has ended, as after a kill.
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _next(ledger: Ledger, watching: Incarnation) -> float:
    """Seconds until something is due, or free because its worker is dead; without end where nothing is."""
    idle = watching.idle()
    known = [seconds for seconds in (idle.due, idle.gate, idle.suspect) if seconds is not None]
    if idle.lease is not None and _claimed(ledger, watching):
        known.append(min(idle.lease, _DEAD_SECONDS))
    return max(0.0, min(known, default=float("inf")))


def _claimed(ledger: Ledger, watching: Incarnation) -> bool:
    def held(cursor: Cursor, machine: Machine) -> bool:
        return bool(cursor.rows(f"SELECT 1 FROM {machine.table} WHERE claimed_by IS NOT NULL LIMIT 1"))

    return ledger.read(lambda cursor: any(held(cursor, machine) for machine in watching.served.values()))

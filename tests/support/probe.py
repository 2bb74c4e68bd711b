"""Workers inside the test: flows whose parts a test gives, stepped on virtual time over a real database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Database
from penstock.model.clock import Rng
from penstock.model.errors import LedgerUnavailable
from penstock.model.machine import Machine
from penstock.model.outcome import Act, Decision, Outcome
from penstock.model.simulation import simulate
from penstock.model.unit import replace
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Flow, Gate, Io
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.machines import FEED, INVOICE, Invoice, InvoiceState
from tests.support.world import World

Handler = Callable[..., Awaitable[Any]]


class Probe(Flow[Any, None, Any]):
    """Acts at once unless told otherwise; `calls` is what was asked of it, in order."""

    machine = INVOICE

    def __init__(
        self,
        act: Handler | None = None,
        *,
        decide: Callable[..., Decision] | None = None,
        look: Handler | None = None,
        gate: Callable[[Any], Gate] | None = None,
    ) -> None:
        super().__init__(None)
        self.calls: list[str] = []
        self.acted: list[tuple[str, datetime]] = []
        self._act, self._decide, self._look, self._gate = act, decide, look, gate

    def decide(self, unit: Any, now: datetime, settings: Any, seen: Any) -> Decision:  # type: ignore[override]
        self.calls.append("decide" if seen is None else f"decide on {seen}")
        return self._decide(unit, now, seen) if self._decide else Act("send", "due")

    def gate(self, unit: Any) -> Gate:
        return self._gate(unit) if self._gate else Gate(unit.gate_id)

    async def look(self, unit: Any, io: Io) -> Any:
        self.calls.append("look")
        assert self._look is not None
        return await self._look(unit, io)

    async def act(self, what: str, unit: Any, seen: Any, io: Io) -> Any:
        self.calls.append(what if seen is None else f"{what} knowing {seen}")
        self.acted.append((unit.unit_id, io.now()))
        # Time stands still while work is inline: what spins would spin for ever.
        assert len(self.acted) < 200, "the same steps over and over"
        return await self._act(unit, io) if self._act else sent(unit)


class FeedProbe(Probe):
    machine = FEED


def sent(unit: Invoice, reason: str = "accepted") -> Outcome[Invoice]:
    return Outcome(unit, replace(unit, status=InvoiceState.SENT, remote_id="r-1"), reason)


def raising(*errors: BaseException) -> Handler:
    """An act that fails with these, one after the other, and then succeeds."""
    waiting = list(errors)

    async def act(unit: Any, io: Io) -> Any:
        if waiting:
            raise waiting.pop(0)
        return sent(unit)

    return act


def work(world: World, *flows: Flow[Any, Any, Any], seconds: float = 20, **settings: Any) -> Worker:
    """Let a worker run for so much virtual time, then stop it in order."""
    return work_on(world.ledger, world, flows, seconds, **settings)


def work_on(
    ledger: Ledger, world: World, flows: Sequence[Flow[Any, Any, Any]], seconds: float, **settings: Any
) -> Worker:
    """The same over another view of the world's ledger."""

    async def main() -> Worker:
        chosen = WorkerSettings(**{"lease_ms": 30_000, "place_seconds": None, **settings})
        worker = Worker(ledger, list(flows), chosen, executor=InlineExecutor(), rng=Rng(5))
        running = asyncio.create_task(worker.run())
        done, _ = await asyncio.wait([running], timeout=seconds)
        worker.stop()
        await running
        assert not done, "the worker stopped by itself"
        return worker

    return simulate(world.time, main)


class Wire:
    """A database as its worker reaches it: it counts what is asked, and while `away` it cannot be reached."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.away = False
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def read(self, work: Callable[[Any], Any], *, patient: bool = False, within: float | None = None) -> Any:
        return self._ask("read", self._database.read, work)

    def write(self, work: Callable[[Any], Any]) -> Any:
        return self._ask("write", self._database.write, work)

    def lease(self, work: Callable[[Any], Any], worker: str, lease_ms: int) -> Any:
        return self._ask("write", lambda given: self._database.lease(given, worker, lease_ms), work)

    def _ask(self, kind: str, through: Callable[[Any], Any], work: Callable[[Any], Any]) -> Any:
        if self.away:
            raise LedgerUnavailable("the wire is cut")
        self.asked.append(kind)
        return through(work)


def wired(world: World, machines: Sequence[Machine]) -> tuple[Ledger, Wire]:
    """The world's ledger behind a wire of its own."""
    plain = world.another(machines)
    wire = Wire(plain.database)
    return Ledger(wire, machines, world.clock, Rng(9)), wire


class Reached:
    """A real database, reached with another patience for locks; it counts the transactions that it begins."""

    def __init__(self, database: Any, patience_ms: int) -> None:
        self._database = database
        self._patience_ms = patience_ms
        self.begun = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, work: Callable[[Any], Any]) -> Any:
        def begin(cursor: Any) -> Any:
            self.begun += 1
            if self._database.dialect == "postgresql":
                cursor.run(f"SET LOCAL lock_timeout = {self._patience_ms}")
            return work(cursor)

        return self._database.write(begin)


def reached(world: World, patience_ms: int) -> Ledger:
    """The world's ledger, reached so."""
    database: Any = Reached(world.another().database, patience_ms)
    return Ledger(database, world.ledger.machines.values(), world.clock, Rng(9))


__all__ = ["FeedProbe", "Probe", "Reached", "Wire", "raising", "reached", "sent", "wired", "work", "work_on"]

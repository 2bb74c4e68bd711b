"""What a lifecycle brings to the demonstration: the other side of its API, what happens there, what must be seen."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from penstock.app.lifecycle import AnyLifecycle
from penstock.app.program import Program
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Clock, instant, instant_text
from penstock.operations.carry import Done, carry_out, make_plan
from penstock.operations.declare import Ask, Operation
from penstock.operations.fields import Parameters
from penstock.operations.reader import Reader


@dataclass(frozen=True, slots=True)
class World:
    """Where a part plays: the ledger and the time."""

    ledger: Ledger
    program: Program
    start: datetime

    def ask(self, lifecycle: AnyLifecycle, reason: str = "", who: str = "demo") -> Ask[Any]:
        """What a reading of that lifecycle is asked with."""
        reader = Reader(self.ledger.database, self.program.app.machines, self.program.app.past)
        return self.program.ask(lifecycle, reader, self.ledger.clock.now(), who=who, reason=reason)

    def do(
        self, lifecycle: AnyLifecycle, operation: Operation[Any], parameters: Parameters, reason: str, who: str = "demo"
    ) -> Done:
        """Do what an operator would: plan it, and carry it out."""
        ask, version = self.ask(lifecycle, reason, who), self.program.configuration.version
        planned = make_plan(operation, ask, parameters, owner=lifecycle.name, version=version)
        return carry_out(self.ledger, ask, planned)

    async def until(self, moment: datetime) -> None:
        """Let the time come."""
        await asyncio.sleep(max(0.0, (moment - self.ledger.clock.now()).total_seconds()))

    def rows(self, sql: str, **given: Any) -> list[tuple[Any, ...]]:
        """What the ledger answers. An instant is a parameter in braces, any other begins with a colon."""
        instants = {name for name, value in given.items() if isinstance(value, datetime)}
        text = sql.format(**{name: self.ledger.database.sql.instant(name) for name in instants})
        values = {name: instant_text(value) if name in instants else value for name, value in given.items()}
        return self.ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(text, **values)])


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that happened."""

    at: datetime
    text: str


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the demonstration is to show, and where it is seen; None: it did not happen."""

    what: str
    seen: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that the ledger answered; a heading with `>` has its column to the right."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


class Part(Protocol):
    """One lifecycle. Everything told, checked and summed up is asked of the ledger."""

    @property
    def leaves(self) -> Sequence[str]:
        """What it writes beside `secrets` and `raw`, by the names in the folder."""

    def serving(self, folder: Path, start: datetime, clock: Clock) -> AbstractContextManager[str]:
        """Serve the other side on a loopback socket; gives the part's share of `penstock.toml`."""

    def now_by(self, clock: Clock) -> None:
        """From now on the other side lives by another clock."""

    async def happen(self, world: World) -> None:
        """What happens from outside in those days: data arrives, things break, an operator acts."""

    def told(self, world: World, since: datetime, until: datetime) -> Iterator[Told]:
        """What has happened from one moment to another, without the other."""

    def checks(self, world: World) -> Iterator[Check]:
        """What is to be seen at the end."""

    def tables(self, world: World) -> Iterator[Table]:
        """The summary."""

    def next(self, world: World) -> Iterator[str]:
        """Commands that show more."""


def closings(world: World, gates: str, since: datetime, until: datetime) -> Iterator[Told]:
    """The gates that a throttle had closed and that have opened again."""
    found = world.rows(
        "SELECT gate_id, closed_until, closed_reason FROM gate WHERE gate_id LIKE :gates AND epoch > 0"
        " AND closed_until >= {since} AND closed_until < {until} ORDER BY closed_until, gate_id",
        gates=gates,
        since=since,
        until=until,
    )
    for gate_id, at, reason in found:
        yield Told(instant(at), f"gate {gate_id} is open again, after a throttle: {reason}")


def throttled(world: World, gates: str) -> str | None:
    """A gate that was throttled and has let calls through since; None where there is none."""
    sql = "SELECT min(gate_id) FROM gate WHERE gate_id LIKE :gates AND epoch > 0 AND throttles = 0"
    ((found,),) = world.rows(sql, gates=gates)
    return None if found is None else str(found)

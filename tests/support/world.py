"""A ledger on a clock that tests own, and the short words that tests speak about it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from penstock.ledger.commit import Result
from penstock.ledger.incarnation import Incarnation
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Clock, Rng, VirtualClock, parse_instant
from penstock.model.errors import LedgerMismatch
from penstock.model.machine import Actor, Machine
from penstock.model.outcome import Outcome
from penstock.model.unit import GuardedUnit, Ref, unit_id_of
from tests.support.machines import DUE, MACHINES
from tests.support.more_machines import DATA_TABLES, PARCEL

ALL_MACHINES = (*MACHINES, PARCEL)


class World:
    """One database with every sample machine; `clock` moves only when the test says so."""

    def __init__(self, url: str, clock: Clock | None = None, machines: Sequence[Machine] = ALL_MACHINES) -> None:
        self.url = url
        self.machines = machines
        self.time = VirtualClock(DUE)
        self.clock: Clock = clock or self.time
        self._seeds = itertools.count(1)
        self._opened: list[Ledger] = []
        try:  # it may be a copy of one that was made before
            self.ledger = self._open(machines, self.clock, create=False)
        except LedgerMismatch:
            self.ledger = self._open(machines, self.clock, create=True)

    @property
    def sqlite(self) -> bool:
        return self.ledger.database.dialect == "sqlite"

    def another(self, machines: Iterable[Machine] | None = None, clock: Clock | None = None) -> Ledger:
        """The same database over connections of its own, as another process would open it."""
        return self._open(self.machines if machines is None else machines, clock or self.clock, create=False)

    def _open(self, machines: Iterable[Machine], clock: Clock, *, create: bool) -> Ledger:
        ledger = Ledger.open(
            self.url, machines, clock=clock, rng=Rng(next(self._seeds)), create=create, data_tables=DATA_TABLES
        )
        self._opened.append(ledger)
        return ledger

    def close(self) -> None:
        for ledger in self._opened:
            ledger.close()

    def worker(self, *served: str, ledger: Ledger | None = None) -> Incarnation:
        """A registered worker; it serves every machine unless told which."""
        session = (ledger or self.ledger).incarnation(served=served or None)
        session.register()
        return session

    def born(self, *units: GuardedUnit, actor: Actor = Actor.API) -> list[Ref]:
        self.ledger.birth(units, actor=actor, who="test")
        return [Ref(self.ledger.preparer.machine_of(u).name, unit_id_of(u)) for u in units]

    def unit(self, ref: Ref) -> Any:
        return self.ledger.get(ref)

    def commit(self, session: Incarnation, *outcomes: Outcome[Any]) -> list[Result]:
        """Commit the outcomes in one batch, as the session's worker."""
        return session.commit([self.ledger.preparer.entry(o, session.identity.id) for o in outcomes])

    def sql(self, statement: str, **parameters: Any) -> int:
        """What somebody types at the database; returns how many rows it touched."""
        return self.ledger.database.write(lambda c: c.run(statement, **parameters))

    def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda c: [tuple(r) for r in c.rows(statement, **parameters)])

    def one(self, statement: str, **parameters: Any) -> Any:
        """The only column of the only row."""
        ((value,),) = self.rows(statement, **parameters)
        return value

    def history(self, ref: Ref) -> list[tuple[Any, ...]]:
        """(from, to, actor, reason) of every logged change, oldest first."""
        return self.rows(
            "SELECT from_status, to_status, actor, reason FROM transition_log"
            " WHERE machine = :machine AND unit_id = :unit_id ORDER BY seq",
            machine=ref.machine,
            unit_id=ref.unit_id,
        )

    def close_gate(self, gate_id: str, seconds: float) -> None:
        self.ledger.gates.close(gate_id, seconds, "test")


def ids(units: Sequence[GuardedUnit] | Collection[Any]) -> list[str]:
    return [u.unit_id for u in units]


def after(seconds: float) -> datetime:
    """So many seconds after the world's first moment."""
    return DUE + timedelta(seconds=seconds)


def instant(value: Any) -> datetime | None:
    """An instant as either database returns it."""
    return parse_instant(value) if isinstance(value, str) else value

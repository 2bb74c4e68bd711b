"""The ledger as readings and operations see it: to be read, never written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.model.errors import UnknownMachine, UnknownUnit
from penstock.model.machine import Machine
from penstock.model.unit import GuardedUnit, Ref, parse_key

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.store.database import Cursor, Database

T = TypeVar("T")


class Reader:
    """Reads a ledger. It works on one of another version too, as far as the tables that are asked for are there.

    `past`: how tables, and columns of machines, stood at a moment (see `ledger.past.Past`).
    """

    def __init__(self, database: Database, machines: Iterable[Machine], past: Mapping[str, str] | None = None) -> None:
        self.database = database
        self.machines = {machine.name: machine for machine in machines}
        self.past = past or {}

    def then(self, moment: datetime) -> Reader:
        """A reader of the same ledger as it stood at that moment: see `ledger.past`, which also says what is None."""
        from penstock.ledger.past import Past

        past: Any = Past(self.database, self.machines.values(), self.past, moment)
        return Reader(past, self.machines.values())

    def read(self, work: Callable[[Cursor], T]) -> T:
        """Run a function over one read-only snapshot."""
        return self.database.read(work)

    def machine(self, name: str) -> Machine:
        """The machine of that name. Raises UnknownMachine with the names that exist."""
        if name not in self.machines:
            known = ", ".join(sorted(self.machines)) or "none"
            msg = f"no machine is called {name!r}; known here: {known}"
            raise UnknownMachine(msg)
        return self.machines[name]

    def get(self, ref: Ref) -> GuardedUnit:
        """The unit of that reference. Raises UnknownMachine, BadReference or UnknownUnit."""
        machine = self.machine(ref.machine)
        parse_key(machine.unit, ref.unit_id)
        for unit in self.get_many(machine, [ref.unit_id]):
            found: GuardedUnit = unit
            return found
        msg = f"no unit {ref} in the ledger"
        raise UnknownUnit(msg)

    def get_many(self, machine: Machine, unit_ids: Sequence[str]) -> list[Any]:
        """Those of the units that exist, ordered by id."""
        from penstock.ledger.units import get_many

        return get_many(self.database, machine, unit_ids)

    def kept(self) -> list[Machine]:
        """The machines of this program that the ledger has tables for, by name."""
        there = {row[0] for row in self.read(lambda cursor: cursor.rows("SELECT name FROM machine_definition"))}
        return [self.machines[name] for name in sorted(self.machines) if name in there]

    def keeps(self, machine: Machine) -> bool:
        """Whether this ledger has that machine's table."""
        sql = "SELECT 1 FROM machine_definition WHERE name = :name"
        return bool(self.read(lambda cursor: cursor.rows(sql, name=machine.name)))

    def as_ledger(self) -> Ledger:
        """The same as a Ledger, for functions that take one and only read."""
        from penstock.ledger.ledger import Ledger
        from penstock.model.clock import Rng, SystemClock

        return Ledger(self.database, self.machines.values(), SystemClock(), Rng())

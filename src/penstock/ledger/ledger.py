"""The ledger: open it, give birth, move, wake, read, and begin a worker's incarnation."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self, TypeVar

import sqlalchemy as sa

from penstock.ledger.claim import Price
from penstock.ledger.commit import Busy, Committer, Lost, Refused, Won, insert_events, statements_of
from penstock.ledger.gates.gates import Gates
from penstock.ledger.hands import Hands, Moved, moved_by_hand
from penstock.ledger.incarnation import LEASE_MS, Identity, Incarnation
from penstock.ledger.prepare import Preparer, event_row
from penstock.ledger.processes import this_process
from penstock.ledger.rows import outcome_writes
from penstock.ledger.schema.install import check_definitions, install
from penstock.ledger.schema.migrate import KERNEL, Track
from penstock.ledger.sets import left_of
from penstock.ledger.store import statements
from penstock.ledger.store.bell import rousing
from penstock.ledger.store.database import CONNECTIONS, Cursor, Database, open_database, present
from penstock.ledger.units import get_many
from penstock.model.clock import Clock, Rng, SystemClock
from penstock.model.errors import IllegalMove, LedgerRefused, UnknownMachine, UnknownUnit
from penstock.model.machine import Actor, Machine
from penstock.model.move_set import Left, MoveSet
from penstock.model.outcome import Birth, Event, Move, Write
from penstock.model.unit import GuardedUnit, Ref, Unit, parse_key, replace

_CHECKED_LOCK = 8025317

T = TypeVar("T")
_BIRTHS_AT_ONCE = 5_000
_MOVE_TRIES = 5


class Ledger:
    """One database and the machines this program knows in it."""

    def __init__(self, database: Database, machines: Iterable[Machine], clock: Clock, rng: Rng) -> None:
        self.database = database
        self.machines = {m.name: m for m in machines}
        self.clock = clock
        self.rng = rng
        self.preparer = Preparer(self.machines, rng)
        self.gates = Gates(database, self.machines)
        #: The database for what is written outside of workers, and may be due.
        self.rousing = rousing(database)
        self._committer = Committer(self.rousing, self.machines, self.gates.ensure)
        self._hands = Hands(self.rousing, self.machine)

    @classmethod
    def open(
        cls,
        url: str,
        machines: Iterable[Machine] = (),
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        create: bool = False,
        data_tables: Iterable[sa.Table] = (),
        migrations: Sequence[str] = (),
        kernel: Track = KERNEL,
        views: Mapping[str, str] | None = None,
        connections: int = CONNECTIONS,
    ) -> Ledger:
        """Open a ledger. `create` brings it up to this program; without it one that we cannot work with is refused."""
        clock = clock or SystemClock()
        found = list(machines)
        database = open_database(url, clock, connections=connections)
        try:
            if create:
                install(database, found, data_tables, migrations=migrations, kernel=kernel, views=views)
            else:
                check_definitions(database, {m.name: m for m in found}, migrations=migrations, kernel=kernel)
            return cls(database, found, clock, rng or Rng())
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Close every connection."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def machine(self, name: str) -> Machine:
        """The machine of that name. Raises UnknownMachine with the names that exist."""
        try:
            return self.machines[name]
        except KeyError:
            known = ", ".join(sorted(self.machines)) or "none"
            msg = f"no machine is called {name!r}; known here: {known}"
            raise UnknownMachine(msg) from None

    def incarnation(
        self,
        *,
        served: Collection[str] | None = None,
        lease_ms: int = LEASE_MS,
        prices: Mapping[str, Price] = MappingProxyType({}),
    ) -> Incarnation:
        """A worker incarnation with a fresh id; call its `register` before anything else."""
        process = this_process(self.clock.boot_id()) if isinstance(self.clock, SystemClock) else None
        identity = Identity(self.rng.token(), socket.gethostname(), os.getpid(), process)
        return Incarnation(
            self.database,
            self.machines,
            self.clock,
            identity,
            gates=self.gates,
            served=served,
            lease_ms=lease_ms,
            prices=prices,
        )

    def birth(
        self, units: Iterable[GuardedUnit], *, actor: Actor, who: str, reason: str = "born", if_absent: bool = False
    ) -> int:
        """Give birth to units, a few thousand per transaction; returns how many were new."""
        born = 0
        waiting = iter(units)
        while chunk := list(itertools.islice(waiting, _BIRTHS_AT_ONCE)):
            newborns = [self.preparer.newborn(Birth(u, reason, if_absent, actor), who) for u in chunk]
            gates = {u.gate_id for u in chunk if isinstance(u, Unit)}
            born += len(self._committer.births(newborns, gates))
        return born

    def get(self, ref: Ref) -> GuardedUnit:
        """The unit of that reference. Raises UnknownMachine, BadReference or UnknownUnit."""
        parse_key(self.machine(ref.machine).unit, ref.unit_id)
        units = self.get_many(self.machine(ref.machine), [ref.unit_id])
        if not units:
            msg = f"no unit {ref} in the ledger"
            raise UnknownUnit(msg)
        unit: GuardedUnit = units[0]
        return unit

    def get_many(self, machine: Machine, unit_ids: Sequence[str]) -> list[Any]:
        """Those of the units that exist, ordered by id."""
        return get_many(self.database, machine, unit_ids)

    def move(self, ref: Ref, to: str, *, actor: Actor, who: str, reason: str, **changes: Any) -> GuardedUnit:
        """Pull one edge from outside a claim; whoever held the unit loses it. Raises IllegalMove, UnknownUnit."""
        for _ in range(_MOVE_TRIES):
            before = self.get(ref)
            after = self._after(before, to, changes)
            entry = self.preparer.move(before, after, reason, actor, who)
            result = self._committer.commit([entry])[0]
            if isinstance(result, Won):
                return self.get(ref)
            if isinstance(result, (Refused, Busy)):
                raise result.error
        msg = f"{ref} changes faster than it can be moved; try again"
        raise LedgerRefused(msg)

    def move_by_hand(
        self,
        ref: Ref,
        to: str,
        *,
        who: str,
        reason: str,
        actor: Actor = Actor.OPERATOR,
        instead: str | None = None,
    ) -> GuardedUnit:
        """Pull an edge with nothing but its name: its `by_hand` fills in the columns that follow. Raises as `move`.

        `instead` names the operation to use where the edge has no `by_hand`.
        """
        machine = self.machine(ref.machine)
        for _ in range(_MOVE_TRIES):
            before = self.get(ref)
            made = moved_by_hand(machine, before, to, actor=actor, now=self._now(), instead=instead)
            result = self._committer.commit([self.preparer.move(before, made, reason, actor, who)])[0]
            if isinstance(result, Won):
                return self.get(ref)
            if isinstance(result, (Refused, Busy)):
                raise result.error
        msg = f"{ref} changes faster than it can be moved; try again"
        raise LedgerRefused(msg)

    def _now(self) -> datetime:
        return self.database.read(lambda cursor: present(self.database, cursor))

    def move_many(
        self,
        machine: str,
        unit_ids: Sequence[str] | Mapping[str, int],
        to: str,
        *,
        actor: Actor,
        who: str,
        reason: str,
        **changes: Any,
    ) -> Moved:
        """Pull the same edge for many units; those that cannot go are skipped, each with its reason.

        Given with the versions that were seen, a unit that has another is skipped too.
        """
        seen = unit_ids if isinstance(unit_ids, Mapping) else {}
        found = self.machine(machine)
        moved: list[Ref] = []
        skipped: dict[Ref, str] = {}
        units = {u.unit_id: u for u in self.get_many(found, list(unit_ids))}
        entries = []
        for unit_id in dict.fromkeys(unit_ids):
            ref = Ref(machine, unit_id)
            if unit_id not in units:
                skipped[ref] = "no such unit"
                continue
            before = units[unit_id]
            if seen.get(unit_id, before.version) != before.version:
                skipped[ref] = "it changed since it was looked at"
                continue
            try:
                entries.append(self.preparer.move(before, self._after(before, to, changes), reason, actor, who))
            except IllegalMove as error:
                skipped[ref] = str(error)
        for start in range(0, len(entries), _BIRTHS_AT_ONCE):
            part = entries[start : start + _BIRTHS_AT_ONCE]
            for entry, result in zip(part, self._committer.commit(part), strict=True):
                ref = Ref(machine, entry.change.unit_id)
                if isinstance(result, Won):
                    moved.append(ref)
                else:
                    skipped[ref] = "changed meanwhile" if isinstance(result, Lost) else str(result.error)
        return Moved(moved, skipped)

    def move_set(self, given: MoveSet, *, who: str) -> int:
        """Move many units by one statement, in a transaction of its own; how many moved. Raises IllegalMove.

        `who` is for the history where the set names nobody.
        """
        return self._committer.move_set(self.preparer.move_set(given.machine, given, who))

    def left_of(self, given: MoveSet) -> Left:
        """How many units a set that names them by `where` has left: what an outcome with that set does not say."""
        prepared = self.preparer.move_set(given.machine, given, "nobody")
        return self.database.read(lambda cursor: left_of(self.database, cursor, prepared))

    def together(
        self, others: Sequence[Birth | Move], *, who: str, writes: Sequence[Write] = (), events: Sequence[Event] = ()
    ) -> None:
        """Births and moves with rows of data tables and events, in one transaction or none of it.

        Raises IllegalMove, and LedgerRefused when a unit has changed since it was read or was born meanwhile.
        """
        entry = self.preparer.together(others, writes, events, who)
        self._committer.together(list(entry.moves), entry.births, entry)

    def write(
        self, writes: Sequence[Write], events: Sequence[Event] = (), *, check: Callable[[Cursor], None] | None = None
    ) -> None:
        """Rows of data tables and events alone, in one transaction: what no unit goes with.

        `check` reads in the same transaction, and no other such transaction is under way: what it raises undoes all.
        """
        made = [statements.upsert(self.database, *s) for s in statements_of(outcome_writes("rows", writes))]
        told = [event_row("rows", event) for event in events]

        def work(cursor: Cursor) -> None:
            if check is not None:
                self.database.sql.lock(cursor, _CHECKED_LOCK)
                check(cursor)
            for sql, given in made:
                cursor.run(sql, **given)
            if told:
                insert_events(self.database, cursor, told)

        self.database.write(work)

    def wake(self, refs: Iterable[Ref], *, who: str, reason: str, actor: Actor = Actor.OPERATOR) -> Moved:
        """Ask for attention now, in somebody's name: brings `due_at` forward. A worker that holds a unit keeps it.

        A unit that has ended, or is not there, is skipped, which `Moved.all` refuses; a parked one stays parked. Raises
        IllegalMove for a guarded machine.
        """
        return self._hands.wake(refs, actor, who, reason)

    def park(self, refs: Iterable[Ref], *, who: str, reason: str, actor: Actor = Actor.OPERATOR) -> Moved:
        """Set units aside until somebody unparks them; whoever held one loses it. Those that have ended are skipped."""
        return self._hands.park(refs, actor, who, reason)

    def unpark(self, refs: Iterable[Ref], *, who: str, reason: str, actor: Actor = Actor.OPERATOR) -> Moved:
        """Give parked units back to the workers, due now; their crashes and suspicion are forgiven, doubts are not."""
        return self._hands.unpark(refs, actor, who, reason)

    def nudge(self, refs: Iterable[Ref]) -> int:
        """Wake units as the kernel does, in nobody's name and without a row of history; how many were woken."""
        return self._hands.nudge(refs)

    def read(self, work: Callable[[Cursor], T]) -> T:
        """Run a function over one read-only snapshot."""
        return self.database.read(work)

    def _after(self, before: GuardedUnit, to: str, changes: dict[str, Any]) -> GuardedUnit:
        states: type[StrEnum] = type(before.status)
        if to not in [str(s) for s in states]:
            msg = f"{to!r} is not a state; states are {', '.join(map(str, states))}"
            raise IllegalMove(msg)
        return replace(before, status=states(to), **changes)

"""Moves of many units by a handful of statements: picked and locked, counted, changed, and told to their items."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.ledger import set_statements
from penstock.ledger.parents import Tally, step
from penstock.ledger.rows import plain_value, plain_where
from penstock.ledger.schema.columns import python_type, readable
from penstock.ledger.store.database import Cursor, Database
from penstock.model.errors import BrokenFlow, IllegalMove, LedgerRefused
from penstock.model.machine import Machine
from penstock.model.move_set import MAX_SET, Left, MoveSet
from penstock.model.outcome import Where
from penstock.model.unit import DRIVEN_COLUMNS, NOW, field_types

_ITEM = ("unit_id", "version", "result")


@dataclass(frozen=True, slots=True)
class PreparedSet:
    """A set that was checked; its values are plain. `now` are the columns that become the ledger's time."""

    machine: Machine
    sources: tuple[str, ...]
    to: str | None
    changes: Mapping[str, Any]
    adds: Mapping[str, int]
    now: tuple[str, ...]
    where: Mapping[str, Any]
    items: Where | None
    limit: int
    parked: bool | None
    hand: str
    reason: str
    action_id: str | None
    gates: tuple[str, ...]


def prepare_set(ref: str, machine: Machine, given: MoveSet, own: Collection[str], hand: str) -> PreparedSet:
    """Check a set as any move is checked, before any SQL. Raises IllegalMove or BrokenFlow, naming `ref`.

    `own`: the columns that a step may change.
    """
    sources = tuple(dict.fromkeys(map(str, given.sources)))
    to = None if given.to is None else str(given.to)
    _check_edges(machine, sources, to, given)
    strange = sorted({*given.changes, *given.adds} - ({*own} - {"status", *machine.counters}))
    if strange:
        raise BrokenFlow(f"{ref}: a set of {machine.name} cannot change {', '.join(strange)}")
    types = {name: python_type(kind)[0] for name, kind in field_types(machine.unit).items()}
    unfit = sorted(n for n in given.adds if types[n] is not int or n in {*given.changes, *DRIVEN_COLUMNS})
    if unfit:
        raise BrokenFlow(f"{ref}: a set adds to whole numbers of the machine's own, not to {', '.join(unfit)}")
    unknown = sorted({*(given.where or ())} - {*types})
    if unknown:
        raise BrokenFlow(f"{ref}: {machine.name} has no column {', '.join(unknown)}")
    now = tuple(n for n, value in given.changes.items() if types[n] is datetime and value == NOW)
    ended = machine.driven and to in machine.terminal
    if ended and given.changes.get("due_at") is not None:
        raise BrokenFlow(f"{ref}: {machine.name} ends as {to}; nothing that has ended is due")
    changes = {n: plain_value(ref, n, v) for n, v in given.changes.items() if n not in now}
    gate = given.changes.get("gate_id")
    return PreparedSet(
        machine,
        sources,
        to,
        changes | ({"due_at": None} if ended else {}),
        {n: int(number) for n, number in given.adds.items()},
        now,
        {n: plain_value(ref, n, v) for n, v in (given.where or {}).items()},
        _items(ref, given),
        given.limit,
        given.parked,
        hand,
        readable(given.reason),
        given.action_id,
        () if gate is None else (str(gate),),
    )


def _check_edges(machine: Machine, sources: Sequence[str], to: str | None, given: MoveSet) -> None:
    for state in (*sources, *(() if to is None else (to,))):
        if state not in machine.states:
            msg = f"{machine.name}: {state!r} is not a state; states are {', '.join(machine.states)}"
            raise IllegalMove(msg)
    tracked = any(name in machine.tracked for name in (*given.changes, *given.adds))
    for source in sources:
        machine.check_move(source, to or source, given.actor)
        if tracked and (to or source) == source:
            machine.check_loop(source, given.actor)


def _items(ref: str, given: MoveSet) -> Where | None:
    if (given.where is None) == (given.items is None):
        raise BrokenFlow(f"{ref}: a set names its units either by where or by items")
    if not given.sources:
        raise BrokenFlow(f"{ref}: a set names at least one state that its units come from")
    if not 0 < given.limit <= MAX_SET:
        raise BrokenFlow(f"{ref}: a set moves at most {MAX_SET:,} units, not {given.limit:,}")
    if given.items is None:
        return None
    lacking = [name for name in _ITEM if name not in given.items.table.columns]
    if lacking:
        raise BrokenFlow(f"{ref}: {given.items.table.name} has no column {', '.join(lacking)}; items need it")
    items = plain_where(ref, given.items)
    if items.span is None or items.span[2] - items.span[1] > MAX_SET:
        raise BrokenFlow(f"{ref}: items are bounded by a span of at most {MAX_SET:,}")
    return items


def left_of(database: Database, cursor: Cursor, one: PreparedSet) -> Left:
    """What a set named by columns has left. Raises BrokenFlow for one of items, which say it themselves."""
    if one.items is not None:
        raise BrokenFlow(f"what is left of a set of items of {one.machine.name} is in their results")
    return Left(*set_statements.left(database, cursor, one))


class SetMover:
    """Applies sets inside a transaction that somebody else has opened."""

    def __init__(self, database: Database, machines: Mapping[str, Machine]) -> None:
        self._database = database
        self._machines = machines

    def apply(self, cursor: Cursor, sets: Iterable[PreparedSet]) -> tuple[int, list[Tally]]:
        """Move the units of every set; how many moved, and what their parents must count."""
        moved, tallies = 0, []
        for one in sets:
            ids = set_statements.pick(self._database, cursor, one)
            if ids is not None:
                tallies += self._count(cursor, one, ids)
                moved += set_statements.change(self._database, cursor, one, ids)
            set_statements.tell_items(self._database, cursor, one, ids or "[]")
        return moved, tallies

    def _count(self, cursor: Cursor, one: PreparedSet, ids: str) -> list[Tally]:
        """Asked before the units move: their rows are locked, and say where they come from."""
        fan_in = one.machine.parent
        if fan_in is None or one.to is None:
            return []
        steps = {source: step(fan_in, source, one.to) for source in one.sources}
        if not any(counters for counters, _ in steps.values()):
            return []
        parent = self._machines[fan_in.machine]
        tallies = []
        for unit_id, source, count in set_statements.parents(self._database, cursor, one.machine, parent, ids):
            if unit_id is None:
                msg = f"a unit of {one.machine.name} counts on a {parent.name} that does not exist"
                raise LedgerRefused(msg)
            counters, asks = steps[source]
            if counters:
                added = {counter: number * count for counter, number in counters.items()}
                tallies.append(Tally(one.machine, parent, unit_id, added, asks))
        return tallies

"""Fan-in: what children's moves add to the counters of their parents, and whom they wake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.ledger.units import lock
from penstock.model.errors import LedgerRefused
from penstock.model.machine import Machine, Parent

_Sums = dict[str, dict[str, int]]
"""A parent's id to the increments of its counters."""


@dataclass(slots=True)
class Tally:
    """Increments on one parent. `asks`: it may be complete now, if its counters say so."""

    child: Machine
    parent: Machine
    unit_id: str
    counters: Mapping[str, int]
    asks: bool


def step(fan_in: Parent, source: str, target: str) -> tuple[dict[str, int], bool]:
    """What a child's move adds to its parent's counters, and whether it enters the counted states.

    A child that goes from one counted state to another completes nothing: its parent was complete before, or is not
    now.
    """
    counters = {
        counter: (target in states) - (source in states)
        for counter, states in fan_in.counts.items()
        if (target in states) != (source in states)
    }
    return counters, sum(counters.values()) > 0


class Parents:
    """Counts on parents, inside a transaction that somebody else has opened, and last in it."""

    def __init__(self, database: Database, machines: Mapping[str, Machine]) -> None:
        self._database = database
        self._machines = machines

    def count(self, cursor: Cursor, tallies: Sequence[Tally]) -> None:
        """Add up, under locks taken in one order, and wake whoever is complete, or has children back that had ended."""
        sums: dict[tuple[str, str], _Sums] = {}
        asked: set[tuple[str, str, str]] = set()
        returned: dict[str, set[str]] = {}
        for tally in tallies:
            family = (tally.parent.name, tally.child.name)
            parent = sums.setdefault(family, {}).setdefault(tally.unit_id, {})
            for counter, number in tally.counters.items():
                parent[counter] = parent.get(counter, 0) + number
            if tally.asks:
                asked.add((*family, tally.unit_id))
            if sum(tally.counters.get(counter, 0) for counter in _of(tally.child).counts) < 0:
                returned.setdefault(tally.parent.name, set()).add(tally.unit_id)
        for table, name in sorted({(self._machines[p].table, p) for p, _ in sums}):
            ids = {i for (p, _), group in sums.items() if p == name for i in group}
            missing = sorted(ids.difference(lock(self._database, cursor, table, ids)))
            if missing:
                msg = f"{name}:{missing[0]} does not exist, but a child names it as its parent"
                raise LedgerRefused(msg)
        for (parent_name, child_name), group in sorted(sums.items()):
            parent_machine, child = self._machines[parent_name], self._machines[child_name]
            full = self._add(cursor, parent_machine, child, group)
            complete = [[i] for i in full if (parent_name, child_name, i) in asked]
            if complete:
                sql = wake_complete(self._database, parent_machine, child)
                cursor.run(sql, batch=statements.batch_text(complete), **self._database.bind_now())
        for name, ids in sorted(returned.items()):
            sql = statements.wake_units(self._database, self._machines[name])
            cursor.run(sql, batch=statements.batch_text([[i] for i in sorted(ids)]), **self._database.bind_now())

    def _add(self, cursor: Cursor, parent: Machine, child: Machine, group: _Sums) -> list[str]:
        """Those of the parents whose counters now say that all children have ended."""
        counters = sorted({c for steps in group.values() for c in steps})
        rows = [[i, *(steps.get(c, 0) for c in counters)] for i, steps in group.items()]
        sql = tally_units(self._database, parent, child, counters)
        return [str(unit_id) for unit_id, full in cursor.rows(sql, batch=statements.batch_text(rows)) if full]


def tally_units(database: Database, parent: Machine, child: Machine, counters: Sequence[str]) -> str:
    """Add to the counters of parents; their version stays, so that whoever holds them keeps them.

    Says of each whether the counters together are what it expects.
    """
    fan_in = _of(child)
    types: dict[str, statements.SqlType] = {"unit_id": statements.TEXT}
    types |= dict.fromkeys(counters, statements.BIGINT)
    sets = ", ".join([*(f"{c} = t.{c} + n_{c}" for c in counters), "tallies = t.tallies + 1"])
    return (
        f"UPDATE {parent.table} AS t SET {sets} FROM {statements.batch(database, types)} WHERE t.unit_id = n_unit_id"
        f" RETURNING unit_id, {' + '.join(fan_in.counts)} = {fan_in.expected}"
    )


def wake_complete(database: Database, parent: Machine, child: Machine) -> str:
    """Wake those of the parents, whose counters are what they expect, of which the set of children says the same."""
    fan_in = _of(child)
    states = statements.state_list(str(s) for group in fan_in.counts.values() for s in group)
    same = " AND ".join(f"c.{mine} = t.{theirs}" for mine, theirs in zip(fan_in.by, parent.unit.key, strict=True))
    source = statements.batch(database, {"unit_id": statements.TEXT})
    due = statements.least_due("t." + parent.due, database.now_sql)
    return (
        f"UPDATE {parent.table} AS t SET {parent.due} = {due}, wakes = t.wakes + 1"
        f" WHERE t.unit_id IN (SELECT n_unit_id FROM {source}){statements.unless_ended(parent)}"
        f" AND (SELECT count(*) FROM {child.table} AS c WHERE {same} AND c.status IN ({states})) = t.{fan_in.expected}"
    )


def _of(child: Machine) -> Parent:
    assert child.parent is not None  # noqa: S101 - the caller asks for children of parents only
    return child.parent

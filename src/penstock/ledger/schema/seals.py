"""Seals: while a parent is in a sealed state, its children are in the listed states alone.

Triggers on both tables keep it. A parent that enters a sealed state looks at its children, and a child that leaves the
listed states looks at its parent. A child that was outside of them already need not look: as long as it is there, its
parent cannot enter the state. So most steps of children cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from penstock.ledger.schema.columns import python_type
from penstock.ledger.store.database import Cursor, Database
from penstock.ledger.store.statements import state_list
from penstock.model.errors import LedgerMismatch, MachineError
from penstock.model.machine import Machine
from penstock.model.unit import field_types

KINDS = ("seal", "seal_new", "sealing")
"""What the triggers of a sealed family are called, after the child: a child's move, its birth, its parent's move."""


@dataclass(frozen=True, slots=True)
class Family:
    """A child's machine, its parent's, and for each sealed state of the parent the states that no child may be in."""

    child: Machine
    parent: Machine
    seals: Mapping[str, tuple[str, ...]]

    @property
    def by(self) -> tuple[str, ...]:
        """The columns of a child that make up its parent's key."""
        return tuple(map(self.child.column, self.child.parent.by)) if self.child.parent else ()

    @property
    def fixed(self) -> bool:
        """Whether a child has one parent for ever: the columns belong to its key."""
        return {*self.by} <= {*self.child.unit.key}

    @property
    def left(self) -> dict[str, tuple[str, ...]]:
        """The seals that a child's move can break: some edge leads to a state that it may not be in."""
        return {
            state: barred
            for state, barred in self.seals.items()
            if not self.fixed or any(t in barred and s not in barred for s, t in self.child.pairs)
        }

    @property
    def unborn(self) -> dict[str, tuple[str, ...]]:
        """The seals that a birth can break, each with the birth states that it bars."""
        found = {state: tuple(s for s in barred if s in self.child.births) for state, barred in self.seals.items()}
        return {state: barred for state, barred in found.items() if barred}

    def same_parent(self, parent: str, child: str) -> str:
        """The condition, by the columns of the key, that two rows are parent and child."""
        return " AND ".join(f"{parent}{k} = {child}{b}" for k, b in zip(self.parent.unit.key, self.by, strict=True))


def families(machines: Iterable[Machine]) -> list[Family]:
    """The sealed families of which both machines are there."""
    known = {machine.name: machine for machine in machines}
    found = []
    for child in known.values():
        if child.parent is not None and child.parent.seals and child.parent.machine in known:
            seals = {
                str(state): tuple(s for s in child.states if s not in {*map(str, allowed)})
                for state, allowed in child.parent.seals.items()
            }
            found.append(Family(child, known[child.parent.machine], seals))
    return found


def names(machines: Iterable[Machine]) -> list[str]:
    """What triggers of seals are called, of any family in which these machines are the children."""
    return [f"penstock_{machine.name}_{kind}" for machine in machines for kind in KINDS]


def sealed_states(machines: Iterable[Machine]) -> dict[str, frozenset[str]]:
    """Name of a machine to the states of it that some child seals."""
    found: dict[str, frozenset[str]] = {}
    for family in families(machines):
        found[family.parent.name] = found.get(family.parent.name, frozenset()) | frozenset(family.seals)
    return found


def check(machines: Iterable[Machine]) -> None:
    """Raise MachineError for a seal that its parent's machine does not bear out."""
    known = {machine.name: machine for machine in machines}
    for child in known.values():
        fan_in = child.parent
        if fan_in is None or not fan_in.seals:
            continue
        parent = known.get(fan_in.machine)
        if parent is None:
            msg = f"machine {child.name!r} seals states of {fan_in.machine!r}, unknown to this program"
            raise MachineError(msg)
        states = [str(state) for state in fan_in.seals]
        wrong = [f"{parent.name} has no state {s!r} to be sealed" for s in states if s not in parent.states]
        # Without a row nothing can be locked: of a birth and a child's move at once neither would see the other.
        wrong += [f"{parent.name} is born as {s}, so {s} cannot be sealed" for s in parent.births if s in states]
        theirs, ours = field_types(parent.unit), field_types(child.unit)
        kinds = [python_type(theirs[name])[0] for name in parent.unit.key]
        if kinds != [python_type(ours[name])[0] for name in fan_in.by]:
            wrong.append(f"{parent.name} is found by {', '.join(parent.unit.key)}, in columns of the same types")
        if wrong:
            raise MachineError(f"machine {child.name!r}: " + "; ".join(wrong))


def broken(cursor: Cursor, family: Family, most: int, which: str = "1 = 1") -> Iterator[tuple[str, str, str, str]]:
    """Children that break a seal: the id and the state of the parent, and those of the child.

    `which` is a condition on parents `p` to look at.
    """
    for state, barred in family.seals.items():
        rows = cursor.rows(
            f"SELECT p.unit_id, p.status, c.unit_id, c.status FROM {family.parent.table} AS p"
            f" JOIN {family.child.table} AS c ON {family.same_parent('p.', 'c.')}"
            f" WHERE p.status = '{state}' AND c.status IN ({state_list(barred)}) AND {which} LIMIT {most}"
        )
        yield from ((str(a), str(b), str(c), str(d)) for a, b, c, d in rows)


def refuse_broken(database: Database, cursor: Cursor, changed: Iterable[Family]) -> None:
    """Raise LedgerMismatch where units that are there would break a seal that is new."""
    for family in changed:
        for parent_id, state, child_id, status in broken(cursor, family, 1):
            msg = (
                f"{database.url}: {family.child.name}:{child_id} is {status} under {family.parent.name}:{parent_id},"
                f" which is {state} and would be sealed; move one of them first"
            )
            raise LedgerMismatch(msg)

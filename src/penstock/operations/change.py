"""What a person may do with units of any machine: move them by hand, wake, park and unpark them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

from penstock.model import spoken
from penstock.model.errors import UsageError
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.unit import NOW, GuardedUnit, Ref, field_types
from penstock.operations.declare import Ask, operation
from penstock.operations.fields import option
from penstock.operations.plan import Each, Moves, Park, Skipped, Unpark, Wake
from penstock.operations.selection import Selected, select_ids, select_units, units_of
from penstock.settings.kernel import KernelSettings

#: What the kernel writes itself with every move.
_KERNELS = frozenset({"status", "wakes", "claimed_by", *GuardedUnit.__struct_fields__})


class MoveWanted(Selected, frozen=True, kw_only=True):
    to: Annotated[str, option("The state to move them to.")]


@operation("units move", "Move units to another state by hand.")
def move(ask: Ask[KernelSettings], wanted: MoveWanted) -> Each:
    """Only along edges that the machine allows by hand. For others it names the command to use."""
    machine, units = select_units(ask, wanted)
    if wanted.to not in machine.states:
        raise UsageError(f"{machine.name} has no state {wanted.to!r}; it has {', '.join(machine.states)}")
    moves = Moves(machine)
    for unit in units:
        edge = edge_to(machine, str(unit.status), wanted.to)
        if edge is None:
            moves.skip(unit.unit_id, why_not(ask, machine, str(unit.status), wanted.to))
        else:
            pull(moves, edge, unit, ask.now)
    return refuse_empty(moves, f"move {counted(len(moves), machine)} to {wanted.to}")


@operation("units wake", "Have units looked at now.")
def wake(ask: Ask[KernelSettings], wanted: Selected) -> Wake:
    """A unit that has ended is left alone, and a parked one stays parked."""
    refs, skipped = _choose(ask, wanted, "wake", parked="it is parked; unpark it instead")
    return Wake(refs, skipped, f"wake {_units(refs)}")


@operation("units park", "Set units aside until somebody unparks them.")
def park(ask: Ask[KernelSettings], wanted: Selected) -> Park:
    """No worker takes a parked unit. Whoever holds it now loses it."""
    refs, skipped = _choose(ask, wanted, "park", parked="it is parked already")
    return Park(refs, skipped, f"park {_units(refs)}")


@operation("units unpark", "Give parked units back to the workers, due now.")
def unpark(ask: Ask[KernelSettings], wanted: Selected) -> Unpark:
    refs, skipped = _choose(ask, wanted, "unpark", unparked="it is not parked")
    return Unpark(refs, skipped, f"unpark {_units(refs)}")


OPERATIONS = [move, wake, park, unpark]


def _choose(
    ask: Ask[Any], wanted: Selected, verb: str, *, parked: str | None = None, unparked: str | None = None
) -> tuple[list[Ref], Skipped]:
    """The units that the verb is for, and why the others are left alone."""
    refs: list[Ref] = []
    skipped: dict[Ref, str] = {}
    for machine, ids in select_ids(ask, wanted):
        if not machine.driven:
            raise UsageError(f"{machine.name} is not driven by workers; there is nothing to {verb}")
        for unit in units_of(ask, machine, ids):
            ended = f"it has ended as {unit.status}" if str(unit.status) in machine.terminal else None
            why = ended or (unparked if unit.parked_at is None else parked)
            if why is None:
                refs.append(Ref(machine.name, unit.unit_id))
            else:
                skipped[Ref(machine.name, unit.unit_id)] = why
    if not refs and skipped:
        ref, why = next(iter(skipped.items()))
        raise UsageError(f"there is nothing to {verb}: {ref}: {why}")
    return refs, skipped


def refuse_empty(moves: Moves, says: str) -> Each:
    """The moves as a plan. Raises UsageError where every unit was left out, with the first reason."""
    if not len(moves) and moves.skipped:
        ref, why = next(iter(moves.skipped.items()))
        more = f" (and {len(moves.skipped) - 1:,} more)" if len(moves.skipped) > 1 else ""
        raise UsageError(f"nothing can be moved: {ref}{more}: {why}")
    return moves.plan(says)


def by_hand(machine: Machine, state: str) -> Iterator[Edge]:
    """The edges out of a state that a person may pull without more ado."""
    for edge in machine.edges:
        if str(edge.source) == state and Actor.OPERATOR in edge.actors and edge.by_hand is not None:
            yield edge


def edge_to(machine: Machine, state: str, target: str) -> Edge | None:
    """The edge by which a person moves a unit there by hand; None where there is none."""
    return next((edge for edge in by_hand(machine, state) if str(edge.target) == target), None)


def pull(moves: Moves, edge: Edge, unit: GuardedUnit, now: datetime) -> None:
    """Add the move along an edge that may be pulled by hand, with the changes that belong to it."""
    assert edge.by_hand is not None  # noqa: S101 - chosen by `by_hand`
    after = edge.by_hand(unit, now)
    changes = {}
    for name in field_types(type(unit)):
        value = getattr(after, name)
        if name not in _KERNELS and value != getattr(unit, name):
            changes[name] = NOW if isinstance(value, datetime) and value == now else value
    moves.add(unit, str(edge.target), **changes)


def why_not(ask: Ask[Any], machine: Machine, state: str, target: str) -> str:
    """Why a person cannot move a unit there by hand, and what does it instead."""
    edges = [e for e in machine.edges if str(e.source) == state and str(e.target) == target]
    operators = [edge for edge in edges if Actor.OPERATOR in edge.actors]
    if operators:
        return f"{state} → {target} takes more than a move; use {instead(ask, machine, operators[0].trigger)}"
    if edges:
        return f"{state} → {target} is only for {', '.join(sorted({str(a) for e in edges for a in e.actors}))}"
    if state == target:
        return f"it is {state} already"
    legal = sorted({str(edge.target) for edge in by_hand(machine, state)})
    leads = f"by hand it can go to {', '.join(legal)}" if legal else f"no edge out of {state} can be taken by hand"
    return f"{state} → {target} is not an edge; {leads}"


def instead(ask: Ask[Any], machine: Machine, trigger: str) -> str:
    """The command of the owning lifecycle that pulls an edge; all its operations where none has that name."""
    app = ask.program.app
    owner = app.owner(machine.name)
    above = "penstock" if owner is app.lifecycles[0] else f"penstock {owner.name}"
    names = [one.name for one in owner.operations if trigger in one.path]
    if owner is app.lifecycles[0]:
        names = [name for name in names if name.split()[0] != "units"]
    others = names or ([one.name for one in owner.operations] if owner is not app.lifecycles[0] else [])
    return " or ".join(f"'{above} {name}'" for name in others) or f"the program that has {machine.name}"


def counted(count: int, machine: Machine) -> str:
    """So many units of a machine, in words."""
    return spoken.counted(count, f"{machine.name} unit")


def _units(refs: list[Ref]) -> str:
    return spoken.counted(len(refs), "unit")

"""What a machine's declaration of its parent must be, as far as the child alone can tell.

The rest is checked where both machines are known: when a ledger is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.model.unit import field_types

if TYPE_CHECKING:
    from penstock.model.machine import Machine, Parent


def parent_problems(machine: Machine, parent: Parent) -> list[str]:
    """What is wrong with the declaration."""
    problems = []
    counted = [str(s) for group in parent.counts.values() for s in group]
    if not counted or not all(parent.counts.values()):
        problems.append("parent counts no state; give each counter the states it counts")
    if not parent.by:
        problems.append("parent is found by no field; name the fields that make up its key")
    problems += [f"parent counts the unknown state {s!r}" for s in counted if s not in machine.states]
    names = field_types(machine.unit)
    problems += [f"parent is found by {n!r}, which is not a field" for n in parent.by if n not in names]
    targets = {str(e.target) for e in machine.edges if e.on_claim} | {str(s) for s in machine.on_claim}
    problems += [f"{s} is counted by the parent and cannot lie on an on_claim edge" for s in targets & set(counted)]
    problems += [f"{s} is counted twice" for s in sorted({s for s in counted if counted.count(s) > 1})]
    problems += [f"a unit cannot be born as {s}, which the parent counts" for s in machine.births if s in counted]
    for state, allowed in parent.seals.items():
        unknown = sorted({*map(str, allowed)} - {*machine.states})
        problems += [f"the seal of {state} names the unknown state {s!r}" for s in unknown]
        if not allowed:
            problems.append(f"the seal of {state} allows no state; name those that children may be in meanwhile")
        elif not {*machine.states} - {*map(str, allowed)}:
            problems.append(f"the seal of {state} allows every state; leave it out")
    return problems

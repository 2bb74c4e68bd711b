"""Siblings: units that share a value in the column that their machine names, and so are claimed and stepped together.

From the third crash on, or the third death of a worker that held them, each steps alone: one of them may be to blame,
and the others are not.
"""

from __future__ import annotations

from typing import Any

from penstock.model.machine import Machine
from penstock.model.unit import Unit

#: A unit with so many crashes steps alone: the next one parks it.
APART_FROM_CRASHES = 2
#: So does one that so many workers died with.
APART_FROM_SUSPICION = 3


def shared_by(machine: Machine, unit: Unit) -> Any:
    """What the unit and its siblings have in common; None where it steps alone."""
    if machine.siblings is None or unit.crashes >= APART_FROM_CRASHES or unit.suspicion >= APART_FROM_SUSPICION:
        return None
    return getattr(unit, machine.siblings)

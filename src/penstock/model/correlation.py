"""One id from a step to its log lines, its events and the calls it makes: `machine:unit_id@version`.

The version is the one that the claim gave the unit, so an id belongs to one claim and can be joined to the history. The
text is made only when somebody asks for it; a step that logs nothing and calls nobody pays for one assignment.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.model.unit import GuardedUnit

STEP: ContextVar[tuple[str, GuardedUnit, int] | None] = ContextVar("penstock_step", default=None)
"""The machine's name, the unit as it was claimed, and how many units the step takes together."""


def of(machine: str, unit: GuardedUnit, together: int = 1) -> str:
    """The id of a step; one that takes siblings together is named for the first, with how many more there are."""
    more = f"+{together - 1}" if together > 1 else ""
    return f"{machine}:{unit.unit_id}@{unit.version}{more}"


def current() -> str | None:
    """The id of the step that is running here, or None outside of steps."""
    step = STEP.get()
    return None if step is None else of(*step)

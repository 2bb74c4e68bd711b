"""How the units of a machine stood at an instant, for lists that tell of now unless they are asked for then."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any

from penstock.model.machine import Machine
from penstock.operations.declare import Ask

if TYPE_CHECKING:
    from penstock.ledger.history import AsOf

_MOST = 10_000


def stood(ask: Ask[Any], machine: Machine, at: datetime, states: Collection[str]) -> tuple[list[AsOf], str | None]:
    """The units that were in one of the states, and a note where there may have been more."""
    from penstock.ledger import flow
    from penstock.ledger.history import units_as_of

    database = ask.reader.database
    counts = database.read(lambda cursor: flow.counts_at(database, cursor, at, machine.name)).get(machine.name, {})
    if not any(counts.get(state) for state in states):
        return [], None
    found = units_as_of(database, machine.name, at, states=states, most=_MOST)
    note = None if found.next is None else f"{machine.name} has many units: only the first were looked at"
    return found.units, note

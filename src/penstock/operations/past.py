"""How things stood at an instant, for readings that tell of now unless they are asked for then.

Most ask their usual statements over the tables of then: `ask = ask.then(wanted.at)`. See `ledger.past`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.model.machine import Machine
from penstock.model.spoken import counted
from penstock.operations.declare import Ask
from penstock.operations.fields import Parameters, option

if TYPE_CHECKING:
    from penstock.ledger.history import AsOf
    from penstock.ledger.store.database import Cursor

At: TypeAlias = Annotated[datetime | None, option("As it stood at this instant.", example="2026-11-15T19:31:00Z")]
"""The parameter by which a reading is asked for the past."""
_MOST = 10_000


class Then(Parameters, frozen=True):
    """As of when, and nothing else."""

    at: At = None


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


def refuse_to_watch(at: datetime | None, *, watch: bool) -> None:
    """Raise UsageError where somebody would watch the past go on."""
    if watch and at is not None:
        raise UsageError("the past does not go on: leave out --watch, or --at")


def lacking(ask: Ask[Any], machines: Sequence[Machine], at: datetime | None, *, graves: bool = False) -> str | None:
    """A sentence on what of a moment was pruned since; None: nothing was, or the question is of now.

    `ask` is the question before `then`. `graves`: units that were pruned are told of as well, where graves are kept.
    """
    from penstock.ledger import flow
    from penstock.ledger.history import horizon, missing_before

    if at is None:
        return None

    def work(cursor: Cursor) -> list[str]:
        whole = [flow.pruned_before(cursor, one.name) for one in machines]
        known = max((one for one in whole if one is not None), default=at)
        said = [f"history before {instant_text(known)} was pruned: some may be missing"] if known > at else []
        if graves:
            horizons = {one.name: horizon(cursor, one.name) for one in machines}
            return said + [str(missing_before(name, end)) for name, end in horizons.items() if end and end > at]
        for machine in machines:
            window = flow.after(at, machine.name)
            gone = sum(one.n for one in flow.edges(database, cursor, window) if one.target is None)
            if gone:  # those that were born later among them
                units = counted(gone, f"unit of {machine.name}", f"units of {machine.name}")
                said.append(f"up to {units} may be left out: pruned since")
        return said

    database = ask.reader.database
    return "; ".join(database.read(work)) or None

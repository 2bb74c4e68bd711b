"""How things stood at an instant, for readings that tell of now unless they are asked for then.

Most ask their usual statements over the tables of then: `ask = ask.then(wanted.at)`. See `ledger.past`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from penstock.model.clock import instant, instant_text
from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.machine import Machine
from penstock.model.spoken import counted
from penstock.model.unit import Ref
from penstock.operations.declare import Ask
from penstock.operations.fields import Parameters, option

if TYPE_CHECKING:
    from penstock.ledger.history import AsOf
    from penstock.ledger.store.database import Cursor

At: TypeAlias = Annotated[datetime | None, option("As it stood at this instant.", example="2026-11-15T19:31:00Z")]
"""The parameter by which a reading is asked for the past."""


class Then(Parameters, frozen=True):
    """As of when, and nothing else."""

    at: At = None


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
        told = [f"history before {instant_text(known)} was pruned: some may be missing"] if known > at else []
        if graves:
            horizons = {one.name: horizon(cursor, one.name) for one in machines}
            return told + [str(missing_before(name, end)) for name, end in horizons.items() if end and end > at]
        for machine in machines:
            window = flow.after(at, machine.name)
            gone = sum(one.n for one in flow.edges(database, cursor, window) if one.target is None)
            if gone:  # those that were born later among them
                units = counted(gone, f"unit of {machine.name}", f"units of {machine.name}")
                told.append(f"up to {units} may be left out: pruned since")
        return told

    database = ask.reader.database
    return said(*database.read(work))


def said(*notes: str | None) -> str | None:
    """Sentences below a list, as one; None: there is nothing to say."""
    return "; ".join(dict.fromkeys(filter(None, notes))) or None


def lacking_events(ask: Ask[Any], at: datetime | None, what: str = "some may be missing") -> str | None:
    """A sentence where events of a moment may have been pruned since, and `what` follows; None: the question is of now.

    `ask` is the question before `then`.
    """
    if at is None:
        return None
    pruned = "EXISTS (SELECT 1 FROM prune_permit WHERE machine = 'event_log')"
    sql = f"SELECT min(created_at) FROM event_log HAVING {pruned}"
    for (oldest,) in ask.reader.read(lambda cursor: cursor.rows(sql)):
        first = instant(oldest)
        if first is None:
            return f"events were pruned: {what}"
        return f"events before {instant_text(first)} were pruned: {what}" if first > at else None
    return None


def unit_then(ask: Ask[Any], ref: Ref, at: datetime) -> AsOf:
    """How a unit stood, by its history. Raises UnknownUnit where it was not there, UsageError where that was pruned.

    `ask` is the question before `then`.
    """
    from penstock.ledger.history import as_of

    found = as_of(ask.reader.database, ref, at)
    if found.status is None:
        what = "was not born" if found.since is None else "was gone"
        raise UnknownUnit(said(f"{ref} {what} at {instant_text(at)}", found.note))
    return found

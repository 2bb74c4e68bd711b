"""Dead letters of a moment that is over: units in a state of dead letters, and those that are parked since then."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.model.clock import instant, instant_text
from penstock.operations.dead import PARKED
from penstock.operations.past import said

if TYPE_CHECKING:
    from penstock.ledger.history import AsOf
    from penstock.model.machine import Machine
    from penstock.operations.declare import Ask

_MOST = 10_000
"""Units of a machine that are looked at: so many that are parked, and so many in states of dead letters."""
_ONLY_FIRST = "{} has many units: only the first were looked at"


class Dead(NamedTuple):
    """A dead letter of the past."""

    machine: Machine
    status: str
    unit_id: str
    reason: str | None
    since: datetime | None
    #: None: nobody knows it, as of what is parked.
    version: int | None
    dismissed_by: str | None = None
    dismissed_for: str | None = None


def dead_of(
    ask: Ask[Any], machines: Sequence[Machine], at: datetime, *, dismissed: bool
) -> tuple[list[Dead], str | None]:
    """The dead letters of machines, those that were dismissed by then or those that were not; and a note."""
    found, notes = list[Dead](), list[str | None]()
    for machine in machines:
        parked, note = _parked(ask, machine, at)
        found += parked.values()
        notes.append(note)
        if machine.dead:
            died, note = _stood(ask, machine, at, machine.dead)
            notes.append(note)
            named = ((one, one.unit.partition(":")[2]) for one in died)
            found += [
                Dead(machine, str(one.status), key, one.reason, one.since, one.version)
                for one, key in named
                if key not in parked
            ]
    laid, shown = _dismissed(ask, at), list[Dead]()
    for one in found:
        moment, version, by, why = laid.get((one.machine.name, one.unit_id), (None, 0, None, None))
        # A dismissal holds as long as the unit stays as it was.
        if moment is None or (one.since is not None and moment < one.since) or (one.version or 0) > version:
            by, why = None, None
        if (by is not None) == dismissed:
            shown.append(one._replace(dismissed_by=by, dismissed_for=why))
    return sorted(shown, key=lambda one: (one.machine.name, one.unit_id)), said(*notes)


def _stood(ask: Ask[Any], machine: Machine, at: datetime, states: Collection[str]) -> tuple[list[AsOf], str | None]:
    """The units that were in one of the states, and a note where there may have been more."""
    from penstock.ledger import flow
    from penstock.ledger.history import units_as_of

    database = ask.reader.database
    counts = database.read(lambda cursor: flow.counts_at(database, cursor, at, machine.name)).get(machine.name, {})
    if not any(counts.get(state) for state in states):
        return [], None
    found = units_as_of(database, machine.name, at, states=states, most=_MOST)
    return found.units, None if found.next is None else _ONLY_FIRST.format(machine.name)


def _parked(ask: Ask[Any], machine: Machine, at: datetime) -> tuple[dict[str, Dead], str | None]:
    """The units that were parked then and are so still, and a note where there are more.

    Who took one up need not say that it was.
    """
    if not ask.reader.keeps(machine):
        return {}, None
    before = ask.reader.database.sql.instant("before")
    sql = f"SELECT unit_id FROM {machine.table} WHERE parked_at IS NOT NULL AND parked_at <= {before}"
    sql += " ORDER BY unit_id LIMIT :most"
    rows = ask.reader.read(lambda cursor: cursor.rows(sql, before=instant_text(at), most=_MOST + 1))
    found = {
        one.unit_id: Dead(machine, PARKED, one.unit_id, one.parked_reason, one.parked_at, None)
        for one in ask.then(at).reader.get_many(machine, [str(row[0]) for row in rows[:_MOST]])
        if one.parked_at is not None
    }
    return found, _ONLY_FIRST.format(machine.name) if len(rows) > _MOST else None


def _dismissed(ask: Ask[Any], at: datetime) -> dict[tuple[str, str], tuple[datetime, int, str, str]]:
    """When units were dismissed by then, under which version, by whom and why."""
    sql = "SELECT machine, unit_id, changed_at, version, changed_by, change_reason FROM dismissal"
    rows = ask.then(at).reader.read(lambda cursor: cursor.rows(sql))
    return {(str(a), str(b)): (instant(c), int(d), str(e), str(f)) for a, b, c, d, e, f in rows}

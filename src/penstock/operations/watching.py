"""What should not be: units that have stayed too long in a state, and guards of the database that are not intact."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from penstock.ledger.past import DUE_KNOWN
from penstock.model.clock import instant, instant_text
from penstock.operations.alerts.conditions import allowed
from penstock.operations.declare import Ask, Page, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.past import At, lacking, said
from penstock.operations.selection import named_machine
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.model.machine import Machine


class StuckWanted(Parameters, frozen=True):
    machine: Annotated[str | None, argument("Only units of this machine.", example="report")] = None
    limit: Annotated[int, option("How many at most.", ge=1, le=10_000)] = 50
    at: At = None


class StuckRow(Row, frozen=True):
    unit: Annotated[str, column("The unit.", show="reference")]
    status: Annotated[str, column("The state that it does not leave.", show="state")]
    since: Annotated[datetime, column("Since when.")]
    allowed: Annotated[timedelta, column("How long units may stay there.")]
    reason: Annotated[str | None, column("Why it last changed.", show="text")]


class GuardsWanted(Parameters, frozen=True):
    machine: Annotated[str | None, argument("Only those of this machine's table.", example="report")] = None


class GuardRow(Row, frozen=True):
    subject: Annotated[str, column("The table or trigger.", show="reference")]
    message: Annotated[str, column("What is wrong with it, and what to do.", show="text")]


@reading("stuck", "Units that stay in a state for longer than it allows.")
def stuck_units(ask: Ask[KernelSettings], wanted: StuckWanted) -> Page[StuckRow]:
    """What waits for a moment that it has named is not stuck, and neither is what is parked.

    Of the past that is known of units that nobody has touched since; a note counts the others that stayed as long.
    """
    chosen = [named_machine(ask, wanted.machine)] if wanted.machine is not None else list(ask.reader.machines.values())
    kept = [machine for machine in chosen if machine.driven and ask.reader.keeps(machine)]
    lacks, there = lacking(ask, kept, wanted.at), _there(ask, wanted.at)
    ask, rows, unknown = ask.then(wanted.at), list[StuckRow](), 0
    for machine in kept:
        for state in (one for one in machine.status if str(one) not in machine.dead):
            longest = allowed(state, ask.settings)
            if longest is None or (there is not None and str(state) not in there.get(machine.name, {})):
                continue
            found, more = _stuck(ask, machine, state, longest, wanted)
            rows += found
            unknown += more
    rows.sort(key=lambda row: row.since)
    notes = ["no unit is stuck"] if not rows and not unknown else []
    if unknown:
        notes.append(
            f"{unknown:,} more may have stayed as long; whether they waited for a moment, or for a person, is not known"
        )
    return Page(rows=rows[: wanted.limit], note=said(*notes, lacks))


def _there(ask: Ask[Any], at: datetime | None) -> Mapping[str, Mapping[str, int]] | None:
    """The states that units were in at a moment, by machine; None: the question is of now. `ask` is that of now."""
    from penstock.ledger import flow

    database = ask.reader.database
    return None if at is None else database.read(lambda cursor: flow.counts_at(database, cursor, at))


def _stuck(
    ask: Ask[Any], machine: Machine, state: Any, longest: timedelta, wanted: StuckWanted
) -> tuple[list[StuckRow], int]:
    """Units that are too long in a state; and of the past, how many there may be of which nobody knows it."""
    before, due = ask.reader.database.sql.instant("before"), machine.due
    stays = f"FROM {machine.table} WHERE status = :state AND changed_at < {before}"
    free = f"parked_at IS NULL AND ({due} IS NULL OR {due} < {before})"
    sql = f"SELECT unit_id, changed_at, change_reason, 1, 0 {stays} AND {free} ORDER BY changed_at LIMIT :most"
    if wanted.at is not None:
        # No index helps: the states of then are in the history. So all is asked at once.
        known = f"CASE WHEN {DUE_KNOWN} = 1 AND {free} THEN 1 ELSE 0 END AS known"
        counted = f"sum(1 - {DUE_KNOWN}) OVER () AS unknown"
        every = f"SELECT unit_id, changed_at, change_reason, {known}, {counted} {stays}"
        sql = f"SELECT * FROM ({every}) AS s ORDER BY known DESC, changed_at LIMIT :most"
    given = {"state": str(state), "before": instant_text(ask.now - longest), "most": wanted.limit}
    found = ask.reader.read(lambda cursor: cursor.rows(sql, **given))
    rows = [
        StuckRow(unit=f"{machine.name}:{key}", status=str(state), since=instant(at), allowed=longest, reason=why)
        for key, at, why, known, _ in found
        if known
    ]
    return rows, max((int(unknown) for *_, unknown in found), default=0)


@reading(
    "guards",
    "What is wrong with the triggers that guard the tables.",
    no_past="it looks at the triggers themselves; what the doctor found on another day is told by alerts and events",
)
def guards(ask: Ask[KernelSettings], wanted: GuardsWanted) -> Page[GuardRow]:
    """The doctor asks this of every table, and more."""
    from penstock.ledger.care.doctor_guards import triggers

    machine = None if wanted.machine is None else named_machine(ask, wanted.machine)
    database = ask.reader.database
    found = database.read(lambda cursor: list(triggers(database, cursor, ask.reader.machines)))
    rows = [
        GuardRow(subject=one.subject, message=one.message)
        for one in found
        if machine is None
        or machine.table in one.subject
        or f"penstock_{machine.name}_" in f"{one.subject} {one.message}"
    ]
    return Page(rows=rows, note=None if rows else "every guard is there and on")


READINGS = [stuck_units, guards]

"""What should not be: units that have stayed too long in a state, and guards of the database that are not intact."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from penstock.model.clock import instant, instant_text
from penstock.operations.alerts.conditions import allowed
from penstock.operations.declare import Ask, Page, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.selection import named_machine
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.model.machine import Machine


class StuckWanted(Parameters, frozen=True):
    machine: Annotated[str | None, argument("Only units of this machine.", example="report")] = None
    limit: Annotated[int, option("How many at most.", ge=1, le=10_000)] = 50


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
    """What waits for a moment that it has named is not stuck, and neither is what is parked."""
    chosen = [named_machine(ask, wanted.machine)] if wanted.machine is not None else list(ask.reader.machines.values())
    rows = [row for machine in chosen if machine.driven for row in _stuck(ask, machine, wanted.limit)]
    rows.sort(key=lambda row: row.since)
    return Page(rows=rows[: wanted.limit], note=None if rows else "no unit is stuck")


def _stuck(ask: Ask[Any], machine: Machine, most: int) -> list[StuckRow]:
    if not ask.reader.keeps(machine):
        return []
    before, found = ask.reader.database.sql.instant("before"), list[StuckRow]()
    sql = (
        f"SELECT unit_id, changed_at, change_reason FROM {machine.table} WHERE status = :state"
        f" AND parked_at IS NULL AND changed_at < {before} AND ({machine.due} IS NULL OR {machine.due} < {before})"
        " ORDER BY changed_at LIMIT :most"
    )
    for state in machine.status:
        longest = allowed(state, ask.settings)
        if longest is None or str(state) in machine.dead:
            continue
        rows = ask.reader.read(
            partial(_rows, sql=sql, state=str(state), before=instant_text(ask.now - longest), most=most)
        )
        found += [
            StuckRow(unit=f"{machine.name}:{key}", status=str(state), since=instant(at), allowed=longest, reason=why)
            for key, at, why in rows
        ]
    return found


def _rows(cursor: Cursor, sql: str, **given: Any) -> Sequence[Any]:
    return cursor.rows(sql, **given)


@reading("guards", "What is wrong with the triggers that guard the tables.")
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

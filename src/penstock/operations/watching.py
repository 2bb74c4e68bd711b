"""What should not be: units that have stayed too long in a state, and guards of the database that are not intact."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
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
    from penstock.ledger.store.database import Cursor
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
    lacks, ask = lacking(ask, kept, wanted.at), ask.then(wanted.at)
    rows, unknown = list[StuckRow](), 0
    for machine in kept:
        for state in (one for one in machine.status if str(one) not in machine.dead):
            if (longest := allowed(state, ask.settings)) is None:
                continue
            found = _Stuck(ask, machine, state, longest, past=wanted.at is not None)
            rows += found.rows(wanted.limit)
            unknown += found.unknown()
    rows.sort(key=lambda row: row.since)
    notes = ["no unit is stuck"] if not rows and not unknown else []
    if unknown:
        notes.append(
            f"{unknown:,} more had stayed as long; whether they waited for a moment, or for a person, is not known"
        )
    return Page(rows=rows[: wanted.limit], note=said(*notes, lacks))


class _Stuck:
    """Units of a machine that are too long in a state, now or at a moment of the past."""

    def __init__(self, ask: Ask[Any], machine: Machine, state: Any, longest: timedelta, *, past: bool) -> None:
        self._ask, self._machine, self._state, self._past = ask, machine, state, past
        self._allowed = longest
        before, due = ask.reader.database.sql.instant("before"), machine.due
        self._stays = f"FROM {machine.table} WHERE status = :state AND changed_at < {before}"
        self._free = f"parked_at IS NULL AND ({due} IS NULL OR {due} < {before})"
        self._given: dict[str, Any] = {"state": str(state), "before": instant_text(ask.now - self._allowed)}

    def rows(self, most: int) -> list[StuckRow]:
        known = f" AND {DUE_KNOWN} = 1" if self._past else ""
        sql = (
            f"SELECT unit_id, changed_at, change_reason {self._stays} AND {self._free}{known}"
            " ORDER BY changed_at LIMIT :most"
        )
        found = self._ask.reader.read(partial(_rows, sql=sql, most=most, **self._given))
        return [
            StuckRow(
                unit=f"{self._machine.name}:{key}",
                status=str(self._state),
                since=instant(at),
                allowed=self._allowed,
                reason=why,
            )
            for key, at, why in found
        ]

    def unknown(self) -> int:
        """Of the past, those of which nobody knows whether they waited."""
        if not self._past:
            return 0
        sql = f"SELECT count(*) {self._stays} AND {DUE_KNOWN} = 0"
        ((count,),) = self._ask.reader.read(partial(_rows, sql=sql, **self._given))
        return int(count)


def _rows(cursor: Cursor, sql: str, **given: Any) -> Sequence[Any]:
    return cursor.rows(sql, **given)


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

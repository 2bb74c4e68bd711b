"""Periodic jobs: when each runs next, and stopping, resuming or running one by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.unit import Ref, replace
from penstock.operations.change import edge_to, pull
from penstock.operations.declare import Ask, Page, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column
from penstock.operations.past import Then, lacking, said
from penstock.operations.plan import Each, Moves, Wake
from penstock.operations.reader import Reader
from penstock.settings.kernel import KernelSettings
from penstock.worker.schedule_unit import S, Schedule, cadence_of, machine


class ScheduleNamed(Parameters, frozen=True):
    name: Annotated[str, argument("The schedule.", example="nightly-prune")]


class ScheduleRow(Row, frozen=True):
    """A schedule. Of the past its runs are known where it has not run since; else they are empty."""

    name: Annotated[str, column("The schedule.", show="reference", heading="schedule")]
    status: Annotated[str, column("active, paused or retired.", show="state")]
    job: Annotated[str | None, column("What it runs.")]
    cadence: Annotated[str | None, column("How often, in which hours of which time zone.")]
    last_run: Annotated[datetime | None, column("When it last ran.", heading="last")]
    next_run: Annotated[datetime | None, column("When it runs next.", heading="next")]
    running: Annotated[bool | None, column("Whether it is running now; empty of the past.")]
    failures: Annotated[int | None, column("Runs in a row that failed.", show="detail")]
    last_error: Annotated[str | None, column("Why the last run failed.", show="text")]
    changed_by: Annotated[str | None, column("Who changed it last.", show="detail")]
    reason: Annotated[str | None, column("Why it is in this state.", show="detail")]


@reading("schedules list", "Schedules: what they run, how often, the last run and the next.")
def list_schedules(ask: Ask[KernelSettings], wanted: Then) -> Page[ScheduleRow]:
    if wanted.at is None:
        rows = [_row(one) for one in _all(ask.reader)]
        return Page(rows=rows, note=None if rows else "no schedules: 'penstock up' keeps those of the configuration")
    found = schedules_then(ask.reader, wanted.at)
    note = said(lacking(ask, [machine], wanted.at), None if found else "no schedules yet")
    return Page(rows=[_row_then(one, known=known) for one, known in found], note=note)


@operation("schedules pause", "Stop a schedule until it is resumed.")
def pause(ask: Ask[KernelSettings], wanted: ScheduleNamed) -> Each:
    """A run that is under way ends. The configuration does not start it again."""
    found = _named(ask, wanted.name)
    if found.status is not S.ACTIVE:
        raise UsageError(f"the schedule {wanted.name!r} is {found.status}; only an active one can be paused")
    return _moved(ask, found, S.PAUSED, f"pause the schedule {wanted.name}")


@operation("schedules resume", "Let a paused schedule run again.", wants_reason=False)
def resume(ask: Ask[KernelSettings], wanted: ScheduleNamed) -> Each:
    """It runs at its next tick; what it missed is not made up for."""
    found = _named(ask, wanted.name)
    if found.status is not S.PAUSED:
        raise UsageError(f"the schedule {wanted.name!r} is {found.status}, not paused")
    due = cadence_of(found).next_after(ask.now, found.name)
    says = f"resume the schedule {wanted.name}; it runs next at {due:%Y-%m-%d %H:%M:%S} UTC"
    return _moved(ask, found, S.ACTIVE, says)


@operation("schedules run", "Run an active schedule now.", wants_reason=False)
def run(ask: Ask[KernelSettings], wanted: ScheduleNamed) -> Wake:
    """A worker that is running does the work; 'penstock why schedule:NAME' follows it."""
    found = _named(ask, wanted.name)
    if found.status is not S.ACTIVE:
        raise UsageError(f"the schedule {wanted.name!r} is {found.status}; resume it first")
    return Wake([Ref(machine.name, found.unit_id)], {}, f"run the schedule {wanted.name} now")


READINGS = [list_schedules]
OPERATIONS = [pause, resume, run]


def _moved(ask: Ask[Any], found: Schedule, target: S, says: str) -> Each:
    edge = edge_to(machine, found.status, target)
    assert edge is not None  # noqa: S101 - the machine has both
    moves = Moves(machine)
    pull(moves, edge, found, ask.now)
    return moves.plan(says)


def _all(reader: Reader) -> list[Schedule]:
    if not reader.keeps(machine):
        return []
    sql = f"SELECT unit_id FROM {machine.table} ORDER BY unit_id"
    names = [str(row[0]) for row in reader.read(lambda cursor: cursor.rows(sql))]
    return reader.get_many(machine, names)


def schedules_then(reader: Reader, at: datetime) -> list[tuple[Schedule, bool]]:
    """The schedules as they stood, with what of them is known, and whether nothing has happened to each since.

    What they run and how often follows from the version of their settings, which the history keeps.
    """
    from penstock.ledger.past import UNTOUCHED

    if not reader.keeps(machine):
        return []
    now, past = {one.unit_id: one for one in _all(reader)}, reader.then(at)
    sql = f"SELECT unit_id, {UNTOUCHED} FROM {machine.table} ORDER BY unit_id"
    known = {str(row[0]): bool(row[1]) for row in past.read(lambda cursor: cursor.rows(sql))}
    stood: list[Schedule] = past.get_many(machine, list(known))
    return [(_as_set(one, now[one.unit_id]), known[one.unit_id]) for one in stood]


def _as_set(one: Schedule, now: Schedule) -> Schedule:
    """The schedule with the settings of now, if they are those of then."""
    if not one.settings_version or one.settings_version != now.settings_version:
        return one
    return replace(one, **{name: getattr(now, name) for name in _SETTINGS})


_SETTINGS = ("job", "every", "at", "time_zone", "hours", "jitter", "settings")


def _named(ask: Ask[Any], name: str) -> Schedule:
    for found in _all(ask.reader):
        if found.name == name:
            return found
    known = ", ".join(one.name for one in _all(ask.reader)) or "none"
    raise UnknownUnit(f"no schedule is called {name!r}; the ledger has {known}")


def _row_then(one: Schedule, *, known: bool) -> ScheduleRow:
    # A run does not say in the history that it was; one that is paused does not run.
    told = known or one.status is not S.ACTIVE
    row = _row(one)
    return msgspec.structs.replace(
        row,
        running=None,
        changed_by=row.changed_by if told else None,
        reason=row.reason if told else None,
    )


def _row(one: Schedule) -> ScheduleRow:
    often = f"every {one.every}" if one.every else f"at {', '.join(one.at or [])}"
    hours = f" between {one.hours}" if one.hours else ""
    return ScheduleRow(
        name=one.name,
        status=str(one.status),
        job=one.job,
        cadence=f"{often}{hours} {one.time_zone}" if one.every or one.at else None,
        last_run=one.last_tick_at,
        next_run=one.due_at,
        running=one.claimed_by is not None,
        failures=one.failures,
        last_error=one.last_error,
        changed_by=one.changed_by,
        reason=one.change_reason,
    )

"""Periodic jobs: when each runs next, and stopping, resuming or running one by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.unit import Ref
from penstock.operations.change import edge_to, pull
from penstock.operations.declare import Ask, Page, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column
from penstock.operations.plan import Each, Moves, Wake
from penstock.settings.kernel import KernelSettings
from penstock.worker.schedule_unit import S, Schedule, cadence_of, machine


class ScheduleNamed(Parameters, frozen=True):
    name: Annotated[str, argument("The schedule.", example="nightly-prune")]


class ScheduleRow(Row, frozen=True):
    name: Annotated[str, column("The schedule.", show="reference", heading="schedule")]
    status: Annotated[str, column("active, paused or retired.", show="state")]
    job: Annotated[str, column("What it runs.")]
    cadence: Annotated[str, column("How often, in which hours of which time zone.")]
    last_run: Annotated[datetime | None, column("When it last ran.", heading="last")]
    next_run: Annotated[datetime | None, column("When it runs next.", heading="next")]
    running: Annotated[bool, column("Whether it is running now.")]
    failures: Annotated[int, column("Runs in a row that failed.", show="detail")]
    last_error: Annotated[str | None, column("Why the last run failed.", show="text")]
    changed_by: Annotated[str, column("Who changed it last.", show="detail")]
    reason: Annotated[str | None, column("Why it is in this state.", show="detail")]


@reading("schedules list", "Schedules: what they run, how often, the last run and the next.")
def list_schedules(ask: Ask[KernelSettings]) -> Page[ScheduleRow]:
    rows = [_row(one) for one in _all(ask)]
    return Page(rows=rows, note=None if rows else "no schedules: 'penstock up' keeps those of the configuration")


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


def _all(ask: Ask[Any]) -> list[Schedule]:
    if not ask.reader.keeps(machine):
        return []
    sql = f"SELECT unit_id FROM {machine.table} ORDER BY unit_id"
    names = [str(row[0]) for row in ask.reader.read(lambda cursor: cursor.rows(sql))]
    return ask.reader.get_many(machine, names)


def _named(ask: Ask[Any], name: str) -> Schedule:
    for found in _all(ask):
        if found.name == name:
            return found
    known = ", ".join(one.name for one in _all(ask)) or "none"
    raise UnknownUnit(f"no schedule is called {name!r}; the ledger has {known}")


def _row(one: Schedule) -> ScheduleRow:
    often = f"every {one.every}" if one.every else f"at {', '.join(one.at or [])}"
    hours = f" between {one.hours}" if one.hours else ""
    return ScheduleRow(
        name=one.name,
        status=str(one.status),
        job=one.job,
        cadence=f"{often}{hours} {one.time_zone}",
        last_run=one.last_tick_at,
        next_run=one.due_at,
        running=one.claimed_by is not None,
        failures=one.failures,
        last_error=one.last_error,
        changed_by=one.changed_by,
        reason=one.change_reason,
    )

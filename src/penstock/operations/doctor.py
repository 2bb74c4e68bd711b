"""The doctor with what only a program knows: how long its steps may take, when its schedules run, what it serves."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from penstock.model.clock import instant_text
from penstock.operations.declare import Ask, reading
from penstock.operations.fields import Parameters, Row, column, option
from penstock.operations.status import unserved
from penstock.settings.kernel import KernelSettings
from penstock.worker.schedule_unit import machine as schedule

if TYPE_CHECKING:
    from penstock.ledger.care.finding import Finding
    from penstock.ledger.store.database import Cursor, Database
    from penstock.model.machine import Machine


class FindingRow(Row, frozen=True):
    severity: Annotated[str, column("error or warning.", show="severity")]
    check: Annotated[str, column("What was looked for.")]
    subject: Annotated[str, column("What it is about.", show="reference")]
    message: Annotated[str, column("What is wrong, and what to do.", heading="finding")]


class HowMuch(Parameters, frozen=True):
    since_last: Annotated[bool, option("Look only at what changed since the last clean look of watch-doctor.")] = False


class Examination(Row, frozen=True):
    findings: Annotated[list[FindingRow], column("What is wrong, errors first.")]
    verdict: Annotated[str, column("The result, in a few words.")]
    since: Annotated[datetime | None, column("Only changes since then were looked at; empty: everything.")]
    checks: Annotated[list[str], column("What was looked for.", show="detail")]
    failed: Annotated[bool, column("Whether anything is an error.", show="detail")]


@reading(
    "doctor",
    "Look for what is wrong, and for what soon will be.",
    no_past="it examines the ledger itself; what it found on another day is told by alerts and events",
)
def doctor(ask: Ask[KernelSettings], wanted: HowMuch) -> Examination:
    """It reads, and repairs nothing. Exit code 1 when something is wrong.

    The job watch-doctor remembers its clean looks. With --since-last only what changed since the last of them is read:
    the rows of the history, and the units, parents and hours that they tell of. Where none is remembered, everything
    is. What left no trace in the history only a whole look finds.
    """
    from penstock.ledger.care import doctor as care
    from penstock.ledger.care import look
    from penstock.ledger.care.finding import Finding

    program, further = ask.program, {"schedules": _schedules, "served": _served}
    checks = [*care.NAMES, *further, "configuration"]
    steps = itertools.count()
    database, machines = ask.reader.database, ask.reader.machines

    def examine(scope: look.Scope) -> list[Finding]:
        return care.examine(
            database,
            machines,
            lambda _: ask.progress(next(steps), len(checks)),
            program.app.data.views,
            deadlines=_deadlines(program),
            further=further,
            scope=scope,
        )

    found, scope = look.look(database, machines, examine, since_last=wanted.since_last, remember=False)
    place = program.configuration.path_text
    found += [Finding("configuration", place, line, "warning") for line in program.warnings()]
    errors = sum(one.severity == "error" for one in found)
    warnings = len(found) - errors
    counts = f"{errors} error{'s' * (errors != 1)}, {warnings} warning{'s' * (warnings != 1)}"
    return Examination(
        findings=[
            FindingRow(severity=one.severity, check=one.check, subject=one.subject, message=one.message)
            for one in sorted(found, key=lambda one: one.severity)
        ],
        verdict=(counts if found else "all is well")
        + ("" if scope.since is None else f"; only what changed since {instant_text(scope.since)} was looked at"),
        since=scope.since,
        checks=checks,
        failed=errors > 0,
    )


READINGS = [doctor]


def _deadlines(program: Any) -> dict[str, timedelta]:
    """How long a step may take, by machine; none where the flows cannot be made with these settings."""
    try:
        return {flow.machine.name: flow.deadline for flow in program.flows()}
    except Exception:  # noqa: BLE001 - a lifecycle's own code; a worker says what is wrong, and the doctor goes on
        return {}


def _schedules(database: Database, cursor: Cursor, _: Mapping[str, Machine]) -> Iterator[Finding]:
    """No schedule is due later than its next tick."""
    from penstock.ledger.care.finding import Finding
    from penstock.ledger.schema.definitions import stored
    from penstock.worker.schedule import late_schedules

    if schedule.name not in stored(cursor):
        return
    for one, tick in late_schedules(database, cursor):
        due = "" if one.due_at is None else instant_text(one.due_at)
        text = f"is due at {due}, and its next tick is at {instant_text(tick)}: a clock was wrong; a worker mends it"
        yield Finding("schedules", f"{schedule.name}:{one.unit_id}", text)


def _served(database: Database, cursor: Cursor, machines: Mapping[str, Machine]) -> Iterator[Finding]:
    """Every machine that has units belongs to a lifecycle of this configuration."""
    from penstock.ledger.care.finding import Finding
    from penstock.ledger.history import machine_statuses

    others = [one for one in machine_statuses(database, cursor) if one.name not in machines]
    for name, text in unserved(others, machines).items():
        yield Finding("served", name, text, "warning")

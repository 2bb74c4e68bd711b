"""The doctor with what only a program knows: how long its steps may take, and when its schedules tick."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

from penstock.app.program import Program
from penstock.ledger.care import doctor
from penstock.ledger.care.finding import Finding
from penstock.ledger.schema.definitions import stored
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import instant_text
from penstock.model.machine import Machine
from penstock.worker.schedule import late_schedules, machine

NAMES = (*doctor.NAMES, "schedules")


def examine_program(
    database: Database, program: Program, progress: Callable[[str], None] = lambda _: None
) -> list[Finding]:
    """Every check of the ledger, with the program's deadlines, and its schedules."""
    known = {one.name: one for one in program.app.machines}
    deadlines = _deadlines(program)
    further = {"schedules": _schedules}
    return doctor.examine(database, known, progress, program.app.data.views, deadlines=deadlines, further=further)


def _deadlines(program: Program) -> dict[str, timedelta]:
    """How long a step may take, by machine; none where the flows cannot be made with these settings."""
    try:
        return {flow.machine.name: flow.deadline for flow in program.flows()}
    except Exception:  # noqa: BLE001 - a program's own code; a worker says what is wrong, and the doctor goes on
        return {}


def _schedules(database: Database, cursor: Cursor, _: Mapping[str, Machine]) -> Iterator[Finding]:
    """No schedule is due later than its next tick."""
    if machine.name not in stored(cursor):
        return
    for one, tick in late_schedules(database, cursor):
        due = "" if one.due_at is None else instant_text(one.due_at)
        text = f"is due at {due}, and its next tick is at {instant_text(tick)}: a clock was wrong; a worker mends it"
        yield Finding("schedules", f"{machine.name}:{one.unit_id}", text)

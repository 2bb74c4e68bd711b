"""What happens next: the changes of the coming hours, and what is asked of each gate against its budget."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from penstock.operations.declare import Ask, reading
from penstock.operations.fields import Parameters, Row, column, option
from penstock.operations.selection import named_machine
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.model.forecast import Door
    from penstock.operations.outlook import Prospect

_HOUR = timedelta(hours=1)
AHEAD = timedelta(hours=24)


class ForecastWanted(Parameters, frozen=True):
    hours: Annotated[int, option("How many hours ahead.", ge=1, le=168, example=6)] = 24
    machine: Annotated[str | None, option("Only this machine.", example="report")] = None
    at: Annotated[
        datetime | None, option("As it was known at this instant; by default now.", example="2026-11-15T19:31:00Z")
    ] = None


class ComingRow(Row, frozen=True):
    hour: Annotated[datetime, column("The hour, by its beginning.")]
    machine: Annotated[str, column("The machine.")]
    source: Annotated[str | None, column("From this state; empty for births.", show="state", heading="from")]
    target: Annotated[str | None, column("To this state; empty for deaths.", show="state", heading="to")]
    trigger: Annotated[str | None, column("The edge; empty for births.", show="detail")]
    n: Annotated[int, column("How often.", heading="times")]
    example: Annotated[str | None, column("One of the units, where it exists already.", show="detail")]


class CallsRow(Row, frozen=True):
    hour: Annotated[datetime, column("The hour, by its beginning.")]
    calls: Annotated[int, column("The calls that are expected.")]
    put_off: Annotated[int, column("The calls that the budget puts off into the next hour.")]


class GateAheadRow(Row, frozen=True):
    gate: Annotated[str, column("The gate.", show="reference")]
    opens: Annotated[datetime | None, column("When it opens; empty where it is open, or nobody knows.")]
    calls: Annotated[int, column("The calls that are expected, one for each step.")]
    budget: Annotated[int | None, column("The calls that its limits allow; empty without limits.")]
    starves: Annotated[datetime | None, column("The first hour in which it puts work off.")]
    put_off: Annotated[int, column("The most calls that wait for a later hour.", show="detail")]
    held: Annotated[bool, column("Whether it stays closed until a person opens it.", show="detail")]
    hours: Annotated[list[CallsRow], column("The calls, hour by hour.", show="detail")]


class ForecastAnswer(Row, frozen=True):
    start: Annotated[datetime, column("What was known at this instant.")]
    end: Annotated[datetime, column("Up to this instant.")]
    total: Annotated[int, column("How many changes are expected.")]
    notes: Annotated[list[str], column("What should be known of how it was made.", show="detail")]
    gates: Annotated[list[GateAheadRow], column("What is asked of the gates.")]
    coming: Annotated[list[ComingRow], column("What happens, hour by hour.")]


@reading("forecast", "What happens next, and what is asked of each gate.")
def forecast(ask: Ask[KernelSettings], wanted: ForecastWanted) -> ForecastAnswer:
    """From what is due, schedules, offsets and gates, along the ways that units took lately.

    What people will do is not in it, nor what has never happened yet. With --at it is made of what the history knew at
    that instant. A call is a step that a worker makes; polls that change nothing are not counted.
    """
    from penstock.operations.outlook import prospect_of

    if wanted.machine is not None:
        named_machine(ask, wanted.machine)
    start = ask.now if wanted.at is None else wanted.at
    end = start + wanted.hours * _HOUR
    found = prospect_of(ask.program, ask.reader, start, end, past=wanted.at is not None)
    coming = [
        ComingRow(
            hour=one.hour,
            machine=one.machine,
            source=one.source,
            target=one.target,
            trigger=one.trigger,
            n=one.n,
            example=one.example,
        )
        for one in found.rows
        if wanted.machine in (None, one.machine)
    ]
    return ForecastAnswer(
        start=start,
        end=end,
        total=sum(one.n for one in coming),
        notes=found.notes,
        gates=list(_gates(found, start)),
        coming=coming,
    )


READINGS = [forecast]


def _gates(found: Prospect, now: datetime) -> Iterator[GateAheadRow]:
    """The gates of which something is asked, or that are closed; those that starve first."""
    for door in sorted(found.doors, key=lambda one: (one.starves() is None, one.gate_id)):
        closed = door.opens is None or door.opens > now
        if door.calls or door.put_off or closed:
            yield _gate(door, found.affords[door.gate_id], now)


def _gate(door: Door, affords: int | None, now: datetime) -> GateAheadRow:
    hours = [
        CallsRow(hour=hour, calls=math.ceil(door.calls.get(hour, 0)), put_off=math.ceil(door.put_off.get(hour, 0)))
        for hour in sorted({*door.calls, *door.put_off})
    ]
    return GateAheadRow(
        gate=door.gate_id,
        opens=door.opens if door.opens is not None and door.opens > now else None,
        calls=math.ceil(sum(door.calls.values())),
        budget=affords,
        starves=door.starves(),
        put_off=max((one.put_off for one in hours), default=0),
        held=door.opens is None,
        hours=hours,
    )


def starving(program: Any, ledger: Ledger, now: datetime) -> Iterator[tuple[str, datetime, str]]:
    """Gates whose budget will not do for what is due within a day: which, when, and in a sentence."""
    from penstock.operations.outlook import budgeted, prospect_of
    from penstock.operations.reader import Reader

    reader = Reader(ledger.database, ledger.machines.values())
    if not budgeted(program, reader):
        return  # what has no end never runs out, and a forecast is dear
    found = prospect_of(program, reader, now, now + AHEAD)
    for door in found.doors:
        hour = door.starves()
        if hour is not None:
            most = math.ceil(max(door.put_off.values()))
            says = f"{door.gate_id} will not do from {hour:%Y-%m-%d %H:%M} UTC on: {most:,} calls wait for a later hour"
            yield door.gate_id, hour, f"{says}; 'penstock forecast' shows them"

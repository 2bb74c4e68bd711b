"""The whole ledger at a glance: how units stand, who works on them, closed gates and alerts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from penstock.model.clock import instant
from penstock.operations.declare import Ask, Page, reading
from penstock.operations.fields import Parameters, Row, column, option
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.history import MachineStatus, WorkerStatus


class StatusWanted(Parameters, frozen=True):
    alerts: Annotated[int, option("How many alerts, and events with a severity, at most.", ge=0, le=1_000)] = 20
    at: Annotated[datetime | None, option("As it stood at this instant.", example="2026-11-15T19:31:00Z")] = None


class MachineCounts(Row, frozen=True):
    machine: Annotated[str, column("The machine.")]
    units: Annotated[str, column("How many units are in each state.", heading="states")]
    due: Annotated[int | None, column("How many a worker could take now; counting stops at 10,000 of a gate.")]
    claimed: Annotated[int | None, column("How many workers hold.")]
    parked: Annotated[int | None, column("How many were set aside for a person.")]
    served: Annotated[bool, column("Whether this configuration has the machine.", show="detail")]
    states: Annotated[dict[str, int], column("The number of units in each state.", show="detail")]


class WorkerRow(Row, frozen=True):
    worker: Annotated[str, column("The worker.", show="reference")]
    host: Annotated[str, column("Where it runs.")]
    pid: Annotated[int, column("Its process.", show="reference")]
    since: Annotated[datetime, column("When it started.")]
    lease_seconds: Annotated[
        float | None, column("How long its lease lasts; below 0: it is over. Empty of the past.", heading="lease s")
    ]
    configuration: Annotated[str | None, column("The version of its configuration.")]
    machines: Annotated[list[str], column("What it serves.")]


class ClosedGate(Row, frozen=True):
    gate: Annotated[str, column("The gate.", show="reference")]
    state: Annotated[str, column("closed, half-open, paused or stopped.", show="state")]
    until: Annotated[datetime | None, column("Until when, where that is known.")]
    reason: Annotated[str | None, column("Why.", show="text")]


class AlertRow(Row, frozen=True):
    at: Annotated[datetime, column("When.", heading="when")]
    severity: Annotated[str, column("info, warning or critical.", show="severity")]
    kind: Annotated[str, column("What happened.", heading="what", show="detail")]
    unit: Annotated[str | None, column("The unit that it is about.", show="detail")]
    payload: Annotated[Any, column("What it says.", show="text", heading="says")]


class FiringRow(Row, frozen=True):
    alert: Annotated[str, column("The alert.", show="reference")]
    status: Annotated[str, column("firing, acknowledged or silenced.", show="state")]
    severity: Annotated[str | None, column("info, warning or critical.", show="severity")]
    since: Annotated[datetime | None, column("Since when it has been true.")]
    says: Annotated[str | None, column("What is the matter.", show="text")]


class StatusAnswer(Row, frozen=True):
    ledger: Annotated[str, column("The ledger's address.")]
    now: Annotated[datetime, column("When it was asked.", show="detail")]
    machines: Annotated[list[MachineCounts], column("How the units stand.")]
    workers: Annotated[list[WorkerRow], column("Who works on them.")]
    gates: Annotated[list[ClosedGate], column("Gates that are not open.")]
    firing: Annotated[list[FiringRow], column("Alerts that are not over, the worst first.", heading="alerts")]
    alerts: Annotated[list[AlertRow], column("The newest events with a severity.", heading="events")]
    notes: Annotated[list[str], column("What a person should know.")]


@reading("status", "How everything stands: units, workers, gates, alerts.")
def status(ask: Ask[KernelSettings], wanted: StatusWanted) -> StatusAnswer:
    """Of the past it is not kept what was due, held or set aside."""
    from penstock.ledger import history

    if wanted.at is not None:
        return _past(ask, wanted, wanted.at)
    found = history.status(ask.reader.database, wanted.alerts)
    notes = [f"{name}: {text}" for name, text in unserved(found.machines, ask.reader.machines).items()]
    if not found.workers:
        notes.insert(0, "no worker is running")
    return StatusAnswer(
        ledger=found.url,
        now=found.now,
        machines=[_counts(one, ask) for one in found.machines],
        workers=[_worker(one) for one in found.workers],
        gates=[ClosedGate(gate=g.gate_id, state=g.state, until=g.until, reason=g.reason) for g in found.closed_gates],
        firing=_firing(ask, wanted.alerts),
        alerts=[
            AlertRow(at=a.at, severity=a.severity, kind=a.kind, unit=a.unit, payload=a.payload) for a in found.alerts
        ],
        notes=notes,
    )


def _past(ask: Ask[Any], wanted: StatusWanted, at: datetime) -> StatusAnswer:
    """How everything stood at an instant: units, gates, alerts and the events until then."""
    from penstock.ledger import flow, outbox
    from penstock.operations.alerts.commands import AlertList, list_alerts
    from penstock.operations.alerts.machine import machine as alert
    from penstock.operations.gates import GateList, list_gates
    from penstock.operations.past import lacking, lacking_events

    database = ask.reader.database
    counts = database.read(lambda cursor: flow.counts_at(database, cursor, at))
    kept = {machine.name for machine in ask.reader.kept()}
    gates = list_gates(ask, GateList(at=at))
    most = max(1, wanted.alerts)
    firing = list_alerts(ask, AlertList(at=at, limit=most)).rows[: wanted.alerts]
    events = outbox.list_events(ask.then(at).reader.database, most=most, alerts=True)[: wanted.alerts]
    lacks = lacking(ask, [alert], at)
    notes = [
        gates.note if gates.rows else None,
        None if lacks is None else f"alerts: {lacks}",
        lacking_events(ask, at),
    ]
    return StatusAnswer(
        ledger=database.url,
        now=at,
        machines=[_stood(name, counts.get(name, {}), ask) for name in sorted({*counts, *kept})],
        workers=_workers(ask, at),
        gates=[
            ClosedGate(gate=one.gate, state=one.state, until=one.until, reason=one.reason)
            for one in gates.rows
            if one.state != "open"
        ],
        firing=[
            FiringRow(alert=one.alert, status=one.status, severity=one.severity, since=one.since, says=one.says)
            for one in firing
        ],
        alerts=[_event(one.event) for one in events],
        notes=[note for note in notes if note is not None],
    )


def _stood(name: str, counts: dict[str, int], ask: Ask[Any]) -> MachineCounts:
    known = ask.reader.machines[name].states if name in ask.reader.machines else ()
    states = dict.fromkeys(known, 0) | counts
    return MachineCounts(
        machine=name,
        units=_counted(states),
        due=None,
        claimed=None,
        parked=None,
        served=name in ask.reader.machines,
        states=states,
    )


def _event(event: Any) -> AlertRow:
    return AlertRow(
        at=event.created_at,
        severity=event.severity,
        kind=event.event_type,
        unit=f"{event.machine}:{event.unit_id}" if event.unit_id is not None else event.machine,
        payload=event.payload,
    )


def _counted(states: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in states.items() if count) or "no units yet"


class WorkersWanted(Parameters, frozen=True):
    at: Annotated[datetime | None, option("Those that worked at this instant.", example="2026-11-15T19:31:00Z")] = None


@reading("workers", "Workers that hold a lease.")
def workers(ask: Ask[KernelSettings], wanted: WorkersWanted) -> Page[WorkerRow]:
    """Of the past, those that had begun and whose end nobody had noticed. Workers are pruned too."""
    rows = _workers(ask, wanted.at)
    return Page(rows=rows, note=None if rows else "no worker is running" if wanted.at is None else "no worker is known")


def _workers(ask: Ask[Any], at: datetime | None) -> list[WorkerRow]:
    from penstock.ledger.history import workers_of

    database = ask.reader.database
    found = database.read(lambda cursor: workers_of(database, cursor, at))
    return [_worker(one, past=at is not None) for one in found]


READINGS = [status, workers]


def unserved(found: Sequence[MachineStatus], known: Any) -> dict[str, str]:
    """The machines of the ledger that have units and that nobody here knows, with a sentence about each."""
    told = {}
    for one in found:
        count = sum(one.states.values())
        if one.name not in known and count:
            units = f"{count:,} unit{'s rest' if count != 1 else ' rests'}"
            told[one.name] = f"{units}; no lifecycle of this configuration serves {'them' if count != 1 else 'it'}"
    return told


def _firing(ask: Ask[Any], most: int) -> list[FiringRow]:
    from penstock.operations.alerts.machine import machine

    if not ask.reader.keeps(machine):
        return []
    worst = "CASE severity WHEN 'critical' THEN 0 WHEN 'warning' THEN 1 ELSE 2 END"
    sql = (
        f"SELECT unit_id, status, severity, since, says FROM {machine.table} WHERE status <> 'resolved'"
        f" ORDER BY {worst}, since, unit_id LIMIT :most"
    )
    rows = ask.reader.read(lambda cursor: cursor.rows(sql, most=most))
    return [
        FiringRow(alert=str(a), status=str(b), severity=str(c), since=instant(d), says=str(e)) for a, b, c, d, e in rows
    ]


def _counts(one: MachineStatus, ask: Ask[Any]) -> MachineCounts:
    return MachineCounts(
        machine=one.name,
        units=_counted(one.states),
        due=one.due if one.driven else None,
        claimed=one.claimed if one.driven else None,
        parked=one.parked if one.driven else None,
        served=one.name in ask.reader.machines,
        states=one.states,
    )


def _worker(one: WorkerStatus, *, past: bool = False) -> WorkerRow:
    return WorkerRow(
        worker=one.id,
        host=one.host,
        pid=one.pid,
        since=one.started_at,
        lease_seconds=None if past else one.lease_seconds,
        configuration=one.config_version,
        machines=one.machines,
    )

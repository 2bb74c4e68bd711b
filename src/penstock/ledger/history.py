"""Reading the ledger for people: what is there, and how it came to be so."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime
from typing import Any, cast

from msgspec import Struct

from penstock.ledger.gates.status import COUNTED_AT_MOST, GateStatus, due_behind, gate_statuses
from penstock.ledger.past import BASELINE
from penstock.ledger.store.database import Cursor, Database, Row, present, table_names
from penstock.model.clock import instant, instant_text
from penstock.model.errors import LedgerMismatch, UnknownMachine, UnknownUnit, UsageError
from penstock.model.unit import Ref

HORIZON = "graves "
"""How the name in `penstock_meta` begins that has, machine by machine, before when graves may be missing."""
_AS_OF_AT_ONCE = 1_000
_AS_OF_AT_MOST = 20_000


class MachineStatus(Struct, frozen=True):
    """How the units of one machine stand."""

    name: str
    table: str
    driven: bool
    states: dict[str, int]
    due: int
    claimed: int
    parked: int


class WorkerStatus(Struct, frozen=True):
    """A worker that holds a lease."""

    id: str
    host: str
    pid: int
    started_at: datetime
    #: Of the past it is not known, and 0.
    lease_seconds: float
    machines: list[str]
    config_version: str | None = None


class Alert(Struct, frozen=True):
    """An event with a severity."""

    at: datetime
    severity: str
    kind: str
    unit: str | None
    payload: Any


class Status(Struct, frozen=True):
    """The whole ledger at a glance."""

    now: datetime
    url: str
    machines: list[MachineStatus]
    workers: list[WorkerStatus]
    closed_gates: list[GateStatus]
    alerts: list[Alert]


class Transition(Struct, frozen=True):
    """One row of a unit's history; a birth has no `from_status`, a death no `to_status`."""

    seq: int
    at: datetime
    from_status: str | None
    to_status: str | None
    actor: str
    reason: str | None
    version: int
    data: Any
    #: The bulk action that it was a part of.
    action_id: str | None = None
    #: The edge that was pulled; None for births, deaths and baselines, for SQL, and where a person kept the state.
    trigger: str | None = None
    #: Of a death: since when the unit was as it ended. The row may be all that is left of the unit.
    since: datetime | None = None


class AsOf(Struct, frozen=True):
    """How a unit stood at a moment; `status` is None before its birth and after its death.

    `note` says what the history no longer knows of that moment.
    """

    unit: str
    at: datetime
    status: str | None
    since: datetime | None
    version: int | None
    data: Any
    reason: str | None = None
    note: str | None = None


def require_ledger(database: Database, cursor: Cursor) -> None:
    """Raise LedgerMismatch unless the database is a Penstock ledger."""
    if "penstock_meta" not in table_names(database, cursor):
        msg = f"{database.url} is not a Penstock ledger; create one with 'penstock db upgrade'"
        raise LedgerMismatch(msg)


def status(database: Database, alerts: int = 20) -> Status:
    """Counts, workers, closed gates and the newest alerts, from one snapshot."""

    def work(cursor: Cursor) -> Status:
        require_ledger(database, cursor)
        moment = present(database, cursor)
        return Status(
            moment,
            database.url,
            machine_statuses(database, cursor),
            workers_of(database, cursor),
            [g for g in gate_statuses(database, cursor) if g.state not in {"open", "busy"}],
            _alerts(cursor, alerts),
        )

    return database.read(work)


def machine_statuses(database: Database, cursor: Cursor) -> list[MachineStatus]:
    """How the units of every machine of the ledger stand. Of those that are due 10,000 are counted behind a gate."""
    from penstock.ledger.flow import counts_at

    counts = counts_at(database, cursor)
    return [_machine(database, cursor, row, counts.get(row[0], {})) for row in _definitions(cursor)]


def history(database: Database, ref: Ref) -> list[Transition]:
    """Every transition of a unit, oldest first. Raises UnknownMachine or UnknownUnit."""

    def work(cursor: Cursor) -> list[Transition]:
        require_ledger(database, cursor)
        known = [str(row[0]) for row in _definitions(cursor)]
        if ref.machine not in known:
            msg = f"no machine is called {ref.machine!r}; this ledger has {', '.join(known) or 'none'}"
            raise UnknownMachine(msg)
        rows = cursor.rows(
            "SELECT seq, at, from_status, to_status, actor, reason, version, data, action_id, trigger, since"
            " FROM transition_log"
            " WHERE machine = :machine AND unit_id = :unit_id ORDER BY seq",
            machine=ref.machine,
            unit_id=ref.unit_id,
        )
        if not rows:
            missing = missing_before(ref.machine, horizon(cursor, ref.machine))
            msg = f"no unit {ref} in the ledger{f'; {missing}' if missing else ''}"
            raise UnknownUnit(msg)
        return [_transition(row) for row in rows]

    return database.read(work)


def _transition(row: Row) -> Transition:
    seq, at, source, target, actor, reason, version, data, action, trigger, since = row
    told = _document(data)
    return Transition(
        seq,
        instant(at),
        source,
        target,
        actor,
        reason,
        version,
        told,
        action,
        trigger,
        instant(since) if since else None,
    )


def horizon(cursor: Cursor, machine: str) -> datetime | None:
    """Units of a machine that were pruned before this moment may have no row in the history any more; None: all have."""
    rows = cursor.rows("SELECT value FROM penstock_meta WHERE name = :name", name=f"{HORIZON}{machine}")
    return instant(rows[0][0]) if rows else None


def missing_before(machine: str, moment: datetime | None) -> str | None:
    """The sentence that says so."""
    if moment is None:
        return None
    return f"units of {machine} that were pruned before {instant_text(moment)} are no longer in the history"


def as_of(database: Database, ref: Ref, moment: datetime) -> AsOf:
    """How the unit stood at that moment. Raises UsageError for one whose history was pruned."""
    rows = history(database, ref)
    # In the order of writing: a clock that was set back does not bring an old state back.
    known = [row for row in rows if row.at <= moment]
    if known:
        last = known[-1]
        return AsOf(str(ref), moment, last.to_status, last.at, last.version, last.data, last.reason)
    first = rows[0]
    if first.from_status is not None and first.since is not None and first.since <= moment:
        return AsOf(str(ref), moment, first.from_status, first.since, first.version, first.data, first.reason)
    if first.from_status is not None or first.actor.startswith(BASELINE):
        begins = instant_text(first.since or first.at)
        msg = f"the history of {ref} before {begins} was pruned; ask for a later moment"
        raise UsageError(msg)
    ends = database.read(lambda cursor: horizon(cursor, ref.machine))
    note = missing_before(ref.machine, ends) if ends is not None and moment < ends else None
    return AsOf(str(ref), moment, None, None, None, None, note=note)


class UnitsAsOf(Struct, frozen=True):
    """Units as they stood at an instant; `next` is the id after which to go on, None where there are no more."""

    units: list[AsOf]
    next: str | None


def units_as_of(
    database: Database,
    machine: str,
    moment: datetime,
    *,
    states: Collection[str] = (),
    most: int = 50,
    after: str = "",
) -> UnitsAsOf:
    """The units of a machine that were in one of the states, or in any, at an instant; in the order of their ids.

    It looks through a bounded number of units: a page may be short, or empty, and yet have a `next`. A unit whose
    history of that time was pruned is left out (see `flow.pruned_before` and `horizon`).
    """
    at = database.sql.instant("moment")
    # The index of the key, and not that of moments: a page is a part of the keys and nearly all of the past. Where
    # nothing is told before a grave, the unit was until then what it was when it ended.
    sql = (
        "SELECT g.unit_id, l.from_status, l.to_status, l.at, l.since, l.version, l.data, l.reason FROM"
        f" (SELECT unit_id, COALESCE(max(CASE WHEN at <= {at} THEN seq END), min(seq)) AS seq FROM transition_log"
        f" WHERE machine = :machine AND unit_id > :after AND (COALESCE(at, at) <= {at} OR since <= {at})"
        f" GROUP BY unit_id ORDER BY unit_id LIMIT {_AS_OF_AT_ONCE}) g"
        " CROSS JOIN transition_log l WHERE l.machine = :machine AND l.unit_id = g.unit_id AND l.seq = g.seq"
        " ORDER BY g.unit_id"
    )

    def work(cursor: Cursor) -> UnitsAsOf:
        found: list[AsOf] = []
        last, left = after, _AS_OF_AT_MOST
        while left > 0:
            rows = cursor.rows(sql, machine=machine, after=last, moment=instant_text(moment))
            for unit_id, source, target, at, since, version, data, reason in rows:
                ahead = instant(at) > moment  # a grave
                status, begun = (source, since) if ahead else (target, at)
                if status is not None and (not states or status in states):
                    if len(found) == most:
                        return UnitsAsOf(found, last)
                    ref = f"{machine}:{unit_id}"
                    found.append(AsOf(ref, moment, status, instant(begun), version, _document(data), reason))
                last = unit_id
            if len(rows) < _AS_OF_AT_ONCE:
                return UnitsAsOf(found, None)
            left -= len(rows)
        return UnitsAsOf(found, last)

    return database.read(work)


Definition = tuple[str, str, bool, str, list[str]]


def _definitions(cursor: Cursor) -> list[Definition]:
    rows = cursor.rows("SELECT name, table_name, driven, due_column, definition FROM machine_definition ORDER BY name")
    return [(r[0], r[1], bool(r[2]), r[3], list(_document(r[4])["states"])) for r in rows]


def _machine(database: Database, cursor: Cursor, definition: Definition, counts: dict[str, int]) -> MachineStatus:
    name, table, driven, due, states = definition
    ordered = {s: counts.get(s, 0) for s in states} | counts
    ready, numbers = 0, cast("Row", (0, 0))
    if driven:
        ready = due_behind(database, cursor, table, due, at_most=COUNTED_AT_MOST).total()
        numbers = cursor.rows(
            f"SELECT (SELECT count(*) FROM {table} WHERE claimed_by IS NOT NULL),"
            f" (SELECT count(*) FROM {table} WHERE parked_at IS NOT NULL)"
        )[0]
    return MachineStatus(name, table, driven, ordered, ready, *map(int, numbers))


def workers_of(database: Database, cursor: Cursor, at: datetime | None = None) -> list[WorkerStatus]:
    """Workers that hold a lease; or that had begun by an instant, and whose end nobody had noticed."""
    left, values = database.lease_left_sql, dict(database.bind_now())
    where = "reaped_at IS NULL"
    if at is not None:
        moment = database.sql.instant("moment")
        where = f"started_at <= {moment} AND (reaped_at IS NULL OR reaped_at > {moment})"
        left, values = "0", {"moment": instant_text(at)}
    columns = f"id, host, pid, started_at, {left}, machines, config_version"
    rows = cursor.rows(f"SELECT {columns} FROM worker WHERE {where} ORDER BY started_at, id", **values)
    return [WorkerStatus(r[0], r[1], r[2], instant(r[3]), round(float(r[4]), 1), _document(r[5]), r[6]) for r in rows]


def _alerts(cursor: Cursor, most: int) -> list[Alert]:
    rows = cursor.rows(
        "SELECT created_at, severity, event_type, machine, unit_id, payload FROM event_log WHERE severity IS NOT NULL"
        " ORDER BY created_at DESC, event_key LIMIT :most",
        most=most,
    )
    return [
        Alert(instant(r[0]), r[1], r[2], f"{r[3]}:{r[4]}" if r[4] is not None else r[3], _document(r[5])) for r in rows
    ]


def _document(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value

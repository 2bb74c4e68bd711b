"""What a forecast is made of: the newest part of the history, what is due, how units stood, and the gates.

Nothing here reads through a large ledger. Of the history so many of the newest rows are read, of what is due so many
units one by one, and the others are counted by hour along the index of what is due.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct

from penstock.ledger import flow
from penstock.ledger.gates.status import gate_statuses
from penstock.ledger.roll_up import COUNTED
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.ledger.store.statements import waiting
from penstock.model.clock import instant, instant_text
from penstock.model.experience import Happened
from penstock.model.machine import Machine

ROWS = 20_000
"""So many rows of the history teach."""
UNITS = 5_000
"""So many due units of a machine are looked at one by one."""
_EARLIEST = datetime(1, 1, 1, tzinfo=UTC)


class DueUnit(Struct, frozen=True):
    """A unit that waits for its moment, or that a worker holds."""

    unit_id: str
    state: str
    gate: str
    due: datetime


class DueHour(Struct, frozen=True):
    """So many units wait for a moment within an hour, behind a gate."""

    hour: datetime
    gate: str
    n: int


def newest_history(database: Database, cursor: Cursor, at: datetime | None, most: int = ROWS) -> list[Happened]:
    """The newest rows of the history, or those before an instant; oldest first."""
    window = flow.at_instant(at)
    low = flow.sampled_from(database, cursor, window, most)
    where, values = flow.bounds(database, "at", low, window.end, None)
    columns = "seq, machine, unit_id, from_status, to_status, trigger, actor, at"
    newest = f"SELECT {columns} FROM transition_log WHERE {where} AND {COUNTED} ORDER BY at DESC, seq DESC LIMIT :most"
    rows = cursor.gather(f"SELECT {columns} FROM ({newest}) AS newest", most=most, **values)
    told = sorted(rows, key=lambda row: int(row[0]))
    return [
        Happened(machine, unit_id, source, target, trigger, actor, instant(moment))
        for _, machine, unit_id, source, target, trigger, actor, moment in told
    ]


def due_units(database: Database, cursor: Cursor, machine: Machine, until: datetime) -> tuple[list[DueUnit], bool]:
    """Units that are due before an instant, and those that workers hold; whether these are all."""
    columns = f"SELECT unit_id, status, gate_id, {machine.due} FROM {machine.table} WHERE"
    before = f"{machine.due} < {database.sql.instant('until')}"
    found = []
    for which in (
        f"{waiting(machine.due)} AND {before}",
        f"{waiting(machine.due, suspects=True)} AND {before}",
        "claimed_by IS NOT NULL",
    ):
        given = {"until": instant_text(until)} if "until" in which else {}
        found += cursor.rows(f"{columns} {which} LIMIT {UNITS + 1}", **given)
    units = [DueUnit(str(row[0]), str(row[1]), str(row[2]), instant(row[3])) for row in found if row[3] is not None]
    return units[:UNITS], len(units) <= UNITS


def due_hours(database: Database, cursor: Cursor, machine: Machine, now: datetime, until: datetime) -> list[DueHour]:
    """How many units are due in which hour, behind which gate; what is overdue is due now."""
    first = now.replace(minute=0, second=0, microsecond=0)
    hours = [first + n * flow.HOUR for n in range(math.ceil((until - first) / flow.HOUR))]
    ranges = [
        [
            instant_text(_EARLIEST if hour == first else hour),
            instant_text(min(hour + flow.HOUR, until)),
            instant_text(hour),
        ]
        for hour in hours
    ]
    source = statements.batch(database, dict.fromkeys(("low", "high", "hour"), statements.INSTANT))
    # Each a range of the index: an expression to group by would be reckoned for every unit.
    many = (
        f"SELECT count(*) FROM {machine.table} t WHERE t.gate_id = g.gate_id AND {waiting(machine.due, 't')}"
        f" AND t.{machine.due} >= n_low AND t.{machine.due} < n_high"
    )
    rows = cursor.rows(
        f"SELECT g.gate_id, n_hour, ({many}) FROM gate g CROSS JOIN {source}", batch=statements.batch_text(ranges)
    )
    return [DueHour(max(now, instant(hour)), str(gate), int(n)) for gate, hour, n in rows if n]


def departures(
    database: Database, cursor: Cursor, machine: str, units: Iterable[str], at: datetime | None
) -> dict[str, dict[str, int]]:
    """How often each of the units had left which state."""
    ended = "" if at is None else f" AND COALESCE(at, at) <= {database.sql.instant('at')}"
    rows = cursor.rows(
        "SELECT unit_id, from_status, count(*) FROM transition_log WHERE machine = :machine"
        f" AND unit_id IN ({database.sql.listed('units')}) AND from_status IS NOT NULL"
        f" AND to_status <> from_status{ended} GROUP BY 1, 2",
        machine=machine,
        units=json.dumps(list(units)),
        **({} if at is None else {"at": instant_text(at)}),
    )
    found: dict[str, dict[str, int]] = {}
    for unit_id, state, n in rows:
        found.setdefault(str(unit_id), {})[str(state)] = int(n)
    return found


class GateAhead(Struct, frozen=True):
    """A gate: since or from when it is open (None: nobody knows), and its limits as (rate, burst, cost, left)."""

    gate_id: str
    opens: datetime | None
    limits: list[tuple[float, float, float, float]]


def gates_ahead(database: Database, cursor: Cursor, now: datetime, at: datetime | None) -> list[GateAhead]:
    """Every gate as it is, or as it was at an instant; its limits are those of today, and were full then."""
    shut = {} if at is None else _shut_at(database, cursor, at)
    found = []
    for one in gate_statuses(database, cursor):
        if at is None:
            held = one.state in {"paused", "stopped"}
            opens = None if held else one.until or now
        else:
            opens = shut.get(one.gate_id, at)
        limits = [(x.rate, x.burst, x.cost, x.left if at is None else x.burst) for x in one.limits]
        found.append(GateAhead(one.gate_id, opens, limits))
    return found


def _shut_at(database: Database, cursor: Cursor, at: datetime) -> Mapping[str, datetime | None]:
    """Gates that were not open at an instant, and until when."""
    rows = cursor.rows(
        "SELECT gate_id, what, until FROM gate_log WHERE seq IN (SELECT max(seq) FROM gate_log"
        f" WHERE at <= {database.sql.instant('at')} AND what <> 'budget' GROUP BY gate_id)",
        at=instant_text(at),
    )
    found: dict[str, datetime | None] = {}
    for gate_id, what, until in rows:
        ends: Any = instant(until)
        if what in {"closed", "paused", "stopped"} and (ends is None or ends > at):
            found[str(gate_id)] = ends
    return found

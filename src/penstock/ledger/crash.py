"""Claimed units that are given back for their own fault, or set aside, by the least of statements."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta

from penstock.clock import instant_text
from penstock.ledger.commit import insert_events
from penstock.ledger.database import Cursor, Database, Row, instant_sql, present
from penstock.ledger.reap import CRASH_LIMIT
from penstock.machine import Machine
from penstock.unit import Unit

_PAUSE = timedelta(seconds=2)


def crash(database: Database, cursor: Cursor, machine: Machine, unit: Unit, *, worker: str, reason: str) -> None:
    """Give back a unit whose step broke its worker: due again in some seconds, parked at the third crash in a row.

    Of a unit that is the worker's no longer nothing is changed. One version further the claim is still the same, as
    for `statements.release`.
    """
    parked = f"crashes + 1 >= {CRASH_LIMIT}"
    rows = cursor.rows(
        f"UPDATE {machine.table} SET claimed_by = NULL, version = version + 1, crashes = crashes + 1,"
        f" {machine.due} = {instant_sql(database, 'due')},"
        f" parked_at = CASE WHEN {parked} THEN {database.now_sql} ELSE parked_at END,"
        f" parked_reason = CASE WHEN {parked} THEN :reason ELSE parked_reason END"
        " WHERE unit_id = :unit_id AND version BETWEEN :version AND :version + 1 AND claimed_by = :worker"
        " RETURNING version, crashes",
        due=instant_text(present(database, cursor) + _PAUSE * 2 ** min(unit.crashes, CRASH_LIMIT)),
        reason=(parking := f"{reason} ({CRASH_LIMIT} times in a row)"),
        unit_id=unit.unit_id,
        version=unit.version,
        worker=worker,
        **database.bind_now(),
    )
    if rows and rows[0][1] >= CRASH_LIMIT:
        _alert(database, cursor, machine, (unit.unit_id, rows[0][0] - 1), parking)


def park(database: Database, cursor: Cursor, machine: Machine, claim: tuple[str, int], reason: str) -> None:
    """Set one claimed unit aside, with an alert. A claim is a unit's id and version."""
    touched = cursor.run(
        f"UPDATE {machine.table} SET parked_at = {database.now_sql}, parked_reason = :reason,"
        " claimed_by = NULL, crashes = crashes + 1, version = version + 1"
        " WHERE unit_id = :unit_id AND version = :version",
        reason=reason,
        unit_id=claim[0],
        version=claim[1],
        **database.bind_now(),
    )
    if touched:
        _alert(database, cursor, machine, claim, reason)


def park_rows(database: Database, cursor: Cursor, machine: Machine, unreadable: Sequence[tuple[Row, str]]) -> None:
    """Set claimed units aside of which only the rows are known, each with its reason."""
    for row, reason in unreadable:
        values = dict(zip(machine.columns, row, strict=True))
        park(database, cursor, machine, (values["unit_id"], values["version"]), reason)


def _alert(database: Database, cursor: Cursor, machine: Machine, claim: tuple[str, int], reason: str) -> None:
    name, (unit_id, version) = machine.name, claim
    alert = ["default", f"unit.parked:{name}:{unit_id}:{version}", "unit.parked", "critical"]
    payload = json.dumps({"unit": f"{name}:{unit_id}", "reason": reason})
    insert_events(database, cursor, [[*alert, payload, name, unit_id, f"{name}:{unit_id}@{version + 1}"]])

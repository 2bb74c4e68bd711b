"""Setting a unit aside for a person, by the least of statements, and telling of it."""

from __future__ import annotations

import json
from typing import Any

from penstock.ledger.commit import insert_events
from penstock.ledger.store.database import Cursor, Database
from penstock.model.machine import Machine


def park(database: Database, cursor: Cursor, machine: Machine, unit: tuple[str, int], reason: str) -> None:
    """Park the unit (its id and version) where an outcome cannot be written at all."""
    unit_id, version = unit
    touched = cursor.run(
        f"UPDATE {machine.table} SET parked_at = {database.now_sql}, parked_reason = :reason, claimed_by = NULL,"
        " crashes = crashes + 1, doubts = doubts + 1, suspicion = 0, suspected_in = NULL, version = version + 1"
        " WHERE unit_id = :unit_id AND version = :version",
        reason=reason,
        unit_id=unit_id,
        version=version,
        **database.bind_now(),
    )
    if touched:
        insert_events(database, cursor, [parked_alert(machine.name, unit_id, version + 1, reason)])


def parked_alert(machine: str, unit_id: str, version: int, reason: str) -> list[Any]:
    """The event row that tells of a unit set aside; `version` is the one that it was set aside under."""
    return [
        "default",
        f"unit.parked:{machine}:{unit_id}:{version}",
        "unit.parked",
        "critical",
        json.dumps({"unit": f"{machine}:{unit_id}", "reason": reason}),
        machine,
        unit_id,
        f"{machine}:{unit_id}@{version}",
    ]

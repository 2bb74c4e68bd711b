"""A claimed unit that is given back for its own fault: the one step of which a worker knows that it broke it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from penstock.ledger.commit import insert_events
from penstock.ledger.parking import parked_alert
from penstock.ledger.store.database import Cursor, Database, present
from penstock.ledger.suspicion import CRASH_LIMIT
from penstock.model.clock import instant_text
from penstock.model.machine import Machine
from penstock.model.unit import Unit

_PAUSE = timedelta(seconds=2)


def crash(
    database: Database, cursor: Cursor, machine: Machine, units: Sequence[Unit], *, worker: str, reason: str
) -> None:
    """Give back a unit whose step broke its worker, or siblings whose step it was: due again in some seconds, together.

    Parked at the third crash in a row. Of a unit that is the worker's no longer nothing is changed. One version further
    the claim is still the same, as for `statements.release`.
    """
    tries = min(max(unit.crashes for unit in units), CRASH_LIMIT)
    due = instant_text(present(database, cursor) + _PAUSE * 2**tries)
    parking = f"{reason} ({CRASH_LIMIT} times in a row)"
    parked = f"crashes + 1 >= {CRASH_LIMIT}"
    for unit in units:
        rows = cursor.rows(
            f"UPDATE {machine.table} SET claimed_by = NULL, version = version + 1, crashes = crashes + 1,"
            " doubts = doubts + 1, suspicion = 0, suspected_in = NULL,"
            f" {machine.due} = {database.sql.instant('due')},"
            f" parked_at = CASE WHEN {parked} THEN {database.now_sql} ELSE parked_at END,"
            f" parked_reason = CASE WHEN {parked} THEN :reason ELSE parked_reason END"
            " WHERE unit_id = :unit_id AND version BETWEEN :version AND :version + 1 AND claimed_by = :worker"
            " RETURNING version, crashes",
            due=due,
            reason=parking,
            unit_id=unit.unit_id,
            version=unit.version,
            worker=worker,
            **database.bind_now(),
        )
        if rows and rows[0][1] >= CRASH_LIMIT:
            insert_events(database, cursor, [parked_alert(machine.name, unit.unit_id, rows[0][0], parking)])

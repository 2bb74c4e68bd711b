"""How many steps are under way behind each gate: siblings that were claimed together are one."""

from __future__ import annotations

from collections import Counter
from typing import Any

from penstock.ledger.store.claim_statements import together
from penstock.ledger.store.database import Cursor


def steps_in_flight(cursor: Cursor, which: str, **given: Any) -> Counter[str]:
    """By gate, the steps of every machine whose worker is not reaped, of the units `t` that the condition names."""
    found: Counter[str] = Counter()
    machines = "SELECT table_name, definition ->> 'siblings' FROM machine_definition WHERE driven ORDER BY name"
    for table, siblings in cursor.rows(machines):
        held = f"FROM worker w JOIN {table} t ON t.claimed_by = w.id WHERE w.reaped_at IS NULL AND {which}"
        if siblings is not None:
            # One claim has one moment, and takes at most one group of a key.
            apart = f"CASE WHEN t.{siblings} IS NULL OR NOT ({together('t')}) THEN t.unit_id END AS apart"
            columns = f"t.gate_id, t.claimed_by, t.claimed_at, t.{siblings}"
            held = f"FROM (SELECT DISTINCT {columns}, {apart} {held}) AS t"
        rows = cursor.rows(f"SELECT t.gate_id, count(*) {held} GROUP BY t.gate_id", **given)
        found.update({str(gate): count for gate, count in rows})
    return found

"""Units read from the ledger, or locked in it, by their ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from penstock.ledger.schema.columns import decoder_of
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.model.machine import Machine


def get_many(database: Database, machine: Machine, unit_ids: Sequence[str], cursor: Cursor | None = None) -> list[Any]:
    """Those of the units that exist, ordered by id; as the cursor's transaction sees them, where one is given."""
    columns = ", ".join(machine.column(c) for c in machine.columns)
    source = statements.batch(database, {"unit_id": statements.TEXT})
    text = statements.batch_text([[i] for i in unit_ids])
    sql = f"SELECT {columns} FROM {machine.table} WHERE unit_id IN (SELECT n_unit_id FROM {source}) ORDER BY unit_id"
    rows = database.read(lambda own: own.rows(sql, batch=text)) if cursor is None else cursor.rows(sql, batch=text)
    decode = decoder_of(database, machine.unit)
    return [decode(row) for row in rows]


def lock(database: Database, cursor: Cursor, table: str, unit_ids: Iterable[str], *, keys: bool = False) -> list[str]:
    """Lock units in one order (see `statements.lock_units`); the ids of those that exist."""
    text = statements.batch_text([[i] for i in unit_ids])
    return [str(row[0]) for row in cursor.rows(statements.lock_units(database, table, keys=keys), batch=text)]

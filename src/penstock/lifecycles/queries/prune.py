"""Records of runs, and records that were set aside, go when they are old enough; offers and companies stay."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.queries.tables import ingestion_runs, rejected_records
from penstock.model.clock import instant_text

_AT_ONCE = 5_000
_AT_MOST = 100_000


def prune_records(ledger: Ledger, keep: timedelta, now: datetime) -> tuple[int, bool]:
    """How many went, some thousands in a transaction, and whether there are more. A run under way stays."""
    before = ledger.database.sql.instant("before")
    old = {
        ingestion_runs.name: ("id", f"started_at < {before} AND finished_at IS NOT NULL"),
        rejected_records.name: ("query_key, digest", f"last_seen_at < {before}"),
    }
    rows = 0
    for table, (key, condition) in old.items():
        some = f"SELECT {key} FROM {table} WHERE {condition} LIMIT {_AT_ONCE}"
        sql = f"DELETE FROM {table} WHERE ({key}) IN ({some})"
        while gone := ledger.database.write(partial(_run, sql=sql, before=instant_text(now - keep))):
            rows += gone
            if rows >= _AT_MOST:
                return rows, True
    return rows, False


def _run(cursor: Cursor, sql: str, before: str) -> int:
    return cursor.run(sql, before=before)

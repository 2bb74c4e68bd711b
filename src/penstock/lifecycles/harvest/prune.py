"""Raw records go when their run has been over for long enough; what they came to stays.

Those of a run that can still be retried are kept: the retry counts them, and consolidates them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

import sqlalchemy as sa

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.harvest.tables import harvest_pricing, harvest_rejected
from penstock.model.clock import instant_text

AT_MOST = 100_000
"""How many rows one run of the job removes."""
_AT_ONCE = 5_000


@dataclass(frozen=True, slots=True)
class Gone:
    """How many raw rows went, and whether there are more."""

    rows: int
    more: bool


def prune_raw_records(
    ledger: Ledger, tables: Collection[sa.Table], keep: timedelta, now: datetime, *, at_most: int = AT_MOST
) -> Gone:
    """Remove raw rows of runs that ended before, some thousands in a transaction."""
    before, own = ledger.database.sql.instant("before"), ledger.database.sql.identifier("run_id")
    over = (
        f"SELECT r.unit_id FROM run_metadata r WHERE (r.status = 'completed' AND r.completed_at < {before}) OR"
        f" (r.status = 'failed' AND r.changed_at < {before} AND EXISTS (SELECT 1 FROM run_metadata l"
        " WHERE l.feed = r.feed AND l.status = 'completed' AND l.started_at > r.started_at)) ORDER BY r.started_at"
    )
    found = ledger.read(lambda cursor: cursor.rows(over, before=instant_text(now - keep)))
    rows = 0
    for run_id in (str(row[0]) for row in found):
        for table in {t.name: t for t in tables}.values():
            while gone := prune_some(ledger, table, run_id):
                rows += gone
                if rows >= at_most:
                    return Gone(rows, more=True)
        _forget(ledger, own, run_id)
    return Gone(rows, more=False)


def prune_some(ledger: Ledger, table: sa.Table, run_id: str, at_once: int = _AT_ONCE) -> int:
    """Remove some raw rows of a run in one transaction; how many."""
    own = ledger.database.sql.identifier("run_id")
    some = ledger.database.sql.some_rows(table.name, [c.name for c in table.primary_key], f"run_id = {own}", at_once)
    sql = f"DELETE FROM {table.name} WHERE {some}"
    return ledger.database.write(lambda cursor: cursor.run(sql, run_id=run_id))


def _forget(ledger: Ledger, own: str, run_id: str) -> None:
    """What was set aside, and the rules that priced it, go with the records that they speak of."""

    def work(cursor: Cursor) -> None:
        for table in (harvest_rejected, harvest_pricing):
            cursor.run(f"DELETE FROM {table.name} WHERE run_id = {own}", run_id=run_id)

    names = (harvest_rejected.name, harvest_pricing.name)
    asked = " UNION ALL ".join(f"SELECT 1 FROM {name} WHERE run_id = {own}" for name in names)
    if ledger.read(lambda cursor: cursor.rows(f"{asked} LIMIT 1", run_id=run_id)):
        ledger.database.write(work)

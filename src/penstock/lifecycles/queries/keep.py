"""What the ledger knows of landed pages: which of them count."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.ledger.store import statements
from penstock.raw.collect import Held
from penstock.raw.paths import PartitionKey

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.operations.reader import Reader


def held(ledger: Ledger | Reader, keys: Collection[PartitionKey]) -> dict[PartitionKey, Held]:
    """Which landed pages count, of these partitions: none supersedes another."""
    units = {str(key): key for key in keys}
    source = statements.batch(ledger.database, {"partition": statements.TEXT})
    sql = (
        f"SELECT l.partition, l.raw_run_id FROM {source} JOIN landed_pages l ON l.partition = n_partition"
        " WHERE l.replaced_by IS NULL"
    )
    batch = statements.batch_text([[unit] for unit in units])
    found: dict[PartitionKey, Held] = {}
    for unit, run_id in ledger.read(lambda cursor: cursor.rows(sql, batch=batch)):
        known = found.get(units[unit], Held())
        found[units[unit]] = replace(known, referenced=known.referenced | {run_id})
    return found

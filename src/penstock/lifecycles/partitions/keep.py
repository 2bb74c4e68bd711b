"""What the ledger knows of the runs of partitions: which are referred to, and which are under way."""

from __future__ import annotations

from collections.abc import Collection

from penstock.ledger.ledger import Ledger
from penstock.ledger.store import statements
from penstock.lifecycles.partitions.machine import P, X, extraction, partition
from penstock.raw.collect import Held
from penstock.raw.paths import PartitionKey

_UNDER_WAY = (X.WANTED, X.EXTRACTING)


def held(ledger: Ledger, keys: Collection[PartitionKey]) -> dict[PartitionKey, Held]:
    """Of each partition that the ledger knows. One statement for all."""
    units = {str(key): key for key in keys}
    source = statements.batch(ledger.database, {"unit_id": statements.TEXT})
    sql = (
        f"SELECT n_unit_id, p.status, p.current_run_id, x.status, x.run_id, x.claimed_by FROM {source}"
        f" LEFT JOIN {partition.table} p ON p.unit_id = n_unit_id"
        f" LEFT JOIN {extraction.table} x ON x.unit_id = n_unit_id"
        " WHERE p.unit_id IS NOT NULL OR x.unit_id IS NOT NULL"
    )
    text = statements.batch_text([[unit_id] for unit_id in units])
    found = {}
    for unit_id, status, current, extracting, run_id, claimed in ledger.read(lambda c: c.rows(sql, batch=text)):
        landed = run_id if extracting == X.LANDED else None
        found[units[unit_id]] = Held(
            current if status == P.SUCCESS else None,
            frozenset(run for run in (current, landed) if run is not None),
            frozenset([run_id] if run_id is not None and extracting in _UNDER_WAY else []),
            claimed is not None,
        )
    return found

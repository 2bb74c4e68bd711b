"""What the ledger knows of the runs of partitions: which are referred to, and which are under way."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.ledger.store import statements
from penstock.lifecycles.partitions.machine import P, V, X, extraction, partition, validation
from penstock.raw.collect import Held
from penstock.raw.paths import PartitionKey

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.operations.reader import Reader

_UNDER_WAY = (X.WANTED, X.EXTRACTING)


def held(ledger: Ledger | Reader, keys: Collection[PartitionKey]) -> dict[PartitionKey, Held]:
    """Of each partition that the ledger knows: a statement for all, and one for those that people want judged."""
    units = {str(key): key for key in keys}
    source = statements.batch(ledger.database, {"unit_id": statements.TEXT})
    sql = (
        f"SELECT n_unit_id, p.status, p.current_run_id, x.status, x.run_id, x.claimed_by FROM {source}"
        f" LEFT JOIN {partition.table} p ON p.unit_id = n_unit_id"
        f" LEFT JOIN {extraction.table} x ON x.unit_id = n_unit_id"
        " WHERE p.unit_id IS NOT NULL OR x.unit_id IS NOT NULL"
    )
    text = statements.batch_text([[unit_id] for unit_id in units])
    found: dict[PartitionKey, Held] = {}
    for unit_id, status, current, extracting, run_id, claimed in ledger.read(lambda c: c.rows(sql, batch=text)):
        landed = run_id if extracting == X.LANDED else None
        found[units[unit_id]] = Held(
            current if status == P.SUCCESS else None,
            frozenset(run for run in (current, landed) if run is not None),
            frozenset([run_id] if run_id is not None and extracting in _UNDER_WAY else []),
            claimed is not None,
        )
    # Those that people want judged; there are few at any moment. Their ids are the partition's, and the run.
    judged = f"SELECT unit_id, run_id FROM {validation.table} WHERE status = '{V.WANTED}'"
    for unit_id, run_id in ledger.read(lambda c: c.rows(judged)):
        key = units.get(unit_id.rpartition("/")[0])
        if key is not None:
            known = found.get(key, Held())
            found[key] = replace(known, referenced=known.referenced | {run_id})
    return found

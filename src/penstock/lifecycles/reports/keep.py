"""What the ledger knows of the runs that reports landed in: which is loaded, and which is under way."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from penstock.ledger.store import statements
from penstock.lifecycles.reports.machine import Aggregation, S, machine
from penstock.lifecycles.reports.settings import PROVIDER
from penstock.model.clock import instant, instant_text
from penstock.model.unit import key_part
from penstock.raw.collect import Held
from penstock.raw.paths import PartitionKey

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.operations.reader import Reader

_UNDER_WAY = (S.FETCHING, S.PARSING)


def held(ledger: Ledger | Reader, keys: Collection[PartitionKey]) -> dict[PartitionKey, Held]:
    """Of each dataset that the ledger knows. One statement for all."""
    units = {dataset_of(key): key for key in keys if key.source == PROVIDER}
    source = statements.batch(ledger.database, {"unit_id": statements.TEXT})
    sql = (
        f"SELECT unit_id, status, raw_run_id, last_report_created_at, claimed_by FROM {machine.table}"
        f" WHERE unit_id IN (SELECT n_unit_id FROM {source})"
    )
    text = statements.batch_text([[unit_id] for unit_id in units])
    found = {}
    for unit_id, status, loaded, created_at, claimed in ledger.read(lambda c: c.rows(sql, batch=text)):
        found[units[unit_id]] = Held(
            loaded,
            frozenset([loaded] if loaded is not None else []),
            frozenset([instant_text(instant(created_at))] if status in _UNDER_WAY else []),
            claimed is not None,
        )
    return found


def dataset_of(key: PartitionKey) -> str:
    """The unit whose reports land in a partition, as `flow.raw_key` names it."""
    aggregation, _, rest = key.query_name.partition("-")
    entity_type, _, period = rest.partition("-")
    if aggregation == Aggregation.DAILY and not period:
        period = key.logical_date.isoformat()
    return "/".join(map(key_part, (key.customer_id, period, aggregation, entity_type)))

"""The job `prune-report-datasets`: datasets beyond their retention go, with their history and their rows (P6).

The rows go when the stages are swept, since nothing points at them any more. What landed in the raw sink stays.
"""

from __future__ import annotations

from datetime import datetime

from penstock.ledger.care.prune import Ages, Pruner
from penstock.ledger.care.prune_rules import Finished
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import instant_sql
from penstock.lifecycles.reports.decide import Settings
from penstock.lifecycles.reports.machine import Aggregation, machine
from penstock.model.clock import Rng, instant_text

JOB = "prune-report-datasets"


def prune_report_datasets(ledger: Ledger, settings: Settings, now: datetime, *, who: str, rng: Rng) -> int:
    """Prune; returns how many datasets went. Interrupted, it has done a part, and the next run does the rest.

    A dataset that was asked for by a backfill is as old as its last change: it would otherwise go at once.
    """
    pruner = Pruner(ledger.database, Ages(), who=who, rng=rng)
    at = instant_sql(ledger.database, "before")
    gone = 0
    for aggregation in Aggregation:
        retention = settings.retention(aggregation)
        if retention is None:
            continue
        old = f"u.aggregation = :aggregation AND u.timestamp < {at} AND (NOT u.backfill OR u.changed_at < {at})"
        before = instant_text(now - retention)
        gone += pruner.prune_where(machine.name, Finished(old, {"aggregation": str(aggregation), "before": before}))
    if gone:
        ledger.database.write(
            lambda cursor: cursor.run(
                "DELETE FROM report_load WHERE NOT EXISTS"
                " (SELECT 1 FROM report_dataset_metadata u WHERE u.unit_id = report_load.unit_id)"
            )
        )
    return gone

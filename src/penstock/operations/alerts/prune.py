"""Alerts that have been over for long go, with what the watch remembers of them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from penstock.ledger.care.prune_rules import Finished
from penstock.model.clock import instant_text
from penstock.operations.alerts.machine import A, machine

if TYPE_CHECKING:
    from penstock.ledger.care.prune import Pruner
    from penstock.ledger.ledger import Ledger


def prune_resolved(ledger: Ledger, pruner: Pruner, before: datetime | None) -> int:
    """How many alerts went that were resolved before a moment; None: they stay for ever.

    One that fires again after that is born anew, and its count begins with one.
    """
    if before is None or not pruner.knows(machine.name):
        return 0
    at = ledger.database.sql.instant("before")
    given = {"before": instant_text(before)}
    gone = pruner.prune_where(machine.name, Finished(f"u.status = '{A.RESOLVED}' AND u.changed_at < {at}", given))
    memory = (
        f"DELETE FROM alert_memory WHERE subject <> '' AND seen_at < {at}"
        f" AND NOT EXISTS (SELECT 1 FROM {machine.table} a"
        " WHERE a.policy = alert_memory.policy AND a.subject = alert_memory.subject)"
    )
    ledger.database.write(lambda cursor: cursor.run(memory, **given))
    return gone

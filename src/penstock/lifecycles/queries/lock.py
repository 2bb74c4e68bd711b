"""The run lock: one query runs at a time, over all processes and machines. And what else keeps a query from running.

The lock is the one place behind the gate `queries/run`: a claim holds it, leased and fenced, and it falls with the
claim. The view `run_lock` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import structlog
from msgspec import Struct

from penstock.ledger.gates.status import gate_statuses
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.queries.machine import Query, S, query
from penstock.model.clock import instant

log = structlog.get_logger()
_SHUT = frozenset({"closed", "paused", "stopped"})


class RunLock(Struct, frozen=True):
    """Who holds the lock, and with which query."""

    held_by: str
    host: str
    pid: int
    query_key: str
    since: datetime | None

    def __str__(self) -> str:
        return f"worker {self.held_by} on {self.host} (process {self.pid}) runs {self.query_key}"


def holder(cursor: Cursor) -> RunLock | None:
    """Who holds the lock now."""
    rows = cursor.rows("SELECT held_by, host, pid, query_key, held_since FROM run_lock ORDER BY held_since LIMIT 1")
    for held_by, host, pid, key, since in rows:
        return RunLock(held_by, host, pid, key, instant(since))
    return None


def running(ledger: Ledger, but: str) -> list[Query]:
    """Queries that say that they run, but for one: whoever holds the lock knows that they do not."""
    sql = f"SELECT unit_id FROM {query.table} WHERE status = :running AND unit_id <> :but AND claimed_by IS NULL"
    rows = ledger.read(lambda cursor: cursor.rows(sql, running=str(S.RUNNING), but=but))
    return ledger.get_many(query, [row[0] for row in rows]) if rows else []


def closed_gate(ledger: Ledger, gates: Sequence[str]) -> tuple[str, datetime | None] | None:
    """Why one of these gates is closed, and until when; None: all are open, or nobody has come to them yet."""

    def read(cursor: Cursor) -> tuple[str, datetime | None] | None:
        for gate in gate_statuses(ledger.database, cursor, only=gates):
            if gate.state in _SHUT:
                by = f" by {gate.by}" if gate.state == "paused" and gate.by else ""
                return f"{gate.gate_id} is {gate.state}{by}: {gate.reason or 'no reason was given'}", gate.until
        return None

    return ledger.read(read)

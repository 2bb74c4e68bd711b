"""How many workers a server holds: each takes its share of the places, and the doctor counts them.

A worker learns its share with every renewal of its lease: the places of the server, less a tenth for people and less
what other databases have open, divided by the workers that are alive. So no setting changes when the fortieth starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from penstock.ledger.care.finding import Finding
from penstock.ledger.store.database import Cursor

_KEPT_FREE = 0.1


@dataclass(frozen=True, slots=True)
class Places:
    """What a server takes, what others have open, and the workers alive; `rank` says how many come before this one."""

    server: int
    others: int
    workers: int
    rank: int = 0

    @property
    def ours(self) -> int:
        """How many the workers may have together."""
        return max(0, int(self.server * (1 - _KEPT_FREE)) - self.others)

    def share(self) -> int:
        """How many one worker may have, the lease's included; never less than that one."""
        least, over = divmod(self.ours, max(1, self.workers))
        return max(1, least + (self.rank < over))


def places(cursor: Cursor, now_sql: str, worker: str = "", **now: str) -> Places:
    """Ask the server. `worker` is the one whose share is asked for."""
    ((server, others, workers, rank),) = cursor.rows(
        "SELECT current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int"
        " - COALESCE(current_setting('reserved_connections', true), '0')::int,"
        " (SELECT count(*) FROM pg_stat_activity a JOIN pg_database d ON d.oid = a.datid"
        " WHERE d.datname <> current_database() AND a.usesysid IS NOT NULL),"
        " count(*), count(*) FILTER (WHERE id < :worker)"
        f" FROM worker WHERE reaped_at IS NULL AND lease_until > {now_sql}",
        worker=worker,
        **now,
    )
    return Places(server, others, workers, rank)


def too_many(found: Places, connections: int) -> Iterator[Finding]:
    """What the running workers may open at most, compared with what the server takes."""
    advice = "raise max_connections, lower ledger.connections, or put pgbouncer in between"
    if found.workers > found.ours:
        text = (
            f"{found.workers} workers need a connection each for their leases, and {found.ours} of the server's"
            f" {found.server} are left for them; start fewer workers, {advice}"
        )
        yield Finding("connections", "postgresql", text)
    elif found.workers * connections > found.ours:
        several = f"{found.workers} workers may open {connections:,} connections each"
        each = several if found.workers > 1 else f"1 worker may open {connections:,} connections"
        text = (
            f"{each}, {found.workers * connections:,} together; {found.ours} of the server's {found.server} are left"
            f" for them, so they may have to wait for each other: {advice}"
        )
        yield Finding("connections", "postgresql", text, "warning")

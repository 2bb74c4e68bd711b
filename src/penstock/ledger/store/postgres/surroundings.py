"""What a ledger on a server stands on: the server's settings and places, and whoever holds it back."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.ledger.care.finding import Finding
from penstock.ledger.store.database import Cursor

_SNAPSHOT_SECONDS = 300
_OLDEST_POSTGRES = 140_000


def surroundings(cursor: Cursor) -> Iterator[Finding]:
    """What is wrong with the place, and what soon will be; without the connections, which the database counts."""
    yield from _settings(cursor)
    yield from _snapshots(cursor)


def _settings(cursor: Cursor) -> Iterator[Finding]:
    version = int(cursor.rows("SELECT current_setting('server_version_num')")[0][0])
    if version < _OLDEST_POSTGRES:
        yield Finding("settings", "postgresql", f"server version {version // 10_000} is too old; 14 or newer is needed")
    for name in ("fsync", "full_page_writes"):
        if cursor.rows("SELECT current_setting(:name)", name=name)[0][0] == "off":
            yield Finding("settings", "postgresql", f"{name} is off: a power cut can destroy the ledger; switch it on")
    if cursor.rows("SELECT current_setting('synchronous_commit')")[0][0] == "off":
        text = "synchronous_commit is off: commits that workers rely on can be lost in a crash; switch it on"
        yield Finding("settings", "postgresql", text)
    if cursor.rows("SELECT current_setting('autovacuum')")[0][0] == "off":
        yield Finding(
            "settings", "postgresql", "autovacuum is off: claims get slower by the day; switch it on", "warning"
        )


def _snapshots(cursor: Cursor) -> Iterator[Finding]:
    """Whoever keeps an old snapshot keeps dead rows from being removed, which makes claims slow."""
    rows = cursor.rows(
        "SELECT pid, COALESCE(application_name, ''), state, EXTRACT(EPOCH FROM clock_timestamp() - xact_start)::bigint"
        " FROM pg_stat_activity WHERE datname = current_database() AND backend_xmin IS NOT NULL"
        " AND xact_start < clock_timestamp() - make_interval(secs => :seconds) AND pid <> pg_backend_pid()"
        " ORDER BY xact_start LIMIT 5",
        seconds=float(_SNAPSHOT_SECONDS),
    )
    for pid, name, state, seconds in rows:
        text = (
            f"backend {pid} ({name or 'unnamed'}, {state}) holds a snapshot {seconds:,} s old: claims slow down; end it"
        )
        yield Finding("snapshots", "postgresql", text, "warning")
    rows = cursor.rows(
        "SELECT gid, EXTRACT(EPOCH FROM clock_timestamp() - prepared)::bigint FROM pg_prepared_xacts"
        " WHERE database = current_database() AND prepared < clock_timestamp() - make_interval(secs => :seconds)",
        seconds=float(_SNAPSHOT_SECONDS),
    )
    for gid, seconds in rows:
        yield Finding(
            "snapshots", "postgresql", f"the prepared transaction {gid} is {seconds:,} s old; end it", "warning"
        )

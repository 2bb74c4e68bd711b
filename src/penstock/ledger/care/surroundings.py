"""What a ledger stands on: the disk, the log beside the file, the server's settings, and whoever holds it back.

These checks are quick: workers make them too, every minute, and raise an alert before something fills up.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from penstock.ledger.care.finding import Finding
from penstock.ledger.store.database import Cursor, Database
from penstock.model.clock import SystemClock

_GIGABYTE = 1024**3
_DISK_ERROR, _DISK_WARNING = 0.05, 0.10
_DISK_LEAST = _GIGABYTE
_WAL_WARNING = 256 * 1024**2
_SNAPSHOT_SECONDS = 300
_OLDEST_POSTGRES = 140_000


def surroundings(database: Database, cursor: Cursor) -> Iterator[Finding]:
    """What is wrong with the place, and what soon will be."""
    if database.dialect == "sqlite":
        yield from _disk(database)
        yield from _sqlite(database, cursor)
    else:
        yield from _postgres(cursor)
        yield from _snapshots(cursor)
        yield from _connections(database, cursor)


def _disk(database: Any) -> Iterator[Finding]:
    usage = shutil.disk_usage(database.path.parent)
    share = usage.free / usage.total if usage.total else 1.0
    text = f"{usage.free / _GIGABYTE:,.1f} GB are left on the ledger's disk ({share:.0%}); make room"
    if share < _DISK_ERROR:
        yield Finding("disk", str(database.path.parent), text)
    elif share < _DISK_WARNING or usage.free < _DISK_LEAST:
        yield Finding("disk", str(database.path.parent), text, "warning")
    log = database.path.with_name(database.path.name + "-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > _WAL_WARNING:
        text = f"the log beside the ledger has {size / 1024**2:,.0f} MB; a program that reads for long holds it back"
        yield Finding("disk", log.name, text, "warning")


def _sqlite(database: Database, cursor: Cursor) -> Iterator[Finding]:
    from penstock.ledger.store.sqlite.database import safe_version

    version = str(cursor.rows("SELECT sqlite_version()")[0][0])
    if not safe_version(version):
        yield Finding("settings", "sqlite", f"SQLite {version} can corrupt a shared ledger; 3.51.3 or newer is needed")
    for name, wanted in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
        found = cursor.rows(f"PRAGMA {name}")[0][0]
        if found != wanted:
            yield Finding("settings", "sqlite", f"{name} is {found}, it must be {wanted}")
    if not SystemClock().has_boottime:
        text = "this system has no CLOCK_BOOTTIME: leases follow the wall clock, and must not be set back"
        yield Finding("settings", database.url, text, "warning")


def _postgres(cursor: Cursor) -> Iterator[Finding]:
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


def _connections(database: Any, cursor: Any) -> Iterator[Finding]:
    """Behind a pooler the server's places are not the workers' to count."""
    from penstock.ledger.store.postgres.share import places, too_many

    if not cursor.connection.pooled:
        yield from too_many(places(cursor, database.now_sql, **database.bind_now()), database.connections)


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

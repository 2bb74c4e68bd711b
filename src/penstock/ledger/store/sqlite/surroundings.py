"""What a ledger in a file stands on: the disk, the log beside the file, and SQLite's settings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from penstock.ledger.care.finding import Finding
from penstock.ledger.store.database import Cursor
from penstock.ledger.store.sqlite.database import safe_version
from penstock.model.clock import SystemClock

_GIGABYTE = 1024**3
_DISK_ERROR, _DISK_WARNING = 0.05, 0.10
_DISK_LEAST = _GIGABYTE
_WAL_WARNING = 256 * 1024**2


def surroundings(path: Path, cursor: Cursor) -> Iterator[Finding]:
    """What is wrong with the place, and what soon will be."""
    yield from _disk(path)
    yield from _settings(path, cursor)


def _disk(path: Path) -> Iterator[Finding]:
    usage = shutil.disk_usage(path.parent)
    share = usage.free / usage.total if usage.total else 1.0
    text = f"{usage.free / _GIGABYTE:,.1f} GB are left on the ledger's disk ({share:.0%}); make room"
    if share < _DISK_ERROR:
        yield Finding("disk", str(path.parent), text)
    elif share < _DISK_WARNING or usage.free < _DISK_LEAST:
        yield Finding("disk", str(path.parent), text, "warning")
    log = path.with_name(path.name + "-wal")
    size = log.stat().st_size if log.exists() else 0
    if size > _WAL_WARNING:
        text = (
            f"the log beside the ledger has grown to {size / 1024**2:,.0f} MB; a long read keeps it from being reused"
        )
        yield Finding("disk", log.name, text, "warning")


def _settings(path: Path, cursor: Cursor) -> Iterator[Finding]:
    version = str(cursor.rows("SELECT sqlite_version()")[0][0])
    if not safe_version(version):
        yield Finding("settings", "sqlite", f"SQLite {version} can corrupt a shared ledger; 3.51.3 or newer is needed")
    for name, wanted in (("journal_mode", "wal"), ("synchronous", 2), ("foreign_keys", 1)):
        found = cursor.rows(f"PRAGMA {name}")[0][0]
        if found != wanted:
            yield Finding("settings", "sqlite", f"{name} is {found}, it must be {wanted}")
    if not SystemClock().has_boottime:
        text = "this system has no CLOCK_BOOTTIME: leases follow the wall clock, which must not be set back"
        yield Finding("settings", f"sqlite:///{path}", text, "warning")

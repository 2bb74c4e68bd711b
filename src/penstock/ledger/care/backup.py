"""Backups: one consistent copy of a ledger in one file, taken while workers work.

The copy is written beside its place under another name, read through, flushed to the disk, and only then renamed: a
file of the wanted name is whole. SQLite is copied page by page from one snapshot; PostgreSQL by `pg_dump`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from penstock.ledger.care.doubt import mark_backup
from penstock.ledger.history import require_ledger
from penstock.ledger.store.database import Cursor, open_database
from penstock.ledger.store.postgres import client
from penstock.model.clock import Clock, Rng
from penstock.model.errors import LedgerBroken, LedgerError, UsageError

_PAGES = 2_000
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Backup:
    """A finished backup."""

    path: Path
    size: int


def backup(
    url: str,
    place: Path,
    *,
    clock: Clock,
    rng: Rng,
    force: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> Backup:
    """Copy the ledger to a file, or into a folder under a name with the moment in it.

    Raises UsageError where a file is already there and `force` is not given.
    """
    sqlite = url.startswith("sqlite:///")
    path = _target(place, clock.now(), "db" if sqlite else "dump")
    _refuse(path, force=force)
    if sqlite:
        _refuse_ledger(path, url)
    database = open_database(url, clock)
    try:
        database.read(lambda cursor: require_ledger(database, cursor))
        with _unfinished(path, rng) as partial:
            if sqlite:
                _copy_sqlite(Path(url.removeprefix("sqlite:///")).absolute(), partial, clock, progress)
            else:
                server, schema = database.read(_server)
                _dump_postgres(url, partial, server, schema, progress)
            _flush(partial)
            _refuse(path, force=force)  # it may have come meanwhile
            partial.replace(path)
            _flush(path.parent)
    finally:
        database.close()
    return Backup(path, path.stat().st_size)


def _target(place: Path, now: datetime, suffix: str) -> Path:
    if place.is_dir():
        return place.absolute() / f"penstock-{now:%Y%m%dT%H%M%SZ}.{suffix}"
    if not place.absolute().parent.is_dir():
        msg = f"the folder {place.absolute().parent} does not exist; create it or choose another place for the backup"
        raise UsageError(msg)
    return place.absolute()


def _refuse(path: Path, *, force: bool) -> None:
    if not os.path.lexists(path):
        return
    if not force:
        msg = f"{path} exists already; choose another name, or replace it with --force"
        raise UsageError(msg)
    if path.is_symlink() or not path.is_file():
        msg = f"{path} is not a regular file, and --force replaces nothing else; choose another name"
        raise UsageError(msg)


def _refuse_ledger(path: Path, url: str) -> None:
    """A copy in the place of the ledger would take away what its workers commit; its companions are part of it."""
    ledger = url.removeprefix("sqlite:///")
    names = [f"{ledger}{suffix}" for suffix in ("", "-wal", "-shm", "-journal", "-writer")]
    names += [f"{os.path.realpath(ledger)}{suffix}" for suffix in ("-wal", "-shm", "-journal")]
    if os.path.realpath(path) in map(os.path.realpath, names):
        msg = f"{path} is the ledger itself or belongs to it; choose another place for the backup"
        raise UsageError(msg)


@contextlib.contextmanager
def _unfinished(path: Path, rng: Rng) -> Iterator[Path]:
    """Another name beside it; whatever is left under that name in the end is removed."""
    partial = path.with_name(f".{path.name}.{rng.token()}.partial")
    try:
        yield partial
    finally:
        for left in (partial, *(Path(f"{partial}{suffix}") for suffix in ("-journal", "-wal", "-shm"))):
            left.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _copy_sqlite(source: Path, partial: Path, clock: Clock, progress: Progress) -> None:
    from pysqlite3 import dbapi2 as driver

    partial.touch(mode=0o600)
    try:
        with contextlib.closing(driver.connect(str(source), isolation_level=None)) as reader:
            # The snapshot of a transaction: without it every commit of a worker would start the copy anew.
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_master").fetchone()
            with contextlib.closing(driver.connect(str(partial), isolation_level=None)) as copy:
                reader.backup(copy, pages=_PAGES, progress=lambda _, left, total: progress(total - left, total))
                # One file: a ledger switches WAL on again when it is opened.
                copy.execute("PRAGMA journal_mode = DELETE")
                copy.execute(*mark_backup(clock))
                _verify(copy, partial)
    except driver.Error as error:
        msg = f"the backup of {source} failed: {error}"
        raise LedgerError(msg) from error


def _verify(copy: Any, partial: Path) -> None:
    problem = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem != "ok":
        msg = f"{partial.name}: {problem}; the ledger itself is damaged, restore an older backup"
        raise LedgerBroken(msg)


def _server(cursor: Cursor) -> tuple[int, str]:
    ((number, schema),) = cursor.rows("SELECT current_setting('server_version_num'), current_schema()")
    return int(number) // 10_000, str(schema)


def _dump_postgres(url: str, partial: Path, server: int, schema: str, progress: Progress) -> None:
    dump = client.program("pg_dump", "a backup")
    client.refuse_older(dump, server, "a backup")
    restore = client.program("pg_restore", "the check of a backup")
    client.refuse_older(restore, server, "the check of a backup")
    address, environment = client.address(url)
    command = [dump, "--format=custom", "--no-password", "--verbose", f"--file={partial}", f"--dbname={address}"]
    if schema != "public":
        command.append(f"--schema={schema}")
    partial.touch(mode=0o600)
    lines: list[str] = []
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - found on the PATH
        try:
            assert process.stderr is not None  # noqa: S101 - asked for
            for line in process.stderr:
                lines = [*lines[-20:], line.strip()]
                progress(len(lines), 0)
        except BaseException:
            process.terminate()
            raise
    if process.returncode != 0:
        said = next((line for line in reversed(lines) if "error" in line.lower()), lines[-1] if lines else "no reason")
        msg = f"pg_dump failed: {said}"
        raise LedgerError(msg)
    # Reading it through is what a restore would do first.
    checked = subprocess.run(  # noqa: S603 - found on the PATH
        [restore, "--file=/dev/null", str(partial)], capture_output=True, text=True, check=False
    )
    if checked.returncode != 0:
        msg = f"the backup cannot be read back: {checked.stderr.strip().splitlines()[-1]}"
        raise LedgerError(msg)

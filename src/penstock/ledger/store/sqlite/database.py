"""SQLite as the ledger: one file, one writer at a time, several processes.

A writer takes `flock` on a file beside the database before BEGIN IMMEDIATE: waiting in the kernel's queue is fair
and costs nothing, where SQLite's own busy loop starves some processes. The driver brings its own SQLite, because the
interpreter's may carry the WAL-reset corruption bug; a vulnerable version and a network filesystem are refused.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from pysqlite3 import dbapi2 as driver

from penstock.ledger.care.finding import Finding
from penstock.ledger.store.bell import Bell, Listener
from penstock.ledger.store.database import Dialect, Row
from penstock.ledger.store.presence import Presence
from penstock.ledger.store.sqlite.sql import SqliteSql
from penstock.ledger.store.sqlite.writer_lock import WriterLock
from penstock.model.clock import Clock, instant_text
from penstock.model.errors import (
    LedgerBroken,
    LedgerBusy,
    LedgerError,
    LedgerMismatch,
    LedgerRefused,
    LedgerUnavailable,
    UsageError,
)

T = TypeVar("T")
_decode = msgspec.json.Decoder().decode

_NETWORK = ("nfs", "cifs", "smb", "9p", "afs", "ceph", "davfs", "gluster", "lustre", "rclone", "s3fs", "sshfs")
_PRAGMAS = {
    "busy_timeout": 30_000,
    "journal_mode": "wal",
    "synchronous": "full",
    "foreign_keys": 1,
    "trusted_schema": 0,
    "mmap_size": 0,
    "journal_size_limit": 67_108_864,
    "wal_autocheckpoint": 4_000,
    "cache_size": -12_288,
}
_STATEMENTS = 1_000
"""So many statements stay compiled. A worker goes through some hundreds in turn, each with the triggers of its table.
Of the driver's own 128 none is still there when it comes again, and to compile one takes longer than to run it."""
_LIMIT = re.compile(r"\bLIMIT (:\w+)")
_FILLED_AT_ONCE = 500
_FILLING_CACHE = -8_192
_STEPS = 20_000  # some milliseconds of SQLite's own work
_CLOSE_SECONDS = 1.0
_THREAD_SECONDS = 45.0  # longer than a thread waits for other processes, which then says whom it waits for
_SECOND_LOOKS = (0.1, 0.4)
_BROKEN = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}
_AWAY = {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY"}


def safe_version(version: str) -> bool:
    """Whether a SQLite version is free of the WAL-reset bug and has `jsonb_each`: from 3.51.3 on.

    The bug was mended in 3.50.7 and 3.44.6 too, which lack the function.
    """
    return tuple(int(part) for part in version.split(".")) >= (3, 51, 3)


def network_filesystem(path: Path, mounts: str) -> str | None:
    """The type of the network filesystem that holds `path`, or None; `mounts` has the form of /proc/mounts."""
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:  # noqa: PLR2004 - device, mount point, type
            continue
        point = fields[1].replace("\\040", " ")
        inside = path == Path(point) or Path(point) in path.parents
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind if kind.removeprefix("fuse.").startswith(_NETWORK) else None


_readable = partial(str, encoding="utf-8", errors="replace")
"""Text of a column, whatever bytes stand in it. The driver calls it for each; a function in Python is slower."""


@lru_cache(maxsize=_STATEMENTS)
def steady(sql: str) -> str:
    """The statement such that SQLite compiles it once.

    Its planner looks at the value of a limit that is nothing but a parameter, and compiles the statement anew each time
    that one is bound. For a claim's statement that took 0.2 ms, to run it takes 0.01 ms. It does not look into a sum.
    """
    return _LIMIT.sub(r"LIMIT (\1 + 0)", sql)


class SqliteCursor:
    """One transaction on the driver's own cursor."""

    def __init__(self, connection: Any) -> None:
        self.connection: Any = connection
        self._cursor = connection.cursor()

    def rows(self, sql: str, **parameters: Any) -> list[Row]:
        return self._cursor.execute(steady(sql), parameters).fetchall()  # type: ignore[no-any-return]

    def gather(self, sql: str, **parameters: Any) -> list[Row]:
        # The driver lets go of the interpreter's lock for every row and then waits for it, behind a busy event loop
        # each time for as long as a turn. As one JSON text the rows come at once.
        columns, source = steady(sql).removeprefix("SELECT ").split(" FROM ", 1)
        try:
            whole = self._cursor.execute(f"SELECT json_group_array(json_array({columns})) FROM {source}", parameters)
            return _decode(whole.fetchone()[0])  # type: ignore[no-any-return]
        except (driver.Error, msgspec.DecodeError):
            return self.rows(sql, **parameters)  # a value typed in by hand that JSON cannot carry

    def run(self, sql: str, **parameters: Any) -> int:
        return self._cursor.execute(steady(sql), parameters).rowcount  # type: ignore[no-any-return]

    def fill(self, table: str, columns: Sequence[str], lines: bytes, **alike: str) -> None:
        # Not a statement for each row: the driver would let go of the interpreter's lock as often (see `gather`).
        # Nor one for all: it would need much memory. Sorted, a row finds its page where the one before has left it.
        names = ", ".join([*alike, *columns])
        picks = ", ".join([*(f":{name}" for name in alike), *(f"value ->> {n}" for n in range(len(columns)))])
        insert = f"INSERT INTO {table} ({names}) SELECT {picks} FROM jsonb_each(:rows)"
        rows = sorted(lines[:-1].split(b"\n"))
        # Each page is met once: what is kept of them is no use to the rows that follow, and their number has no end.
        self.run(f"PRAGMA cache_size = {_FILLING_CACHE}")
        try:
            for start in range(0, len(rows), _FILLED_AT_ONCE):
                self.run(insert, rows=f"[{b','.join(rows[start : start + _FILLED_AT_ONCE]).decode()}]", **alike)
        finally:
            self.run(f"PRAGMA cache_size = {_PRAGMAS['cache_size']}")


class SqliteDatabase:
    """A ledger in one file."""

    dialect: Dialect = "sqlite"
    sql = SqliteSql()
    has_clock = False
    now_sql = ":now"
    lease_left_sql = "CASE WHEN boot_id = :boot_id THEN (lease_until - :uptime) / 1000.0 ELSE 0 END"
    boot_sql = ":boot_id"
    same_boot_sql = "boot_id IS :boot_id"

    def __init__(self, path: str, clock: Clock) -> None:
        if not safe_version(driver.sqlite_version):
            msg = f"SQLite {driver.sqlite_version} can corrupt a shared ledger; 3.51.3 or newer is needed"
            raise UsageError(msg)
        if not path or path == ":memory:":
            msg = "a ledger is a file; write sqlite:///path/to/penstock.db"
            raise UsageError(msg)
        self.path = Path(path).absolute()
        self.url = f"sqlite:///{self.path}"
        self.presence = Presence()
        self.bell = Bell()
        self._clock = clock
        self._refuse_bad_place()
        self._writer_lock = threading.Lock()
        self._writer: Any = None
        self._idle_readers: list[Any] = []
        self._opened: tuple[int, int] | None = None
        self._queue = WriterLock(Path(f"{self.path}-writer"), slow=lambda error: self.presence.failed("write", error))

    def lease_value_sql(self, milliseconds: int) -> str:
        return f":uptime + {milliseconds}"

    def lease_over_sql(self, grace_ms: int) -> str:  # noqa: ARG002 - there is no server that might have been away
        return "(lease_until < :uptime OR boot_id IS NOT :boot_id)"

    def bind_now(self) -> Mapping[str, Any]:
        return {
            "now": instant_text(self._clock.now()),
            "uptime": self._clock.uptime(),
            "boot_id": self._clock.boot_id(),
        }

    def write(self, work: Callable[[SqliteCursor], T]) -> T:
        return self.presence.told("write", lambda: self._believed(lambda: self._write(work)))

    def lease(self, work: Callable[[SqliteCursor], T], worker: str, lease_ms: int) -> T:  # noqa: ARG002 - one writer
        return self.write(work)

    def _write(self, work: Callable[[SqliteCursor], T]) -> T:
        with self._writing() as connection:
            return self._transaction(connection, "BEGIN IMMEDIATE", work)

    def _believed(self, attempt: Callable[[], T]) -> T:
        """A disk may misread once. A file is called broken when it is so again, on fresh connections."""
        for pause in _SECOND_LOOKS:
            try:
                return attempt()
            except LedgerBroken:
                if self._lost_its_name():
                    raise
                self._reopen()
                time.sleep(pause)
        return attempt()

    def _reopen(self) -> None:
        with self._writer_lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        while self._idle_readers:
            self._idle_readers.pop().close()

    def alter(self, work: Callable[[SqliteCursor], T]) -> T:
        with self._writing() as connection:
            connection.execute("PRAGMA foreign_keys = OFF")  # has no effect once a transaction has begun
            try:
                return self._transaction(connection, "BEGIN IMMEDIATE", work)
            finally:
                connection.execute("PRAGMA foreign_keys = ON")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:
        """The writer's connection, while nobody else writes."""
        if not self._writer_lock.acquire(timeout=_THREAD_SECONDS):
            msg = f"other threads of this process have been writing, or waiting to, for {_THREAD_SECONDS:g} s"
            raise LedgerUnavailable(f"{self.path}: {msg}")
        with contextlib.ExitStack() as stack:
            stack.callback(self._writer_lock.release)
            if self._writer is None:
                self._writer = self._connect(create=True)
                self._opened = self._place()
            self._queue.acquire()
            try:
                self._refuse_another_file()
                yield self._writer
            finally:
                self._queue.release()

    def read(self, work: Callable[[SqliteCursor], T], *, patient: bool = False, within: float | None = None) -> T:  # noqa: ARG002 - nobody waits for a reader
        bounded = work if within is None else self._bounded(work, within)
        return self.presence.told("read", lambda: self._believed(lambda: self._read(bounded)))

    def _bounded(self, work: Callable[[SqliteCursor], T], seconds: float) -> Callable[[SqliteCursor], T]:
        """The work, with an end: SQLite asks every some thousand steps of its own whether to go on."""
        end = self._clock.elapsed() + seconds

        def over() -> bool:
            return self._clock.elapsed() > end

        def bounded(cursor: SqliteCursor) -> T:
            cursor.connection.set_progress_handler(over, _STEPS)
            try:
                return work(cursor)
            except driver.OperationalError as error:
                if over():
                    raise LedgerBusy(f"{self.path}: it was not read within {seconds:g} s") from error
                raise
            finally:
                cursor.connection.set_progress_handler(None, 0)

        return bounded

    def _read(self, work: Callable[[SqliteCursor], T]) -> T:
        # A connection for every read under way: a step's long one must not keep a worker from asking what is due.
        try:
            reader = self._idle_readers.pop()
        except IndexError:
            reader = self._connect(create=False)
            reader.execute("PRAGMA query_only = ON")
            # There are several, and what they read is mostly read once; the system keeps the file in memory anyway.
            reader.execute("PRAGMA cache_size = -2048")
        try:
            result = self._transaction(reader, "BEGIN", work)
        except LedgerBroken:
            reader.close()
            raise
        except BaseException:
            self._idle_readers.append(reader)
            raise
        self._idle_readers.append(reader)
        return result

    def surroundings(self, cursor: Any) -> Iterator[Finding]:
        from penstock.ledger.store.sqlite.surroundings import surroundings

        return surroundings(self.path, cursor)

    def rouse(self) -> None:
        self.bell.ring()

    def listen(self) -> Listener | None:
        from penstock.ledger.store.sqlite.listener import SqliteListener

        self.write(lambda cursor: cursor.rows("SELECT 1"))  # so that the writer's connection and the log are there
        return SqliteListener(self.path.with_name(self.path.name + "-wal"), self._data_version, self._clock)

    def _data_version(self) -> int | None:
        """Another than before when a connection that is not the writer's has committed; None while it is in use."""
        if not self._writer_lock.acquire(blocking=False):
            return None
        try:
            rows = self._writer.execute("PRAGMA data_version").fetchall() if self._writer is not None else []
        except driver.Error as error:
            raise self._explain(error) from error
        finally:
            self._writer_lock.release()
        return int(rows[0][0]) if rows else None

    def reclaim(self, table: str, rows: int) -> bool:  # noqa: ARG002 - free pages are used again
        return True

    def close(self) -> None:
        # A thread that still reads, or waits behind somebody's lock, keeps its connection; the process's end closes it.
        if self._writer_lock.acquire(timeout=_CLOSE_SECONDS):
            with contextlib.ExitStack() as stack:
                stack.callback(self._writer_lock.release)
                if self._writer is not None:
                    self._writer.close()
                self._queue.close()
                self._writer = None
        while self._idle_readers:
            self._idle_readers.pop().close()

    def _transaction(self, connection: Any, begin: str, work: Callable[[SqliteCursor], T]) -> T:
        try:
            connection.execute(begin)
            try:
                result = work(SqliteCursor(connection))
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except driver.Error as error:
            raise self._explain(error) from error
        return result

    def _connect(self, *, create: bool) -> Any:
        if not self.path.parent.is_dir():
            msg = f"the folder {self.path.parent} does not exist; create it or choose another ledger"
            raise UsageError(msg)
        if not create and not self.path.exists():
            msg = f"{self.url} is not a Penstock ledger yet; run 'penstock db upgrade'"
            raise LedgerMismatch(msg)
        if create:
            self._refuse_unwritable()
            self._make()
        connection = None
        try:
            connection = driver.connect(
                str(self.path), isolation_level=None, check_same_thread=False, cached_statements=_STATEMENTS
            )
            # Text that is no UTF-8 can be typed in; it must not hide the rows beside it.
            connection.text_factory = _readable
            self._prepare(connection)
        except BaseException as error:
            if connection is not None:
                connection.close()
            if not isinstance(error, driver.Error):
                raise
            explained = self._explain(error)
            if isinstance(explained, LedgerUnavailable):
                self._refuse_unwritable()
            raise explained from error
        return connection

    def _place(self) -> tuple[int, int] | None:
        """Which file has the ledger's name now."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _lost_its_name(self) -> bool:
        return self._opened is not None and self._place() != self._opened

    def _refuse_another_file(self) -> None:
        """A file that lost its name is open still, and what is written to it would be lost with this process."""
        if self._lost_its_name():
            msg = (
                f"{self.path} was renamed, removed or replaced while it was in use; stop every process that works on"
                " it, put the ledger back, and start them again"
            )
            raise LedgerBroken(msg)

    def _make(self) -> None:
        """Make the file for its owner alone; SQLite's own would be for everybody, and its companions take after it."""
        if self.path.exists():
            return
        # Closing a file drops whatever locks this process has on it, so it gets its name when it is closed already.
        path = Path(os.path.realpath(self.path))  # a link may point to where nothing is yet
        if not path.parent.is_dir():
            return
        number, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(number)
        try:
            # It may be there by now; and where nothing can be linked, there are no owners either.
            with contextlib.suppress(OSError):
                path.hardlink_to(name)
        finally:
            Path(name).unlink()

    def _prepare(self, connection: Any) -> None:
        # Asked before WAL is switched on, which would already change a file that is not ours.
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables and "penstock_meta" not in tables:
            msg = f"{self.path} holds other tables and is not a Penstock ledger; choose another file"
            raise LedgerMismatch(msg)
        for name, value in _PRAGMAS.items():
            found = connection.execute(f"PRAGMA {name} = {value}").fetchone()
            if name == "journal_mode" and (found is None or found[0] != "wal"):
                msg = f"{self.path}: this filesystem does not allow WAL (journal mode is {found and found[0]})"
                raise LedgerUnavailable(msg)

    def _refuse_unwritable(self) -> None:
        """Waiting would not help where this user may not write; WAL needs the folder even to read."""
        places = (self.path.parent, self.path) if self.path.exists() else (self.path.parent,)
        if not all(os.access(place, os.W_OK) for place in places):
            msg = f"{self.path} cannot be written; make the file, its folder and their disk writable for this user"
            raise UsageError(msg)

    def _refuse_bad_place(self) -> None:
        mounts = Path("/proc/mounts")
        kind = network_filesystem(Path(os.path.realpath(self.path)), mounts.read_text()) if mounts.exists() else None
        if kind is not None:
            msg = f"{self.path} is on a network filesystem ({kind}), where SQLite loses data; use PostgreSQL"
            raise UsageError(msg)

    def _explain(self, error: Exception) -> LedgerError:
        name = getattr(error, "sqlite_errorname", "") or ""
        family = next((known for known in _BROKEN | _AWAY if name.startswith(known)), "")
        if family in _BROKEN or "malformed" in str(error) or "not a database" in str(error):
            return LedgerBroken(f"{self.path}: {error}; restore it from a backup; Penstock changes nothing in it")
        if isinstance(error, driver.IntegrityError):
            return LedgerRefused(str(error))
        if family:
            return LedgerUnavailable(f"{self.path}: {error}")
        return LedgerError(f"{self.path}: {error}")

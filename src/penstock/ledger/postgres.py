"""PostgreSQL as the ledger: any number of machines, READ COMMITTED, one short transaction at a time."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg
import sqlalchemy as sa
from psycopg import errors as pg
from psycopg.types.json import set_json_loads
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from penstock.clock import Clock, SystemClock, instant_text
from penstock.errors import (
    CommitUnknown,
    LedgerBusy,
    LedgerError,
    LedgerMismatch,
    LedgerRefused,
    LedgerUnavailable,
    UsageError,
)
from penstock.ledger.columns import document
from penstock.ledger.database import Dialect, Row
from penstock.setting import secret_parameters

T = TypeVar("T")

OLDEST = 14
_TRIES = 5
_ALTER_LOCK = 8025314
_ALTER_MS = 600_000
_ALTER_TABLE_MS = 10_000
IDLE_LIMIT_MS = 10_000
# The kernel's statements reach every row through an index from a small batch. The planner, knowing nothing of
# the batch's size, would rather scan the whole table once: these settings tell it otherwise.
_WRITER = {
    "statement_timeout": 30_000,
    "lock_timeout": 2_000,
    "idle_in_transaction_session_timeout": IDLE_LIMIT_MS,
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "TimeZone": "UTC",
}
_READER = {
    "statement_timeout": 15_000,
    "lock_timeout": 5_000,
    "idle_in_transaction_session_timeout": 15_000,
    "default_transaction_read_only": "on",
    # All statements of one read see the same moment.
    "default_transaction_isolation": r"repeatable\ read",
    "jit": "off",
    "TimeZone": "UTC",
}
# The server ends a transaction that stood still, as after SIGSTOP, and one on a server that became a standby.
_CUT_OFF = (pg.IdleInTransactionSessionTimeout, pg.ReadOnlySqlTransaction)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


@functools.lru_cache(maxsize=512)
def native(sql: str) -> str:
    """`:name` parameters in psycopg's form."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


def too_old(server_version_num: int) -> str | None:
    """The version of a server that is too old to keep a ledger, as people write it; None for any other."""
    if server_version_num >= OLDEST * 10_000:
        return None
    if server_version_num >= 100_000:  # noqa: PLR2004 - from 10 on a version has two parts
        return f"{server_version_num // 10_000}.{server_version_num % 10_000}"
    return f"{server_version_num // 10_000}.{server_version_num // 100 % 100}.{server_version_num % 100}"


class PostgresCursor:
    """One transaction on psycopg's own cursor, results in binary."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection: Any = connection
        self._cursor = connection.cursor(binary=True)

    def rows(self, sql: str, **parameters: Any) -> list[Row]:
        self._execute(sql, parameters)
        return self._cursor.fetchall() if self._cursor.description else []

    gather = rows

    def run(self, sql: str, **parameters: Any) -> int:
        self._execute(sql, parameters)
        return self._cursor.rowcount

    def _execute(self, sql: str, parameters: Mapping[str, Any]) -> None:
        # Without parameters psycopg sends the text as it is, so a '%' must not be doubled.
        self._cursor.execute(native(sql) if parameters else sql, parameters or None)


class PostgresDatabase:
    """A ledger in a PostgreSQL database."""

    dialect: Dialect = "postgresql"

    def __init__(self, url: str, clock: Clock) -> None:
        try:
            address = sa.make_url(url).set(drivername="postgresql+psycopg")
        except (sa.exc.ArgumentError, ValueError):  # ValueError: a port that is no number
            msg = f"{url.rsplit('@', maxsplit=1)[-1]!r} is not a PostgreSQL address; write postgresql://user@host/name"
            raise UsageError(msg) from None
        if named := secret_parameters(url):
            msg = f"a ledger's address is shown and logged; take {' and '.join(named)} out of its query"
            raise UsageError(msg)
        self.url = str(address.set(drivername="postgresql").render_as_string(hide_password=True))
        self._clock = clock
        self._virtual = not isinstance(clock, SystemClock)
        self._write_engine = _engine(address, _WRITER)
        self._read_engine = _engine(address, _READER)

    @property
    def now_sql(self) -> str:
        if self._virtual:
            return "CAST(:now AS timestamptz)"
        # As a sub-select it is computed once and can bound an index scan; bare, it would be a filter.
        return "(SELECT date_trunc('milliseconds', clock_timestamp()))"

    @property
    def lease_now_sql(self) -> str:
        return self.now_sql

    def lease_value_sql(self, milliseconds: int) -> str:
        return f"{self.now_sql} + interval '{milliseconds} milliseconds'"

    def bind_now(self) -> Mapping[str, Any]:
        return {"now": instant_text(self._clock.now())} if self._virtual else {}

    def write(self, work: Callable[[PostgresCursor], T]) -> T:
        return self._retried(self._write_engine, work)

    def alter(self, work: Callable[[PostgresCursor], T]) -> T:
        def alone(cursor: PostgresCursor) -> T:
            cursor.run("SET LOCAL statement_timeout = 0")
            cursor.run("SET LOCAL idle_in_transaction_session_timeout = 0")
            # Whoever is before us may take long; a worker's lock on a table is short, and while we wait for it the
            # others wait behind us.
            cursor.run(f"SET LOCAL lock_timeout = {_ALTER_MS}")
            cursor.run(f"SELECT pg_advisory_xact_lock({_ALTER_LOCK})")
            cursor.run(f"SET LOCAL lock_timeout = {_ALTER_TABLE_MS}")
            return work(cursor)

        return self.write(alone)

    def read(self, work: Callable[[PostgresCursor], T]) -> T:
        return self._retried(self._read_engine, work)

    def close(self) -> None:
        self._write_engine.dispose()
        self._read_engine.dispose()

    def _retried(self, engine: sa.Engine, work: Callable[[PostgresCursor], T]) -> T:
        for attempt in range(_TRIES):
            try:
                return self._transaction(engine, work)
            except (pg.SerializationFailure, pg.DeadlockDetected) as error:  # a reader's too, with an upgrade
                if attempt == _TRIES - 1:
                    raise LedgerUnavailable(f"{self.url}: {error}") from error
        raise AssertionError

    def _transaction(self, engine: sa.Engine, work: Callable[[PostgresCursor], T]) -> T:
        try:
            pooled = engine.raw_connection()
        except (DBAPIError, psycopg.Error, PoolTimeout) as error:
            raise LedgerUnavailable(f"{self.url}: {_first_line(error)}") from error
        connection: Any = pooled.driver_connection
        committing = False
        try:
            result = work(PostgresCursor(connection))
            committing = True
            connection.commit()
        except BaseException as error:
            self._give_back(pooled, connection)
            if isinstance(error, (pg.SerializationFailure, pg.DeadlockDetected)):
                raise
            if isinstance(error, psycopg.Error):
                raise self._explain(error, committing=committing) from error
            raise
        pooled.close()
        return result

    def _give_back(self, pooled: Any, connection: Any) -> None:
        try:
            connection.rollback()
        except psycopg.Error:
            pooled.invalidate()
        else:
            pooled.close()

    def _explain(self, error: psycopg.Error, *, committing: bool) -> LedgerError:
        text = _first_line(error)
        if isinstance(error, (psycopg.IntegrityError, psycopg.DataError)):
            return LedgerRefused(text)
        if isinstance(error, pg.InsufficientPrivilege) or (error.sqlstate or "").startswith("54"):
            return LedgerRefused(text)  # class 54: a row or a key larger than PostgreSQL can keep
        if isinstance(error, (pg.LockNotAvailable, pg.QueryCanceled)):
            return LedgerBusy(f"{self.url}: {text}")
        away = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError, *_CUT_OFF))
        if away and committing:
            return CommitUnknown(f"{self.url}: the connection broke during COMMIT: {text}")
        if away:
            return LedgerUnavailable(f"{self.url}: {text}")
        return LedgerError(f"{self.url}: {text}")


def _engine(address: sa.URL, settings: Mapping[str, Any]) -> sa.Engine:
    # Options of the address (a search_path, say) stand beside ours.
    given = address.query.get("options", "")
    ours = " ".join(f"-c {name}={value}" for name, value in settings.items())
    options = f"{given if isinstance(given, str) else ' '.join(given)} {ours}".strip()
    address = address.difference_update_query(["options"])
    engine = sa.create_engine(
        address,
        pool_pre_ping=True,
        pool_size=4,
        max_overflow=4,
        pool_timeout=10,
        connect_args={
            "options": options,
            "application_name": "penstock",
            "connect_timeout": 10,
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 20_000,
        },
    )

    # The kernel speaks to psycopg directly: SQLAlchemy keeps the connections, nothing more.
    @event.listens_for(engine, "connect")
    def _fresh(connection: Any, _record: Any) -> None:
        found = too_old(connection.info.server_version)
        if found is not None:
            connection.close()
            shown = address.set(drivername="postgresql").render_as_string(hide_password=True)
            raise LedgerMismatch(f"{shown}: PostgreSQL {found} cannot keep a ledger; use {OLDEST} or newer")
        connection.prepare_threshold = 2
        set_json_loads(document, connection)

    return engine


def _first_line(error: BaseException) -> str:
    text = str(getattr(error, "orig", error)).strip()
    return text.splitlines()[0] if text else type(error).__name__

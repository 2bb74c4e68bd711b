"""PostgreSQL as the ledger: any number of machines, READ COMMITTED, one short transaction at a time."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors as pg

from penstock.ledger.care.finding import Finding
from penstock.ledger.store.bell import Bell, Listener
from penstock.ledger.store.database import CONNECTIONS, Dialect, Row
from penstock.ledger.store.postgres.address import Address
from penstock.ledger.store.postgres.as_csv import as_csv
from penstock.ledger.store.postgres.connection import PATIENT_SECONDS, Connection, answers, connect
from penstock.ledger.store.postgres.listener import NOTIFY, PostgresListener, is_crowded
from penstock.ledger.store.postgres.pool import Pool, is_full
from penstock.ledger.store.postgres.share import Places, places, too_many
from penstock.ledger.store.postgres.sql import PostgresSql
from penstock.ledger.store.presence import Presence
from penstock.model.clock import Clock, Rng, SystemClock, instant_text
from penstock.model.errors import CommitUnknown, LedgerBusy, LedgerError, LedgerRefused, LedgerUnavailable

T = TypeVar("T")

_TRIES = 5
_MANY = 0.05  # of a table's rows: a vacuum goes through all of its indexes
_ALTER_LOCK = 8025314
_ALTER_MS = 600_000
_ALTER_TABLE_MS = 10_000
# The server ends a transaction that stood still, as after SIGSTOP, and one on a server that became a standby.
_CUT_OFF = (pg.IdleInTransactionSessionTimeout, pg.ReadOnlySqlTransaction)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)\b")


@functools.lru_cache(maxsize=512)
def native(sql: str) -> str:
    """`:name` parameters in psycopg's form."""
    return _PARAMETER.sub(r"%(\1)s", sql.replace("%", "%%"))


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

    def fill(self, table: str, columns: Sequence[str], lines: bytes, **alike: str) -> None:
        # COPY takes the lines nearly as they are, and spares both sides the work of a statement's parameters.
        into = f"COPY {table} ({', '.join([*alike, *columns])}) FROM STDIN (FORMAT csv, NULL 'null', ESCAPE '\\')"
        with self._cursor.copy(into) as copy:
            copy.write(as_csv(lines, alike.values()))

    def _execute(self, sql: str, parameters: Mapping[str, Any]) -> None:
        # Without parameters psycopg sends the text as it is, so a '%' must not be doubled.
        self._cursor.execute(native(sql) if parameters else sql, parameters or None)


class PostgresDatabase:
    """A ledger in a PostgreSQL database, over at most `connections` connections of this process."""

    dialect: Dialect = "postgresql"
    sql = PostgresSql()
    has_clock = True
    boot_sql = "NULL"
    same_boot_sql = "true"

    def __init__(self, url: str, clock: Clock, *, connections: int = CONNECTIONS) -> None:
        address = Address.parse(url)
        self.url = address.shown
        self.connections = connections
        self.presence = Presence()
        self.bell = Bell()
        self._sender = Rng().token()
        self._parameters = address.parameters()
        self._clock = clock
        self._virtual = not isinstance(clock, SystemClock)
        self._pool = Pool(functools.partial(connect, self._parameters, self.url), connections, clock)
        self._admitted = False

    @property
    def now_sql(self) -> str:
        if self._virtual:
            return "CAST(:now AS timestamptz)"
        # As a sub-select it is computed once and can bound an index scan; bare, it would be a filter.
        return "(SELECT date_trunc('milliseconds', clock_timestamp()))"

    @property
    def lease_left_sql(self) -> str:
        return f"EXTRACT(EPOCH FROM lease_until - {self.now_sql})"

    def lease_over_sql(self, grace_ms: int) -> str:
        over = f"lease_until < {self.now_sql}"
        if not grace_ms or self._virtual:  # on a clock of its own the server's start says nothing
            return over
        return f"{over} AND clock_timestamp() > pg_postmaster_start_time() + interval '{grace_ms} milliseconds'"

    def lease_value_sql(self, milliseconds: int) -> str:
        return f"{self.now_sql} + interval '{milliseconds} milliseconds'"

    def bind_now(self) -> Mapping[str, Any]:
        return {"now": instant_text(self._clock.now())} if self._virtual else {}

    def write(self, work: Callable[[PostgresCursor], T]) -> T:
        return self.presence.told("write", functools.partial(self._retried, work, reading=False))

    def alter(self, work: Callable[[PostgresCursor], T]) -> T:
        def alone(cursor: PostgresCursor) -> T:
            cursor.connection.take_long(self._answers)
            # Whoever is before us may take long; a worker's lock on a table is short, and while we wait for it the
            # others wait behind us.
            cursor.run(f"SET LOCAL lock_timeout = {_ALTER_MS}")
            cursor.run(f"SELECT pg_advisory_xact_lock({_ALTER_LOCK})")
            cursor.run(f"SET LOCAL lock_timeout = {_ALTER_TABLE_MS}")
            return work(cursor)

        return self.write(alone)

    def read(self, work: Callable[[PostgresCursor], T], *, patient: bool = False, within: float | None = None) -> T:
        def paced(cursor: PostgresCursor) -> T:
            if within is not None:
                cursor.connection.hurry(within)
            elif patient:
                cursor.connection.take_long(self._answers)
            return work(cursor)

        return self.presence.told("read", functools.partial(self._retried, paced, reading=True))

    def lease(self, work: Callable[[PostgresCursor], T], worker: str, lease_ms: int) -> T:
        # Within a lease of 30 s, renewed every 10, there is time for a second and a third try.
        seconds = min(6.0, max(2.0, lease_ms / 5_000))

        def leased(cursor: PostgresCursor) -> tuple[T, Places | None]:
            cursor.connection.hurry(seconds)
            result = work(cursor)
            if cursor.connection.pooled:
                return result, None
            found = places(cursor, self.now_sql, worker, **self.bind_now())
            if not self._admitted and found.workers > found.ours:
                msg = (
                    f"{self.url}: {found.workers - 1} workers use all {found.ours} connections left for them, of the"
                    f" server's {found.server}; stop a worker, or raise max_connections"
                )
                raise LedgerUnavailable(msg)
            return result, found

        result, found = self.presence.told("write", functools.partial(self._leased, leased, seconds))
        self._admitted = True
        self._pool.size = self.connections if found is None else min(self.connections, found.share())
        return result

    def surroundings(self, cursor: Any) -> Iterator[Finding]:
        from penstock.ledger.store.postgres.surroundings import surroundings

        yield from surroundings(cursor)
        # Behind a pooler the server's places are not the workers' to count.
        if not cursor.connection.pooled:
            yield from too_many(places(cursor, self.now_sql, **self.bind_now()), self.connections)

    def rouse(self) -> None:
        self.bell.ring()
        with contextlib.suppress(LedgerError):
            self.write(lambda cursor: cursor.run(NOTIFY, sender=self._sender))

    def listen(self) -> Listener | None:
        try:
            connection = self._pool.listen()
            if connection is None:
                return None
            if connection.pooled or is_crowded(connection):  # a session would be lent to others, or be one too many
                self._pool.drop_listening()
                return None
            return PostgresListener(connection, self._sender, self._pool.may_listen, self._pool.drop_listening)
        except psycopg.Error as error:
            self._pool.drop_listening()
            raise self._unreachable(error) from error

    def reclaim(self, table: str, rows: int) -> bool:
        # On a connection of its own: in no transaction, and without a writer's limit of time. Who does not own the
        # table is told so by a notice, and somebody else's vacuum is not waited for.
        try:
            with Connection.connect(**self._parameters, autocommit=True) as connection:
                connection.limit, connection.answers = PATIENT_SECONDS, self._answers
                sql = "SELECT reltuples FROM pg_class WHERE oid = to_regclass(%s)"
                ((there,),) = connection.execute(sql, (table,)).fetchall()
                if rows < there * _MANY:
                    return False
                connection.execute(f"VACUUM (SKIP_LOCKED) {table}")
        except psycopg.Error:
            return False  # the server's own vacuum comes too
        return True

    def close(self) -> None:
        self._pool.close()

    def _answers(self) -> bool:
        return answers(self._parameters)

    def _retried(self, work: Callable[[PostgresCursor], T], *, reading: bool) -> T:
        for attempt in range(_TRIES):
            connection = self._begun(reading=reading)
            try:
                result = self._transaction(connection, work)
            except BaseException as error:
                self._give_back(connection, error)
                again = isinstance(
                    error, (pg.SerializationFailure, pg.DeadlockDetected)
                )  # a reader's too, with an upgrade
                if not again:
                    raise
                if attempt == _TRIES - 1:
                    raise LedgerUnavailable(f"{self.url}: {error}") from error
            else:
                self._pool.give(connection)
                return result
        raise AssertionError

    def _begun(self, *, reading: bool) -> Connection:
        """A connection with a transaction on it. BEGIN shows whether one that was used before is still good."""
        while True:
            try:
                connection, used = self._pool.take(reading=reading)
            except psycopg.Error as error:
                raise self._unreachable(error) from error
            try:
                connection.begin(reading=reading)
            except BaseException as error:
                self._pool.drop(connection)
                if not isinstance(error, psycopg.Error):
                    raise
                if not used:
                    raise self._unreachable(error) from error
                self._pool.close_idle()  # they are no younger
            else:
                return connection

    def _transaction(self, connection: Connection, work: Callable[[PostgresCursor], T]) -> T:
        """Raises SerializationFailure and DeadlockDetected as they are. The connection is the caller's to end."""
        committing = False
        try:
            result = work(PostgresCursor(connection))
            committing = True
            connection.commit()
        except (pg.SerializationFailure, pg.DeadlockDetected):
            raise
        except psycopg.Error as error:
            raise self._explain(error, committing=committing) from error
        return result

    def _give_back(self, connection: Connection, error: BaseException | None = None) -> None:
        """End the transaction; a connection of which nothing can be expected any more is closed."""
        demoted = isinstance(error and error.__cause__, pg.ReadOnlySqlTransaction) and not connection.reading
        try:
            if not connection.closed:
                connection.rollback()
        except psycopg.Error:
            connection.close()
        if demoted:
            self._pool.close_idle()
        if demoted or connection.closed:
            self._pool.drop(connection)
        else:
            self._pool.give(connection)

    def _leased(self, work: Callable[[PostgresCursor], T], seconds: float) -> T:
        lock = self._pool.lease_lock
        if not lock.acquire(timeout=seconds):
            raise LedgerUnavailable(f"{self.url}: another renewal has been under way for {seconds:g} s")
        try:
            connection = self._begun_lease(seconds)
            try:
                return self._transaction(connection, work)
            except BaseException as error:
                self._end_lease(connection)
                if isinstance(error, psycopg.Error):
                    raise LedgerUnavailable(f"{self.url}: {error}") from error
                raise
        finally:
            lock.release()

    def _begun_lease(self, seconds: float) -> Connection:
        hurried = self._parameters | {"connect_timeout": max(2, math.ceil(seconds))}
        while True:
            try:
                connection, used = self._pool.lease(lambda: connect(hurried, self.url))
            except psycopg.Error as error:
                raise self._unreachable(error) from error
            try:
                connection.begin(limit=seconds)
            except psycopg.Error as error:
                self._pool.drop_lease()
                if not used:
                    raise self._unreachable(error) from error
                self._pool.close_idle()
            else:
                return connection

    def _end_lease(self, connection: Connection) -> None:
        """Keep the place on the server if there is one to keep; who was not let in yet gives it back."""
        try:
            connection.rollback()
        except psycopg.Error:
            connection.close()
        if connection.closed or not self._admitted:
            self._pool.drop_lease()

    def _unreachable(self, error: psycopg.Error) -> LedgerUnavailable:
        advice = "; the server has no free place: see 'How many workers fit a server' in docs/operations.md"
        return LedgerUnavailable(f"{self.url}: {_first_line(error)}{advice if is_full(error) else ''}")

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


def _first_line(error: BaseException) -> str:
    """What happened, in one line; of several hosts, what each of them came to."""
    lines = str(error).strip().splitlines()
    several = [line.removeprefix("- ") for line in lines if line.startswith("- host: ")]
    return "; ".join(several) or (lines[0] if lines else type(error).__name__)

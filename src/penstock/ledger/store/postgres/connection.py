"""One connection to PostgreSQL: no wait without a limit, and settings that hold through a pooler as well.

A server's own time limits say nothing to whoever waits for it: a proxy or a frozen server that still acknowledges every
packet keeps a client for ever. So every wait here ends by this machine's clock, and the connection with it.

Without a pooler the settings of a writer are the session's own and cost nothing afterwards; a read sets its own with
BEGIN, in the same round trip. Behind a pooler that lends a session for one transaction both are set with BEGIN, and no
statement is prepared. A pooler gives itself away: the process that answers is not the one that was connected to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg.types.json import set_json_loads

from penstock.ledger.schema.columns import document
from penstock.model.errors import LedgerMismatch

OLDEST = 14
IDLE_LIMIT_MS = 10_000
BEGIN_SECONDS = 10.0
WRITE_SECONDS = 35.0
READ_SECONDS = 20.0
PATIENT_SECONDS = 30.0
_MISSES = 3
_PREPARE_AFTER = 2
_UTC = {"jit": "off", "TimeZone": "'UTC'"}
# The kernel's statements reach every row through an index from a small batch. The planner, knowing nothing of
# the batch's size, would rather scan the whole table once: these settings tell it otherwise.
BY_INDEX = ("enable_seqscan", "enable_hashjoin", "enable_mergejoin")
_WRITER = {
    "statement_timeout": 30_000,
    "lock_timeout": 2_000,
    "idle_in_transaction_session_timeout": IDLE_LIMIT_MS,
    **dict.fromkeys(BY_INDEX, "off"),
    **_UTC,
}
_READER = {
    "statement_timeout": 15_000,
    "lock_timeout": 5_000,
    "idle_in_transaction_session_timeout": 15_000,
    **dict.fromkeys(BY_INDEX, "DEFAULT"),
}
# The session's default is left alone: libpq takes one that reads only for a standby. All statements of a read see the
# same moment.
_READ_ONLY = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"


def _local(settings: Mapping[str, Any]) -> str:
    return "".join(f"; SET LOCAL {name} = {value}" for name, value in settings.items())


_SESSION = "; ".join(f"SET {name} = {value}" for name, value in _WRITER.items())
_BEGIN = {
    # reading, pooled
    (False, False): _WRITE,
    (False, True): f"{_WRITE}{_local(_WRITER)}",
    (True, False): f"{_READ_ONLY}{_local(_READER)}",
    (True, True): f"{_READ_ONLY}{_local(_READER | _UTC)}",
}


class NoAnswer(psycopg.OperationalError):
    """The server said nothing for too long."""


class Connection(psycopg.Connection[Any]):
    """psycopg's own, which waits for an answer no longer than `limit` seconds.

    With `answers`, for statements that may take long, it is asked that often whether anybody is there at all.
    """

    limit: float = BEGIN_SECONDS
    answers: Callable[[], bool] | None = None
    pooled = False
    reading = False
    idle_since = 0.0

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        misses = 0
        while True:
            limit = self.limit if timeout is None else timeout
            try:
                return super().wait(gen, interval, limit)
            except pg._WaitTimeout:  # noqa: SLF001 - what it raises has no other name
                if self.answers is not None and misses < _MISSES:
                    misses = 0 if self.answers() else misses + 1
                    continue
            self.close()
            raise NoAnswer(f"the server did not answer for {limit * (misses + 1):g} s; the connection was dropped")

    def begin(self, *, reading: bool = False, limit: float = BEGIN_SECONDS) -> None:
        """Begin a transaction. Raises psycopg's errors; then nothing was begun and the connection is of no use."""
        self.limit, self.answers = limit, None
        self.execute(_BEGIN[reading, self.pooled])
        self.limit = READ_SECONDS if reading else WRITE_SECONDS

    def take_long(self, answers: Callable[[], bool]) -> None:
        """The transaction that was begun may take any time, as long as the server answers others."""
        self.execute("SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0")
        self.limit, self.answers = PATIENT_SECONDS, answers

    def hurry(self, seconds: float) -> None:
        """The transaction that was begun must be over soon; the server gives up a little earlier than we."""
        milliseconds = int(seconds * 800)
        self.execute(f"SET LOCAL statement_timeout = {milliseconds}; SET LOCAL lock_timeout = {milliseconds}")
        self.limit = seconds

    def gone(self) -> bool:
        """Whether the other side has hung up meanwhile, as far as this side knows. Asks nobody."""
        try:
            self.pgconn.consume_input()
        except psycopg.Error:
            return True
        return self.closed or self.pgconn.status != psycopg.pq.ConnStatus.OK


def connect(parameters: Mapping[str, Any], shown: str) -> Connection:
    """A fresh connection. Raises psycopg's errors, and LedgerMismatch for a server that is too old."""
    connection = Connection.connect(**parameters, autocommit=True)
    try:
        _refuse_old(connection, shown)
        ((process,),) = connection.execute("SELECT pg_backend_pid()").fetchall()
        connection.pooled = process != connection.pgconn.backend_pid
        connection.prepare_threshold = None if connection.pooled else _PREPARE_AFTER
        if not connection.pooled:
            connection.execute(_SESSION)
        set_json_loads(document, connection)
    except BaseException:
        connection.close()
        raise
    return connection


def answers(parameters: Mapping[str, Any]) -> bool:
    """Whether anybody is there: a server that is full says so, and is there."""
    try:
        connection = Connection.connect(**parameters, autocommit=True)
    except psycopg.Error as error:
        return "FATAL" in str(error)
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    finally:
        connection.close()
    return True


def _refuse_old(connection: Connection, shown: str) -> None:
    found = too_old(connection.info.server_version)
    if found is not None:
        raise LedgerMismatch(f"{shown}: PostgreSQL {found} cannot keep a ledger; use {OLDEST} or newer")


def too_old(server_version_num: int) -> str | None:
    """The version of a server that is too old to keep a ledger, as people write it; None for any other."""
    if server_version_num >= OLDEST * 10_000:
        return None
    if server_version_num >= 100_000:  # noqa: PLR2004 - from 10 on a version has two parts
        return f"{server_version_num // 10_000}.{server_version_num % 10_000}"
    return f"{server_version_num // 10_000}.{server_version_num // 100 % 100}.{server_version_num % 100}"

"""The port to a database: short transactions of set-based statements, run by plain functions.

`Database.write(work)` runs `work` in one write transaction and commits it; `read` runs it on a connection that cannot
write. Statements name their parameters `:name` in both dialects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol, TypeVar

from penstock.ledger.care.finding import Finding
from penstock.ledger.store.bell import Bell, Listener
from penstock.ledger.store.presence import Presence
from penstock.ledger.store.sql import Sql
from penstock.model.clock import instant

T = TypeVar("T")
Dialect = Literal["sqlite", "postgresql"]
Row = Sequence[Any]
CONNECTIONS = 6
"""How many connections a process opens at most, unless told otherwise; one is reserved for a worker's lease."""


class Cursor(Protocol):
    """One open transaction."""

    def rows(self, sql: str, **parameters: Any) -> list[Row]:
        """Run a statement and fetch all it returns."""

    def gather(self, sql: str, **parameters: Any) -> list[Row]:
        """The rows of a SELECT, many of them, at the least cost to the interpreter's other threads."""

    def run(self, sql: str, **parameters: Any) -> int:
        """Run a statement and return how many rows it touched."""

    def fill(self, table: str, columns: Sequence[str], lines: bytes, **alike: str) -> None:
        """Insert rows in the way that costs the database least; a key that is there already is refused.

        Each of `lines` is a JSON array of the plain values of `columns`; `alike` are texts of columns that all rows
        have in common.
        """


class AlterCursor(Cursor, Protocol):
    """A transaction that may rebuild tables."""

    @property
    def connection(self) -> Any:
        """The driver's own connection, for a tool that brings its own statements; it must not end the transaction."""


class Database(Protocol):
    """A ledger's database. `presence` knows whether it answers, `bell` who of this process sleeps until it is rung."""

    presence: Presence
    bell: Bell

    @property
    def dialect(self) -> Dialect:
        """Which of the two it is."""

    @property
    def sql(self) -> Sql:
        """What it writes in its own way."""

    @property
    def has_clock(self) -> bool:
        """Whether it has a clock of its own; a file has no other time than this machine's."""

    @property
    def url(self) -> str:
        """Its address, without a password."""

    def write(self, work: Callable[[Cursor], T]) -> T:
        """Run `work` in one write transaction. It may be run again when the database asks for that.

        Raises LedgerUnavailable when nothing was committed, CommitUnknown when the answer to COMMIT was lost, and
        LedgerRefused when a constraint or a trigger refused.
        """

    def alter(self, work: Callable[[AlterCursor], T]) -> T:
        """Run `work` in one write transaction that may rebuild tables, one at a time in the whole ledger.

        On SQLite foreign keys are not enforced in it: rebuilding a table drops it, which would delete its children.
        """

    def read(self, work: Callable[[Cursor], T], *, patient: bool = False, within: float | None = None) -> T:
        """Run `work` on a consistent snapshot, read-only.

        A statement may take 15 seconds, or with `patient` any time, as long as the server answers at all. `within`
        comes before both: so many seconds, then LedgerBusy is raised.
        """

    def lease(self, work: Callable[[Cursor], T], worker: str, lease_ms: int) -> T:
        """Run `work` in one write transaction of `worker` that waits for no other work of this process.

        It is given up early enough to be tried again within the lease. Raises as `write` does, and LedgerUnavailable
        when the server has no place for one more worker.
        """

    def bind_now(self) -> Mapping[str, Any]:
        """The parameters that carry the ledger's time into a statement that uses `now_sql`."""

    @property
    def now_sql(self) -> str:
        """An expression for the ledger's present instant; constant within the statement."""

    def lease_value_sql(self, milliseconds: int) -> str:
        """An expression for a lease that ends after so long."""

    @property
    def lease_left_sql(self) -> str:
        """For a row of `worker`, how many seconds its lease runs on; below zero, or zero: it is over."""

    def lease_over_sql(self, grace_ms: int) -> str:
        """The condition for a row of `worker` whose lease is over, and not for want of a server to renew it at.

        A server that has just started has nobody's renewals yet: for `grace_ms` no lease is over.
        """

    @property
    def boot_sql(self) -> str:
        """What the row of a worker of this machine has as `boot_id`; NULL where leases do not depend on it."""

    @property
    def same_boot_sql(self) -> str:
        """The condition for a row of `worker` whose machine was not restarted since."""

    def surroundings(self, cursor: Cursor) -> Iterator[Finding]:
        """What is wrong with what it stands on, and what soon will be: disk, settings, whoever holds it back.

        Quick to ask: workers ask every minute, and raise an alert before something fills up.
        """

    def rouse(self) -> None:
        """Tell workers that sleep, here and elsewhere, that something may be due. Whether they hear it is not known."""

    def listen(self) -> Listener | None:
        """Hear of what other processes write; None where that cannot be, and asking now and then has to do.

        Raises LedgerUnavailable.
        """

    def reclaim(self, table: str, rows: int) -> bool:
        """Make the space of so many deleted rows of a table usable again, if they are many; whether it was done.

        In a file it is at once, without this.
        """

    def close(self) -> None:
        """Close every connection."""


def present(database: Database, cursor: Cursor) -> datetime:
    """The ledger's present instant."""
    now: datetime = instant(cursor.rows(f"SELECT {database.now_sql}", **database.bind_now())[0][0])
    return now


def table_names(database: Database, cursor: Cursor) -> set[str]:
    """The tables of the ledger's schema."""
    return {str(row[0]) for row in cursor.rows(database.sql.tables)}


def open_database(url: str, clock: Any, *, connections: int = CONNECTIONS) -> Database:
    """Open `sqlite:///path` or `postgresql://…`. Raises UsageError for an address that is neither."""
    from penstock.model.errors import UsageError

    if url.startswith("sqlite:///"):
        from penstock.ledger.store.sqlite.database import SqliteDatabase

        return SqliteDatabase(url.removeprefix("sqlite:///"), clock)
    if url.startswith(("postgresql://", "postgres://")):
        from penstock.ledger.store.postgres.database import PostgresDatabase

        return PostgresDatabase(url, clock, connections=connections)
    shown = url.rsplit("@", maxsplit=1)[-1]
    msg = f"{shown!r} is not a ledger address; write sqlite:///path/to/penstock.db or postgresql://user@host/name"
    raise UsageError(msg)

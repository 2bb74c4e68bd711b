"""Hearing of what other processes write to a PostgreSQL ledger: LISTEN on a connection of its own.

Whoever is not a worker notifies, after the commit and by a transaction of its own: notifying commits go one after the
other in the whole server, and this one has nothing to wait for on the disk.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from penstock.ledger.store.postgres.connection import Connection
from penstock.model.errors import LedgerUnavailable

_LOOK_SECONDS = 10.0
#: One for each schema, as a ledger is.
_CHANNEL = "'penstock_' || (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
NOTIFY = f"SELECT pg_notify({_CHANNEL}, :sender)"


def is_crowded(connection: Connection) -> bool:
    """Whether a third of the server's places are taken: the rest is for leases and work. Raises psycopg's errors."""
    sql = "SELECT 3 * count(*) > current_setting('max_connections')::int FROM pg_stat_activity WHERE datid IS NOT NULL"
    ((crowded,),) = connection.execute(sql).fetchall()
    return bool(crowded)


class PostgresListener:
    """Hears everybody but the `sender` that is its own process."""

    again = _LOOK_SECONDS

    def __init__(self, connection: Connection, sender: str, keeps: Callable[[], bool], end: Callable[[], None]) -> None:
        """`keeps`: whether its place on the server is still its own; `end` gives it back. Raises psycopg's errors."""
        self._connection = connection
        self._sender = sender.encode()
        self._keeps = keeps
        self._end = end
        ((channel,),) = connection.execute(f"SELECT {_CHANNEL}").fetchall()
        connection.execute(f"LISTEN {channel}")

    def fileno(self) -> int | None:
        try:
            return self._connection.pgconn.socket
        except psycopg.Error as error:
            raise LedgerUnavailable(f"the connection that listens is closed: {error}") from error

    def heard(self) -> bool:
        found = False
        try:
            server = self._connection.pgconn
            server.consume_input()
            while (told := server.notifies()) is not None:
                found |= told.extra != self._sender
        except psycopg.Error as error:
            raise LedgerUnavailable(f"the connection that listens broke: {error}") from error
        if not self._keeps():
            raise LedgerUnavailable("the place of the connection that listens is wanted for work")
        return found

    def close(self) -> None:
        self._end()

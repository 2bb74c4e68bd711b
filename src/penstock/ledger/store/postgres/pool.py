"""The connections of one process: no more than it may have, the idle ones given back, one reserved for the lease.

The lease's connection is opened first, from then on stays open, and is never lent: a renewal waits for nobody's work,
and a server without a free place has one for it. All other work shares the rest. Where there is no rest, because many
workers share a small server, work borrows one connection at a time and closes it after each transaction.

A worker's process has one more of its own to listen on, where work keeps at least one beside it and the lease's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import psycopg

from penstock.ledger.store.postgres.connection import Connection
from penstock.model.clock import Clock
from penstock.model.errors import LedgerUnavailable

IDLE_SECONDS = 30.0
_WAIT_SECONDS = 10.0
_LISTENERS_LEAST = 3
_FULL_PAUSES = (0.05, 0.1, 0.2, *([0.4] * 24))
# libpq gives no code for an error at connecting; these are PostgreSQL's words for 53300, and pgbouncer's.
_FULL = (
    "too many clients already",
    "connection slots are reserved",
    "too many connections for",
    "no more connections allowed",
)


def is_full(error: BaseException) -> bool:
    """Whether a server refused to connect because it has no free place."""
    return any(words in str(error) for words in _FULL)


class Pool:
    """Lends connections to threads. `size` counts all of the process, the lease's included."""

    def __init__(self, connect: Callable[[], Connection], size: int, clock: Clock) -> None:
        self.size = size
        self._connect = connect
        self._clock = clock
        self._changed = threading.Condition()
        self._idle: list[Connection] = []
        self._lent = 0
        self._reading = 0
        self._leased: Connection | None = None
        self._listening: Connection | None = None
        self._lease_lock = threading.Lock()
        self._closed = False

    def take(self, *, reading: bool) -> tuple[Connection, bool]:
        """A connection, and whether it was used before. Raises LedgerUnavailable, and what `connect` raises."""
        connection = self._free_or_place(reading=reading)
        used = connection is not None
        if connection is None:
            try:
                connection, used = self._connected()
            except BaseException:
                self._returned(reading=reading)
                raise
        connection.reading = reading
        return connection, used

    def give(self, connection: Connection) -> None:
        """Take it back; what nobody has used for a while is closed."""
        with self._changed:
            now = self._clock.elapsed()
            connection.idle_since = now
            self._idle.append(connection)
            # The others that are lent come back as well. Where the lease has the only place, nothing stays.
            room = 0 if self._closed or self.size == 1 else self._places - (self._lent - 1)
            over = max(0, len(self._idle) - room)
            tired = [c for n, c in enumerate(self._idle) if n < over or now - c.idle_since > IDLE_SECONDS]
            self._idle = [c for c in self._idle if c not in tired]
        for old in tired:
            old.close()
        self._returned(reading=connection.reading)

    def drop(self, connection: Connection) -> None:
        """It is of no use any more."""
        connection.close()
        self._returned(reading=connection.reading)

    def lease(self, connect: Callable[[], Connection]) -> tuple[Connection, bool]:
        """The lease's own connection, and whether it was used before. For one thread at a time: see `lease_lock`."""
        if self._leased is not None:
            if not self._leased.gone():
                return self._leased, True
            self.drop_lease()
        with self._changed:
            # What was opened to look at the ledger becomes the lease's: one that is there beats one to be had.
            adopted = self._idle.pop() if self._idle else None
        self._leased = adopted or connect()
        return self._leased, adopted is not None

    @property
    def lease_lock(self) -> threading.Lock:
        """Whoever uses the lease's connection holds it."""
        return self._lease_lock

    def drop_lease(self) -> None:
        """The next renewal opens another."""
        if self._leased is not None:
            self._leased.close()
            self._leased = None

    def may_listen(self) -> bool:
        """Whether there is a place for a connection that listens."""
        return self.size >= _LISTENERS_LEAST and not self._closed

    def listen(self) -> Connection | None:
        """A connection to listen on; None where there is no place, or is one already. Raises psycopg's errors."""
        if self._listening is not None or not self.may_listen():
            return None
        self._listening = self._connect()
        return self._listening

    def drop_listening(self) -> None:
        """Its place is free for work."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    def close_idle(self) -> None:
        """Close what is not in use: after a failover all of it may lead to the wrong server."""
        with self._changed:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Close everything; what is lent is closed when it comes back."""
        self._closed = True
        self.close_idle()
        self.drop_listening()
        if self._lease_lock.acquire(timeout=1):
            self.drop_lease()
            self._lease_lock.release()

    @property
    def _places(self) -> int:
        return max(1, self.size - 1 - (self._listening is not None))

    def _free_or_place(self, *, reading: bool) -> Connection | None:
        """An idle connection; None: the right to open another."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._may(reading=reading), _WAIT_SECONDS):
                msg = f"all {self._places} connections of this process have been busy for {_WAIT_SECONDS:g} s"
                raise LedgerUnavailable(f"{msg}; see ledger.connections")
            self._lent += 1
            self._reading += reading
            while self._idle:
                connection = self._idle.pop()  # the one used last, so that the others can grow old
                if not connection.gone():
                    return connection
                connection.close()
        return None

    def _may(self, *, reading: bool) -> bool:
        # However many reads are under way, a write finds a place.
        return self._lent < self._places and (not reading or self._reading < max(1, self._places - 1))

    def _connected(self) -> tuple[Connection, bool]:
        """Connect; a server that is full is asked again for a while, as others close theirs after use."""
        for pause in _FULL_PAUSES:
            try:
                return self._connect(), False
            except psycopg.OperationalError as error:
                if not is_full(error):
                    raise
            with self._changed:
                # Our own comes back sooner than a stranger's.
                self._changed.wait_for(lambda: bool(self._idle), pause)
                if self._idle:
                    return self._idle.pop(), True
        return self._connect(), False

    def _returned(self, *, reading: bool) -> None:
        with self._changed:
            self._lent -= 1
            self._reading -= reading
            self._changed.notify_all()

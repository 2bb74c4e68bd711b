"""Whether the ledger answers: known in one place, told once when it stops answering and once when it is back.

Every call of a database ends here, whoever made it. What can be read may still refuse to be written to (a full disk,
a stopped writer, a standby), so that a read that works does not end an outage that a write has met.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Literal, TypeVar

from penstock.model.clock import SystemClock
from penstock.model.errors import LedgerBusy, LedgerError, LedgerUnavailable

_BUSY_SECONDS = 60.0
Kind = Literal["read", "write"]
T = TypeVar("T")


class Presence:
    """The state of one process's ledger; silent until somebody is to be `told`."""

    def __init__(self) -> None:
        self.away = False
        self._failed: set[Kind] = set()
        self._lock = threading.Lock()
        self._gone: Callable[[LedgerError], None] = lambda _: None
        self._back: Callable[[], None] = lambda: None
        self._busy: Callable[[LedgerError], None] = lambda _: None
        self._clock = SystemClock()
        self._busy_at = -math.inf

    def tell(
        self, gone: Callable[[LedgerError], None], back: Callable[[], None], busy: Callable[[LedgerError], None]
    ) -> None:
        """Whom to tell; may be called from any thread."""
        self._gone, self._back, self._busy = gone, back, busy

    def told(self, kind: Kind, call: Callable[[], T]) -> T:
        """What the call comes to; whether it was answered is noted here."""
        try:
            result = call()
        except LedgerUnavailable as error:
            self.failed(kind, error)
            raise
        if self.away:
            self.worked(kind)
        return result

    def failed(self, kind: Kind, error: LedgerError) -> None:
        """A call found the ledger away. A lock in the way is no absence, and is told once a minute."""
        if isinstance(error, LedgerBusy):
            now = self._clock.elapsed()
            with self._lock:
                late = now - self._busy_at >= _BUSY_SECONDS
                if late:
                    self._busy_at = now
            if late:
                self._busy(error)
            return
        with self._lock:
            first, self.away = not self._failed, True
            self._failed.add(kind)
        if first:
            self._gone(error)

    def worked(self, kind: Kind) -> None:
        """A call was answered. Ask `away` before: it is not, nearly always."""
        with self._lock:
            self._failed -= {kind} if kind == "read" else {"read", "write"}
            over = self.away and not self._failed
            if over:
                self.away = False
        if over:
            self._back()

"""A ledger's database for somebody who waits for the answer: all that is read must be read by a certain moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.model.clock import Clock
from penstock.model.errors import LedgerBusy

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor, Database

T = TypeVar("T")


class Hurried:
    """The same database; `read` raises LedgerBusy once the time is over, however many statements were asked."""

    def __init__(self, database: Database, clock: Clock, seconds: float) -> None:
        self._database = database
        self._clock = clock
        self._seconds = seconds
        self._end = clock.elapsed() + seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def read(self, work: Callable[[Cursor], T], *, patient: bool = False, within: float | None = None) -> T:
        """As the database does it, in the time that is left."""
        left = self.left()
        return self._database.read(work, patient=patient, within=left if within is None else min(left, within))

    def left(self) -> float:
        """Seconds until the time is over. Raises LedgerBusy once it is."""
        left = self._end - self._clock.elapsed()
        if left <= 0:
            raise LedgerBusy(f"the ledger was not read within {self._seconds:g} s")
        return left

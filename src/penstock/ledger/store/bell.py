"""Telling workers that sleep: something may be due, and it was not a worker who made it so.

Those of this process are told by a `Bell`; those of others hear of it by whatever the database has for that, through a
`Listener`. Neither is needed for anything to be done, only for it to be done at once: workers ask every second anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor, Database

T = TypeVar("T")


class Listener(Protocol):
    """Hears that others wrote to the ledger. Made for an event loop: nothing of it waits."""

    #: After how many seconds to look again, even though nothing could be read from the file meanwhile.
    again: float

    def fileno(self) -> int | None:
        """The file that can be read from when there may be something to hear; None where there is no such file."""

    def heard(self) -> bool:
        """Whether others wrote since this was last asked. Raises LedgerUnavailable once it can hear nothing more."""

    def close(self) -> None:
        """Listen no longer."""


class Bell:
    """Those workers of this process who want to be told. Any thread may ring."""

    def __init__(self) -> None:
        self._told: list[Callable[[], None]] = []

    def tell(self, call: Callable[[], None]) -> None:
        """From now on call this, from whichever thread."""
        self._told.append(call)

    def forget(self, call: Callable[[], None]) -> None:
        """No longer."""
        self._told.remove(call)

    def ring(self) -> None:
        """Tell everybody."""
        for call in tuple(self._told):
            call()


def rousing(database: Database) -> Database:
    """The same database for whoever is not a worker: what is written may be due, and those who sleep are told."""
    return cast("Database", _Rousing(database))


class _Rousing:
    def __init__(self, database: Database) -> None:
        self._database = database

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, work: Callable[[Cursor], T]) -> T:
        """As the database does it."""
        result = self._database.write(work)
        self._database.rouse()
        return result

"""What the two databases write differently: each has an `Sql` of its own, named alike and used by everybody else.

Identifiers come from the program alone; values are parameters, `:name` in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.ledger.store.statements import SqlType


class Sql(Protocol):
    """Parts of statements, and the locks that a transaction takes."""

    # Parameters.

    def parameter(self, name: str, kind: SqlType) -> str:
        """A parameter of a column's type, given as a plain value."""

    def instant(self, name: str) -> str:
        """A parameter that is an instant, given as `instant_text` writes it, to be compared with a column of them."""

    def day(self, name: str) -> str:
        """A parameter that is a date, given in ISO format, to be compared with a column of dates."""

    def identifier(self, name: str) -> str:
        """A parameter that is an identifier (UUID), given as text, to be compared with a column of identifiers."""

    def decimal(self, name: str) -> str:
        """A parameter that is a decimal number, given as text, to be written into a column of decimals."""

    def first_key(self, value: str) -> tuple[str, dict[str, str]]:
        """A condition that holds for every unit whose key begins with this value, and its parameters.

        It may hold for others too: it only helps the database to find them.
        """

    def listed(self, name: str) -> str:
        """A query for the texts of a parameter that is a JSON array."""

    # Expressions.

    def gathered(self, column: str) -> str:
        """An aggregate: the texts of a column as one JSON array; of no rows NULL or an empty array."""

    def earliest(self, moments: Sequence[str]) -> str:
        """The earliest of some moments that is not NULL; NULL where there is none."""

    def latest(self, one: str, other: str) -> str:
        """The later of two moments, or the one that is not NULL."""

    def last_characters(self, text: str, count: int) -> str:
        """The end of a text."""

    def before_colon(self, text: str) -> str:
        """What stands before the first colon of a text, or all of it."""

    def hour(self, moment: str) -> str:
        """The beginning of the hour, in UTC, that a moment lies in."""

    @property
    def transaction(self) -> str:
        """What an open permit is marked with, so that it is good in this transaction alone."""

    @property
    def history_key(self) -> str:
        """The columns, alias `l`, by which a row of the history is found fastest."""

    @property
    def tables(self) -> str:
        """A query for the names of the ledger's tables."""

    def schema(self, cursor: Cursor) -> str:
        """Where the ledger's tables are, as it stands before the name of one."""

    def told(self, document: str, table: str, column: str) -> str:
        """The value of a column of a table as a document has it."""

    def with_last(self, rows: str, log: str, last: str) -> str:
        """Each row with the row `l` of the log that `last` finds for it; rows without one are left out.

        `last`: what finds it, as row `h`, from its WHERE to its LIMIT 1. Planners would rather join all rows.
        """

    # Rows, and who waits for whom.

    @property
    def locks_rows(self) -> bool:
        """Whether rows are locked one by one. Else there is one writer at a time, and nobody's row to wait for."""

    def for_update(self, of: str = "", *, keys: bool = True, skip: bool = False) -> str:
        """The end of a SELECT that locks its rows, or those `of` one alias, until the transaction ends.

        `keys` False: others may go on referring to them. `skip`: rows that somebody else has locked are left out.
        """

    def lock(self, cursor: Cursor, number: int, *, shared: bool = False) -> None:
        """Let one transaction at a time pass here, or several that share it, until it ends."""

    def lock_events(self, cursor: Cursor) -> None:
        """Wait for whoever has written events, and let nobody write any, until the transaction ends."""

    def encoded(self, document: bytes) -> Any:
        """JSON as a parameter. As a text, it would be in memory three times."""

    def wait_for_locks(self, cursor: Cursor, milliseconds: int) -> None:
        """Wait for so long for a lock, in this transaction."""

    def commit_lazily(self, cursor: Cursor) -> None:
        """Let this transaction be over before it is on the disk; the next that is not lazy takes it there as well.

        What a server loses of it in a crash it loses from the end: never this one and not a later one.
        """

    def by_index(self, cursor: Cursor) -> None:
        """Let a read reach every row through an index, from a batch: as a writer's statements do anyway."""

    def some_rows(self, table: str, key: Sequence[str], condition: str, limit: int) -> str:
        """A condition for at most so many of the rows that keep another; `key` is the table's primary key."""

    def units_of_items(self, items: str, wanted: str, table: str, unit: str) -> str:
        """A query for the ids of the units `u` of a table that belong to items `t`, locked; taken ones are left out.

        `items` is where the items come from, `wanted` which of them, `unit` what a unit has to do with its item.
        """

    def writers(self, cursor: Cursor) -> list[str]:
        """The other transactions that write the history and are not over. Each is here before it draws a number."""

    def home(self, cursor: Cursor) -> str | None:
        """Which database this is, wherever its server has moved; None: a file has no such name."""

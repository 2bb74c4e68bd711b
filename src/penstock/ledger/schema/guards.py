"""The guards of a ledger, looked at by the doctor: each database has its own way to tell whether they are all there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from penstock.ledger.care.finding import Finding
from penstock.ledger.schema import guards_postgres, guards_sqlite
from penstock.ledger.store.database import Cursor, Database
from penstock.model.machine import Machine

if TYPE_CHECKING:
    import sqlalchemy as sa


class Guards(Protocol):
    """One of the two ways, a module each."""

    def tables(self, machines: Iterable[Machine]) -> list[sa.Table]:
        """The kernel's tables and those of machines."""

    def checks(self, table: sa.Table) -> dict[str, str]:
        """What every row of a table must keep, by name."""

    def triggers(
        self, cursor: Cursor, machines: list[Machine], tables: Collection[str], others: Collection[str]
    ) -> Iterator[Finding]:
        """What is wrong with the triggers of `tables`; `others` are those of machines that are not known here."""

    def file(self, cursor: Cursor, tables: Iterable[sa.Table], broken: Iterable[str]) -> Iterator[Finding]:
        """What is wrong with the file, where there is one; the tables in `broken` are told already."""

    def untold(self, cursor: Cursor, table: str, columns: list[str]) -> list[tuple[str, str]]:
        """Tracked column to the condition under which the history tells another value than its unit has."""


def guards_of(database: Database) -> Guards:
    """The way of this database."""
    return guards_sqlite if database.dialect == "sqlite" else guards_postgres

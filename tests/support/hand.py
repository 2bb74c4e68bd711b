"""A person at a SQL prompt: a raw connection of the driver, none of Penstock's code in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import ModuleType
from typing import Any, Self

import psycopg
import pytest
from pysqlite3 import dbapi2 as pysqlite

from penstock.ledger.schema.columns import plain
from penstock.model.machine import Machine
from penstock.model.unit import DRIVEN_COLUMNS, GuardedUnit, field_types, unit_id_of
from tests.support.machines import MACHINES

THEN = "'2026-11-15T19:31:00.123Z'"


class Hand:
    """Types statements into a ledger, each a transaction of its own unless inside `together`."""

    def __init__(self, url: str, driver: ModuleType = pysqlite) -> None:
        self.connection: Any
        if url.startswith("sqlite:///"):
            self.dialect = "sqlite"
            self.error: type[Exception] = driver.Error
            self.connection = driver.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            self.connection.execute("PRAGMA foreign_keys = ON")  # or no permit could be typed
        else:
            self.dialect = "postgresql"
            self.error = psycopg.Error
            self.connection = psycopg.connect(url, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def type(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement; the rows it returns, none when it returns nothing."""
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def refused(self, sql: str) -> str:
        """The message with which the database refuses the statement; no unit and no log row may have changed."""
        before = self.everything()
        with pytest.raises(self.error) as caught:
            self.type(sql)
        assert self.everything() == before
        return str(caught.value)

    @contextmanager
    def together(self, *, keep: bool = True) -> Iterator[None]:
        """One transaction, rolled back at the end when it is not to be kept."""
        self.type("BEGIN")
        try:
            yield
            self.type("COMMIT" if keep else "ROLLBACK")
        except BaseException:
            if self.dialect == "postgresql" or self.connection.in_transaction:
                self.type("ROLLBACK")
            raise

    def permit(self, machine: str = "invoice", name: str = "p1") -> None:
        """Type a permit to prune; outside of `together` the database refuses it."""
        this = "'open'" if self.dialect == "sqlite" else "pg_current_xact_id()::text"
        self.type(
            "INSERT INTO prune_permit (id, machine, actor, reason, at, open) VALUES"
            f" ('{name}', '{machine}', 'operator:alice', 'too old', {THEN}, {this})"
        )

    def prune(self, *statements: str, machine: str = "invoice", permit: str = "p1") -> None:
        """Type statements under a permit that is opened and closed in one transaction."""
        with self.together():
            self.permit(machine, permit)
            for sql in statements:
                self.type(sql)
            self.type("UPDATE prune_permit SET open = NULL WHERE open IS NOT NULL")

    def log(self, unit_id: str | None = None) -> list[tuple[Any, ...]]:
        """(from, to, actor, reason) of every log row, oldest first."""
        which = "" if unit_id is None else f"WHERE unit_id = '{unit_id}'"
        return self.type(f"SELECT from_status, to_status, actor, reason FROM transition_log {which} ORDER BY seq")

    def everything(self) -> list[list[tuple[Any, ...]]]:
        """Every row that a refused statement must leave alone."""
        tables = [*(m.table for m in MACHINES), "prune_permit", "event_log", "transition_log"]
        return [sorted(self.type(f"SELECT * FROM {table}"), key=repr) for table in tables]


def literal(value: Any) -> str:
    """A value as one would type it."""
    made = plain(value)
    if made is None:
        return "NULL"
    if isinstance(made, bool):
        return str(made).lower()
    return str(made) if isinstance(made, int) else "'" + str(made).replace("'", "''") + "'"


def typed_insert(machine: Machine, unit: GuardedUnit, verb: str = "INSERT") -> str:
    """The INSERT a person would type: the key with its text, the status and the unit's own columns."""
    own = [n for n in field_types(type(unit)) if n == "status" or n not in DRIVEN_COLUMNS]
    names = [n for n in own if n not in machine.generated()]
    values = [literal(unit_id_of(unit)), *(literal(getattr(unit, n)) for n in names)]
    return f"{verb} INTO {machine.table} (unit_id, {', '.join(names)}) VALUES ({', '.join(values)})"


def typed_move(machine: Machine, unit_id: str, target: str) -> str:
    """The UPDATE a person would type to set a status."""
    return f"UPDATE {machine.table} SET status = '{target}' WHERE unit_id = {literal(unit_id)}"

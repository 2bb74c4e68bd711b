"""What the doctor finds wrong with the guards of a ledger in SQLite (see `guards`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING

from penstock.ledger.care.finding import Finding
from penstock.ledger.schema.triggers import expected_sqlite
from penstock.ledger.store.database import Cursor
from penstock.model.machine import Machine

if TYPE_CHECKING:
    import sqlalchemy as sa

_AGAIN = "run 'penstock db upgrade'"
_MOST = 20


def tables(machines: Iterable[Machine]) -> list[sa.Table]:
    """The kernel's tables and those of machines."""
    from penstock.ledger.schema.tables import kernel_tables, machine_table

    return [*kernel_tables("sqlite"), *(machine_table(m, "sqlite") for m in machines)]


def checks(table: sa.Table) -> dict[str, str]:
    """The CHECKs of a table by name, and that whole numbers are that: SQLite may keep any value."""
    import sqlalchemy as sa

    from penstock.ledger.schema import expand

    whole = [c.name for c in table.columns if isinstance(c.type, sa.Integer)]
    return expand.checks_of(table, "sqlite") | {f"{n}_is_whole": f"typeof({n}) IN ('integer', 'null')" for n in whole}


def triggers(
    cursor: Cursor, machines: list[Machine], tables: Collection[str], others: Collection[str]
) -> Iterator[Finding]:
    """Every generated trigger is there, as generated; nothing else stands between a table and SQL."""
    rows = cursor.rows("SELECT name, sql, tbl_name FROM sqlite_master WHERE type = 'trigger'")
    there = {str(name): str(sql) for name, sql, _ in rows}
    expected = expected_sqlite(cursor, machines)
    for name, sql in expected.items():
        if name not in there:
            yield Finding("triggers", name, f"is missing; {_AGAIN}")
        elif there[name] != sql:
            yield Finding("triggers", name, f"was changed; {_AGAIN}")
    for name, _, table in rows:
        # SQLite keeps the table's name as it was typed, in whatever case.
        if str(table).lower() in tables and name not in expected and name not in others:
            yield Finding("triggers", str(name), f"is a trigger of {table} that Penstock did not make; drop it")


def file(cursor: Cursor, tables: Iterable[sa.Table], broken: Iterable[str]) -> Iterator[Finding]:
    """Tables that are not strict, damage, and keys that point to nothing; the tables in `broken` are told already."""
    yield from _unstrict(cursor, tables)
    yield from _damage(cursor, broken)


def _unstrict(cursor: Cursor, tables: Iterable[sa.Table]) -> Iterator[Finding]:
    """Tables that somebody made anew without the word that keeps text out of numbers."""
    rows = cursor.rows("SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND NOT strict")
    loose = {str(row[0]) for row in rows}
    for table in tables:
        if table.name in loose:
            text = "its table is not STRICT: SQLite keeps any value in any of its columns; restore it from a backup"
            yield Finding("constraints", table.name, text)


def _damage(cursor: Cursor, broken: Iterable[str]) -> Iterator[Finding]:
    told = {f"CHECK constraint failed in {table}" for table in broken}
    for (line,) in cursor.rows(f"PRAGMA quick_check({_MOST})"):
        if line != "ok" and line not in told:
            yield Finding("constraints", "the file", str(line))
    dangling: dict[tuple[str, str], int] = {}
    for table, _, parent, _ in cursor.rows("PRAGMA foreign_key_check"):
        dangling[table, parent] = dangling.get((table, parent), 0) + 1
    for (table, parent), count in sorted(dangling.items()):
        yield Finding("constraints", table, f"{count:,} rows point to nothing in {parent}")


def untold(cursor: Cursor, table: str, columns: list[str]) -> list[tuple[str, str]]:  # noqa: ARG001 - alike for every table
    """Column to the condition under which the history tells another value. What it does not tell is left alone."""
    told, now = "json_extract(told.data, '$.{0}')", "json_extract(json_object('{0}', u.{0}), '$.{0}')"
    differs = f"json_type(told.data, '$.{{0}}') IS NOT NULL AND {told} IS NOT {now}"
    return [(column, differs.format(column)) for column in columns]

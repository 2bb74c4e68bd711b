"""What a table is and what it is declared to be: the differences, and those that can be made good by adding.

Adding never breaks a program that does not know what was added: a new table, a column that may be NULL or has a default
in the database, an index, be it in place of one on other columns. Everything else needs a migration, written by whoever
knows what it means.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable, ExecutableDDLElement

from penstock.ledger.schema.left import left
from penstock.ledger.schema.strict import is_strict, same_kind, strict_types
from penstock.ledger.store.database import Cursor, Database

# The parameter style of psycopg would double every '%' in the CHECKs.
_DIALECTS = {"sqlite": sqlite.dialect(), "postgresql": postgresql.dialect(paramstyle="named")}  # type: ignore[no-untyped-call]
_STRICT = strict_types(sqlite.dialect())
_NAMED_CHECK = re.compile(r"CONSTRAINT\s+\"?(\w+)\"?\s+CHECK", re.IGNORECASE)
# PostgreSQL's own words for types that SQLAlchemy spells otherwise.
_SPELLINGS = {"varchar": "character varying", "char": "character", "float": "double precision", "decimal": "numeric"}


@dataclass(frozen=True, slots=True)
class Difference:
    """How a table of the ledger is not as declared; `statements` make it good, where adding is enough.

    `unminded`: a column more, which no statement of this program minds.
    """

    table: str
    subject: str
    message: str
    statements: tuple[str, ...] = ()
    unminded: bool = False


@dataclass(frozen=True, slots=True)
class _Found:
    columns: dict[str, tuple[str, bool]]  # type, and whether it may be NULL
    keys: list[tuple[str, ...]]  # the primary one first
    checks: frozenset[str]
    #: Name to columns, None for an expression.
    indexes: Mapping[str, tuple[str | None, ...]]
    references: frozenset[tuple[str, str]]  # column, and the table that it refers to
    filled: frozenset[str]  # columns that the database gives a value where none is given


def ddl(element: ExecutableDDLElement | CreateColumn, dialect: str, *, strict: bool = False) -> str:
    """A statement as this dialect writes it; `strict` with the types of a STRICT table, where that is SQLite."""
    return str(element.compile(dialect=_STRICT if strict and dialect == "sqlite" else _DIALECTS[dialect])).strip()


def create(table: sa.Table, dialect: str) -> tuple[str, ...]:
    """The statements that make a table and its indexes."""
    indexes = sorted(table.indexes, key=lambda i: str(i.name))
    made = ddl(CreateTable(table), dialect, strict=is_strict(table))
    return (made, *(ddl(CreateIndex(i), dialect) for i in indexes))


def differences(
    database: Database, cursor: Cursor, tables: Iterable[sa.Table], present: Iterable[str]
) -> list[Difference]:
    """How the ledger's tables differ from the declared ones, in the order in which they are declared.

    What was left of a newer program's (see `left`) is no difference.
    """
    found: list[Difference] = []
    names = set(present)
    known = left(cursor) if "penstock_meta" in names else frozenset()
    for table in tables:
        if table.name not in names:
            statements = create(table, database.dialect)
            found.append(Difference(table.name, table.name, "the table is missing", statements))
        else:
            leavings = {column for name, column in known if name == table.name}
            found += _compare(table, _look(database, cursor, table.name), leavings, database.dialect)
    return found


def _compare(table: sa.Table, there: _Found, leavings: set[str], dialect: str) -> list[Difference]:
    made: list[Difference] = []
    added: set[str] = set()
    for column in table.columns:
        if column.name not in there.columns:
            added |= {str(c.name) for c in _own_checks(table, column)}
            made.append(_missing_column(table, column, dialect))
        else:
            made += _compare_column(table, column, *there.columns[column.name], dialect)
    unknown = sorted(there.columns.keys() - set(table.columns.keys()) - leavings)
    made += [_unknown_column(table, c, there) for c in unknown]
    key = tuple(c.name for c in table.primary_key.columns)
    # What else is unique in the ledger is an index more, and no statement minds.
    if key not in there.keys:
        what = f"the key is ({', '.join(there.keys[0])}), the program's is ({', '.join(key)})"
        made.append(Difference(table.name, "key", what))
    checks = {str(c.name) for c in _checks(table, dialect) if c.name is not None}
    made += [Difference(table.name, n, "this check is missing") for n in sorted(checks - there.checks - added)]
    more = [n for n in sorted(there.checks - checks) if not _is_of_form(table.name, n, {*leavings, *unknown})]
    made += [Difference(table.name, n, "the program has no such check") for n in more]
    references = {(fk.parent.name, fk.column.table.name) for fk in table.foreign_keys}
    lacking = sorted((c, to) for c, to in references - there.references if c in there.columns)
    made += [Difference(table.name, c, f"the foreign key to {to} is missing") for c, to in lacking]
    unknown_keys = sorted(there.references - references)
    made += [Difference(table.name, c, f"the program has no foreign key to {to}") for c, to in unknown_keys]
    for index in sorted(table.indexes, key=lambda i: str(i.name)):
        made += _compare_index(table, index, there.indexes.get(str(index.name)), dialect)
    return made


def _compare_index(
    table: sa.Table, index: sa.Index, there: tuple[str | None, ...] | None, dialect: str
) -> list[Difference]:
    """An index of other columns is made anew: no statement minds, and it holds nothing that the table does not."""
    name, create = str(index.name), ddl(CreateIndex(index), dialect)
    if there is None:
        return [Difference(table.name, name, "the index is missing", (create,))]
    wanted = tuple(e.name if isinstance(e, sa.Column) else None for e in index.expressions)
    if wanted == there:
        return []
    message = f"the index is on {_listed(there)}, the program's is on {_listed(wanted)}"
    return [Difference(table.name, name, message, (f"DROP INDEX {name}", create))]


def _listed(columns: Iterable[str | None]) -> str:
    return f"({', '.join(column or 'an expression' for column in columns)})"


def _compare_column(table: sa.Table, column: sa.Column[Any], kind: str, null: bool, dialect: str) -> list[Difference]:
    wanted = _type(column, dialect)
    if wanted != kind:
        return [Difference(table.name, column.name, f"the column is {kind}, the program's is {wanted}")]
    if null != column.nullable:
        words = {True: "may be NULL", False: "is NOT NULL"}
        what = f"the column {words[null]}, the program's {words[bool(column.nullable)]}"
        return [Difference(table.name, column.name, what)]
    return []


def _unknown_column(table: sa.Table, name: str, there: _Found) -> Difference:
    message = "the ledger has this column, the program does not"
    keyed = any(name in key for key in there.keys) or any(name == column for column, _ in there.references)
    if not keyed and (there.columns[name][1] or name in there.filled):
        return Difference(table.name, name, message, unminded=True)
    what = "it is part of a key" if keyed else "it is NOT NULL without a default in the database"
    return Difference(table.name, name, f"{message}, and {what}")


def _missing_column(table: sa.Table, column: sa.Column[Any], dialect: str) -> Difference:
    obstacle = None
    if not column.nullable and column.server_default is None:
        obstacle = "it is NOT NULL without a default in the database"
    elif column.primary_key or column.foreign_keys:
        obstacle = "it is part of a key"
    elif column.computed is not None and dialect == "sqlite":
        obstacle = "SQLite cannot add a stored generated column"
    if obstacle is not None:
        return Difference(table.name, column.name, f"the column is missing, and {obstacle}")
    checks = [f"CONSTRAINT {c.name} CHECK ({_text(c, dialect)})" for c in _own_checks(table, column)]
    add = f"ALTER TABLE {table.name} ADD COLUMN {ddl(CreateColumn(column), dialect, strict=is_strict(table))}"
    if dialect == "sqlite":
        statements = [" ".join([add, *checks])]
    else:
        statements = [add, *(f"ALTER TABLE {table.name} ADD {check}" for check in checks)]
    return Difference(table.name, column.name, "the column is missing", tuple(statements))


def checks_of(table: sa.Table, dialect: str) -> dict[str, str]:
    """Name to condition of a table's named CHECKs."""
    made = ddl(CreateTable(table), dialect)  # one of a name may be there for each dialect
    texts = [(str(c.name), _text(c, dialect)) for c in _checks(table, dialect)]
    return {name: text for name, text in texts if f"CHECK ({text})" in made}


@functools.cache  # a table as declared; to compile one takes a millisecond, and there are dozens
def _checks(table: sa.Table, dialect: str) -> tuple[sa.CheckConstraint, ...]:
    made = ddl(CreateTable(table), dialect)
    found = [c for c in table.constraints if isinstance(c, sa.CheckConstraint)]
    return tuple(c for c in found if f"CONSTRAINT {c.name} " in made)


def _own_checks(table: sa.Table, column: sa.Column[Any]) -> list[sa.CheckConstraint]:
    """The checks of a column's own form (`<table>_<column>_is_instant` and the like): they come with the column."""
    found = [c for c in table.constraints if isinstance(c, sa.CheckConstraint)]
    return [c for c in found if _is_of_form(table.name, str(c.name), [column.name])]


def _is_of_form(table: str, check: str, columns: Iterable[str]) -> bool:
    """Whether a check of that name is of the form of one of the columns."""
    return any(check.startswith(f"{table}_{column}_is_"[:54]) for column in columns)


def _text(check: sa.CheckConstraint, dialect: str) -> str:
    return str(check.sqltext.compile(dialect=_DIALECTS[dialect]))


def _type(column: sa.Column[Any], dialect: str) -> str:
    text = column.type.compile(_DIALECTS[dialect]).lower().replace(", ", ",")
    if dialect == "sqlite":
        return same_kind(text)
    word, bracket, rest = text.partition("(")
    return _SPELLINGS.get(word, word) + bracket + rest


def _look(database: Database, cursor: Cursor, table: str) -> _Found:
    return (_look_sqlite if database.dialect == "sqlite" else _look_postgres)(cursor, table)


def _look_sqlite(cursor: Cursor, table: str) -> _Found:
    columns = cursor.rows('SELECT name, type, "notnull", pk FROM pragma_table_xinfo(:name) ORDER BY cid', name=table)
    filled = cursor.rows(
        "SELECT name FROM pragma_table_xinfo(:name) WHERE dflt_value IS NOT NULL OR hidden", name=table
    )
    ((sql,),) = cursor.rows("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name", name=table)
    indexes = cursor.rows(
        "SELECT i.name, json_group_array(c.name ORDER BY c.seqno) FROM pragma_index_list(:name) i"
        " CROSS JOIN pragma_index_info(i.name) c WHERE i.origin = 'c' GROUP BY i.name",
        name=table,
    )
    references = cursor.rows('SELECT "from", "table" FROM pragma_foreign_key_list(:name)', name=table)
    return _Found(
        {
            str(n): (same_kind(str(kind).lower().replace(", ", ",").removesuffix(" generated always")), not filled)
            for n, kind, filled, _ in columns
        },
        [tuple(str(n) for n, *_, place in sorted(columns, key=lambda row: row[3]) if place)],
        frozenset(_NAMED_CHECK.findall(str(sql))),
        {str(name): tuple(json.loads(parts)) for name, parts in indexes},
        frozenset((str(name), str(to)) for name, to in references),
        frozenset(str(row[0]) for row in filled),
    )


def _look_postgres(cursor: Cursor, table: str) -> _Found:
    which = "CAST(quote_ident(:name) AS regclass)"
    columns = cursor.rows(
        f"SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull FROM pg_attribute WHERE attrelid = {which}"
        " AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        name=table,
    )
    filled = cursor.rows(
        f"SELECT attname FROM pg_attribute WHERE attrelid = {which} AND (atthasdef OR attidentity <> '')", name=table
    )
    keys = cursor.rows(
        "SELECT array_agg(CAST(a.attname AS TEXT) ORDER BY part.place) FROM pg_constraint k"
        " CROSS JOIN unnest(k.conkey) WITH ORDINALITY AS part(attnum, place)"
        " JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = part.attnum"
        f" WHERE k.contype IN ('p', 'u') AND k.conrelid = {which} GROUP BY k.oid, k.contype ORDER BY k.contype",
        name=table,
    )
    checks = cursor.rows(f"SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = {which}", name=table)
    references = cursor.rows(
        "SELECT a.attname, other.relname FROM pg_constraint k JOIN pg_class other ON other.oid = k.confrelid"
        " JOIN pg_attribute a ON a.attrelid = k.conrelid AND a.attnum = ANY (k.conkey)"
        f" WHERE k.contype = 'f' AND k.conrelid = {which}",
        name=table,
    )
    indexes = cursor.rows(
        "SELECT c.relname, array_agg(CAST(a.attname AS TEXT) ORDER BY part.place) FROM pg_index i"
        " JOIN pg_class c ON c.oid = i.indexrelid CROSS JOIN unnest(i.indkey) WITH ORDINALITY AS part(attnum, place)"
        " LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = part.attnum AND a.attnum > 0"
        f" WHERE i.indrelid = {which} AND part.place <= i.indnkeyatts GROUP BY c.relname",
        name=table,
    )
    return _Found(
        {str(n): (str(kind), bool(null)) for n, kind, null in columns},
        [tuple(row[0]) for row in keys] or [()],
        frozenset(str(row[0]) for row in checks),
        {str(name): tuple(parts) for name, parts in indexes},
        frozenset((str(name), str(to)) for name, to in references),
        frozenset(str(row[0]) for row in filled),
    )

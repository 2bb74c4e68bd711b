"""Verbs over rows of data tables, where the two databases want different SQL.

Identifiers come from declared tables only; values are bound, but for literal prefixes that a program brings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from penstock.ledger.store import statements
from penstock.ledger.store.database import Database


def text_sql(database: Database, expression: str) -> str:
    """A document or an instant as text, in the form in which it can be written back without being read."""
    return f"CAST({expression} AS text)" if database.dialect == "postgresql" else expression


def update_unchanged(
    database: Database,
    table: sa.Table,
    *,
    key: Sequence[str],
    compared: Sequence[str],
    changed: Sequence[str],
    alike: Mapping[str, Any],
    rows: Sequence[Sequence[Any]],
) -> tuple[str, dict[str, Any]]:
    """Change those of the rows that are still as they were read; the statement and its parameters, of plain values.

    Each of `rows` has the values of `key`, `compared` (as they were read) and `changed` (as they shall be), in this
    order; a column may be in both. `alike` are columns that get the same value in every row. A row that somebody else
    is writing is left alone: nobody waits, and so nobody deadlocks.
    """
    types = {name: table.c[name].type for name in (*key, *compared)} | {
        f"to_{name}": table.c[name].type for name in changed
    }
    source = statements.batch(database, types)
    given: dict[str, Any] = {"batch": statements.batch_text(rows)}
    sets = [f"{name} = n_to_{name}" for name in changed]
    for name, value in alike.items():
        sets.append(f"{name} = {database.sql.parameter(f'alike_{name}', table.c[name].type)}")
        given[f"alike_{name}"] = value
    which = " AND ".join(f"t.{name} = n_{name}" for name in key)
    if database.dialect == "sqlite":
        unchanged = " AND ".join(f"t.{name} IS n_{name}" for name in compared)
        sql = f"UPDATE {table.name} AS t SET {', '.join(sets)} FROM {source} WHERE {which} AND {unchanged}"
        return sql, given
    unchanged = " AND ".join(f"t.{name} IS NOT DISTINCT FROM n_{name}" for name in compared)
    picks = ", ".join([*(f"n_{name}" for name in key), *(f"n_to_{name}" for name in changed)])
    mine = (
        f"SELECT {picks} FROM {source} JOIN {table.name} AS t ON {which}"
        f" WHERE {unchanged} FOR NO KEY UPDATE OF t SKIP LOCKED"
    )
    return (
        f"WITH mine AS MATERIALIZED ({mine}) UPDATE {table.name} AS t SET {', '.join(sets)} FROM mine WHERE {which}",
        given,
    )

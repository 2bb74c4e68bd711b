"""The views of a program: made with its tables, found when one is missing or is another.

A view that stands as it was made is left alone: on PostgreSQL its grants, and what others have built on it, go with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from penstock.ledger.store.database import Cursor, Database


def stale(database: Database, cursor: Cursor, views: Mapping[str, str]) -> dict[str, str]:
    """Those of the views that are not as this program wants them, and what is wrong with each."""
    there, kept = _there(database, cursor), _kept(cursor)
    found = {}
    for name, sql in views.items():
        if name not in there:
            found[name] = "is missing"
        elif there[name] != _statement(name, sql) and kept.get(name) != _digest(there[name], sql):
            found[name] = "was changed"
    return found


def clear(database: Database, cursor: Cursor, views: Mapping[str, str]) -> list[str]:
    """Drop what is stale, and every view declared after it, which may read it; their names, in order of declaration."""
    wrong, names = stale(database, cursor, views), list(views)
    again = names[min(map(names.index, wrong), default=len(names)) :]
    for name in reversed(again):
        cursor.run(f"DROP VIEW IF EXISTS {name}")
    return again


def make(database: Database, cursor: Cursor, views: Mapping[str, str]) -> None:
    """Make anew what is stale."""
    again = clear(database, cursor, views)
    for name in again:
        cursor.run(_statement(name, views[name]))
    if database.dialect == "sqlite":
        return
    words = _there(database, cursor)
    for name in again:
        # PostgreSQL keeps a view in words of its own; they are remembered, for a comparison later.
        cursor.run(
            "INSERT INTO penstock_meta (name, value) VALUES (:name, :value)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            name=f"view {name}",
            value=_digest(words[name], views[name]),
        )


def _statement(name: str, sql: str) -> str:
    return f"CREATE VIEW {name} AS {sql}"


def _there(database: Database, cursor: Cursor) -> dict[str, str]:
    """Name to definition, as the database keeps it: SQLite the statement, PostgreSQL the query in its own words."""
    if database.dialect == "sqlite":
        rows = cursor.rows("SELECT name, sql FROM sqlite_master WHERE type = 'view'")
    else:
        rows = cursor.rows(
            "SELECT relname, pg_get_viewdef(oid) FROM pg_class"
            " WHERE relkind = 'v' AND relnamespace = current_schema()::regnamespace"
        )
    return {str(name): str(definition) for name, definition in rows}


def _kept(cursor: Cursor) -> dict[str, str]:
    rows = cursor.rows("SELECT name, value FROM penstock_meta WHERE name LIKE 'view %'")
    return {str(name).removeprefix("view "): str(value) for name, value in rows}


def _digest(words: str, declared: str) -> str:
    """One digest of both: it differs when the view was changed, and when the program was."""
    return hashlib.sha256(f"{words}\n{declared}".encode()).hexdigest()

"""What a newer program added and an older one left where it is, when it was gone back to: columns, and a revision.

A column that a program does not know is refused by `penstock db upgrade`: it may be the old name of a new one, and
hold what would be missed. Going back on purpose says that it is not. It is then remembered here, a row of
`penstock_meta` each, until a program that knows it comes again.
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from penstock.ledger.schema.migrate import Track
from penstock.ledger.store.database import Cursor

_LEFT = "left "
_AHEAD = "ahead "


def left(cursor: Cursor) -> frozenset[tuple[str, str]]:
    """Table and name of every such column."""
    rows = cursor.rows("SELECT name FROM penstock_meta WHERE name LIKE :like", like=f"{_LEFT}%")
    found = (str(row[0]).removeprefix(_LEFT).partition(".") for row in rows)
    return frozenset((table, column) for table, _, column in found)


def leave(cursor: Cursor, columns: Iterable[tuple[str, str]]) -> None:
    """Remember columns as left."""
    for table, column in columns:
        cursor.run(
            "INSERT INTO penstock_meta (name, value) VALUES (:name, 'added by a newer program')"
            " ON CONFLICT (name) DO NOTHING",
            name=f"{_LEFT}{table}.{column}",
        )


def take_up(cursor: Cursor, tables: Iterable[sa.Table]) -> None:
    """Forget those that this program knows."""
    known = {(table.name, column.name) for table in tables for column in table.columns}
    for table, column in left(cursor) & known:
        cursor.run("DELETE FROM penstock_meta WHERE name = :name", name=f"{_LEFT}{table}.{column}")


def revision(cursor: Cursor, track: Track) -> int | None:
    """The revision of a newer program that was left in force, if one was."""
    rows = cursor.rows("SELECT value FROM penstock_meta WHERE name = :name", name=_AHEAD + track.key)
    return int(rows[0][0]) if rows else None


def note_revision(cursor: Cursor, track: Track, there: int) -> None:
    """Remember that the ledger stands at a revision that this program does not have; forget it when it has."""
    if there <= track.head():
        cursor.run("DELETE FROM penstock_meta WHERE name = :name", name=_AHEAD + track.key)
        return
    cursor.run(
        "INSERT INTO penstock_meta (name, value) VALUES (:name, :value)"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        name=_AHEAD + track.key,
        value=str(there),
    )

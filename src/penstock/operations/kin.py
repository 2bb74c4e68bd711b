"""Parents and children of a unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.operations.declare import Ask

if TYPE_CHECKING:
    from penstock.model.machine import Machine


def children_of(ask: Ask[Any], child: Machine, unit_id: str, most: int) -> list[str]:
    """Some units of a machine whose parent is that unit. None where their key does not begin with its key."""
    if child.parent is None or not ask.reader.keeps(child):
        return []
    by = tuple(child.parent.by)
    if tuple(child.unit.key)[: len(by)] != by:
        return []
    whole = "/" not in unit_id  # a key of one part, which an index finds
    among, values = ask.reader.database.sql.first_key(unit_id) if whole else ("1 = 1", {})
    sql = (
        f"SELECT unit_id FROM {child.table} WHERE {among} AND substr(unit_id, 1, :size) = :prefix"
        " ORDER BY unit_id LIMIT :most"
    )
    prefix = f"{unit_id}/"
    rows = ask.reader.read(lambda cursor: cursor.rows(sql, size=len(prefix), prefix=prefix, most=most, **values))
    return [f"{child.name}:{row[0]}" for row in rows]

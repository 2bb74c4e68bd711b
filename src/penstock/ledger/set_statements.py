"""The statements of a set move. What is picked stays locked to the end: every statement speaks of the same units.

The ids of the picked travel as one JSON text. On PostgreSQL rows that somebody else has locked are passed by; SQLite
has one writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.ledger.schema.tables import table_of
from penstock.ledger.store.database import Cursor, Database, Row
from penstock.ledger.store.statements import SqlType, batch, batch_text, state_list, which
from penstock.model.machine import Machine
from penstock.model.move_set import LOCKED, MOVED
from penstock.model.outcome import Where

if TYPE_CHECKING:
    from penstock.ledger.sets import PreparedSet

_IS_PARKED = "WHEN u.parked_at IS NOT NULL THEN 'parked'"


def pick(database: Database, cursor: Cursor, one: PreparedSet) -> str | None:
    """The ids of the units that go, as one JSON text; None when there are none."""
    if one.items is not None:
        sql, given = _picked_by_items(database, one, one.items)
    else:
        sql, given = _picked_by_columns(database, one)
    ((ids,),) = cursor.rows(f"SELECT {database.sql.gathered('unit_id')} FROM ({sql}) AS p", **given)
    return None if ids in {None, "[]"} else str(ids)


def left(database: Database, cursor: Cursor, one: PreparedSet) -> tuple[int, int, int]:
    """How many units of a set are free to go, how many are claimed, and of the others how many are parked."""
    source, condition, given = _by_columns(database, one)
    of = " AND ".join(filter(None, (condition, f"t.status IN ({state_list(one.sources)})")))
    kind = "0"
    if one.machine.driven:
        kind = f"CASE WHEN {_free(one, 't')} THEN 0 WHEN t.claimed_by IS NOT NULL THEN 1 ELSE 2 END"
    rows = cursor.rows(f"SELECT {kind}, count(*) FROM {source} WHERE {of} GROUP BY 1", **given)
    found = {int(number): int(count) for number, count in rows}
    return found.get(0, 0), found.get(1, 0), found.get(2, 0)


def _by_columns(database: Database, one: PreparedSet) -> tuple[str, str, dict[str, Any]]:
    """Where the units of a set that columns name come from, the condition, and its parameters."""
    columns = {one.machine.column(name): value for name, value in one.where.items()}
    condition, given, types, row = which(database, Where(table_of(database, one.machine), columns))
    source = f"{one.machine.table} AS t"
    if types:
        source = f"{batch(database, types)} CROSS JOIN {source}"
        given["batch"] = batch_text([row])
    return source, condition, given


def _picked_by_columns(database: Database, one: PreparedSet) -> tuple[str, dict[str, Any]]:
    source, condition, given = _by_columns(database, one)
    wanted = " AND ".join(filter(None, (condition, _free(one, "t"))))
    locked = database.sql.for_update("t", keys=False, skip=True)
    return f"SELECT t.unit_id FROM {source} WHERE {wanted} LIMIT {one.limit}{locked}", given


def _picked_by_items(database: Database, one: PreparedSet, items: Where) -> tuple[str, dict[str, Any]]:
    condition, given, types, row = which(database, items)
    given["batch"] = batch_text([row])
    listed = f"{batch(database, types)} CROSS JOIN {items.table.name} AS t"
    wanted = f"{condition} AND t.result IS NULL"
    unit = f"u.unit_id = t.unit_id AND u.version = t.version AND {_free(one, 'u')}"
    return database.sql.units_of_items(listed, wanted, one.machine.table, unit), given


def _free(one: PreparedSet, unit: str) -> str:
    parts = [f"{unit}.status IN ({state_list(one.sources)})"]
    if one.machine.driven:
        parts.append(f"{unit}.claimed_by IS NULL")
        if one.parked is not None:
            parts.append(f"{unit}.parked_at IS {'NOT ' if one.parked else ''}NULL")
    return " AND ".join(parts)


def change(database: Database, cursor: Cursor, one: PreparedSet, ids: str) -> int:
    """Change the picked units; how many there are."""
    machine, table = one.machine, table_of(database, one.machine)
    sets = [
        *([] if one.to is None else [f"status = '{one.to}'"]),
        "version = t.version + 1",
        "changed_by = :hand",
        "change_reason = :reason",
        f"changed_at = {database.now_sql}",
        *(f"{machine.column(name)} = {database.now_sql}" for name in one.now),
        *(f"{name} = t.{name} + {number:d}" for name, number in one.adds.items()),
    ]
    given: dict[str, Any] = {"ids": ids, "hand": one.hand, "reason": one.reason}
    if one.action_id is not None:
        sets.append("last_action = :action_id")
        given["action_id"] = one.action_id
    types: dict[str, SqlType] = {}
    for name in one.changes:
        column = machine.column(name)
        sets.append(f"{column} = n_{column}")
        types[column] = table.c[column].type
    if machine.driven:
        sets += [f"{name} = 0" for name in ("crashes", "suspicion") if name not in one.changes]
        if "suspicion" not in one.changes:
            sets.append("suspected_in = NULL")
    source = ""
    if types:
        source = f" FROM {batch(database, types)}"
        given["batch"] = batch_text([[*one.changes.values()]])
    return cursor.run(
        f"UPDATE {machine.table} AS t SET {', '.join(sets)}{source} WHERE t.unit_id IN ({database.sql.listed('ids')})",
        **given,
        **database.bind_now(),
    )


def parents(database: Database, cursor: Cursor, machine: Machine, parent: Machine, ids: str) -> list[Row]:
    """How many of the picked units each parent has, by the state they are in; a missing parent is None."""
    assert machine.parent is not None  # noqa: S101 - the caller asks for children of parents only
    by = ", ".join(machine.parent.by)
    same = " AND ".join(f"p.{k} = c.{b}" for b, k in zip(machine.parent.by, parent.unit.key, strict=True))
    # Counted first: a parent's key need not have an index of its own.
    picked = f"{machine.table} WHERE unit_id IN ({database.sql.listed('ids')})"
    counted = f"SELECT {by}, status, count(*) AS n FROM {picked} GROUP BY {by}, status"
    return cursor.rows(
        f"SELECT p.unit_id, c.status, c.n FROM ({counted}) AS c LEFT JOIN {parent.table} AS p ON {same} ORDER BY 1, 2",
        ids=ids,
    )


def tell_items(database: Database, cursor: Cursor, one: PreparedSet, ids: str) -> None:
    """Write into every item of the set what became of its unit."""
    if one.items is None:
        return
    condition, given, types, row = which(database, one.items)
    cases = [f"WHEN u.version <> t.version OR u.status NOT IN ({state_list(one.sources)}) THEN 'changed since'"]
    if one.machine.driven:
        cases.insert(0, "WHEN u.claimed_by IS NOT NULL THEN 'claimed by a worker'")
        cases.append({True: "WHEN u.parked_at IS NULL THEN 'not parked'", None: ""}.get(one.parked, _IS_PARKED))
    why = f"CASE {' '.join(cases)} ELSE '{LOCKED}' END"
    left = f"COALESCE((SELECT {why} FROM {one.machine.table} AS u WHERE u.unit_id = t.unit_id), 'gone')"
    result = f"CASE WHEN t.unit_id IN ({database.sql.listed('ids')}) THEN '{MOVED}' ELSE {left} END"
    cursor.run(
        f"UPDATE {one.items.table.name} AS t SET result = {result} FROM {batch(database, types)}"
        f" WHERE {condition} AND t.result IS NULL",
        batch=batch_text([row]),
        ids=ids,
        **given,
    )

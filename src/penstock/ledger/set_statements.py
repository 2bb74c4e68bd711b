"""The statements of a set move. What is picked stays locked to the end: every statement speaks of the same units.

The ids of the picked travel as one JSON text. On PostgreSQL rows that somebody else has locked are passed by; SQLite
has one writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.ledger.schema.tables import machine_table
from penstock.ledger.store.database import Cursor, Database, Row
from penstock.ledger.store.statements import SqlType, batch, batch_text, state_list, which
from penstock.model.machine import Machine
from penstock.model.move_set import MOVED
from penstock.model.outcome import Where

if TYPE_CHECKING:
    from penstock.ledger.sets import PreparedSet

_IDS = {
    "sqlite": "SELECT value FROM json_each(:ids)",
    "postgresql": "SELECT jsonb_array_elements_text(CAST(:ids AS jsonb))",
}


def pick(database: Database, cursor: Cursor, one: PreparedSet) -> str | None:
    """The ids of the units that go, as one JSON text; None when there are none."""
    unit = "t" if one.items is None else "u"
    if one.items is None:
        columns = {one.machine.column(name): value for name, value in one.where.items()}
        rows = Where(machine_table(one.machine, database.dialect), columns)
        begin, tail = f"{one.machine.table} AS t", f" LIMIT {one.limit}"
    else:
        rows = one.items
        begin, tail = f"{rows.table.name} AS t CROSS JOIN {one.machine.table} AS u", ""
    condition, given, types, row = which(database, rows)
    if types:
        # CROSS JOIN: SQLite goes from left to right, from what bounds the items to the items to their units.
        begin = f"{batch(database, types)} CROSS JOIN {begin}"
        given["batch"] = batch_text([row])
    parts = [condition, f"{unit}.status IN ({state_list(one.sources)})", *_free(one, unit)]
    if one.items is not None:
        parts += ["t.result IS NULL", "u.unit_id = t.unit_id", "u.version = t.version"]
    sql = f"SELECT {unit}.unit_id FROM {begin} WHERE {' AND '.join(filter(None, parts))}{tail}"
    if database.dialect == "postgresql":
        locked = f"{sql} FOR NO KEY UPDATE OF {unit} SKIP LOCKED"
        ((ids,),) = cursor.rows(f"SELECT CAST(jsonb_agg(unit_id) AS text) FROM ({locked}) AS p", **given)
        return None if ids is None else str(ids)
    ((ids,),) = cursor.rows(f"SELECT json_group_array(unit_id) FROM ({sql})", **given)
    return None if ids == "[]" else str(ids)


def _free(one: PreparedSet, unit: str) -> list[str]:
    if not one.machine.driven:
        return []
    parked = {None: [], False: [f"{unit}.parked_at IS NULL"], True: [f"{unit}.parked_at IS NOT NULL"]}
    return [f"{unit}.claimed_by IS NULL", *parked[one.parked]]


def change(database: Database, cursor: Cursor, one: PreparedSet, ids: str) -> int:
    """Change the picked units; how many there are."""
    machine, table = one.machine, machine_table(one.machine, database.dialect)
    sets = [
        *([] if one.to is None else [f"status = '{one.to}'"]),
        "version = t.version + 1",
        "changed_by = :hand",
        "change_reason = :reason",
        f"changed_at = {database.now_sql}",
        *(f"{machine.column(name)} = {database.now_sql}" for name in one.now),
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
        f"UPDATE {machine.table} AS t SET {', '.join(sets)}{source} WHERE t.unit_id IN ({_IDS[database.dialect]})",
        **given,
        **database.bind_now(),
    )


def parents(cursor: Cursor, machine: Machine, parent: Machine, ids: str, dialect: str) -> list[Row]:
    """How many of the picked units each parent has, by the state they are in; a missing parent is None."""
    assert machine.parent is not None  # noqa: S101 - the caller asks for children of parents only
    same = " AND ".join(f"p.{k} = c.{b}" for b, k in zip(machine.parent.by, parent.unit.key, strict=True))
    return cursor.rows(
        f"SELECT p.unit_id, c.status, count(*) FROM {machine.table} AS c LEFT JOIN {parent.table} AS p ON {same}"
        f" WHERE c.unit_id IN ({_IDS[dialect]}) GROUP BY 1, 2 ORDER BY 1, 2",
        ids=ids,
    )


def tell_items(database: Database, cursor: Cursor, one: PreparedSet, ids: str) -> None:
    """Write into every item of the set what became of its unit."""
    if one.items is None:
        return
    condition, given, types, row = which(database, one.items)
    cases = [
        f"WHEN u.version <> t.version OR u.status NOT IN ({state_list(one.sources)}) THEN 'changed since'",
        *(
            [f"WHEN u.parked_at IS {'NOT ' if not one.parked else ''}NULL THEN '{'not ' if one.parked else ''}parked'"]
            if one.machine.driven and one.parked is not None
            else []
        ),
    ]
    if one.machine.driven:
        cases.insert(0, "WHEN u.claimed_by IS NOT NULL THEN 'claimed by a worker'")
    why = f"CASE {' '.join(cases)} ELSE 'locked by somebody' END"
    left = f"COALESCE((SELECT {why} FROM {one.machine.table} AS u WHERE u.unit_id = t.unit_id), 'gone')"
    result = f"CASE WHEN t.unit_id IN ({_IDS[database.dialect]}) THEN '{MOVED}' ELSE {left} END"
    cursor.run(
        f"UPDATE {one.items.table.name} AS t SET result = {result} FROM {batch(database, types)}"
        f" WHERE {condition} AND t.result IS NULL",
        batch=batch_text([row]),
        ids=ids,
        **given,
    )

"""The machines' definitions in the ledger: who may work with which, and who may replace which.

The ledger keeps the definition that its triggers were made from, and the digests of those it replaced. So a program can
tell whether it is older than the ledger (its digest was replaced: it may work, where the ledger only added) or newer
(`penstock db upgrade` comes first), and an older program cannot overwrite the triggers of a newer one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from penstock.ledger.store.database import Cursor, Database
from penstock.model.errors import LedgerMismatch
from penstock.model.machine import Machine

_REPLACED = "replaced "


def stored(cursor: Cursor) -> dict[str, dict[str, Any]]:
    """Machine name to its definition in the ledger, with its digest."""
    rows = cursor.rows("SELECT name, digest, definition FROM machine_definition ORDER BY name")
    return {str(n): {**(json.loads(d) if isinstance(d, str) else d), "digest": str(digest)} for n, digest, d in rows}


def replaced(cursor: Cursor) -> frozenset[str]:
    """`machine digest` of every definition that a newer one replaced."""
    rows = cursor.rows("SELECT name FROM penstock_meta WHERE name LIKE :like", like=f"{_REPLACED}%")
    return frozenset(str(row[0]).removeprefix(_REPLACED) for row in rows)


def facts(machine: Machine) -> dict[str, Any]:
    """What the ledger keeps of a machine."""
    made = {
        **machine.rules(),
        "shape": machine.shape(),
        "tracked": list(machine.tracked),
        "fixed": list(machine.fixed),
        "counters": list(machine.counters),
        "siblings": machine.siblings,
        "judged": machine.judged,
    }
    plain: dict[str, Any] = json.loads(json.dumps(made))
    return plain


def _former(there: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """What a replaced definition, and those before it, allowed: the history goes on telling of it."""
    if there is None:
        return []
    return [*there.get("former", ()), {part: there[part] for part in ("initial", "transitions", "tracked", "judged")}]


def changed(cursor: Cursor, machines: Iterable[Machine]) -> set[str]:
    """The machines of which the ledger has another definition, or none."""
    known = stored(cursor)
    return {m.name for m in machines if known.get(m.name, {}).get("digest") != m.digest()}


def stale(cursor: Cursor, machines: Iterable[Machine]) -> dict[str, str]:
    """Machine name to the reason why this program cannot work with the ledger's definition of it."""
    known, old = stored(cursor), replaced(cursor)
    reasons: dict[str, str] = {}
    for machine in machines:
        there = known.get(machine.name)
        if there is not None and there["digest"] == machine.digest():
            continue
        if there is None or f"{machine.name} {machine.digest()}" not in old:
            reasons[machine.name] = "is not this program's; run 'penstock db upgrade'"
        elif lacking := unfit(there, facts(machine)):
            reasons[machine.name] = (
                f"is newer than this program's and has different {', '.join(lacking)}; use a newer program"
            )
    return reasons


def unfit(there: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """In what the ledger's definition did more than add to ours: then our program cannot work with it.

    A new edge, a new birth state, an actor more for either and a new column leave an older program's statements right.
    A new state does not: it would claim units that it cannot read. Nor does a column that must not change any more.
    """

    def pairs(definition: Mapping[str, Any]) -> set[tuple[str, str]]:
        return {(edge["source"], edge["target"]) for edge in definition["transitions"]}

    wrong = [part for part in ("table", "states", "terminal", "parent") if _plain(there, part) != _plain(ours, part)]
    wrong += [p for p in ("key", "due", "driven", "checks", "references") if there["shape"][p] != ours["shape"][p]]
    if not pairs(ours) <= pairs(there):
        wrong.append("edges")
    if not all(set(actors) <= set(there["initial"].get(state, ())) for state, actors in ours["initial"].items()):
        wrong.append("births")
    if not set(ours["counters"]) <= set(there["counters"]):
        wrong.append("counters")
    if not set(there.get("fixed", ())) <= set(ours["fixed"]):
        wrong.append("fixed columns")
    columns = there["shape"]["columns"]
    if any(columns.get(name) != kind for name, kind in ours["shape"]["columns"].items()):
        wrong.append("columns")
    return wrong


def _plain(definition: Mapping[str, Any], part: str) -> Any:
    found = definition.get(part)
    return sorted(found) if isinstance(found, list) else found


def refuse_stale(database: Database, cursor: Cursor, machines: Iterable[Machine]) -> None:
    """Raise LedgerMismatch unless this program can work with the ledger's definitions."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in stale(cursor, machines).items():
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        msg = f"{database.url}: the ledger's definition of {', '.join(sorted(names))} {reason}"
        raise LedgerMismatch(msg)


def refuse_older(database: Database, cursor: Cursor, machines: Iterable[Machine]) -> None:
    """Raise LedgerMismatch where a newer program has replaced a definition of this one."""
    old = replaced(cursor)
    ours = sorted(m.name for m in machines if f"{m.name} {m.digest()}" in old)
    if ours:
        msg = (
            f"{database.url}: a newer program has replaced the definition of {', '.join(ours)}; upgrade with that"
            " program, or go back to this one with --take-back"
        )
        raise LedgerMismatch(msg)


def refuse_other_shape(database: Database, cursor: Cursor, machine: Machine, *, migrated: bool) -> None:
    """Edges and new states come with the triggers; a changed table, or a state taken from under its units, does not.

    A column is the table's affair, and compared there. After a migration the table is what the migration says.
    """
    there = stored(cursor).get(machine.name)
    if there is None:
        return
    shape, wanted = there.get("shape", {}), facts(machine)["shape"]
    changed = sorted(part for part in wanted if part != "columns" and shape.get(part) != wanted[part])
    if changed and not migrated:
        what = ", ".join(changed)
        msg = f"{database.url}: table {machine.table} was made with different {what}; it needs a migration first"
        raise LedgerMismatch(msg)
    for (status,) in cursor.rows(f"SELECT DISTINCT status FROM {machine.table}"):
        if status not in machine.states:
            msg = (
                f"{database.url}: {machine.name} no longer has the state {status}, and units are in it; move them first"
            )
            raise LedgerMismatch(msg)


def record(database: Database, cursor: Cursor, machine: Machine) -> None:
    """Store the machine's definition. The one it replaces is remembered by its digest, and by what it allowed."""
    there = stored(cursor).get(machine.name)
    cursor.run(
        "INSERT INTO penstock_meta (name, value) SELECT :replaced || name || ' ' || digest, CAST(installed_at AS text)"
        " FROM machine_definition WHERE name = :name AND digest <> :digest"
        " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        replaced=_REPLACED,
        name=machine.name,
        digest=machine.digest(),
    )
    # Taken back on purpose, it is no longer an old one.
    cursor.run("DELETE FROM penstock_meta WHERE name = :name", name=f"{_REPLACED}{machine.name} {machine.digest()}")
    cursor.run(
        "INSERT INTO machine_definition (name, table_name, driven, due_column, digest, definition, installed_at)"
        f" VALUES (:name, :table, :driven, :due, :digest, :definition, {database.now_sql})"
        " ON CONFLICT (name) DO UPDATE SET table_name = excluded.table_name, driven = excluded.driven,"
        " due_column = excluded.due_column, digest = excluded.digest, definition = excluded.definition,"
        " installed_at = excluded.installed_at WHERE machine_definition.digest <> excluded.digest",
        name=machine.name,
        table=machine.table,
        driven=machine.driven,
        due=machine.due,
        digest=machine.digest(),
        definition=json.dumps({**facts(machine), "former": _former(there)}),
        **database.bind_now(),
    )

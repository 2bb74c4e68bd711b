"""The kernel's set-based statements, written once for both databases.

A batch is one JSON parameter, an array of arrays. `batch(columns)` makes it a row source whose columns are named
`n_<column>`, so that they never collide with the table's. Identifiers come from validated machines only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from penstock.ledger.columns import Document
from penstock.ledger.database import Database
from penstock.machine import Machine

_PG = postgresql.dialect()  # type: ignore[no-untyped-call]
_encode = msgspec.json.Encoder().encode
TEXT = sa.Text()
SqlType = sa.types.TypeEngine[Any]


def batch(database: Database, columns: Mapping[str, SqlType]) -> str:
    """The rows of the parameter `:batch` (made by `batch_text`), as `j`."""
    if database.dialect == "postgresql":
        kinds = {f"n_{name}": kind for name, kind in columns.items()}
        # A document travels as JSON text inside the JSON, so it is declared text and cast afterwards.
        picks = ", ".join(f"CAST({n} AS jsonb) AS {n}" if isinstance(k, Document) else n for n, k in kinds.items())
        shape = ", ".join(f"{n} {'text' if isinstance(k, Document) else k.compile(_PG)}" for n, k in kinds.items())
        return f"(SELECT {picks} FROM json_to_recordset(CAST(:batch AS json)) AS r({shape})) AS j"
    picks = ", ".join(f"value ->> {i} AS n_{name}" for i, name in enumerate(columns))
    return f"(SELECT {picks} FROM json_each(:batch)) AS j"


def batch_text(database: Database, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows of plain values as the `:batch` parameter: objects for PostgreSQL, arrays for SQLite, each the faster there."""
    if database.dialect == "postgresql":
        keys = [f"n_{name}" for name in names]
        return _encode([dict(zip(keys, row, strict=True)) for row in rows]).decode()
    return _encode(list(rows)).decode()


def least_due(due: str, now: str) -> str:
    """A wake-up: now, unless the unit is due before."""
    return f"CASE WHEN {due} IS NULL OR {due} > {now} THEN {now} ELSE {due} END"


def _when_ended(machine: Machine) -> str:
    # Nobody has anything to do with a unit that has ended, whoever asked for it meanwhile.
    return f"WHEN n_status IN ({_states(machine.terminal)}) THEN NULL " if machine.terminal else ""


def _unless_ended(machine: Machine) -> str:
    return f" AND t.status NOT IN ({_states(machine.terminal)})" if machine.terminal else ""


def _states(states: Iterable[str]) -> str:
    return ", ".join(f"'{s}'" for s in sorted(states))


def update_units(
    database: Database, machine: Machine, table: sa.Table, changed: Sequence[str], *, keep_claim: bool
) -> str:
    """Compare-and-set of units: id, version and status must match. Batch columns: see `commit.unit_row`."""
    types: dict[str, SqlType] = {
        "unit_id": sa.Text(),
        "version": sa.BigInteger(),
        "was": sa.Text(),
        "status": sa.Text(),
        "changed_by": sa.Text(),
        "change_reason": sa.Text(),
    }
    driven = machine.driven
    if driven:
        types |= {"wakes": sa.BigInteger(), "due_at": table.c[machine.due].type}
    types |= {name: table.c[name].type for name in changed}
    sets = [
        "status = n_status",
        "version = t.version + 1",
        "changed_by = n_changed_by",
        "change_reason = n_change_reason",
        f"changed_at = {database.now_sql}",
        *(f"{name} = n_{name}" for name in changed),
    ]
    if driven:
        due = f"t.{machine.due}"
        # A wake-up that came while the unit was claimed is not lost: the earlier of the two moments stands.
        sets.append(
            f"{machine.due} = CASE {_when_ended(machine)}WHEN t.wakes <> n_wakes AND {due} IS NOT NULL AND (n_due_at IS NULL OR {due} < n_due_at)"
            f" THEN {due} ELSE n_due_at END"
        )
        if not keep_claim:
            sets.append("claimed_by = NULL")
        if "crashes" not in changed:
            sets.append("crashes = 0")
    returning = ", ".join(machine.column(c) for c in machine.columns) if keep_claim else "unit_id"
    return (
        f"UPDATE {machine.table} AS t SET {', '.join(sets)} FROM {batch(database, types)}"
        f" WHERE t.unit_id = n_unit_id AND t.version = n_version AND t.status = n_was RETURNING {returning}"
    )


def insert_units(database: Database, machine: Machine, table: sa.Table, *, if_absent: bool) -> str:
    """Births. Batch columns: every column that is not generated, in table order."""
    names = [machine.column(c) for c in machine.columns if c not in machine.generated()]
    source = batch(database, {n: table.c[n].type for n in names if n != "changed_at"})
    picks = ", ".join(database.now_sql if n == "changed_at" else f"n_{n}" for n in names)
    tail = " ON CONFLICT DO NOTHING" if if_absent else ""
    return f"INSERT INTO {machine.table} ({', '.join(names)}) SELECT {picks} FROM {source} WHERE true{tail} RETURNING unit_id"


def upsert_rows(database: Database, table: sa.Table, names: Sequence[str], on_conflict: str) -> str:
    """Rows of a data table, by its primary key."""
    source = batch(database, {n: table.c[n].type for n in names})
    key = [c.name for c in table.primary_key]
    tail = ""
    if on_conflict == "ignore":
        tail = " ON CONFLICT DO NOTHING"
    elif on_conflict == "update":
        sets = ", ".join(f"{n} = excluded.{n}" for n in names if n not in key)
        tail = f" ON CONFLICT ({', '.join(key)}) DO " + (f"UPDATE SET {sets}" if sets else "NOTHING")
    picks = ", ".join(f"n_{n}" for n in names)
    return f"INSERT INTO {table.name} ({', '.join(names)}) SELECT {picks} FROM {source} WHERE true{tail}"


def lock_units(database: Database, table: str) -> str:
    """Take the row locks of a batch of units in one order, so that committers never deadlock over parents."""
    source = batch(database, {"unit_id": sa.Text()})
    tail = " FOR NO KEY UPDATE" if database.dialect == "postgresql" else ""
    return f"SELECT unit_id FROM {table} WHERE unit_id IN (SELECT n_unit_id FROM {source}) ORDER BY unit_id{tail}"


def tally(database: Database, table: str, counters: Sequence[str]) -> str:
    """Add to the counters of parents; their version stays, so that whoever holds them keeps them."""
    types: dict[str, SqlType] = {"unit_id": sa.Text()}
    types |= {c: sa.BigInteger() for c in counters}
    sets = ", ".join(f"{c} = t.{c} + n_{c}" for c in counters)
    return f"UPDATE {table} AS t SET {sets} FROM {batch(database, types)} WHERE t.unit_id = n_unit_id"


def wake_complete(database: Database, parent: Machine, child: Machine) -> str:
    """Wake the parents whose children have all ended: the counters say so, and so does the set of children."""
    assert child.parent is not None  # noqa: S101 - the caller asks for children of parents only
    fan_in = child.parent
    states = ", ".join(f"'{s}'" for group in fan_in.counts.values() for s in sorted(map(str, group)))
    total = " + ".join(f"t.{c}" for c in fan_in.counts)
    same = " AND ".join(f"c.{mine} = t.{theirs}" for mine, theirs in zip(fan_in.by, parent.unit.key, strict=True))
    source = batch(database, {"unit_id": sa.Text()})
    return (
        f"UPDATE {parent.table} AS t SET {parent.due} = {least_due('t.' + parent.due, database.now_sql)}, wakes = t.wakes + 1"
        f" WHERE t.unit_id IN (SELECT n_unit_id FROM {source}) AND {total} = t.{fan_in.expected}{_unless_ended(parent)}"
        f" AND (SELECT count(*) FROM {child.table} AS c WHERE {same} AND c.status IN ({states})) = t.{fan_in.expected}"
    )


def wake_units(database: Database, machine: Machine) -> str:
    """Bring units' attention forward to now, touching neither their version nor their claim; not those that ended."""
    source = batch(database, {"unit_id": sa.Text()})
    due = least_due("t." + machine.due, database.now_sql)
    return (
        f"UPDATE {machine.table} AS t SET {machine.due} = {due}, wakes = t.wakes + 1"
        f" WHERE t.unit_id IN (SELECT n_unit_id FROM {source}){_unless_ended(machine)} RETURNING unit_id"
    )


def claim(database: Database, machine: Machine) -> str:
    """Claim up to `:n` due units: a fair share from each open gate, gates in rotation after `:gate`, oldest first."""
    due, table, now = machine.due, machine.table, database.now_sql
    free = f"{due} IS NOT NULL AND claimed_by IS NULL AND parked_at IS NULL"
    sets = ["claimed_by = :worker", "version = t.version + 1", *_on_claim(database, machine)]
    # SQLite's RETURNING knows no alias, PostgreSQL's needs one beside the other row sources.
    alias = "t." if database.dialect == "postgresql" else ""
    returning = ", ".join(alias + machine.column(c) for c in machine.columns)
    if database.dialect == "postgresql":
        doors, picked = _doors_postgres(table, due, free, now), _pick_postgres(table, due, free)
        source = f"WITH {doors}, {picked} UPDATE {table} AS t SET {', '.join(sets)} FROM picked WHERE t.unit_id = picked.unit_id"
    else:
        doors, picked = _doors_sqlite(table, due, free), _pick_sqlite(table, due)
        source = f"WITH {doors} UPDATE {table} AS t SET {', '.join(sets)} WHERE unit_id IN ({picked})"
    return f"{source} RETURNING {returning}"


def _on_claim(database: Database, machine: Machine) -> list[str]:
    if not machine.on_claim:
        return []
    sources = ", ".join(f"'{s}'" for s in machine.on_claim)
    moves = " ".join(f"WHEN '{s}' THEN '{e.target}'" for s, e in machine.on_claim.items())
    reasons = " ".join(f"WHEN '{s}' THEN '{e.trigger}'" for s, e in machine.on_claim.items())
    return [
        f"status = CASE t.status {moves} ELSE t.status END",
        f"changed_by = CASE WHEN t.status IN ({sources}) THEN :actor ELSE t.changed_by END",
        f"change_reason = CASE t.status {reasons} ELSE t.change_reason END",
        f"changed_at = CASE WHEN t.status IN ({sources}) THEN {database.now_sql} ELSE t.changed_at END",
    ]


def _doors_postgres(table: str, due: str, free: str, now: str) -> str:
    # `me` holds a key-share lock on the worker's own row: a reaper, which wants FOR UPDATE, cannot free this
    # worker's units between this claim and its commit. LIMIT 1 makes the planner ask gate by gate: an EXISTS it
    # would turn round into one scan over all that is due.
    return f"""moment AS MATERIALIZED (SELECT {now} AS now),
me AS MATERIALIZED (SELECT id FROM worker WHERE id = :worker AND reaped_at IS NULL FOR KEY SHARE),
doors AS MATERIALIZED (SELECT g.gate_id FROM gate g CROSS JOIN LATERAL (
    SELECT FROM {table} d WHERE d.gate_id = g.gate_id AND d.{due} <= (SELECT now FROM moment) AND {free} LIMIT 1) AS waiting
  WHERE EXISTS (SELECT 1 FROM me) AND (g.closed_until IS NULL OR g.closed_until <= (SELECT now FROM moment))
  ORDER BY (g.gate_id > :gate) DESC, g.gate_id)"""


def _pick_postgres(table: str, due: str, free: str) -> str:
    return f"""picked AS MATERIALIZED (SELECT u.unit_id FROM doors CROSS JOIN LATERAL (
    SELECT unit_id FROM {table} c WHERE c.gate_id = doors.gate_id AND c.{due} <= (SELECT now FROM moment) AND {free}
    ORDER BY c.{due}, c.unit_id LIMIT (SELECT (:n + count(*) - 1) / greatest(count(*), 1) FROM doors)
    FOR NO KEY UPDATE SKIP LOCKED) u LIMIT :n)"""


def _doors_sqlite(table: str, due: str, free: str) -> str:
    # SQLite has no LATERAL: each gate's share is cut off at the (due, unit_id) of its last unit, found by OFFSET.
    due_units = f"FROM {table} k INDEXED BY {table}_due WHERE k.gate_id = g.gate_id AND k.{due} <= :now AND {free}"
    last = (
        f"{due_units} ORDER BY k.{due}, k.unit_id LIMIT 1 OFFSET (SELECT (:n + count(*) - 1) / count(*) - 1 FROM live)"
    )
    return f"""live AS MATERIALIZED (SELECT g.gate_id FROM gate g
  WHERE EXISTS (SELECT 1 FROM worker WHERE id = :worker AND reaped_at IS NULL)
    AND (g.closed_until IS NULL OR g.closed_until <= :now) AND EXISTS (SELECT 1 {due_units})
  ORDER BY g.gate_id > :gate DESC, g.gate_id),
doors AS MATERIALIZED (SELECT g.gate_id, COALESCE((SELECT k.{due} {last}), :now) AS last_due,
  COALESCE((SELECT k.unit_id {last}), char(1114111)) AS last_id FROM live g)"""


def _pick_sqlite(table: str, due: str) -> str:
    return f"""SELECT c.unit_id FROM doors CROSS JOIN {table} c INDEXED BY {table}_due
    WHERE c.gate_id = doors.gate_id AND c.{due} IS NOT NULL AND c.claimed_by IS NULL AND c.parked_at IS NULL
      AND (c.{due}, c.unit_id) <= (doors.last_due, doors.last_id) LIMIT :n"""


def least_due_behind_open_gates(database: Database, machine: Machine) -> str:
    """The earliest schedule of the machine behind any open gate."""
    due, table = machine.due, machine.table
    hint = f" INDEXED BY {table}_due" if database.dialect == "sqlite" else ""
    first = (
        f"SELECT d.{due} FROM {table} d{hint} WHERE d.gate_id = g.gate_id AND d.{due} IS NOT NULL"
        f" AND d.claimed_by IS NULL AND d.parked_at IS NULL ORDER BY d.{due} LIMIT 1"
    )
    return f"(SELECT min(({first})) FROM gate g WHERE g.closed_until IS NULL OR g.closed_until <= {database.now_sql})"


def release(database: Database, machine: Machine) -> str:
    """Give claimed units back; those whose step had begun count a crash.

    One version further the claim is still the same: an intent was committed whose answer nobody waited for.
    """
    types: dict[str, SqlType] = {
        "unit_id": TEXT,
        "version": sa.BigInteger(),
        "begun": sa.BigInteger(),
    }
    # COALESCE keeps the planners from the index on `claimed_by`: they would read the whole batch for every unit held.
    return (
        f"UPDATE {machine.table} AS t SET claimed_by = NULL, version = t.version + 1, crashes = t.crashes + n_begun"
        f" FROM {batch(database, types)} WHERE t.unit_id = n_unit_id AND t.version BETWEEN n_version AND n_version + 1"
        " AND COALESCE(t.claimed_by, '') = :worker"
    )


def suspects(database: Database, table: str, limit: int) -> str:
    """The workers of the batch once for every unit they hold that one more crash would park."""
    source = batch(database, {"unit_id": TEXT})
    return f"SELECT claimed_by FROM {table} WHERE claimed_by IN (SELECT n_unit_id FROM {source}) AND crashes >= {limit - 1}"


def free(database: Database, table: str, limit: int) -> str:
    """Take the units of dead workers (ids in the batch) away from them."""
    now = database.now_sql
    source = batch(database, {"unit_id": TEXT})
    return (
        f"UPDATE {table} SET claimed_by = NULL, version = version + 1, crashes = crashes + 1,"
        f" parked_at = CASE WHEN crashes + 1 >= {limit} THEN {now} ELSE parked_at END,"
        f" parked_reason = CASE WHEN crashes + 1 >= {limit} THEN 'its step killed {limit} workers in a row' ELSE parked_reason END"
        f" WHERE claimed_by IN (SELECT n_unit_id FROM {source}) RETURNING unit_id, version, crashes"
    )

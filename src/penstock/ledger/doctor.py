"""The doctor: looks for what must never be, and says where. It reads, and repairs nothing.

Each check is a function that yields findings; `examine` runs them all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock.ledger.budget import BREAKER_AFTER
from penstock.ledger.database import Cursor, Database
from penstock.ledger.finding import Finding
from penstock.ledger.gate_status import gate_statuses
from penstock.ledger.inspect import require_ledger, workers_of
from penstock.ledger.install import expected_postgres, expected_sqlite
from penstock.ledger.surroundings import surroundings
from penstock.ledger.views import stale
from penstock.machine import Actor, Machine

_MOST = 20
_LONG_OVER = 60.0


Check = Callable[[Database, Cursor, Mapping[str, Machine]], Iterator[Finding]]


def examine(
    database: Database,
    machines: Mapping[str, Machine],
    progress: Callable[[str], None] = lambda _: None,
    views: Mapping[str, str] | None = None,
) -> list[Finding]:
    """Run every check, each on its own snapshot. `views` are those of the program, name to query."""
    database.read(lambda cursor: require_ledger(database, cursor))
    found: list[Finding] = []
    last: dict[str, Check] = {"views": lambda database, cursor, _: changed_views(database, cursor, views or {})}
    for name, check in (CHECKS | last).items():
        progress(name)

        def work(cursor: Cursor, check: Check = check) -> list[Finding]:
            if database.dialect == "postgresql":
                cursor.run(
                    "SET LOCAL statement_timeout = 0"
                )  # a large history takes its time, and is asked for by hand
            return list(check(database, cursor, machines))

        found += database.read(work)
    return found


def _definitions(cursor: Cursor) -> list[tuple[str, str, bool, str, dict[str, Any]]]:
    rows = cursor.rows("SELECT name, table_name, driven, due_column, definition FROM machine_definition ORDER BY name")
    return [(r[0], r[1], bool(r[2]), r[3], json.loads(r[4]) if isinstance(r[4], str) else r[4]) for r in rows]


def _states(_: Database, cursor: Cursor, __: Mapping[str, Machine]) -> Iterator[Finding]:
    """Every unit is in a state of its machine."""
    for name, table, _driven, _due, definition in _definitions(cursor):
        known = set(definition["states"])
        for status, count in cursor.rows(f"SELECT status, count(*) FROM {table} GROUP BY status"):
            if status not in known:
                yield Finding("states", name, f"{count:,} units are in the unknown state {status}")


def _present(_: Database, cursor: Cursor, __: Mapping[str, Machine]) -> Iterator[Finding]:
    """The last row of a unit's history says what the unit is now; a unit that is gone has a death."""
    for name, table, *_rest in _definitions(cursor):
        rows = cursor.rows(
            f"""WITH newest AS (SELECT unit_id, max(seq) AS seq FROM transition_log WHERE machine = :machine GROUP BY unit_id),
                     told AS (SELECT n.unit_id, l.to_status FROM newest n JOIN transition_log l
                              ON l.machine = :machine AND l.unit_id = n.unit_id AND l.seq = n.seq)
                SELECT u.unit_id, u.status, told.to_status FROM {table} u LEFT JOIN told ON told.unit_id = u.unit_id
                 WHERE told.to_status IS NULL OR told.to_status <> u.status
                UNION ALL
                SELECT told.unit_id, NULL, told.to_status FROM told
                 WHERE told.to_status IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {table} u WHERE u.unit_id = told.unit_id)
                LIMIT {_MOST}""",
            machine=name,
        )
        for unit_id, status, told in rows:
            text = f"is {status or 'gone'}, but its history ends with {told or 'nothing'}"
            yield Finding("present", f"{name}:{unit_id}", text)


def _contiguous(_: Database, cursor: Cursor, __: Mapping[str, Machine]) -> Iterator[Finding]:
    """Each row of a history starts where the row before it ended, and a unit's first row is its birth."""
    rows = cursor.rows(
        f"""SELECT machine, unit_id, seq, from_status, before FROM (
              SELECT machine, unit_id, seq, from_status,
                     lag(to_status) OVER (PARTITION BY machine, unit_id ORDER BY seq) AS before FROM transition_log) AS h
             WHERE COALESCE(from_status, '') <> COALESCE(before, '') LIMIT {_MOST}"""
    )
    for machine, unit_id, seq, source, before in rows:
        text = f"history row {seq} starts at {source or 'birth'}, the row before ended at {before or 'nothing'}"
        yield Finding("contiguous", f"{machine}:{unit_id}", text)


def _counters(_: Database, cursor: Cursor, machines: Mapping[str, Machine]) -> Iterator[Finding]:
    """A parent's counters equal the sets of its children."""
    for child in machines.values():
        if child.parent is None or child.parent.machine not in machines:
            continue
        parent = machines[child.parent.machine]
        same = " AND ".join(f"c.{a} = p.{b}" for a, b in zip(child.parent.by, parent.unit.key, strict=True))
        for counter, states in child.parent.counts.items():
            listed = ", ".join(f"'{s}'" for s in sorted(map(str, states)))
            rows = cursor.rows(
                f"""SELECT unit_id, counter, children FROM (SELECT p.unit_id, p.{counter} AS counter,
                      (SELECT count(*) FROM {child.table} c WHERE {same} AND c.status IN ({listed})) AS children
                      FROM {parent.table} p) AS s WHERE counter <> children LIMIT {_MOST}"""
            )
            for unit_id, count, children in rows:
                yield Finding(
                    "counters", f"{parent.name}:{unit_id}", f"{counter} is {count}, its children are {children}"
                )


def _claims(_: Database, cursor: Cursor, __: Mapping[str, Machine]) -> Iterator[Finding]:
    """Every claim belongs to a worker that may still answer for it."""
    for name, table, driven, _due, _definition in _definitions(cursor):
        if not driven:
            continue
        rows = cursor.rows(
            f"SELECT t.claimed_by, count(*) FROM {table} t WHERE t.claimed_by IS NOT NULL AND NOT EXISTS"
            " (SELECT 1 FROM worker w WHERE w.id = t.claimed_by AND w.reaped_at IS NULL) GROUP BY t.claimed_by"
        )
        for worker, count in rows:
            yield Finding("claims", name, f"{count:,} units are claimed by {worker}, which is gone")
        rows = cursor.rows(
            f"SELECT t.gate_id, count(*) FROM {table} t WHERE NOT EXISTS"
            " (SELECT 1 FROM gate g WHERE g.gate_id = t.gate_id) GROUP BY t.gate_id"
        )
        for gate, count in rows:
            yield Finding("claims", name, f"{count:,} units stand behind the gate {gate!r}, which does not exist")


def _validated(_: Database, cursor: Cursor, machines: Mapping[str, Machine]) -> Iterator[Finding]:
    """Where validators decide, no state was written past them."""
    installed = {name for name, *_rest in _definitions(cursor)}
    for machine in machines.values():
        judged = any(set(edge.actors) == {Actor.VALIDATOR} for edge in machine.edges)
        if machine.driven or not judged or machine.name not in installed:
            continue
        rows = cursor.rows(
            f"SELECT unit_id, status FROM {machine.table} WHERE changed_by = 'sql' ORDER BY unit_id LIMIT {_MOST}"
        )
        for unit_id, status in rows:
            text = f"was made {status} by SQL and not by a validator; have it validated again"
            yield Finding("validated", f"{machine.name}:{unit_id}", text)


def _leases(database: Database, cursor: Cursor, _: Mapping[str, Machine]) -> Iterator[Finding]:
    """A worker whose lease is long over is taken over by another, if there is one."""
    workers = workers_of(database, cursor)
    alive = any(w.lease_seconds > 0 for w in workers)
    for worker in workers:
        if worker.lease_seconds < -_LONG_OVER:
            text = f"its lease ended {-worker.lease_seconds:,.0f} s ago and nobody has taken its units over"
            why = "" if alive else "; no worker is running"
            yield Finding("leases", worker.id, text + why, "error" if alive else "warning")


def _gates(database: Database, cursor: Cursor, _: Mapping[str, Machine]) -> Iterator[Finding]:
    """No gate is stopped or broken without somebody's knowing; its limits are where they are asked for."""
    for gate in gate_statuses(database, cursor):
        if gate.state == "stopped":
            text = f"stopped: {gate.reason}; mend the configuration, or 'penstock providers resume {gate.gate_id}'"
            yield Finding("gates", gate.gate_id, text, "warning")
        elif gate.throttles > BREAKER_AFTER:
            yield Finding("gates", gate.gate_id, f"closed {gate.throttles} times in a row: {gate.reason}", "warning")
    rows = cursor.rows(
        "SELECT g.gate_id FROM gate g WHERE NOT g.metered AND EXISTS"
        " (SELECT 1 FROM gate_limit l WHERE l.gate_id = g.gate_id)"
    )
    for (gate_id,) in rows:
        yield Finding("gates", gate_id, "has limits that no claim asks for; restart a worker with the configuration")


def _place(database: Database, cursor: Cursor, _: Mapping[str, Machine]) -> Iterator[Finding]:
    """Settings, disk and whoever holds the database back: see `surroundings`."""
    yield from surroundings(database, cursor)


def _permits(_: Database, cursor: Cursor, __: Mapping[str, Machine]) -> Iterator[Finding]:
    """No permit to prune was left open."""
    for permit, machine, actor in cursor.rows("SELECT id, machine, actor FROM prune_permit WHERE open"):
        yield Finding("permits", machine, f"permit {permit} of {actor} is open: units can be deleted without a word")


def _definition_digests(_: Database, cursor: Cursor, machines: Mapping[str, Machine]) -> Iterator[Finding]:
    """The ledger's triggers were made from the definitions this program has."""
    known = {str(n): str(d) for n, d in cursor.rows("SELECT name, digest FROM machine_definition")}
    for name, machine in machines.items():
        if name in known and known[name] != machine.digest():
            yield Finding("definitions", name, "the ledger has another definition; run 'penstock db upgrade'")


def _triggers(database: Database, cursor: Cursor, machines: Mapping[str, Machine]) -> Iterator[Finding]:
    """Every generated trigger is there, as generated, and switched on."""
    installed = [machines[name] for name, *_ in _definitions(cursor) if name in machines]
    find = _triggers_sqlite if database.dialect == "sqlite" else _triggers_postgres
    for name, what in find(cursor, installed):
        yield Finding("triggers", name, f"{what}; run 'penstock db upgrade'")


def changed_views(database: Database, cursor: Cursor, views: Mapping[str, str]) -> Iterator[Finding]:
    """Every view of the program is there, and shows what the program says."""
    for name, what in stale(database, cursor, views).items():
        yield Finding("views", name, f"the view {what}; run 'penstock db upgrade'")


def _triggers_sqlite(cursor: Cursor, machines: list[Machine]) -> Iterator[tuple[str, str]]:
    there = {str(n): str(s) for n, s in cursor.rows("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")}
    for name, sql in expected_sqlite(cursor, machines).items():
        if name not in there:
            yield name, "is missing"
        elif there[name] != sql:
            yield name, "was changed"


def _triggers_postgres(cursor: Cursor, machines: list[Machine]) -> Iterator[tuple[str, str]]:
    functions, triggers = expected_postgres(cursor, machines)
    rows = cursor.rows(
        "SELECT tgname, tgenabled::text, md5(pg_get_triggerdef(oid)) = (SELECT value FROM penstock_meta WHERE name ="
        " 'trigger ' || tgname) FROM pg_trigger WHERE NOT tgisinternal AND tgname LIKE 'penstock%'"
    )
    there = {str(name): (enabled, same) for name, enabled, same in rows}
    for name in triggers:
        enabled, same = there.get(name, (None, None))
        if enabled is None:
            yield name, "is missing"
        elif enabled != "A":
            yield name, "is switched off"
        elif not same:
            yield name, "was changed"
    rows = cursor.rows("SELECT proname, prosrc FROM pg_proc WHERE proname LIKE 'penstock%'")
    bodies = {str(n): _digest(str(s)) for n, s in rows}
    for name, sql in functions.items():
        if bodies.get(name) != _digest(sql.split("$body$")[1]):
            yield name, "has a function that is missing or was changed"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


CHECKS: dict[str, Check] = {
    "states": _states,
    "present": _present,
    "contiguous": _contiguous,
    "counters": _counters,
    "claims": _claims,
    "validated": _validated,
    "leases": _leases,
    "gates": _gates,
    "permits": _permits,
    "place": _place,
    "definitions": _definition_digests,
    "triggers": _triggers,
}
NAMES = (*CHECKS, "views")

"""The doctor: looks for what is wrong, and says where. It reads, and repairs nothing.

Each check is a function that yields findings; `examine` runs them all. How much of the ledger the larger ones look at is
told by a scope (see `look`); the others are quick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta

from penstock.ledger.care import doctor_flow, doctor_guards, doctor_history, doctor_standstill
from penstock.ledger.care.doubt import restored
from penstock.ledger.care.finding import Finding
from penstock.ledger.care.look import WHOLE, Scope
from penstock.ledger.gates.budget import breaker_open
from penstock.ledger.gates.status import gate_statuses
from penstock.ledger.history import require_ledger, workers_of
from penstock.ledger.schema import seals
from penstock.ledger.schema.columns import UNREADABLE
from penstock.ledger.schema.definitions import facts, stored
from penstock.ledger.schema.views import stale
from penstock.ledger.store.database import Cursor, Database
from penstock.model.machine import Machine

_MOST = 20
_LONG_OVER = 60.0


Check = Callable[[Database, Cursor, Mapping[str, Machine]], Iterator[Finding]]
ScopedCheck = Callable[[Database, Cursor, Mapping[str, Machine], Scope], Iterator[Finding]]


def examine(
    database: Database,
    machines: Mapping[str, Machine],
    progress: Callable[[str], None] = lambda _: None,
    views: Mapping[str, str] | None = None,
    *,
    deadlines: Mapping[str, timedelta] | None = None,
    further: Mapping[str, Check] | None = None,
    scope: Scope = WHOLE,
) -> list[Finding]:
    """Run every check, each on its own snapshot.

    `views` are those of the program, name to query; `deadlines` say how long a step of each machine's may take; `further`
    are checks of the caller's.
    """
    database.read(lambda cursor: require_ledger(database, cursor))
    found: list[Finding] = []
    last: dict[str, Check] = {
        "overdue": lambda database, cursor, _: doctor_standstill.overdue(database, cursor, deadlines or {}),
        "views": lambda database, cursor, _: changed_views(database, cursor, views or {}),
        **(further or {}),
    }
    for name, check in (CHECKS | {name: _whole(check) for name, check in last.items()}).items():
        progress(name)

        def work(cursor: Cursor, check: ScopedCheck = check) -> list[Finding]:
            return list(check(database, cursor, machines, scope))

        try:
            # A large history takes its time, and is asked for by hand.
            found += database.read(work, patient=True)
        except UNREADABLE as error:  # somebody's SQL; `constraints` says where
            found.append(Finding(name, "the ledger", f"this could not be checked: {error}"))
    return found


def _whole(check: Check) -> ScopedCheck:
    """A check that is quick, whatever the scope."""
    return lambda database, cursor, machines, _: check(database, cursor, machines)


def _states(_: Database, cursor: Cursor, __: Mapping[str, Machine], scope: Scope) -> Iterator[Finding]:
    """Every unit is in a state of its machine."""
    for name, definition in stored(cursor).items():
        known, which = set(definition["states"]), scope.units(name, "unit_id")
        sql = f"SELECT status, count(*) FROM {definition['table']} WHERE {which} GROUP BY status"
        for status, count in cursor.rows(sql):
            if status not in known:
                yield Finding("states", name, f"{count:,} units are in the unknown state {status}")


def _counters(_: Database, cursor: Cursor, machines: Mapping[str, Machine], scope: Scope) -> Iterator[Finding]:
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
                      FROM {parent.table} p WHERE {scope.parents(child, parent, same)}) AS s WHERE counter <> children LIMIT {_MOST}"""
            )
            for unit_id, count, children in rows:
                yield Finding(
                    "counters",
                    f"{parent.name}:{unit_id}",
                    f"{counter} is {count}, but {children} of its children count",
                )


def _seals(_: Database, cursor: Cursor, machines: Mapping[str, Machine], scope: Scope) -> Iterator[Finding]:
    """No child is in a state that its parent's state bars."""
    for family in seals.families(machines.values()):
        which = scope.parents(family.child, family.parent, family.same_parent("p.", "c."))
        for parent_id, state, child_id, status in seals.broken(cursor, family, _MOST, which):
            text = f"is {status} under {family.parent.name}:{parent_id}, which is {state}; move one of them"
            yield Finding("seals", f"{family.child.name}:{child_id}", text)


def _claims(_: Database, cursor: Cursor, __: Mapping[str, Machine], scope: Scope) -> Iterator[Finding]:
    """Every claim belongs to a worker that may still answer for it."""
    for name, definition in stored(cursor).items():
        if not definition["shape"]["driven"]:
            continue
        table = definition["table"]
        rows = cursor.rows(
            f"SELECT t.claimed_by, count(*) FROM {table} t WHERE t.claimed_by IS NOT NULL AND NOT EXISTS"
            " (SELECT 1 FROM worker w WHERE w.id = t.claimed_by AND w.reaped_at IS NULL) GROUP BY t.claimed_by"
        )
        for worker, count in rows:
            are = "unit is" if count == 1 else "units are"
            yield Finding("claims", name, f"{count:,} {are} claimed by {worker}, which is gone")
        rows = cursor.rows(
            f"SELECT t.gate_id, count(*) FROM {table} t WHERE {scope.units(name, 't.unit_id')} AND NOT EXISTS"
            " (SELECT 1 FROM gate g WHERE g.gate_id = t.gate_id) GROUP BY t.gate_id"
        )
        for gate, count in rows:
            yield Finding("claims", name, f"{count:,} units wait behind the gate {gate!r}, which does not exist")


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
            text = f"stopped: {gate.reason}; mend the configuration, or 'penstock gates resume {gate.gate_id}'"
            yield Finding("gates", gate.gate_id, text, "warning")
        elif breaker_open(gate.throttles, gate.failures):
            yield Finding("gates", gate.gate_id, f"closed {gate.throttles} times in a row: {gate.reason}", "warning")
    rows = cursor.rows(
        "SELECT g.gate_id FROM gate g WHERE NOT g.metered AND EXISTS"
        " (SELECT 1 FROM gate_limit l WHERE l.gate_id = g.gate_id)"
    )
    for (gate_id,) in rows:
        yield Finding("gates", gate_id, "has limits that claims ignore; restart a worker with this configuration")


def _place(database: Database, cursor: Cursor, _: Mapping[str, Machine]) -> Iterator[Finding]:
    """Settings, disk and whoever holds the database back: see `Database.surroundings`. A restored ledger must be put in doubt."""
    yield from database.surroundings(cursor)
    message = restored(database, cursor)
    if message is not None:
        yield Finding("place", database.url, message)


def _definition_digests(_: Database, cursor: Cursor, machines: Mapping[str, Machine]) -> Iterator[Finding]:
    """The ledger's triggers were made from the definitions this program has."""
    known = stored(cursor)
    for name, machine in machines.items():
        if name in known and known[name]["digest"] != machine.digest():
            yield Finding("definitions", name, "the ledger has another definition; run 'penstock db upgrade'")
        elif name in known and any(known[name].get(part) != fact for part, fact in facts(machine).items()):
            yield Finding("definitions", name, "somebody has changed the ledger's definition; restore it from a backup")


def changed_views(database: Database, cursor: Cursor, views: Mapping[str, str]) -> Iterator[Finding]:
    """Every view of the program is there, and shows what the program says."""
    for name, what in stale(database, cursor, views).items():
        yield Finding("views", name, f"the view {what}; run 'penstock db upgrade'")


CHECKS: dict[str, ScopedCheck] = {
    "states": _states,
    "present": doctor_history.present,
    "contiguous": doctor_history.contiguous,
    "pairs": doctor_history.pairs,
    "flow": doctor_flow.flow,
    "counters": _counters,
    "seals": _seals,
    "claims": _claims,
    "validated": doctor_history.validated,
    "leases": _whole(_leases),
    "gates": _whole(_gates),
    "permits": doctor_history.permits,
    "place": _whole(_place),
    "definitions": _whole(_definition_digests),
    "triggers": _whole(doctor_guards.triggers),
    "constraints": doctor_guards.constraints,
    "due": _whole(doctor_standstill.due),
    "families": _whole(doctor_standstill.families),
    "clock": doctor_standstill.clock,
}
NAMES = (*CHECKS, "overdue", "views")

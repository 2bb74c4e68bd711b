"""Units that nobody can answer for: those of workers that died are freed, those of unknown machines are set aside."""

from __future__ import annotations

import json
from collections import Counter

from penstock.ledger import statements
from penstock.ledger.commit import insert_events
from penstock.ledger.database import Cursor, Database, Row

CRASH_LIMIT = 3
UNKNOWN_MACHINE = "no running worker knows this machine"
_NEVER = 2**31
_PARKING_LOCK = 8025315


def reap(database: Database, cursor: Cursor, me: str = "") -> int:
    """Free what expired workers hold: version + 1, crashes + 1, parked with an alert at the third crash in a row.

    Of several that were held together and would be parked none is: who killed the worker shows when each is held alone.
    """
    expired = (
        f"lease_until < {database.lease_now_sql}"
        if database.dialect == "postgresql"
        else "(lease_until < :uptime OR boot_id IS NOT :boot_id)"
    )
    lock = " FOR UPDATE SKIP LOCKED" if database.dialect == "postgresql" else ""
    now = database.bind_now()
    # Never oneself: after an outage longer than the lease, what is finished is offered for commit first.
    sql = f"SELECT id FROM worker WHERE reaped_at IS NULL AND id <> :me AND {expired}{lock}"
    dead = [r[0] for r in cursor.rows(sql, me=me, **now)]
    if not dead:
        return 0
    text = statements.batch_text([[d] for d in dead])
    freed = 0
    tables = driven_tables(cursor)
    found = [r for _, t, _ in tables for r in cursor.rows(statements.suspects(database, t, CRASH_LIMIT), batch=text)]
    suspects = Counter(str(worker) for (worker,) in found)
    alone = [[d] for d in dead if suspects[d] <= 1]
    crowded = [[d] for d in dead if suspects[d] > 1]
    for name, table, _ in tables:
        parked: list[Row] = []
        for workers, limit in ((alone, CRASH_LIMIT), (crowded, _NEVER)):
            if workers:
                those = statements.batch_text(workers)
                rows = cursor.rows(statements.free(database, table, limit), batch=those, **now)
                freed += len(rows)
                parked += [r for r in rows if r[2] >= limit]
        if parked:
            alerts = [
                [
                    "default",
                    f"unit.parked:{name}:{unit_id}:{version}",
                    "unit.parked",
                    "critical",
                    json.dumps({"unit": f"{name}:{unit_id}", "reason": f"its step killed {crashes} workers in a row"}),
                    name,
                    unit_id,
                    f"{name}:{unit_id}@{version}",
                ]
                for unit_id, version, crashes in parked
            ]
            insert_events(database, cursor, alerts)
    source = statements.batch(database, {"unit_id": statements.TEXT})
    cursor.run(
        f"UPDATE worker SET reaped_at = {database.now_sql} WHERE id IN (SELECT n_unit_id FROM {source})",
        batch=text,
        **now,
    )
    return freed


def driven_tables(cursor: Cursor) -> list[tuple[str, str, str]]:
    """(machine, table, due column) of every driven machine in the ledger, known here or not."""
    rows = cursor.rows("SELECT name, table_name, due_column FROM machine_definition WHERE driven ORDER BY name")
    return [(str(a), str(b), str(c)) for a, b, c in rows]


def lock_parking(database: Database, cursor: Cursor) -> None:
    """Until the end of the transaction no worker comes while units are parked for want of it."""
    if database.dialect == "postgresql":
        cursor.run(f"SELECT pg_advisory_xact_lock({_PARKING_LOCK})")


def park_unknown(database: Database, cursor: Cursor) -> int:
    """Park due units of machines that no running worker knows, and raise an alert; never discard them."""
    lock_parking(database, cursor)
    now = database.bind_now()
    lists = cursor.rows("SELECT machines FROM worker WHERE reaped_at IS NULL")
    known = {n for row in lists for n in (json.loads(row[0]) if isinstance(row[0], str) else row[0])}
    parked = 0
    for name, table, due in driven_tables(cursor):
        if name in known:
            continue
        free = f"{due} <= {database.now_sql} AND claimed_by IS NULL AND parked_at IS NULL"
        count = cursor.run(
            f"UPDATE {table} SET parked_at = {database.now_sql}, parked_reason = :reason, version = version + 1"
            f" WHERE unit_id IN (SELECT unit_id FROM {table} WHERE {free} LIMIT 1000)",
            reason=UNKNOWN_MACHINE,
            **now,
        )
        if count:
            parked += count
            day = str(cursor.rows(f"SELECT {database.now_sql}", **now)[0][0])[:10]
            alert = [
                "default",
                f"unknown-machine:{name}:{day}",
                "machine.unknown",
                "critical",
                json.dumps({"machine": name}),
                name,
                None,
            ]
            insert_events(database, cursor, [alert])
    return parked

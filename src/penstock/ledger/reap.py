"""Units that nobody can answer for: those of workers that died are freed, those of unknown machines are set aside."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from datetime import timedelta

from penstock.ledger.commit import insert_events
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.ledger.suspicion import Table, accuse, free
from penstock.model.machine import Actor, Machine

UNKNOWN_MACHINE = "no running worker knows this machine"
AT_ONCE = 1_000
_PARKING_LOCK = 8025315
#: So long a call that was under way when its process died may take to arrive, before anybody looks for it.
SETTLE_SECONDS = 5.0


def reap(database: Database, cursor: Cursor, me: str = "", *, grace_ms: int = 0, dead: Collection[str] = ()) -> int:
    """Free what expired workers hold, in doubt and, unless the machine was restarted, under suspicion; how many units.

    `grace_ms`: a server that has just started has nobody's renewals yet; for so long it takes no worker for dead. `dead`
    are workers whose processes have ended: their leases are not waited for, but a call that was under way is.
    """
    expired, left, same_boot = database.lease_over_sql(grace_ms), database.lease_left_sql, database.same_boot_sql
    source = statements.batch(database, {"unit_id": statements.TEXT})
    now = database.bind_now()
    # Never oneself: after an outage longer than the lease, what is finished is offered for commit first.
    rows = cursor.rows(
        f"SELECT id, {same_boot}, {left}, {expired} FROM worker WHERE reaped_at IS NULL AND id <> :me"
        f" AND ({expired} OR id IN (SELECT n_unit_id FROM {source})){database.sql.for_update(skip=True)}",
        me=me,
        batch=statements.batch_text([[worker] for worker in dead]),
        **now,
    )
    if not rows:
        return 0
    cursor.run(
        f"UPDATE worker SET reaped_at = {database.now_sql} WHERE id IN (SELECT n_unit_id FROM {source})",
        batch=statements.batch_text([[worker] for worker, *_ in rows]),
        **now,
    )
    tables = driven_tables(cursor)
    over = [str(worker) for worker, here, _, is_over in rows if here and is_over]
    early = {str(worker): float(seconds) for worker, here, seconds, is_over in rows if here and not is_over}
    gone = [str(worker) for worker, here, _, _ in rows if not here]
    freed = accuse(database, cursor, tables, over) + free(database, cursor, tables, gone)
    if early:
        settle = min(SETTLE_SECONDS, max(0.0, *early.values()))
        freed += accuse(database, cursor, tables, list(early), settle=timedelta(seconds=settle))
    return freed


def driven_tables(cursor: Cursor) -> list[Table]:
    """Every driven machine in the ledger, known here or not."""
    rows = cursor.rows("SELECT name, table_name, due_column FROM machine_definition WHERE driven ORDER BY name")
    return [Table(*map(str, row)) for row in rows]


def lock_parking(database: Database, cursor: Cursor) -> None:
    """Until the end of the transaction no worker comes while units are parked for want of it."""
    database.sql.lock(cursor, _PARKING_LOCK)


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
        park = f"UPDATE {table} SET parked_at = {database.now_sql}, parked_reason = :reason, version = version + 1"
        count = 0
        for waiting in (statements.waiting(due), statements.waiting(due, suspects=True)):
            which = f"SELECT unit_id FROM {table} WHERE {waiting} AND {due} <= {database.now_sql} LIMIT {AT_ONCE}"
            count += cursor.run(f"{park} WHERE unit_id IN ({which})", reason=UNKNOWN_MACHINE, **now)
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


def unpark_known(database: Database, cursor: Cursor, machines: Iterable[Machine], me: str) -> int:
    """Take up units that `park_unknown` parked, now that this worker knows them; a thousand at a time, how many."""
    count = 0
    for machine in machines:
        # Without its moment a unit would count as never parked.
        count += cursor.run(
            f"UPDATE {machine.table} SET parked_at = NULL, parked_reason = NULL, version = version + 1,"
            f" changed_by = :by, change_reason = :says, changed_at = {database.now_sql} WHERE unit_id IN (SELECT unit_id FROM {machine.table} WHERE parked_at IS NOT NULL"
            f" AND parked_reason = :reason LIMIT {AT_ONCE})",
            reason=UNKNOWN_MACHINE,
            by=f"{Actor.WORKER}:{me}",
            says="taken up again: a worker knows its machine",
            **database.bind_now(),
        )
    return count

"""Pruning: how fast ended units go, and what is free afterwards; and the doctor, whole and since its last look.

Every unit ended four hundred days ago, and the history of each has become a baseline. First the doctor looks at all of
it; then some units are born, and it looks again, whole and since then. Then all that ended is pruned, beside nobody.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg

from benchmarks import noop
from benchmarks.harvest import cpu_seconds, server_pids
from benchmarks.peers import common
from penstock.ledger.care.doctor import examine
from penstock.ledger.care.look import look
from penstock.ledger.care.prune import HISTORY, Ages, Pruner
from penstock.ledger.ledger import Ledger
from penstock.ledger.roll_up import roll_up
from penstock.ledger.schema.triggers import make_triggers
from penstock.ledger.store.database import Cursor
from penstock.model.clock import Rng, instant_text

AGO = timedelta(days=400)
AT_ONCE = 100_000
MEGABYTE = 1024 * 1024
#: Whatever would tell of a birth, or refuse a row that it has not written.
ASIDE = {
    "penstock_noop_birth": "noop",
    "penstock_log_insert": "transition_log",
    "penstock_permit_insert": "prune_permit",
}


def fill(ledger: Ledger, count: int) -> None:
    """Units that ended long ago and whose history was pruned since, as years of work leave them."""
    database = ledger.database
    postgres = database.dialect == "postgresql"
    ended = {"ended": instant_text(ledger.clock.now() - AGO)}
    at = database.sql.instant("ended")
    series = (
        "SELECT i, CAST(i AS text) AS id FROM generate_series(CAST(:first AS bigint), CAST(:last AS bigint)) AS i"
        if postgres
        else "WITH RECURSIVE s(i) AS (SELECT :first UNION ALL SELECT i + 1 FROM s WHERE i < :last)"
        " SELECT i, CAST(i AS TEXT) AS id FROM s"
    )
    units = (
        "INSERT INTO noop (unit_id, number, status, version, changed_by, change_reason, changed_at)"
        f" SELECT id, i, 'DONE', 3, 'worker:one', 'done', {at} FROM ({series}) AS x WHERE true"
    )
    baselines = (
        "INSERT INTO transition_log (machine, unit_id, to_status, actor, reason, version, at)"
        " SELECT 'noop', id, 'DONE', 'prune:filled', 'baseline, 1 row before it pruned; worker:one: done', 3,"
        f" {at} FROM ({series}) AS x WHERE true"
    )

    def begin(cursor: Cursor) -> None:
        for trigger, table in ASIDE.items():
            cursor.run(f"DROP TRIGGER {trigger}{f' ON {table}' if postgres else ''}")
        permit = (
            "INSERT INTO prune_permit (id, machine, actor, reason, at) VALUES ('filled', 'noop', 'operator:bench', ''"
        )
        cursor.run(f"{permit}, {at})", **ended)
        for edge in ("'', 'QUEUED', ''", "'QUEUED', 'DONE', 'done'"):
            hour = database.sql.hour(at)
            cursor.run(f"INSERT INTO flow_hour SELECT 'noop', {hour}, {edge}, {count}, {count}", **ended)

    def some(cursor: Cursor, first: int) -> None:
        noop.unhurried(ledger, cursor)
        last = min(first + AT_ONCE, count) - 1
        for sql in (units, baselines):
            cursor.run(sql, first=first, last=last, **ended)

    database.write(begin)
    for first in range(0, count, AT_ONCE):
        database.write(lambda cursor, first=first: some(cursor, first))  # type: ignore[misc]
    database.write(lambda cursor: make_triggers(database, cursor, [noop.MACHINE]))
    roll_up(database)


def sizes(ledger: Ledger, url: str) -> dict[str, float]:
    """Rows of the history, and megabytes: its own on PostgreSQL; on SQLite of the file, and those in use."""
    rows = ledger.read(lambda cursor: cursor.rows("SELECT count(*) FROM transition_log"))[0][0]
    if ledger.database.dialect == "postgresql":
        with psycopg.connect(url) as connection:
            found = connection.execute("SELECT pg_total_relation_size('transition_log')").fetchone()
        assert found is not None
        return {"rows": rows, "mb": round(found[0] / MEGABYTE, 1)}
    pragmas = "pragma_page_count, pragma_freelist_count, pragma_page_size"
    ((whole, free, size),) = ledger.read(
        lambda c: c.rows(f"SELECT page_count, freelist_count, page_size FROM {pragmas}")
    )
    return {
        "rows": rows,
        "mb": round(whole * size / MEGABYTE, 1),
        "used_mb": round((whole - free) * size / MEGABYTE, 1),
    }


def measured(url: str, work: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    """Seconds by the clock, and of processors: of this process and of the server."""
    pids = server_pids(url)
    theirs, own, began = cpu_seconds(*pids), time.process_time(), time.perf_counter()
    result = work()
    seconds, own = time.perf_counter() - began, time.process_time() - own
    theirs = cpu_seconds(*server_pids(url)) - theirs
    return {"seconds": round(seconds, 2), "cpu_seconds": {"own": round(own, 2), "server": round(theirs, 2)}}, result


def doctor(ledger: Ledger, url: str, *, since_last: bool) -> dict[str, Any]:
    """One look, clean or not at all."""
    database, machines = ledger.database, ledger.machines
    took, (found, scope) = measured(
        url,
        lambda: look(database, machines, lambda scope: examine(database, machines, scope=scope), since_last=since_last),
    )
    wrong = [one for one in found if one.severity == "error"]
    if wrong or scope.whole == since_last:
        raise SystemExit(f"a look that was not what it should be: {scope} {wrong[:1]}")
    return took


def prune(ledger: Ledger, url: str, items: int) -> dict[str, Any]:
    """All units go."""
    before = sizes(ledger, url)
    pruner = Pruner(ledger.database, Ages(), who="operator:bench", rng=Rng())
    took, gone = measured(url, pruner.prune)
    common.require(gone["noop"], items)
    return {**took, "history_gone": gone.get(HISTORY, 0), "before": before, "after": sizes(ledger, url)}


def main() -> None:
    """Run once and print the result."""
    parser = noop.arguments("prune", 1_000_000)
    parser.add_argument("--changed", type=int, default=1_000, help="units born between two looks (default %(default)s)")
    options = parser.parse_args()
    with noop.scratch(options.url, "prune") as url:
        with Ledger.open(url, [noop.MACHINE], create=True) as ledger:
            fill(ledger, options.items)
        noop.settle(url)
        with Ledger.open(url, [noop.MACHINE]) as ledger:
            whole = doctor(ledger, url, since_last=False)
            noop.fill(ledger, options.changed, start=options.items)
            roll_up(ledger.database)
            since = doctor(ledger, url, since_last=True)
            pruned = prune(ledger, url, options.items)
    line = {
        "database": noop.database_of(options.url),
        "items": options.items,
        "changed": options.changed,
        "doctor": {"whole": whole, "since_last": since},
        "prune": pruned,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

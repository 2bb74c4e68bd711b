"""How long the consumer gate takes to answer for a year of 1,000 customers and 5 queries: 1.8 million partitions.

    python -m benchmarks.partitions [customers] [postgresql://…]

Without an address it measures SQLite in a temporary folder. Of each month one day has no row.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from penstock.ledger.database import Cursor
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.partitions.flow import MACHINES
from penstock.lifecycles.partitions.tables import DATA_TABLES, VIEWS
from penstock.raw.gate import ConsumerGate, Range

START = date(2025, 11, 1)
RUN = "2026-11-01T00:00:00.000Z"
DAYS = 365
AT_ONCE = 20


def fill(ledger: Ledger, wanted: Range) -> None:
    """As validators would have left them: of each month one day is failed and one has no row."""
    database = ledger.database
    postgres = database.dialect == "postgresql"
    each = "jsonb_array_elements_text(CAST(:{0} AS jsonb)) AS {0}(value)" if postgres else "json_each(:{0}) AS {0}"
    day = "CAST(days.value AS date)" if postgres else "days.value"
    good = "substr(days.value, 9, 2) <> '10'"
    sql = (
        "INSERT INTO partition_state (unit_id, source, customer_id, query_name, logical_date, status, current_run_id,"
        " schema_version, record_count, updated_at, error_message, attempt_count, changed_by,"
        " change_reason, changed_at)"
        " SELECT 'google_ads/' || customers.value || '/' || queries.value || '/' || days.value, 'google_ads',"
        f" customers.value, queries.value, {day}, CASE WHEN {good} THEN 'success' ELSE 'failed' END, '{RUN}', '1',"
        f" CASE WHEN {good} THEN 100 END, {database.now_sql},"
        f" CASE WHEN {good} THEN NULL ELSE 'row 1: field metrics.clicks is missing' END, 1,"
        f" 'validator:benchmark', 'born', {database.now_sql}"
        f" FROM {each.format('customers')}, {each.format('queries')}, {each.format('days')}"
        " WHERE substr(days.value, 9, 2) <> '20'"
    )
    days = json.dumps([str(wanted.start + timedelta(days=n)) for n in range(wanted.days)])
    queries = json.dumps(wanted.queries)
    for start in range(0, len(wanted.customers), AT_ONCE):
        some = json.dumps(wanted.customers[start : start + AT_ONCE])

        def work(cursor: Cursor, some: str = some) -> int:
            return cursor.run(sql, customers=some, queries=queries, days=days, **database.bind_now())

        database.write(work)


def timed(name: str, work: Callable[[], Any], times: int = 5) -> None:
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        took.append(time.perf_counter() - begun)
    print(f"{name:<58} {statistics.median(took) * 1000:9,.1f} ms  (worst {max(took) * 1000:,.1f})")


def measure(url: str, folder: Path, customers: int) -> None:
    ids = tuple(f"{1_000_000_000 + n}" for n in range(customers))
    queries = tuple(f"query_{n}" for n in range(5))
    wanted = Range("google_ads", ids, queries, START, START + timedelta(days=DAYS - 1))
    with Ledger.open(url, MACHINES, create=True, data_tables=DATA_TABLES, views=VIEWS) as ledger:
        begun = time.perf_counter()
        fill(ledger, wanted)
        print(
            f"{len(wanted):,} partitions on {ledger.database.dialect}, filled in {time.perf_counter() - begun:,.0f} s"
        )
        if ledger.database.dialect == "postgresql":
            import psycopg

            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute("VACUUM (ANALYZE) partition_state")
        gate = ConsumerGate(ledger, folder / "raw")
        keys = list(wanted.keys())
        timed("status of one partition", lambda: gate.status(keys[12_345 % len(keys)]), 50)
        timed("a year of every customer and query", lambda: gate.range(wanted))
        month = Range("google_ads", ids, queries, START, START + timedelta(days=29))
        timed("a month of every customer and query", lambda: gate.range(month))
        one = Range("google_ads", ids[:1], queries, START, START + timedelta(days=DAYS - 1))
        timed("a year of one customer", lambda: gate.range(one), 20)
        timed("each partition of a year of one customer", lambda: list(gate.each(one)))


def main() -> None:
    customers = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[2] if len(sys.argv) > 2 else f"sqlite:///{folder}/penstock.db"
        measure(url, Path(folder), customers)


if __name__ == "__main__":
    main()

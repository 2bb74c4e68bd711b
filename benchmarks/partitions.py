"""How long the partition reader takes to answer for a year of 1,000 customers and 5 queries: 1.8 million partitions.

Of each month one day is failed, and one has no row.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import noop
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.partitions.machine import MACHINES
from penstock.lifecycles.partitions.tables import DATA_TABLES, VIEWS
from penstock.raw.paths import Range
from penstock.raw.reader import PartitionReader

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


def timed(work: Callable[[], Any], times: int = 5) -> dict[str, float]:
    """Milliseconds: the median and the worst of some."""
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        work()
        took.append((time.perf_counter() - begun) * 1000)
    return {"median_ms": round(statistics.median(took), 2), "worst_ms": round(max(took), 2)}


def run(url: str, folder: Path, customers: int) -> dict[str, Any]:
    ids = tuple(f"{1_000_000_000 + n}" for n in range(customers))
    queries = tuple(f"query_{n}" for n in range(5))
    wanted = Range("google_ads", ids, queries, START, START + timedelta(days=DAYS - 1))
    month = Range("google_ads", ids, queries, START, START + timedelta(days=29))
    own = Range("google_ads", ids[:1], queries, START, START + timedelta(days=DAYS - 1))
    with Ledger.open(url, MACHINES, create=True, data_tables=DATA_TABLES, views=VIEWS) as ledger:
        fill(ledger, wanted)
        if ledger.database.dialect == "postgresql":
            with psycopg.connect(url, autocommit=True) as admin:
                admin.execute("VACUUM (ANALYZE) partition_state")
        reader = PartitionReader(ledger, folder / "raw")
        one = next(wanted.keys())
        return {
            "database": noop.database_of(url),
            "items": customers,
            "partitions": len(wanted),
            "one": timed(lambda: reader.status(one), 50),
            "year": timed(lambda: reader.range(wanted)),
            "month": timed(lambda: reader.range(month)),
            "customer": timed(lambda: reader.range(own), 20),
            "each": timed(lambda: list(reader.each(own))),
        }


def main() -> None:
    """Run once and print the result; `--items` are customers."""
    options = noop.arguments("partitions", 1_000).parse_args()
    with noop.scratch(options.url, "partitions") as url, tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        line = run(url, Path(folder), options.items)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

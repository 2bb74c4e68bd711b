"""Every SQL statement of the specification runs on PostgreSQL, over a harvest that happened, and answers rightly."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.lifecycles.harvest.run.machine import R
from penstock.model.clock import SystemClock, VirtualClock, truncate
from penstock.model.errors import Rejected
from tests.support.harvest import Bench, Catalogue, on_bench, stones

SEED = Path(__file__).with_name("seed.sql")
STATEMENTS = dict(re.findall(r"^-- name: (\w+)\n(.*?;)$", SEED.read_text(), re.DOTALL | re.MULTILINE))

pytestmark = pytest.mark.by_day


class Harvested:
    """A database with a run that completed and a later one of which a partition failed."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self.good, self.bad = (
            str(row[0]) for row in connection.execute("SELECT run_id FROM run_metadata ORDER BY started_at").fetchall()
        )

    def run(self, name: str, run: str = "", **names: Any) -> psycopg.Cursor[Any]:
        """The statement with the specification's run id and $names replaced, and nothing else."""
        sql = STATEMENTS[name].replace("'abc123'", f"'{run}'")
        for key, value in names.items():
            assert f"${key}" in sql
            sql = sql.replace(f"${key}", f"'{value}'" if isinstance(value, str) else str(value))
        assert "$" not in sql
        return self.connection.execute(sql)

    def rows(self, name: str, run: str = "", **names: Any) -> list[tuple[Any, ...]]:
        return self.run(name, run, **names).fetchall()


@pytest.fixture
def harvested(postgres_url) -> Any:
    source = Catalogue(stones(300))
    clock = VirtualClock(truncate(SystemClock().now()) - timedelta(minutes=30))

    async def test(bench: Bench) -> None:
        assert (await bench.harvest()).status is R.COMPLETED
        clock.advance(600)
        source.put(*[type(s)(s.price, s.stone, clock.now()) for s in source.stones])
        clock.advance(1)

        def trouble(what: str, span: Any, offset: int) -> None:
            if what == "page" and span.low == 0 and offset >= 30:
                raise Rejected("the provider says no")

        source.trouble = trouble
        assert (await bench.harvest()).status is R.FAILED

    on_bench(postgres_url, source, test, clock=clock)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield Harvested(connection)


def test_the_file_holds_every_statement():
    assert len(STATEMENTS) == 13
    assert SEED.read_text().count("-- name: ") == 13


def test_run_status(harvested):
    ((run, kind, progress, failed, status, started, completed, minutes),) = harvested.rows("run_status", harvested.good)
    assert (str(run), kind, failed, status) == (harvested.good, "full", 0, "completed")
    done, _, expected = progress.partition("/")
    assert done == expected != "0"
    assert minutes == pytest.approx((completed - started).total_seconds() / 60)
    ((_, kind, progress, failed, status, _, completed, minutes),) = harvested.rows("run_status", harvested.bad)
    assert (kind, failed, status, completed) == ("incremental", 1, "failed", None)
    assert minutes > 0


def test_worker_breakdown(harvested):
    rows = harvested.rows("worker_breakdown", harvested.good)
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert {row[1] for row in rows} == {"completed"}
    assert sum(row[2] for row in rows) == 300
    assert all(row[3] is None and row[4] <= row[5] for row in rows)


def test_partition_progress(harvested):
    rows = harvested.rows("partition_progress", harvested.good)
    assert len(rows) == len(harvested.rows("worker_breakdown", harvested.good))
    assert all(completed for _, _, completed, _ in rows)
    assert sum(offset for _, offset, _, _ in rows) == 300


def test_active_and_recent_runs(harvested):
    ((run, kind, completed, expected, failed, _, elapsed),) = harvested.rows("active_runs")
    assert (str(run), kind, failed) == (harvested.bad, "incremental", 1)
    assert completed + failed == expected
    assert elapsed > timedelta(0)
    recent = harvested.rows("recent_runs")
    assert [(str(row[0]), row[3]) for row in recent] == [(harvested.bad, "failed"), (harvested.good, "completed")]


def test_failed_run_analysis(harvested):
    ((partition, records, error, started, completed),) = harvested.rows("failed_workers", harvested.bad)
    assert (partition, records) == ("partition-0", 30)
    assert "the provider says no" in error
    assert started <= completed
    assert harvested.rows("progress_at_failure", harvested.bad) == [("partition-0", 30, False)]
    assert harvested.rows("failed_workers", harvested.good) == []
    assert harvested.rows("progress_at_failure", harvested.good) == []


def test_the_offset_moves_once_and_never_when_completed(harvested):
    names = {"runId": harvested.bad, "partitionId": "partition-0"}
    assert harvested.run("offset_update", **names, expectedOffset=30, newOffset=60).rowcount == 1
    assert harvested.run("offset_update", **names, expectedOffset=30, newOffset=60).rowcount == 0
    assert harvested.rows("progress_at_failure", harvested.bad) == [("partition-0", 60, False)]
    done = {"runId": harvested.good, "partitionId": "partition-0"}
    ((offset,),) = harvested.connection.execute(
        "SELECT next_offset FROM partition_progress WHERE run_id = %s AND partition_id = 'partition-0'",
        [harvested.good],
    ).fetchall()
    assert harvested.run("offset_update", **done, expectedOffset=offset, newOffset=offset + 30).rowcount == 0


def test_the_counters_count(harvested):
    ((completed, expected, failed),) = harvested.rows("increment_completed", runId=harvested.bad)
    assert (completed, failed) == (expected, 1)
    assert harvested.rows("increment_failed", runId=harvested.bad) == [(completed, expected, 2)]

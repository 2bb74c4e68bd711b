"""Reading landed data: what is safe, what is not and why, at any moment; never a mixed or half-written partition."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.ledger.care.prune import Ages, Pruner
from penstock.lifecycles.partitions.operations import OnePartition, reset
from penstock.model.errors import UsageError
from penstock.raw.paths import PartitionKey, Range
from penstock.raw.reader import NotReady, PartitionReader
from penstock.raw.sink import RawSink
from penstock.raw.store import RawCorrupt, RawMissing
from tests.support.ad_source import CUSTOMERS
from tests.support.partitions import DAY, KEY, Partitions, rows

BAD = [{"bad": 1}]


def day(n: int, customer: str = CUSTOMERS[0]) -> PartitionKey:
    return PartitionKey("google_ads", customer, "campaign_daily", DAY + timedelta(days=n))


def test_a_key_without_a_row_is_pending_even_when_raw_data_exists(world):
    world.land()
    found = world.reader.status(KEY)
    assert (found.status, found.ready, found.current_run_id) == ("pending", False, None)
    with pytest.raises(NotReady, match="is pending: no run of it has been validated yet") as caught:
        world.reader.open(KEY)
    assert caught.value.status == found


def test_the_authoritative_run_is_opened_and_no_other(world):
    world.judge(rows(note="old"))
    run_id = world.judge(rows(note="new"))
    world.land(rows(note="newer, and nobody has judged it"))
    opened = world.reader.open(KEY)
    assert opened.metadata.run_id == run_id
    assert {row["note"] for row in opened.rows()} == {"new"}


def test_a_failed_partition_says_why(world):
    world.judge()
    run_id = world.judge(BAD)
    with pytest.raises(NotReady, match=f"is failed: run {run_id} was rejected: row 1: field campaign.id is missing"):
        world.reader.open(KEY)


def test_a_reset_partition_says_so(world):
    world.judge()
    assert world.do(reset, OnePartition(partition=str(KEY)), "wrong account").count == 1
    assert "it was reset" in world.reader.status(KEY).reason
    with pytest.raises(UsageError, match="nothing to reset"):
        world.do(reset, OnePartition(partition=str(KEY)), "again")
    assert world.history()[-1] == ("success", "pending", "operator", "wrong account")


def test_a_range_counts_implicit_pendings(world):
    world.time.advance(5 * 86_400)
    for n in range(3):
        world.judge(rows(key=day(n)), day(n))
    world.judge(BAD, day(3))
    wanted = Range("google_ads", CUSTOMERS, ("campaign_daily", "other"), DAY, DAY + timedelta(days=9))
    found = world.reader.range(wanted)
    assert (found.total, found.success, found.failed, found.pending) == (40, 3, 1, 36)
    assert not found.ready
    assert [(s.customer_id, s.query_name, s.success, s.failed, s.pending) for s in found.series][:2] == [
        (CUSTOMERS[0], "campaign_daily", 3, 1, 6),
        (CUSTOMERS[0], "other", 0, 0, 10),
    ]
    each = list(world.reader.each(wanted))
    assert len(each) == 40
    assert [s.key for s in each if s.status == "failed"] == [day(3)]
    assert [s.key for s in world.reader.each(wanted, ["success"])] == [day(0), day(1), day(2)]
    assert world.reader.range(
        Range("google_ads", CUSTOMERS[:1], ("campaign_daily",), DAY, DAY + timedelta(days=2))
    ).ready


@pytest.mark.parametrize("change", [{"end": date(2020, 1, 1)}, {"customers": ()}, {"queries": ()}])
def test_an_empty_range_is_refused(change):
    given = {"source": "s", "customers": ("1",), "queries": ("q",), "start": DAY, "end": DAY}
    with pytest.raises(UsageError):
        Range(**given | change)


def test_as_of_any_moment_partitions_stand_as_they_stood(world):
    moments = [(world.time.now(), "pending", None)]
    first = world.judge(rows(note="1"))
    moments.append((world.time.now(), "success", first))
    second = world.judge(rows(note="2"))
    moments.append((world.time.now(), "success", second))
    third = world.judge(BAD)
    moments.append((world.time.now(), "failed", third))
    world.time.advance(60)
    for moment, status, run_id in moments:
        then = world.reader.as_of(moment)
        found = then.status(KEY)
        assert (found.status, found.current_run_id) == (status, run_id)
        counted = then.range(Range("google_ads", CUSTOMERS[:1], ("campaign_daily",), DAY, DAY))
        assert (counted.success, counted.failed, counted.pending) == tuple(
            int(status == name) for name in ("success", "failed", "pending")
        )
    assert {row["note"] for row in world.reader.as_of(moments[1][0]).open(KEY).rows()} == {"1"}
    with pytest.raises(NotReady, match="was rejected: row 1"):
        world.reader.as_of(moments[3][0]).open(KEY)
    with pytest.raises(UsageError, match="no time zone"):
        world.reader.as_of(datetime(2026, 1, 1))  # noqa: DTZ001


def test_paths_are_for_other_programs(world):
    run_id = world.judge()
    world.judge(rows(key=day(1)), day(1))
    found = world.reader.paths([KEY, day(1)])
    assert [Path(path).read_text().count("\n") for path in found] == [3, 3]
    assert "run_id=" + run_id.replace(":", "%3A") in found[0]
    with pytest.raises(NotReady):
        world.reader.paths([KEY, day(2)])


def test_duckdb_reads_the_paths_as_they_are(world):
    """Partition columns come from the folders, as DuckDB, Polars and Arrow read them in the manner of Hive."""
    world.judge(rows(note="superseded"))
    world.judge(rows(note="good"))
    world.judge(rows(5, key=day(1)), day(1))
    paths = world.reader.paths([KEY, day(1)])
    found = duckdb.execute(
        "SELECT CAST(logical_date AS text), count(*), max(note), sum(CAST(metrics.clicks AS integer)),"
        " min(CAST(customer_id AS text)) FROM read_json($paths, format = 'newline_delimited', hive_partitioning = true)"
        " GROUP BY 1 ORDER BY 1",
        {"paths": paths},
    ).fetchall()
    assert found == [
        ("2026-11-01", 3, "good", 3, CUSTOMERS[0]),
        ("2026-11-02", 5, "", 10, CUSTOMERS[0]),
    ]


def test_an_address_is_enough(world):
    run_id = world.judge()
    with PartitionReader(world.url, world.sink.url) as reader:
        assert reader.status(KEY).current_run_id == run_id
        assert list(reader.open(KEY).rows()) == rows()


def test_waiting_ends_when_all_are_ready_or_the_time_is_over(world):
    world.judge()
    reader = PartitionReader(world.ledger, world.sink)
    assert [s.ready for s in reader.wait([KEY], timeout=0)] == [True]
    with pytest.raises(NotReady, match="is pending"):
        reader.wait([KEY, day(1)], timeout=0.05, every=0.01)
    late = threading.Timer(0.2, lambda: world.judge(rows(key=day(1)), day(1)))
    late.start()
    left: list[int] = []
    assert all(s.ready for s in reader.wait([KEY, day(1)], timeout=60, every=0.02, progress=left.append))
    assert set(left) == {1}
    late.join()


def test_a_run_that_is_gone_or_another_than_was_validated_is_not_read(world, tmp_path):
    run_id = world.judge()
    world.sink.remove(KEY, run_id)
    with pytest.raises(RawMissing):
        world.reader.open(KEY)
    other = [*rows(), *rows(5)[3:]]
    world.sink.write_partition(KEY, run_id, other, schema_version="1", created_at=world.time.now())
    with pytest.raises(RawCorrupt, match="5 records of schema 1; 3 of schema 1 were validated"):
        world.reader.open(KEY)


def test_a_run_that_is_superseded_and_collected_between_two_looks_is_not_missed(world):
    old = world.judge(rows(note="old"))

    class Slow(RawSink):
        """Between the state and the sink, the partition is reprocessed and the old run collected."""

        def open_partition(self, key, run_id):
            if run_id == old:
                world.judge(rows(note="new"))
                world.sink.remove(KEY, old)
            return super().open_partition(key, run_id)

    reader = PartitionReader(world.ledger, Slow(world.sink.url))
    assert {row["note"] for row in reader.open(KEY).rows()} == {"new"}


def test_a_moment_whose_history_was_pruned_is_refused(world):
    world.judge()
    first = world.time.now()
    world.time.advance(10)
    world.judge()
    world.time.advance(400 * 86_400)
    world.judge()
    Pruner(world.ledger.database, Ages({}), who="test", rng=world.ledger.rng).prune()
    assert world.reader.as_of(world.time.now()).status(KEY).ready
    with pytest.raises(UsageError, match="was pruned; ask for a later moment"):
        world.reader.as_of(first).status(KEY)


def test_validators_at_once_leave_the_newest_run_and_every_attempt(world):
    """Four of them judge runs of one partition at the same time: none is lost, and no older run wins."""
    runs = [world.land(rows(note=str(n))) for n in range(12)]
    with ThreadPoolExecutor(4) as pool:
        judged = list(pool.map(world.validate, [runs[n * 5 % 12] for n in range(12)]))
    assert {one.verdict for one in judged} <= {"success", "older"}
    assert world.reader.status(KEY).current_run_id == runs[-1]
    assert len(world.attempts()) == world.reader.status(KEY).attempt_count == 12


def reads_during_reprocessing(world: Partitions, reads: int) -> None:
    """One thread reprocesses without pause; every read is one whole run, and runs never go back."""
    world.judge(rows(20, note="0"))
    stop = threading.Event()
    failures: list[BaseException] = []

    def reprocess() -> None:
        n = 0
        try:
            while not stop.is_set():
                n += 1
                world.judge(rows(20, note=str(n)))
        except BaseException as error:  # noqa: BLE001 - told below
            failures.append(error)

    writer = threading.Thread(target=reprocess)
    writer.start()
    try:
        last = ""
        with PartitionReader(world.url, world.sink.url) as reader:
            for _ in range(reads):
                opened = reader.open(KEY)
                found = [row["note"] for row in opened.rows()]
                assert len(found) == 20
                assert len(set(found)) == 1
                assert opened.metadata.run_id >= last
                last = opened.metadata.run_id
    finally:
        stop.set()
        writer.join()
    assert failures == []
    assert len(world.sink.runs(KEY)) > 1, "it was reprocessed meanwhile"


@pytest.mark.by_day
def test_reads_during_reprocessing_are_whole(world):
    reads_during_reprocessing(world, 400)


@pytest.mark.nightly
def test_many_reads_during_reprocessing_are_whole(world):
    reads_during_reprocessing(world, 100_000)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8))
def test_a_range_agrees_with_the_statuses_of_its_keys(world, judged):
    for n, good in judged:
        world.judge(rows(key=day(n)) if good else BAD, day(n))
    wanted = Range("google_ads", CUSTOMERS, ("campaign_daily",), DAY, DAY + timedelta(days=4))
    found, each = world.reader.range(wanted), list(world.reader.each(wanted))
    for status in ("success", "failed", "pending"):
        assert getattr(found, status) == sum(s.status == status for s in each)
    then = world.reader.as_of(datetime.now(UTC) + timedelta(days=36_500)).range(wanted)
    assert (then.success, then.failed, then.pending, list(then.series)) == (
        found.success,
        found.failed,
        found.pending,
        list(found.series),
    )

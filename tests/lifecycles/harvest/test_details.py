"""What the specification says of workers, defaults, keys and chunks, where it would be easy to pass by."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from penstock.ledger.care.prune import Ages, Pruner
from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.expand import create
from penstock.ledger.schema.tables import machine_table
from penstock.lifecycles.harvest import MACHINES, operations
from penstock.lifecycles.harvest.chunk.machine import C, Chunk
from penstock.lifecycles.harvest.partition.machine import (
    Partition,
    WorkerRun,
    harvest_partition,
    harvest_worker,
    worker_run_id,
)
from penstock.lifecycles.harvest.run.machine import R, harvest_run
from penstock.lifecycles.harvest.tables import DATA_TABLES
from penstock.model.clock import Rng, SystemClock, VirtualClock, instant
from penstock.model.errors import LedgerMismatch, LedgerRefused, Rejected, Transient, UsageError
from penstock.model.machine import Actor, Machine
from penstock.model.unit import DRIVEN_COLUMNS, GuardedUnit, Ref, field_types, unit_id_of
from tests.support.consolidation import Site, a_run, run_id
from tests.support.hand import Hand, literal
from tests.support.harvest import FEED, START, Bench, Catalogue, Stone, done, on_bench, planned, small, stones

pytestmark = pytest.mark.by_day

ONE_PARTITION = [Stone(100 + n, f"s{n:03}") for n in range(95)]


def records(bench: Bench) -> list[int]:
    return [count for _, _, count, _ in bench.workers()]


def test_records_processed_grows_page_by_page(ledger_url):
    source, seen = Catalogue(ONE_PARTITION), []

    async def test(bench: Bench) -> None:
        source.trouble = lambda what, _span, _offset: seen.extend(records(bench)) if what == "page" else None
        assert (await bench.harvest()).status is R.COMPLETED
        # After the last page, and a count, its last record is asked for once more.
        assert seen == [0, 30, 60, 90, 95]
        assert records(bench) == [95]

    on_bench(ledger_url, source, test)


def test_records_processed_counts_a_record_once(ledger_url):
    """Something cheaper appears between two pages: the last record of a page comes once more on the next."""
    source = Catalogue(ONE_PARTITION)

    async def test(bench: Bench) -> None:
        def trouble(what: str, _span: Any, offset: int) -> None:
            if what == "page" and offset in (30, 60):
                source.put(Stone(1, f"cheap-{offset}"))

        source.trouble = trouble
        assert (await bench.harvest()).status is R.COMPLETED
        (partition,) = bench.partitions()
        assert partition.records > len(bench.raw())
        assert records(bench) == [len(bench.raw())]

    on_bench(ledger_url, source, test)


def test_whoever_takes_a_partition_over_is_its_worker(ledger_url):
    source, found = Catalogue(ONE_PARTITION), []
    clock = VirtualClock(START)

    def worker(bench: Bench) -> str:
        ((name,),) = bench.rows("SELECT worker_id FROM worker_runs")
        return str(name)

    def trouble(what: str, _span: Any, offset: int) -> None:
        if what == "page" and offset == 30:
            raise Transient("not now")

    async def first(bench: Bench) -> None:
        source.trouble = trouble
        bench.tick()
        await bench.quiet()
        assert records(bench) == [30]
        found.append(worker(bench))

    async def second(bench: Bench) -> None:
        source.trouble = lambda *_: None
        assert (await bench.settled()).status is R.COMPLETED
        found.append(worker(bench))
        assert records(bench) == [95]

    on_bench(ledger_url, source, first, clock=clock)
    on_bench(ledger_url, source, second, clock=clock)
    assert found[0] != found[1] != ""


def test_a_skipped_consolidation_is_a_warning_in_the_log(ledger_url):
    source = Catalogue(stones(300))

    def trouble(what: str, span: Any, _offset: int) -> None:
        if what == "page" and span.low == 0:
            raise Rejected("the provider says no")

    async def test(bench: Bench) -> None:
        source.trouble = trouble
        with capture_logs() as logs:
            run = await bench.harvest()
        assert run.status is R.FAILED
        (said,) = [entry for entry in logs if entry["event"] == "harvest.consolidation_skipped"]
        assert (said["log_level"], said["run"], said["feed"]) == ("warning", str(run.run_id), FEED)
        assert said["reason"] == "1 of 3 partitions have failed"

    on_bench(ledger_url, source, test)


@pytest.fixture
def ledger(ledger_url) -> Iterator[Ledger]:
    made = Ledger.open(
        ledger_url, MACHINES, create=True, data_tables=DATA_TABLES, clock=VirtualClock(START), rng=Rng(3)
    )
    with made:
        yield made


def a_worker(number: int = 1) -> WorkerRun:
    own = worker_run_id(run_id(number), "partition-0")
    return WorkerRun(id=own, run_id=run_id(number), partition_id="partition-0", worker_id="w", started_at=START)


def typed_without(machine: Machine, unit: GuardedUnit, *omitted: str) -> str:
    """The INSERT of a person who leaves columns to their defaults."""
    kept = [n for n in field_types(type(unit)) if n not in DRIVEN_COLUMNS and n not in omitted]
    values = [literal(unit_id_of(unit)), literal(unit.status), *(literal(getattr(unit, n)) for n in kept)]
    return f"INSERT INTO {machine.table} (unit_id, status, {', '.join(kept)}) VALUES ({', '.join(values)})"


def test_a_row_that_is_typed_without_its_defaults_has_them(ledger, ledger_url):
    before = SystemClock().now() - timedelta(seconds=5)
    own: dict[str, Any] = {"run_id": run_id(1), "partition_id": "partition-0", "feed": FEED, "ordinal": 0, "low": 0}
    partition = Partition(**own, expected_records=0, created_at=START, updated_at=START)
    with Hand(ledger_url) as hand:
        hand.type(typed_without(harvest_run, a_run(), "started_at", "completed_workers", "failed_workers"))
        hand.type(typed_without(harvest_partition, partition, "created_at", "updated_at", "next_offset", "completed"))
        hand.type(typed_without(harvest_worker, a_worker(), "started_at", "records_processed"))
        run = hand.type("SELECT started_at, completed_workers, failed_workers FROM run_metadata")[0]
        typed = hand.type("SELECT created_at, updated_at, next_offset, completed FROM partition_progress")[0]
        worker = hand.type("SELECT started_at, records_processed FROM worker_runs")[0]
    assert (*run[1:], *typed[2:], *worker[1:]) == (0, 0, 0, False, 0)
    for moment in (run[0], *typed[:2], worker[0]):
        assert before <= instant(moment) <= before + timedelta(minutes=2)


def test_a_worker_belongs_to_a_run_that_is_there(ledger, ledger_url):
    with pytest.raises(LedgerRefused, match=r"(?i)foreign key"):
        ledger.birth([a_worker()], actor=Actor.WORKER, who="w")
    ledger.birth([a_run()], actor=Actor.SCHEDULER, who="test")
    ledger.birth([a_worker()], actor=Actor.WORKER, who="w")
    with Hand(ledger_url) as hand:
        if hand.dialect == "sqlite":
            hand.type("PRAGMA foreign_keys = ON")
        with pytest.raises(hand.error):
            hand.type(f"UPDATE worker_runs SET run_id = '{UUID(int=5, version=4)}'")


def test_a_table_that_lacks_the_foreign_key_is_refused(ledger_url):
    with Ledger.open(ledger_url, [harvest_run], create=True) as opened:
        dialect = opened.database.dialect
        (table, *_) = create(machine_table(harvest_worker, dialect), dialect)
        opened.database.write(lambda cursor: cursor.run(table[: table.rindex(", \n\tFOREIGN KEY(run_id)")] + "\n)"))
    with pytest.raises(LedgerMismatch, match="run_id: the foreign key to run_metadata is missing"):
        Ledger.open(ledger_url, MACHINES, create=True)


def test_a_run_that_a_worker_s_record_names_is_not_pruned(ledger, ledger_url):
    for number in (1, 2):
        ledger.birth([a_run(number, due_at=None)], actor=Actor.SCHEDULER, who="test")
    ledger.birth([a_worker(1)], actor=Actor.WORKER, who="w")
    with Hand(ledger_url) as hand:
        for status in ("consolidation_triggered", "consolidating"):
            hand.type(f"UPDATE run_metadata SET status = '{status}'")
        moment = "'2026-11-02T12:00:00.000Z'"
        ended = f"status = 'completed', completed_at = {moment}, watermark_after = {moment}, due_at = NULL"
        hand.type(f"UPDATE run_metadata SET {ended}")
    # Whatever ended before the year after next.
    Pruner(ledger.database, Ages(older_than=timedelta(days=-400)), who="operator:ana", rng=Rng(1)).prune()
    assert ledger.read(lambda c: c.rows("SELECT unit_id FROM run_metadata")) == [(str(run_id(1)),)]


@pytest.fixture
def site(ledger_url) -> Iterator[Site]:
    made = Site(ledger_url)
    yield made
    made.close()


def test_a_failed_chunk_is_reopened_while_its_run_consolidates(site):
    site.raw({f"s{n}": 100 + n for n in range(4)})
    site.birth(a_run(due_at=None))
    with pytest.raises(UsageError, match="only while it consolidates"):
        done(site.ledger, small(), operations.reopen, run=str(run_id(1)))
    first = 1_000_000_000
    chunks = [Chunk(run_id=run_id(1), number=n, feed=FEED, first=first + 2 * n, last=first + 2 * n + 2) for n in (0, 1)]
    site.ledger.birth(chunks, actor=Actor.WORKER, who="w")
    with Hand(site.url) as hand:
        for status in ("consolidation_triggered", "consolidating"):
            hand.type(f"UPDATE run_metadata SET status = '{status}'")
        hand.type("UPDATE run_metadata SET phase = 'processing_batch', expected_chunks = 2, failed_chunks = 1")
        hand.type("UPDATE harvest_chunk SET status = 'working' WHERE number = 0")
        hand.type("UPDATE harvest_chunk SET status = 'failed', error = 'the disk was full' WHERE number = 0")
        hand.type(
            "INSERT INTO harvest_pricing (run_id, digest, rules, loaded_at)"
            f" VALUES ('{run_id(1)}', 'd', '[]', '2026-11-02T12:00:00.000Z')"
        )
    would = planned(site.ledger, small(), operations.reopen, run=str(run_id(1))).preview
    assert (would.count, would.says) == (1, f"try 1 chunk of run {run_id(1)} again")
    assert site.chunks()[0].status is C.FAILED
    done(site.ledger, small(), operations.reopen, run=str(run_id(1)), reason="mended")
    reopened = site.chunks()[0]
    assert (reopened.status, reopened.error, reopened.changed_by) == (C.OPEN, None, "operator:ada")
    assert site.run().failed_chunks == 0
    with pytest.raises(UsageError, match=r"no chunk of run .* has failed"):
        done(site.ledger, small(), operations.reopen, run=str(run_id(1)))
    site.ledger.nudge([Ref("harvest_chunk", f"{run_id(1)}/1")])
    assert site.consolidate().status is R.COMPLETED
    assert len(site.prices()) == 4

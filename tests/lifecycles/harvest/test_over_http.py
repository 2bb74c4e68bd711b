"""Whole harvests over real HTTP: the connector, Nivoda's simulator on a socket, chunks and consolidation."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from penstock.lifecycles.harvest import operations
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.run.machine import R, RunType
from penstock.model.clock import VirtualClock, instant, instant_text
from penstock.model.unit import Ref
from penstock.simulators.nivoda import Churn, Fault, NivodaSimulator, throttle
from tests.support.harvest import START, Bench
from tests.support.harvest_http import STONES, harvested, over_http


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - what is waited for happens in the ledger
            await asyncio.sleep(0.001)


def raw(bench: Bench) -> list[tuple[Any, ...]]:
    """The raw rows of the last run, whatever run, moment and order they were fetched in."""
    columns = "supplier_stone_id, offer_id, CAST(payload AS text), payload_hash, source_updated_at"
    found = bench.rows(f"SELECT run_id, {columns} FROM raw_diamonds_nivoda")
    return sorted(_alike(row[1:]) for row in found if str(row[0]) == str(bench.run().run_id))


def canonical(bench: Bench) -> list[tuple[Any, ...]]:
    columns = "supplier_stone_id, offer_id, shape, carat, color, clarity, price, payload_hash, source_updated_at"
    return sorted(map(_alike, bench.rows(f"SELECT {columns} FROM diamonds WHERE deleted_at IS NULL")))


def _alike(row: Sequence[Any]) -> tuple[str, ...]:
    """A row as either database gives it; its last column is an instant."""
    return (*map(str, row[:-1]), instant_text(instant(row[-1])))


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> tuple[Any, Any]:
    """What a run that nothing happens to comes to."""
    came: list[Any] = []

    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        assert (await bench.harvest()).status is R.COMPLETED
        came.extend((raw(bench), canonical(bench)))

    place = tmp_path_factory.mktemp("clean")
    over_http(f"sqlite:///{place / 'penstock.db'}", place, test)
    return came[0], came[1]


def test_a_catalogue_is_harvested_changed_and_harvested_incrementally(ledger_url, tmp_path):
    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        first = await bench.harvest()
        assert (first.status, first.run_type, first.expected_records) == (R.COMPLETED, RunType.FULL, STONES)
        assert len(canonical(bench)) == STONES
        bench.clock.advance(3_600)
        changed = simulator.stones.change(25, bench.clock.now())
        inserted = simulator.stones.insert(5, bench.clock.now())
        bench.clock.advance(60)
        second = await bench.harvest()
        assert (second.status, second.run_type) == (R.COMPLETED, RunType.INCREMENTAL)
        stones = {simulator.stones.stone_id(number) for number in (*changed, *inserted)}
        assert {row[0] for row in raw(bench)} == stones
        assert len(canonical(bench)) == STONES + 5
        assert second.watermark_after == second.window_to

    over_http(ledger_url, tmp_path, test)


def test_lost_doubled_and_late_answers_give_the_same_bytes_as_a_clean_run(ledger_url, tmp_path, clean):
    """Answers that break off, throttles and failures on the way, expired tokens, and partitions woken all the time."""
    benches: list[tuple[Bench, NivodaSimulator]] = []
    calls = [0]

    def disturb() -> None:
        calls[0] += 1
        for disturbed, simulator in benches:
            if calls[0] == 20:
                simulator.expire_tokens()
            if disturbed.runs():
                disturbed.ledger.nudge([Ref("harvest_partition", p.unit_id) for p in disturbed.partitions()])

    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        benches.append((bench, simulator))
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        assert bench.worker.counts.failed > 3
        assert (raw(bench), canonical(bench)) == clean

    # So seldom that no partition meets four in a row, after which it would rightly fail.
    every = {
        ("page", 13): Fault(cut=True),
        ("page", 17): Fault(503, "busy"),
        ("page", 19): throttle("2"),
        ("count", 11): Fault(500, "oops"),
    }
    over_http(ledger_url, tmp_path, test, every=every, before=disturb)


def test_a_total_count_that_lies_and_rows_past_the_count_are_not_believed(ledger_url, tmp_path, clean):

    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        run = await bench.harvest()
        assert run.expected_records == STONES
        assert (raw(bench), canonical(bench)) == clean
        offsets = [request.variables["o"] for request in simulator.calls("page")]
        assert max(offsets) < max(p.expected_records for p in bench.partitions()) + 20 * 30
        assert all(p.doubt.startswith("it goes on past its count") for p in bench.partitions())

    over_http(ledger_url, tmp_path, test, total_count_factor=3.0, rows_past_count=None)


def test_a_catalogue_that_changes_between_pages_is_fetched_until_it_is_whole(ledger_url, tmp_path):
    """H12: what moved across the border of a page is missed, and the partition is fetched again."""

    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        simulator.churn = Churn(pages=2, changed=3, inserted=2, removed=4)
        bench.tick()
        await until(lambda: bool(bench.runs()) and any(p.rescans for p in bench.partitions()))
        simulator.churn = None
        run = await bench.settled()
        assert run.status is R.COMPLETED
        assert any(p.rescans for p in bench.partitions())
        fetched = {row[0] for row in raw(bench)}
        live = {simulator.stones.stone_id(n) for n in range(STONES * 2) if _lives(simulator, n)}
        assert len(live - fetched) <= 0.02 * len(live)

    over_http(ledger_url, tmp_path, test)


def test_a_worker_that_fails_skips_consolidation_and_a_retry_completes(ledger_url, tmp_path, clean):

    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        simulator.every = {("page", 1): Fault(503, "busy")}
        run = await bench.harvest()
        assert (run.status, run.failed_workers) == (R.FAILED, run.expected_workers)
        assert {p.status for p in bench.partitions()} == {P.FAILED}
        assert bench.rows("SELECT 1 FROM diamonds") == []
        assert bench.rows("SELECT 1 FROM watermark") == []
        simulator.every = {}
        bench.do(operations.retry, run=str(run.run_id), reason="mended")
        assert (await bench.settled()).status is R.COMPLETED
        assert (raw(bench), canonical(bench)) == clean

    over_http(ledger_url, tmp_path, test)


def test_a_restart_in_the_middle_goes_on_where_it_was(ledger_url, tmp_path, clean):
    clock = VirtualClock(START)

    async def main() -> None:
        async with harvested(ledger_url, tmp_path, clock) as (bench, simulator):
            simulator.every = {("page", 8): Fault(503, "busy")}
            bench.tick()
            await until(lambda: simulator.counted["page"] >= 20)
            bench.worker.stop()
            await until(lambda: not any(p.claimed_by for p in bench.partitions()))
            offsets = {p.partition_id: p.next_offset for p in bench.partitions()}
            assert sum(offsets.values()) > 0
            # Their last record is asked for once more, after a count; where that failed, with a look before.
            unverified = [p for p in bench.partitions() if p.verified_at is None]
            looks = len(unverified) + sum(p.status is P.COMPLETED and p.attempts > 0 for p in unverified)
        async with harvested(ledger_url, tmp_path, clock) as (bench, simulator):
            run = await bench.settled()
            assert run.status is R.COMPLETED
            asked = sum(-(-(p.expected_records - offsets[p.partition_id]) // 30) for p in bench.partitions())
            assert simulator.counted["page"] == asked + looks
            assert (raw(bench), canonical(bench)) == clean

    asyncio.run(main())


def _lives(simulator: NivodaSimulator, number: int) -> bool:
    try:
        return simulator.stones.price(number) is not None
    except IndexError:
        return False


class Down(deque[Fault]):
    """The same trouble for every call, until it is cleared."""

    def popleft(self) -> Fault:
        return self[0]


@pytest.mark.parametrize(
    "fault",
    [Fault(503), Fault(500), pytest.param(Fault(cut=True), marks=pytest.mark.by_day)],
    ids=["503", "500", "cut"],
)
def test_three_hours_of_outage_in_the_middle_of_a_run_end_no_partition(ledger_url, tmp_path, fault):
    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        bench.tick()
        operations = ("authenticate", "count", "page")
        await until(lambda: bool(bench.runs()))
        for operation in operations:
            simulator.faults[operation] = Down([fault])
        run = await bench.settled(within=timedelta(hours=3))
        assert run.status is R.WORKERS_RUNNING
        assert not {p.status for p in bench.partitions()} & {P.FAILED}
        assert max(p.attempts for p in bench.partitions()) <= 1
        assert [kind for kind, _ in bench.alerts()] == ["gate.breaker"]
        simulator.faults.clear()
        run = await bench.settled(within=timedelta(hours=1))
        assert (run.status, run.failed_workers) == (R.COMPLETED, 0)
        assert len(raw(bench)) == STONES
        told = [kind for kind, _ in bench.alerts() if kind.startswith("gate.")]
        assert sorted(told) == ["gate.breaker", "gate.recovered"]

    over_http(ledger_url, tmp_path, test)


@pytest.mark.by_day
def test_a_page_that_fails_while_the_provider_answers_fails_its_partition(ledger_url, tmp_path):
    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        simulator.faults["page"] = Down([Fault(500)])
        run = await bench.harvest()
        assert (run.status, run.failed_workers) == (R.FAILED, run.expected_workers)
        assert ("gate.breaker", "critical") not in bench.alerts(), "counts are answered"

    over_http(ledger_url, tmp_path, test)

"""Nothing is soft-deleted before its absence is proved: over real HTTP, while the catalogue changes under the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock.lifecycles.harvest import operations
from penstock.lifecycles.harvest.run.absence import UNPROVED
from penstock.lifecycles.harvest.run.machine import R, RunType
from penstock.simulators.nivoda import NivodaSimulator
from penstock.simulators.nivoda_data import Catalogue, Wanted
from tests.support.harvest import FEED, Bench
from tests.support.harvest_http import STONES, over_http

TWO = {"target_records": 400, "least_records": 20, "full_workers": 2, "incremental_workers": 2}
"""Two partitions of some 350: one record of them is within the tolerance."""


async def full(bench: Bench) -> Any:
    """Another full run, an hour later."""
    bench.clock.advance(3_600)
    bench.do(operations.start, feed=FEED, full=True)
    run = await bench.settled()
    assert (run.status, run.run_type) == (R.COMPLETED, RunType.FULL)
    return run


def deleted(bench: Bench) -> set[str]:
    return {row[0] for row in bench.rows("SELECT supplier_stone_id FROM diamonds WHERE deleted_at IS NOT NULL")}


def missed(bench: Bench) -> set[str]:
    return {row[0] for row in bench.rows("SELECT supplier_stone_id FROM diamonds WHERE missed_by_run_id IS NOT NULL")}


def numbers(simulator: NivodaSimulator, partition: Any) -> list[int]:
    """The stones of a partition, in the order of its pages."""
    high = None if partition.high is None else partition.high * 100 - 1
    return list(simulator.stones.page(Wanted(partition.low * 100, high), 0, STONES * 2, by_price=False))


class Meanwhile:
    """Something that happens once, before a request of a later run."""

    def __init__(self) -> None:
        self.bench: Bench | None = None
        self.holds: Callable[[Bench], bool] = lambda _: False
        self.happens: Callable[[Bench], None] = lambda _: None
        self.happened = False

    def __call__(self) -> None:
        if self.bench is not None and not self.happened and len(self.bench.runs()) > 1 and self.holds(self.bench):
            self.happened = True
            self.happens(self.bench)


def test_a_stone_that_a_price_change_pushes_past_the_count_is_read(ledger_url, tmp_path):
    """A stone moves into another partition before that is read: the last one there falls behind the counted ones."""
    meanwhile, pushed = Meanwhile(), []

    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        assert (await bench.harvest()).status is R.COMPLETED

        def move(bench: Bench) -> None:
            first, second = bench.partitions()
            pushed.append(simulator.stones.stone_id(numbers(simulator, second)[-1]))
            simulator.stones.reprice(numbers(simulator, first)[5], second.low * 100 + 1, bench.clock.now())

        meanwhile.bench, meanwhile.happens = bench, move
        meanwhile.holds = lambda bench: len(bench.partitions()) == 2 and not any(p.pages for p in bench.partitions())
        run = await full(bench)
        assert meanwhile.happened
        assert pushed[0] in bench.raw()
        assert deleted(bench) == missed(bench) == set()
        assert (run.unseen, run.records_deleted) == (0, 0)
        assert [p.doubt for p in bench.partitions()] == [None, None]

    over_http(ledger_url, tmp_path, test, before=meanwhile, settings=TWO)


@pytest.mark.by_day
def test_a_stone_that_moves_forward_between_pages_is_read(ledger_url, tmp_path):
    """A stone that was read leaves its partition: all behind it move up, one of them onto a page that was read."""
    meanwhile, forward = Meanwhile(), []

    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        assert (await bench.harvest()).status is R.COMPLETED

        def move(bench: Bench) -> None:
            first, second = bench.partitions()
            forward.append(simulator.stones.stone_id(numbers(simulator, second)[second.next_offset]))
            simulator.stones.reprice(numbers(simulator, second)[5], first.low * 100 + 5_000, bench.clock.now())

        meanwhile.bench, meanwhile.happens = bench, move
        meanwhile.holds = lambda bench: bench.partitions()[-1].next_offset in (60, 90)
        run = await full(bench)
        assert meanwhile.happened
        assert forward[0] in bench.raw()
        assert deleted(bench) == missed(bench) == set()
        assert run.unseen == 0
        assert sum(p.steps_back for p in bench.partitions()) == 1

    over_http(ledger_url, tmp_path, test, before=meanwhile, settings=TWO)


def test_a_stone_that_is_counted_and_on_no_page_is_kept(ledger_url, tmp_path):
    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        assert (await bench.harvest()).status is R.COMPLETED
        simulator.hidden = {100}
        for _ in range(3):
            run = await full(bench)
            assert (run.unseen, run.records_deleted) == (1, 0)
        assert deleted(bench) == missed(bench) == set()
        (doubt,) = [p.doubt for p in bench.partitions() if p.doubt]
        assert doubt.endswith("records were found")
        assert [a for a in bench.alerts() if a[0] == UNPROVED] == [(UNPROVED, "warning")] * 3

    over_http(ledger_url, tmp_path, test, settings=TWO)


def test_a_stone_on_no_page_is_kept_where_another_leaves_before_the_count(ledger_url, tmp_path):
    """Both times as many were read as are counted afterwards: the one that left makes up for the one on no page."""
    meanwhile = Meanwhile()

    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        assert (await bench.harvest()).status is R.COMPLETED
        hidden = numbers(simulator, bench.partitions()[1])[100]
        simulator.hidden = {hidden}

        def leave(bench: Bench) -> None:
            first, second = bench.partitions()
            simulator.stones.reprice(numbers(simulator, second)[-1], first.low * 100 + 5_000, bench.clock.now())

        meanwhile.bench, meanwhile.happens = bench, leave
        # It has read its last page and is about to be counted.
        meanwhile.holds = lambda bench: bench.partitions()[-1].completed and not bench.partitions()[-1].verified_at
        for _ in range(2):
            meanwhile.happened = False
            run = await full(bench)
            assert meanwhile.happened
            assert (run.unseen, run.records_deleted) == (1, 0)
        assert deleted(bench) == missed(bench) == set()

    over_http(ledger_url, tmp_path, test, before=meanwhile, settings=TWO)


@pytest.mark.parametrize("offered", [True, False])
def test_a_stone_whose_record_does_not_name_it_is_kept(ledger_url, tmp_path, monkeypatch, offered):
    """It is known by its offer; where that is not named either it could be any stone, and nothing is proved."""

    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        assert (await bench.harvest()).status is R.COMPLETED
        nameless, items = simulator.stones.stone_id(100), Catalogue.items
        sql = "SELECT supplier_stone_id, offer_id FROM diamonds"
        hidden = [nameless] if offered else [nameless, dict(bench.rows(sql))[nameless]]

        def without(catalogue: Catalogue, *given: Any) -> list[str]:
            found = list(items(catalogue, *given))
            for name in hidden:
                found = [text.replace(f'"{name}"', "null") for text in found]
            return found

        with monkeypatch.context() as patch:
            patch.setattr(Catalogue, "items", without)
            for _ in range(2):
                run = await full(bench)
                assert (run.unseen, run.records_deleted) == (0 if offered else 1, 0)
        assert deleted(bench) == missed(bench) == set()
        doubts = [p.doubt for p in bench.partitions() if p.doubt]
        assert doubts == ([] if offered else ["a record has no id of its own"])
        assert (await full(bench)).unseen == 0

    over_http(ledger_url, tmp_path, test, settings=TWO)


@pytest.mark.by_day
def test_a_stone_that_two_whole_runs_did_not_see_is_gone(ledger_url, tmp_path):
    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        assert (await bench.harvest()).status is R.COMPLETED
        gone = {simulator.stones.stone_id(number) for number in simulator.stones.remove(3)}
        run = await full(bench)
        assert (run.unseen, run.records_deleted, deleted(bench), missed(bench)) == (3, 0, set(), gone)
        bench.clock.advance(3_600)
        assert (await bench.harvest()).unseen is None
        assert (deleted(bench), missed(bench)) == (set(), gone)
        run = await full(bench)
        assert (run.unseen, run.records_deleted, deleted(bench)) == (0, 3, gone)
        run = await full(bench)
        assert (run.unseen, run.records_deleted, deleted(bench)) == (0, 0, gone)
        assert UNPROVED not in {kind for kind, _ in bench.alerts()}

    over_http(ledger_url, tmp_path, test, settings=TWO)


@pytest.mark.by_day
def test_a_run_that_is_in_doubt_neither_deletes_nor_counts_as_one_of_the_two(ledger_url, tmp_path):
    async def test(bench: Bench, simulator: NivodaSimulator) -> None:
        assert (await bench.harvest()).status is R.COMPLETED
        gone = {simulator.stones.stone_id(number) for number in simulator.stones.remove(2)}
        simulator.rows_past_count = None
        for _ in range(2):
            run = await full(bench)
            assert (run.unseen, run.records_deleted, missed(bench)) == (2, 0, set())
            assert all("without an end" in p.doubt for p in bench.partitions())
        simulator.rows_past_count = 0
        assert (await full(bench)).records_deleted == 0
        assert (deleted(bench), missed(bench)) == (set(), gone)
        simulator.rows_past_count = None
        assert (await full(bench)).records_deleted == 0
        simulator.rows_past_count = 0
        assert (await full(bench)).records_deleted == 2
        assert deleted(bench) == gone

    over_http(ledger_url, tmp_path, test, settings=TWO)

"""Pages that come at once: each is compared with the ledger as if it had come alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest.partition.machine import Partition, WorkerRun, worker_run_id
from penstock.lifecycles.harvest.partition.pages import Comparison, Page
from penstock.model.errors import LedgerUnavailable
from penstock.model.machine import Actor
from tests.support.consolidation import Site, a_run
from tests.support.harvest import START, STONES, Stone

RUN = a_run(1)


def partition(number: int) -> Partition:
    given: dict[str, Any] = {"window_from": None, "window_to": None, "created_at": START, "updated_at": START}
    given |= {"partition_id": f"p{number}", "ordinal": number, "low": number, "high": number + 1}
    return Partition(run_id=RUN.run_id, feed=RUN.feed, expected_records=90, due_at=START, **given)


def page(number: int, *names: str) -> Page:
    return Page.of(STONES, partition(number), [Stone(1, name) for name in names], START)


@pytest.fixture
def site(ledger_url):
    found = Site(ledger_url)
    found.birth(RUN)
    for number in range(3):
        own = worker_run_id(RUN.run_id, f"p{number}")
        worker = WorkerRun(
            id=own, run_id=RUN.run_id, partition_id=f"p{number}", worker_id=f"w{number}", started_at=START
        )
        found.ledger.birth([worker], actor=Actor.WORKER, who="test")
    found.raw({"a": 1, "b": 2})
    yield found
    found.ledger.close()


class Asked:
    """Reads of the ledger, one after the other, each when the test lets it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger_itself = ledger
        self.reads = 0
        self.free = asyncio.Event()

    async def ledger(self, work: Any) -> Any:
        self.reads += 1
        await self.free.wait()
        return work(self.ledger_itself)


def test_pages_that_come_during_a_read_share_the_next_one(site):
    async def test() -> None:
        io, comparison = Asked(site.ledger), Comparison()
        tasks = [asyncio.create_task(comparison.of(partition(0), page(0, "a", "new"), io))]  # type: ignore[arg-type]
        await asyncio.sleep(0.01)
        for number in (1, 2):
            asked = comparison.of(partition(number), page(number, "b", "x"), io)  # type: ignore[arg-type]
            tasks.append(asyncio.create_task(asked))
        await asyncio.sleep(0.01)
        io.free.set()
        known = await asyncio.gather(*tasks)
        assert io.reads == 2
        assert [one.worker.worker_id for one in known] == ["w0", "w1", "w2"]
        assert [one.records for one in known] == [{"a"}, {"b"}, {"b"}]
        assert {one.over for one in known} == {None}

    asyncio.run(test())


def test_a_step_that_is_cancelled_takes_no_answer_from_the_others(site):
    async def test() -> None:
        io, comparison = Asked(site.ledger), Comparison()
        first, second = (
            asyncio.create_task(comparison.of(partition(n), page(n, "a"), io))  # type: ignore[arg-type]
            for n in (0, 1)
        )
        await asyncio.sleep(0.01)
        first.cancel()
        io.free.set()
        assert (await second).records == {"a"}
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(test())


def test_a_page_that_cannot_be_compared_fails_alone(site):
    async def test() -> None:
        io, comparison = Asked(site.ledger), Comparison()
        io.free.set()
        good = comparison.of(partition(0), page(0, "a"), io)  # type: ignore[arg-type]
        bad = comparison.of(partition(7), page(7, "a"), io)  # type: ignore[arg-type]
        known, error = await asyncio.gather(good, bad, return_exceptions=True)
        assert not isinstance(known, BaseException)
        assert known.records == {"a"}
        assert isinstance(error, KeyError)
        assert not isinstance(error, LedgerUnavailable)

    asyncio.run(test())


def test_of_a_record_that_comes_twice_the_last_counts_within_the_count_and_the_first_past_it():
    came = page(0, "a", "b", "a", "c", "c")
    within, past = came.writes(3)
    place, key = came.columns.index("position"), came.columns.index("supplier_stone_id")
    assert [(row[key], row[place]) for row in within.rows] == [("a", 2), ("b", 1)]  # type: ignore[index]
    assert [(row[key], row[place]) for row in past.rows] == [("c", 3)]  # type: ignore[index]
    assert past.on_conflict == "ignore"

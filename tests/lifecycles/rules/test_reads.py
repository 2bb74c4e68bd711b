"""Reads, coalesced: everybody gets the prices asked for, whoever else asks, fails or goes away meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.target.reads import Reads
from penstock.model.clock import VirtualClock
from penstock.model.errors import Transient
from penstock.model.simulation import simulate
from tests.support.price_shop import euros

MOST = 5


def price(one: str) -> Price:
    return euros(100 + int(one))


class Far:
    """The other side: it has the variants below 50, and takes its time."""

    def __init__(self, *, fails: Callable[[int], bool] = lambda _: False) -> None:
        self.calls: list[list[str]] = []
        self.fails = fails

    async def read(self, ids: Sequence[str]) -> Mapping[str, Price]:
        self.calls.append(list(ids))
        number = len(self.calls)
        await asyncio.sleep(0.1)
        if self.fails(number):
            raise Transient(f"call {number}")
        return {one: price(one) for one in ids if int(one) < 50}


def on(far: Far, test: Callable[[Reads], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        reads = Reads(far.read, MOST)
        try:
            return await test(reads)
        finally:
            await reads.close()

    return simulate(VirtualClock(), main)


numbers = st.integers(0, 60).map(str)
asked = st.lists(numbers, min_size=1, max_size=8)
waiters = st.lists(st.tuples(asked, st.floats(0, 0.05), st.booleans()), min_size=1, max_size=12)


@given(waiters, st.sets(st.integers(1, 6)))
def test_everybody_who_stays_hears_the_truth_or_the_error(wanted, failing):
    far = Far(fails=failing.__contains__)

    async def test(reads: Reads) -> list[Any]:
        async def one(ids: list[str], delay: float) -> list[Price | None]:
            await asyncio.sleep(delay)
            return await reads.read(ids)

        tasks = [asyncio.create_task(one(ids, delay)) for ids, delay, _ in wanted]
        await asyncio.sleep(0.06)
        for task, (_, _, leaves) in zip(tasks, wanted, strict=True):
            if leaves:
                task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = on(far, test)
    assert all(0 < len(ids) <= MOST and len(set(ids)) == len(ids) for ids in far.calls)
    for (ids, _, leaves), answer in zip(wanted, found, strict=True):
        if leaves:
            assert isinstance(answer, asyncio.CancelledError)
        elif isinstance(answer, Transient):
            assert failing & set(range(1, len(far.calls) + 1))
        else:
            assert answer == [price(one) if int(one) < 50 else None for one in ids]
    if not failing:
        assert not any(isinstance(answer, Transient) for answer in found)


def test_what_is_asked_for_together_is_one_call():
    far = Far()

    async def test(reads: Reads) -> Any:
        return await asyncio.gather(reads.read(["1", "2"]), reads.read(["2", "3"]))

    assert on(far, test) == [[price("1"), price("2")], [price("2"), price("3")]]
    assert far.calls == [["1", "2", "3"]]


def test_a_read_never_joins_a_call_that_has_left():
    """Whoever asks later must see the prices as they are later."""
    far = Far()

    async def test(reads: Reads) -> Any:
        first = asyncio.create_task(reads.read(["1"]))
        await asyncio.sleep(0.05)
        await asyncio.gather(first, reads.read(["1"]))

    on(far, test)
    assert far.calls == [["1"], ["1"]]


def test_all_who_wait_hear_of_an_error_and_the_next_ask_anew():
    far = Far(fails=lambda number: number == 1)

    async def test(reads: Reads) -> Any:
        errors = await asyncio.gather(*(reads.read([str(n), "9"]) for n in range(3)), return_exceptions=True)
        return errors, await reads.read(["9"])

    errors, again = on(far, test)
    assert [str(error) for error in errors] == ["call 1"] * 3
    assert again == [price("9")]


@pytest.mark.parametrize("delay", [0.0, 0.05])
def test_closing_leaves_nobody_waiting(delay):
    far = Far()

    async def test(reads: Reads) -> Any:
        waiting = asyncio.create_task(reads.read(["1"]))
        await asyncio.sleep(delay)
        await reads.close()
        async with asyncio.timeout(1):
            await asyncio.wait([waiting])
        return waiting.cancelled()

    assert on(far, test)

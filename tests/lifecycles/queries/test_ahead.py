"""The page that is read while the last one is committed."""

import asyncio
import functools
from datetime import UTC, datetime

import msgspec
import pytest

from penstock.lifecycles.queries.ahead import Ahead
from penstock.lifecycles.queries.fetch import Asked, Fetched
from penstock.lifecycles.queries.passes import Kind, Pass
from penstock.model.errors import Rejected

NOW = datetime(2026, 11, 18, tzinfo=UTC)
PASS = Pass(kind=Kind.SEED, number=1, begun=NOW, until=NOW, place=50, pages=1)
FETCHED = Fetched()


def on_a_loop(test):
    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


async def page(asked: Asked) -> Fetched:
    asked()
    await asyncio.sleep(0)
    return FETCHED


@on_a_loop
async def test_a_page_is_given_once_and_to_the_run_that_asked():
    ahead = Ahead()
    await ahead.begin("run", PASS, page)
    assert await ahead.take("run", PASS) is FETCHED
    assert await ahead.take("run", PASS) is None


@pytest.mark.parametrize(
    ("run", "now"), [("another", PASS), ("run", msgspec.structs.replace(PASS, place=25, steps_back=1))]
)
@on_a_loop
async def test_another_run_or_another_place_forgets_the_page(run, now):
    ahead, cancelled = Ahead(), asyncio.Event()

    async def slow(_asked: Asked) -> Fetched:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return FETCHED

    await ahead.begin("run", PASS, slow)
    await asyncio.sleep(0)
    assert await ahead.take(run, now) is None
    await asyncio.wait_for(cancelled.wait(), 5)
    assert await ahead.take("run", PASS) is None


@on_a_loop
async def test_a_reading_that_its_lease_ended_is_made_anew():
    async def ended(_asked: Asked) -> Fetched:
        raise asyncio.CancelledError("the lease is over")

    ahead = Ahead()
    await ahead.begin("run", PASS, ended)
    assert await ahead.take("run", PASS) is None


@on_a_loop
async def test_what_went_wrong_is_told_to_whoever_wants_the_page():
    async def refused(_asked: Asked) -> Fetched:
        raise Rejected("no such page")

    ahead = Ahead()
    await ahead.begin("run", PASS, refused)
    with pytest.raises(Rejected, match="no such page"):
        await ahead.take("run", PASS)


@on_a_loop
async def test_a_step_that_is_cancelled_takes_its_page_along():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(_asked: Asked) -> Fetched:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return FETCHED

    ahead = Ahead()
    await ahead.begin("run", PASS, slow)
    step = asyncio.create_task(ahead.take("run", PASS))
    await begun.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    await asyncio.wait_for(ended.wait(), 5)


@on_a_loop
async def test_who_begins_goes_on_when_the_call_has_left():
    answer = asyncio.Event()

    async def left(asked: Asked) -> Fetched:
        asked()
        await answer.wait()
        return FETCHED

    ahead = Ahead()
    await asyncio.wait_for(ahead.begin("run", PASS, left), 5)
    answer.set()
    assert await ahead.take("run", PASS) is FETCHED


@on_a_loop
async def test_a_step_that_is_cancelled_while_its_call_leaves_takes_it_along():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def slow(_asked: Asked) -> Fetched:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return FETCHED

    ahead = Ahead()
    step = asyncio.create_task(ahead.begin("run", PASS, slow))
    await begun.wait()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    await asyncio.wait_for(ended.wait(), 5)
    assert await ahead.take("run", PASS) is None

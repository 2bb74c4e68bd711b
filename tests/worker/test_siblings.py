"""Siblings in a worker: one step, one call and one moment to try again, until one of them may be to blame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from penstock.model.errors import InDoubt, StepError, Throttled, Transient
from penstock.model.outcome import Act, Decision, Outcome, Wait
from penstock.model.unit import replace
from penstock.worker.flow import Flow, Io
from tests.support.gating import GATE, limited, per_second
from tests.support.machines import BATCH_ITEM, ItemState, batch_item, batch_run
from tests.support.more_machines import PARCEL, ParcelState, parcel
from tests.support.probe import work
from tests.support.world import World

CLOSED = "SELECT count(*) FROM parcel WHERE status = 'closed'"


class Family(Flow[Any, None, Any]):
    """Acts on siblings by what the test gives; `calls` are the names of those that each call was for."""

    machine = PARCEL

    def __init__(self, act: Callable[[list[Any]], Any] | None = None) -> None:
        super().__init__(None)
        self._act = act
        self.calls: list[list[str]] = []

    @staticmethod
    def decide(unit: Any, now: Any, settings: Any, seen: Any) -> Decision:
        return Act("all", "due")

    async def act(self, what: str, unit: Any, seen: Any, io: Io) -> Any:
        return (await self.act_together(what, [unit], [seen], io))[0]

    async def act_together(self, what: str, units: Any, seen: Any, io: Io) -> Any:
        self.calls.append(sorted(u.unit_id for u in units))
        assert len(self.calls) < 500, "the same steps over and over"
        answer = self._act(units) if self._act else closed(units)
        return await answer if asyncio.iscoroutine(answer) else answer


def closed(units: Any) -> list[Outcome[Any]]:
    return [Outcome(u, replace(u, status=ParcelState.CLOSED, due_at=None), "sent") for u in units]


def families(world: World, *names: str, size: int = 4, **fields: Any) -> None:
    world.born(*(parcel(f"{name}{n}", note=name, **fields) for name in names for n in range(size)))


def test_there_is_one_call_for_a_family_however_little_a_budget_gives(world):
    limited(world, per_second(10, 20))
    families(world, *(f"f{n:02}-" for n in range(60)), gate_id=GATE)
    world.time.advance(100)
    flow = Family()
    work(world, flow, seconds=6)
    assert world.one(CLOSED) == 240
    assert [len(call) for call in flow.calls] == [4] * 60


def test_concurrency_counts_families(world):
    families(world, *(f"f{n}-" for n in range(12)))
    inside = [0, 0]

    async def act(units: Any) -> Any:
        inside[0] += 1
        inside[1] = max(inside)
        await asyncio.sleep(1)
        inside[0] -= 1
        return closed(units)

    work(world, Family(act), seconds=5, concurrency=4)
    assert (inside[1], world.one(CLOSED)) == (4, 48)


# Trying again.


def instants(world: World, table: str = "parcel") -> int:
    return len(world.rows(f"SELECT DISTINCT due_at FROM {table}"))


@pytest.mark.parametrize(
    "error", [Transient("503"), InDoubt("no answer"), Throttled("slow", None), KeyError("id"), Throttled("slow", 7)]
)
def test_siblings_that_fail_together_are_tried_again_together(world, error):
    world.born(batch_run("run", items_expected=4, due_at=None), *(batch_item(n) for n in range(4)))
    failing = [True]

    class Items(Family):
        machine = BATCH_ITEM

    def act(units: Any) -> Any:
        if failing:
            failing.pop()
            raise error
        return [Outcome(u, replace(u, status=ItemState.DONE), "done") for u in units]

    flow = Items(act)
    work(world, flow, seconds=1)
    assert instants(world, "batch_item") == 1
    assert world.one("SELECT min(due_at) FROM batch_item WHERE claimed_by IS NULL") is not None
    work(world, flow, seconds=30)
    assert [len(call) for call in flow.calls] == [4, 4]


def test_those_that_failed_before_wait_as_long_as_the_most_tried(world):
    world.born(batch_run("run", items_expected=4, due_at=None), *(batch_item(n) for n in range(4)))
    world.sql("UPDATE batch_item SET attempts = 2 WHERE position = 3")

    class Items(Family):
        machine = BATCH_ITEM

    def act(units: Any) -> Any:
        raise Transient("503")

    flow = Items(act)
    work(world, flow, seconds=1)
    assert instants(world, "batch_item") == 1
    assert world.rows("SELECT attempts FROM batch_item ORDER BY position") == [(1,), (1,), (1,), (3,)]
    work(world, flow, seconds=10)
    assert [len(call) for call in flow.calls] == [4, 4]


def test_what_an_outage_puts_off_is_put_off_together(world):
    families(world, "a", gate_id=GATE)

    class Uncharged(Family):
        charges_outages = False

    def act(units: Any) -> Any:
        raise Transient("503")

    flow = Uncharged(act)
    work(world, flow, seconds=60)
    assert {len(call) for call in flow.calls} == {4}
    assert len(flow.calls) >= 3, "the first was charged, and the others not"
    assert world.rows("SELECT DISTINCT attempts, crashes FROM parcel") == [(1, 0)]
    assert instants(world) == 1


class Own(Family):
    machine = BATCH_ITEM

    def failed(self, unit: Any, error: StepError, now: Any, rng: Any) -> Any:
        later = now + timedelta(seconds=rng.uniform(1, 100))
        return Outcome(unit, replace(unit, status=ItemState.OPEN, due_at=later, result=str(rng.uniform(0, 1))), "later")


def test_a_flow_that_says_when_to_try_again_draws_the_same_for_each(world):
    world.born(batch_run("run", items_expected=3, due_at=None), *(batch_item(n) for n in range(3)))

    def act(units: Any) -> Any:
        raise Transient("503")

    flow = Own(act)
    work(world, flow, seconds=0.5)
    assert len(world.rows("SELECT DISTINCT due_at, result FROM batch_item")) == 1
    first = world.rows("SELECT DISTINCT due_at, result FROM batch_item")
    work(world, flow, seconds=101)
    assert world.rows("SELECT DISTINCT due_at, result FROM batch_item") != first, "and anew each time"
    assert {len(call) for call in flow.calls} == {3}


@pytest.mark.parametrize("answer", [lambda units: [None for _ in units], lambda units: None])
def test_what_is_no_outcome_crashes_them_together(world, answer):
    families(world, "a")
    work(world, Family(answer), seconds=1)
    assert world.rows("SELECT DISTINCT crashes FROM parcel") == [(1,)]
    assert instants(world) == 1


def test_a_decision_that_breaks_crashes_them_together(world):
    families(world, "a")

    class Undecided(Family):
        @staticmethod
        def decide(unit: Any, now: Any, settings: Any, seen: Any) -> Decision:
            raise KeyError(unit.name)

    work(world, Undecided(), seconds=1)
    assert world.rows("SELECT DISTINCT crashes FROM parcel") == [(1,)]
    assert instants(world) == 1


def test_a_commit_that_is_refused_crashes_them_together(world):
    families(world, "a")

    def act(units: Any) -> Any:
        return [Outcome(u, replace(u, status=ParcelState.CLOSED, count=5_000), "too many") for u in units]

    work(world, Family(act), seconds=1)
    assert world.rows("SELECT DISTINCT crashes FROM parcel") == [(1,)]
    assert instants(world) == 1


def test_a_step_past_its_deadline_is_tried_again_by_all(world):
    families(world, "a")

    class Slow(Family):
        deadline = timedelta(seconds=3)

    async def act(units: Any) -> Any:
        if not units[0].doubts:
            await asyncio.sleep(100)
        return closed(units)

    flow = Slow(act)
    work(world, flow, seconds=20)
    assert [len(call) for call in flow.calls] == [4, 4]
    assert world.one(CLOSED) == 4


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = object.__repr__


def test_a_failure_that_cannot_be_told_gives_them_back_together(world):
    families(world, "a")

    def act(units: Any) -> Any:
        raise Unprintable

    work(world, Family(act), seconds=1)
    assert world.rows("SELECT DISTINCT crashes, claimed_by FROM parcel") == [(1, None)]
    assert instants(world) == 1


def test_a_wait_is_each_ones_own(world):
    families(world, "a")

    class Waiting(Family):
        @staticmethod
        def decide(unit: Any, now: Any, settings: Any, seen: Any) -> Decision:
            return Wait(now + timedelta(hours=1 + int(unit.name[-1])), "later")

    work(world, Waiting(), seconds=1)
    assert instants(world) == 4


# One that is to blame.


@pytest.mark.parametrize("gate", ["none", GATE])
def test_one_that_breaks_every_step_is_parked_alone_and_its_siblings_are_done(world, gate):
    limited(world, per_second(100, 400))
    families(world, "a", gate_id=gate)

    def act(units: Any) -> Any:
        if any(u.name == "a2" for u in units):
            raise KeyError("variant")
        return closed(units)

    flow = Family(act)
    work(world, flow, seconds=30)
    assert world.rows("SELECT name, crashes FROM parcel WHERE parked_at IS NOT NULL") == [("a2", 3)]
    assert world.one(CLOSED) == 3
    family = [f"a{n}" for n in range(4)]
    assert sorted(flow.calls) == sorted([family, family, *([name] for name in family)])

"""What counts as an answer of the provider, who hears of it, and what the breaker lets through, as workers meet it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.model.clock import Rng
from penstock.model.errors import InDoubt, MustWait, Rejected, Transient
from penstock.model.outcome import Act, Look, Outcome
from penstock.model.simulation import simulate
from penstock.model.unit import replace
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Io
from penstock.worker.gates import WorkerGates
from tests.support.gating import GATE, alerts, crowd, given, row
from tests.support.machines import InvoiceState, invoice
from tests.support.probe import Probe, sent, work
from tests.support.world import after


def failing(world: Any, times: int = 2) -> None:
    """The gate as it is after so many calls that failed in a row."""
    for _ in range(times):
        world.ledger.gates.fail(given(world), "503", 0.0)


class Answered(Transient):
    answered = True


@pytest.mark.parametrize("error", [Transient("503"), InDoubt("timed out")])
def test_what_waits_behind_an_open_breaker_is_neither_called_nor_charged(world, error):
    crowd(world, 60)

    async def act(unit: Any, io: Io) -> Any:
        await asyncio.sleep(0.1)
        raise type(error)(str(error))

    flow = Probe(act)
    work(world, flow, seconds=1_800, concurrency=2)
    assert alerts(world)[0] == ("gate.breaker", "critical")
    assert [kind for kind, _ in alerts(world)].count("gate.breaker") == 1
    assert len(flow.acted) <= 30, "two at a time until it opens, then a probe now and then"
    assert world.one("SELECT count(*) FROM invoice WHERE attempts = 0 AND crashes = 0") >= 40


def test_an_intent_is_no_answer(world):
    crowd(world, 1)
    failing(world)

    async def act(unit: Any, io: Io) -> Any:
        if unit.remote_id is None:
            return Outcome(unit, replace(unit, remote_id="r"), "about to send", keep_claim=True, keep_crashes=True)
        raise Transient("503")

    work(world, Probe(act), seconds=1)
    assert row(world, "failures, failing_since IS NULL") == (3, False)


def test_neither_is_what_makes_no_call(world):
    crowd(world, 1)
    failing(world)
    work(world, Probe(decide=lambda unit, now, seen: Act("send", "known", counts_attempt=False)), seconds=1)
    assert world.one("SELECT status FROM invoice") == "SENT"
    assert row(world, "failures") == (2,)


@pytest.mark.parametrize(("asks", "failures"), [(True, 1), (False, 3)])
def test_a_look_is_an_answer_if_the_provider_was_asked(world, asks, failures):
    crowd(world, 1)
    failing(world)

    async def look(unit: Any, io: Io) -> Any:
        return "seen"

    async def act(unit: Any, io: Io) -> Any:
        await asyncio.sleep(0.01)
        raise Transient("503")

    def decide(unit: Any, now: Any, seen: Any) -> Any:
        return Act("send", "due") if seen else Look("is it there?", asks=asks)

    work(world, Probe(act, decide=decide, look=look), seconds=1)
    assert row(world, "failures") == (failures,)


@pytest.mark.parametrize("error", [Answered("ask for another link"), Rejected("no such thing")])
def test_an_error_about_this_item_shows_that_the_provider_is_there(world, error):
    crowd(world, 1)
    failing(world)

    async def act(unit: Any, io: Io) -> Any:
        raise error

    work(world, Probe(act), seconds=1)
    assert row(world, "failures, failing_since") == (0, None)


def test_something_of_our_own_that_is_away_is_nobodys_failure(world):
    (ref,) = world.born(invoice(gate_id=GATE))

    async def act(unit: Any, io: Io) -> Any:
        raise MustWait("the disk is full")

    flow = Probe(act)
    work(world, flow, seconds=130)
    found = world.unit(ref)
    assert (found.attempts, found.crashes, found.change_reason) == (0, 0, "the disk is full")
    assert [(at - after(0)).total_seconds() for _, at in flow.acted] == [0, 60, 120]
    assert row(world, "failures") == (0,)


def test_a_success_of_a_claim_that_is_kept_for_long_is_told_once_the_worker_has_looked_around(world):
    """Its pass was given while all was well; another process has failures meanwhile."""
    crowd(world, 1)
    turns = 0

    async def act(unit: Any, io: Io) -> Any:
        nonlocal turns
        turns += 1
        if turns == 2:
            failing(world)
        await asyncio.sleep(5)
        if turns == 8:
            return sent(unit)
        return Outcome(unit, replace(unit, amount_minor=turns), "a page", keep_claim=True)

    work(world, Probe(act), seconds=25)
    assert turns < 8
    assert row(world, "failures, failing_since") == (0, None)


def test_calls_that_fail_together_are_told_of_together(world):
    crowd(world, 1)
    asked: list[str] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(world.ledger.gates, name)

    class Late(InlineExecutor):
        async def run(self, work: Any, *arguments: Any) -> Any:
            await asyncio.sleep(0.01)
            return await super().run(work, *arguments)

    made = WorkerGates(Counting(), Late(), world.time, Rng(1))  # type: ignore[arg-type]
    passed = given(world)

    async def main() -> None:
        errors = [Transient("503") for _ in range(100)]
        await asyncio.gather(*(made.failed([passed], error) for error in errors))
        assert {error.trouble[GATE].failures for error in errors} == {1}
        await made.close()

    simulate(world.time, main)
    assert asked.count("fail") == 1
    assert row(world, "failures") == (1,)


def test_a_healthy_gate_costs_no_write_when_calls_succeed(world):
    crowd(world, 20)
    told: list[str] = []
    worked = world.ledger.gates.worked

    def noted(passed: Any) -> None:
        told.append(passed.gate_id)
        worked(passed)

    world.ledger.gates.worked = noted
    work(world, Probe(), seconds=5)
    assert world.one("SELECT count(*) FROM invoice WHERE status = 'SENT'") == 20
    assert told == []
    failing(world)
    crowd(world, 20, prefix="m")
    work(world, Probe(), seconds=5)
    assert told == [GATE], "and one where something had failed, however many succeed"
    assert {InvoiceState(s) for (s,) in world.rows("SELECT status FROM invoice")} == {InvoiceState.SENT}

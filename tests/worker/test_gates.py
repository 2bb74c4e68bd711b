"""Gates as steps meet them: later gates, what answers close, places that went stale, and who is told."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, ClassVar

import pytest

from penstock.ledger.gates.budget import Closed, Pass
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import Fatal, GateClosed, LedgerUnavailable, Rejected, Throttled, Transient
from penstock.model.limits import GateLimits, Limit
from penstock.model.outcome import Act, Outcome, Wait
from penstock.model.simulation import simulate
from penstock.model.unit import replace
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Gate, Io
from penstock.worker.gates import WorkerGates
from tests.support.gating import GATE, alerts, crowd, limited, per_second, row, shut, take, tokens
from tests.support.machines import BATCH_ITEM, InvoiceState, ItemState, batch_item, batch_run, invoice
from tests.support.probe import Probe, raising, sent, wired, work, work_on
from tests.support.world import after, instant

LATER = "shop/acme/download"


def seconds(flow: Probe) -> list[float]:
    return [(at - after(0)).total_seconds() for _, at in flow.acted]


def through(*errors: Exception, gate: str = LATER) -> Any:
    """An act whose call through a later gate fails with these, one after the other, and then succeeds."""
    waiting = list(errors)

    async def act(unit: Any, io: Io) -> Any:
        async with io.gate(gate):
            if waiting:
                raise waiting.pop(0)
        return sent(unit)

    return act


# Later gates of a step.


def test_a_later_gate_that_is_closed_makes_the_unit_wait_uncharged(world):
    (ref,) = world.born(invoice(gate_id=GATE))
    world.close_gate(LATER, 40)
    flow = Probe(through())
    work(world, flow, seconds=10)
    found = world.unit(ref)
    assert (found.attempts, found.crashes, found.due_at, found.claimed_by) == (0, 0, after(40), None)
    assert found.change_reason == f"{LATER} is closed: test"
    work(world, flow, seconds=60)
    assert world.unit(ref).status is InvoiceState.SENT
    assert seconds(flow) == [0, 40]


def test_a_later_gate_that_is_held_is_looked_at_once_a_minute(world):
    (ref,) = world.born(invoice(gate_id=GATE))
    world.ledger.gates.pause(LATER, "operator:anna", "audit")
    flow = Probe(through())
    work(world, flow, seconds=130)
    assert seconds(flow) == [0, 60, 120]
    assert world.unit(ref).change_reason == f"{LATER} is held by operator:anna: audit"
    world.ledger.gates.resume(LATER, "operator:anna")
    work(world, flow, seconds=60)
    assert world.unit(ref).status is InvoiceState.SENT


def test_a_throttle_through_a_later_gate_closes_that_gate_and_not_the_units_own(world):
    (ref,) = world.born(invoice(gate_id=GATE))
    flow = Probe(through(Throttled("slow down", 30)))
    work(world, flow, seconds=5)
    assert row(world, "throttles, closed_until") == (0, None)
    assert row(world, "throttles, epoch, closed_reason", LATER) == (1, 1, "slow down")
    found = world.unit(ref)
    assert (found.attempts, found.crashes, found.change_reason) == (0, 0, "Throttled: slow down")
    assert 30 <= (found.due_at - after(0)).total_seconds() == shut(world, LATER) <= 33
    work(world, flow, seconds=40)
    assert world.unit(ref).status is InvoiceState.SENT
    assert row(world, "throttles", LATER) == (0,), "the success healed it"


def test_a_later_gate_is_told_even_if_the_step_deals_with_the_answer(world):
    (ref,) = world.born(invoice(gate_id=GATE))

    async def act(unit: Any, io: Io) -> Any:
        with contextlib.suppress(Throttled):
            async with io.gate(LATER):
                raise Throttled("slow down", 30)
        return sent(unit, "without it")

    work(world, Probe(act), seconds=5)
    assert world.unit(ref).change_reason == "without it"
    assert row(world, "throttles", LATER) == (1,)


def test_a_fatal_answer_through_a_later_gate_stops_its_account_and_parks_nobody(world):
    (ref,) = world.born(invoice())
    work(world, Probe(through(Fatal("401"), gate="files/acme/download")), seconds=5)
    assert row(world, "held_by", "files/acme") == ("fatal",)
    assert alerts(world) == [("gate.stopped", "critical")]
    found = world.unit(ref)
    assert (found.parked_at, found.attempts) == (None, 0)
    assert (found.due_at - after(0)).total_seconds() == pytest.approx(60, abs=1)


def test_other_errors_through_a_later_gate_are_the_units(world):
    (ref,) = world.born(invoice(gate_id=GATE))
    flow = Probe(through(Transient("503"), Rejected("no such file")))
    work(world, flow, seconds=20)
    found = world.unit(ref)
    assert (found.status, found.attempts) == (InvoiceState.FAILED, 1)
    assert row(world, "throttles, closed_until", LATER) == (0, None)


def test_a_bug_inside_a_gate_gives_its_probe_back(world):
    world.born(invoice(gate_id=GATE))
    gates = world.ledger.gates
    gates.enter(LATER, 1)
    gates.throttle(Pass(LATER, 0), 0, "429", 0.0)
    flow = Probe(through(KeyError("id")))
    work(world, flow, seconds=10)
    assert seconds(flow) == [0, pytest.approx(2, abs=0.5)], "the bug's retry found the gate ready for a probe"
    assert row(world, "throttles", LATER) == (0,)


def test_the_gate_of_nobody_is_always_open(world):
    (ref,) = world.born(invoice(gate_id=GATE))
    work(world, Probe(through(Throttled("slow down", 5), gate="none")), seconds=8)
    assert row(world, "throttles") == (0,), "the unit's own gate was closed by it, and has healed"
    assert world.unit(ref).status is InvoiceState.SENT


def test_a_later_gate_on_a_budget_lets_through_what_it_has(world):
    limited(world, per_second(2, 4), name=LATER)
    crowd(world, 20)
    flow = Probe(through())
    work(world, flow, seconds=30)
    assert world.one("SELECT count(*) FROM invoice WHERE status = 'SENT'") == 20
    assert len(flow.acted) <= 60, "those who must wait come when it is their turn, not all at every turn"
    last = instant(world.one("SELECT max(changed_at) FROM invoice"))
    assert last is not None
    assert 9.5 <= (last - after(0)).total_seconds() <= 15
    assert world.rows("SELECT DISTINCT attempts, crashes FROM invoice") == [(0, 0)]


# Coalescing.


class Desk:
    """Gates that count how often they are asked."""

    def __init__(self, gates: Any) -> None:
        self._gates = gates
        self.asked: list[int] = []
        self.away = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gates, name)

    def enter(self, gate_id: str, wanted: int, costs: Any) -> Any:
        self.asked.append(wanted)
        if self.away:
            raise LedgerUnavailable("the wire is cut")
        return self._gates.enter(gate_id, wanted)


class LateExecutor(InlineExecutor):
    """Work takes a moment, and others come meanwhile."""

    async def run(self, work: Any, *arguments: Any) -> Any:
        await asyncio.sleep(0.01)
        return await super().run(work, *arguments)


def gates(world: Any, desk: Desk, executor: Any = None) -> WorkerGates:
    return WorkerGates(desk, executor or LateExecutor(), world.time, Rng(1), "v1")  # type: ignore[arg-type]


def test_leave_is_asked_for_together(world):
    limited(world, per_second(40, 400))
    world.ledger.gates.enter(GATE, 1)
    world.time.advance(100)
    desk = Desk(world.ledger.gates)
    made = gates(world, desk)

    async def main() -> list[Any]:
        return await asyncio.gather(*(made.enter(GATE) for _ in range(8)), return_exceptions=True)

    found = simulate(world.time, main)
    assert [type(f) for f in found] == [Pass] * 8
    assert desk.asked == [8]


def test_who_is_not_granted_leave_hears_when_it_opens(world):
    limited(world, per_second(4, 4))
    world.ledger.gates.enter(GATE, 1)
    world.time.advance(100)
    desk = Desk(world.ledger.gates)
    made = gates(world, desk)

    async def main() -> list[Any]:
        return await asyncio.gather(*(made.enter(GATE) for _ in range(20)), return_exceptions=True)

    found = simulate(world.time, main)
    passed, refused = found[:11], found[11:]
    assert {type(f) for f in passed} == {Pass}
    assert {type(f) for f in refused} == {GateClosed}
    waits = [(f.until - after(100)).total_seconds() for f in refused]
    assert waits == [pytest.approx(waits[0] + 0.25 * n, abs=0.01) for n in range(9)], "one after the other"
    assert 2 <= waits[0] <= 3
    assert world.time.elapsed() <= 103


def test_a_gate_without_limits_is_asked_four_times_a_second_at_most(world):
    desk = Desk(world.ledger.gates)
    made = gates(world, desk)

    async def main() -> None:
        for _ in range(100):
            await made.enter("free")
            await asyncio.sleep(0.01)

    simulate(world.time, main)
    assert 3 <= len(desk.asked) <= 5


def test_a_place_that_came_too_late_is_asked_for_again(world):
    limited(world, per_second(40, 400))
    world.ledger.gates.enter(GATE, 1)
    world.time.advance(100)
    desk = Desk(world.ledger.gates)

    class Stalled(InlineExecutor):
        stalls: ClassVar = [1.0, 0.0]

        async def run(self, work: Any, *arguments: Any) -> Any:
            found = await super().run(work, *arguments)
            await asyncio.sleep(self.stalls.pop(0))
            return found

    made = gates(world, desk, Stalled())
    assert isinstance(simulate(world.time, lambda: made.enter(GATE)), Pass)
    assert desk.asked == [1, 1]


def test_a_ledger_that_is_away_is_a_closed_gate(world):
    desk = Desk(world.ledger.gates)
    desk.away = True
    made = gates(world, desk)

    async def main() -> None:
        with pytest.raises(GateClosed, match="the wire is cut") as caught:
            await made.enter(GATE)
        assert caught.value.until is None

    simulate(world.time, main)


def test_a_success_that_could_not_be_told_is_told_by_the_next(world):
    gates = world.ledger.gates
    gates.enter(GATE, 1)
    gates.throttle(Pass(GATE, 0), 0, "429", 0.0)
    answer = gates.enter(GATE, 1)
    assert not isinstance(answer, Closed)
    ledger, wire = wired(world, list(world.ledger.machines.values()))
    woken: list[int] = []
    made = WorkerGates(ledger.gates, InlineExecutor(), VirtualClock(), Rng(1), wake=lambda: woken.append(1))

    async def main() -> None:
        wire.away = True
        made.worked(answer[0])
        await made.close()
        wire.away = False
        assert row(world, "throttles") == (1,)
        made.worked(answer[0])
        made.worked(answer[0])
        await made.close()

    simulate(world.time, main)
    assert row(world, "throttles") == (0,)
    assert woken


# The unit's own gate.


def test_a_rejected_probe_shows_that_the_provider_is_back(world):
    crowd(world, 5)
    world.ledger.gates.throttle(Pass(GATE, 0), 3, "429", 0.0)
    flow = Probe(raising(Rejected("bad amount")))
    work(world, flow, seconds=10)
    assert row(world, "throttles") == (0,)
    assert len(flow.acted) == 5


def test_a_probe_that_fails_otherwise_closes_the_gate_again(world):
    crowd(world, 3)
    world.ledger.gates.throttle(Pass(GATE, 0), 3, "429", 0.0)
    flow = Probe(raising(Transient("503")))
    work(world, flow, seconds=20)
    assert len(flow.acted) == 1
    assert row(world, "throttles, epoch") == (2, 2)
    work(world, flow, seconds=40)
    assert len(flow.acted) == 4
    assert row(world, "throttles") == (0,)


def test_a_probe_that_asks_nothing_makes_room_for_the_next(world):
    crowd(world, 3)
    world.ledger.gates.throttle(Pass(GATE, 0), 3, "429", 0.0)

    def decide(unit: Any, now: Any, seen: Any) -> Any:
        return Wait(None, "nothing to do") if unit.number == "n0000" else Act("send", "due")

    flow = Probe(decide=decide)
    work(world, flow, seconds=10)
    assert len(flow.acted) == 2, "a probe's lease would have lasted a minute"


def test_a_worker_that_stops_before_its_probe_began_makes_room_for_the_next(world):
    crowd(world, 3)
    world.ledger.gates.throttle(Pass(GATE, 0), 0, "429", 0.0)

    async def slow(unit: Any, io: Io) -> Any:
        await asyncio.sleep(60)

    # One step at a time, and that is a unit without a gate: the probe is claimed and never begun.
    world.born(invoice("first", due_at=after(-1)))
    work(world, Probe(slow), seconds=2, concurrency=1, stop_seconds=0.5)
    assert row(world, "next_at") == (None,)
    flow = Probe()
    work(world, flow, seconds=5)
    assert world.one("SELECT count(*) FROM invoice WHERE status = 'SENT'") >= 3


def test_what_was_claimed_and_not_begun_goes_back_when_the_gate_closes(world):
    crowd(world, 30)

    async def act(unit: Any, io: Io) -> Any:
        await asyncio.sleep(0.1)
        raise Throttled("slow down", 50)

    flow = Probe(act)
    work(world, flow, seconds=5, concurrency=3)
    assert len(flow.acted) == 3
    assert world.rows("SELECT DISTINCT attempts, crashes, claimed_by FROM invoice") == [(0, 0, None)]
    assert row(world, "throttles, epoch") == (1, 1)


def test_a_place_that_nobody_could_use_in_time_is_given_up(world):
    """All steps are taken by slow ones: what is claimed behind a budget meanwhile goes back, uncharged."""
    limited(world, per_second(10, 20))
    crowd(world, 5)
    worker_busy = asyncio.Event()

    async def act(unit: Any, io: Io) -> Any:
        worker_busy.set()
        await asyncio.sleep(0.7)
        return sent(unit)

    flow = Probe(act)
    work(world, flow, seconds=20, concurrency=1)
    assert world.one("SELECT count(*) FROM invoice WHERE status = 'SENT'") == 5
    assert world.rows("SELECT DISTINCT attempts, crashes FROM invoice") == [(0, 0)]


def test_a_gate_with_a_budget_is_used_at_its_rate_and_the_worker_does_not_spin(world):
    limited(world, per_second(2, 2))
    crowd(world, 20)
    ledger, wire = wired(world, list(world.ledger.machines.values()))
    ledger.gates.providers = world.ledger.gates.providers
    flow = Probe()
    work_on(ledger, world, [flow], 12)
    times = seconds(flow)
    assert len(times) == 20
    assert all(len([t for t in times if start <= t < start + 1]) <= 3 for start in range(12))
    assert times[-1] <= 11
    # Each call is a claim, a commit, and an idle question or two; and the worker looks up once a second.
    assert len(wire.asked) <= 20 * 6 + 12 * 10


def test_a_busy_worker_with_a_full_budget_does_not_spin(world):
    limited(world, per_second(100, 200))
    crowd(world, 40)
    ledger, wire = wired(world, list(world.ledger.machines.values()))
    ledger.gates.providers = world.ledger.gates.providers
    world.time.advance(5)

    async def act(unit: Any, io: Io) -> Any:
        await asyncio.sleep(30)
        return sent(unit)

    work_on(ledger, world, [Probe(act)], 25, concurrency=2, stop_seconds=10)
    assert len(wire.asked) <= 25 * 15


def test_behind_a_backlog_without_limits_the_budget_is_still_used(world):
    """A worker that has enough to do elsewhere gives a gate with a budget its share all the same."""
    limited(world, per_second(20, 40))
    crowd(world, 40)
    crowd(world, 100, "free", "f")
    order: list[str] = []

    async def act(unit: Any, io: Io) -> Any:
        order.append(unit.gate_id)
        await asyncio.sleep(0.2)
        return sent(unit)

    work(world, Probe(act), seconds=60, concurrency=5)
    assert len(order) == 140
    assert order.index(GATE) < 60
    assert order[:100].count(GATE) >= 10, "not only when the others are done"
    assert order[:60].count("free") >= 20, "nor the other way round"


def test_one_place_is_used_again_as_soon_as_it_is_free(world):
    limited(world, places=1)
    crowd(world, 20)
    inside: list[int] = [0, 0]

    async def act(unit: Any, io: Io) -> Any:
        inside[0] += 1
        inside[1] = max(inside)
        await asyncio.sleep(0.1)
        inside[0] -= 1
        return sent(unit)

    flow = Probe(act)
    work(world, flow, seconds=10)
    assert inside[1] == 1
    assert len(flow.acted) == 20
    assert seconds(flow)[-1] <= 5, "nobody waits for the second after which one asks again"


class Costly(Probe):
    """Says what its steps cost."""

    def __init__(self, act: Any = None, *, costs: Any, **given: Any) -> None:
        super().__init__(act, **given)
        self._costs = costs

    def costs(self, units: Any) -> Any:
        return self._costs(units) if callable(self._costs) else self._costs


def test_calls_that_cost_more_pay_for_it(world):
    limited(world, per_second(10, 20))
    crowd(world, 12)
    flow = Costly(costs={"requests": 5})
    work(world, flow, seconds=20)
    times = seconds(flow)
    assert len(times) == 12
    assert 5 <= times[-1] <= 7, "sixty at ten a second"


class Together(Probe):
    machine = BATCH_ITEM

    async def act_together(self, what: str, units: Any, seen: Any, io: Io) -> Any:
        self.acted.append((f"{len(units)}", io.now()))
        return [Outcome(u, replace(u, status=ItemState.DONE), "") for u in units]


def test_siblings_make_one_call_and_pay_for_one(world):
    limited(world, per_second(40, 400))
    world.born(batch_run(items_expected=10, due_at=None))
    world.born(*(batch_item(n, gate_id=GATE) for n in range(10)))
    world.time.advance(100)
    work(world, Together(), seconds=2)
    assert world.one("SELECT count(*) FROM batch_item WHERE status = 'done'") == 10
    assert tokens(world) == pytest.approx(390 - 1, abs=0.01)


def test_a_unit_that_keeps_its_claim_asks_the_gate_it_comes_to(world):
    (ref,) = world.born(invoice(gate_id=GATE))
    world.close_gate(LATER, 20)

    async def act(unit: Any, io: Io) -> Any:
        if unit.remote_id is None:
            return Outcome(unit, replace(unit, remote_id="r-1"), "noted", keep_claim=True)
        return sent(unit)

    flow = Probe(act, gate=lambda unit: Gate(LATER if unit.remote_id else GATE))
    work(world, flow, seconds=10)
    found = world.unit(ref)
    assert (found.gate_id, found.remote_id, found.due_at, found.claimed_by) == (LATER, "r-1", after(20), None)
    assert len(flow.acted) == 1
    work(world, flow, seconds=20)
    assert world.unit(ref).status is InvoiceState.SENT


def test_what_a_response_says_lowers_the_budget(world):
    limited(world, Limit("points", 10, 100))
    crowd(world, 3)
    world.time.advance(100)

    async def act(unit: Any, io: Io) -> Any:
        await io.learn(GATE, "points", left=2.0, rate=1.0)
        return sent(unit)

    flow = Probe(act)
    work(world, flow, seconds=20)
    assert world.one("SELECT rate FROM gate_limit") == 1
    assert len(flow.acted) == 3


def test_what_many_responses_say_is_told_together(world):
    limited(world, Limit("points", 10, 100))
    world.ledger.gates.enter(GATE, 1)
    ledger, wire = wired(world, list(world.ledger.machines.values()))
    made = WorkerGates(ledger.gates, LateExecutor(), world.time, Rng(1))
    world.time.advance(100)

    async def main() -> None:
        for left in (50, 7, 30, None):
            await made.learn(GATE, "points", left=left, rate=None if left == 7 else 9.0)
        await made.close()

    simulate(world.time, main)
    assert (tokens(world, "points"), world.one("SELECT rate FROM gate_limit")) == (7, 9)
    assert wire.asked == ["write"]


def test_another_configuration_opens_what_was_stopped_when_its_worker_starts(world):
    from penstock.worker.worker import Worker, WorkerSettings

    crowd(world, 1)
    world.ledger.gates.stop(GATE, "401", "v1")
    world.ledger.gates.providers = [GateLimits("shop", (per_second(5),))]

    def run(version: str) -> int:
        flow = Probe()

        async def main() -> None:
            worker = Worker(
                world.ledger, [flow], WorkerSettings(), executor=InlineExecutor(), rng=Rng(1), config_version=version
            )
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(3)
            worker.stop()
            await running

        simulate(world.time, main)
        return len(flow.acted)

    assert run("v1") == 0
    assert row(world, "metered") == (True,), "and its limits were applied"
    assert run("v2") == 1
    assert take(world.worker("invoice")) == []

"""What steps cost in each limit of their gate: known before the claim, put right by the step, used to the full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from penstock.ledger.ledger import Ledger
from penstock.model.clock import Clock, Rng
from penstock.model.errors import GateClosed, Throttled, Transient
from penstock.model.limits import Limit
from penstock.model.outcome import Act, Look, Outcome
from penstock.model.simulation import simulate
from penstock.model.unit import replace
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Gate, Io
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.gating import GATE, crowd, limited, row, tokens
from tests.support.machines import invoice
from tests.support.more_machines import PARCEL, ParcelState, parcel
from tests.support.probe import Probe, sent, wired, work, work_on
from tests.support.world import World, after

POINTS, REQUESTS = Limit("points", 10, 100), Limit("requests", 100, 400)


class Costly(Probe):
    """Says what its steps cost."""

    def __init__(self, act: Any = None, *, costs: Any, **given: Any) -> None:
        super().__init__(act, **given)
        self._costs = costs

    def costs(self, units: Sequence[Any]) -> Mapping[str, float]:
        return self._costs(units) if callable(self._costs) else self._costs


def levels(world: World) -> Any:
    return tokens(world, "points"), tokens(world, "requests")


def test_each_limit_is_charged_what_the_step_costs_in_it(world):
    limited(world, POINTS, REQUESTS)
    crowd(world, 1)
    world.time.advance(100)
    work(world, Costly(costs={"points": 15.8, "requests": 2}), seconds=1)
    assert levels(world) == (pytest.approx(97.5 - 15.8), pytest.approx(375 - 2))


def test_a_limit_that_is_not_named_is_charged_a_usual_call(world):
    limited(world, POINTS, REQUESTS)
    crowd(world, 1)
    world.time.advance(100)
    work(world, Costly(costs={"points": 0, "other": 7}), seconds=1)
    assert levels(world) == (97.5, 374)


def test_no_more_is_claimed_than_the_limits_have_room_for(world):
    limited(world, POINTS)
    crowd(world, 6)
    world.time.advance(100)
    flow = Costly(costs=lambda units: {"points": 40})
    work(world, flow, seconds=16)
    seconds = [(at - after(100)).total_seconds() for _, at in flow.acted]
    assert seconds == [0, 0, pytest.approx(2.3, abs=0.2), *(pytest.approx(2.3 + 4 * n, abs=0.3) for n in (1, 2, 3))]


def test_a_cheap_step_does_not_wait_for_what_the_last_one_cost_nor_is_a_spent_gate_asked_all_the_time(world):
    limited(world, POINTS)
    crowd(world, 4)
    world.time.advance(100)
    costs = {"acme/n0000": 90, "acme/n0001": 5, "acme/n0002": 60, "acme/n0003": 1}
    ledger, wire = wired(world, list(world.ledger.machines.values()))
    flow = Costly(costs=lambda units: {"points": costs[units[0].unit_id]})
    work_on(ledger, world, [flow], 8)
    seconds = [(at - after(100)).total_seconds() for _, at in flow.acted]
    assert seconds == [0, pytest.approx(0, abs=0.15), pytest.approx(5.7, abs=0.3), pytest.approx(5.9, abs=0.3)]
    assert len(wire.asked) <= 60


def test_costs_are_asked_of_units_as_the_claim_leaves_them(world):
    limited(world, POINTS)
    crowd(world, 1)
    world.time.advance(100)
    asked: list[Any] = []

    def costs(units: Any) -> Any:
        asked.extend(units)
        return {}

    work(world, Costly(costs=costs), seconds=1)
    assert [(u.unit_id, u.status) for u in asked] == [("acme/n0000", "SENDING")]


@pytest.mark.parametrize("costs", [lambda units: 1 / 0, {"points": -1}, {"points": float("nan")}, None])
def test_costs_that_cannot_be_told_are_those_of_a_usual_call(world, costs, capsys):
    limited(world, POINTS)
    crowd(world, 1)
    world.time.advance(100)
    flow = Costly(costs=costs)
    work(world, flow, seconds=1)
    assert (len(flow.acted), points(world)) == (1, 96.5)
    assert "flow.costs" in capsys.readouterr().out


def points(world: World, gate: str = GATE) -> Any:
    return tokens(world, "points", gate)


# Within the step.


@pytest.mark.parametrize(("more", "left"), [(4.2, 97.5 - 14.2), (-4.2, 97.5 - 5.8)])
def test_a_step_puts_its_costs_right(world, more, left):
    limited(world, POINTS)
    crowd(world, 1)
    world.time.advance(100)

    async def act(unit: Any, io: Io) -> Any:
        io.charge(GATE, {"points": more, "nothing": 1})
        return sent(unit)

    work(world, Costly(act, costs={"points": 10}), seconds=0.001)
    assert points(world) == pytest.approx(left)


def test_what_is_charged_at_once_is_told_together(world):
    limited(world, POINTS)
    crowd(world, 1)
    world.time.advance(100)

    async def act(unit: Any, io: Io) -> Any:
        for _ in range(5):
            io.charge(GATE, {"points": 3})
        with pytest.raises(Exception, match="are numbers"):
            io.charge(GATE, {"points": float("inf")})
        return sent(unit)

    work(world, Probe(act), seconds=0.001)
    assert points(world) == pytest.approx(97.5 - 1 - 15)


def test_a_charge_at_a_gate_without_limits_is_nothing(world):
    crowd(world, 1)

    async def act(unit: Any, io: Io) -> Any:
        io.charge(GATE, {"points": 3})
        io.charge("nowhere/at/all", {"points": 3})
        return sent(unit)

    flow = Probe(act)
    worker = work(world, flow, seconds=1)
    assert (worker.counts.committed, worker.counts.failed) == (1, 0)


def test_a_later_call_takes_what_it_costs(world):
    later = "shop/acme/later"
    limited(world, POINTS).enter(later, 1)
    crowd(world, 1)
    world.time.advance(100)
    waits: list[float] = []

    async def act(unit: Any, io: Io) -> Any:
        for cost in (90, 20, 2):
            async with io.gate(later, {"points": cost}):
                waits.append((io.now() - after(100)).total_seconds())
        with pytest.raises(GateClosed):
            async with io.gate(later, {"points": 60}):
                raise AssertionError("there is no room for it within the step's patience")
        return sent(unit)

    work(world, Probe(act), seconds=6)
    assert waits == [0, pytest.approx(1.3, abs=0.1), pytest.approx(1.5, abs=0.1)]


def looking(unit: Any, now: Any, seen: Any) -> Any:
    return Look("is it there?") if seen is None else Act("send", "it is not")


async def nothing(unit: Any, io: Io) -> Any:
    return "nothing"


def test_a_look_is_charged_beside_the_act(world):
    limited(world, REQUESTS)
    crowd(world, 1)
    world.time.advance(100)
    work(world, Probe(decide=looking, look=nothing), seconds=0.001)
    assert tokens(world) == 375 - 2


def test_a_look_at_home_is_not_charged(world):
    limited(world, REQUESTS)
    crowd(world, 1)
    world.time.advance(100)

    def decide(unit: Any, now: Any, seen: Any) -> Any:
        return Look("is it there?", asks=False) if seen is None else Act("send", "it is not")

    work(world, Probe(decide=decide, look=nothing), seconds=0.001)
    assert tokens(world) == 375 - 1


def test_an_intent_is_no_call_and_each_kept_claim_is_one_more(world):
    limited(world, REQUESTS)
    crowd(world, 1)
    world.time.advance(100)
    acts = iter([True, False, False, None])

    async def act(unit: Any, io: Io) -> Any:
        intent = next(acts)
        if intent is None:
            return sent(unit)
        return Outcome(unit, unit, "a page", keep_claim=True, keep_crashes=intent)

    work(world, Probe(act), seconds=0.001)
    assert tokens(world) == 375 - 3, "two pages and the end"


def test_a_call_that_fails_was_made_all_the_same(world):
    limited(world, REQUESTS)
    crowd(world, 1)
    world.time.advance(100)

    async def act(unit: Any, io: Io) -> Any:
        raise Transient("503")

    work(world, Probe(act, decide=looking, look=nothing), seconds=0.001)
    assert tokens(world) == 375 - 2


def test_a_flow_that_names_its_costs_has_named_its_looks(world):
    limited(world, REQUESTS)
    crowd(world, 1)
    world.time.advance(100)
    work(world, Costly(decide=looking, look=nothing, costs={"requests": 2}), seconds=0.001)
    assert tokens(world) == 375 - 2


# The whole of a budget, and no more.


class Shop:
    """A provider with a bucket of points, on the time of the test: it refuses what would overflow it."""

    def __init__(self, clock: Clock, rate: float, burst: float) -> None:
        self._clock, self.rate, self.burst = clock, rate, burst
        self._level, self._at = burst, clock.elapsed()
        self.calls: list[tuple[str, float]] = []
        self.refused = 0

    def ask(self, name: str, requested: float, actual: float) -> float:
        """How many points are left; what was requested is taken at once, and what was not used given back."""
        now = self._clock.elapsed()
        self._level = min(self.burst, self._level + (now - self._at) * self.rate)
        self._at = now
        if self._level < requested:
            self.refused += 1
            raise Throttled("THROTTLED", 1.0)
        self._level -= actual
        self.calls.append((name, actual))
        return self._level

    @property
    def used(self) -> float:
        return sum(cost for _, cost in self.calls)


class Repricing(Probe):
    """One mutation for the variants of a product, after a look at it; it knows what they cost, but not quite."""

    machine = PARCEL

    def __init__(self, shop: Shop, actual: Callable[[int], float]) -> None:
        super().__init__(decide=looking)
        self.shop, self._actual = shop, actual

    def costs(self, units: Sequence[Any]) -> Mapping[str, float]:
        return {"points": 2 + 10 + 0.2 * len(units)}

    async def look_together(self, units: Any, io: Io) -> Any:
        self.shop.ask("read", 2, 2)
        await asyncio.sleep(0.08)
        return ["nothing" for _ in units]

    async def act_together(self, what: str, units: Any, seen: Any, io: Io) -> Any:
        requested, actual = 10 + 0.2 * len(units), self._actual(len(units))
        left = self.shop.ask("write", requested, actual)
        await asyncio.sleep(0.12)
        io.charge(GATE, {"points": actual - requested})
        await io.learn(GATE, "points", left=left)
        return [Outcome(u, replace(u, status=ParcelState.CLOSED, due_at=None), "priced") for u in units]


def reprice(world: World, ledgers: Sequence[Ledger], flow: Repricing, seconds: float) -> None:
    async def main() -> None:
        settings = WorkerSettings(place_seconds=None)
        workers = [
            Worker(ledger, [flow], settings, executor=InlineExecutor(), rng=Rng(n)) for n, ledger in enumerate(ledgers)
        ]
        running = [asyncio.create_task(worker.run()) for worker in workers]
        done, _ = await asyncio.wait(running, timeout=seconds)
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        assert not done, "a worker stopped by itself"

    simulate(world.time, main)


@pytest.mark.parametrize(
    ("workers", "actual"), [(1, lambda n: 10 + 0.2 * n), (2, lambda n: 9.0)], ids=["as told", "less, two workers"]
)
def test_a_bucket_is_used_to_the_full_and_never_overflows(world, workers, actual):
    """As a shop's standard bucket, in small: 100 points a second, 2,000 at once, four variants to a product."""
    products, rate, burst = 500, 100.0, 2_000.0
    limited(world, Limit("points", rate, burst))
    world.born(*(parcel(f"{n}/{v}", note=f"{n:03}", gate_id=GATE) for n in range(products) for v in range(4)))
    shop = Shop(world.time, rate, burst)
    world.ledger.gates.charge(GATE, {"points": -burst})  # a shop that nobody has called lately
    flow = Repricing(shop, actual)
    ledgers = [world.ledger, world.another()][:workers]
    for ledger in ledgers:
        ledger.gates.providers = world.ledger.gates.providers
    seconds = 30.0
    reprice(world, ledgers, flow, seconds)
    writes = [name for name, _ in shop.calls].count("write")
    assert world.one("SELECT count(*) FROM parcel WHERE status = 'closed'") == 4 * writes, "one mutation for a product"
    assert shop.refused == 0
    assert row(world, "throttles, epoch") == (0, 0)
    assert shop.used >= 0.97 * (burst + rate * seconds)


def test_steps_of_unlike_costs_share_a_bucket(world):
    """Products of one to five variants: dear ones are not passed over by cheap ones."""
    limited(world, Limit("points", 100, 200))
    sizes = [1 + n % 5 for n in range(200)]
    world.born(
        *(parcel(f"{n:03}/{v}", note=f"{n:03}", gate_id=GATE) for n, size in enumerate(sizes) for v in range(size))
    )
    shop = Shop(world.time, 100, 200)
    flow = Repricing(shop, lambda n: 10 + 0.2 * n)
    reprice(world, [world.ledger], flow, 15)
    assert shop.refused == 0
    assert shop.used >= 0.97 * 15 * 100
    done = world.rows("SELECT DISTINCT note FROM parcel WHERE status = 'closed' ORDER BY note")
    assert [note for (note,) in done] == [f"{n:03}" for n in range(len(done))], "in their order"


def test_a_unit_that_keeps_its_claim_pays_at_the_gate_it_comes_to(world):
    later = "shop/acme/later"
    limited(world, POINTS).enter(later, 1)
    world.born(invoice(gate_id=GATE))
    world.time.advance(100)

    async def act(unit: Any, io: Io) -> Any:
        if unit.remote_id is None:
            return Outcome(unit, replace(unit, remote_id="r-1"), "noted", keep_claim=True)
        return sent(unit)

    flow = Costly(
        act,
        gate=lambda unit: Gate(later if unit.remote_id else GATE),
        costs=lambda units: {"points": 30 if units[0].remote_id else 5},
    )
    work(world, flow, seconds=5)
    assert (points(world), points(world, later)) == (92.5, 67.5)

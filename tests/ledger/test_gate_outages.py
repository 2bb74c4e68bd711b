"""Gates whose provider does not answer: which failures count in a row, when the breaker opens, and what closes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.ledger.gates.budget import Closed, Pass, Trouble
from penstock.ledger.gates.status import gate_statuses
from tests.support.gating import EMPTY, GATE, alerts, crowd, given, limited, per_second, row, shut, take
from tests.support.world import World, after


def failed(world: World, chance: float = 0.0) -> Trouble:
    """One call that leaves now and fails at once."""
    return world.ledger.gates.fail(given(world), "503", chance)


def status(world: World):
    return world.ledger.read(lambda c: gate_statuses(world.ledger.database, c))[0]


def test_more_than_five_failures_in_a_row_open_the_breaker_for_longer_and_longer(world):
    crowd(world, 3)
    for count in range(1, 6):
        assert failed(world) == Trouble(after(0), count, None)
    waits = []
    for _ in range(6):
        begun = world.time.elapsed()
        assert failed(world).until is not None
        waits.append(shut(world) - begun)
        world.time.advance(waits[-1])
    assert waits == [60, 120, 240, 300, 300, 300]
    assert alerts(world) == [("gate.breaker", "critical")], "one alert for one outage"
    probe = given(world)
    assert (probe.probe, probe.failures, probe.failing_since) == (True, 11, after(0))
    assert isinstance(world.ledger.gates.enter(GATE, 1), Closed), "one call finds out"
    world.ledger.gates.worked(probe)
    assert row(world, "throttles, failures, failing_since") == (0, 0, None)
    assert sorted(alerts(world)) == [("gate.breaker", "critical"), ("gate.recovered", "info")]
    assert len(take(world.worker("invoice"))) == 3


def test_a_success_between_them_begins_the_row_anew(world):
    gates = world.ledger.gates
    for _ in range(20):
        for _ in range(5):
            assert failed(world).until is None
        world.time.advance(1)
        gates.worked(given(world))
        assert row(world, "failures, failing_since, epoch") == (0, None, 0)
    assert alerts(world) == []


def test_calls_that_were_under_way_together_count_once(world):
    passes = [given(world) for _ in range(100)]
    found = [world.ledger.gates.fail(p, "timed out", 0.0) for p in passes]
    assert found == [Trouble(after(0), 1, None)] * 100
    assert row(world, "failures, epoch, closed_until") == (1, 0, None)


def test_they_count_once_whoever_tells_of_them(world):
    """A hundred calls of four processes time out at the same moment."""
    given(world)
    ledgers = [world.another() for _ in range(4)]
    with ThreadPoolExecutor(8) as pool:
        for expected in (1, 2, 3):
            now = given(world)
            list(pool.map(lambda n, p=now: ledgers[n % 4].gates.fail(p, "timed out", 0.5), range(100)))
            assert row(world, "failures, epoch") == (expected, 0)


def test_a_failure_that_comes_late_counts_for_nothing(world):
    gates = world.ledger.gates
    late = given(world)
    for _ in range(6):
        failed(world)
    closed = shut(world)
    assert gates.fail(late, "timed out", 0.0) == Trouble(after(0), 6, after(closed)), "it hears how the gate stands"
    assert row(world, "failures, epoch") == (6, 1)
    gates.worked(late)
    assert row(world, "failures, epoch") == (6, 1), "nor does a success that left before the gate closed"
    world.time.advance(closed)
    gates.worked(given(world))
    assert gates.fail(late, "timed out", 0.0) == Trouble(None, 0, None)
    assert row(world, "failures, failing_since") == (0, None)


def test_a_success_that_left_before_the_failure_ends_the_row(world):
    """The gate was not closed meanwhile: somebody has been answered, however early he asked."""
    early = given(world)
    failed(world)
    world.ledger.gates.worked(early)
    assert row(world, "failures, failing_since") == (0, None)


def test_throttles_and_failures_count_apart_and_alert_once(world):
    gates = world.ledger.gates
    for _ in range(6):
        failed(world)
    world.time.advance(60)
    for _ in range(8):
        gates.throttle(given(world), 1, "429", 0.0)
        world.time.advance(61)
    assert row(world, "failures") == (6,)
    assert alerts(world) == [("gate.breaker", "critical")]


def test_a_throttle_is_not_taken_for_late_because_a_call_failed_meanwhile(world):
    gates = world.ledger.gates
    both = given(world)
    gates.fail(both, "503", 0.0)
    gates.throttle(both, None, "429", 0.0)
    assert (shut(world), row(world, "throttles, failures")) == (16, (1, 1))


def test_whoever_resumes_a_gate_has_not_seen_a_call_come_through(world):
    gates = world.ledger.gates
    for _ in range(6):
        failed(world)
    gates.resume("shop", "operator:anna")
    assert row(world, "throttles, failures, closed_until, failing_since IS NULL") == (0, 0, None, False)
    passed = given(world)
    assert (passed.troubled, passed.probe) == (True, False)
    world.time.advance(5)
    assert gates.fail(passed, "503", 0.0) == Trouble(after(0), 1, None), "the same outage"


def test_a_gate_with_a_budget_lets_one_probe_through_and_then_fills_from_nothing(world):
    gates = limited(world, per_second(10, 20))
    crowd(world, 40)
    worker = world.worker("invoice")
    for _ in range(6):
        world.time.advance(10)
        failed(world)
    world.time.advance(100)
    found = worker.take({"invoice": 10})
    assert (len(found.units), found.passes[GATE].probe) == (1, True)
    world.time.advance(30)
    gates.worked(found.passes[GATE])
    assert take(worker) == []
    world.time.advance(0.3)
    assert len(take(worker)) == 2


def test_claims_carry_what_is_known_of_a_gate_that_fails(world):
    crowd(world, 2)
    failed(world)
    failed(world)
    found = world.worker("invoice").take({"invoice": 5})
    assert len(found.units) == 2, "it is not closed for that"
    assert found.passes[GATE] == Pass(GATE, 0, troubled=True, failures=2, failing_since=after(0))
    assert world.ledger.gates.failing() == [found.passes[GATE]]


def test_a_healthy_gate_is_not_written_to(world):
    crowd(world, 2)
    found = world.worker("invoice").take({"invoice": 5})
    assert found.passes[GATE] == EMPTY
    assert world.ledger.gates.failing() == []


def test_people_are_told_in_plain_words(world):
    crowd(world, 2)
    assert status(world).reason is None
    failed(world)
    assert (status(world).state, status(world).reason) == ("open", "1 failure in a row since 2026-01-01T00:00:00.000Z")
    for _ in range(5):
        failed(world)
    said = status(world)
    assert (said.state, said.until, said.failures, said.failing_since) == ("closed", after(60), 6, after(0))
    assert said.reason == (
        "the provider does not answer, 6 failures in a row since 2026-01-01T00:00:00.000Z: 503;"
        " the breaker is open, and waiting units are not charged"
    )
    world.time.advance(60)
    assert (status(world).state, status(world).reason) == (
        "half-open",
        "one call goes first, to see whether the provider is back",
    )


@pytest.mark.parametrize("probes", [1, 7])
def test_a_probe_whose_worker_died_is_followed_by_another(world, probes):
    for _ in range(6):
        failed(world)
    world.time.advance(60)
    for _ in range(probes):
        assert given(world).probe
        world.time.advance(60)
    assert row(world, "failures, throttles") == (6, 1)

"""What answers do to gates: epochs, the breaker and its probe, learning, and holding and letting go."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.ledger.gates.budget import Closed, Pass
from penstock.model.errors import LedgerError
from penstock.model.limits import GateLimits
from penstock.model.machine import Actor
from tests.support.gating import (
    EMPTY,
    GATE,
    alerts,
    crowd,
    given,
    held,
    limited,
    per_second,
    row,
    shut,
    take,
    tokens,
)
from tests.support.machines import invoice
from tests.support.world import after

# Throttles, epochs, the breaker.


def test_a_hundred_throttles_in_flight_count_once(world):
    crowd(world, 100)
    passes = world.worker("invoice").take({"invoice": 100}).passes
    gates = world.ledger.gates
    for _ in range(100):
        gates.throttle(passes[GATE], None, "429", 0.0)
    assert row(world, "throttles, epoch") == (1, 1)
    assert shut(world) == 16


def test_late_throttles_may_only_lengthen(world):
    crowd(world, 1)
    gates = world.ledger.gates
    assert gates.throttle(EMPTY, 10, "first", 0.0) == after(10)
    for seconds, until in ((5, 10), (30, 30), (None, 30), (20, 30)):
        assert gates.throttle(EMPTY, seconds, "late", 0.0) == after(until)
    assert row(world, "throttles, epoch, closed_reason") == (1, 1, "late")


def test_each_throttle_in_a_row_closes_for_longer_until_the_breaker_opens(world):
    crowd(world, 1)
    gates, waits = world.ledger.gates, []
    for epoch in range(8):
        start = world.time.elapsed()
        gates.throttle(Pass(GATE, epoch), None, "429", 0.0)
        waits.append(shut(world) - start)
        world.time.advance(waits[-1])
    assert waits == [16, 32, 64, 64, 64, 64, 64, 64]
    assert alerts(world) == [("gate.breaker", "critical")], "one alert"
    gates.throttle(Pass(GATE, 8), 1, "429", 0.0)
    assert shut(world) - world.time.elapsed() == 60, "not before, whatever the provider says"


def test_a_burst_of_throttles_makes_the_budgets_slower(world):
    limited(world, per_second(10))
    crowd(world, 1)
    rates = []
    for epoch in range(6):
        world.ledger.gates.throttle(Pass(GATE, epoch), 1, "429", 0.0)
        world.time.advance(2)
        rates.append(round(world.rows("SELECT rate FROM gate_limit WHERE gate_id = :gate", gate=GATE)[0][0], 2))
    assert rates == [10, 10, 10, 8, 6.4, 5.12], "more than three in five minutes"
    world.time.advance(300)
    world.ledger.gates.throttle(Pass(GATE, 6), 1, "429", 0.0)
    assert world.rows("SELECT round(rate * 100) FROM gate_limit WHERE gate_id = :gate", gate=GATE) == [(512,)]
    slowed = world.rows("SELECT count(*) FROM event_log WHERE event_type = 'gate.slowed' AND severity = 'warning'")
    assert slowed == [(3,)]


def test_the_jitter_is_upwards_and_bounded(world):
    crowd(world, 1)
    gates = world.ledger.gates
    gates.throttle(EMPTY, 100, "429", 1.0)
    assert shut(world) == 110
    gates.throttle(Pass(GATE, 1), 40_591, "quota", 1.0)
    assert shut(world) == 40_621


@pytest.mark.parametrize(("seconds", "closed"), [(float("nan"), 16), (-5, 0), (0, 0)])
def test_a_wait_that_is_none_is_read_as_such(world, seconds, closed):
    crowd(world, 1)
    world.ledger.gates.throttle(EMPTY, seconds, "429", 0.0)
    assert shut(world) == closed


@pytest.mark.parametrize("seconds", [48 * 3_600 + 1, 1e9, 1e18, float("inf")])
def test_a_wait_is_believed_for_two_days_and_a_longer_one_is_told_of(world, seconds):
    crowd(world, 1)
    for _ in range(3):
        world.ledger.gates.throttle(EMPTY, seconds, "429", 0.0)
    assert shut(world) == 48 * 3_600
    assert alerts(world) == [("gate.long_wait", "warning")], "one alert"


def test_a_wait_of_two_days_is_nothing_special(world):
    crowd(world, 1)
    world.ledger.gates.throttle(EMPTY, 48 * 3_600, "429", 0.0)
    assert (shut(world), alerts(world)) == (48 * 3_600, [])
    world.ledger.gates.throttle(EMPTY, 49 * 3_600, "429", 0.0)
    assert alerts(world) == [("gate.long_wait", "warning")], "of one that came later, too"


def test_after_a_throttle_a_gate_without_limits_lets_one_probe_through(world):
    crowd(world, 10)
    worker = world.worker("invoice")
    gates = world.ledger.gates
    gates.throttle(EMPTY, 5, "429", 0.0)
    assert take(worker) == []
    world.time.advance(5)
    probe = worker.take({"invoice": 10})
    assert len(probe.units) == 1
    assert probe.passes[GATE] == Pass(GATE, 1, troubled=True, probe=True)
    assert take(worker) == []
    assert worker.idle().seconds() == 60, "the probe is leased"
    gates.worked(probe.passes[GATE])
    assert len(take(worker)) == 9
    assert row(world, "throttles, epoch") == (0, 1)


def test_a_gate_with_limits_opens_gently_without_a_probe_until_the_breaker(world):
    gates = limited(world, per_second(10, 20))
    crowd(world, 40)
    worker = world.worker("invoice")
    world.time.advance(100)
    gates.throttle(EMPTY, 5, "429", 0.0)
    world.time.advance(5)
    assert take(worker) == [], "the bucket is empty"
    world.time.advance(0.2)
    found = worker.take({"invoice": 10})
    assert (len(found.units), found.passes[GATE].probe, found.passes[GATE].troubled) == (2, False, True)
    gates.worked(found.passes[GATE])
    world.time.advance(1)
    assert tokens(world) == 0, "and what came since is not taken away by the success"
    assert sum(len(take(worker)) for _ in range(9)) == 10
    for epoch in range(1, 7):
        gates.throttle(Pass(GATE, epoch), 1, "429", 0.0)
    world.time.advance(80)
    found = worker.take({"invoice": 10})
    assert (len(found.units), found.passes[GATE].probe) == (1, True)
    world.time.advance(30)
    gates.worked(found.passes[GATE])
    assert take(worker) == [], "what gathered while the probe was out is not let loose"
    world.time.advance(0.25)
    assert len(take(worker)) == 1, "and so many throttles have made the bucket slower"


def test_a_probe_that_fails_escalates_and_one_that_asked_nothing_makes_room(world):
    crowd(world, 10)
    worker, gates = world.worker("invoice"), world.ledger.gates
    gates.throttle(EMPTY, 5, "429", 0.0)
    world.time.advance(5)
    probe = worker.take({"invoice": 10}).passes[GATE]
    gates.probe_over(probe)
    assert len(take(worker)) == 1, "another goes at once"
    gates.throttle(probe, None, "429", 0.0)
    assert (shut(world), row(world, "throttles, epoch")) == (37, (2, 2))
    gates.probe_over(probe)
    gates.worked(probe)
    assert (shut(world), row(world, "throttles, epoch")) == (37, (2, 2)), "that was another time"


def test_a_probe_that_dies_is_followed_by_another_after_its_lease(world):
    crowd(world, 10)
    died, worker = world.worker("invoice"), world.worker("invoice")
    world.ledger.gates.throttle(EMPTY, 5, "429", 0.0)
    world.time.advance(5)
    assert len(take(died)) == 1
    for _ in range(5):
        world.time.advance(10)
        worker.renew()
        worker.reap()
        assert take(worker) == []
    world.time.advance(10)
    assert len(take(worker)) == 1
    assert row(world, "throttles, epoch") == (1, 1)


def test_a_success_does_not_open_what_was_closed_besides(world):
    crowd(world, 1)
    gates = world.ledger.gates
    gates.throttle(EMPTY, 1, "429", 0.0)
    world.time.advance(1)
    probe = given(world)
    gates.close(GATE, 6 * 3600, "the client rests")
    gates.worked(probe)
    assert (shut(world), row(world, "throttles")) == (1 + 6 * 3600, (0,))


def test_a_call_that_left_before_the_gate_closed_carries_the_epoch_before(world):
    """The gate was closed between the claim and the reading of its pass: what comes back is late, not the first."""
    crowd(world, 1)
    gates = world.ledger.gates
    gates.throttle(EMPTY, 5, "429", 0.0)
    passes = world.ledger.database.write(lambda c: gates.passes(c, [GATE]))
    assert passes[GATE].epoch == 0


# Learning.


def test_what_a_response_says_may_only_lower(world):
    gates = limited(world, per_second(10, 20))
    crowd(world, 1)
    world.time.advance(100)
    gates.learn(GATE, "requests", left=5)
    assert tokens(world) == 5
    gates.learn(GATE, "requests", left=15)
    assert tokens(world) == 5
    gates.learn(GATE, "requests", rate=4)
    gates.learn(GATE, "requests", rate=8)
    gates.learn(GATE, "requests", rate=0)
    gates.learn(GATE, "requests", rate=float("nan"), left=float("nan"))
    assert world.one("SELECT rate FROM gate_limit") == 4
    gates.learn(GATE, "requests", left=-7)
    assert tokens(world) == 0
    world.time.advance(1)
    gates.learn(GATE, "requests", left=100)
    assert tokens(world) == 4, "it goes on filling, more slowly"


def test_learning_of_a_gate_or_limit_that_is_not_there_changes_nothing(world):
    gates = limited(world, per_second(10, 20))
    crowd(world, 1)
    gates.learn("nobody", "requests", left=1)
    gates.learn(GATE, "points", left=1)
    assert world.rows("SELECT gate_id FROM gate WHERE gate_id = 'nobody'") == []


def test_a_closed_gate_does_not_fill_because_of_what_is_learnt_or_charged_meanwhile(world):
    gates = limited(world, per_second(10, 20))
    crowd(world, 40)
    gates.close(GATE, 100, "quiet")
    gates.learn(GATE, "requests", left=3)
    gates.charge(GATE, {}, calls=1)
    gates.providers = [GateLimits("shop", (per_second(10, 40),))]
    gates.apply()
    world.time.advance(100)
    worker = world.worker("invoice")
    assert take(worker) == []
    world.time.advance(0.201)
    assert len(take(worker)) == 1, "one was owed"


# Leave for calls within a step.


def test_leave_for_later_calls_comes_from_the_same_budget(world):
    gates = limited(world, per_second(10, 20))
    crowd(world, 10)
    world.time.advance(1)
    answer = gates.enter(GATE, 100)
    assert not isinstance(answer, Closed)
    passed, granted = answer
    assert (granted, passed.good_for, passed.probe) == (2, 0.25, False)
    assert sum(len(take(world.worker("invoice"))) for _ in range(9)) == 8
    assert gates.enter(GATE, 1) == Closed(after(1.101), "shop/acme has no room", 0.101, 0.1)


def test_leave_that_leaves_something_over_does_not_shut_the_gate(world):
    gates = limited(world, per_second(10, 20))
    world.time.advance(10)
    gates.enter(GATE, 1)
    world.time.advance(10)
    assert [gates.enter(GATE, 1)[1] for _ in range(5)] == [1] * 5  # type: ignore[index]


def test_leave_is_refused_where_the_gate_is_closed_held_or_probed(world):
    gates = world.ledger.gates
    assert gates.enter("a", 7) == (Pass("a", 0), 7)
    gates.close("a", 9, "quiet")
    assert gates.enter("a", 1) == Closed(after(9), "a is closed: quiet")
    assert gates.enter("b", 1) == (Pass("b", 0), 1)
    gates.throttle(Pass("b", 0), 2, "429", 0.0)
    world.time.advance(2)
    assert gates.enter("b", 5) == (Pass("b", 1, troubled=True, probe=True), 1)
    assert gates.enter("b", 1) == Closed(after(62), "b has no room")
    gates.pause("a", "operator:anna", "maintenance")
    assert gates.enter("a", 1) == Closed(None, "a is held by operator:anna: maintenance")


# Holding and letting go.


def test_a_pause_holds_a_gate_and_all_below_and_those_born_later(world):
    for gate in ("shop/acme/a", "shop/acme/b", "shop/globex", "shopping"):
        crowd(world, 1, gate, gate)
    gates = world.ledger.gates
    assert gates.pause("shop/acme", "operator:anna", "audit") == 3
    assert gates.pause("shop/acme", "operator:anna", "audit") == 0
    crowd(world, 1, "shop/acme/c", "c")
    world.another().birth([invoice("d", gate_id="shop/acme/d/e")], actor=Actor.API, who="test")
    anna = "operator:anna"
    assert held(world) == {
        "shop/acme": anna,
        "shop/acme/a": anna,
        "shop/acme/b": anna,
        "shop/acme/c": anna,
        "shop/acme/d/e": anna,
        "shop/globex": None,
        "shopping": None,
    }
    assert {u.gate_id for u in take(world.worker("invoice"))} == {"shop/globex", "shopping"}
    assert gates.resume("shop/acme", anna) == 5
    assert set(held(world).values()) == {None}
    assert len(take(world.worker("invoice"))) == 4
    assert [kind for kind, _ in alerts(world)] == ["gate.paused", "gate.resumed"]


def test_an_account_that_was_resumed_by_itself_has_its_new_gates_open(world):
    gates = world.ledger.gates
    crowd(world, 1)
    gates.pause("shop", "operator:anna", "audit")
    gates.resume(GATE, "operator:bob")
    crowd(world, 1, f"{GATE}/new", "new")
    crowd(world, 1, "shop/globex", "other")
    assert held(world) == {"shop": "operator:anna", GATE: None, f"{GATE}/new": None, "shop/globex": "operator:anna"}


def test_a_fatal_error_stops_its_account_with_one_alert(world):
    for gate in (f"{GATE}/a", f"{GATE}/b", "shop/globex/a"):
        crowd(world, 1, gate, gate)
    gates = world.ledger.gates
    assert gates.stop(f"{GATE}/a", "401", "v1") == 3
    assert gates.stop(f"{GATE}/b", "401", "v1") == 0
    crowd(world, 1, f"{GATE}/c", "c")
    assert held(world) == {
        GATE: "fatal",
        f"{GATE}/a": "fatal",
        f"{GATE}/b": "fatal",
        f"{GATE}/c": "fatal",
        "shop/globex/a": None,
    }
    assert alerts(world) == [("gate.stopped", "critical")]
    assert world.one("SELECT count(*) FROM gate WHERE held_config = 'v1'") == 4


def test_another_configuration_opens_what_a_fatal_error_stopped_and_nothing_else(world):
    gates = world.ledger.gates
    for gate in ("a", "b", "c", "d"):
        crowd(world, 1, gate, gate)
    gates.stop("a", "401", "v1")
    gates.stop("b", "401", None)
    gates.pause("c", "operator:anna", "audit")
    gates.close("d", 50, "quiet")
    assert gates.reconfigured(None) == 0
    assert gates.reconfigured("v1") == 1
    assert held(world) == {"a": "fatal", "b": None, "c": "operator:anna", "d": None}
    assert gates.reconfigured("v2") == 1
    assert held(world) == {"a": None, "b": None, "c": "operator:anna", "d": None}
    assert shut(world, "d") == 50
    assert {u.gate_id for u in take(world.worker("invoice"))} == {"a", "b"}


def test_a_quota_stands_when_the_credentials_are_mended(world):
    gates = limited(world, per_second(10, 20))
    crowd(world, 10)
    gates.throttle(EMPTY, 40_000, "quota", 0.0)
    gates.stop(GATE, "401", "v1")
    gates.reconfigured("v2")
    assert shut(world) == 40_000
    world.time.advance(40_000)
    assert take(world.worker("invoice")) == [], "and then it opens gently"


def test_a_fatal_error_does_not_take_a_pause_over(world):
    gates = world.ledger.gates
    crowd(world, 1)
    gates.pause(GATE, "operator:anna", "audit")
    assert gates.stop(GATE, "401", "v1") == 0
    gates.reconfigured("v2")
    assert held(world) == {GATE: "operator:anna"}
    gates.pause(GATE, "operator:bob", "mine now")
    assert held(world) == {GATE: "operator:bob"}


def test_resuming_opens_whatever_closed_it_and_gently(world):
    gates = limited(world, per_second(10, 20))
    crowd(world, 40)
    world.time.advance(100)
    for epoch in range(7):
        gates.throttle(Pass(GATE, epoch), 1_000, "429", 0.0)
    assert gates.resume("shop", "operator:anna") == 1
    assert gates.resume("shop", "operator:anna") == 0
    assert row(world, "closed_until, throttles, next_at") == (None, 0, None)
    worker = world.worker("invoice")
    assert take(worker) == []
    world.time.advance(1)
    assert sum(len(take(worker)) for _ in range(9)) == 4, "as much as comes in a second, after so many throttles"


def test_the_gate_that_needs_none_is_never_held_or_limited(world):
    gates = limited(world, per_second(10), name="none")
    world.born(invoice())
    assert gates.pause("none", "operator:anna", "everything") == 0
    assert gates.resume("none", "operator:anna") == 0
    with pytest.raises(LedgerError):
        gates.close("none", 5, "quiet")
    assert len(take(world.worker("invoice"))) == 1


@pytest.mark.parametrize(
    "name", ["a'b", 'a"b', "ä/ö", "%", "a_b", "a%b", "a\\b", "日本", "a b", "x" * 900, ":gate", "%(x)s"]
)
def test_odd_names_are_names_like_any_other(world, name):
    gates = limited(world, per_second(10, 20), name=name)
    crowd(world, 5, f"{name}/x")
    crowd(world, 1, f"{name}x", "other")
    world.time.advance(1)
    worker = world.worker("invoice")
    assert len(take(worker)) == 3
    assert len(take(worker)) == 2
    gates.throttle(Pass(f"{name}/x", 0), 5, "429", 0.0)
    assert shut(world, f"{name}/x") == 6
    assert gates.pause(name, "operator:anna", "why") == 2
    assert held(world)[f"{name}x"] is None
    assert gates.resume(name, "operator:anna") == 2


def test_an_eleven_hour_quota_is_a_schedule(world):
    """A unit behind it goes out right after, from whatever process asks then."""
    crowd(world, 1)
    world.ledger.gates.throttle(EMPTY, 40_591, "quota: retry in 40591 seconds", 0.0)
    for _ in range(3):
        fresh = world.another()
        worker = world.worker("invoice", ledger=fresh)
        assert take(worker) == []
        assert worker.idle().gate == pytest.approx(40_591 - world.time.elapsed())
        world.time.advance(10_000)
    world.time.advance(40_591 - world.time.elapsed() - 0.001)
    worker = world.worker("invoice", ledger=world.another())
    assert take(worker) == []
    world.time.advance(0.001)
    assert len(take(worker)) == 1
    assert after(40_591) == world.time.now()
    assert timedelta(seconds=40_591) > timedelta(hours=11)

"""The arithmetic of budgets: what is given out never overflows the provider's bucket, whenever the calls leave."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.ledger.gates.budget import (
    BREAKER_AFTER,
    FULL_SECONDS,
    HORIZON,
    PACE,
    PROBE_SECONDS,
    Budget,
    Metered,
)
from penstock.model.errors import UsageError
from penstock.model.limits import GateLimits, Limit, limits_of
from tests.support.machines import DUE

NEAR = 1e-6


@st.composite
def budgets(draw) -> Budget:
    rate = draw(st.floats(0.01, 5_000))
    cost = draw(st.floats(0.1, 50))
    # Below this nothing can be promised: one call may be on its way for longer than the bucket bears.
    least = cost + 0.05 * rate
    burst = least + draw(st.floats(0, 3)) * rate
    return Budget("requests", rate, burst, cost, 0.0)


asks = st.lists(
    st.tuples(
        st.floats(0, 3),  # how long after the last one
        st.floats(0, 1),  # how much of what is allowed is taken
        st.lists(st.floats(0, 1), min_size=1, max_size=4),  # how late the calls leave, of what is good
    ),
    max_size=30,
)


def refill(budget: Budget, seconds: float) -> None:
    budget.level = min(budget.capacity, budget.level + budget.rate * seconds)


@given(budgets(), asks)
@example(Budget("requests", 40.0, 40.0, 1.0, 0.0), [(3.0, 1.0, [1.0]), (0.25, 1.0, [0.0])] * 15)
@example(Budget("requests", 40.0, 3.0, 1.0, 0.0), [(0.1, 1.0, [1.0]), (0.05, 1.0, [0.0])] * 15)
def test_the_providers_bucket_never_overflows(budget, plan):
    now, arrivals = 0.0, []
    for after, part, delays in plan:
        now += after
        refill(budget, after)
        assert budget.level <= budget.capacity + NEAR
        count = int(budget.places(budget.cost) * part)
        budget.level -= count * budget.cost
        assert budget.level >= -NEAR
        arrivals += [now + delays[n % len(delays)] * budget.horizon for n in range(count)]
    # The provider's own: full at first, filled at its rate, never above its burst.
    level, last = budget.burst, 0.0
    for at in sorted(arrivals):
        level = min(budget.burst, level + (at - last) * budget.rate) - budget.cost
        last = at
        assert level >= -budget.burst * NEAR - NEAR, "a call was refused"


@given(budgets(), asks, st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_steps_of_other_costs_do_not_overflow_it_either(budget, plan, shares):
    """Each step costs another share of all that the budget can hold."""
    now, arrivals, costs = 0.0, [], (share * budget.capacity for share in itertools.cycle(shares))
    wanted = next(costs)
    for after, _, delays in plan:
        now += after
        refill(budget, after)
        claim = gate(budgets=[budget])
        budget.taken = 0.0
        for n in range(20):
            if not claim.admits({"requests": wanted}):
                break
            claim.take(1, {"requests": wanted})
            assert budget.level >= -NEAR
            arrivals.append((now + delays[n % len(delays)] * budget.horizon, wanted))
            wanted = next(costs)
    level, last = budget.burst, 0.0
    for at, cost in sorted(arrivals):
        level = min(budget.burst, level + (at - last) * budget.rate) - cost
        last = at
        assert level >= -budget.burst * NEAR - NEAR, "a call was refused"


@given(budgets(), st.floats(0, 1))
def test_a_budget_that_is_asked_when_it_says_wastes_nothing(budget, start):
    """At every turn all that is allowed is taken, and asked for again when it is worth it: the rate is reached."""
    budget.level, seconds, taken = start * budget.capacity, 0.0, 0.0
    begun = budget.level
    for _ in range(200):
        count = budget.places(budget.cost)
        budget.level -= count * budget.cost
        taken += count * budget.cost
        pause = 0.0 if budget.places(budget.cost) else budget.wait(budget.cost)
        assert budget.level + budget.rate * pause <= budget.capacity * (1 + NEAR) + NEAR, "nothing overflows meanwhile"
        refill(budget, pause)
        seconds += pause
    assert taken == pytest.approx(begun + budget.rate * seconds - budget.level, rel=1e-3, abs=budget.cost)


@given(budgets())
def test_places_are_good_for_as_long_as_the_burst_bears(budget):
    assert 0.05 <= budget.horizon <= HORIZON
    assert budget.cost <= budget.capacity <= budget.burst
    budget.level = budget.capacity
    assert 1 <= budget.places(budget.cost) <= max(1, budget.horizon * budget.rate / budget.cost + NEAR)


def test_a_burst_of_one_gives_one_place_after_the_other():
    budget = Budget("requests", 2.0, 1.0, 1.0, 5.0)
    assert budget.capacity == 1
    refill(budget, 0)
    assert budget.places(budget.cost) == 1
    budget.level -= 1
    assert (budget.places(budget.cost), budget.wait(budget.cost)) == (0, 0.5)


def test_a_step_that_costs_more_than_a_budget_holds_waits_for_all_of_it_and_owes_the_rest():
    claim = gate(budgets=[budget := Budget("points", 10.0, 50.0, 1.0, 40.0)])
    assert not claim.admits({"points": 60})
    assert claim.next_at() == DUE + timedelta(seconds=0.751)
    budget.level = budget.capacity
    assert claim.admits({"points": 60})
    claim.take(1, {"points": 60})
    assert budget.level == 47.5 - 60


def test_what_costs_nothing_in_a_limit_does_not_wait_for_it():
    claim = gate(budgets=[Budget("points", 10.0, 50.0, 1.0, -3.0), Budget("requests", 1.0, 5.0, 1.0, 1.0)])
    assert [claim.allowed(5), claim.allowed(5, {"points": 0})] == [0, 1]
    claim.take(1, {"points": 0})
    assert [b.level for b in claim.budgets] == [-3, 0]
    assert claim.next_at() == DUE + timedelta(seconds=1.001), "the other one"


def gate(**fields: Any) -> Metered:
    made: dict[str, Any] = {"gate_id": "g", "epoch": 3, "throttles": 0, "max_in_flight": None, "now": DUE}
    return Metered(**made | fields)


def test_all_limits_must_have_room():
    points = Budget("points", 100.0, 1_000.0, 50.0, 120.0)
    requests = Budget("requests", 10.0, 40.0, 1.0, 30.0)
    metered = gate(budgets=[points, requests])
    # A quarter of a second is 25 points and 2.5 requests: one call of 50 points at a time.
    assert metered.allowed(10) == 1
    metered.take(1)
    assert (points.level, requests.level) == (70.0, 29.0)
    metered.take(1)
    assert metered.allowed(10) == 0
    assert metered.next_at() == DUE + timedelta(seconds=0.3 + 0.001)
    assert metered.given().good_for == HORIZON


def test_a_debt_is_paid_before_anything_is_allowed():
    metered = gate(budgets=[Budget("points", 10.0, 100.0, 1.0, -49.0)])
    assert metered.allowed(5) == 0
    assert metered.next_at() == DUE + timedelta(seconds=5, milliseconds=1)


def test_what_is_not_wanted_stays_in_the_budget_and_the_gate_stays_open():
    metered = gate(budgets=[Budget("requests", 100.0, 100.0, 1.0, 60.0)])
    assert metered.allowed(1) == 1
    metered.take(1)
    assert metered.next_at() is None
    assert metered.allowed(100) == 25


def test_places_are_counted_over_everybody():
    metered = gate(max_in_flight=3, in_flight=2)
    assert metered.allowed(10) == 1
    assert metered.next_at() is None
    metered.take(1)
    assert metered.allowed(10) == 0
    assert metered.next_at() == DUE + timedelta(seconds=FULL_SECONDS, milliseconds=1)
    assert metered.given().placed
    assert gate(max_in_flight=1, in_flight=5).allowed(1) == 0, "more are under way than a new configuration allows"


@pytest.mark.parametrize(("throttles", "budget", "probes"), [(0, 0, 0), (1, 0, 1), (5, 1, 0), (6, 1, 1), (9, 0, 1)])
def test_a_probe_goes_alone(throttles, budget, probes):
    budgets = [Budget("requests", 100.0, 100.0, 1.0, 50.0)] * budget
    metered = gate(throttles=throttles, budgets=budgets)
    assert metered.half_open == bool(probes)
    assert metered.given().troubled == bool(throttles)
    if probes:
        assert metered.allowed(10) == 1
        metered.take(1)
        assert metered.allowed(10) == 0
        assert metered.next_at() == DUE + timedelta(seconds=PROBE_SECONDS)
    assert BREAKER_AFTER == 5


def test_a_spent_gate_is_left_alone_for_a_moment_where_that_wastes_nothing():
    assert gate(budgets=[Budget("requests", 1_000.0, 2_000.0, 1.0, 0.0)]).next_at() == DUE + timedelta(
        seconds=PACE, milliseconds=1
    )


@pytest.mark.parametrize(
    ("rate", "burst", "cost"), [(0, 1, 1), (-1, 1, 1), (1, 0, 1), (1, 1, 2), (1, 1, 0), (float("nan"), 1, 1)]
)
def test_a_limit_that_allows_nothing_is_refused(rate, burst, cost):
    with pytest.raises(UsageError, match="allow no call"):
        Limit("requests", rate, burst, cost)


def test_an_accounts_own_limits_come_before_its_providers():
    shop, acme, shopping = GateLimits("shop"), GateLimits("shop/acme"), GateLimits("shopping")
    known = [shop, acme, shopping]
    assert limits_of("shop/acme/orders", known) is acme
    assert limits_of("shop/acme", known) is acme
    assert limits_of("shop/acmes", known) is shop
    assert limits_of("shopping/x", known) is shopping
    assert limits_of("elsewhere", known) is None

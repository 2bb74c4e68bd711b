"""Provider gates in the ledger: what is claimed behind them, and when they are asked again."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from penstock.ledger.gates.budget import Pass
from penstock.ledger.incarnation import Incarnation
from penstock.model.limits import GateLimits, Limit
from penstock.model.machine import Actor
from penstock.model.outcome import Outcome
from penstock.model.unit import replace
from tests.support.gating import (
    GATE,
    Statements,
    crowd,
    held,
    limited,
    per_second,
    row,
    take,
    tokens,
)
from tests.support.machines import InvoiceState, invoice
from tests.support.more_machines import parcel
from tests.support.world import after, ids, instant

# Budgets.


def test_a_new_budget_begins_empty_and_fills_at_its_rate(world):
    limited(world, per_second(10, 20))
    crowd(world, 100)
    worker = world.worker("invoice")
    assert take(worker) == []
    world.time.advance(0.101)
    assert len(take(worker)) == 1
    world.time.advance(0.2)
    assert len(take(worker)) == 2
    world.time.advance(100)
    assert len(take(worker)) == 2, "at most a quarter of a second's worth at once"
    counts = [len(take(worker)) for _ in range(20)]
    assert sum(counts) == 17 - 2, "the burst less a quarter of a second"
    assert tokens(world) == pytest.approx(0.5)


def test_over_any_time_no_more_is_claimed_than_the_rate_allows_and_no_less(world):
    limited(world, per_second(10, 20))
    crowd(world, 600)
    workers = [world.worker("invoice", ledger=world.another()) for _ in range(3)]
    claimed = 0
    for turn in range(1_000):  # twenty seconds
        world.time.advance(0.02)
        claimed += len(take(workers[turn % 3]))
    assert 195 <= claimed <= 200


def test_every_limit_must_have_room(world):
    limited(world, per_second(100), Limit("points", 5, 50, 10))
    crowd(world, 20)
    worker = world.worker("invoice")
    world.time.advance(2)
    assert len(take(worker)) == 1
    assert take(worker) == []
    assert (tokens(world), tokens(world, "points")) == (74, 0)
    assert instant(row(world, "next_at")[0]) == after(4.001)


def test_what_a_call_costs_besides_is_owed(world):
    gates = limited(world, per_second(10, 20))
    crowd(world, 20)
    worker = world.worker("invoice")
    world.time.advance(1)
    assert len(take(worker)) == 2
    gates.charge(GATE, {}, calls=28)
    assert tokens(world) == -20
    assert take(worker) == []
    assert instant(row(world, "next_at")[0]) == after(1 + 2.1 + 0.001)
    world.time.advance(2.102)
    assert len(take(worker)) == 1
    gates.charge(GATE, {}, calls=-10)
    assert tokens(world) == pytest.approx(10.02), "a refund"


def test_machines_share_a_gate_and_its_budget(world):
    limited(world, per_second(10, 20))
    crowd(world, 50)
    world.born(*(parcel(str(n), gate_id=GATE) for n in range(50)))
    worker = world.worker("invoice", "parcel")
    world.time.advance(100)
    found = [u for _ in range(20) for u in worker.take({"invoice": 50, "parcel": 50}).units]
    kinds = [type(u).__name__ for u in found]
    assert len(found) == 17
    assert min(kinds.count("Invoice"), kinds.count("Parcel")) >= 6, "each has its turn"


def test_many_gates_share_a_small_room(world):
    limited(world, per_second(1_000, 4_000))
    names = [f"shop/{n}" for n in range(7)]
    for name in names:
        crowd(world, 30, name, name[5:])
    worker = world.worker("invoice")
    world.time.advance(10)
    seen = [u.gate_id for _ in range(14) for u in worker.take({"invoice": 50}, starts=3).units]
    assert len(seen) == 42
    assert max(seen.count(n) for n in names) - min(seen.count(n) for n in names) <= 3


def test_more_gates_than_are_asked_at_once_all_have_their_turn(world):
    limited(world, per_second(1, 4))
    world.born(*(invoice(f"{n}", gate_id=f"shop/{n:04}") for n in range(450)))
    worker = world.worker("invoice")
    world.time.advance(10)
    assert sorted(len(take(worker, 1_000)) for _ in range(4)) == [0, 50, 200, 200]


def test_what_a_worker_cannot_start_is_not_taken(world):
    limited(world, per_second(100))
    crowd(world, 20)
    crowd(world, 5, "free", "f")
    worker = world.worker("invoice")
    world.time.advance(1)
    found = worker.take({"invoice": 10}, starts=0)
    assert {u.gate_id for u in found.units} == {"free"}
    found = worker.take({"invoice": 10}, starts=3)
    assert [u.gate_id for u in found.units] == [GATE] * 3
    assert tokens(world) == 72


def test_a_gate_without_limits_is_passed_without_a_lock_or_a_write(world):
    limited(world, per_second(10))
    crowd(world, 5, "free", "f")
    before = row(world, "*", "free")
    claimed = world.worker("invoice").take({"invoice": 10})
    assert len(claimed.units) == 5
    assert claimed.passes == {"free": Pass("free", 0)}
    assert row(world, "*", "free") == before


def test_a_unit_without_a_gate_needs_no_pass(world):
    world.born(invoice())
    assert world.worker("invoice").take({"invoice": 10}).passes == {}


def test_claiming_nothing_asks_nobody(world):
    limited(world, per_second(10))
    crowd(world, 1)
    world.time.advance(1)
    assert world.worker("invoice").take({}).units == []
    assert world.worker("invoice").take({"invoice": 0}).units == []


def test_nobody_goes_through_a_gate_that_this_program_has_not_yet_seen(world):
    """It was made by a program that knows no limits; this one does, and gives it its own before any call leaves."""
    limited(world, per_second(10, 20))
    stranger = world.another()
    stranger.birth((invoice(f"{n}", gate_id="shop/new") for n in range(9)), actor=Actor.API, who="test")
    assert row(world, "metered", "shop/new") == (False,)
    worker = world.worker("invoice")
    claimed = worker.take({"invoice": 9})
    assert len(claimed.units) == 9
    assert claimed.passes["shop/new"].good_for == -1, "the worker gives them back"
    worker.release([(u, False) for u in claimed.units])
    assert row(world, "metered", "shop/new") == (True,)
    world.time.advance(0.3)
    assert len(take(worker)) == 2


def test_a_claim_whose_answer_was_lost_has_no_place_any_more(world):
    limited(world, per_second(10, 20))
    crowd(world, 5)
    crowd(world, 2, "free", "f")
    worker = world.worker("invoice")
    world.time.advance(1)
    units = worker.take({"invoice": 10}).units
    found = worker.retake(set())
    assert sorted(ids(found.units)) == sorted(ids(units))
    assert found.passes[GATE].good_for == -1
    assert found.passes["free"] == Pass("free", 0)


# When to ask again.


def test_a_spent_gate_wakes_a_worker_when_it_is_worth_it_and_not_before(world):
    limited(world, Limit("requests", 0.1, 1))
    crowd(world, 3)
    worker = world.worker("invoice")
    assert take(worker) == []
    assert (worker.idle().due, worker.idle().gate) == (None, pytest.approx(10.001))
    world.time.advance(10.001)
    assert len(take(worker)) == 1
    assert worker.idle().seconds() == pytest.approx(10, abs=0.01)
    world.time.advance(5)
    assert worker.idle().seconds() == pytest.approx(5, abs=0.01)


def test_a_closed_gate_with_nobody_behind_it_wakes_nobody(world):
    limited(world, per_second(10))
    crowd(world, 1)
    world.time.advance(1)
    worker = world.worker("invoice")
    assert len(take(worker)) == 1
    world.close_gate(GATE, 30)
    world.close_gate("shop/other", 40)
    assert worker.idle().seconds() is None
    crowd(world, 1, prefix="m")
    assert worker.idle().seconds() == 30
    assert world.worker("batch_item").idle().gate is None, "not this worker's machine"


def test_asking_a_spent_gate_again_and_again_changes_nothing(world):
    limited(world, per_second(10, 20))
    crowd(world, 30)
    worker = world.worker("invoice")
    world.time.advance(1)
    while take(worker):
        pass
    before = row(world, "*"), tokens(world)
    for _ in range(5):
        assert take(worker) == []
    assert (row(world, "*"), tokens(world)) == before


# Places.


def test_no_more_are_under_way_than_there_are_places(world):
    gates = limited(world, places=2)
    crowd(world, 10)
    first, second = world.worker("invoice"), world.worker("invoice", ledger=world.another())
    held = take(first)
    assert len(held) == 2
    assert take(second) == []
    assert second.idle().seconds() == pytest.approx(1.001), "somebody may have died"
    world.commit(first, Outcome(held[0], replace(held[0], status=InvoiceState.FAILED, due_at=None), "done"))
    assert take(second) == [], "it was not told yet"
    gates.left([GATE])
    assert len(take(second)) == 1
    world.time.advance(1.1)
    assert take(first) == take(second) == []


def test_the_places_of_a_dead_worker_come_free_when_it_is_reaped(world):
    limited(world, places=1)
    crowd(world, 3)
    died, other = world.worker("invoice"), world.worker("invoice")
    (unit,) = take(died)
    world.time.advance(31)
    other.renew()
    assert take(other) == [], "its call may still be under way"
    other.reap()
    world.time.advance(2)
    assert len(take(other)) == 1
    assert take(other) == []
    assert world.commit(died, Outcome(unit, replace(unit, status=InvoiceState.QUEUED), "late"))[0] != "won"


def test_places_are_counted_over_all_machines(world):
    limited(world, places=3)
    crowd(world, 10)
    world.born(*(parcel(str(n), gate_id=GATE) for n in range(10)))
    one, two = world.worker("invoice"), world.worker("parcel")
    assert len(one.take({"invoice": 2}).units) == 2
    assert len(two.take({"parcel": 9}).units) == 1


def test_places_and_a_budget_hold_together(world):
    limited(world, per_second(10, 20), places=3)
    crowd(world, 10)
    worker = world.worker("invoice")
    world.time.advance(5)
    assert [len(take(worker)) for _ in range(3)] == [2, 1, 0]
    assert tokens(world) == pytest.approx(14.5)


# Limits as configured.


def test_applying_limits_changes_what_differs_keeps_levels_and_can_be_repeated(world):
    gates = limited(world, per_second(10, 20), Limit("points", 5, 50), places=4)
    crowd(world, 3)
    crowd(world, 1, "shop/other", "other")
    crowd(world, 1, "elsewhere", "else")
    assert gates.apply() == 0
    world.time.advance(1)
    gates.providers = [GateLimits("shop", (per_second(20, 40),)), GateLimits("shop/other", (), 2)]
    assert gates.apply() == 2
    assert gates.apply() == 0
    assert world.rows("SELECT gate_id, name, rate, tokens FROM gate_limit") == [(GATE, "requests", 20.0, 10.0)]
    assert row(world, "metered, max_in_flight") == (True, None)
    assert row(world, "metered, max_in_flight", "shop/other") == (True, 2)
    assert row(world, "metered, max_in_flight", "elsewhere") == (False, None)
    gates.providers = []
    assert gates.apply() == 2
    assert world.one("SELECT count(*) FROM gate_limit") == 0
    assert world.one("SELECT count(*) FROM gate WHERE metered") == 0
    gates.providers = None
    assert gates.apply() == 0


def test_a_lowered_limit_is_lowered_at_once(world):
    gates = limited(world, per_second(100, 200))
    crowd(world, 100)
    world.time.advance(100)
    gates.providers = [GateLimits("shop", (per_second(2, 4),))]
    gates.apply()
    worker = world.worker("invoice")
    assert sum(len(take(worker)) for _ in range(9)) == 3


def test_limits_applied_by_many_at_once_are_applied_once(real_world):
    world = real_world
    for n in range(40):
        crowd(world, 1, f"shop/{n}", str(n))
    views = [world.another() for _ in range(4)]
    done: list[int] = []

    def apply(view: Any, rate: float) -> None:
        view.gates.providers = [GateLimits("shop", (per_second(rate), Limit("points", 1, 9)), 3)]
        done.extend(view.gates.apply() for _ in range(5))

    threads = [threading.Thread(target=apply, args=(view, 5.0 + n % 2)) for n, view in enumerate(views)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(done) == 20
    rates = {r for (r,) in world.rows("SELECT DISTINCT rate FROM gate_limit WHERE name = 'requests'")}
    assert len(rates) == 1, "whoever was last, it is one configuration"
    assert world.one("SELECT count(*) FROM gate_limit") == 80


def test_gates_born_while_their_provider_is_held_are_held(real_world):
    """Two programs give birth to gates while a third pauses the provider: none slips through."""
    world = real_world
    views = [world.another() for _ in range(2)]
    begun = threading.Barrier(3)

    def bear(view: Any, name: str) -> None:
        begun.wait()
        for n in range(30):
            view.birth([invoice(f"{name}{n}", gate_id=f"shop/{name}{n}")], actor=Actor.API, who="test")

    threads = [threading.Thread(target=bear, args=(view, name)) for view, name in zip(views, "ab", strict=True)]
    for thread in threads:
        thread.start()
    begun.wait()
    world.ledger.gates.pause("shop", "operator:anna", "audit")
    for thread in threads:
        thread.join(60)
    found = held(world)
    assert len(found) == 61
    assert set(found.values()) == {"operator:anna"}


def test_two_workers_of_one_gate_never_take_more_than_it_has(real_world):
    """Real time, real locks: what several claim together is what the bucket gave, whoever was quicker."""
    world = real_world
    limited(world, per_second(50, 50))
    crowd(world, 600)
    start = world.ledger.clock.now()
    workers = [world.worker("invoice", ledger=world.another()) for _ in range(3)]
    claimed: list[int] = []

    def work(session: Incarnation) -> None:
        while (world.ledger.clock.now() - start).total_seconds() < 1.5:
            claimed.append(len(take(session)))

    threads = [threading.Thread(target=work, args=(session,)) for session in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    # The gate was born before `start`, with nothing; what it gave since is at most what came in.
    born = instant(world.one("SELECT min(changed_at) FROM invoice"))
    assert born is not None
    seconds = (world.ledger.clock.now() - born).total_seconds()
    assert 0 < sum(claimed) <= 50 * seconds + 1


def test_a_closed_gate_delays_nobody_else(world):
    gates = limited(world, per_second(1, 1), name="slow")
    crowd(world, 200, "slow/a", "a")
    crowd(world, 200, "shut/b", "b")
    crowd(world, 200, "held/c", "c")
    crowd(world, 50, "open/d", "d")
    gates.close("shut/b", 3600, "outage")
    gates.pause("held", "operator:anna", "audit")
    found = take(world.worker("invoice"), 100)
    assert {u.gate_id for u in found} == {"open/d"}
    assert len(found) == 50


# The clock, and the size of things.


def test_a_clock_that_is_set_back_costs_no_more_than_it_was_set_back(world):
    limited(world, per_second(10, 20))
    crowd(world, 40)
    worker = world.worker("invoice")
    world.time.advance(20)
    assert len(take(worker)) == 2
    world.time._milliseconds -= 5_000
    assert len(take(worker)) == 2, "what is there is there"
    assert sum(len(take(worker)) for _ in range(20)) == 13
    world.time.advance(0.2)
    assert len(take(worker)) == 2, "and it goes on filling"
    assert take(worker) == []
    world.time._milliseconds -= 4_000
    world.time.advance(0.2)
    assert take(worker) == [], "it was spent until a moment that has yet to come again"
    assert world.ledger.gates.resume(GATE, "operator:anna") == 1
    world.time.advance(0.2)
    assert len(take(worker)) == 2, "unless somebody opens it"
    assert take(worker) == []
    world.time._milliseconds -= 4_000
    world.time.advance(4.2)
    assert len(take(worker)) == 2
    world.time.advance(3_600 * 24 * 365 * 10)
    assert sum(len(take(worker)) for _ in range(20)) == 17, "a jump ahead fills it, and no more"


def test_a_clock_that_jumps_to_and_fro_never_gives_twice(world):
    limited(world, per_second(10, 20))
    crowd(world, 200)
    worker = world.worker("invoice")
    claimed = 0
    for jump in itertools.islice(itertools.cycle([300, -300]), 100):
        world.time._milliseconds += jump
        world.time.advance(0.02)
        claimed += len(take(worker))
    assert claimed <= 20 + 100 * 0.32 * 10 / 2 + 20


def test_thousands_of_gates_with_limits_are_applied_and_asked_in_bulk(world):
    gates = world.ledger.gates
    world.born(*(invoice(f"{n}", gate_id=f"shop/{n:04}") for n in range(3_000)))
    gates.providers = [GateLimits("shop", (per_second(1, 4), Limit("points", 9, 99)), 7)]
    counted = Statements(world)
    assert counted.run(gates.apply) == 3_000
    assert counted.made < 15
    world.time.advance(10)
    worker = world.worker("invoice")
    found = counted.run(lambda: [len(take(worker, 1_000)) for _ in range(15)])
    assert found == [200] * 15


def test_an_ordinary_claim_makes_as_few_statements_with_limits_as_without(world):
    crowd(world, 30, "free", "f")
    counted, worker = Statements(world), world.worker("invoice")
    counted.run(lambda: take(worker, 1))
    plain = counted.made
    counted.run(lambda: take(worker, 1))
    assert counted.made <= plain, "whether any gate is metered is asked four times a second, not more"
    limited(world, per_second(10))
    crowd(world, 30)
    world.time.advance(1)
    counted.run(lambda: take(worker, 1))
    assert counted.made <= plain + 8

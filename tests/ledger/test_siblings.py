"""Siblings: claimed together, one step to a gate and one suspect, until one of them may be the one that crashes."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.ledger.claim import Levels
from penstock.ledger.gates.status import gate_statuses
from penstock.ledger.incarnation import Incarnation
from penstock.model.outcome import Outcome
from penstock.model.unit import replace
from tests.support.gating import GATE, limited, per_second, tokens
from tests.support.machines import invoice
from tests.support.more_machines import ParcelState, parcel
from tests.support.world import World, after, ids

ALL = Levels(1, 2**31 - 1)


def families(world: World, *names: str, size: int = 4, **fields: Any) -> None:
    """Siblings that are called `a0` to `a3` and so on, due one after the other across the families."""
    members = [(name, n) for n in range(size) for name in names]
    world.born(*(parcel(f"{name}{n}", note=name, due_at=after(-100 + n), **fields) for name, n in members))


def take(session: Incarnation, n: int, levels: Levels | None = None) -> list[str]:
    return sorted(ids(session.take({"parcel": n}, levels=levels).units))


def whole(*names: str, size: int = 4) -> list[str]:
    return sorted(f"{name}{n}" for name in names for n in range(size))


def test_one_that_is_due_brings_its_siblings(world):
    families(world, "a", "b")
    worker = world.worker("parcel")
    assert take(worker, 1) == whole("a")
    assert take(worker, 1) == whole("b")
    assert take(worker, 1) == []


def test_a_family_is_not_parted_and_beyond_so_many_none_begins(world):
    families(world, "a", "b", "c", "d")
    worker = world.worker("parcel")
    assert take(worker, 4) == whole("a")
    assert take(worker, 5) == whole("b", "c")
    assert take(worker, 9) == whole("d")


def test_who_shares_nothing_is_claimed_alone(world):
    world.born(*(parcel(f"{n}", note=None) for n in range(4)), parcel("x", note="x"))
    worker = world.worker("parcel")
    assert [take(worker, 2), take(worker, 9)] == [["0", "1"], ["2", "3", "x"]]


def test_only_siblings_that_are_due_and_free_behind_the_same_gate_are_claimed(world):
    families(world, "a", gate_id="one")
    world.born(parcel("elsewhere", note="a", gate_id="two", due_at=after(-1)))
    world.born(parcel("later", note="a", gate_id="one", due_at=after(60)))
    world.born(parcel("parked", note="a", gate_id="one"), parcel("never", note="a", gate_id="one", due_at=None))
    world.sql("UPDATE parcel SET parked_at = due_at WHERE name = 'parked'")
    worker = world.worker("parcel")
    assert take(worker, 1) == whole("a")
    assert take(worker, 9) == ["elsewhere"]


def test_a_large_family_is_claimed_in_parts(world):
    families(world, "a", size=12)
    worker = world.worker("parcel")
    sizes = [len(take(worker, 1)) for _ in range(4)]
    assert sizes == [5, 5, 2, 0], "PARCEL takes five at once"


def test_several_machines_and_gates_in_one_claim(world):
    families(world, "a", gate_id="one")
    families(world, "b", gate_id="two")
    world.born(invoice("1"))
    units = world.worker().claim({"parcel": 5, "invoice": 5})
    assert sorted(ids(units)) == sorted([*whole("a", "b"), "acme/1"])


def test_gates_take_turns_however_long_one_queue_is(world):
    families(world, *(f"a{n}-" for n in range(9)), gate_id="one")
    world.born(*(parcel(f"b{n}", note="b", gate_id="two", due_at=after(-1)) for n in range(4)))
    worker = world.worker("parcel")
    claims = [{u.gate_id for u in worker.claim({"parcel": 2})} for _ in range(2)]
    assert claims == [{"one"}, {"two"}]


def test_siblings_given_back_come_back_together(world):
    families(world, "a", "b")
    one, two = world.worker("parcel"), world.worker("parcel")
    claimed = one.claim({"parcel": 1})
    one.release([(unit, False) for unit in claimed])
    assert take(two, 1) == whole("a")


def test_a_claim_whose_answer_was_lost_is_found_again_whole(world):
    families(world, "a")
    worker = world.worker("parcel")
    worker.claim({"parcel": 1})
    assert sorted(ids(worker.recover(set()))) == whole("a")


# Gates.


def test_a_family_takes_one_place_in_a_budget(world):
    limited(world, per_second(10, 20))
    families(world, "a", "b", "c", "d", gate_id=GATE)
    worker = world.worker("parcel")
    world.time.advance(100)
    assert take(worker, 99) == whole("a", "b"), "a horizon's worth of calls"
    assert tokens(world) == pytest.approx(17.5 - 2)


def test_places_in_flight_count_families(world):
    gates = limited(world, places=2)
    families(world, "a", "b", "c", gate_id=GATE)
    one, two = world.worker("parcel"), world.worker("parcel")
    assert [take(one, 1), take(two, 9)] == [whole("a"), whole("b")]
    gates.left([GATE])
    assert take(two, 9) == []
    (found,) = world.ledger.read(lambda cursor: gate_statuses(world.ledger.database, cursor, counts=True))
    assert (found.in_flight, found.waiting) == (2, 4)


@pytest.mark.parametrize(("at_most", "told"), [(None, 12), (12, 12), (2, 2)])
def test_who_waits_behind_a_gate_is_counted_up_to_a_number(world, at_most, told):
    limited(world, places=2)
    families(world, "a", "b", "c", gate_id=GATE)
    (found,) = world.ledger.read(
        lambda cursor: gate_statuses(world.ledger.database, cursor, counts=True, at_most=at_most)
    )
    assert found.waiting == told


def test_each_claim_of_one_family_is_a_call_of_its_own(world):
    gates = limited(world, places=2)
    families(world, "a", size=12, gate_id=GATE)
    worker = world.worker("parcel")
    assert len(take(worker, 1)) == 5
    world.time.advance(0.001)
    assert len(take(worker, 1)) == 5
    gates.left([GATE])
    assert take(worker, 1) == [], "two calls are under way"


def test_one_probe_is_one_family(world):
    families(world, "a", "b", gate_id=GATE)
    gates = limited(world)
    worker = world.worker("parcel")
    passed = worker.take({"parcel": 1}).passes[GATE]
    gates.throttle(passed, 5, "429", 0.0)
    world.time.advance(6)
    assert take(worker, 99) == whole("b")
    assert take(worker, 99) == []


@pytest.mark.parametrize("budget", [False, True], ids=["open gate", "budget"])
@pytest.mark.parametrize("n", [3, 20])
def test_workers_at_once_part_no_family(real_world, budget, n):
    world = real_world
    if budget:
        limited(world, per_second(10_000, 100_000))
    names = [f"f{n:03}-" for n in range(120)]
    families(world, *names, gate_id=GATE)
    barrier = threading.Barrier(4)

    def work(_: int) -> list[list[Any]]:
        ledger = world.another()
        session = world.worker("parcel", ledger=ledger)
        barrier.wait()
        claims: list[Any] = []
        free = "SELECT 1 FROM parcel WHERE claimed_by IS NULL LIMIT 1"
        while ledger.read(lambda cursor: cursor.rows(free)):
            claims.append(session.claim({"parcel": n}))
        return claims

    with ThreadPoolExecutor(4) as pool:
        claims = [claim for found in pool.map(work, range(4)) for claim in found]
    sizes = [size for claim in claims for size in Counter(u.note for u in claim).values()]
    assert sizes == [4] * 120


# Suspects.


def held(world: World, *names: str, level: int | None = None) -> None:
    """A worker that claims these, suspects of a level or not, and dies with nothing else; another finds out."""
    worker = world.worker()
    levels = None if level is None else Levels(level, level)
    claimed: list[Any] = worker.take({"parcel": 99}, levels=levels).units
    worker.release([(unit, False) for unit in claimed if unit.name not in names])
    assert {*names} <= {unit.name for unit in claimed}
    world.time.advance(31)
    reaper = world.worker()
    reaper.reap()
    reaper.retire()


def test_siblings_are_one_suspect_until_the_third_death(world):
    families(world, "a", "b")
    for level in (None, 1, 2):
        held(world, *whole("a"), level=level)
    worker = world.worker("parcel")
    assert take(worker, 1) == whole("b")
    claims = [take(worker, 1, ALL) for _ in range(5)]
    assert claims == [["a0"], ["a1"], ["a2"], ["a3"], []]


@pytest.mark.parametrize("deaths", [1, 2])
def test_suspects_of_one_level_are_claimed_with_their_siblings(world, deaths):
    families(world, "a", "b")
    for level in (None, 1)[:deaths]:
        held(world, *whole("a", "b"), level=level)
    worker = world.worker("parcel")
    assert [take(worker, 1, Levels(deaths, deaths)) for _ in range(3)] == [whole("a"), whole("b"), []]


def test_a_sibling_that_kills_is_parked_alone_and_the_others_are_done(world):
    families(world, "a")
    for level in (None, 1, 2):
        held(world, *whole("a"), level=level)
    for level in (3, 4, 5):
        held(world, "a2", level=level)
    parked = world.rows("SELECT name, parked_reason FROM parcel WHERE parked_at IS NOT NULL")
    assert parked == [("a2", "its step killed 3 workers in a row")]
    worker = world.worker("parcel")
    others = worker.claim({"parcel": 1})
    assert sorted(ids(others)) == ["a0", "a1", "a3"], "cleared, they are siblings again"
    world.commit(worker, *(Outcome(u, replace(u, status=ParcelState.CLOSED), "sent") for u in others))
    assert world.one("SELECT count(*) FROM parcel WHERE suspicion + crashes = 0") == 3


def test_after_two_crashes_each_steps_alone(world):
    limited(world, per_second(10, 20))
    families(world, "a", gate_id=GATE)
    world.sql("UPDATE parcel SET crashes = 2 WHERE name IN ('a0', 'a1')")
    worker = world.worker("parcel")
    world.time.advance(100)
    assert take(worker, 99) == ["a0", "a1"], "two calls, which is a horizon's worth"
    assert take(worker, 99) == ["a2", "a3"]
    assert tokens(world) == pytest.approx(17.5 - 3)

"""Sets over the children of one parent: which of them, what changes, who did it, and what is left."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.ledger.commit import Won
from penstock.model.clock import SystemClock
from penstock.model.errors import BrokenFlow
from penstock.model.machine import Actor
from penstock.model.move_set import Left, MoveSet
from penstock.model.outcome import Outcome, Where
from penstock.model.unit import NOW, Ref, replace
from tests.ledger.test_hands import healthy
from tests.support.more_machines import chosen
from tests.support.sealed import DAY, SEALED, R, T, price_run, target
from tests.support.world import World, after

RUN = Ref("price_run", f"a/{DAY}")


@pytest.fixture
def world(ledger_url: str) -> Iterator[World]:
    made = World(ledger_url, machines=SEALED)
    yield made
    made.close()


def of(*numbers: int) -> list[Ref]:
    return [Ref("target", f"{RUN.unit_id}/{n}") for n in numbers]


def fan_out(**fields: Any) -> MoveSet:
    made: dict[str, Any] = {
        "machine": "target",
        "sources": [T.PREVIEW],
        "to": T.QUEUED,
        "reason": "included",
        "where": {"account": "a", "day": DAY, "included": True},
        "changes": {"due_at": NOW, "queued_at": NOW, "gate_id": "shop/a", "attempts": 0},
        "actor": Actor.API,
        "who": "site",
    }
    return MoveSet(**made | fields)


def previews(world: World, count: int = 4, excluded: int = 1) -> None:
    """A run with targets, the last of them excluded, and another run that nobody means."""
    world.born(
        price_run("a", due_at=after(0)),
        *(target(n, "a", due_at=None, included=n < count - excluded, attempts=2) for n in range(count)),
        price_run("b"),
        target(0, "b", due_at=None),
    )


def test_a_run_moves_its_included_targets_in_its_own_outcome(world):
    previews(world)
    world.time.advance(5)
    worker = world.worker()
    (run,) = worker.claim({"price_run": 1})
    started = Outcome(run, replace(run, status=R.APPLYING, due_at=None), "fanned out", move_sets=[fan_out()])
    assert world.commit(worker, started) == [Won()]
    moved = [world.unit(ref) for ref in of(0, 1, 2)]
    assert [(t.status, t.due_at, t.queued_at, t.gate_id, t.attempts) for t in moved] == [
        (T.QUEUED, after(5), after(5), "shop/a", 0)
    ] * 3
    assert world.history(of(0)[0])[-1] == ("PREVIEW", "QUEUED", "api:site", "included")
    assert world.unit(of(3)[0]).status is T.PREVIEW, "excluded"
    assert world.unit(Ref("target", f"b/{DAY}/0")).status is T.PREVIEW
    assert world.ledger.left_of(fan_out()) == Left(0, 0, 0)
    healthy(world)


def test_a_retry_counts_its_rounds_and_takes_the_failed_off(world):
    """Each target has its own number of rounds; the run's counter follows."""
    previews(world, 3, 0)
    world.ledger.move_set(fan_out(), who="x")
    worker = world.worker()
    units = worker.claim({"target": 3})
    world.commit(worker, *(Outcome(t, replace(t, status=T.FAILED, due_at=None), "no") for t in units))
    assert world.unit(RUN).failed == 3
    world.sql("UPDATE target SET retry_round = number")
    again = fan_out(sources=[T.FAILED], adds={"retry_round": 1}, changes={"due_at": NOW, "attempts": 0})
    assert world.ledger.move_set(again, who="x") == 3
    assert [world.unit(ref).retry_round for ref in of(0, 1, 2)] == [1, 2, 3]
    assert world.unit(RUN).failed == 0
    healthy(world)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adds": {"included": 1}}, "a set adds to whole numbers of the machine's own, not to included"),
        ({"adds": {"attempts": 1}}, "not to attempts"),
        ({"adds": {"retry_round": 1}, "changes": {"retry_round": 0}}, "not to retry_round"),
        ({"adds": {"number": 1}}, "cannot change number"),
        ({"adds": {"colour": 1}}, "cannot change colour"),
    ],
)
def test_what_cannot_be_added_to_is_refused(world, fields, message):
    with pytest.raises(BrokenFlow, match=message):
        world.ledger.move_set(fan_out(**fields), who="x")


def test_what_is_left_says_why(world):
    previews(world, 5, 0)
    world.ledger.move_set(fan_out(), who="x")
    worker = world.worker()
    worker.claim({"target": 1})
    # Held by a worker, and in a state that the set starts from.
    world.sql("UPDATE target SET status = 'QUEUED', version = version + 1 WHERE status = 'APPLYING'")
    world.ledger.park(of(1, 2), who="ann", reason="wait")
    halted: dict[str, Any] = {"sources": [T.QUEUED], "to": None, "changes": {"due_at": NOW}}
    assert world.ledger.left_of(fan_out(**halted)) == Left(free=2, claimed=1, parked=2)
    assert world.ledger.left_of(fan_out(**halted, parked=None)) == Left(free=4, claimed=1, parked=0)
    assert world.ledger.move_set(fan_out(**halted), who="x") == 2


def test_items_say_themselves_what_is_left(world):
    by_items = fan_out(where=None, items=Where(chosen, {"action_id": "x"}, span=("position", 0, 5)))
    with pytest.raises(BrokenFlow, match="is in their results"):
        world.ledger.left_of(by_items)


def test_a_set_is_repeated_until_nothing_is_left(postgres_url):
    """What somebody has locked is passed by, and left; a moment later it goes."""
    world = World(postgres_url, SystemClock(), machines=SEALED)
    previews(world, 4, 0)
    locked, go = threading.Event(), threading.Event()

    def hold(cursor: Any) -> None:
        cursor.rows("SELECT 1 FROM target WHERE number = 1 AND account = 'a' FOR UPDATE")
        locked.set()
        go.wait(30)

    thread = threading.Thread(target=world.another().database.write, args=(hold,))
    thread.start()
    locked.wait(30)
    try:
        assert world.ledger.move_set(fan_out(limit=2), who="x") == 2
        assert world.ledger.left_of(fan_out()) == Left(2, 0, 0)
        assert world.ledger.move_set(fan_out(), who="x") == 1
        assert world.ledger.left_of(fan_out()) == Left(1, 0, 0)
    finally:
        go.set()
        thread.join()
    assert world.ledger.move_set(fan_out(), who="x") == 1
    assert world.ledger.left_of(fan_out()) == Left(0, 0, 0)
    world.close()

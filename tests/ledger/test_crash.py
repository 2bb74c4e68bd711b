"""A unit whose step broke its worker is given back by the worker itself: later each time, and parked at the third."""

from __future__ import annotations

from datetime import timedelta

from penstock.ledger.claim import Levels
from tests.support.machines import FEED, feed, invoice
from tests.support.world import ids

ALERTS = "SELECT event_type, severity, machine, unit_id FROM event_log"


def test_it_comes_again_after_a_pause_and_is_parked_at_the_third_in_a_row(world):
    (ref,) = world.born(invoice("1"))
    for crashes, pause in ((1, 2), (2, 4)):
        worker = world.worker()
        (unit,) = worker.claim({"invoice": 1})
        worker.crash([unit], "it stood still")
        given = world.unit(ref)
        assert (given.claimed_by, given.crashes, given.version) == (None, crashes, unit.version + 1)
        assert (given.parked_at, given.due_at) == (None, world.time.now() + timedelta(seconds=pause))
        assert world.worker().claim({"invoice": 1}) == []
        world.time.advance(pause)
    worker = world.worker()
    (unit,) = worker.claim({"invoice": 1})
    worker.crash([unit], "it stood still")
    given = world.unit(ref)
    assert (given.claimed_by, given.crashes, given.parked_at) == (None, 3, world.time.now())
    assert given.parked_reason == "it stood still (3 times in a row)"
    assert world.rows(ALERTS) == [("unit.parked", "critical", "invoice", ref.unit_id)]


def test_what_the_worker_holds_no_longer_is_left_alone(world):
    (ref,) = world.born(invoice("1"))
    worker = world.worker()
    (unit,) = worker.claim({"invoice": 1})
    world.time.advance(31)
    other = world.worker()
    other.reap()
    (taken,) = other.take({"invoice": 1}, levels=Levels(1, 1)).units
    worker.crash([unit], "it stood still")
    assert world.unit(ref) == taken
    assert world.rows(ALERTS) == []


def test_a_machine_that_calls_its_schedule_otherwise(world):
    assert FEED.due != "due_at"
    (ref,) = world.born(feed("1"))
    worker = world.worker()
    (unit,) = worker.claim({"feed": 1})
    worker.crash([unit], "it stood still")
    assert world.unit(ref).due_at == world.time.now() + timedelta(seconds=2)
    world.time.advance(2)
    assert ids(world.worker().claim({"feed": 1})) == [ref.unit_id]

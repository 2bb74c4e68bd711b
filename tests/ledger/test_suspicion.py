"""Which of the units that dead workers held is parked, and how the others are cleared."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.ledger.claim import Levels
from penstock.ledger.commit import Won
from penstock.ledger.incarnation import Incarnation
from penstock.model.clock import instant
from penstock.model.outcome import Outcome
from penstock.model.unit import replace
from tests.support.machines import InvoiceState, invoice
from tests.support.world import ids

ALL = Levels(1, 2**31 - 1)
PARKED = "SELECT number, parked_reason FROM invoice WHERE parked_at IS NOT NULL ORDER BY number"
SUSPECTS = "SELECT number, suspicion FROM invoice WHERE suspicion > 0 ORDER BY number"


def held(world, *numbers: str) -> None:
    """A worker that claims these, suspects or not, and dies; another one finds out, and leaves in order."""
    worker = world.worker()
    claimed = worker.claim({"invoice": 99}) + worker.take({"invoice": 99}, levels=ALL).units
    worker.release([(unit, False) for unit in claimed if unit.number not in numbers])
    assert {*numbers} <= {unit.number for unit in claimed}
    world.time.advance(31)
    reaper = world.worker()
    reaper.reap()
    reaper.retire()


def finish(world, session: Incarnation, unit: Any) -> None:
    done = Outcome(unit, replace(unit, status=InvoiceState.SENT, remote_id="r"), "accepted")
    assert world.commit(session, done) == [Won()]


def test_a_death_puts_all_that_was_held_under_suspicion_and_in_doubt(world):
    world.born(invoice("1"), invoice("2"), invoice("3"))
    held(world, "1", "2")
    rows = world.rows("SELECT number, doubts, suspicion, crashes FROM invoice ORDER BY number")
    assert rows == [("1", 1, 1, 0), ("2", 1, 1, 0), ("3", 0, 0, 0)]


def test_a_level_is_named_once_however_many_suspects_have_it(world):
    world.born(*(invoice(str(i)) for i in range(3)))
    held(world, "0", "1", "2")
    assert world.ledger.incarnation(served=["invoice"]).suspected() == [1]


def test_suspects_are_claimed_apart_by_their_level(world):
    world.born(invoice("1"), invoice("2"), invoice("3"))
    held(world, "1", "2")
    held(world, "1")
    worker = world.worker()
    assert world.ledger.incarnation().suspected() == [1, 2]
    assert ids(worker.claim({"invoice": 9})) == ["acme/3"]
    assert ids(worker.take({"invoice": 9}, levels=Levels(1, 1)).units) == ["acme/2"]
    assert ids(worker.take({"invoice": 9}, levels=Levels(2, 2)).units) == ["acme/1"]
    assert worker.suspected() == []


def test_a_suspect_behind_a_budget_takes_its_place_there(world):
    world.born(invoice("1", gate_id="api/acme"), invoice("2", gate_id="api/acme"))
    world.sql("UPDATE gate SET max_in_flight = 1, metered = true WHERE gate_id = 'api/acme'")
    dead = world.worker()
    assert len(dead.claim({"invoice": 9})) == 1
    world.time.advance(31)
    worker = world.worker()
    worker.reap()
    taken = worker.take({"invoice": 9}, levels=ALL)
    assert ids(taken.units) == ["acme/1"]
    assert list(taken.passes) == ["api/acme"]
    world.time.advance(1)
    assert worker.claim({"invoice": 9}) == [], "its only place is taken"


def test_a_suspect_behind_a_closed_gate_waits_for_it(world):
    world.born(invoice("1", gate_id="api/acme"))
    held(world, "1")
    world.ledger.gates.pause("api/acme", who="operator:ana", reason="maintenance")
    worker = world.worker()
    assert worker.suspected() == [1]
    assert worker.take({"invoice": 9}, levels=ALL).units == []
    world.ledger.gates.resume("api/acme", who="operator:ana")
    assert len(worker.take({"invoice": 9}, levels=ALL).units) == 1


def test_an_idle_worker_hears_of_suspects(world):
    world.born(invoice("1"))
    assert world.worker().idle().suspect is None
    held(world, "1")
    idle = world.worker().idle()
    assert idle.suspect is not None
    assert idle.suspect <= 0
    assert idle.due is None


def test_a_step_that_ends_clears_its_unit(world):
    world.born(invoice("1"))
    held(world, "1")
    held(world, "1")
    worker = world.worker()
    (unit,) = worker.take({"invoice": 1}, levels=ALL).units
    assert (unit.suspicion, unit.doubts, unit.crashes) == (2, 2, 2)
    world.commit(worker, Outcome(unit, replace(unit, status=InvoiceState.QUEUED), "again"))
    rows = world.rows("SELECT suspicion, suspected_in, doubts, crashes FROM invoice")
    assert rows == [(0, None, 0, 0)]


def test_an_intent_clears_nothing(world):
    world.born(invoice("1"))
    held(world, "1")
    worker = world.worker()
    (unit,) = worker.take({"invoice": 1}, levels=ALL).units
    world.commit(worker, Outcome(unit, replace(unit), "about to send", keep_claim=True))
    ((suspicion, deaths, doubts),) = world.rows("SELECT suspicion, suspected_in, doubts FROM invoice")
    assert (suspicion, len(deaths), doubts) == (1, 20, 1)


def test_the_only_suspect_of_three_deaths_is_parked_and_what_died_with_it_is_cleared(world):
    world.born(*(invoice(str(i)) for i in range(6)))
    held(world, "0", "1", "2", "3")
    held(world, "0", "5")
    held(world, "0")
    assert world.rows(PARKED) == []
    assert world.rows(SUSPECTS) == [("0", 3), ("1", 1), ("2", 1), ("3", 1), ("5", 1)]
    held(world, "0")
    assert world.rows(PARKED) == [("0", "its step killed 3 workers in a row")]
    assert world.rows(SUSPECTS) == []
    assert world.rows("SELECT event_type, severity, unit_id FROM event_log") == [("unit.parked", "critical", "acme/0")]
    assert sorted(ids(world.worker().claim({"invoice": 9}))) == [f"acme/{i}" for i in range(1, 6)]


def test_a_unit_that_is_all_its_workers_held_is_charged_from_the_first(world):
    world.born(invoice("1"))
    for crashes in (1, 2, 3):
        held(world, "1")
        assert world.rows("SELECT crashes, parked_at IS NOT NULL FROM invoice") == [(crashes, crashes == 3)]


def test_suspects_of_one_death_are_not_charged_together(world):
    world.born(invoice("1"), invoice("2"))
    for _ in range(6):
        held(world, "1", "2")
    assert world.rows("SELECT suspicion, crashes FROM invoice") == [(6, 0), (6, 0)]
    assert world.rows(PARKED) == []


def test_a_fresh_unit_does_not_hide_behind_a_suspect(world):
    world.born(invoice("innocent"), invoice("killer"))
    held(world, "innocent")
    held(world, "innocent", "killer")  # charged to the only suspect, and the killer is one now
    worker = world.worker()
    (unit,) = worker.take({"invoice": 9}, levels=Levels(2, 2)).units
    finish(world, worker, unit)
    worker.retire()
    for _ in range(3):
        held(world, "killer")
    assert [number for number, _ in world.rows(PARKED)] == ["killer"]


def test_where_workers_die_of_something_else_nothing_is_proved(world):
    world.born(invoice("1"))
    held(world, "1")
    for _ in range(4):
        for _ in range(3):
            world.worker()  # it holds nothing and dies
        held(world, "1")
    assert world.rows("SELECT suspicion, crashes FROM invoice") == [(5, 2)]
    held(world, "1")
    held(world, "1")
    assert [number for number, _ in world.rows(PARKED)] == ["1"], "once most of the deaths are its own"


def test_a_worker_that_lost_its_lease_and_lives_clears_what_it_held(world):
    world.born(invoice("1"), invoice("2"))
    held(world, "2")
    slow = world.worker()
    assert ids(slow.claim({"invoice": 9}) + slow.take({"invoice": 9}, levels=ALL).units) == ["acme/1", "acme/2"]
    world.time.advance(31)
    world.worker().reap()
    assert world.rows(SUSPECTS) == [("1", 1), ("2", 2)]
    assert slow.renew() is None
    slow.survived()
    rows = world.rows("SELECT number, suspicion, doubts, length(suspected_in) FROM invoice ORDER BY number")
    assert rows == [("1", 0, 1, None), ("2", 1, 2, 20)], "the doubt stays; so does what it was suspected of before"


def test_leases_that_were_lost_three_times_park_nobody(world):
    world.born(invoice("1"))
    for _ in range(3):
        slow = world.worker()
        assert len(slow.claim({"invoice": 9}) + slow.take({"invoice": 9}, levels=ALL).units) == 1
        world.time.advance(31)
        reaper = world.worker()
        reaper.reap()
        reaper.retire()
        assert world.rows("SELECT crashes FROM invoice") == [(1,)], "it was all that the worker held"
        slow.survived()
        rows = world.rows("SELECT crashes, suspicion, parked_at FROM invoice")
        assert rows == [(0, 0, None)]


def test_a_unit_that_was_parked_for_the_death_of_a_worker_that_lives_is_taken_up_again(world):
    world.born(invoice("1"))
    held(world, "1")
    held(world, "1")
    slow = world.worker()
    slow.take({"invoice": 9}, levels=ALL)
    world.time.advance(31)
    reaper = world.worker()
    reaper.reap()
    reaper.retire()
    assert [number for number, _ in world.rows(PARKED)] == ["1"]
    slow.survived()
    assert world.rows("SELECT crashes, parked_at, parked_reason FROM invoice") == [(2, None, None)]
    ((by, says, at),) = world.rows("SELECT changed_by, change_reason, changed_at FROM invoice")
    assert (by, says) == (f"worker:{slow.identity.id}", "taken up again: the worker that held it lives")
    assert instant(at) == world.time.now()


def test_a_process_that_is_known_to_be_dead_is_not_waited_for(world):
    world.born(invoice("1"), invoice("2"))
    dead, other = world.worker(), world.worker()
    dead.claim({"invoice": 1})
    assert other.reap() == 0
    assert other.reap({dead.identity.id}) == 1
    now = world.time.now()
    (due,) = world.rows("SELECT due_at FROM invoice WHERE number = '1'")[0]
    assert instant(due) == now + timedelta(seconds=5), "a call that was under way has time to arrive"
    assert other.take({"invoice": 9}, levels=ALL).units == []
    world.time.advance(5)
    assert ids(other.take({"invoice": 9}, levels=ALL).units) == ["acme/1"]


def test_nobody_waits_longer_for_a_dead_process_than_for_its_lease(world):
    world.born(invoice("1"))
    dead, other = world.worker(), world.worker()
    dead.claim({"invoice": 1})
    world.time.advance(28)
    other.renew()
    assert other.reap({dead.identity.id}) == 1
    (due,) = world.rows("SELECT due_at FROM invoice")[0]
    assert instant(due) == world.time.now() + timedelta(seconds=2)


def test_a_survivor_leaves_alone_what_others_hold_by_now(world):
    world.born(invoice("1"))
    slow = world.worker()
    slow.claim({"invoice": 9})
    world.time.advance(31)
    other = world.worker()
    other.reap()
    (unit,) = other.take({"invoice": 9}, levels=ALL).units
    slow.survived()
    finish(world, other, unit)


def test_workers_that_lost_their_lease_and_live_convict_nobody(world):
    world.born(invoice("long"))
    slow = world.worker()
    slow.take({"invoice": 9})
    for _ in range(5):
        world.time.advance(31)
        other = world.worker()
        other.reap()
        assert len(other.take({"invoice": 9}, levels=ALL).units) == 1
        slow.survived()  # too late to clear what the other holds
        slow = other
    assert world.rows("SELECT crashes, suspicion FROM invoice") == [(1, 1)]
    for crashes in (1, 2, 3):
        world.time.advance(31)
        slow = world.worker()
        slow.reap()
        slow.take({"invoice": 9}, levels=ALL)
        assert world.rows("SELECT crashes, parked_at IS NOT NULL FROM invoice") == [(crashes, crashes == 3)]


def test_a_survivor_takes_back_the_crash_that_was_charged_for_it(world):
    world.born(invoice("1"))
    slow = world.worker()
    slow.claim({"invoice": 9})
    world.time.advance(31)
    world.worker().reap()
    assert world.rows("SELECT crashes FROM invoice") == [(1,)]
    slow.survived()
    assert world.rows("SELECT crashes, suspicion FROM invoice") == [(0, 0)]


def test_where_one_worker_after_the_other_dies_of_something_else_each_death_is_anothers(world):
    """Steps that take longer than any worker lives, alone from the third death on: nobody is parked for it."""
    world.born(*(invoice(str(i)) for i in range(8)))
    for _ in range(3):
        held(world, *map(str, range(8)))
    for _ in range(40):
        worker = world.worker()
        worker.reap()
        assert len(worker.take({"invoice": 1}, levels=ALL).units) == 1
        world.time.advance(31)
    assert world.rows(PARKED) == []


def test_releasing_and_retiring_leave_doubt_and_no_suspicion(world):
    world.born(invoice("1"), invoice("2"), invoice("3"))
    worker = world.worker()
    one, two, _ = worker.claim({"invoice": 9})
    worker.release([(one, True), (two, False)])
    worker.retire()
    rows = world.rows("SELECT number, doubts, suspicion, crashes FROM invoice ORDER BY number")
    assert rows == [("1", 1, 0, 0), ("2", 0, 0, 0), ("3", 1, 0, 0)]


def test_many_that_kill_are_all_found_while_others_get_something_done(world):
    killers = [f"killer {n}" for n in range(5)]
    world.born(*map(invoice, killers), *(invoice(f"quick {n}") for n in range(40)))
    for turn in range(40):
        worker = world.worker()
        quick = next(unit for unit in worker.claim({"invoice": 99}) if unit.number.startswith("quick"))
        finish(world, worker, quick)
        worker.retire()
        left = [number for number in killers if number not in dict(world.rows(PARKED))]
        if left:
            held(world, left[turn % len(left)])
    assert sorted(dict(world.rows(PARKED))) == killers

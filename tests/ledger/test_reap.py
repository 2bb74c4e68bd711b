"""What becomes of units whose worker died, of units nobody serves, and of wake-ups meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.ledger.claim import Levels
from penstock.ledger.commit import Lost, Won
from penstock.ledger.reap import UNKNOWN_MACHINE, park_unknown
from penstock.model.clock import VirtualClock
from penstock.model.errors import IllegalMove, UnknownMachine
from penstock.model.outcome import Outcome
from penstock.model.unit import Ref, replace
from tests.support.machines import FEED, INVOICE, InvoiceState, feed, invoice, partition
from tests.support.world import after, ids


def alerts(world) -> list[tuple[Any, ...]]:
    return world.rows("SELECT event_type, severity, machine, unit_id FROM event_log ORDER BY event_key")


def die(world) -> None:
    """Let every lease run out."""
    world.time.advance(31)


def test_an_expired_lease_frees_the_units(world):
    (ref,) = world.born(invoice("1"))
    dead = world.worker()
    (unit,) = dead.claim({"invoice": 1})
    die(world)
    assert world.worker().reap() == 1
    freed = world.unit(ref)
    assert (freed.claimed_by, freed.doubts) == (None, 1)
    assert freed.version > unit.version
    assert (freed.parked_at, freed.due_at, freed.status) == (None, unit.due_at, InvoiceState.SENDING)
    assert ids(world.worker().take({"invoice": 1}, levels=Levels(1, 1)).units) == [ref.unit_id]


def test_a_lease_that_holds_is_left_alone(world):
    (ref,) = world.born(invoice("1"))
    alive = world.worker()
    (unit,) = alive.claim({"invoice": 1})
    world.time.advance(20)
    assert alive.renew() is not None
    world.time.advance(20)
    other = world.worker()
    assert other.reap() == 0
    assert world.unit(ref) == unit
    world.time.advance(10)
    assert other.reap() == 0, "a lease ends after its last moment, not in it"
    world.time.advance(0.001)
    assert other.reap() == 1


def test_reaping_twice_is_harmless(world):
    (ref,) = world.born(invoice("1"))
    world.worker().claim({"invoice": 1})
    die(world)
    other = world.worker()
    assert [other.reap(), other.reap(), world.worker().reap()] == [1, 0, 0]
    assert world.unit(ref).doubts == 1


def test_a_reaped_worker_is_told_and_takes_nothing(world):
    (ref,) = world.born(invoice("1"))
    dead = world.worker()
    (unit,) = dead.claim({"invoice": 1})
    die(world)
    world.worker().reap()
    assert dead.renew() is None
    assert dead.claim({"invoice": 1}) == []
    lost = Outcome(unit, replace(unit, status=InvoiceState.FAILED), "too late")
    assert world.commit(dead, lost) == [Lost()]
    dead.release([(unit, True)])
    assert world.unit(ref).doubts == 1
    assert world.unit(ref).status is InvoiceState.SENDING


def test_units_of_machines_unknown_here_are_reaped_too(world):
    (ref,) = world.born(invoice("1"))
    world.worker().claim({"invoice": 1})
    die(world)
    narrow = world.another([FEED])
    assert world.worker(ledger=narrow).reap() == 1
    assert world.unit(ref).claimed_by is None


def test_everything_a_dead_worker_held_is_freed_at_once(world):
    world.born(*(invoice(str(i)) for i in range(40)), feed("a"), feed("b"))
    world.worker().claim({"invoice": 25, "feed": 1})
    world.worker().claim({"invoice": 15, "feed": 1})
    die(world)
    assert world.worker().reap() == 42
    assert world.one("SELECT count(*) FROM invoice WHERE claimed_by IS NOT NULL") == 0


def test_reapers_at_once_count_each_death_once(world):
    world.born(*(invoice(str(i)) for i in range(50)))
    world.worker().claim({"invoice": 50})
    die(world)
    reapers = [world.worker("feed", ledger=world.another()) for _ in range(4)]
    freed = []
    threads = [threading.Thread(target=lambda r=r: freed.append(r.reap())) for r in reapers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(freed) == 50
    assert world.rows("SELECT DISTINCT doubts, suspicion, crashes FROM invoice") == [(1, 1, 0)]


def test_a_reboot_expires_every_lease_on_sqlite(world):
    if not world.sqlite:
        pytest.skip("PostgreSQL measures leases by its own clock")
    (ref,) = world.born(invoice("1"))
    world.worker().claim({"invoice": 1})
    rebooted = world.worker(ledger=world.another(clock=VirtualClock(after(1), boot_id="the next boot")))
    assert rebooted.idle().lease == 0
    assert rebooted.reap() == 1
    freed = world.unit(ref)
    assert (freed.claimed_by, freed.doubts, freed.suspicion) == (None, 1, 0), "no unit restarts a machine"


def test_registering_again_after_a_lost_reply_is_one_worker(world):
    session = world.ledger.incarnation()
    session.register()
    session.register()
    assert world.rows("SELECT id, reaped_at FROM worker") == [(session.identity.id, None)]


def test_a_wake_brings_the_schedule_forward_and_nothing_else(world):
    later, never, overdue = world.born(
        invoice("1", due_at=after(90)), invoice("2", due_at=None), invoice("3", due_at=after(1))
    )
    before = [world.unit(r) for r in (later, never, overdue)]
    world.time.advance(10)
    assert world.ledger.nudge([later, never, overdue, Ref("invoice", "acme/none")]) == 3
    due = [after(10), after(10), after(1)]
    for ref, was, at in zip((later, never, overdue), before, due, strict=True):
        assert world.unit(ref) == replace(was, due_at=at, wakes=was.wakes + 1)
        assert len(world.history(ref)) == 1


def test_a_wake_of_several_machines_and_of_nothing(world):
    refs = world.born(invoice("1", due_at=None), feed("news", due_at=None))
    assert world.ledger.nudge(refs) == 2
    assert [world.unit(r).due_at for r in refs] == [after(0), after(0)]
    assert world.ledger.nudge([]) == 0


def test_only_driven_machines_can_be_woken(world):
    (ref,) = world.born(partition())
    with pytest.raises(IllegalMove, match="not driven"):
        world.ledger.nudge([ref])
    with pytest.raises(UnknownMachine, match="invoce"):
        world.ledger.nudge([Ref("invoce", "acme/1")])


@pytest.mark.parametrize("next_due", [None, after(500)], ids=["never", "later"])
def test_a_wake_of_a_claimed_unit_survives_its_commit(world, next_due):
    (ref,) = world.born(invoice("1"))
    worker = world.worker()
    (unit,) = worker.claim({"invoice": 1})
    world.time.advance(5)
    world.ledger.nudge([ref])
    assert world.unit(ref).claimed_by == worker.identity.id
    assert world.unit(ref).version == unit.version
    done = Outcome(unit, replace(unit, status=InvoiceState.QUEUED, due_at=next_due), "waits")
    assert world.commit(worker, done) == [Won()]
    assert world.unit(ref).due_at == after(0), "the earlier of the schedule and the wake-up stands"
    assert ids(worker.claim({"invoice": 1})) == [ref.unit_id]


def test_a_wake_does_not_delay_what_the_step_wants_sooner(world):
    (ref,) = world.born(feed("news", due_at=after(0)))
    world.time.advance(10)
    worker = world.worker()
    (unit,) = worker.claim({"feed": 1})
    world.sql("UPDATE feeds SET next_refresh_at = NULL, wakes = wakes + 1")
    world.time.advance(5)
    world.ledger.nudge([ref])
    world.commit(worker, Outcome(unit, replace(unit, due_at=after(12)), "sooner"))
    assert world.unit(ref).due_at == after(12)


def test_a_wake_before_the_claim_is_served_by_it(world):
    (ref,) = world.born(feed("news", due_at=None))
    world.ledger.nudge([ref])
    worker = world.worker()
    (unit,) = worker.claim({"feed": 1})
    world.commit(worker, Outcome(unit, replace(unit, due_at=None), "nothing more"))
    assert world.unit(ref).due_at is None


def test_a_wake_does_not_bring_an_ended_unit_back(world):
    (ref,) = world.born(invoice("1"))
    worker = world.worker()
    (unit,) = worker.claim({"invoice": 1})
    world.ledger.nudge([ref])
    world.commit(worker, Outcome(unit, replace(unit, status=InvoiceState.SENT, remote_id="r1"), "accepted"))
    assert world.unit(ref).due_at is None
    assert world.ledger.nudge([ref]) == 0
    assert world.unit(ref).due_at is None


def test_a_wake_does_not_unpark(world):
    (ref,) = world.born(invoice("1", due_at=None))
    world.sql("UPDATE invoice SET parked_at = changed_at, parked_reason = 'a person must look'")
    world.ledger.nudge([ref])
    unit = world.unit(ref)
    assert (unit.due_at, unit.parked_reason) == (after(0), "a person must look")
    assert world.worker().claim({"invoice": 1}) == []


def test_units_of_a_machine_nobody_serves_are_parked_with_one_alert(world):
    unknown, later, known = world.born(invoice("1"), invoice("2", due_at=after(60)), feed("news"))
    worker = world.worker("feed")
    version = world.unit(unknown).version
    assert worker.park_unknown() == 1
    parked = world.unit(unknown)
    assert (parked.parked_reason, parked.parked_at) == (UNKNOWN_MACHINE, after(0))
    assert parked.version == version + 1
    assert world.unit(later).parked_at is None
    assert world.unit(known).parked_at is None
    world.time.advance(60)
    worker.renew()
    assert worker.park_unknown() == 1
    assert alerts(world) == [("machine.unknown", "critical", "invoice", None)]


def test_nothing_is_parked_while_a_live_worker_serves_it(world):
    (ref,) = world.born(invoice("1"))
    narrow, wide = world.worker("feed"), world.worker("invoice")
    assert narrow.park_unknown() == 0
    wide.retire()
    assert narrow.park_unknown() == 1
    assert world.unit(ref).parked_reason == UNKNOWN_MACHINE


def test_a_claimed_unit_of_a_dead_machine_is_reaped_before_it_is_parked(world):
    (ref,) = world.born(invoice("1"))
    world.worker("invoice").claim({"invoice": 1})
    die(world)
    worker = world.worker("feed")
    assert worker.park_unknown() == 0
    worker.reap()
    assert worker.park_unknown() == 1
    assert world.unit(ref).parked_reason == UNKNOWN_MACHINE


def test_a_worker_that_knows_them_unparks_exactly_those(world):
    unknown, by_hand, other = world.born(invoice("1"), invoice("2"), feed("news"))
    world.sql("UPDATE invoice SET parked_at = changed_at, parked_reason = 'by hand' WHERE number = '2'")
    world.worker("batch_run").park_unknown()
    assert world.unit(unknown).parked_at is not None
    assert world.unit(other).parked_at is not None
    version = world.unit(unknown).version
    knows = world.worker("invoice", ledger=world.another([INVOICE]))
    assert knows.unpark_known() == 1
    assert knows.unpark_known() == 0
    assert (world.unit(unknown).parked_at, world.unit(unknown).parked_reason) == (None, None)
    assert world.unit(unknown).version == version + 1
    assert world.unit(by_hand).parked_reason == "by hand"
    assert world.unit(other).parked_reason == UNKNOWN_MACHINE
    assert ids(knows.claim({"invoice": 9})) == [unknown.unit_id]


class PausingCursor:
    """A transaction's cursor that lets something happen after its first statement."""

    def __init__(self, cursor, happen) -> None:
        self._cursor = cursor
        self._happen = happen

    def rows(self, sql, **parameters):
        found = self._cursor.rows(sql, **parameters)
        happen, self._happen = self._happen, lambda: None
        happen()
        return found

    def gather(self, sql, **parameters):
        return self._cursor.gather(sql, **parameters)

    def run(self, sql, **parameters):
        return self._cursor.run(sql, **parameters)

    def fill(self, table, columns, lines, **alike):
        self._cursor.fill(table, columns, lines, **alike)


def test_a_worker_that_registers_while_units_are_being_parked_still_gets_them(world):
    (ref,) = world.born(invoice("1"))
    world.worker("feed")
    other = world.another()
    coming = threading.Thread(target=lambda: world.worker("invoice", ledger=other).unpark_known())

    def register_meanwhile():
        coming.start()
        coming.join(0.5)  # it may have to wait for the parking to end

    database = world.ledger.database
    database.write(lambda c: park_unknown(database, PausingCursor(c, register_meanwhile)))
    coming.join()
    assert world.unit(ref).parked_at is None

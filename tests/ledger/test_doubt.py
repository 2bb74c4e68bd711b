"""A ledger that knows less than happened: its units are put in doubt before anybody works on it again."""

from __future__ import annotations

import shutil
from contextlib import closing
from datetime import timedelta

import pytest

from penstock.ledger.care import doubt
from penstock.ledger.care.backup import backup
from penstock.ledger.care.doctor import examine
from penstock.ledger.care.doubt import Doubter, restored
from penstock.ledger.commit import Lost, Won
from penstock.model.clock import Rng
from penstock.model.errors import LedgerMismatch
from penstock.model.outcome import Outcome
from penstock.model.unit import replace
from tests.support.machines import InvoiceState, feed, invoice
from tests.support.world import World, after

DOUBTS = "SELECT number, doubts FROM invoice ORDER BY number"


def put(world, **options) -> int:
    return Doubter(world.ledger.database, **options).doubt("operator:ana")


def sent(world, session, unit) -> None:
    done = Outcome(unit, replace(unit, status=InvoiceState.SENT, remote_id="r"), "accepted")
    assert world.commit(session, done) == [Won()]


def test_everything_that_has_not_ended_is_put_in_doubt(world):
    world.born(invoice("1"), invoice("2", due_at=None), invoice("3", due_at=after(900)), feed("news"))
    worker = world.worker()
    (one,) = worker.claim({"invoice": 1})
    sent(world, worker, one)
    counts = {found.machine: found.units for found in Doubter(world.ledger.database).counts()}
    assert (counts["invoice"], counts["feed"]) == (2, 1)
    assert put(world) == 3
    assert world.rows(DOUBTS) == [("1", 0), ("2", 1), ("3", 1)]
    events = world.rows("SELECT event_type, severity FROM event_log")
    assert events == [("ledger.doubted", "info")]


def test_with_an_instant_only_those_that_may_have_been_stepped_since(world):
    world.born(
        invoice("due"),
        invoice("held", gate_id="b"),
        invoice("later", due_at=after(900)),
        invoice("unscheduled", due_at=None),
        invoice("put off", due_at=after(0)),
    )
    world.time.advance(100)
    since = world.time.now()
    world.time.advance(100)
    worker = world.worker()
    for unit in worker.claim({"invoice": 9}):
        if unit.number == "put off":
            world.commit(worker, Outcome(unit, replace(unit, due_at=after(5_000)), "tomorrow"))
        elif unit.number == "due":
            worker.release([(unit, False)])
    assert put(world, since=since) == 4
    assert {number for number, doubts in world.rows(DOUBTS) if doubts} == {"due", "held", "unscheduled", "put off"}
    assert put(world, since=since + timedelta(days=1)) == 3, "what was put off is not due and did not change since"


def test_a_unit_that_is_held_is_taken_from_its_worker(world):
    (ref,) = world.born(invoice("1"))
    worker = world.worker()
    (unit,) = worker.claim({"invoice": 1})
    put(world)
    late = Outcome(unit, replace(unit, status=InvoiceState.SENT, remote_id="r"), "too late")
    assert world.commit(worker, late) == [Lost()]
    assert (world.unit(ref).claimed_by, world.unit(ref).doubts) == (None, 1)


def test_many_are_put_in_doubt_some_at_a_time(world, monkeypatch):
    monkeypatch.setattr(doubt, "AT_ONCE", 7)
    world.born(*(invoice(f"{n:02}") for n in range(20)))
    went: list[int] = []
    assert Doubter(world.ledger.database).doubt("operator:ana", went.append) == 20
    assert [count for count in went if count and went.count(count)][:3] == [7, 14, 20]
    assert world.rows("SELECT DISTINCT doubts FROM invoice") == [(1,)]


def test_the_history_stays_as_it_was(world):
    (ref,) = world.born(invoice("1"))
    before = world.history(ref)
    put(world)
    assert world.history(ref) == before


def test_nobody_works_on_a_restored_file_before_it_was_put_in_doubt(world, tmp_path):
    if not world.sqlite:
        pytest.skip("a dump of PostgreSQL is recognised by the database that it was restored into")
    world.born(invoice("1"))
    world.worker().retire()
    copy = backup(world.url, tmp_path / "copy.db", clock=world.time, rng=Rng(1))
    world.worker().retire()
    place = tmp_path / "restored.db"
    shutil.copy(copy.path, place)
    with closing(World(f"sqlite:///{place}", world.clock)) as other:
        with pytest.raises(LedgerMismatch, match="run 'penstock db doubt'"):
            other.worker()
        assert other.ledger.read(lambda cursor: restored(other.ledger.database, cursor)) is not None
        assert [f.check for f in examine(other.ledger.database, {}) if "restored from a backup" in f.message] == [
            "place"
        ]
        put(other)
        assert other.ledger.read(lambda cursor: restored(other.ledger.database, cursor)) is None
        other.worker()
        assert other.rows(DOUBTS) == [("1", 1)]


def test_nobody_works_on_a_ledger_in_another_database_before_it_was_put_in_doubt(world):
    if world.sqlite:
        pytest.skip("a file has no name of its own; a backup carries a mark")
    world.born(invoice("1"))
    world.worker().retire()
    world.worker().retire()
    world.sql("UPDATE penstock_meta SET value = '1/1' WHERE name = 'home'")  # as a dump brings it along
    with pytest.raises(LedgerMismatch, match="was restored from a backup"):
        world.worker()
    put(world)
    world.worker()
    assert world.one("SELECT count(*) FROM penstock_meta WHERE name = 'home'") == 1

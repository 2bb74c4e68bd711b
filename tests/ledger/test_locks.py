"""Locks, limits and each other: what stands in a committer's way stops one outcome at the most."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from penstock.ledger.commit import Busy, Refused, Result, Won
from penstock.ledger.incarnation import Incarnation
from penstock.model.errors import LedgerBusy
from penstock.model.machine import Actor
from penstock.model.outcome import Outcome, Write
from penstock.model.unit import Ref, replace
from tests.support.fleet import until
from tests.support.hand import Hand
from tests.support.machines import Invoice, InvoiceState, ItemState, RunState, batch_item, batch_run, invoice
from tests.support.more_machines import label
from tests.support.probe import reached
from tests.support.world import World

ANN: dict[str, Any] = {"actor": Actor.OPERATOR, "who": "ann", "reason": "again"}
POSTGRES = pytest.mark.parametrize("world_url", ["postgres"], indirect=True)


def claim_invoices(world: World, *numbers: str) -> tuple[Incarnation, list[Any]]:
    """A worker that waits for locks for a tenth of a second, and the invoices it holds."""
    world.born(*(invoice(n) for n in numbers))
    worker = world.worker(ledger=reached(world, 100))
    return worker, [*worker.claim({"invoice": len(numbers)})]


def labelled(unit: Invoice, name: str) -> Outcome[Invoice]:
    """The invoice is sent, and a row with that key is written."""
    done = replace(unit, status=InvoiceState.SENT, remote_id="r")
    return Outcome(unit, done, "accepted", writes=[Write(label, [{"name": name}])])


def names(world: World) -> list[str]:
    return [r[0] for r in world.rows("SELECT name FROM label ORDER BY name")]


@POSTGRES
def test_a_row_that_somebody_locks_holds_up_nothing_else(world):
    numbers = [f"{n:02}" for n in range(13)]
    worker, units = claim_invoices(world, *numbers)
    outcomes = [labelled(u, u.number) for u in units]
    with Hand(world.url) as somebody:
        with somebody.together():
            somebody.type("SELECT 1 FROM invoice WHERE number = '07' FOR UPDATE")
            results = world.commit(worker, *outcomes)
            assert [r for i, r in enumerate(results) if i != 7] == [Won()] * 12
            assert isinstance(results[7], Busy)
            assert "locked by somebody" in str(results[7].error)
            assert names(world) == [n for n in numbers if n != "07"]
            assert world.unit(Ref("invoice", "acme/07")) == units[7], "nothing of it was written, and it is still ours"
        assert world.commit(worker, outcomes[7]) == [Won()]
    assert names(world) == numbers


@POSTGRES
def test_several_locked_rows_are_each_found(world):
    worker, units = claim_invoices(world, *"abcdefgh")
    with Hand(world.url) as somebody, somebody.together():
        somebody.type("SELECT 1 FROM invoice WHERE number IN ('a', 'd', 'h') FOR UPDATE")
        results = world.commit(worker, *(labelled(u, u.number) for u in units))
    assert [u.number for u, r in zip(units, results, strict=True) if isinstance(r, Busy)] == ["a", "d", "h"]
    assert names(world) == [*"bcefg"]


@POSTGRES
def test_a_locked_row_is_waited_for_once_however_large_its_batch(world):
    """By halves, a batch of 200 would wait eight times over."""
    numbers = [f"{n:03}" for n in range(200)]
    world.born(*(invoice(n) for n in numbers))
    worker = world.worker(ledger=reached(world, 2_000))
    units = [*worker.claim({"invoice": 200})]
    with Hand(world.url) as somebody, somebody.together():
        somebody.type("SELECT 1 FROM invoice WHERE number = '077' FOR UPDATE")
        began = time.monotonic()
        results = world.commit(worker, *(labelled(u, u.number) for u in units))
        assert time.monotonic() - began < 10
    assert [u.number for u, r in zip(units, results, strict=True) if isinstance(r, Busy)] == ["077"]


@POSTGRES
def test_a_move_of_a_locked_row_says_that_it_is_busy(world):
    (ref,) = world.born(invoice("1"))
    with Hand(world.url) as somebody, somebody.together():
        somebody.type("SELECT 1 FROM invoice FOR UPDATE")
        ledger = reached(world, 100)
        with pytest.raises(LedgerBusy, match="lock timeout"):
            ledger.move(ref, "QUEUED", **ANN, amount_minor=5)
        moved = ledger.move_many("invoice", [ref.unit_id], "QUEUED", **ANN, amount_minor=5)
    assert moved.moved == []
    assert "lock timeout" in moved.skipped[ref]


@POSTGRES
def test_what_is_larger_than_the_server_keeps_is_refused_alone(world):
    """SQLSTATE class 54: not an error of the data, and as hopeless."""
    worker, units = claim_invoices(world, *"abcde")
    long = random.Random(1).randbytes(8_000).hex()  # a key that cannot be compressed into an index
    results = world.commit(worker, *(labelled(u, long if u.number == "c" else u.number) for u in units))
    refused = results.pop(2)
    assert isinstance(refused, Refused)
    assert "index row" in str(refused.error)
    assert results == [Won()] * 4
    assert names(world) == [*"abde"]


@POSTGRES
def test_a_statement_past_its_time_limit_is_found_and_can_be_tried_again(world):
    worker, units = claim_invoices(world, *"abcde")
    world.sql(
        "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE query_canceled USING MESSAGE = 'canceling statement due to statement timeout'; END $$"
    )
    world.sql(
        "CREATE TRIGGER dawdle BEFORE INSERT ON label FOR EACH ROW WHEN (NEW.name = 'c') EXECUTE FUNCTION dawdle()"
    )
    outcomes = [labelled(u, u.number) for u in units]
    results = world.commit(worker, *outcomes)
    assert isinstance(results[2], Busy)
    assert [r for i, r in enumerate(results) if i != 2] == [Won()] * 4
    world.sql("DROP TRIGGER dawdle ON label")
    assert world.commit(worker, outcomes[2]) == [Won()]
    assert names(world) == [*"abcde"]


class Crossing(threading.Thread):
    """A committer that steps one parent while a child of the other ends."""

    def __init__(self, world: World, run: Any, item: Any) -> None:
        super().__init__()
        self.ledger = reached(world, 60_000)
        self.session = world.worker(ledger=self.ledger)
        outcomes: list[Outcome[Any]] = [
            Outcome(run, replace(run, status=RunState.RUNNING), "started"),
            Outcome(item, replace(item, status=ItemState.DONE), "done"),
        ]
        self.entries = [self.ledger.preparer.entry(o, self.session.identity.id) for o in outcomes]
        self.results: list[Result] = []
        self.begun = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        database: Any = self.ledger.database
        database.begun = 0
        try:
            self.results = self.session.commit(self.entries)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error
        self.begun = database.begun


def waiting(somebody: Hand) -> int:
    """How many transactions of this database wait for a lock; SQLite does not tell."""
    if somebody.dialect == "sqlite":
        return 2
    somebody.type("SELECT pg_stat_clear_snapshot()")  # within a transaction the first answer is kept
    ((found,),) = somebody.type(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    return int(found)


def test_committers_that_step_each_others_parents_never_deadlock(real_world: World):
    """Both are let go at the same moment, each about to lock what the other is about to count on."""
    world = real_world
    world.born(*(batch_run(name, items_expected=1) for name in ("one", "two")))
    world.born(*(batch_item(1, run_id=name) for name in ("one", "two")))
    units = {u.unit_id: u for u in world.worker().claim({"batch_run": 2, "batch_item": 2})}
    threads = [Crossing(world, units["one"], units["two/1"]), Crossing(world, units["two"], units["one/1"])]
    with Hand(world.url) as somebody:
        with somebody.together():
            somebody.type("UPDATE batch_run SET bytes_read = 0")
            for thread in threads:
                thread.start()
            until(lambda: waiting(somebody) == 2, "both wait for a lock")
        for thread in threads:
            thread.join()
    assert [t.error for t in threads] == [None, None]
    assert [t.results for t in threads] == [[Won(), Won()]] * 2
    assert [t.begun for t in threads] == [1, 1], "a deadlock made its victim begin again"
    assert world.rows("SELECT status, items_done FROM batch_run") == [("running", 1)] * 2

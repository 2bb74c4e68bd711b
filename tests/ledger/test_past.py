"""Statements over the tables of a moment that is over, and columns that are given at a birth and never change."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock.ledger.care.prune import Ages, Pruner
from penstock.ledger.parking import park
from penstock.ledger.past import DUE_KNOWN, UNTOUCHED, Past, since
from penstock.ledger.schema.definitions import facts, unfit
from penstock.model.clock import Rng
from penstock.model.errors import BrokenFlow, LedgerRefused, MachineError, UsageError
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.outcome import Outcome
from penstock.model.state import State, done, rest, work
from penstock.model.unit import Ref, Unit, replace
from tests.support.machines import INVOICE, BatchItem, BatchRun, ItemState, invoice
from tests.support.world import World, after


class L(State):
    ASKED = rest("asked", "nobody has it yet")
    LENT = work("lent", "somebody has it")
    BACK = done("back", "it is on its shelf")


class Loan(Unit):
    key = ("shelf", "number")
    status: L = L.ASKED
    shelf: str
    number: int
    title: str
    reader: str | None = None
    fee: int = 0
    note: str | None = None


def loan_machine(**changes: Any) -> Machine:
    made: dict[str, Any] = {
        "births": {L.ASKED},
        "edges": [
            Edge(L.ASKED, L.LENT, "lend", {Actor.API}),
            Edge(L.LENT, L.BACK, "take_back", {Actor.API}),
            Edge(L.BACK, L.LENT, "lend_again", {Actor.API}),
        ],
        "tracked": ("reader", "fee"),
        "fixed": ("title",),
        "table": "loans",
        "due": "look_at",
    }
    return Machine("loan", Loan, **(made | changes))


LOAN = loan_machine()


@pytest.fixture(params=["sqlite", "postgres"])
def library(request, tmp_path):
    """Two loans of a shelf: one is lent at 10 s and is back at 20 s, the other is asked for at 15 s and left so."""
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'penstock.db'}" if sqlite else request.getfixturevalue("postgres_url")
    world = World(url, machines=[LOAN])
    (first,) = world.born(Loan(shelf="a", number=1, title="Emma", note="torn", due_at=after(99)))
    world.time.advance(10)
    change(world, first, L.LENT, "for a week", reader="ana", fee=3, note="worse")
    world.time.advance(5)
    world.born(Loan(shelf="a", number=2, title="Ivanhoe", note="new", due_at=after(77)))
    world.time.advance(5)
    change(world, first, L.BACK, "read", reader=None, fee=4, note="gone")
    yield world
    world.close()


def change(world: World, ref: Ref, status: L, reason: str, **changes: Any) -> None:
    world.ledger.move(ref, status, actor=Actor.API, who="desk", reason=reason, **changes)


def then(world: World, moment: datetime, sql: str, tables: dict[str, str] | None = None, **given: Any) -> list[Any]:
    past = Past(world.ledger.database, [LOAN], tables or {}, moment)
    return past.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, **given)])


WHOLE = "SELECT unit_id, status, reader, fee, title, change_reason, note FROM loans ORDER BY number"


def test_a_unit_is_what_its_history_tells_and_what_lasts(library):
    assert then(library, after(-1), WHOLE) == []
    assert then(library, after(9), WHOLE) == [("a/1", "asked", None, 0, "Emma", "born", None)]
    assert then(library, after(10), WHOLE) == [("a/1", "lent", "ana", 3, "Emma", "for a week", None)]
    assert then(library, after(16), WHOLE) == [
        ("a/1", "lent", "ana", 3, "Emma", "for a week", None),
        ("a/2", "asked", None, 0, "Ivanhoe", "born", "new"),
    ]
    assert then(library, after(20), WHOLE)[0] == ("a/1", "back", None, 4, "Emma", "read", "gone")


def test_what_changed_since_is_not_known_and_what_did_not_is(library):
    sql = "SELECT look_at IS NULL, note, claimed_by, attempts FROM loans WHERE number = :number"
    assert then(library, after(16), sql, number=1) == [(True, None, None, None)]
    assert then(library, after(16), sql, number=2) == [(False, "new", None, None)]


def test_a_unit_is_parked_from_its_moment_on(library):
    database, unit = library.ledger.database, library.unit(Ref("loan", "a/2"))
    database.write(lambda cursor: park(database, cursor, LOAN, (unit.unit_id, unit.version), "look"))
    sql = "SELECT parked_at IS NOT NULL, parked_reason FROM loans WHERE number = 2"
    assert [bool(flag) for flag, _ in then(library, after(19), sql)] == [False]
    assert then(library, after(20), sql)[0][1] == "look"


def test_every_statement_is_asked_over_the_tables_of_then(library):
    moment = after(12)
    assert then(library, moment, "SELECT count(*) FROM transition_log") == [(2,)]
    counts = "WITH n AS (SELECT status, count(*) AS n FROM loans GROUP BY status) SELECT status, n FROM n"
    assert then(library, moment, counts) == [("lent", 1)]
    assert then(library, moment, counts.replace("WITH", "WITH RECURSIVE", 1)) == [("lent", 1)]
    joined = (
        "SELECT l.to_status FROM loans JOIN transition_log l USING (unit_id) WHERE loans.shelf = :shelf ORDER BY l.seq"
    )
    assert then(library, moment, joined, shelf="a") == [("asked",), ("lent",)]
    machine = [("loan",)]
    assert then(library, moment, "SELECT name FROM machine_definition") == machine


def test_a_table_that_is_written_once_has_the_rows_of_then(library):
    given = {"transition_log": "SELECT machine, at, to_status FROM {table} WHERE at < {at}"}
    sql = "SELECT count(*) FROM transition_log"
    assert [then(library, after(10), sql, tables) for tables in (None, given)] == [[(2,)], [(1,)]]
    assert since("made_at") == "SELECT * FROM {table} WHERE made_at <= {at}"


def test_a_column_that_other_rows_tell_is_the_units_own_where_nobody_has_touched_it(library):
    notes, told = "SELECT number, note FROM loans ORDER BY number", {"loans.note": "'for ' || {fee}"}
    assert then(library, after(16), notes, told) == [(1, "for 3"), (2, "new")]


def test_a_column_that_is_tracked_since_is_told_by_an_untouched_unit_to_others_too(ledger_url):
    world = World(ledger_url, machines=[loan_machine(tracked=(), counters=("fee",))])
    world.born(Loan(shelf="a", number=1, title="Emma", reader="bo"))
    known = loan_machine(tracked=("reader",), counters=("fee",))
    past = Past(world.ledger.database, [known], {"loans.fee": "length({reader})"}, after(0))
    assert past.read(lambda cursor: [tuple(row) for row in cursor.rows("SELECT fee FROM loans")]) == [(2,)]
    world.close()


def test_the_past_is_read_and_never_written(library):
    past: Any = Past(library.ledger.database, [LOAN], {}, after(10))
    for refused in (past.write, past.alter, past.lease):
        with pytest.raises(UsageError, match="nothing can be done in the past"):
            refused(lambda cursor: cursor.run("DELETE FROM loans"))


def test_nobody_changes_what_is_given_at_the_birth(library):
    refusal = r"the key of a unit \(shelf, number\) cannot be changed, nor what is given at its birth \(title\)"
    with pytest.raises(LedgerRefused, match=refusal):
        library.sql("UPDATE loans SET title = 'Emma II' WHERE number = 1")
    library.sql("UPDATE loans SET title = 'Emma', note = 'as it was' WHERE number = 1")
    ref = Ref("loan", "a/1")
    with pytest.raises(BrokenFlow, match="a step cannot change title"):
        change(library, ref, L.LENT, "again", title="Emma II")
    assert replace(library.unit(ref), title="Emma").title == "Emma"


def test_an_older_program_may_not_change_what_a_newer_one_has_fixed():
    fixed, free = facts(LOAN), facts(loan_machine(fixed=()))
    assert (unfit(fixed, free), unfit(free, fixed)) == (["fixed columns"], [])


@pytest.mark.parametrize(
    ("fixed", "problem"),
    [
        (("colour",), "fixed column 'colour' is not a field"),
        (("due_at",), "fixed column 'due_at' is not a field of the unit's own"),
        (("shelf",), "column 'shelf' cannot be fixed"),
        (("reader",), "column 'reader' cannot be fixed"),
        (("status",), "column 'status' cannot be fixed"),
    ],
)
def test_a_declaration_that_cannot_be_is_refused(fixed, problem):
    with pytest.raises(MachineError, match=problem):
        loan_machine(fixed=fixed)


def test_when_a_unit_was_due_is_not_known_where_something_moved_it_without_a_word(library):
    look = f"SELECT look_at IS NULL, {DUE_KNOWN}, {UNTOUCHED} FROM loans WHERE number = 2"
    assert then(library, after(16), look) == [(False, 1, 1)]
    library.ledger.nudge([Ref("loan", "a/2")])
    assert library.unit(Ref("loan", "a/2")).due_at == after(20)
    assert then(library, after(16), look) == [(True, 0, 1)]
    assert then(library, after(20), look) == [(False, 1, 1)], "a wake-up that comes later finds it due"
    assert then(library, after(19), look) == [(True, 0, 1)]


def test_what_is_said_last_of_a_unit_is_known_while_nobody_touches_it(library):
    ref = Ref("loan", "a/2")
    library.time.advance(5)
    library.ledger.move(ref, L.ASKED, actor=Actor.WORKER, who="w", reason="looked at", note="again")
    said = "SELECT change_reason, changed_by, note FROM loans WHERE number = 2"
    assert then(library, after(25), said) == [("looked at", "worker:w", "again")], "the history does not keep it"
    assert then(library, after(16), said) == [("born", "api:test", None)]


def test_counters_are_known_where_no_child_has_counted_since(world: World):
    (run,) = world.born(BatchRun(run_id="r", items_expected=2))
    world.born(*(BatchItem(run_id="r", position=n, due_at=after(0)) for n in (1, 2)))
    counted = "SELECT items_done, items_expected FROM batch_run"

    def told(seconds: float) -> Any:
        past = Past(world.ledger.database, world.machines, {}, after(seconds))
        return past.read(lambda cursor: [tuple(row) for row in cursor.rows(counted)])

    assert told(0) == [(0, 2)], "no child has counted yet"
    world.time.advance(10)
    worker = world.worker()
    item, *_ = worker.claim({"batch_item": 1})
    world.commit(worker, Outcome(item, replace(item, status=ItemState.DONE, due_at=None), "done"))
    assert world.unit(run).items_done == 1
    assert [told(seconds) for seconds in (5, 10)] == [[(None, 2)], [(1, 2)]]


def test_one_that_was_pruned_and_born_anew_is_another(ledger_url):
    edges = [Edge(L.ASKED, L.LENT, "lend", {Actor.API}), Edge(L.LENT, L.BACK, "take_back", {Actor.API})]
    world = World(ledger_url, machines=[loan_machine(edges=edges, terminal={L.BACK})])
    (ref,) = world.born(Loan(shelf="a", number=1, title="Emma"))
    world.time.advance(10)
    change(world, ref, L.LENT, "for a week", reader="ana")
    change(world, ref, L.BACK, "read", due_at=None)
    titles = "SELECT title FROM loans"
    assert then(world, after(5), titles) == [("Emma",)]
    world.time.advance(60 * 86_400)
    ages = Ages({"units": timedelta(days=30), "transition_log": timedelta(days=3_000)})
    Pruner(world.ledger.database, ages, who="operator:jo", rng=Rng()).prune()
    world.born(Loan(shelf="a", number=1, title="Persuasion"))
    assert then(world, after(5), titles) == []
    assert then(world, world.time.now(), titles) == [("Persuasion",)]
    world.close()


def test_a_column_that_is_tracked_since_says_what_an_untouched_unit_says(ledger_url):
    world = World(ledger_url, machines=[loan_machine(tracked=())])
    first, _ = world.born(*(Loan(shelf="a", number=number, title="Emma", fee=3) for number in (1, 2)))
    world.time.advance(10)
    change(world, first, L.LENT, "for a week", fee=4)
    fees = "SELECT number, fee FROM loans ORDER BY number"
    assert [then(world, after(at), fees) for at in (5, 10)] == [[(1, None), (2, 3)], [(1, 4), (2, 3)]]
    world.close()


def test_a_baseline_is_nobodys_word(library):
    library.time.advance(60 * 86_400)
    ages = Ages({"units": timedelta(days=30), "transition_log": timedelta(days=30)})
    Pruner(library.ledger.database, ages, who="operator:jo", rng=Rng()).prune()
    change(library, Ref("loan", "a/1"), L.LENT, "once more", reader="bo")
    said = "SELECT number, status, changed_by FROM loans ORDER BY number"
    assert then(library, after(86_400), said) == [(1, "back", None), (2, "asked", "api:test")]


def parked_then(world: World, seconds: float) -> list[Any]:
    past = Past(world.ledger.database, world.machines, {}, after(seconds))
    sql = f"SELECT parked_at IS NOT NULL, {UNTOUCHED}, changed_by, change_reason FROM invoice"
    return past.read(lambda cursor: [tuple(row) for row in cursor.rows(sql)])


def test_one_that_a_worker_took_up_again_is_not_one_that_never_was_parked(world):
    world.born(invoice("1"))
    world.worker("feed").park_unknown()
    assert parked_then(world, 0) == [(True, 1, "api:test", "born")]
    world.time.advance(10)
    knows = world.worker("invoice", ledger=world.another([INVOICE]))
    assert knows.unpark_known() == 1
    assert parked_then(world, 5) == [(False, 0, "api:test", "born")], "nobody knows whether it was"
    who = f"worker:{knows.identity.id}"
    assert parked_then(world, 10) == [(False, 1, who, "taken up again: a worker knows its machine")]
    assert world.rows("SELECT count(*) FROM transition_log") == [(1,)]

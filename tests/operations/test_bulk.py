"""Bulk actions: what was seen is moved, once each, whoever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import psycopg
import pytest

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.ledger.units import get_many
from penstock.model.clock import VirtualClock
from penstock.model.errors import PlanChanged, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from penstock.model.unit import NOW, Ref
from penstock.operations import follow
from penstock.operations.bulk import actions
from penstock.operations.bulk.actions import drive, sweep_items
from penstock.operations.bulk.flow import BulkActions, halved
from penstock.operations.bulk.machine import B, BulkAction, bulk_action
from penstock.operations.bulk.tables import bulk_item
from penstock.operations.carry import carry_out, check_digest, make_plan
from penstock.operations.declare import Ask, Operation, operation
from penstock.operations.fields import Parameters
from penstock.operations.plan import Each, Moves
from penstock.operations.reader import Reader
from penstock.testing import work_until_idle
from tests.support.machines import INVOICE, Invoice

MACHINES = (INVOICE, bulk_action)
MANY = 3_000


class Wanted(Parameters, frozen=True):
    tenant: str = "acme"


@operation("revalue", "Give invoices another amount.")
def revalue(ask: Ask[None], wanted: Wanted) -> Each:
    moves = Moves(INVOICE)
    sql = "SELECT unit_id FROM invoice WHERE tenant = :tenant AND status = 'QUEUED' ORDER BY unit_id"
    ids = [row[0] for row in ask.reader.read(lambda cursor: cursor.rows(sql, tenant=wanted.tenant))]
    for unit in get_many(ask.reader.database, INVOICE, ids):
        if unit.amount_minor == 13:
            moves.skip(unit.unit_id, "13 stays 13")
        else:
            moves.add(unit, amount_minor=unit.amount_minor % 2 + 100, due_at=NOW)
    return moves.plan(f"give {len(moves):,} invoices another amount")


def ask_of(ledger: Ledger, reason: str = "a test") -> Ask[None]:
    return Ask(Reader(ledger.database, MACHINES), None, ledger.clock.now(), "ann", reason)


def planned(ledger: Ledger, what: Operation[Any] = revalue, reason: str = "a test") -> Any:
    return make_plan(what, ask_of(ledger, reason), Wanted(), owner="test", version="v1")


def invoices(count: int) -> Iterator[Invoice]:
    # Not due until long after the test: nobody but the test moves them.
    due = datetime(2099, 1, 1, tzinfo=UTC)
    return (Invoice(tenant="acme", number=f"{n:06}", amount_minor=n % 20, due_at=due) for n in range(count))


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url, MACHINES, create=True, data_tables=[bulk_item]) as opened:
        yield opened


def born(ledger: Ledger, count: int) -> None:
    assert ledger.birth(invoices(count), actor=Actor.API, who="test") == count


def action_of(ledger: Ledger, ref: Ref) -> BulkAction:
    found = ledger.get(ref)
    assert isinstance(found, BulkAction)
    return found


def results(ledger: Ledger) -> dict[str | None, int]:
    rows = ledger.read(lambda cursor: cursor.rows("SELECT result, count(*) FROM bulk_item GROUP BY result"))
    return {row[0]: row[1] for row in rows}


def test_many_moves_become_an_action_that_anybody_can_finish(ledger: Ledger) -> None:
    born(ledger, MANY)
    plan = planned(ledger)
    assert (plan.preview.bulk, plan.preview.count) == (True, 2_850)
    assert plan.preview.skipped == {"13 stays 13": 150}
    done = carry_out(ledger, ask_of(ledger), plan)
    ref = Ref.parse(str(done.action))
    seen = []
    action = drive(ledger, ref, lambda position, total: seen.append((position, total)))
    assert (action.status, action.moved, action.skipped, action.position) == (B.DONE, 2_850, 0, 2_850)
    assert seen[-1] == (2_850, 2_850)
    amounts = ledger.read(
        lambda cursor: cursor.rows("SELECT amount_minor, count(*) FROM invoice GROUP BY 1 ORDER BY 1")
    )
    assert [tuple(row) for row in amounts] == [(13, 150), (100, 1_500), (101, 1_350)]
    sql = (
        "SELECT actor, reason, action_id, count(*) FROM transition_log"
        " WHERE machine = 'invoice' AND from_status IS NOT NULL GROUP BY 1, 2, 3"
    )
    rows = ledger.read(lambda cursor: cursor.rows(sql))
    assert [tuple(row) for row in rows] == [("operator:ann", "a test", action.action_id, 2_850)]


def test_a_unit_that_changed_since_is_skipped_and_says_so(ledger: Ledger) -> None:
    born(ledger, MANY)
    plan = planned(ledger)
    ledger.move(Ref("invoice", "acme/000000"), "QUEUED", actor=Actor.OPERATOR, who="bob", reason="mine", amount_minor=1)
    done = carry_out(ledger, ask_of(ledger), plan)
    action = drive(ledger, Ref.parse(str(done.action)))
    assert (action.moved, action.skipped) == (2_849, 1)
    assert results(ledger) == {"moved": 2_849, "changed since": 1}


def test_a_cancelled_action_moves_no_more(ledger: Ledger) -> None:
    born(ledger, MANY)
    done = carry_out(ledger, ask_of(ledger), planned(ledger))
    ref = Ref.parse(str(done.action))
    ledger.move_by_hand(ref, B.CANCELLED, who="ann", reason="stop")
    action = drive(ledger, ref)
    assert (action.status, action.position) == (B.CANCELLED, 0)
    assert results(ledger) == {None: 2_850}


def test_another_set_than_the_one_that_was_seen_is_refused_whole(ledger: Ledger) -> None:
    born(ledger, 5)
    seen = planned(ledger).preview.digest
    time.sleep(0.01)
    check_digest(planned(ledger), seen)
    ledger.birth([Invoice(tenant="acme", number="new")], actor=Actor.API, who="test")
    with pytest.raises(PlanChanged, match=r"test revalue: what it would change is no longer what was shown"):
        check_digest(planned(ledger), seen)


@pytest.mark.parametrize("reason", ["", "  "])
def test_a_reason_is_wanted(ledger: Ledger, reason: str) -> None:
    with pytest.raises(UsageError, match="test revalue needs a reason"):
        planned(ledger, reason=reason)


def _refuse_one(ledger: Ledger) -> None:
    """A trigger of somebody's that says no to one unit."""
    no = "CREATE TRIGGER no BEFORE UPDATE OF amount_minor ON invoice"
    if ledger.database.dialect == "sqlite":
        sql = [f"{no} WHEN NEW.number = '000777' BEGIN SELECT RAISE(ABORT, 'not this one'); END"]
    else:
        body = "BEGIN RAISE 'not this one' USING ERRCODE = 'check_violation'; END"
        sql = [
            f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$",
            f"{no} FOR EACH ROW WHEN (NEW.number = '000777') EXECUTE FUNCTION no()",
        ]
    for statement in sql:
        ledger.database.write(partial(_run, statement))


def _run(statement: str, cursor: Cursor) -> int:
    return cursor.run(statement)


def test_units_that_the_database_refuses_are_found_and_the_others_go(ledger: Ledger) -> None:
    born(ledger, MANY)
    moves = Moves(INVOICE)
    for unit in ledger.get_many(INVOICE, [f"acme/{n:06}" for n in range(MANY)]):
        moves.add(unit, remote_id="x" * 10, amount_minor=7)
    plan = planned(ledger, operation("all", "All.")(lambda ask, wanted: moves.plan("change all")))
    done = carry_out(ledger, ask_of(ledger), plan)
    _refuse_one(ledger)
    action = drive(ledger, Ref.parse(str(done.action)))
    assert (action.status, action.moved, action.skipped) == (B.DONE, MANY - 1, 1)
    sql = "SELECT unit_id, result FROM bulk_item WHERE result <> 'moved'"
    ((unit_id, result),) = ledger.read(lambda cursor: cursor.rows(sql))
    assert unit_id == "acme/000777"
    assert "refused by the database" in result
    assert "not this one" in result


def test_units_that_somebody_locks_for_a_moment_are_looked_at_again(ledger: Ledger, ledger_url: str) -> None:
    if ledger.database.dialect == "sqlite":
        pytest.skip("SQLite has no row locks")
    born(ledger, MANY)
    ref = Ref.parse(str(carry_out(ledger, ask_of(ledger), planned(ledger)).action))
    with psycopg.connect(ledger_url) as somebody:
        somebody.execute("SELECT 1 FROM invoice WHERE unit_id = 'acme/000001' FOR UPDATE")
        work_until_idle(ledger, [BulkActions()], within=timedelta(milliseconds=200))
        assert action_of(ledger, ref).status is B.RUNNING
    action = drive(ledger, ref)
    assert (action.status, action.moved, action.skipped) == (B.DONE, 2_850, 0)


def test_items_without_an_action_are_swept_after_a_day(ledger: Ledger) -> None:
    born(ledger, MANY)
    kept = Ref.parse(str(carry_out(ledger, ask_of(ledger), planned(ledger)).action))
    now = ledger.clock.now()
    columns = ("action_id", "position", "unit_id", "version", "part", "laid_at")
    for name, age in (("old", 25), ("young", 1)):
        rows = [[name, n, f"acme/{n}", 1, 0, now - timedelta(hours=age)] for n in range(10)]
        ledger.write([Write(bulk_item, rows, columns=columns)])
    sql = "UPDATE bulk_item SET laid_at = '2020-01-01T00:00:00.000Z' WHERE action_id = :action"
    ledger.database.write(lambda cursor: cursor.run(sql, action=kept.unit_id))
    assert sweep_items(ledger) == 10
    left = ledger.read(lambda cursor: cursor.rows("SELECT action_id, count(*) FROM bulk_item GROUP BY 1"))
    assert {row[0]: row[1] for row in left} == {"young": 10, kept.unit_id: 2_850}


DRIVER = """
import sys
from penstock.ledger.ledger import Ledger
from penstock.model.unit import Ref
from penstock.operations import follow
from penstock.operations.bulk import actions
from penstock.operations.bulk.actions import drive, sweep_items
from penstock.operations.bulk.flow import BulkActions, halved
from penstock.operations.bulk.machine import bulk_action
from tests.support.machines import INVOICE
with Ledger.open(sys.argv[1], [INVOICE, bulk_action]) as ledger:
    drive(ledger, Ref.parse(sys.argv[2]))
"""


def _killed(ledger: Ledger, url: str, count: int) -> None:
    born(ledger, count)
    plan = planned(ledger)
    ref = Ref.parse(str(carry_out(ledger, ask_of(ledger), plan).action))
    process = subprocess.Popen([sys.executable, "-c", DRIVER, url, str(ref)])
    try:
        deadline = time.monotonic() + 60
        while action_of(ledger, ref).position == 0 and time.monotonic() < deadline:
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.wait()
    assert action_of(ledger, ref).position > 0
    action = drive(ledger, ref)
    expected = len(plan.plan)
    assert (action.status, action.moved, action.skipped) == (B.DONE, expected, 0)
    sql = (
        "SELECT n, count(*) FROM (SELECT unit_id, count(*) AS n FROM transition_log WHERE machine = 'invoice'"
        " AND action_id = :action GROUP BY unit_id) AS each GROUP BY n"
    )
    rows = ledger.read(lambda cursor: cursor.rows(sql, action=action.action_id))
    assert [tuple(row) for row in rows] == [(1, expected)], "each was moved once"


def test_a_kill_in_the_middle_loses_nothing_and_repeats_nothing(ledger: Ledger, ledger_url: str) -> None:
    _killed(ledger, ledger_url, 50_000)


@pytest.mark.nightly
def test_a_hundred_thousand_survive_a_kill(ledger: Ledger, ledger_url: str) -> None:
    _killed(ledger, ledger_url, 106_000)


def test_an_action_that_is_parked_is_not_waited_for(ledger: Ledger) -> None:
    born(ledger, MANY)
    ref = Ref.parse(str(carry_out(ledger, ask_of(ledger), planned(ledger)).action))
    ledger.park([ref], who="ann", reason="stop")
    assert drive(ledger, ref).parked_reason == "stop"
    assert actions.results(ledger, ref.unit_id) == (0, {})


def test_what_was_moved_before_a_cancel_is_counted(ledger: Ledger) -> None:
    born(ledger, MANY)
    ref = Ref.parse(str(carry_out(ledger, ask_of(ledger), planned(ledger)).action))
    halved(ledger, action_of(ledger, ref), 0, 1_000)
    ledger.move_many(bulk_action.name, [ref.unit_id], B.CANCELLED, actor=Actor.OPERATOR, who="ann", reason="enough")
    assert drive(ledger, ref).status is B.CANCELLED
    assert actions.results(ledger, ref.unit_id) == (1_000, {})


def test_an_action_waits_for_a_worker_that_has_its_machine(ledger: Ledger, ledger_url: str) -> None:
    born(ledger, MANY)
    ref = Ref.parse(str(carry_out(ledger, ask_of(ledger), planned(ledger)).action))
    with Ledger.open(ledger_url, [bulk_action], data_tables=[bulk_item]) as other:
        work_until_idle(other, [BulkActions()], within=timedelta(seconds=1))
    waiting = action_of(ledger, ref)
    assert (waiting.status, waiting.crashes, waiting.parked_at, waiting.position) == (B.RUNNING, 0, None, 0)
    ledger.wake([ref], who="ann", reason="its lifecycle is back")
    assert drive(ledger, ref).moved == 2_850


def test_a_command_that_drives_its_action_parks_no_units_of_others(ledger_url: str) -> None:
    clock = VirtualClock(datetime(2026, 11, 15, tzinfo=UTC))
    now = clock.now()
    texts: dict[str, Any] = dict.fromkeys(("operation", "says", "target", "digest", "requested_by", "reason"), "x")
    later = BulkAction(action_id="1", requested_at=now, parts=[], total=0, due_at=now + timedelta(minutes=2), **texts)
    with Ledger.open(ledger_url, MACHINES, create=True, data_tables=[bulk_item], clock=clock) as ledger:
        ledger.birth([Invoice(tenant="acme", number="1", amount_minor=1, due_at=now)], actor=Actor.API, who="test")
        ledger.birth([later], actor=Actor.OPERATOR, who="ann")
        work_until_idle(ledger, [BulkActions()], settings=follow.ALONE)
        assert ledger.get(Ref(bulk_action.name, "1")).status is B.DONE
        invoice = ledger.get(Ref("invoice", "acme/1"))
        assert isinstance(invoice, Invoice)
        assert invoice.parked_at is None

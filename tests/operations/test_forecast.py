"""`penstock forecast`: what is due, born and put off, now and as it was known then; and the alert that comes of it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

import pytest

from penstock.app.app import App
from penstock.app.lifecycle import Job
from penstock.ledger.roll_up import roll_up
from penstock.model.errors import UnknownMachine, UsageError
from penstock.model.forecast import Expected
from penstock.model.limits import Limit
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations.alerts import book
from penstock.operations.alerts.machine import A
from penstock.operations.alerts.watch import watch
from penstock.operations.outlook import budgeted
from penstock.operations.reader import Reader
from penstock.settings.kernel import GateSettings, KernelSettings
from penstock.worker.schedule import keep_schedules
from penstock.worker.schedule_unit import Schedule
from tests.operations.conftest import NOW, ORDER, ORDERS, Desk, O, Order

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SLOW = KernelSettings(gates={"shop": GateSettings(limits=(Limit("calls", rate=1 / 3_600, burst=1),))})
INSIDE = KernelSettings(gates={"shop": GateSettings(max_in_flight=1)})
"""How many may be inside at once is no budget."""


async def _nothing(*_):
    raise AssertionError


BORN = Job("bear", "Brings orders forth.", _nothing)


@pytest.fixture
def slow(ledger_url):
    made = Desk(ledger_url, App(ORDERS), kernel=SLOW)
    yield made
    made.ledger.close()


def coming(found):
    return [(one.hour - NOW, one.machine, one.source, one.target, one.n) for one in found.coming]


def order(number, **columns):
    return Order(shop="acme", number=number, **columns)


def test_what_is_due_is_foretold_and_what_is_parked_is_not(desk):
    desk.born(
        order(1, due_at=NOW - HOUR), order(2, due_at=NOW + 90 * timedelta(minutes=1)), order(3, due_at=NOW + 2 * DAY)
    )
    desk.born(order(4, due_at=NOW), order(5))
    desk.do("units park", units=["order:acme/4"])
    found = desk.read("forecast")
    assert coming(found) == [(0 * HOUR, "order", "new", "sent", 1), (HOUR, "order", "new", "sent", 1)]
    assert [one.example for one in found.coming] == ["order:acme/1", "order:acme/2"]
    assert (found.total, found.start, found.end) == (2, NOW, NOW + DAY)
    assert desk.read("forecast", hours=1).total == 1
    assert desk.read("forecast", hours=72, machine="order").total == 3
    assert desk.read("forecast", machine="price").total == 0
    with pytest.raises(UnknownMachine):
        desk.read("forecast", machine="ordr")


def test_the_past_knows_what_the_history_knew_then(desk):
    """Two orders were sent three hours after their birth: so will the third, whatever became of it since."""
    for number in (1, 2):
        (ref,) = desk.born(order(number, due_at=NOW))
        desk.later(hours=3)
        desk.ledger.move(Ref.parse(ref), O.SENT, actor=Actor.WORKER, who="w", reason="sent", due_at=None)
    desk.born(order(3, due_at=NOW))
    desk.later(hours=1)
    at = desk.clock.now()
    desk.later(hours=1)
    desk.fail("order:acme/3", "refused")
    roll_up(desk.ledger.database)
    found = desk.read("forecast", at=at)
    assert [(one.hour - at, one.target, one.n, one.example) for one in found.coming] == [
        (2 * HOUR, "sent", 1, "order:acme/3")
    ]
    assert desk.read("forecast", at=NOW - DAY).total == 0


@pytest.mark.parametrize(("by", "born"), [(Actor.SCHEDULER, 2), (Actor.API, 0)])
def test_a_tick_brings_forth_what_it_did_on_the_days_before(ledger_url, by, born):
    machine = replace(ORDER, births={O.NEW: {Actor.SCHEDULER, Actor.API}})
    desk = Desk(ledger_url, App(replace(ORDERS, machines=[machine], jobs=[BORN], operations=[])))
    with contextlib.closing(desk.ledger):
        keep_schedules(desk.ledger, [Schedule(name="bear", job="bear", at=["13:00"])], "test")
        for day in range(3):
            desk.later(hours=1)
            desk.ledger.birth([order(10 * day + n) for n in range(2)], actor=by, who="x")
            desk.later(hours=23)
        found = [(one.hour - desk.clock.now(), one.source, one.target, one.n) for one in desk.read("forecast").coming]
    expected = [(HOUR, None, "new", born), (HOUR, "new", "sent", born)]
    assert found == [one for one in expected if born]


def test_a_lifecycle_says_what_it_expects(ledger_url):
    def expects(settings, unit, since):
        if isinstance(unit, Schedule):
            return [Expected(machine="order", at=since, target="new", n=7)]
        return [Expected(machine="order", at=NOW + 5 * HOUR, source="new")]

    desk = Desk(ledger_url, App(replace(ORDERS, jobs=[BORN], expects=expects)))
    with contextlib.closing(desk.ledger):
        keep_schedules(desk.ledger, [Schedule(name="bear", job="bear", at=["13:00"])], "test")
        desk.born(order(1, due_at=NOW))
        found = coming(desk.read("forecast", hours=12))
    # What is born is sent at once, as the first edge says.
    assert found == [
        (HOUR, "order", None, "new", 7),
        (HOUR, "order", "new", "sent", 7),
        (5 * HOUR, "order", "new", "sent", 1),
    ]


def test_a_gate_starves_and_somebody_is_told(slow):
    slow.born(*(order(n, due_at=NOW, gate_id="shop/acme") for n in range(1, 5)))
    found = slow.read("forecast")
    (gate,) = found.gates
    assert (gate.gate, gate.calls, gate.budget, gate.starves, gate.put_off) == ("shop/acme", 4, 25, NOW, 2)
    assert [one[4] for one in coming(found)] == [2, 1, 1]
    done = watch(slow.program, slow.ledger, slow.clock.now(), "test", ["quota"])
    assert done.fired == 1
    alert = book.find(slow.ledger, "quota", "shop/acme")
    assert alert is not None
    assert alert.status is A.FIRING
    assert "shop/acme will not do from 2026-11-15 12:00 UTC on: 2 calls wait" in alert.says
    # It is asked every ten minutes, not every minute.
    for ref in [f"order:acme/{n}" for n in range(1, 5)]:
        slow.ledger.move(Ref.parse(ref), O.SENT, actor=Actor.WORKER, who="w", reason="sent", due_at=None)
    slow.later(minutes=1)
    assert watch(slow.program, slow.ledger, slow.clock.now(), "test", ["quota"]).resolved == 0
    slow.later(minutes=10)
    assert watch(slow.program, slow.ledger, slow.clock.now(), "test", ["quota"]).resolved == 1


@pytest.mark.parametrize(("kernel", "has"), [(KernelSettings(), False), (INSIDE, False), (SLOW, True)])
def test_where_no_gate_has_a_budget_nothing_can_starve(ledger_url, kernel, has):
    made = Desk(ledger_url, App(ORDERS), kernel=kernel)
    with contextlib.closing(made.ledger) as ledger:
        ledger.birth([order(1, due_at=NOW, gate_id="shop/acme")], actor=Actor.API, who="test")
        assert budgeted(made.program, Reader(ledger.database, ledger.machines.values())) is has


def test_what_waits_behind_a_closed_gate_comes_when_it_opens(slow):
    slow.born(order(1, due_at=NOW, gate_id="other/acme", placed=date(2026, 11, 1)))
    slow.do("gates pause", gate="other/acme", span=3 * HOUR)
    assert [one[0] for one in coming(slow.read("forecast"))] == [3 * HOUR]
    slow.do("gates resume", gate="other/acme")
    slow.do("gates pause", gate="other/acme")
    found = slow.read("forecast")
    assert (found.coming, [one.held for one in found.gates]) == ([], [True])


def test_many_are_counted_by_the_hour(desk, monkeypatch):
    monkeypatch.setattr("penstock.ledger.prospect.UNITS", 5)
    desk.born(*(order(n, due_at=NOW + n * timedelta(minutes=10)) for n in range(12)))
    found = desk.read("forecast")
    assert [one[4] for one in coming(found)] == [6, 6]
    assert found.notes == ["of order more than 5 units are due: their states are an estimate"]


@pytest.mark.parametrize("name", ["forecast", "flow", "status"])
def test_an_instant_at_the_beginning_of_the_calendar_is_refused(desk, name):
    with pytest.raises(UsageError, match="the instant is too near to the beginning of the calendar"):
        desk.read(name, at=datetime(1, 1, 1, tzinfo=UTC))

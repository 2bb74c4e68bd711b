"""How gates, alerts, events, units and the whole ledger stood at an instant that is over."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from penstock.ledger.care.prune import Ages, Pruner
from penstock.model.clock import Rng, instant_text
from penstock.model.errors import UnknownUnit, UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations import dead_then
from penstock.operations.alerts.book import resolve
from penstock.operations.alerts.watch import watch
from penstock.operations.reader import Reader
from penstock.worker.schedule import keep_schedules
from penstock.worker.schedule_unit import Schedule
from tests.operations.conftest import NOW, O, Order

ORDER, GATE, ALERT = "order:acme/1", "shop/acme", "dead_letters/order"


@pytest.fixture
def told(desk):
    """Something happens at the beginning of each minute: nothing at that of the first."""
    desk.later(minutes=1)
    desk.born(Order(shop="acme", number=1, gate_id=GATE, due_at=NOW))
    desk.later(minutes=1)
    desk.do("gates pause", gate=GATE)
    desk.later(minutes=1)
    desk.do("gates resume", gate=GATE)
    desk.later(minutes=1)
    desk.ledger.gates.close(GATE, 100, "slow down")
    desk.later(minutes=1)
    desk.fail(ORDER, "no")
    desk.later(minutes=1)
    assert watch(desk.program, desk.ledger, desk.clock.now(), "test", ["dead_letters"]).fired == 1
    desk.later(minutes=1)
    desk.do("alerts ack", alerts=(ALERT,))
    desk.later(minutes=1)
    return desk


def at(minute):
    """In the middle of a minute."""
    return NOW + timedelta(minutes=minute, seconds=30)


def test_what_is_yet_to_come_is_not_told(told):
    now = told.clock.now()
    assert told.read("units list", at=now).rows
    for name in ("units list", "stuck", "gates list", "token list"):
        with pytest.raises(UsageError, match=r"2026-11-15T12:08:00\.001Z is yet to come"):
            told.read(name, at=now + timedelta(milliseconds=1))
        with pytest.raises(UsageError, match="2026-11-15 12:08:00 has no time zone"):
            told.read(name, at=now.replace(tzinfo=None))


def test_a_gate_is_what_it_was_changed_to_last(told):
    found = [told.read("gates list", gate=GATE, at=at(minute)).rows[0] for minute in range(7)]
    states = ["open", "open", "paused", "open", "closed", "closed", "open"]
    assert [one.state for one in found] == states
    assert (found[2].by, found[2].reason, found[2].until) == ("operator:jo", "because", None)
    assert (found[4].by, found[4].reason) == ("provider", "slow down")
    assert found[4].until == NOW + timedelta(minutes=5, seconds=40)
    assert {(one.waiting, one.inside, one.budget) for one in found} == {(None, None, "")}
    assert told.read("gates list", at=at(0)).note.startswith("changes of gates are known from 2026-11-15T12:02")
    assert told.read("gates list", at=at(2)).note is None


def test_an_alert_is_as_it_stood(told):
    def states(minute, **more):
        return [(one.alert, one.status) for one in told.read("alerts list", at=at(minute), **more).rows]

    assert [states(minute) for minute in (5, 6, 7)] == [[], [(ALERT, "firing")], [(ALERT, "acknowledged")]]
    assert states(6, policy="dead_letters") == [(ALERT, "firing")]
    assert states(6, policy="dead") == states(6, policy="stuck_units") == []
    (shown,) = told.read("alerts list", at=at(6)).rows
    assert (shown.severity, shown.policy, shown.since) == ("warning", "dead_letters", NOW + timedelta(minutes=6))
    assert "order" in shown.says
    assert states(6, severity="critical") == []


def test_events_are_those_until_then(told):
    kinds = [[one.kind for one in told.read("events list", at=at(minute)).rows] for minute in (1, 2, 3, 4)]
    assert kinds == [[], ["gate.paused"], ["gate.resumed", "gate.paused"], ["gate.resumed", "gate.paused"]]
    page = told.read("events list", at=at(3), limit=1)
    assert [one.kind for one in told.read("events list", at=at(3), after=page.next).rows] == ["gate.paused"]


def test_a_unit_is_told_by_its_history(told):
    with pytest.raises(UnknownUnit, match="was not born at 2026-11-15T12:00:30"):
        told.read("units show", unit=ORDER, at=at(0))
    early, late = (told.read("units show", unit=ORDER, at=at(minute)) for minute in (3, 6))
    assert (early.status, early.meaning, early.changed_by, len(early.history)) == ("new", "work", "api:test", 1)
    assert (late.status, late.reason, late.changed_by, len(late.history)) == ("failed", "no", "worker:w", 2)
    assert (late.operators_can, late.due_at) == ([], None)
    assert told.read("units show", unit=ORDER).operators_can


def test_the_ledger_at_a_glance_as_it_stood(told):
    def stood(minute):
        found = told.read("status", at=at(minute))
        (orders,) = [{s: n for s, n in one.states.items() if n} for one in found.machines if one.machine == "order"]
        gates = [(one.gate, one.state) for one in found.gates]
        return orders, gates, [one.alert for one in found.firing], [one.kind for one in found.alerts]

    assert stood(0) == ({}, [], [], [])
    assert stood(2) == ({"new": 1}, [(GATE, "paused")], [], ["gate.paused"])
    orders, gates, firing, events = stood(6)
    assert (orders, gates, firing) == ({"failed": 1}, [], [ALERT])
    assert events[-1] == "gate.paused"
    assert told.read("status", at=at(6)).notes == []


def test_those_who_worked_then(told):
    worker = told.ledger.incarnation()
    worker.register()
    told.later(minutes=1)
    (now,) = told.read("workers").rows
    worker.retire()
    told.later(minutes=1)
    found = [told.read("workers", at=at(minute)) for minute in (7, 8, 9)]
    assert [[one.worker for one in page.rows] for page in found] == [[], [worker.identity.id], []]
    assert (now.lease_seconds is None, found[1].rows[0].lease_seconds) == (False, None)
    assert told.read("workers").note == "no worker is running"
    assert [one.worker for one in told.read("status", at=at(8)).workers] == [worker.identity.id]


def test_dead_letters_are_those_of_then(told):
    told.born(*(Order(shop="acme", number=n, due_at=NOW) for n in (2, 3)))
    told.fail("order:acme/2", "no answer after 3 tries")
    told.fail("order:acme/3", "no answer after 4 tries")
    told.later(minutes=1)
    told.do("dead retry", units=("order:acme/1",))
    told.do("dead dismiss", units=("order:acme/2", "order:acme/3"))
    told.later(minutes=1)

    def causes(minute):
        found = told.read("dead list", at=at(minute)).rows
        return [(one.count, one.reason, one.status, one.example) for one in found]

    assert causes(4) == []
    assert causes(5) == [(1, "no", "failed", ORDER)]
    assert causes(8) == [(2, "no answer after <n> tries", "failed", "order:acme/2"), (1, "no", "failed", ORDER)]
    assert causes(9) == []
    assert [row.count for row in told.read("dead list", at=at(8), dismissed=True).rows] == []
    (laid,) = told.read("dead list", at=at(9), dismissed=True).rows
    assert (laid.count, laid.reason) == (2, "no answer after <n> tries")
    (first, _) = told.read("dead show", at=at(9), cause=laid.cause, dismissed=True).rows
    assert (first.unit, first.dismissed_by, first.dismissed_for) == ("order:acme/2", "jo", "because")
    assert told.read("dead list").rows == []
    assert told.read("dead list", at=at(8), machine="order").rows
    with pytest.raises(UsageError, match="of the past only the machine"):
        told.read("dead list", at=at(8), because="no")


def test_what_was_pruned_is_said_even_where_nothing_is_left(told):
    asked = ["alerts list", "needs", "dead list", "events list", "schedules list"]
    keep_schedules(told.ledger, [Schedule(name="often", job="prune", every="5m")], "test")
    told.do("schedules pause", name="often")
    told.do("dead retry", units=(ORDER,))
    told.later(minutes=1)
    assert resolve(told.ledger, "dead_letters", "order", "gone", "test")

    def notes():
        return {name: told.read(name, at=at(6)).note for name in asked}

    assert not [note for note in notes().values() if "pruned" in (note or "")]
    told.later(days=100)
    Pruner(told.ledger.database, Ages(), who="test", rng=Rng(1)).prune()
    lacks = "history before 2026-11-15T13:00:00.000Z was pruned: some may be missing"
    events = "events were pruned: some may be missing"
    assert notes() == {
        "alerts list": f"{lacks}; no alerts then",
        "needs": f"{lacks}; nothing needed anybody then",
        "dead list": f"{lacks}; no dead letters",
        "events list": f"{events}; no events yet",
        "schedules list": f"{lacks}; no schedules yet",
    }
    assert told.read("status", at=at(6)).notes == [f"alerts: {lacks}", events]
    told.do("gates pause", gate=GATE)
    newest = instant_text(told.clock.now())
    assert (
        told.read("events list", at=at(6)).note
        == f"events before {newest} were pruned: some may be missing; no events yet"
    )
    assert told.read("events list", at=told.clock.now()).note is None


def test_an_alert_that_was_not_there_is_said_to_have_been_absent(told):
    absent = f"there was no alert '{ALERT}' at 2026-11-15T12:05:30.000Z; 'penstock alerts list --resolved --at"
    with pytest.raises(UnknownUnit, match=absent):
        told.read("alerts show", alert=ALERT, at=at(5))
    assert told.read("alerts show", alert=ALERT, at=at(6)).status == "firing"


def test_where_there_are_too_many_parked_units_a_list_says_so(told, monkeypatch):
    born = told.born(*(Order(shop="acme", number=n, due_at=NOW) for n in (2, 3, 4)))
    told.ledger.park([Ref.parse(ref) for ref in born], who="jo", reason="step 3 broke")
    told.later(minutes=1)
    for most, note in ((3, None), (2, "order has many units: only the first were looked at")):
        monkeypatch.setattr(dead_then, "_MOST", most)
        page = told.read("dead list", at=told.clock.now())
        assert (sum(row.count for row in page.rows if row.status == "parked"), page.note) == (most, note)


def test_why_says_of_what_was_pruned_what_show_says(told):
    told.do("dead retry", units=(ORDER,))
    sent, _ = told.born(*(Order(shop="acme", number=n, due_at=NOW) for n in (8, 9)))
    told.ledger.move(Ref.parse(sent), O.SENT, actor=Actor.WORKER, who="w", reason="taken", due_at=None)
    moment = told.clock.now()
    told.later(days=100)
    Pruner(told.ledger.database, Ages({"units": timedelta(days=90)}), who="test", rng=Rng(1)).prune()

    def refused(unit, moment):
        for name in ("units show", "units why"):
            with pytest.raises((UnknownUnit, UsageError)) as found:
                told.read(name, unit=unit, at=moment)
            yield f"{type(found.value).__name__}: {found.value}"

    begins = "the history of order:acme/1 before 2026-11-15T12:08:00.000Z was pruned; ask for a later moment"
    assert [*refused(ORDER, at(6))] == [f"UsageError: {begins}"] * 2
    born = "UnknownUnit: order:acme/9 was not born at 2026-11-15T12:06:30.000Z"
    assert [*refused("order:acme/9", at(6))] == [born] * 2
    with pytest.raises(UnknownUnit, match=f"{sent} was sent at .*, and is gone since: 'units show' says what"):
        told.read("units why", unit=sent, at=moment)


class Recorded:
    """A database that keeps the statements that it was asked."""

    def __init__(self, database):
        self.asked = []
        self._database = database

    def __getattr__(self, name):
        return getattr(self._database, name)

    def read(self, work, **more):
        return self._database.read(lambda cursor: work(RecordedCursor(cursor, self.asked)), **more)


class RecordedCursor:
    def __init__(self, cursor, asked):
        self._cursor = cursor
        self._asked = asked

    def __getattr__(self, name):
        return getattr(self._cursor, name)

    def rows(self, sql, **values):
        self._asked.append(sql)
        return self._cursor.rows(sql, **values)


def asked_for(desk, name, **wanted):
    """What a reading answers, and the statements over orders of then that it took."""
    database, declared = Recorded(desk.ledger.database), desk.declared[name]
    ask = replace(desk.ask(), reader=Reader(database, desk.app.machines, desk.app.past))
    answer = declared(ask, declared.parameters(**wanted))
    return answer, [sql for sql in database.asked if sql.startswith("WITH") and "shop_order AS" in sql]


def test_stuck_units_of_then_take_one_statement_for_each_state_that_was_not_empty(told):
    told.do("dead retry", units=(ORDER,))
    waits, due = told.born(*(Order(shop="acme", number=n, due_at=NOW) for n in (2, 3)))
    told.ledger.move(Ref.parse(waits), O.HELD, actor=Actor.OPERATOR, who="jo", reason="x", due_at=None)
    told.later(days=5)
    moment = told.clock.now()
    live = told.read("stuck", machine="order")
    assert [row.unit for row in live.rows] == [ORDER, due, waits]
    answer, asked = asked_for(told, "stuck", machine="order", at=moment)
    assert (answer, len(asked)) == (live, 2), "there were none that were sent, or had failed"
    told.later(minutes=1)
    told.fail(due, "no")
    answer, asked = asked_for(told, "stuck", machine="order", at=moment)
    assert ([row.unit for row in answer.rows], len(asked)) == ([ORDER, waits], 2)
    assert answer.note == (
        "1 more may have stayed as long; whether they waited for a moment, or for a person, is not known"
    )
    assert len(told.read("stuck", machine="order", at=moment, limit=1).rows) == 1


def test_whether_a_machine_is_large_is_asked_of_now(told):
    answer, asked = asked_for(told, "find", text="order:acme", at=at(2))
    assert [(row.name, row.status) for row in answer.rows] == [(ORDER, "new")]
    assert len(asked) == 1

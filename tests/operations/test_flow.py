"""`penstock flow`, `penstock activity`, and lists of the past."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.ledger.roll_up import roll_up
from penstock.model.errors import UnknownMachine, UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from tests.operations.conftest import NOW, Desk, O, Order

MINUTE = timedelta(minutes=1)


@pytest.fixture(params=["rolled up", "not yet"])
def busy(request: pytest.FixtureRequest, desk: Desk) -> Desk:
    """Three orders; two were sent after half an hour and an hour, and one failed."""
    refs = desk.orders(3)
    desk.later(minutes=30)
    sent(desk, refs[0])
    desk.later(minutes=30)
    sent(desk, refs[1])
    desk.later(minutes=60)
    desk.fail(refs[2], "no such shop")
    if request.param == "rolled up":
        roll_up(desk.ledger.database)
    return desk


def sent(desk: Desk, ref: str) -> None:
    desk.ledger.move(Ref.parse(ref), O.SENT, actor=Actor.WORKER, who="w", reason="sent", due_at=None)


def test_flow_shows_edges_states_and_outcomes(busy):
    found = busy.read("flow", machine="order")
    assert [(one.source, one.target, one.trigger, one.n) for one in found.edges] == [
        (None, "new", None, 3),
        ("new", "failed", "refused", 1),
        ("new", "sent", "accepted", 2),
    ]
    states = {one.state: one for one in found.states}
    assert {name: one.units for name, one in states.items()} == {"new": 0, "sent": 2, "failed": 1}
    assert (states["new"].left, states["new"].stay, states["new"].longest) == (3, 60 * MINUTE, 120 * MINUTE)
    assert states["sent"].stay is None
    (outcome,) = found.outcomes
    assert (outcome.done, outcome.failed, outcome.success) == (2, 1, pytest.approx(2 / 3))
    assert (found.start, found.end) == (NOW - timedelta(hours=22), NOW + timedelta(hours=2))


def test_flow_at_an_instant_and_within_a_window(busy):
    found = busy.read("flow", at=NOW + 45 * MINUTE, window=30 * MINUTE)
    assert [(one.machine, one.trigger, one.n) for one in found.edges] == [("order", "accepted", 1)]
    assert {(one.state, one.units) for one in found.states} == {("new", 2), ("sent", 1)}
    assert busy.read("flow", at=NOW - MINUTE).edges == []


def test_activity_is_told_by_the_hour(busy):
    found = busy.read("activity").rows
    assert [(one.machine, one.moved, one.done, one.failed) for one in found] == [
        ("order", 4, 1, 0),
        ("order", 1, 1, 0),
        ("order", 1, 0, 1),
    ]
    assert [one.hour for one in found] == [NOW, NOW + 60 * MINUTE, NOW + 120 * MINUTE]
    assert found[0].states == {"new": 3, "sent": 1}


def test_nothing_happened(desk):
    assert desk.read("activity", window=MINUTE).note.startswith("nothing happened between")


@pytest.mark.parametrize("name", ["flow", "activity"])
def test_what_cannot_be_asked_is_said(desk, name):
    with pytest.raises(UnknownMachine, match="did you mean order"):
        desk.read(name, machine="ordr")
    with pytest.raises(UsageError, match="longer than nothing"):
        desk.read(name, window=timedelta(0))
    with pytest.raises(UsageError, match="beyond the year 1"):
        desk.read(name, window=timedelta(days=1_000_000))


def test_units_are_listed_as_they_stood(busy):
    page = busy.read("units list", machine="order", at=NOW + 45 * MINUTE, count=True)
    assert [(one.unit, one.status, one.reason) for one in page.rows] == [
        ("order:acme/1", "sent", "sent"),
        ("order:acme/2", "new", "born"),
        ("order:acme/3", "new", "born"),
    ]
    assert page.counts == {"new": 2, "sent": 1}
    first = busy.read("units list", status=("new",), at=NOW + 45 * MINUTE, limit=1)
    assert ([one.unit for one in first.rows], first.next) == (["order:acme/2"], "order:acme/2")
    rest = busy.read("units list", status=("new",), at=NOW + 45 * MINUTE, after=first.next)
    assert ([one.unit for one in rest.rows], rest.next) == (["order:acme/3"], None)


def test_the_past_knows_machine_and_state_alone(busy):
    with pytest.raises(UsageError, match="only machine and state"):
        busy.read("units list", machine="order", parked=True, at=NOW)


def test_history_names_the_edge(busy):
    rows = busy.read("units history", unit="order:acme/1").rows
    assert [one.trigger for one in rows] == [None, "accepted"]


def test_gates_have_a_history(desk):
    desk.born(Order(shop="s", number=9, gate_id="shop/acme"))
    assert desk.read("gates history", gate="shop/acme").note == "nothing has changed it"
    desk.do("gates pause", gate="shop")
    desk.later(minutes=5)
    desk.do("gates resume", gate="shop", reason="")
    newest = desk.read("gates history", gate="shop/acme", limit=1)
    assert [(one.what, one.by, one.at) for one in newest.rows] == [("resumed", "operator:jo", NOW + 5 * MINUTE)]
    rest = desk.read("gates history", gate="shop/acme", after=int(newest.next))
    assert [(one.what, one.reason) for one in rest.rows] == [("paused", "because")]
    with pytest.raises(UsageError, match="no gate is called"):
        desk.read("gates history", gate="sjop")


def test_a_recount_is_asked_for_and_kept(desk):
    from penstock.ledger.roll_up import recount_as_asked

    desk.orders(3)
    desk.do("units recount", reason="the doctor found it wrong")
    assert desk.rows("SELECT event_type FROM event_log WHERE event_type = 'flow.recount'") == [("flow.recount",)]
    assert recount_as_asked(desk.ledger.database)
    assert not recount_as_asked(desk.ledger.database)

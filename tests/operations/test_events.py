"""`penstock events`: the newest events, who was told, and telling again those who refused."""

from __future__ import annotations

import pytest

from penstock.ledger import outbox
from penstock.ledger.commit import insert_events
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref


@pytest.fixture
def told(desk):
    """Three events for two subscribers; two deliveries are dead."""
    database = desk.ledger.database
    outbox.subscribe(database, "audit", ["*"])
    outbox.subscribe(database, "hook", ["order.paid"])
    written = (("1", "order.paid", None), ("2", "order.paid", None), ("3", "late", "warning"))
    rows = [["default", key, kind, severity, '{"n": 1}', None, None, None] for key, kind, severity in written]
    database.write(lambda cursor: insert_events(database, cursor, rows))
    for unit_id in ("hook/default/1", "audit/default/3"):
        desk.ledger.move(Ref("delivery", unit_id), "dead", actor=Actor.OPERATOR, who="jo", reason="no", attempts=12)
    return desk


def states(desk):
    return {
        unit: (status, attempts)
        for unit, status, attempts in desk.rows("SELECT unit_id, status, attempts FROM event_delivery")
    }


def test_events_are_listed_with_their_deliveries(told):
    found = told.read("events list").rows
    assert {row.key: row.deliveries for row in found} == {
        "1": {"audit": "pending", "hook": "dead"},
        "2": {"audit": "pending", "hook": "pending"},
        "3": {"audit": "dead"},
    }
    assert found[0].payload == {"n": 1}
    assert found[0].told == "audit (pending), hook (dead)"
    assert [(row.key, row.severity) for row in told.read("events list", alerts=True).rows] == [("3", "warning")]


def test_events_are_paged(told):
    keys, after = [], None
    while True:
        page = told.read("events list", limit=2, after=after)
        keys.append([row.key for row in page.rows])
        if (after := page.next) is None:
            break
    assert keys == [["1", "2"], ["3"]]
    with pytest.raises(UsageError, match="is not a cursor"):
        told.read("events list", after="x")


def test_dead_letters_are_counted_and_then_delivered_again(told):
    before = states(told)
    preview = told.plan("events redeliver").preview
    assert (preview.says, preview.count) == ("deliver 2 dead letters again", 2)
    assert states(told) == before
    assert told.do("events redeliver", subscriber="hook").count == 1
    assert states(told)["hook/default/1"] == ("pending", 0)
    assert states(told)["audit/default/3"] == ("dead", 12)
    assert told.do("events redeliver").count == 1
    assert {status for status, _ in states(told).values()} == {"pending"}


def test_who_is_not_there_is_said(told):
    with pytest.raises(UsageError, match="no subscriber is called 'nobody'; this ledger has audit, hook"):
        told.plan("events redeliver", subscriber="nobody")


def test_a_ledger_without_subscribers_has_nothing_to_deliver(desk):
    with pytest.raises(UsageError, match="nobody has subscribed to events of this ledger; there is nothing to deliver"):
        desk.plan("events redeliver")
    assert desk.read("events list").note == "no events yet"


def test_events_are_listed_as_of_a_moment(told):
    then = told.clock.now()
    told.later(minutes=5)
    database = told.ledger.database
    late = ["default", "4", "order.paid", None, "{}", None, None, None]
    database.write(lambda cursor: insert_events(database, cursor, [late]))
    assert {row.key for row in told.read("events list").rows} == {"1", "2", "3", "4"}
    assert {row.key for row in told.read("events list", at=then).rows} == {"1", "2", "3"}
    page = told.read("events list", at=then, limit=2)
    assert {row.key for row in told.read("events list", at=then, after=page.next).rows} == {"3"}

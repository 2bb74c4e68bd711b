"""Deliveries are born with their events, whoever writes them, and with no event twice."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock.ledger import delivery, outbox
from penstock.ledger.care.doctor import examine
from penstock.ledger.commit import insert_events
from penstock.ledger.ledger import Ledger
from penstock.ledger.outbox import ANY, list_events, read_event, replay, subscribe, unsubscribe
from penstock.model.clock import Rng, SystemClock, VirtualClock
from penstock.model.errors import IllegalMove, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Event, Outcome
from penstock.model.unit import Ref, replace
from tests.support.hand import Hand
from tests.support.machines import DUE, INVOICE, invoice

MACHINES = (INVOICE, delivery.machine)


class Post:
    """A ledger with an outbox, and the words that tests speak about it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.time = VirtualClock(DUE)
        self.ledger = Ledger.open(url, MACHINES, clock=self.time, rng=Rng(1), create=True)
        self.database = self.ledger.database

    def write(self, *keys: str, kind: str = "order.paid", severity: str | None = None, tenant: str = "default") -> None:
        rows = [[tenant, key, kind, severity, "{}", None, None] for key in keys]
        self.database.write(lambda c: insert_events(self.database, c, rows))

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda c: [tuple(r) for r in c.rows(sql, **parameters)])

    def waiting(self) -> list[tuple[str, str]]:
        """(subscriber, event) of every delivery."""
        return [(s, k) for s, k in self.rows("SELECT subscriber, event_key FROM event_delivery ORDER BY 1, 2")]


@pytest.fixture
def post(ledger_url: str) -> Iterator[Post]:
    made = Post(ledger_url)
    yield made
    made.ledger.close()


def test_each_event_is_born_with_its_deliveries(post):
    assert subscribe(post.database, "audit", ["*"])
    assert subscribe(post.database, "hook", ["order.paid", "order.sent"])
    post.write("1", "2")
    post.write("3", kind="order.lost")
    assert post.waiting() == [("audit", "1"), ("audit", "2"), ("audit", "3"), ("hook", "1"), ("hook", "2")]
    columns = "unit_id, status, due_at IS NOT NULL, gate_id, attempts, changed_by, change_reason"
    assert post.rows(f"SELECT {columns} FROM event_delivery WHERE subscriber = 'hook' AND event_key = '1'") == [
        ("hook/default/1", "pending", True, "outbox/hook", 0, "scheduler:outbox", "order.paid")
    ]
    assert examine(post.database, {m.name: m for m in MACHINES}) == []


def test_an_event_written_twice_is_delivered_once(post):
    subscribe(post.database, "audit", ["*"])
    post.write("1")
    post.write("1", "1", "2")
    assert post.waiting() == [("audit", "1"), ("audit", "2")]


def test_a_subscriber_that_wants_an_event_twice_over_gets_it_once(post):
    subscribe(post.database, "audit", ["*", "order.paid"], ["info", "warning"])
    post.write("1", severity="warning")
    post.write("2")
    assert post.waiting() == [("audit", "1")]


@pytest.mark.parametrize(
    ("severities", "expected"),
    [((), ["calm", "info", "warning"]), (("info", "critical"), ["info"]), (("warning",), ["warning"])],
)
def test_severities_that_are_named_are_all_that_is_wanted(post, severities, expected):
    subscribe(post.database, "audit", ["*"], severities)
    post.write("calm")
    post.write("info", severity="info")
    post.write("warning", severity="warning")
    assert [key for _, key in post.waiting()] == expected


def test_keys_and_tenants_with_hard_characters(post):
    subscribe(post.database, "audit", ["*"])
    keys = ["a/b", "100%", "%2F", "ü ☃", "o'clock", "unit.dead:invoice:acme%2F1:7"]
    for tenant in ("default", "a/b%c"):
        post.write(*keys, tenant=tenant)
    found = post.ledger.get_many(delivery.machine, [r[0] for r in post.rows("SELECT unit_id FROM event_delivery")])
    assert sorted((d.tenant_id, d.event_key) for d in found) == sorted(
        (t, k) for t in ("default", "a/b%c") for k in keys
    )
    for one in found:
        assert post.ledger.get(Ref("delivery", one.unit_id)) == one
        event = read_event(post.database, one.tenant_id, one.event_key)
        assert event is not None
        assert (event.tenant_id, event.event_key) == (one.tenant_id, one.event_key)


def test_whoever_types_an_event_into_the_database_has_it_delivered(post):
    subscribe(post.database, "audit", ["*"])
    with Hand(post.url) as hand:
        names = "event_key, event_type, payload, created_at"
        hand.type(f"INSERT INTO event_log ({names}) VALUES ('typed', 'x', '{{}}', '2026-01-01T00:00:00.000Z')")
    assert post.waiting() == [("audit", "typed")]


def test_what_is_rolled_back_is_delivered_to_nobody(post):
    subscribe(post.database, "audit", ["*"])
    post.ledger.birth([invoice("1")], actor=Actor.API, who="test")
    session = post.ledger.incarnation()
    session.register()
    (unit,) = session.claim({"invoice": 1})
    event = Event("paid:1", "order.paid", {"n": 1})
    stale = replace(unit, version=unit.version + 7)
    lost = Outcome(stale, stale, "late", events=[event])
    session.commit([post.ledger.preparer.entry(lost, "w")])
    assert (post.waiting(), post.rows("SELECT event_key FROM event_log")) == ([], [])
    won = Outcome(unit, replace(unit, due_at=None), "in time", events=[event])
    session.commit([post.ledger.preparer.entry(won, "w")])
    assert post.waiting() == [("audit", "paid:1")]


def test_an_event_names_the_change_that_wrote_it(post):
    post.ledger.birth([invoice("1")], actor=Actor.API, who="test")
    session = post.ledger.incarnation()
    session.register()
    (unit,) = session.claim({"invoice": 1})
    after = replace(unit, status=type(unit.status)("SENT"), remote_id="r")
    outcome = Outcome(unit, after, "accepted", events=[Event("paid:1", "order.paid", {})])
    session.commit([post.ledger.preparer.entry(outcome, "w")])
    post.write("by hand")
    assert post.rows("SELECT event_key, correlation_id FROM event_log ORDER BY 1") == [
        ("by hand", None),
        ("paid:1", f"invoice:acme/1@{unit.version + 1}"),
    ]
    joined = (
        "SELECT l.to_status FROM event_log AS e JOIN transition_log AS l ON l.machine = e.machine AND l.unit_id ="
        " e.unit_id AND e.correlation_id = l.machine || ':' || l.unit_id || '@' || l.version"
    )
    assert post.rows(joined) == [("SENT",)]


def test_what_the_outbox_says_of_itself_is_not_delivered(post):
    subscribe(post.database, "audit", ["*"])
    rows = [["default", "loop", "unit.dead", "warning", "{}", "delivery", "audit/default/1"]]
    post.database.write(lambda c: insert_events(post.database, c, rows))
    assert post.waiting() == []


def test_a_subscriber_gets_nothing_from_before_its_time_unless_it_is_replayed(post):
    post.write("older")
    post.time.advance(60)
    post.write("old", "old, too")
    subscribe(post.database, "audit", ["order.paid"])
    post.write("new")
    post.write("other", kind="other")
    assert post.waiting() == [("audit", "new")]
    since = post.time.now() - timedelta(seconds=30)
    assert replay(post.database, "audit", since) == 2
    assert replay(post.database, "audit", since) == 0
    assert post.waiting() == [("audit", "new"), ("audit", "old"), ("audit", "old, too")]
    assert replay(post.database, "audit", DUE) == 1
    assert replay(post.database, "nobody", DUE) == 0


def test_wishes_change_and_end(post):
    assert subscribe(post.database, "audit", ["a"])
    assert not subscribe(post.database, "audit", ["a"])
    assert subscribe(post.database, "audit", ["b"], ["info"])
    post.write("1", kind="a")
    post.write("2", kind="b", severity="info")
    assert post.waiting() == [("audit", "2")]
    assert unsubscribe(post.database, "audit")
    assert not unsubscribe(post.database, "audit")
    post.write("3", kind="b", severity="info")
    assert post.waiting() == [("audit", "2")]


@pytest.mark.parametrize(
    ("name", "kinds", "severities", "message"),
    [
        ("", ["*"], (), "subscriber '' must be"),
        ("a/b", ["*"], (), "subscriber 'a/b' must be"),
        ("a", [], (), "names no kinds of events"),
        ("a", "unit.dead", (), "names no kinds of events"),
        ("a", ["*"], ["loud"], "wants the severity 'loud'; severities are info, warning, critical"),
    ],
)
def test_a_wish_that_cannot_be_kept_is_refused(post, name, kinds, severities, message):
    with pytest.raises(UsageError) as refused:
        subscribe(post.database, name, kinds, severities)
    assert message in str(refused.value)
    assert post.rows("SELECT * FROM subscription") == []


@pytest.mark.parametrize("ledger_url", ["postgres"], indirect=True)
def test_an_event_in_flight_while_somebody_subscribes_is_not_between_two_stools(post):
    """It commits after the subscription: the subscription waits for it, so that it is before, or it is delivered."""
    with psycopg.connect(post.url) as other:
        other.execute("INSERT INTO event_log VALUES ('default', 'mid', 'x', NULL, '{}', NULL, NULL, NULL, now())")
        done: list[bool] = []
        thread = threading.Thread(target=lambda: done.append(subscribe(post.database, "audit", [ANY])))
        thread.start()
        with psycopg.connect(post.url, autocommit=True) as watch:
            waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'ShareRowExclusiveLock'"
            while watch.execute(waits).fetchone() == (0,):
                """Until it waits."""
        assert done == []
        other.commit()
    thread.join(30)
    assert done == [True]
    post.write("after")
    assert post.waiting() == [("audit", "after")]


def test_a_dead_letter_is_retried_by_the_operator_alone(post):
    subscribe(post.database, "audit", ["*"])
    post.write("1")
    ref = Ref("delivery", "audit/default/1")
    post.ledger.move(ref, "dead", actor=Actor.OPERATOR, who="jo", reason="no")
    assert outbox.dead_letters(post.database) == outbox.dead_letters(post.database, "audit") == ["audit/default/1"]
    assert outbox.dead_letters(post.database, "hook") == []
    with pytest.raises(IllegalMove):
        post.ledger.move(ref, "pending", actor=Actor.WORKER, who="w", reason="no")
    post.ledger.move(ref, "pending", actor=Actor.OPERATOR, who="jo", reason="once more", attempts=0)
    assert outbox.dead_letters(post.database) == []


def test_events_are_listed_newest_first_with_what_became_of_them(post):
    post.write("1")
    post.time.advance(1)
    subscribe(post.database, "audit", ["*"])
    subscribe(post.database, "hook", ["*"])
    post.write("2", severity="warning")
    post.ledger.move(Ref("delivery", "hook/default/2"), "dead", actor=Actor.OPERATOR, who="jo", reason="no")
    found = list_events(post.database)
    assert [(f.event.event_key, dict(f.deliveries)) for f in found] == [
        ("2", {"audit": "pending", "hook": "dead"}),
        ("1", {}),
    ]
    assert [f.event.event_key for f in list_events(post.database, alerts=True)] == ["2"]
    assert len(list_events(post.database, most=1)) == 1


def test_a_ledger_without_subscribers_has_no_trigger_for_them(ledger_url):
    with Ledger.open(ledger_url, [INVOICE], clock=SystemClock(), create=True) as ledger:
        names = {"sqlite": "sqlite_master WHERE type = 'trigger'", "postgresql": "pg_trigger WHERE true"}
        column = {"sqlite": "name", "postgresql": "tgname"}[ledger.database.dialect]
        sql = f"SELECT count(*) FROM {names[ledger.database.dialect]} AND {column} = 'penstock_event_deliver'"
        assert ledger.read(lambda c: c.rows(sql))[0][0] == 0
        ledger.database.write(
            lambda c: insert_events(ledger.database, c, [["default", "1", "x", "info", "{}", None, None]])
        )
        assert [f.event.event_key for f in list_events(ledger.database)] == ["1"]


def test_a_program_without_subscribers_keeps_the_trigger_of_those_that_have_them(post):
    """As after a migration, by such a program, that builds event_log anew."""
    subscribe(post.database, "audit", ["*"])
    with Hand(post.url) as hand:
        table = "" if hand.dialect == "sqlite" else " ON event_log"
        hand.type(f"DROP TRIGGER penstock_event_deliver{table}")
    with Ledger.open(post.url, [INVOICE], clock=post.time) as other:
        found = examine(other.database, {INVOICE.name: INVOICE})
        assert [(f.check, f.subject) for f in found] == [("triggers", "penstock_event_deliver")]
    with Ledger.open(post.url, [INVOICE], clock=post.time, create=True) as other:
        assert examine(other.database, {INVOICE.name: INVOICE}) == []
    post.write("1")
    assert post.waiting() == [("audit", "1")]

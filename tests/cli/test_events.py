"""`penstock events`: the newest events, who was told, and telling again those who refused."""

from __future__ import annotations

import functools
import json

import pytest

from penstock.ledger import outbox
from penstock.ledger.commit import insert_events
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from tests.support.machines import INVOICE


@pytest.fixture
def told(ledger_url):
    """Address of a ledger with three events for two subscribers; two deliveries are dead."""
    with Ledger.open(ledger_url, [INVOICE, outbox.machine], create=True) as ledger:
        outbox.subscribe(ledger.database, "audit", ["*"])
        outbox.subscribe(ledger.database, "hook", ["order.paid"])
        written = (("1", "order.paid", None), ("2", "order.paid", None), ("3", "late", "warning"))
        rows = [["default", key, kind, severity, '{"n": 1}', None, None] for key, kind, severity in written]
        ledger.database.write(lambda c: insert_events(ledger.database, c, rows))
        for unit_id in ("hook/default/1", "audit/default/3"):
            ledger.move(Ref("delivery", unit_id), "dead", actor=Actor.OPERATOR, who="jo", reason="no", attempts=12)
    return ledger_url


@pytest.fixture
def events(penstock, tmp_path):
    """Call a command of the group."""
    return functools.partial(penstock, "events", cwd=tmp_path)


def states(url):
    with Ledger.open(url, [outbox.machine]) as ledger:
        rows = ledger.read(lambda c: c.rows("SELECT unit_id, status, attempts FROM event_delivery ORDER BY 1"))
    return {str(unit): (status, attempts) for unit, status, attempts in rows}


def test_events_are_listed_with_their_deliveries(told, events):
    found = json.loads(events("list", "--ledger", told, "--json").out)
    assert {e["event_key"]: e["deliveries"] for e in found} == {
        "1": {"audit": "pending", "hook": "dead"},
        "2": {"audit": "pending", "hook": "pending"},
        "3": {"audit": "dead"},
    }
    assert found[0]["payload"] == {"n": 1}
    alerts = json.loads(events("list", "--ledger", told, "--alerts", "--json").out)
    assert [(e["event_key"], e["severity"]) for e in alerts] == [("3", "warning")]
    text = events("list", "--ledger", told, "--limit", "1").out
    assert "delivered to" in text


def test_dead_letters_are_counted_and_then_retried(told, events):
    before = states(told)
    assert events("retry", "--ledger", told, "--dry-run").out == "2 dead letters would be retried\n"
    assert states(told) == before
    assert events("retry", "hook", "--ledger", told).out == "1 of 1 dead letters retried\n"
    assert states(told)["hook/default/1"] == ("pending", 0)
    assert states(told)["audit/default/3"] == ("dead", 12)
    done = json.loads(events("retry", "--ledger", told, "--reason", "fixed", "--json").out)
    assert done == {"dead": 1, "retried": 1, "skipped": {}, "dry_run": False}
    assert {status for status, _ in states(told).values()} == {"pending"}


def test_who_is_not_there_is_said(told, events):
    refused = events("retry", "nobody", "--ledger", told)
    assert refused.code == 2
    assert refused.err == "penstock: no subscriber is called 'nobody'; this ledger has audit, hook\n"


def test_a_ledger_without_subscribers_has_nothing_to_retry(ledger_url, events):
    Ledger.open(ledger_url, [INVOICE], create=True).close()
    refused = events("retry", "--ledger", ledger_url)
    assert refused.code == 2
    assert refused.err == "penstock: nobody has subscribed to events of this ledger; there is nothing to retry\n"
    assert events("list", "--ledger", ledger_url).out == "no events yet\n"

"""What became of gates: one row for each change, and none for a call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.ledger.care.prune import GATES, Ages, Pruner
from penstock.ledger.gates.budget import Pass
from penstock.ledger.gates.log import gate_history
from penstock.model.clock import Rng
from penstock.model.limits import GateLimits, Limit
from tests.support.gating import EMPTY, GATE, crowd
from tests.support.hand import Hand
from tests.support.machines import invoice
from tests.support.world import World, after

DAY = 86_400.0
ROW = "INSERT INTO gate_log (gate_id, what, at, epoch) VALUES ('a', 'closed', '2026-11-15T00:00:00.000Z', 1)"


def told(world: World, gate: str = GATE) -> list[tuple[Any, ...]]:
    """What, until, by whom and under which epoch, oldest first."""
    found = gate_history(world.ledger.database, gate, most=100)
    return [(one.what, one.until, one.by, one.epoch) for one in reversed(found)]


def test_a_hundred_throttles_in_flight_are_one_row(world):
    crowd(world, 100)
    passes = world.worker("invoice").take({"invoice": 100}).passes
    for n in range(100):
        world.ledger.gates.throttle(passes[GATE], 10 + n / 10, "429", 0.0)
    assert told(world) == [("closed", after(10), "provider", 1)]


def test_closing_probing_and_opening(world):
    crowd(world, 3)
    gates = world.ledger.gates
    gates.throttle(EMPTY, 10, "429", 0.0)
    world.time.advance(11)
    taken = world.worker("invoice").take({"invoice": 3})
    assert taken.passes[GATE].probe
    gates.worked(taken.passes[GATE])
    gates.worked(taken.passes[GATE])
    assert told(world) == [
        ("closed", after(10), "provider", 1),
        ("probe", after(71), None, 1),
        ("opened", None, None, 1),
    ]
    (newest, *_) = gate_history(world.ledger.database, GATE, most=1)
    assert (newest.reason, newest.at) == ("a call came through", after(11))


def test_the_breaker_closes_and_a_call_opens(world):
    crowd(world, 1)
    gates = world.ledger.gates
    for failures in range(6):
        since = None if failures == 0 else after(0)
        gates.fail(Pass(GATE, 0, failures=failures, failing_since=since), "no answer", 0.0)
    assert told(world) == [("closed", after(60), "breaker", 1)]
    gates.worked(Pass(GATE, 1, probe=True))
    assert [what for what, *_ in told(world)] == ["closed", "opened"]


def test_holding_and_letting_go(world):
    world.born(invoice("1", gate_id="shop/acme/read"), invoice("2", gate_id="shop/acme/write"))
    gates = world.ledger.gates
    gates.pause("shop/acme/read", "operator:ana", "a talk")
    gates.stop("shop/acme/write", "wrong password", "v1")
    gates.stop("shop/acme/write", "wrong password", "v1")
    world.born(invoice("3", gate_id="shop/acme/extra"))
    gates.reconfigured("v2")
    gates.resume("shop", "operator:bob")
    assert told(world, "shop/acme/read") == [("paused", None, "operator:ana", 0), ("resumed", None, "operator:bob", 0)]
    stopped = [("stopped", None, "fatal", 0), ("resumed", None, "configuration", 0)]
    assert told(world, "shop/acme/write") == stopped
    assert told(world, "shop/acme/extra") == stopped, "born held"


def test_a_person_closes_a_gate_for_a_while(world):
    world.ledger.gates.close("shop", 60, "paused by operator:ana: a talk", "operator:ana")
    assert told(world, "shop") == [("paused", after(60), "operator:ana", 0)]


def test_budgets_that_change(world):
    gates = world.ledger.gates
    gates.providers = [GateLimits("shop", (Limit("requests", 2.0, 40),))]
    world.born(invoice("1", gate_id="shop/acme"))
    assert told(world, "shop/acme") == [], "what it is born with is no change"
    gates.learn("shop/acme", "requests", rate=1.0)
    gates.learn("shop/acme", "requests", rate=3.0)
    gates.learn("shop/acme", "requests", left=5.0)
    gates.providers = [GateLimits("shop", (Limit("requests", 4.0, 40),), max_in_flight=3)]
    gates.apply()
    gates.apply()
    assert told(world, "shop/acme") == [("budget", None, "provider", 0), ("budget", None, "configuration", 0)]
    (newest, *_) = gate_history(world.ledger.database, "shop", most=1)
    assert newest.reason == "requests 4/s, burst 40, cost 1; 3 in flight"


def test_pages_and_moments(world):
    gates = world.ledger.gates
    for n in range(5):
        gates.close("a", 10.0 + n, f"the {n}th")
        world.time.advance(1)
    database = world.ledger.database
    first = gate_history(database, "a", most=2)
    assert [one.reason for one in first] == ["the 4th", "the 3th"]
    assert [one.reason for one in gate_history(database, "a", most=2, before=first[-1].seq)] == ["the 2th", "the 1th"]
    assert [one.reason for one in gate_history(database, "a", most=9, until=after(1))] == ["the 1th", "the 0th"]


def test_rows_cannot_be_changed_or_deleted(hand: Hand):
    hand.type(ROW)
    for sql in ("UPDATE gate_log SET what = 'opened'", "DELETE FROM gate_log"):
        assert "gate_log is append-only" in hand.refused(sql)
    assert "what" in hand.refused(ROW.replace("'closed'", "'ajar'"))


def test_rows_cannot_be_replaced(sqlite_hand: Hand):
    sqlite_hand.type(ROW)
    replacing = ROW.replace("INSERT", "REPLACE").replace("(gate_id", "(seq, gate_id").replace("('a'", "(1, 'b'")
    assert "cannot be replaced" in sqlite_hand.refused(replacing)
    assert sqlite_hand.refused(replacing.replace("(1,", "(-1,"))


def test_truncation_is_refused(postgres_hand: Hand):
    assert "append-only" in postgres_hand.refused("TRUNCATE gate_log")


@pytest.mark.parametrize("age", [timedelta(days=30), None])
def test_old_rows_are_pruned(world, age):
    gates = world.ledger.gates
    gates.close("a", 10, "old")
    world.time.advance((40 if age else 100) * DAY)
    gates.close("a", 10, "young")
    pruner = Pruner(world.ledger.database, Ages(older_than=age), who="operator:ana", rng=Rng())
    assert {one.what: one.rows for one in pruner.counts()}["changes of gates"] == 1
    assert pruner.prune()[GATES] == 1
    assert [one.reason for one in gate_history(world.ledger.database, "a", most=9)] == ["young"]

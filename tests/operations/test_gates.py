"""`penstock gates`: what people see of gates, and what they do to them."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.app.app import App
from penstock.model.errors import UsageError
from penstock.model.limits import GateLimits, Limit
from penstock.settings.kernel import GateSettings, KernelSettings
from tests.operations.conftest import NOW, ORDERS, Desk, Order


@pytest.fixture
def gated(ledger_url):
    """Three gates of one provider and one of another; a third is in the configuration alone."""
    made = Desk(ledger_url, App(ORDERS), kernel=KernelSettings(gates={"books": GateSettings()}))
    made.ledger.gates.providers = [GateLimits("shop", (Limit("requests", 2.0, 40),), max_in_flight=5)]
    gates = ("shop/acme/write", "shop/acme/read", "shop/globex", "ads/acme")
    made.born(*(Order(shop="s", number=n, gate_id=gate, due_at=NOW) for n, gate in enumerate(gates)))
    yield made
    made.ledger.close()


def listed(desk, gate=None):
    return {row.gate: row for row in desk.read("gates list", gate=gate).rows}


def test_gates_are_listed_with_budget_and_queue(gated):
    found = listed(gated)
    assert set(found) == {"shop/acme/write", "shop/acme/read", "shop/globex", "ads/acme"}
    gate = found["shop/globex"]
    assert (gate.state, gate.waiting, gate.inside, gate.most_inside) == ("open", 1, 0, 5)
    assert [(one.name, one.rate, one.burst) for one in gate.limits] == [("requests", 2.0, 40.0)]
    assert gate.budget.startswith("requests ")
    assert found["ads/acme"].limits == []
    assert set(listed(gated, "shop/acme")) == {"shop/acme/write", "shop/acme/read"}


def test_a_provider_is_paused_and_resumed_whole(gated):
    planned = gated.plan("gates pause", gate="shop")
    assert (planned.preview.says, planned.preview.count) == ("pause 3 gates", 3)
    assert {row.state for row in listed(gated).values()} == {"open"}
    assert gated.do("gates pause", gate="shop", seen=planned.preview.digest).count == 3
    found = listed(gated)
    assert {name: row.state for name, row in found.items() if row.state != "paused"} == {"ads/acme": "open"}
    assert (found["shop/globex"].by, found["shop/globex"].reason) == ("operator:jo", "because")
    gated.born(Order(shop="s", number=9, gate_id="shop/initech"))
    assert gated.rows("SELECT event_type, severity FROM event_log") == [("gate.paused", "info")]
    assert listed(gated)["shop/initech"].state == "paused", "born held"
    assert gated.do("gates resume", gate="shop", reason="").count == 5, "the provider itself has one now"
    assert {row.state for row in listed(gated).values()} == {"open"}
    assert gated.plan("gates resume", gate="shop").preview.count == 0


def test_a_pause_may_end_by_itself(gated):
    planned = gated.plan("gates pause", gate="ads/acme", span=timedelta(hours=6))
    assert planned.preview.says == "pause 1 gate for 6h"
    gated.do("gates pause", gate="ads/acme", span=timedelta(hours=6))
    gate = listed(gated)["ads/acme"]
    assert (gate.state, gate.until) == ("closed", NOW + timedelta(hours=6))
    assert "because" in gate.reason


def test_a_gate_of_the_configuration_is_paused_before_it_is_made(gated):
    assert gated.do("gates pause", gate="books").count == 1
    gated.born(Order(shop="s", number=9, gate_id="books/acme"))
    assert listed(gated)["books/acme"].state == "paused"


@pytest.mark.parametrize("name", ["gates list", "gates pause", "gates resume"])
def test_an_unknown_gate_is_named_with_its_neighbours(gated, name):
    with pytest.raises(UsageError, match="no gate is called 'shop/acme/rite'; there is shop/acme/write"):
        (gated.read if name == "gates list" else gated.plan)(name, gate="shop/acme/rite")
    with pytest.raises(UsageError, match="no gate is called"):
        (gated.read if name == "gates list" else gated.plan)(name, gate="sh%")


def test_a_gate_that_has_the_name_within_it_is_the_first_neighbour(gated):
    for number, gate in enumerate(("accounting/acme", "accounting/globex", "prices/shop", "shopify/eu")):
        gated.born(Order(shop="z", number=number, gate_id=gate))
    with pytest.raises(UsageError, match=r"no gate is called 'pric'; there is prices/shop, and \d+ more$"):
        gated.plan("gates pause", gate="pric")
    with pytest.raises(
        UsageError, match=r"'oting'; there is accounting/acme, accounting/globex, ads/acme, and \d+ more$"
    ):
        gated.plan("gates pause", gate="oting")


def test_a_new_ledger_says_when_gates_are_made(desk):
    assert desk.read("gates list").note == "no gates yet: one is made when a unit first needs it"


def test_gates_are_listed_as_they_stood(gated):
    before = gated.clock.now()
    gated.later(minutes=1)
    gated.do("gates pause", gate="shop/acme")
    gated.do("gates pause", gate="ads/acme", span=timedelta(minutes=30))
    gated.later(minutes=10)
    held = gated.clock.now()
    gated.later(hours=1)
    gated.do("gates resume", gate="shop/acme", reason="")

    def stood(at):
        return {row.gate: row.state for row in gated.read("gates list", at=at).rows}

    assert set(stood(before).values()) == {"open"}
    assert stood(held) == {
        "ads/acme": "closed",
        "shop/acme": "paused",
        "shop/acme/read": "paused",
        "shop/acme/write": "paused",
        "shop/globex": "open",
    }
    assert stood(gated.clock.now())["ads/acme"] == "open", "its time is over"
    (row,) = gated.read("gates list", gate="ads/acme", at=held).rows
    assert (row.until, row.waiting, row.by) == (NOW + timedelta(minutes=31), None, "operator:jo")
    assert "because" in row.reason

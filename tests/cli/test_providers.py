"""`penstock providers`: what people see of gates, and what they do to them."""

from __future__ import annotations

import functools
import json

import pytest

from penstock.ledger.ledger import Ledger
from penstock.model.limits import GateLimits, Limit
from penstock.model.machine import Actor
from tests.support.machines import INVOICE, invoice


@pytest.fixture
def gated(ledger_url):
    """Address of a ledger with three gates of one provider and one of another."""
    with Ledger.open(ledger_url, [INVOICE], create=True) as ledger:
        ledger.gates.providers = [GateLimits("shop", (Limit("requests", 2.0, 40),), max_in_flight=5)]
        gates = ("shop/acme/write", "shop/acme/read", "shop/globex", "ads/acme")
        ledger.birth([invoice(str(n), gate_id=g) for n, g in enumerate(gates)], actor=Actor.API, who="test")
    return ledger_url


@pytest.fixture
def providers(penstock, tmp_path):
    return functools.partial(penstock, "providers", cwd=tmp_path)


def listed(providers, url, *names):
    return {g["gate_id"]: g for g in json.loads(providers("list", *names, "--ledger", url, "--json").out)}


def test_gates_are_listed_with_budget_and_queue(gated, providers):
    found = listed(providers, gated)
    assert set(found) == {"shop/acme/write", "shop/acme/read", "shop/globex", "ads/acme"}
    gate = found["shop/globex"]
    assert (gate["state"], gate["waiting"], gate["in_flight"], gate["max_in_flight"]) == ("open", 1, 0, 5)
    assert [(x["name"], x["rate"], x["burst"]) for x in gate["limits"]] == [("requests", 2.0, 40.0)]
    assert found["ads/acme"]["limits"] == []
    assert set(listed(providers, gated, "shop/acme")) == {"shop/acme/write", "shop/acme/read"}
    text = providers("list", "--ledger", gated).out
    assert "shop/globex" in text
    assert "requests" in text


def test_a_provider_is_paused_and_resumed_whole(gated, providers):
    dry = providers("pause", "shop", "--reason", "they migrate", "--dry-run", "--ledger", gated).out
    assert dry.startswith("would pause 3 gates\n")
    assert {g["state"] for g in listed(providers, gated).values()} == {"open"}
    done = providers("pause", "shop", "--reason", "they migrate", "--by", "jo", "--ledger", gated, "--json").out
    assert len(json.loads(done)["gates"]) == 3
    found = listed(providers, gated)
    assert {n: g["state"] for n, g in found.items() if g["state"] != "paused"} == {"ads/acme": "open"}
    assert (found["shop/globex"]["by"], found["shop/globex"]["reason"]) == ("operator:jo", "they migrate")
    with Ledger.open(gated, [INVOICE]) as ledger:
        ledger.birth([invoice("9", gate_id="shop/initech")], actor=Actor.API, who="test")
        kinds = ledger.read(lambda c: c.rows("SELECT event_type, severity FROM event_log"))
    assert [tuple(k) for k in kinds] == [("gate.paused", "info")]
    assert listed(providers, gated)["shop/initech"]["state"] == "paused", "born held"
    providers("resume", "shop", "--ledger", gated)
    assert {g["state"] for g in listed(providers, gated).values()} == {"open"}


def test_a_row_is_one_line_in_a_pipe(gated, providers):
    reason = "they migrate their shops to another cluster and asked everybody to stay away until Monday"
    providers("pause", "shop/globex", "--reason", reason, "--ledger", gated)
    text = providers("list", "--ledger", gated).out
    assert [line for line in text.splitlines() if "shop/globex" in line and reason in line]


def test_a_pause_may_end_by_itself(gated, providers):
    providers("pause", "ads/acme", "--reason", "quota", "--for", "6h", "--ledger", gated)
    gate = listed(providers, gated)["ads/acme"]
    assert (gate["state"], gate["until"] is not None) == ("closed", True)
    assert "quota" in gate["reason"]


@pytest.mark.parametrize("command", [["list"], ["pause", "--reason", "x"], ["resume"]], ids=lambda c: c[0])
def test_an_unknown_gate_is_named_with_its_neighbours(gated, providers, command):
    name, *rest = command
    found = providers(name, "shop/acme/rite", *rest, "--ledger", gated)
    assert found.code == 2
    assert "no gate is called 'shop/acme/rite'; there is shop/acme/write" in found.err


def test_a_span_that_cannot_be_read_changes_nothing(gated, providers):
    assert providers("pause", "shop", "--reason", "x", "--for", "soon", "--ledger", gated).code == 2
    assert {g["state"] for g in listed(providers, gated).values()} == {"open"}

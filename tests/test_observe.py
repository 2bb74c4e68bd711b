"""Metrics and alerts: one catalogue, documented whole; the numbers are the ledger's."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from penstock.app.app import App
from penstock.app.metrics import Metrics, catalogue
from penstock.app.shipped import SHIPPED, shipped
from penstock.model.errors import LedgerBusy
from penstock.observe.catalogue import Metric, Sample, distribution, prometheus_name
from penstock.observe.metrics import of_ledger, render
from penstock.operations.alerts.defaults import POLICIES
from tests.operations.conftest import NOW, ORDERS, Desk
from tests.support.pages import ROOT

EVERY = App(*map(shipped, SHIPPED))


def lines(text: bytes) -> dict[str, float]:
    """The samples of a text for Prometheus."""
    found = re.findall(r"^([^#\s]\S*(?:\{.*\})?) (\S+)$", text.decode(), re.MULTILINE)
    return {name: float(value) for name, value in found}


@pytest.mark.parametrize("metric", catalogue(EVERY), ids=lambda metric: metric.name)
def test_every_metric_is_documented(metric):
    text = (ROOT / "docs" / "metrics.md").read_text()
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    assert f"\n| `{prometheus_name(metric)}` | {metric.kind} | {labels} | {metric.says} |\n" in text


def test_every_policy_has_its_entry_in_the_runbook():
    text = (ROOT / "docs" / "alerts.md").read_text()
    names = [one.name for one in (*POLICIES, *(p for lifecycle in EVERY.own for p in lifecycle.policies))]
    assert len(names) == len(set(names))
    assert [name for name in names if f"\n### {name}\n" not in text] == []
    assert sorted(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == sorted(names)


@pytest.mark.parametrize(
    ("name", "kind", "warning", "critical", "severity"),
    [
        # What the documents of the lifecycles say: more than 3 % and 10 % failed, more than 50 and 100 dead letters.
        ("rule_success_rate", "rule_success_rate", 0.03, 0.10, None),
        ("rule_dead_letters", "rule_dead_letters", 51, 101, None),
        ("success_rate", "success_rate", 0.03, 0.10, None),
        ("dead_letters", "dead_letters", 1, 101, None),
        ("throttle_burst", "throttles", 4, None, None),  # more than three
        ("gate_down", "gates", None, None, "critical"),
        ("harvest_failed", "event", None, None, "critical"),
        ("watermark_unpublished", "event", None, None, "critical"),
        ("sheet_failing", "sheet_failing", None, None, "critical"),
        ("stale_flow", "stale_flow", None, None, "warning"),
        ("stuck_units", "stuck", 1, None, None),
        ("quota", "quota", None, None, "warning"),
        ("doctor", "doctor", None, None, "warning"),
    ],
)
def test_the_policies_in_force_where_nothing_is_configured(name, kind, warning, critical, severity):
    known = {one.name: one for one in (*POLICIES, *(p for lifecycle in EVERY.own for p in lifecycle.policies))}
    policy = known[name]
    assert (policy.kind, policy.warning, policy.critical) == (kind, warning, critical)
    assert severity is None or policy.severity == severity
    if name == "throttle_burst":
        assert policy.window == timedelta(minutes=5)


def test_every_policy_has_a_condition_or_events():
    kinds = {kind for lifecycle in EVERY.own for kind in lifecycle.conditions}
    from penstock.operations.alerts.conditions import CONDITIONS

    for one in (*POLICIES, *(p for lifecycle in EVERY.own for p in lifecycle.policies)):
        assert one.kind in {*kinds, *CONDITIONS} or one.events or one.name in ("critical_event", "test"), one.name


@pytest.fixture
def desk(ledger_url):
    made = Desk(ledger_url, App(ORDERS, shipped("rules")))
    yield made
    made.ledger.close()


def test_what_the_ledger_says(desk):
    desk.orders(3)
    desk.fail("order:acme/1", "no")
    desk.ledger.gates.close("shop/acme", 600, "quiet")
    desk.later(minutes=2)
    metrics = Metrics(
        desk.program, desk.ledger.database, lambda: {"": {"reaped": 2}, "order": {"claimed": 7, "lost": 1}}
    )
    text, kind = metrics.text()
    found = lines(text)
    assert kind.startswith("text/plain")
    assert found['penstock_units{machine="order",state="new"}'] == 2
    assert found['penstock_units_dead{machine="order"}'] == 1
    assert found['penstock_due{machine="order"}'] == 2
    assert found['penstock_queue_age_seconds{machine="order"}'] == 120
    assert found['penstock_gate_open{gate="shop/acme"}'] == 0
    assert found['penstock_claims_total{flow="order"}'] == 7
    assert found['penstock_claims_lost_total{flow="order"}'] == 1
    assert found["penstock_units_reaped_total"] == 2
    assert found["rules_apply_count_total"] == 0
    assert found['rules_apply_duration_seconds_bucket{le="+Inf"}'] == 0
    assert "rules_apply_success_rate" not in found  # nothing has run yet
    desk.fail("order:acme/2", "no")
    assert lines(metrics.text()[0]) == found  # a few seconds are not asked twice
    desk.later(seconds=6)
    assert lines(metrics.text()[0])['penstock_units_dead{machine="order"}'] == 2


def test_units_behind_a_closed_gate_are_not_due(desk):
    from tests.operations.conftest import Order

    desk.born(Order(shop="acme", number=1, due_at=NOW, gate_id="shop/acme"))
    desk.ledger.gates.close("shop/acme", 600, "quiet")
    found = {(one.name, one.labels): one.value for one in of_ledger(desk.ledger.database, desk.app.machines)}
    assert found["penstock.due", ("order",)] == 0
    assert found["penstock.gate.waiting", ("shop/acme",)] == 1


def test_a_part_that_takes_too_long_is_left_out(desk, monkeypatch):
    def busy(*_):
        raise LedgerBusy("too long")

    monkeypatch.setattr("penstock.observe.metrics._gates", busy)
    names = {one.name for one in of_ledger(desk.ledger.database, desk.app.machines)}
    assert "penstock.units" in names
    assert "penstock.gate.open" not in names


def test_a_histogram_and_hostile_labels():
    metrics = [Metric("run.duration_ms", "histogram", "How long."), Metric("gate.open", "gauge", "Open.", ("gate",))]
    samples = [
        Sample("run.duration_ms", distribution([500, 1_500, 9_000], [1_000, 5_000])),
        Sample("gate.open", 1, ('a"b\n\\c',)),
    ]
    text = render(metrics, samples)[0].decode()
    assert 'run_duration_seconds_bucket{le="1"} 1.0' in text
    assert 'run_duration_seconds_bucket{le="5"} 2.0' in text
    assert "run_duration_seconds_count 3.0" in text
    assert "run_duration_seconds_sum 11.0" in text
    assert 'gate_open{gate="a\\"b\\n\\\\c"} 1.0' in text


def test_the_client_of_prometheus_is_loaded_when_metrics_are_asked_for():
    source = (ROOT / "src" / "penstock").rglob("*.py")
    early = [p.name for p in source if re.search(r"^(from|import) prometheus_client", p.read_text(), re.MULTILINE)]
    assert early == []

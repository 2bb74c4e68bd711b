"""`status`, `workers`, `machines` and `doctor`: the ledger and the program at a glance."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from penstock.app.app import App
from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations.declare import Lines
from penstock.worker.schedule import keep_schedules
from penstock.worker.schedule_unit import Schedule
from tests.operations.conftest import ORDERS, Desk, Price


def test_the_ledger_at_a_glance(desk):
    desk.orders(3)
    desk.ledger.park([Ref("order", "acme/1")], who="jo", reason="odd")
    desk.ledger.gates.close("shop", 60, "slow down")
    worker = desk.ledger.incarnation()
    worker.register()
    found = desk.read("status")
    orders = next(row for row in found.machines if row.machine == "order")
    assert (orders.units, orders.due, orders.parked, orders.claimed, orders.served) == ("3 new", 2, 1, 0, True)
    assert (
        [row.worker for row in found.workers] == [worker.identity.id] == [r.worker for r in desk.read("workers").rows]
    )
    assert [(row.gate, row.state) for row in found.gates] == [("shop", "closed")]
    assert next(row for row in found.machines if row.machine == "price").due is None
    assert found.notes == []
    assert msgspec.json.encode(found)


def test_a_ledger_that_nobody_works_on_says_so(desk):
    assert desk.read("status").notes == ["no worker is running"]
    assert desk.read("workers").note == "no worker is running"


@pytest.fixture
def bereft(desk, ledger_url):
    """The same ledger under a configuration that no longer has the lifecycle."""
    desk.orders(3)
    desk.born(Price(name="a"))
    made = Desk(ledger_url, App(), clock=desk.clock)
    yield made
    made.ledger.close()


def test_units_of_a_lifecycle_that_was_switched_off_rest_and_it_is_said(bereft):
    rest = "order: 3 units rest; no lifecycle of this configuration serves them"
    one = "price: 1 unit rests; no lifecycle of this configuration serves it"
    found = bereft.read("status")
    assert found.notes == ["no worker is running", rest, one]
    assert {row.machine: row.served for row in found.machines}["order"] is False
    said = [(row.severity, row.subject, row.message) for row in bereft.read("doctor").findings if row.check == "served"]
    assert [f"{subject}: {message}" for _, subject, message in said] == [rest, one]
    assert {severity for severity, *_ in said} == {"warning"}


def test_machines_say_what_their_states_mean(desk):
    rows = {(row.machine, row.state): row for row in desk.read("machines").rows}
    failed = rows["order", "failed"]
    assert (failed.meaning, failed.says, failed.leads_to) == ("fault", "the shop refused it", "retry → new")
    assert [(one.target, one.actors, one.by_hand) for one in failed.edges] == [("new", ["operator"], True)]
    assert (rows["order", "sent"].final, rows["order", "new"].born_by) == (True, ["api", "operator"])
    assert ("schedule", "active") in rows
    assert {row.machine for row in desk.read("machines", machine="price").rows} == {"price"}
    drawn = desk.read("machines", machine="price", format="mermaid")
    assert isinstance(drawn, Lines)
    assert next(iter(drawn.lines)) == "stateDiagram-v2"
    with pytest.raises(UsageError, match="did you mean order"):
        desk.read("machines", machine="ordr")


def test_the_doctor_finds_a_late_schedule_and_fails(desk):
    well = desk.read("doctor")
    assert (well.failed, well.findings) == (False, [])
    assert (well.verdict, well.checks[0]) == ("all is well", "states")
    keep_schedules(desk.ledger, [Schedule(name="often", job="prune", every="5m")], "test")
    due = desk.clock.now() + timedelta(days=30)
    ref = Ref("schedule", "often")
    desk.ledger.move(ref, "active", actor=Actor.SCHEDULER, who="a wrong clock", reason="x", due_at=due)
    seen = []
    ask = desk.ask().watched(lambda done, total: seen.append((done, total)))
    found = desk.declared["doctor"](ask)
    assert found.failed
    (row,) = found.findings
    assert (row.severity, row.check, row.subject) == ("error", "schedules", "schedule:often")
    assert f"is due at {instant_text(due)}, and its next tick is at" in row.message
    assert found.verdict == "1 error, 0 warnings"
    assert [done for done, _ in seen] == list(range(len(found.checks) - 1))


def test_warnings_of_the_settings_are_findings(ledger_url):
    import dataclasses

    warned = dataclasses.replace(ORDERS, warnings=lambda settings: ["the shop is a test shop"])
    desk = Desk(ledger_url, App(warned))
    found = desk.read("doctor")
    assert [(row.severity, row.check, row.message) for row in found.findings] == [
        ("warning", "configuration", "the shop is a test shop")
    ]
    assert not found.failed
    desk.ledger.close()

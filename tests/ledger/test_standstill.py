"""Standstills that `doctor` names, each made on purpose; and busy ledgers, which it finds well."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from penstock.ledger.care.doctor import examine
from penstock.ledger.care.finding import Finding
from penstock.model.clock import instant_text
from penstock.model.limits import GateLimits, Limit
from penstock.model.machine import Actor
from penstock.model.outcome import Outcome
from penstock.model.unit import replace
from tests.support.machines import DUE, InvoiceState, batch_item, batch_run, feed, invoice
from tests.support.more_machines import ParcelState, parcel
from tests.support.world import ALL_MACHINES, after

KNOWN = {m.name: m for m in ALL_MACHINES}
DEADLINES = {name: timedelta(minutes=5) for name in KNOWN}
OURS = {"claims", "overdue", "due", "families", "clock"}
HOUR = 3_600


def found(world: Any) -> list[tuple[str, str, str, str]]:
    findings: list[Finding] = examine(world.ledger.database, KNOWN, deadlines=DEADLINES)
    return [(f.check, f.subject, f.severity, f.message) for f in findings if f.check in OURS]


def only(world: Any) -> tuple[str, str, str, str]:
    (one,) = found(world)
    return one


def after_an_hour(world: Any, *workers: Any) -> None:
    """An hour passes, and these workers renew their leases all along."""
    for _ in range(HOUR // 20):
        world.time.advance(20)
        for worker in workers:
            assert worker.renew() is not None


# Claims.


@pytest.mark.parametrize("unit", [parcel("a"), invoice("1")], ids=["a claim leaves no state", "a claim is an edge"])
def test_a_claim_that_a_living_worker_has_forgotten(world, unit):
    (ref,) = world.born(unit)
    worker = world.worker()
    assert len(worker.claim({ref.machine: 1})) == 1
    for _ in range(32):
        world.time.advance(20)
        worker.renew()
    assert found(world) == [], "it may have waited for one step, and be in another"
    for _ in range(5):
        world.time.advance(20)
        worker.renew()
    check, subject, severity, message = only(world)
    assert (check, subject, severity) == ("overdue", ref.machine, "error")
    assert message == (
        f"1 unit is claimed by {worker.identity.id} for far longer than a step may take (5 min), the oldest is {ref},"
        f" since {instant_text(DUE)}; restart that worker"
    )


def test_a_claim_that_is_kept_by_commits_is_not_old(world):
    world.born(parcel("a"))
    worker = world.worker()
    (unit,) = worker.claim({"parcel": 1})
    for turn in range(12):
        outcome = Outcome(unit, replace(unit, note=str(turn)), "a page", keep_claim=True)
        (won,) = world.commit(worker, outcome)
        unit = won.unit
        assert found(world) == []
        for _ in range(15):
            world.time.advance(20)
            worker.renew()


def test_the_deadline_is_the_flows(world):
    world.born(parcel("a"))
    worker = world.worker()
    worker.claim({"parcel": 1})
    after_an_hour(world, worker)
    long = {"parcel": timedelta(hours=1)}
    assert not [f for f in examine(world.ledger.database, KNOWN, deadlines=long) if f.check == "overdue"]
    short = {"parcel": timedelta(seconds=30)}
    (finding,) = [f for f in examine(world.ledger.database, KNOWN, deadlines=short) if f.check == "overdue"]
    assert "a step may take (30 s)" in finding.message


def test_a_claim_of_a_worker_that_is_gone(world):
    world.born(parcel("a"))
    worker = world.worker()
    worker.claim({"parcel": 1})
    world.sql("UPDATE worker SET reaped_at = started_at")
    check, subject, severity, message = only(world)
    assert (check, subject, severity) == ("claims", "parcel", "error")
    assert message == f"1 unit is claimed by {worker.identity.id}, which is gone"


# Due, and nobody takes it.


def test_a_machine_that_no_running_worker_serves(world):
    world.born(invoice("2", due_at=after(5)), invoice("1"), parcel("a"))
    other = world.worker("parcel")
    other.claim({"parcel": 1})
    for _ in range(31):
        assert [f for f in found(world) if f[0] == "due"] == []
        world.time.advance(20)
        other.renew()
    after_an_hour(world, other)
    (finding,) = [f for f in found(world) if f[0] == "due"]
    assert finding == (
        *("due", "invoice", "error"),
        (
            "no running worker serves invoice: 2 are due, the oldest is invoice:acme/1, since 2026-01-01T00:00:00.000Z;"
            " start one whose program has it"
        ),
    )
    other.park_unknown()  # what a worker of another machine does with them
    (again,) = [f for f in found(world) if f[0] == "due"]
    assert again == finding


def test_a_machine_behind_a_budget_that_nobody_serves(world):
    world.ledger.gates.providers = [GateLimits("shop", (Limit("requests", 2.0, 40),))]
    world.born(invoice("1", gate_id="shop/acme"))
    after_an_hour(world, world.worker("parcel"))
    assert "no running worker serves invoice: 1 is due" in only(world)[3]


def test_workers_that_serve_a_machine_and_take_nothing(world):
    world.born(invoice("1"), invoice("2"))
    workers = [world.worker("invoice"), world.worker("invoice", "parcel")]
    after_an_hour(world, *workers)
    assert only(world) == (
        *("due", "invoice", "error"),
        (
            "2 workers serve invoice and none takes it: 2 are due, the oldest is invoice:acme/1, since"
            " 2026-01-01T00:00:00.000Z; see their logs, and restart them"
        ),
    )
    world.born(parcel("long"))
    workers[1].claim({"parcel": 1})
    (full,) = [f for f in found(world) if f[0] == "due"]
    assert full[2] == "warning"
    assert full[3].endswith("; meanwhile they hold 1 other unit")


def test_without_any_worker_it_is_said_once(world):
    world.born(invoice("1", due_at=after(60)), invoice("2", due_at=after(90)), parcel("a"), feed("f"))
    world.worker("invoice").retire()
    world.time.advance(HOUR)
    check, subject, severity, message = only(world)
    assert (check, subject, severity) == ("due", "workers", "warning")
    assert message == (
        "no worker is running, and units are due: 1 of feed, 2 of invoice, 1 of parcel; the oldest is"
        " feed:f, since 2026-01-01T00:00:00.000Z; start 'penstock up'"
    )


# Parents.


def parked_item(world: Any) -> Any:
    world.born(batch_run("r"), batch_item(1, run_id="r"), batch_item(2, run_id="r", due_at=None))
    worker = world.worker()
    (unit,) = worker.claim({"batch_item": 1})
    worker.park(unit, "its step killed 3 workers in a row")
    return worker


def test_a_parent_that_waits_for_a_parked_child(world):
    worker = parked_item(world)
    (finding,) = [f for f in found(world) if f[0] == "families"]
    assert finding[1:] == ("batch_run:r", "warning", "waits for 1 parked batch_item: r/1; unpark or end them")
    world.sql("UPDATE batch_item SET parked_at = NULL, parked_reason = NULL, version = version + 1")
    assert [f for f in found(world) if f[0] == "families"] == []
    worker.retire()


def test_a_parent_that_has_ended_waits_for_nobody(world):
    parked_item(world)
    for state in ("running", "failed"):
        world.ledger.move_many("batch_run", ["r"], state, actor=Actor.WORKER, who="test", reason="test", due_at=None)
    assert [f for f in found(world) if f[0] == "families"] == []


# The clock.


def test_units_that_were_changed_in_the_future(world):
    ahead = world.time.now() + timedelta(days=1)
    world.born(invoice("1"), invoice("2", due_at=None), parcel("now"))
    moment = instant_text(ahead)
    as_penstock = f"UPDATE invoice SET version = version + 1, changed_at = '{moment}'"
    world.sql(f"{as_penstock}, due_at = '{moment}' WHERE number = '1'")
    world.sql(f"{as_penstock} WHERE number = '2'")
    assert only(world) == (
        *("clock", "invoice", "warning"),
        (
            f"2 units were last changed in the future, up to {moment}: the clock was set back since; the first is"
            " invoice:acme/1;"
            " 1 of them may be due too late: look at due_at, and wake what should not wait"
        ),
    )
    world.time.advance(86_400 - 30)
    assert [f for f in found(world) if f[0] == "clock"] == []


# Busy and well.


def test_a_busy_ledger_is_well(world):
    """A backlog that is worked off, a closed gate, a budget, a hold, and what is due in the future."""
    world.ledger.gates.providers = [GateLimits("shop", (Limit("requests", 0.001, 1),))]
    world.born(*(invoice(str(n)) for n in range(20)))
    world.born(*(invoice(f"s{n}", gate_id="shop/acme") for n in range(5)))
    world.born(feed("closed", gate_id="closed"), feed("held", gate_id="held"), feed("later", due_at=after(2 * HOUR)))
    world.close_gate("closed", 2 * HOUR)
    world.ledger.gates.pause("held", "jo", "stock-taking")
    worker = world.worker()
    for turn in range(12):
        for _ in range(15):
            world.time.advance(20)
            worker.renew()
        (unit,) = worker.claim({"invoice": 1})
        assert found(world) == [], turn
        after_ = replace(unit, status=InvoiceState.SENT, remote_id="x")
        world.commit(worker, Outcome(unit, after_, "sent"))
        assert found(world) == [], turn
    assert world.one("SELECT count(*) FROM invoice WHERE status = 'QUEUED'") >= 8


def test_what_was_born_late_or_just_freed_is_given_time(world):
    worker = world.worker()
    after_an_hour(world, worker)
    world.born(parcel("born due"), invoice("1"))  # due since an hour
    assert found(world) == []
    (unit,) = worker.claim({"parcel": 1})
    worker.release([(unit, False)])
    assert found(world) == []
    world.worker("feed")
    world.commit(worker, *(Outcome(u, replace(u, status=ParcelState.CLOSED), "x") for u in worker.claim({"parcel": 1})))
    assert found(world) == []


def test_a_worker_that_has_just_come_is_given_time(world):
    world.born(parcel("a"))
    world.time.advance(HOUR)
    world.worker()
    assert found(world) == []

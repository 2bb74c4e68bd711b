"""What lifecycles tell: conditions of their own, and events that fire and resolve the same alert."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import UUID

import pytest

from penstock.app.app import App
from penstock.app.shipped import SHIPPED, shipped
from penstock.ledger.commit import insert_events
from penstock.lifecycles.queries.machine import Query
from penstock.lifecycles.rules.run.machine import R, Run
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations.alerts import book
from penstock.operations.alerts.machine import A
from penstock.operations.alerts.policy import EVENT, SLOW, conditions_of, policies_of
from penstock.operations.alerts.watch import watch
from penstock.testing.work import work_until_idle
from penstock.worker.outbox import keep_subscriptions
from penstock.worker.worker import WorkerSettings
from tests.operations.conftest import NOW, Desk

LOOKING = WorkerSettings(lease_ms=600_000, renew_seconds=200.0, idle_seconds=1.0, unknown_seconds=1e9)


@pytest.fixture
def desk(ledger_url):
    made = Desk(ledger_url, App(shipped("rules"), shipped("queries"), shipped("harvest")))
    yield made
    made.ledger.close()


def look(desk):
    kinds = [kind for kind in (EVENT, *conditions_of(desk.program)) if kind not in SLOW]
    return watch(desk.program, desk.ledger, desk.clock.now(), "test", kinds)


def found(desk):
    return {row.alert: (row.status, row.severity) for row in desk.read("alerts list", resolved=True).rows}


def ended_run(desk, number, applied, failed):
    """A run that has ended, with so many targets."""
    now = desk.clock.now()
    run = Run(
        id=UUID(int=number), account="shop", currency="EUR", rule_name="cut", rule_version=1, metadata={},
        created_at=now, target_count=applied + failed,
    )  # fmt: skip
    desk.ledger.birth([run], actor=Actor.API, who="test")
    ref = Ref("rule_run", str(run.id))
    for target, actor, changes in (
        (R.QUEUED, Actor.API, {"queued_at": now, "previewed_at": now, "preview_digest": "d"}),
        (R.APPLYING, Actor.WORKER, {"started_at": now}),
        (R.PARTIAL, Actor.WORKER, {"finished_at": now, "applied_count": applied, "failed_count": failed}),
    ):
        desk.ledger.move(ref, target, actor=actor, who="test", reason="test", **changes)
    return f"rule_run:{run.id}"


def test_the_success_rate_of_the_last_run(desk):
    few = ended_run(desk, 1, 10, 9)
    look(desk)
    assert book.find(desk.ledger, "rule_success_rate", few) is None  # nineteen targets say nothing
    desk.later(minutes=1)
    poor = ended_run(desk, 2, 95, 5)
    look(desk)
    one = book.find(desk.ledger, "rule_success_rate", poor)
    assert one is not None
    assert (one.status, one.severity, one.facts) == (A.FIRING, "warning", {"applied": 95, "failed": 5})
    desk.later(minutes=1)
    bad = ended_run(desk, 3, 80, 20)
    look(desk)
    assert found(desk) == {
        f"rule_success_rate/{poor}": ("resolved", "warning"),
        f"rule_success_rate/{bad}": ("firing", "critical"),
    }
    desk.later(minutes=1)
    ended_run(desk, 4, 97, 3)  # exactly 97 % is good enough
    look(desk)
    assert {status for status, _ in found(desk).values()} == {"resolved"}


def test_queries_that_fail_or_are_silent(desk):
    silent = NOW - timedelta(days=365)
    queries = [
        Query(query_key="a", client="jobs", name="python", consecutive_failures=3, error="500"),
        Query(query_key="b", client="jobs", name="java", consecutive_failures=10, error="500"),
        Query(query_key="c", client="jobs", name="sales", consecutive_failures=2, last_found_at=silent),
        Query(query_key="d", client="jobs", name="new", last_found_at=NOW),
    ]
    desk.ledger.birth(queries, actor=Actor.SCHEDULER, who="test")
    look(desk)
    assert found(desk) == {
        "query_failing/python": ("firing", "warning"),
        "query_failing/java": ("firing", "critical"),
        "query_silent/sales": ("firing", "warning"),
    }


def test_a_harvest_that_failed_is_over_when_one_has_completed(desk):
    keep_subscriptions(desk.ledger, desk.program.subscribers())
    database = desk.ledger.database

    def write(kind, severity, key):
        said = json.dumps({"feed": "diamonds", "reason": "two partitions failed"})
        row = ["default", key, kind, severity, said, None, None]
        database.write(lambda cursor: insert_events(database, cursor, [row]))
        work_until_idle(desk.ledger, desk.program.flows_of(desk.app.lifecycles[0]), settings=LOOKING)
        desk.later(minutes=1)

    write("harvest.failed", "critical", "1")
    assert found(desk) == {"harvest_failed/diamonds": ("firing", "critical")}
    write("harvest.watermark_unpublished", "critical", "2")
    write("harvest.watermark_advanced", None, "3")
    assert found(desk)["harvest_failed/diamonds"] == ("resolved", "critical")
    assert found(desk)["watermark_unpublished/diamonds"] == ("firing", "critical")
    write("harvest.watermark_published", None, "4")
    assert found(desk)["watermark_unpublished/diamonds"] == ("resolved", "critical")
    write("harvest.repriced", None, "5")  # nothing was left unpriced
    write("harvest.repriced", "warning", "6")
    assert found(desk)["unpriced_records/diamonds"] == ("firing", "warning")


def test_every_look_of_a_program_with_all_lifecycles_answers(ledger_url):
    desk = Desk(ledger_url, App(*map(shipped, SHIPPED)))
    done = look(desk)
    assert (str(done), done.failed) == ("nothing changed", 0)
    assert len(policies_of(desk.program)) > 30
    desk.ledger.close()

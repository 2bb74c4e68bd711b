"""Alerts on their way: three workers, real sinks over real sockets, one notification for each change."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections import Counter
from datetime import timedelta

import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from penstock.app.app import App
from penstock.app.program import Program
from penstock.ledger.ledger import Ledger
from penstock.ledger.outbox import subscribers
from penstock.model.clock import SystemClock
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations.alerts.book import fire
from penstock.operations.alerts.policy import Found
from penstock.operations.carry import carry_out, make_plan
from penstock.operations.follow import follow
from penstock.operations.reader import Reader
from penstock.settings.alerts import (
    AlertSettings,
    PagerDutySettings,
    PolicySettings,
    SlackSettings,
    WebhookSettings,
)
from penstock.settings.file import Configuration
from penstock.settings.kernel import KernelSettings
from penstock.settings.secret import Secret
from penstock.settings.typed import Url
from penstock.simulators.server import in_thread
from penstock.worker.outbox import keep_subscriptions
from penstock.worker.schedule import keep_schedules
from penstock.worker.worker import Worker, WorkerSettings
from tests.operations.conftest import ORDERS, O, Order

QUICK = WorkerSettings(idle_seconds=0.05, place_seconds=None)
WAIT = 20.0


class Site:
    """Takes what sinks send, by path, and answers as it was told to."""

    def __init__(self):
        self.calls = []
        self.answers = {}
        self.address = ""

    async def answer(self, request):
        path = request.url.path
        text = (await request.body()).decode()
        self.calls.append((path, json.loads(text) if text else None))
        waiting = self.answers.get(path, [])
        status, headers = waiting.pop(0) if waiting else (200, {})
        return Response("said", status, headers)

    def told(self, path):
        return [body for at, body in self.calls if at == path]

    @property
    def incidents(self):
        return [body["event_action"] for body in self.told("/v2/enqueue")]


class Fleet:
    """A program over a ledger, with as many workers as wanted."""

    def __init__(self, url, alerts):
        self.url, self.app, self.clock = url, App(ORDERS), SystemClock()
        kernel = KernelSettings(alerts=alerts)
        sections = {one.name: one.settings() for one in self.app.own}
        self.program = Program(self.app, Configuration(kernel, sections, version="v1"), self.clock)
        self.ledger = self.open(create=True)
        keep_subscriptions(self.ledger, self.program.subscribers())

    def open(self, *, create=False):
        tables = self.app.data.tables if create else ()
        return Ledger.open(self.url, self.app.machines, create=create, data_tables=tables)

    def ask(self):
        reader = Reader(self.ledger.database, self.app.machines)
        return self.program.ask(self.app.lifecycles[0], reader, self.clock.now(), who="jo", reason="because")

    def plan(self, name, **wanted):
        declared = next(one for one in self.app.lifecycles[0].operations if one.name == name)
        return make_plan(declared, self.ask(), declared.parameters(**wanted), owner="kernel", version="v1")

    def read(self, name, **wanted):
        declared = next(one for one in self.app.lifecycles[0].readings if one.name == name)
        return declared(self.ask(), declared.parameters(**wanted))

    def do(self, name, **wanted):
        return carry_out(self.ledger, self.ask(), self.plan(name, **wanted))

    def deliveries(self):
        rows = self.ledger.read(lambda c: c.rows("SELECT subscriber, status FROM event_delivery"))
        return Counter((str(name), str(status)) for name, status in rows)

    @contextlib.asynccontextmanager
    async def working(self, count):
        ledgers = [self.open() for _ in range(count)]
        workers = [Worker(one, self.program.flows(), QUICK) for one in ledgers]
        tasks = [asyncio.create_task(one.run()) for one in workers]
        try:
            yield
        finally:
            for one in workers:
                one.stop()
            await asyncio.gather(*tasks)
            for one in ledgers:
                one.close()


async def until(true):
    async with asyncio.timeout(WAIT):
        while not true():  # noqa: ASYNC110 - what is waited for is in a ledger, or in another thread
            await asyncio.sleep(0.02)


@pytest.fixture
def site(monkeypatch):
    made = Site()
    application = Starlette(routes=[Route("/{path:path}", made.answer, methods=["GET", "POST"])])
    with in_thread(application) as address:
        monkeypatch.setenv("SLACK_URL", f"{address}/slack")
        monkeypatch.setenv("ROUTING_KEY", "R" * 32)
        monkeypatch.setenv("PING_URL", f"{address}/ping")
        monkeypatch.setenv("HOOK_SECRET", "whsec_" + base64.b64encode(b"k" * 32).decode())
        made.address = address
        yield made


def sinks(site, **more):
    return AlertSettings(
        slack={"room": SlackSettings(url=Secret("env", "SLACK_URL"))},
        pagerduty={"duty": PagerDutySettings(routing_key=Secret("env", "ROUTING_KEY"), url=site.address)},
        webhook={"hook": WebhookSettings(url=Url(f"{site.address}/hook"), secret=Secret("env", "HOOK_SECRET"))},
        log=False,
        **more,
    )


@pytest.fixture
def fleet(ledger_url, site):
    made = Fleet(ledger_url, sinks(site, policies={"dead_letters": PolicySettings(critical=1)}))
    yield made
    made.ledger.close()


def dead_order(fleet):
    fleet.ledger.birth([Order(shop="acme", number=1)], actor=Actor.API, who="test")
    fleet.ledger.move(Ref("order", "acme/1"), O.FAILED, actor=Actor.WORKER, who="w", reason="no", due_at=None)


def look(fleet):
    fleet.ledger.wake([Ref("schedule", "watch-alerts")], who="jo", reason="now")


def test_three_workers_tell_each_change_once(fleet, site):
    dead_order(fleet)
    keep_schedules(fleet.ledger, fleet.program.schedules(), "test")

    async def main():
        async with fleet.working(3):
            await until(lambda: site.incidents == ["trigger"])
            await asyncio.to_thread(fleet.do, "alerts ack", alerts=("dead_letters/order",))
            await until(lambda: len(site.incidents) == 2)
            await asyncio.to_thread(fleet.do, "dead dismiss", machine="order")
            await asyncio.to_thread(look, fleet)
            await until(lambda: len(site.incidents) == 3)
            await until(lambda: not any(status == "pending" for _, status in fleet.deliveries()))

    asyncio.run(main())
    assert site.incidents == ["trigger", "acknowledge", "resolve"]
    assert len(site.told("/slack")) == len(site.told("/hook")) == 3
    assert Counter(body["type"] for body in site.told("/hook")) == {
        "alert.firing": 1,
        "alert.acknowledged": 1,
        "alert.resolved": 1,
    }


def test_a_sink_that_throttles_is_waited_for_and_one_that_refuses_leaves_a_dead_letter(fleet, site):
    site.answers = {"/slack": [(429, {"Retry-After": "1"})], "/hook": [(400, {})]}
    fire(fleet.ledger, "gate_down", Found("shop/acme", "critical", "it is down"), fleet.clock.now(), "test")

    async def main():
        async with fleet.working(1):
            await until(lambda: len(site.told("/slack")) == 2)
            await until(lambda: not any(status == "pending" for _, status in fleet.deliveries()))

    asyncio.run(main())
    assert fleet.deliveries() == {
        ("alert.slack.room", "delivered"): 1,
        ("alert.pagerduty.duty", "delivered"): 1,
        ("alert.webhook.hook", "dead"): 1,
    }


def test_a_sink_gets_only_what_it_wants(fleet, site):
    fire(fleet.ledger, "long_wait", Found("shop/acme", "warning", "two days"), fleet.clock.now(), "test")

    async def main():
        async with fleet.working(1):
            await until(lambda: not any(status == "pending" for _, status in fleet.deliveries()))

    asyncio.run(main())
    assert (len(site.told("/slack")), site.incidents) == (1, [])
    assert fleet.deliveries() == {
        ("alert.slack.room", "delivered"): 1,
        ("alert.webhook.hook", "delivered"): 1,
        ("alert.pagerduty.duty", "unwanted"): 1,
    }
    (row,) = [one for one in fleet.read("events list").rows if one.kind == "alert.firing"]
    assert row.told == "alert.slack.room, alert.webhook.hook"
    assert subscribers_of(fleet) == ["alert.pagerduty.duty", "alert.slack.room", "alert.webhook.hook"]


def subscribers_of(fleet):
    return [name for name in subscribers(fleet.ledger.database) if name.startswith("alert.")]


def test_a_test_goes_through_every_sink_and_says_what_came_of_it(fleet, site):
    site.answers = {"/hook": [(404, {})]}
    for round_ in (1, 2):
        planned = fleet.plan("alerts test")
        carry_out(fleet.ledger, fleet.ask(), planned)
        page = followed(fleet, planned)
        assert page.failed is (round_ == 1)
        assert {row.sink: row.status for row in page.rows} == {
            "alert.slack.room": "delivered",
            "alert.pagerduty.duty": "delivered",
            "alert.webhook.hook": "dead" if round_ == 1 else "delivered",
        }
    assert site.incidents == ["trigger", "trigger"]
    planned = fleet.plan("alerts test", sink="alert.slack.room")
    carry_out(fleet.ledger, fleet.ask(), planned)
    followed(fleet, planned)
    assert len(site.told("/slack")) == 3
    with pytest.raises(UsageError, match=r"called 'alert\.slack\.other'; there is alert\.slack\.room, alert\.p"):
        fleet.plan("alerts test", sink="alert.slack.other")


def followed(fleet, planned):
    """What a command shows in the end."""
    wanted = planned.plan.follow
    follow(fleet.ledger, fleet.program.flows(), wanted.ref, wanted.until, worked=wanted.worked)
    return wanted.show(fleet.ask())


def test_a_test_of_one_sink_is_told_to_no_other(fleet, site):
    planned = fleet.plan("alerts test", sink="alert.slack.room")
    done = carry_out(fleet.ledger, fleet.ask(), planned)
    assert done.follows == "alert:test/alert.slack.room"
    assert not followed(fleet, planned).failed

    async def main():
        async with fleet.working(1):
            await until(lambda: not any(status == "pending" for _, status in fleet.deliveries()))

    asyncio.run(main())
    assert (len(site.calls), len(site.told("/slack"))) == (1, 1)
    (row,) = [one for one in fleet.read("events list").rows if one.kind == "alert.firing"]
    assert row.told == "alert.slack.room"


def test_a_test_says_what_holds_a_sink_back_and_keeps_its_reason(fleet):
    fleet.ledger.gates.pause("outbox/alert.webhook.hook", "operator:jo", "its server moves")
    fleet.ledger.gates.close("outbox/alert.slack.room", 3_600, "429", "worker:w")
    planned = fleet.plan("alerts test")
    done = carry_out(fleet.ledger, fleet.ask(), planned)
    assert done.follows == "alert:test/all"
    page = followed(fleet, planned)
    rows = {row.sink: row for row in page.rows}
    assert (page.failed, page.note) == (True, "not every sink has taken it")
    assert {name: row.status for name, row in rows.items()} == {
        "alert.slack.room": "pending",
        "alert.pagerduty.duty": "delivered",
        "alert.webhook.hook": "pending",
    }
    hook, room = rows["alert.webhook.hook"], rows["alert.slack.room"]
    assert (hook.reason, hook.until) == ("the gate outbox/alert.webhook.hook is paused: its server moves", None)
    assert room.reason == "the gate outbox/alert.slack.room is closed: 429"
    assert timedelta(minutes=59) < room.until - fleet.clock.now() <= timedelta(hours=1)
    assert fleet.ledger.get(Ref("alert", "test/all")).change_reason == "because"
    (event,) = [one for one in fleet.read("events list").rows if one.kind == "alert.firing"]
    assert (event.payload["reason"], event.payload["by"]) == ("because", "jo")


def test_a_test_without_sinks_says_how_to_have_one(ledger_url):
    fleet = Fleet(ledger_url, AlertSettings(log=False))
    with pytest.raises(UsageError, match=r"no sink is configured; say log = true in \[alerts\], or add one, such as"):
        fleet.plan("alerts test")
    fleet.ledger.close()


def test_the_heartbeat_is_heard_while_all_is_well(ledger_url, site):
    alerts = AlertSettings(heartbeat_url=Secret("env", "PING_URL"), heartbeat_every=timedelta(seconds=10))
    fleet = Fleet(ledger_url, alerts)
    keep_schedules(fleet.ledger, fleet.program.schedules(), "test")
    beat = Ref("schedule", "heartbeat")

    def said():
        return fleet.ledger.get(beat).change_reason

    async def main():
        async with fleet.working(1):
            await until(lambda: said() == "called: all is well")
            found = Found("shop/acme", "critical", "it is down")
            await asyncio.to_thread(fire, fleet.ledger, "unknown_machine", found, fleet.clock.now(), "test")
            await asyncio.to_thread(fleet.ledger.wake, [beat], who="jo", reason="now")
            await until(lambda: said() == "not called: 1 critical alert fires")

    asyncio.run(main())
    assert len(site.told("/ping")) >= 1
    fleet.ledger.close()


def test_a_worker_counts_for_each_flow(fleet):
    worker = Worker(fleet.ledger, fleet.program.flows(), QUICK)
    fire(fleet.ledger, "gate_down", Found("shop/acme", "critical", "it is down"), fleet.clock.now(), "test")

    async def main():
        working = asyncio.create_task(worker.run())
        await until(lambda: worker.counts.flows["delivery"].committed == 3)
        worker.stop()
        await working

    asyncio.run(main())
    own = worker.counts.flows["delivery"]
    assert (own.claimed, own.steps, own.failed, own.lost) == (3, 3, 0, 0)
    assert worker.counts.committed == sum(one.committed for one in worker.counts.flows.values())

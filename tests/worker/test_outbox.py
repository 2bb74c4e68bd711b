"""Delivery to subscribers: at least once, retried, given up in sight, and shared by any number of workers."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.kernel import lifecycle as kernel
from penstock.ledger import delivery, outbox
from penstock.ledger.care.doctor import examine
from penstock.ledger.commit import insert_events
from penstock.ledger.delivery import Delivery
from penstock.ledger.history import status
from penstock.ledger.ledger import Ledger
from penstock.ledger.outbox import EventRow
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import Fatal, Rejected, Throttled, Transient, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Act, Wait
from penstock.model.simulation import simulate
from penstock.model.unit import Ref
from penstock.worker.executor import InlineExecutor
from penstock.worker.outbox import Deliveries, Subscriber, decide, keep_subscriptions
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.fleet import ROOT, Member, until
from tests.support.hand import Hand
from tests.support.machines import DUE, INVOICE
from tests.support.nightly import by_night
from tests.support.post_app import FOLDER, MACHINES, ORDER, SUBSCRIBERS, Order, lifecycle, noted
from tests.support.program import Program

ALONE = WorkerSettings(
    lease_ms=86_400_000,
    renew_seconds=20_000,
    watch_seconds=3_600,
    idle_seconds=None,
    unknown_seconds=1e9,
    place_seconds=None,
)


class Post:
    """A ledger with an outbox on virtual time."""

    def __init__(self, url: str) -> None:
        self.time = VirtualClock(DUE)
        machines = [INVOICE, ORDER, delivery.machine]
        self.ledger = Ledger.open(url, machines, clock=self.time, rng=Rng(1), create=True)

    def write(self, *keys: str, kind: str = "order.paid") -> None:
        rows = [["default", key, kind, "info", '{"n": [1]}', None, None] for key in keys]
        self.ledger.database.write(lambda c: insert_events(self.ledger.database, c, rows))

    def run(self, subscribers: list[Subscriber], seconds: float, workers: int = 1, flows: Any = ()) -> None:
        async def main() -> None:
            made = [
                Worker(self.ledger, [Deliveries(subscribers), *flows], ALONE, executor=InlineExecutor())
                for _ in range(workers)
            ]
            tasks = [asyncio.create_task(w.run()) for w in made]
            await asyncio.sleep(seconds)
            for worker in made:
                worker.stop()
            await asyncio.gather(*tasks)

        simulate(self.time, main)

    def delivery(self, key: str = "1", subscriber: str = "audit") -> Delivery:
        found = self.ledger.get(Ref("delivery", f"{subscriber}/default/{key}"))
        assert isinstance(found, Delivery)
        return found

    def alerts(self) -> list[tuple[str, str]]:
        sql = "SELECT event_type, severity FROM event_log WHERE severity <> 'info' ORDER BY created_at, event_key"
        return self.ledger.read(lambda c: [(str(a), str(b)) for a, b in c.rows(sql)])


@pytest.fixture
def post(ledger_url: str) -> Iterator[Post]:
    made = Post(ledger_url)
    yield made
    made.ledger.close()


class Taker:
    """A subscriber's hands: it takes what it is given, or fails with the next error."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.got: list[EventRow] = []
        self.tries: list[str] = []

    async def __call__(self, event: EventRow) -> None:
        self.tries.append(event.event_key)
        if self._errors:
            raise self._errors.pop(0)
        self.got.append(event)

    @property
    def keys(self) -> list[str]:
        return sorted(event.event_key for event in self.got)


def audit(taker: Any, **fields: Any) -> Subscriber:
    return Subscriber(**{"name": "audit", "kinds": ["*"], "deliver": taker} | fields)


def test_what_a_subscriber_does_not_want_is_not_told_and_the_ledger_says_so(post):
    taker = Taker()
    subscriber = audit(taker, wants=lambda event: event.event_key == "1")
    keep_subscriptions(post.ledger, [subscriber])
    post.write("1", "2")
    post.run([subscriber], 1)
    assert taker.tries == ["1"]
    assert [(post.delivery(key).status, post.delivery(key).change_reason) for key in ("1", "2")] == [
        ("delivered", "taken"),
        ("unwanted", "not wanted"),
    ]
    assert outbox.unsubscribe(post.ledger.database, "audit")
    assert outbox.subscribers(post.ledger.database) == []
    assert list(examine(post.ledger.database, post.ledger.machines)) == []


def test_an_event_reaches_its_subscriber_as_it_was_written(post):
    taker = Taker()
    assert keep_subscriptions(post.ledger, [audit(taker)]) == 1
    assert keep_subscriptions(post.ledger, [audit(taker)]) == 0
    post.write("1")
    post.run([audit(taker)], 5)
    (event,) = taker.got
    assert (event.tenant_id, event.event_key, event.event_type, event.severity) == (
        "default",
        "1",
        "order.paid",
        "info",
    )
    assert (event.payload, event.created_at, event.correlation_id) == ({"n": [1]}, DUE, None)
    assert post.delivery().status == "delivered"


def test_an_event_of_a_step_is_delivered_without_being_asked_for(post):
    """The worker never sleeps past it, though nothing was due when it looked last."""
    from tests.support.post_app import Orders

    taker = Taker()
    keep_subscriptions(post.ledger, [audit(taker)])
    post.ledger.birth([Order(name="7", due_at=DUE)], actor=Actor.API, who="test")
    post.run([audit(taker)], 5, flows=[Orders(None)])
    (event,) = taker.got
    (order,) = post.ledger.get_many(ORDER, ["7"])
    assert event.correlation_id == f"order_:7@{order.version - 1}", "the version that the claim gave it"
    assert (event.machine, event.unit_id) == ("order_", "7")


def test_a_subscriber_that_fails_is_tried_again_later(post):
    taker = Taker(Transient("busy"), RuntimeError("a bug"), Transient("busy"))
    keep_subscriptions(post.ledger, [audit(taker)])
    post.write("1")
    post.run([audit(taker)], 60)
    assert (taker.tries, taker.keys) == (["1"] * 4, ["1"])
    delivery = post.delivery()
    assert (delivery.status, delivery.attempts, delivery.crashes) == ("delivered", 3, 0)
    assert post.alerts() == []


def test_a_subscriber_that_refuses_makes_a_dead_letter_that_can_be_retried(post):
    taker = Taker(Rejected("no such order"))
    keep_subscriptions(post.ledger, [audit(taker)])
    post.write("1", "2")
    post.run([audit(taker)], 60)
    (dead,) = outbox.dead_letters(post.ledger.database)
    assert taker.keys == [{"audit/default/1": "2", "audit/default/2": "1"}[dead]]
    assert post.alerts() == [("unit.dead", "warning")]
    shown = {m.name: m for m in status(post.ledger.database).machines}["delivery"]
    assert shown.states == {"pending": 0, "delivered": 1, "unwanted": 0, "dead": 1}
    now = post.time.now()
    post.ledger.move_many(
        "delivery", [dead], "pending", actor=Actor.OPERATOR, who="jo", reason="once more", attempts=0, due_at=now
    )
    post.run([audit(taker)], 5)
    assert taker.keys == ["1", "2"]
    assert outbox.dead_letters(post.ledger.database) == []


def test_a_subscriber_that_never_works_ends_in_dead_letters_and_no_loop(post):
    """The alert about the dead letter is an event too, and this subscriber wants them all."""
    broken = Taker(*[Transient("down") for _ in range(1_000)])
    keep_subscriptions(post.ledger, [audit(broken)])
    post.write("1")
    post.run([audit(broken)], 20_000)
    assert len(broken.tries) == 13
    assert post.delivery().status == "dead"
    assert "after 12 retries" in (post.delivery().change_reason or "")
    assert sorted(post.alerts()) == [("gate.breaker", "critical"), ("unit.dead", "warning")]
    rows = post.ledger.read(lambda c: c.rows("SELECT count(*) FROM event_delivery"))
    assert rows[0][0] == 1


def test_one_that_throttles_or_stops_holds_up_nobody_else(post):
    slow, stopped, fine = Taker(Throttled("slow", retry_after=100)), Taker(Fatal("no such key")), Taker()
    subscribers = [
        audit(slow, name="slow"),
        audit(stopped, name="stopped", kinds=["order.paid"]),
        audit(fine, name="fine"),
    ]
    keep_subscriptions(post.ledger, subscribers)
    post.write("1", "2")
    post.run(subscribers, 50)
    assert fine.keys[:2] == ["1", "2"]
    assert slow.keys == stopped.keys == []
    assert ("gate.stopped", "critical") in post.alerts()
    post.run(subscribers, 200)
    assert set(slow.keys) >= {"1", "2"}
    assert len(stopped.tries) == 1, "nobody asks it again until somebody has seen to it"
    assert {post.delivery(k, "stopped").status for k in "12"} == {"pending"}


def test_what_is_for_another_program_waits_for_it_with_an_alert_a_day(post):
    mine, theirs = Taker(), Taker()
    keep_subscriptions(post.ledger, [audit(mine), audit(theirs, name="theirs")])
    post.write("1", "2")
    post.run([audit(mine)], 600)
    assert mine.keys == ["1", "2"]
    delivery = post.delivery(subscriber="theirs")
    assert (delivery.status, delivery.attempts, delivery.parked_at) == ("pending", 0, None)
    assert post.alerts() == [("subscriber.unknown", "warning")]
    post.run([audit(theirs, name="theirs")], 120)
    assert theirs.keys == ["1", "2"]


def test_a_late_subscriber_gets_what_is_written_from_then_on(post):
    early, late = Taker(), Taker()
    keep_subscriptions(post.ledger, [audit(early)])
    post.write("1")
    keep_subscriptions(post.ledger, [audit(late, name="late")])
    post.write("2")
    post.run([audit(early), audit(late, name="late")], 5)
    assert (early.keys, late.keys) == (["1", "2"], ["2"])
    outbox.replay(post.ledger.database, "late", DUE - timedelta(days=1))
    post.run([audit(early), audit(late, name="late")], 5)
    assert (early.keys, late.keys) == (["1", "2"], ["1", "2"])


def test_an_event_that_was_pruned_is_given_up_in_sight(post):
    taker = Taker()
    keep_subscriptions(post.ledger, [audit(taker)])
    post.write("1")
    with Hand(post.ledger.database.url) as hand:
        hand.prune("DELETE FROM event_log", machine="event_log")
    post.run([audit(taker)], 5)
    assert (post.delivery().status, post.delivery().change_reason) == ("dead", "the event is no longer in the log")


def test_workers_share_the_deliveries(post):
    taker = Taker()
    keep_subscriptions(post.ledger, [audit(taker)])
    post.write(*(f"{n:03}" for n in range(200)))
    post.run([audit(taker)], 30, workers=3)
    assert taker.keys == [f"{n:03}" for n in range(200)]


def test_decide_delivers_what_is_pending_for_a_subscriber_it_has():
    pending = Delivery(subscriber="audit", tenant_id="default", event_key="1")
    assert decide(pending, DUE, frozenset({"audit"}), None) == Act("deliver", "an event for audit")
    assert decide(pending, DUE, frozenset(), None) == Act(
        "put_off", "this program has no subscriber 'audit'", counts_attempt=False
    )
    ended = Delivery(subscriber="audit", tenant_id="default", event_key="1", status=delivery.D.DEAD)
    assert isinstance(decide(ended, DUE, frozenset({"audit"}), None), Wait)


def test_a_subscriber_that_cannot_be_is_refused_where_it_is_declared():
    taker = Taker()
    with pytest.raises(UsageError, match="subscriber 'Audit Log' must be lower case"):
        audit(taker, name="Audit Log")
    with pytest.raises(UsageError, match="names no kinds"):
        audit(taker, kinds=[])
    with pytest.raises(UsageError, match="two subscribers have the same name"):
        Deliveries([audit(taker), audit(taker)])


@pytest.mark.timeout(300)
@by_night("sqlite")
def test_every_event_arrives_at_least_once_though_workers_are_killed(ledger_url, tmp_path):
    count, chance = 300, random.Random(1)
    folder = tmp_path / "post"
    with (
        Ledger.open(ledger_url, MACHINES, create=True) as ledger,
        Program("tests.support.post_app", ledger_url, folder, **{FOLDER: str(folder)}) as program,
    ):
        keep_subscriptions(ledger, SUBSCRIBERS)

        def value(sql: str) -> int:
            return int(ledger.read(lambda c: c.rows(sql))[0][0])

        def arrived(most: int) -> bool:
            return len(noted(folder, "audit")) > most

        ledger.birth((Order(name=str(n), due_at=ledger.clock.now()) for n in range(count)), actor=Actor.API, who="test")
        program.start()
        program.start()
        for share in (1, 2, 3):
            until(functools.partial(arrived, share * count // 5), "events arrive")
            time.sleep(chance.uniform(0, 0.1))
            chance.choice([m for m in program.members if m.alive]).kill()
            program.start()
        waiting = "SELECT count(*) FROM event_delivery WHERE status = 'pending' AND parked_at IS NULL"
        until(lambda: value("SELECT count(*) FROM order_ WHERE status = 'new'") == 0, "every order is told")
        # Those that fail at first may be told one after another: six of them open the breaker for a minute.
        until(lambda: value(waiting) == 0, "every delivery ends", patience=180)
        keys = {f"paid:{n}" for n in range(count)}
        dead = {f"paid:{n}" for n in range(0, count, 10)}
        assert set(noted(folder, "audit")) >= keys
        assert set(noted(folder, "hook")) == keys - dead
        assert {ref.rpartition("/")[2] for ref in outbox.dead_letters(ledger.database, "hook")} == dead
        twice = [k for k, n in Counter(noted(folder, "audit")).items() if n > 1]
        assert len(twice) <= 3 * 50, "no more than what the killed held"
        program.stop()
        assert examine(ledger.database, {m.name: m for m in MACHINES}) == []


def test_the_outbox_is_the_kernels_own():
    assert delivery.machine in App(lifecycle).machines
    clash = dataclasses.replace(lifecycle, machines=[ORDER, delivery.machine])
    with pytest.raises(UsageError, match="kernel and post both have a machine 'delivery'; rename one of them"):
        App(clash)
    assert kernel.name == "kernel"


def test_the_command_line_subscribes_and_delivers(ledger_url, tmp_path):
    command = [sys.executable, "-c", "from penstock.cli.main import main; main()"]
    file = tmp_path / "penstock.toml"
    file.write_text('lifecycles = ["tests.support.post_app:lifecycle"]\n')
    options = ["--ledger", ledger_url, "--config", str(file)]
    environment = os.environ | {FOLDER: str(tmp_path)}
    subprocess.run([*command, "db", "upgrade", *options], cwd=ROOT, env=environment, check=True, capture_output=True)
    worker = Member([*command, "worker", *options], environment, tmp_path / "log")
    try:
        until(lambda: worker.said("worker.started"), "the worker has started")
        with Ledger.open(ledger_url, [ORDER]) as ledger:
            now = ledger.clock.now()
            ledger.birth([Order(name="1", due_at=now), Order(name="10", due_at=now)], actor=Actor.API, who="test")
            until(lambda: sorted(noted(tmp_path, "audit")) == ["paid:1", "paid:10"], "both arrive")
            until(lambda: outbox.dead_letters(ledger.database) == ["hook/default/paid:10"], "one is refused")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    finally:
        if worker.alive:
            worker.kill()


def test_a_subscriber_takes_events_in_one_way():
    async def plainly(event: Any) -> None: ...

    async def with_io(event: Any, io: Any) -> None: ...

    with pytest.raises(UsageError, match="one of them"):
        Subscriber("neither", ["*"])
    with pytest.raises(UsageError, match="one of them"):
        Subscriber("both", ["*"], plainly, with_io=with_io)

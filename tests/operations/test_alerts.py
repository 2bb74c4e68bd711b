"""Alerts: conditions and events fire them, they end by themselves, and every change is told once."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from penstock.app.program import Program
from penstock.ledger.care.prune import Ages, Pruner
from penstock.ledger.commit import insert_events
from penstock.ledger.outbox import subscribed
from penstock.model.clock import Rng
from penstock.model.errors import LedgerRefused, UnknownUnit, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Birth
from penstock.model.unit import Ref
from penstock.operations.alerts import book
from penstock.operations.alerts.machine import A
from penstock.operations.alerts.policy import Found, Policy, matches, policies_of
from penstock.operations.alerts.prune import prune_resolved
from penstock.operations.alerts.sinks import SINKS
from penstock.operations.alerts.watch import watch
from penstock.settings.alerts import AlertSettings, PolicySettings
from penstock.settings.file import Configuration
from penstock.settings.kernel import KernelSettings
from penstock.testing.work import work_until_idle
from penstock.worker.outbox import Subscriber, keep_subscriptions
from penstock.worker.worker import WorkerSettings
from tests.operations.conftest import NOW, ORDERS, Desk, Order

# An alert is written beside the steps: a worker finds its deliveries when it looks.
LOOKING = WorkerSettings(lease_ms=600_000, renew_seconds=200.0, idle_seconds=1.0, unknown_seconds=1e9)


@pytest.fixture
def alert(desk):
    return lambda name: book.find(desk.ledger, *name.split("/", 1))


def look(desk, *kinds):
    return watch(desk.program, desk.ledger, desk.clock.now(), "test", kinds or None)


def configure(desk, **policies):
    """The same program with these policies changed."""
    kernel = KernelSettings(alerts=AlertSettings(policies=policies))
    sections = {one.name: one.settings() for one in desk.app.own}
    desk.program = Program(desk.app, Configuration(kernel, sections, version="v1"), desk.clock)


def told(desk):
    """The events of alerts, oldest first: what, about which alert, how bad."""
    rows = desk.rows(
        "SELECT event_type, payload FROM event_log WHERE event_type LIKE 'alert.%' ORDER BY created_at, event_key"
    )
    said = [(kind, json.loads(text) if isinstance(text, str) else text) for kind, text in rows]
    return [(kind, facts["alert"], facts["severity"]) for kind, facts in said]


def write(desk, kind, severity, payload, key=None):
    database = desk.ledger.database
    row = ["default", key or f"{kind}:{desk.clock.elapsed()}", kind, severity, json.dumps(payload), None, None]
    database.write(lambda cursor: insert_events(database, cursor, [row]))


def deliver(desk):
    keep_subscriptions(desk.ledger, desk.program.subscribers())
    work_until_idle(desk.ledger, desk.program.flows(), settings=LOOKING)


def fail(desk, count):
    for ref in desk.orders(count):
        desk.fail(ref, "no")


def test_a_condition_fires_is_told_once_and_is_over(desk, alert):
    fail(desk, 3)
    assert look(desk, "dead_letters").fired == 1
    one = alert("dead_letters/order")
    assert (one.status, one.severity, one.facts, one.times) == (A.FIRING, "warning", {"count": 3}, 1)
    assert one.example.startswith("order:acme/")
    desk.later(minutes=1)
    assert str(look(desk, "dead_letters")) == "nothing changed"
    assert told(desk) == [("alert.firing", "alert:dead_letters/order", "warning")]
    desk.do("dead dismiss", machine="order")
    desk.later(minutes=1)
    assert look(desk, "dead_letters").resolved == 1
    assert alert("dead_letters/order").status is A.RESOLVED
    assert told(desk)[1:] == [("alert.resolved", "alert:dead_letters/order", "warning")]


def test_what_fires_is_part_of_the_status_until_it_is_over(desk):
    fail(desk, 3)
    look(desk, "dead_letters")
    (shown,) = desk.read("status").firing
    assert (shown.alert, shown.status, shown.severity) == ("dead_letters/order", "firing", "warning")
    desk.do("dead dismiss", machine="order")
    desk.later(minutes=1)
    look(desk, "dead_letters")
    assert desk.read("status").firing == []


def test_an_alert_that_was_over_for_long_goes_with_what_is_remembered_of_it(desk):
    fail(desk, 3)
    look(desk, "dead_letters")
    pruner = Pruner(desk.ledger.database, Ages(), who="test", rng=Rng(1))
    desk.later(days=2)
    assert prune_resolved(desk.ledger, pruner, desk.clock.now()) == 0, "it fires"
    desk.do("dead dismiss", machine="order")
    look(desk, "dead_letters")
    desk.later(days=2)
    assert prune_resolved(desk.ledger, pruner, None) == 0
    assert prune_resolved(desk.ledger, pruner, desk.clock.now() - timedelta(days=3)) == 0
    assert prune_resolved(desk.ledger, pruner, desk.clock.now() - timedelta(days=1)) == 1
    assert desk.rows("SELECT count(*) FROM alert") == [(0,)]
    assert desk.rows("SELECT count(*) FROM alert_memory WHERE subject = 'order'") == [(0,)]
    assert desk.read("doctor").findings == []
    book.fire(desk.ledger, "dead_letters", Found("order", "warning", "again", {}, None), desk.clock.now(), "test")
    assert desk.rows("SELECT status, times FROM alert") == [("firing", 1)]


def test_a_sink_that_was_removed_is_told_nothing_more(desk):
    kept = desk.program.subscribers()
    others = [Subscriber(name, ["*"], deliver=_nobody) for name in ("alert.slack.gone", "audit")]
    keep_subscriptions(desk.ledger, [*kept, *others], SINKS)
    assert keep_subscriptions(desk.ledger, kept, SINKS) == 1
    assert "audit" in subscribed(desk.ledger.database)
    assert "alert.slack.gone" not in subscribed(desk.ledger.database)


async def _nobody(event):
    """Takes an event."""


def test_what_gets_worse_is_told_again_and_a_resolution_keeps_the_worst(desk, alert):
    fail(desk, 3)
    configure(desk, dead_letters=PolicySettings(critical=5))
    look(desk, "dead_letters")
    desk.later(minutes=1)
    desk.do("alerts ack", alerts=("dead_letters/order",))
    desk.born(*(Order(shop="b", number=n, due_at=NOW) for n in (1, 2)))
    for n in (1, 2):
        desk.fail(f"order:b/{n}", "no")
    desk.later(minutes=1)
    look(desk, "dead_letters")
    assert (alert("dead_letters/order").status, alert("dead_letters/order").severity) == (A.FIRING, "critical")
    desk.do("dead dismiss", machine="order")
    desk.later(minutes=1)
    look(desk, "dead_letters")
    assert [(kind, severity) for kind, _, severity in told(desk)] == [
        ("alert.firing", "warning"),
        ("alert.acknowledged", "warning"),
        ("alert.firing", "critical"),
        ("alert.resolved", "critical"),
    ]


def test_what_comes_and_goes_is_damped(desk, alert):
    configure(desk, dead_letters=PolicySettings(hold=timedelta(minutes=5)))
    (ref,) = desk.orders(1)
    for _ in range(3):  # fails and is tried again, two minutes each
        desk.fail(ref, "no")
        look(desk, "dead_letters")
        desk.later(minutes=2)
        look(desk, "dead_letters")
        desk.do("dead retry", units=(ref,))
        look(desk, "dead_letters")
        desk.later(minutes=5)
        look(desk, "dead_letters")
    assert alert("dead_letters/order") is None
    desk.fail(ref, "no")
    look(desk, "dead_letters")
    desk.later(minutes=5)
    look(desk, "dead_letters")
    assert alert("dead_letters/order").status is A.FIRING
    desk.do("dead retry", units=(ref,))
    look(desk, "dead_letters")
    desk.later(minutes=1)
    desk.fail(ref, "no")  # over for a minute alone: it goes on firing
    look(desk, "dead_letters")
    desk.later(minutes=10)
    look(desk, "dead_letters")
    assert told(desk) == [("alert.firing", "alert:dead_letters/order", "warning")]


def test_an_alert_resolved_by_hand_stays_resolved_until_it_was_over(desk, alert):
    fail(desk, 2)
    look(desk, "dead_letters")
    desk.later(minutes=1)
    desk.do("alerts resolve", alerts=("dead_letters/order",))
    desk.later(minutes=1)
    assert look(desk, "dead_letters").fired == 0
    desk.do("dead dismiss", machine="order")
    look(desk, "dead_letters")
    desk.later(minutes=1)
    desk.born(Order(shop="b", number=1, due_at=NOW))
    desk.fail("order:b/1", "no")
    assert look(desk, "dead_letters").fired == 1
    assert alert("dead_letters/order").times == 2


def test_a_silence_tells_nobody_and_ends_by_itself(desk, alert):
    fail(desk, 1)
    look(desk, "dead_letters")
    desk.do("alerts silence", alerts=("dead_letters/order",), span=timedelta(hours=2))
    row = desk.read("alerts list").rows[0]
    assert (row.status, row.until, row.by) == ("silenced", NOW + timedelta(hours=2), "jo")
    desk.later(hours=1)
    look(desk, "dead_letters")
    desk.do("dead dismiss", machine="order")
    look(desk, "dead_letters")
    assert [kind for kind, *_ in told(desk)] == ["alert.firing", "alert.resolved"]  # who heard of it hears the end
    desk.later(minutes=10)
    desk.born(Order(shop="b", number=1, due_at=NOW))
    desk.fail("order:b/1", "no")
    look(desk, "dead_letters")
    assert alert("dead_letters/order").status is A.SILENCED  # the silence holds
    assert len(told(desk)) == 2
    desk.later(hours=1)
    look(desk, "dead_letters")
    assert alert("dead_letters/order").status is A.FIRING
    assert [kind for kind, *_ in told(desk)][2:] == ["alert.firing"]
    desk.do("alerts silence", policy="dead_letters")
    desk.do("alerts unsilence", alerts=("alert:dead_letters/order",))
    assert [kind for kind, *_ in told(desk)][3:] == ["alert.firing"]


def test_a_change_by_a_bare_move_is_told_by_the_next_look(desk):
    fail(desk, 1)
    look(desk, "dead_letters")
    desk.do("units move", units=("alert:dead_letters/order",), to="acknowledged")
    assert len(told(desk)) == 1
    desk.later(minutes=1)
    assert look(desk, "dead_letters").told == 1
    assert told(desk)[1] == ("alert.acknowledged", "alert:dead_letters/order", "warning")
    desk.do("units move", units=("alert:dead_letters/order",), to="silenced")
    assert desk.unit("alert:dead_letters/order").silenced_until == desk.clock.now() + timedelta(hours=1)
    assert look(desk, "dead_letters").told == 0


def test_events_fire_and_resolve(desk, alert):
    keep_subscriptions(desk.ledger, desk.program.subscribers())
    write(desk, "gate.breaker", "critical", {"gate": "shop/acme", "reason": "no answer"})
    write(desk, "schedule.mended", "warning", {"schedule": "sweep", "reason": "a clock was wrong"})
    write(desk, "contacts.lost", "critical", {"unit": "contact:7", "reason": "gone"})
    write(desk, "contacts.late", "warning", {"unit": "contact:8"})
    write(desk, "gate.paused", "info", {"gate": "shop/acme"})
    deliver(desk)
    assert alert("gate_down/shop/acme").says == "no answer"
    assert alert("schedule_mended/sweep").severity == "warning"
    assert alert("critical_event/contact").example == "contact:7"
    assert len(desk.read("alerts list").rows) == 3
    look(desk, "gates")
    assert alert("gate_down/shop/acme").status is A.RESOLVED  # the gate is open, whatever was said of it
    desk.later(hours=20)
    look(desk, "event")
    assert alert("schedule_mended/sweep").status is A.FIRING
    desk.later(hours=5)
    look(desk, "event")
    assert alert("schedule_mended/sweep").status is A.RESOLVED  # nothing was heard of it for a day


def test_an_event_resolves_what_another_fired(ledger_url):
    own = {
        "contacts": PolicySettings(
            events=("contacts.failing",), resolved_by=("contacts.working",), subject="account", severity="critical"
        )
    }
    desk = Desk(ledger_url, _app(), kernel=KernelSettings(alerts=AlertSettings(policies=own)))
    keep_subscriptions(desk.ledger, desk.program.subscribers())
    write(desk, "contacts.failing", "warning", {"account": "a"})
    write(desk, "contacts.failing", "warning", {"account": "b"}, "2")
    deliver(desk)
    desk.later(minutes=1)
    write(desk, "contacts.working", None, {"account": "a"}, "3")
    deliver(desk)
    found = {row.alert: (row.status, row.severity) for row in desk.read("alerts list", resolved=True).rows}
    assert found == {"contacts/a": ("resolved", "critical"), "contacts/b": ("firing", "critical")}
    desk.ledger.close()


def _app():
    from penstock.app.app import App

    return App(ORDERS)


def test_gates_parked_units_and_failing_schedules(desk, alert):
    desk.ledger.gates.stop("shop/acme/orders", "401", "v1")
    (ref,) = desk.orders(1)
    desk.ledger.park([Ref.parse(ref)], who="jo", reason="odd")
    look(desk, "gates", "parked")
    assert alert("gate_down/shop/acme").severity == "critical"
    assert alert("parked_units/order").example == ref
    desk.ledger.gates.resume("shop/acme", "operator:jo")
    desk.ledger.unpark([Ref.parse(ref)], who="jo", reason="mended")
    look(desk, "gates", "parked")
    assert {alert("gate_down/shop/acme").status, alert("parked_units/order").status} == {A.RESOLVED}


def test_a_burst_of_throttles(desk, alert):
    for n in range(4):
        write(desk, "gate.throttled", None, {"gate": "shop/acme"}, f"t{n}")
        assert look(desk, "throttles").fired == (n == 3)
    desk.later(minutes=6)
    assert look(desk, "throttles").resolved == 1


def test_a_success_rate_is_judged_from_twenty_on(desk, alert):
    refs = desk.orders(30)
    for ref in refs[:19]:
        desk.fail(ref, "no")
    configure(desk, success_rate=PolicySettings(hold=timedelta(0), every=timedelta(0)))
    assert look(desk, "success_rate").fired == 0
    for ref in refs[19:]:
        desk.ledger.move(Ref.parse(ref), "sent", actor=Actor.WORKER, who="w", reason="ok")
    assert look(desk, "success_rate").fired == 1
    one = alert("success_rate/order")
    assert (one.severity, one.facts["ended"]) == ("critical", 30)


def test_stuck_units_and_stale_flow(desk, alert):
    configure(desk, stale_flow=PolicySettings(every=timedelta(0)), stuck_units=PolicySettings(every=timedelta(0)))
    for n in range(12):
        desk.later(hours=1)
        desk.born(Order(shop="h", number=n, due_at=desk.clock.now()))
    assert look(desk, "stale_flow", "stuck").fired == 0
    desk.later(hours=7)
    assert look(desk, "stale_flow", "stuck").fired == 1
    assert "no order unit has moved" in alert("stale_flow/order").says
    desk.later(hours=18)
    look(desk, "stale_flow", "stuck")
    assert alert("stuck_units/order/new").facts["count"] == 12
    assert alert("stuck_units/order/new").severity == "warning"


def test_a_condition_that_breaks_ends_no_other_look(desk, monkeypatch):
    fail(desk, 1)
    monkeypatch.setitem(__import__("penstock.operations.alerts.conditions", fromlist=["x"]).CONDITIONS, "parked", None)
    done = look(desk, "dead_letters", "parked")
    assert (done.fired, done.failed) == (1, 1)


def test_the_doctor_tells_of_a_finding(desk, alert):
    desk.orders(1)
    desk.later(hours=2)
    assert look(desk, "doctor").fired == 1
    one = alert("doctor/due:workers")
    assert (one.severity, one.says.startswith("no worker is running")) == ("warning", True)


def test_two_that_fire_at_once_are_one(desk):
    found = Found("acme", "critical", "it is down")
    other = Desk(desk.url, _app())
    before = book._fired(None, "gate_down", found, NOW)
    assert book.fire(other.ledger, "gate_down", found, NOW, "one")
    assert before is not None
    late, events = book.tell(before)
    with pytest.raises(LedgerRefused):
        desk.ledger.together([Birth(late, "late")], who="two", events=events)
    assert not book.fire(desk.ledger, "gate_down", found, NOW, "two")
    assert len(told(desk)) == 1
    other.ledger.close()


def test_commands_say_what_they_cannot_do(desk):
    with pytest.raises(UsageError, match="which alerts"):
        desk.do("alerts ack")
    with pytest.raises(UnknownUnit, match="no alert is called"):
        desk.do("alerts ack", alerts=("dead_letters/x",))
    with pytest.raises(UsageError, match="no alert to resolve"):
        desk.do("alerts resolve", policy="dead_letters")
    fail(desk, 1)
    look(desk, "dead_letters")
    desk.do("alerts ack", alerts=("dead_letters/order",))
    with pytest.raises(UsageError, match="is acknowledged; only one that is firing"):
        desk.do("alerts ack", alerts=("dead_letters/order",))
    shown = desk.read("alerts show", alert="dead_letters/order")
    assert (shown.by, shown.runbook, shown.means) == (
        "jo",
        "docs/alerts.md#dead_letters",
        "Units have failed for good.",
    )
    assert desk.read("alerts list").counts == {"firing": 0, "acknowledged": 1, "silenced": 0, "resolved": 0}


def test_a_plan_has_the_same_digest_a_minute_later(desk):
    fail(desk, 1)
    look(desk, "dead_letters")
    for name in ("alerts ack", "alerts silence", "alerts resolve"):
        first = desk.plan(name, alerts=("dead_letters/order",)).preview.digest
        desk.later(minutes=1)
        assert desk.plan(name, alerts=("dead_letters/order",)).preview.digest == first


@pytest.mark.parametrize(
    ("text", "patterns", "found"),
    [
        ("shop/acme", ["*"], True),
        ("shop/acme", ["shop/*", "!shop/acme"], False),
        ("shop/acme", ["!shop/*"], False),
        ("other", ["!shop/*"], True),
        ("other", ["shop/*"], False),
    ],
)
def test_patterns(text, patterns, found):
    assert matches(text, patterns) is found


def test_policies_are_changed_added_and_switched_off(desk):
    configure(
        desk,
        dead_letters=PolicySettings(warning=10),
        parked_units=PolicySettings(enabled=False),
        mine=PolicySettings(kind="dead_letters", match=("order",), warning=1),
    )
    found = policies_of(desk.program)
    shown = {one.policy: one.severity for one in desk.read("alerts policies").rows}
    assert shown["success_rate"] == "warning from 3%, critical from 10%", "a share is told in percent"
    assert (found["dead_letters"].warning, found["dead_letters"].critical) == (10, 101)
    assert "parked_units" not in found
    assert found["mine"] == Policy(name="mine", says="Mine.", kind="dead_letters", match=("order",), warning=1)
    configure(desk, dead_leters=PolicySettings(warning=1))
    with pytest.raises(UsageError, match="did you mean dead_letters"):
        policies_of(desk.program)
    configure(desk, mine=PolicySettings(kind="nonsense"))
    with pytest.raises(UsageError, match="no kind of policy"):
        policies_of(desk.program)


def test_alerts_are_listed_as_they_stood(desk, alert):
    (ref,) = desk.orders(1)
    desk.fail(ref, "refused")
    before = desk.clock.now() - timedelta(hours=1)
    desk.later(minutes=5)
    look(desk)
    desk.later(minutes=5)
    fired = desk.clock.now()
    desk.later(minutes=5)
    desk.do("alerts ack", alerts=("dead_letters/order",))

    def stood(at):
        return {row.alert: (row.status, row.by) for row in desk.read("alerts list", at=at).rows}

    assert stood(before) == {}
    assert stood(fired) == {"dead_letters/order": ("firing", None)}
    assert desk.read("alerts list", at=fired).counts["firing"] == 1
    assert {row.status for row in desk.read("alerts list").rows} == {"acknowledged"}

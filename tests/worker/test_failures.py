"""What becomes of steps that fail, each in its own way; the worker outlives them all."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime, timedelta
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.model.errors import Fatal, InDoubt, Rejected, Throttled, Transient
from penstock.model.outcome import Act, Look, Outcome, Wait, Write
from penstock.model.unit import replace
from penstock.worker.flow import Flow, Gate, Io
from tests.support.machines import BATCH_ITEM, InvoiceState, ItemState, batch_item, batch_run, feed, invoice
from tests.support.more_machines import label, reading
from tests.support.probe import FeedProbe, Probe, raising, sent, work
from tests.support.world import after, instant


def seconds(moments: list[tuple[str, datetime]]) -> list[float]:
    """When each call was made, from the first moment on."""
    return [(at - after(0)).total_seconds() for _, at in moments]


def alerts(world) -> list[tuple[Any, ...]]:
    rows = world.rows("SELECT event_type, severity, unit_id FROM event_log ORDER BY created_at, event_key")
    return [tuple(r) for r in rows]


def close(found: list[float], *expected: float) -> bool:
    """Each wait is as expected, give or take the jitter and the worker's own second."""
    return len(found) == len(expected) and all(
        0.75 * e <= f <= 1.25 * e + 1 for f, e in zip(found, expected, strict=True)
    )


def gaps(times: list[float]) -> list[float]:
    return [b - a for a, b in itertools.pairwise(times)]


def test_a_bug_is_logged_as_an_error_with_its_traceback_and_what_happens_next(world):
    (ref,) = world.born(invoice())
    with capture_logs() as said:
        work(world, Probe(raising(*[KeyError("no such setting")] * 3)), seconds=60)
    broken = [line for line in said if line["event"] == "step.broken"]
    assert [line["log_level"] for line in broken] == ["error"] * 3
    assert [line["unit"] for line in broken] == [str(ref)] * 3
    assert all("Traceback (most recent call last)" in line["exception"] for line in broken)
    assert all("probe.py" in line["exception"] and "no such setting" in line["exception"] for line in broken)
    assert broken[0]["next"].startswith("tried again at 2026-")
    assert broken[2]["next"] == "parked until somebody sees to it"
    assert [line for line in said if line["event"] == "step.failed"] == []


def test_a_bug_in_how_a_flow_takes_failures_is_told_too(world):
    class Careless(Probe):
        def failed(self, unit: Any, error: Any, now: Any, rng: Any) -> Any:
            raise ZeroDivisionError

    world.born(invoice())
    with capture_logs() as said:
        work(world, Careless(raising(Transient("503"))), seconds=1)
    (broken,) = [line for line in said if line["event"] == "step.broken"]
    assert "ZeroDivisionError" in broken["exception"]


def test_a_call_that_fails_is_no_bug(world):
    world.born(invoice())
    with capture_logs() as said:
        work(world, Probe(raising(Transient("503"))), seconds=1)
    (failed,) = [line for line in said if line["event"] in {"step.failed", "step.broken"}]
    assert (failed["event"], failed["log_level"]) == ("step.failed", "info")
    assert failed["next"].startswith("QUEUED, tried again at 2026-")
    assert "exception" not in failed


def test_what_may_work_later_is_tried_three_times_more(world):
    (ref,) = world.born(invoice())
    flow = Probe(raising(*[Transient("503")] * 4))
    work(world, flow, seconds=1)
    found = world.unit(ref)
    assert (found.attempts, found.crashes, found.status) == (1, 0, InvoiceState.QUEUED)
    assert 1.6 <= (found.due_at - after(0)).total_seconds() <= 2.4
    assert found.change_reason == "Transient: 503"
    work(world, flow, seconds=30)
    assert close(gaps(seconds(flow.acted)), 2, 4, 8)
    found = world.unit(ref)
    assert (found.status, found.attempts, found.due_at, found.parked_at) == (InvoiceState.FAILED, 3, None, None)
    assert alerts(world) == [("unit.dead", "warning", ref.unit_id)]


@pytest.mark.parametrize("arrived", [True, False])
def test_a_call_in_doubt_is_never_given_up_unseen(world, arrived):
    """Four calls without an answer; the last is looked for, and only then is it a success or a dead letter."""
    (ref,) = world.born(invoice())

    def decide(unit: Any, now: Any, seen: Any) -> Any:
        if unit.attempts <= 3:
            return Act("send", "not there")
        if seen is None:
            return Look("it may have arrived")
        return Act("record", "it is there", counts_attempt=False) if seen == "there" else Act("send", "it is not there")

    async def look(unit: Any, io: Io) -> str:
        return "there" if arrived else "nowhere"

    flow = Probe(raising(*[InDoubt("no answer")] * 4), decide=decide, look=look)
    work(world, flow, seconds=18)
    assert close(gaps(seconds(flow.acted)), 2, 4, 8)
    assert (world.unit(ref).status, world.unit(ref).attempts) == (InvoiceState.QUEUED, 4)
    work(world, flow, seconds=60)
    assert flow.calls.count("send") == 4
    assert flow.calls.count("look") == 1
    assert world.unit(ref).status is (InvoiceState.SENT if arrived else InvoiceState.FAILED)
    assert alerts(world) == ([] if arrived else [("unit.dead", "warning", ref.unit_id)])


def test_a_retry_that_works_ends_as_if_nothing_had_been(world):
    (ref,) = world.born(invoice())
    work(world, Probe(raising(Transient("503"))))
    assert world.unit(ref).status is InvoiceState.SENT
    assert alerts(world) == []


def test_a_throttle_closes_the_gate_for_as_long_as_asked_and_charges_nobody(world):
    (ref,) = world.born(invoice("1", gate_id="api/acme"))
    flow = Probe(raising(Throttled("slow down", 30)))
    work(world, flow, seconds=1)
    found = world.unit(ref)
    assert (found.attempts, found.crashes, found.due_at, found.status) == (0, 0, after(0), InvoiceState.QUEUED)
    ((until, reason),) = world.rows("SELECT closed_until, closed_reason FROM gate WHERE gate_id = 'api/acme'")
    assert after(30) <= (instant(until) or after(0)) <= after(33), "jittered upwards"
    assert reason == "slow down"
    world.born(invoice("2", gate_id="api/acme"), invoice("3", gate_id="api/globex"))
    work(world, flow, seconds=45)
    numbers = [(unit_id, at) for (unit_id, _), at in zip(flow.acted, seconds(flow.acted), strict=True)]
    assert numbers[1][0] == "acme/3", "another account's gate is open"
    assert {n for n, _ in numbers[2:]} == {"acme/1", "acme/2"}
    assert all(30 <= at <= 34 for _, at in numbers[2:])
    assert [(kind, severity) for kind, severity, *_ in alerts(world)] == [("gate.throttled", None)]


def test_a_throttle_that_names_no_time_closes_the_gate_for_sixteen_seconds(world):
    world.born(invoice("1", gate_id="api/acme"))
    flow = Probe(raising(Throttled("slow down")))
    work(world, flow, seconds=30)
    assert close(gaps(seconds(flow.acted)), 16)


def test_a_throttle_without_a_gate_is_believed_for_two_days_and_a_longer_one_is_told_of(world):
    (ref,) = world.born(feed())
    work(world, FeedProbe(raising(Throttled("slow down", 1e9))), seconds=1)
    assert 0 <= (world.unit(ref).due_at - after(48 * 3_600)).total_seconds() <= 1
    assert alerts(world) == [("unit.long_wait", "warning", ref.unit_id)]


def test_a_throttle_without_a_gate_puts_the_unit_off(world):
    (ref,) = world.born(invoice())
    flow = Probe(raising(*[Throttled("slow down", 5)] * 2))
    work(world, flow, seconds=20)
    assert close(gaps(seconds(flow.acted)), 5, 5)
    found = world.unit(ref)
    assert (found.status, found.attempts) == (InvoiceState.SENT, 0)


def test_a_throttled_look_does_not_make_the_unit_forget_that_its_worker_died(world):
    (ref,) = world.born(invoice(gate_id="api/acme"))
    died = world.worker("invoice")
    died.claim({"invoice": 1})
    world.time.advance(31)
    throttled = [Throttled("slow down", 2)]

    async def look(unit: Any, io: Io) -> str:
        if throttled:
            raise throttled.pop()
        return "there"

    flow = Probe(decide=lambda u, now, seen: Look("?") if u.doubts and not seen else Act("send", ""), look=look)
    work(world, flow)
    assert flow.calls == ["decide", "look", "decide", "look", "decide on there", "send knowing there"]
    assert world.unit(ref).status is InvoiceState.SENT


def test_waiting_settles_no_doubt(world):
    (ref,) = world.born(invoice())
    died = world.worker("invoice")
    died.claim({"invoice": 1})
    world.time.advance(31)
    opens = world.time.now() + timedelta(seconds=10)

    def decide(unit: Any, now: Any, seen: Any) -> Any:
        if now < opens:
            return Wait(opens, "the window is closed")
        return Look("?") if unit.doubts and not seen else Act("send", "")

    async def look(unit: Any, io: Io) -> str:
        return "there"

    flow = Probe(decide=decide, look=look)
    work(world, flow)
    assert flow.calls == ["decide", "decide", "look", "decide on there", "send knowing there"]
    assert (world.unit(ref).status, world.unit(ref).doubts) == (InvoiceState.SENT, 0)


def test_a_rejected_unit_is_a_dead_letter_at_once(world):
    (ref,) = world.born(invoice())
    flow = Probe(raising(Rejected("negative amount")))
    work(world, flow, seconds=5)
    found = world.unit(ref)
    assert (found.status, found.due_at, found.attempts) == (InvoiceState.FAILED, None, 0)
    assert found.change_reason == "Rejected: negative amount"
    assert alerts(world) == [("unit.dead", "warning", ref.unit_id)]
    assert len(flow.acted) == 1


def test_a_fatal_error_stops_its_account_with_one_alert(world):
    world.born(*(invoice(str(n), gate_id="api/acme") for n in range(5)))
    (other,) = world.born(invoice("other", gate_id="api/globex"))

    async def act(unit: Any, io: Io) -> Any:
        await asyncio.sleep(1)
        if unit.gate_id == "api/acme":
            raise Fatal("the key was revoked")
        return sent(unit)

    flow = Probe(act)
    work(world, flow, seconds=60)
    assert len(flow.acted) == 6, "five were in flight, and nobody tried again"
    assert world.unit(other).status is InvoiceState.SENT
    found = world.rows("SELECT status, attempts, crashes, claimed_by FROM invoice WHERE gate_id = 'api/acme'")
    assert [tuple(r) for r in found] == [("QUEUED", 0, 0, None)] * 5
    assert [a[:2] for a in alerts(world)] == [("gate.stopped", "critical")]


def test_a_fatal_error_without_a_gate_parks_the_unit(world):
    (ref,) = world.born(invoice())
    flow = Probe(raising(Fatal("no such account")))
    work(world, flow, seconds=60)
    found = world.unit(ref)
    assert (len(flow.acted), found.parked_reason) == (1, "Fatal: no such account")
    assert alerts(world) == [("unit.parked", "critical", ref.unit_id)]


def test_a_bug_in_a_handler_is_tried_again_and_parked_at_the_third(world):
    (ref,) = world.born(invoice())
    flow = Probe(raising(*[KeyError("id")] * 9))
    work(world, flow, seconds=1)
    found = world.unit(ref)
    assert (found.crashes, found.attempts, found.parked_at) == (1, 0, None)
    work(world, flow, seconds=100)
    assert close(gaps(seconds(flow.acted)), 2, 4)
    found = world.unit(ref)
    assert (found.crashes, found.claimed_by) == (3, None)
    assert found.parked_reason == "KeyError: 'id' (3 times in a row)"
    assert alerts(world) == [("unit.parked", "critical", ref.unit_id)]


def test_a_machine_without_on_error_counts_every_error_as_a_crash(world):
    (ref,) = world.born(feed())
    work(world, FeedProbe(raising(*[Transient("503")] * 9)), seconds=100)
    found = world.unit(ref)
    assert (found.crashes, found.parked_reason) == (3, "Transient: 503 (3 times in a row)")


def test_a_throttle_charges_nobody_where_the_machine_has_no_on_error(world):
    (ref,) = world.born(feed(gate_id="api/acme"))

    async def act(unit: Any, io: Io) -> Any:
        raise Throttled("slow down", 2)

    flow = FeedProbe(act)
    work(world, flow, seconds=20)
    found = world.unit(ref)
    assert 6 <= len(flow.acted) <= 11
    assert (found.crashes, found.parked_at) == (0, None)


def test_a_text_that_no_database_keeps_stops_nobody(world):
    (bad, good) = world.born(invoice("1"), invoice("2"))

    async def act(unit: Any, io: Io) -> Any:
        if unit.number == "1":
            raise Rejected("half a character \ud800, and a \0")
        return sent(unit)

    work(world, Probe(act))
    assert world.unit(good).status is InvoiceState.SENT
    assert world.unit(bad).status is InvoiceState.FAILED


async def cancelled() -> None:
    waiting = asyncio.get_running_loop().create_future()
    waiting.cancel()
    await waiting


def nonsense(unit: Any, other: Any) -> dict[str, Any]:
    done = replace(unit, status=InvoiceState.SENT, remote_id="r-1")
    return {
        "nothing": None,
        "a unit": unit,
        "an illegal move": Outcome(other, replace(other, status=InvoiceState.SENT), "too far"),
        "another unit": Outcome(other, replace(other, remote_id="stolen"), "not mine"),
        "another version": Outcome(replace(unit, version=1), done, "made up"),
        "a check": Outcome(unit, replace(unit, status=InvoiceState.SENT), "no remote id"),
        "a foreign after": Outcome(unit, other, "mixed up"),
        "a half character": Outcome(unit, replace(done, remote_id="\ud800"), "bad text"),
        "a unit in a column": Outcome(unit, replace(done, remote_id=unit), "bad type"),
        "a column that is not there": Outcome(unit, done, "", writes=[Write(label, [{"colour": "red"}])]),
        "a row that is refused": Outcome(
            unit, done, "", writes=[Write(reading, [{"sensor": "a", "position": 1, "count": -1}])]
        ),
        "rows of nothing": Outcome(unit, done, "", writes=[Write(label, [{}])]),
        "no event at all": Outcome(unit, done, "", events=[None]),  # type: ignore[list-item]
    }


REFUSED_HERE = [
    *("nothing", "a unit", "an illegal move", "another unit", "another version", "a foreign after"),
    *("a half character", "a unit in a column", "a column that is not there", "no event at all"),
]
REFUSED_THERE = ["a check", "a row that is refused", "rows of nothing"]
NONSENSE = [("sqlite", kind) for kind in REFUSED_HERE + REFUSED_THERE] + [("postgres", k) for k in REFUSED_THERE]


@pytest.mark.parametrize(("world_url", "kind"), NONSENSE, indirect=["world_url"])
def test_nonsense_is_a_crashed_step_and_the_worker_lives(world, kind):
    bad, good, other = world.born(invoice("1"), invoice("2"), invoice("0", due_at=None))

    async def act(unit: Any, io: Io) -> Any:
        return nonsense(unit, world.unit(other))[kind] if unit.number == "1" else sent(unit)

    work(world, Probe(act), seconds=30)
    assert world.unit(good).status is InvoiceState.SENT
    found = world.unit(bad)
    assert (found.crashes, found.claimed_by, found.status) == (3, None, InvoiceState.SENDING)
    assert found.parked_at is not None
    assert world.unit(other).remote_id is None


def test_a_handler_that_is_cancelled_by_its_own_doing_is_a_crashed_step(world):
    bad, good = world.born(invoice("1"), invoice("2"))

    async def act(unit: Any, io: Io) -> Any:
        if unit.number == "1":
            await cancelled()
        return sent(unit)

    work(world, Probe(act), seconds=30)
    assert world.unit(good).status is InvoiceState.SENT
    found = world.unit(bad)
    assert (found.crashes, found.claimed_by) == (3, None)


class Panic(BaseException):
    """What a panic of a Rust extension looks like."""


@pytest.mark.parametrize("kind", [Panic, GeneratorExit, SystemExit])
@pytest.mark.parametrize("where", ["act", "look", "decide"])
def test_what_is_no_exception_is_a_crashed_step_all_the_same(world, kind, where):
    bad, good = world.born(invoice("1"), invoice("2"))

    def trip(unit: Any, place: str) -> None:
        if unit.number == "1" and place == where:
            raise kind("out")

    def decide(unit: Any, now: Any, seen: Any) -> Any:
        trip(unit, "decide")
        return Look("first") if seen is None else Act("send", "due")

    async def look(unit: Any, io: Io) -> str:
        trip(unit, "look")
        return "seen"

    async def act(unit: Any, io: Io) -> Any:
        trip(unit, "act")
        return sent(unit)

    work(world, Probe(act, decide=decide, look=look), seconds=30)
    assert world.unit(good).status is InvoiceState.SENT
    found = world.unit(bad)
    assert (found.crashes, found.claimed_by, found.parked_at is None) == (3, None, False)
    assert kind.__name__ in str(found.parked_reason)


class Siblings(Flow[Any, None, Any]):
    machine = BATCH_ITEM

    def __init__(self, answer: Any) -> None:
        super().__init__(None)
        self._answer = answer

    @staticmethod
    def decide(unit: Any, now: Any, settings: Any, seen: Any) -> Any:
        return Act("all", "due")

    async def act(self, what: str, unit: Any, seen: Any, io: Io) -> Any:
        raise AssertionError

    async def act_together(self, what: str, units: Any, seen: Any, io: Io) -> Any:
        if units[0].run_id == "good":
            return [Outcome(u, replace(u, status=ItemState.DONE), "") for u in units]
        return self._answer(units)


def backwards(units: Any) -> Any:
    return [Outcome(u, replace(u, status=ItemState.DONE), "") for u in reversed(units)]


@pytest.mark.parametrize("world_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("answer", [lambda units: None, lambda units: [None, None], lambda units: [], backwards])
def test_nonsense_about_siblings_is_a_crashed_step_of_each(world, answer):
    world.born(batch_run("bad", items_expected=2, due_at=None), batch_run("good", items_expected=2, due_at=None))
    world.born(*(batch_item(n, run_id=r) for n in (1, 2) for r in ("good", "bad")))
    work(world, Siblings(answer), seconds=1)
    rows = world.rows("SELECT run_id, status, crashes, claimed_by FROM batch_item ORDER BY run_id, position")
    assert [tuple(r) for r in rows] == [("bad", "working", 1, None)] * 2 + [("good", "done", 0, None)] * 2


def test_a_gate_that_breaks_is_a_crashed_step(world):
    (ref,) = world.born(invoice())

    def gate(unit: Any) -> Gate:
        raise KeyError(unit.tenant)

    work(world, Probe(gate=gate), seconds=30)
    assert (world.unit(ref).crashes, world.unit(ref).claimed_by) == (3, None)


def test_a_unit_goes_behind_the_gate_of_its_next_step(world):
    (ref,) = world.born(invoice())
    flow = Probe(raising(Transient("503")), gate=lambda unit: Gate(f"api/{unit.status}"))
    work(world, flow, seconds=1)
    assert world.unit(ref).gate_id == "api/QUEUED"
    work(world, flow)
    assert world.unit(ref).status is InvoiceState.SENT

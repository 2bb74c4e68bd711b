"""What a worker makes of decisions, outcomes and time, on virtual time over both databases."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock.model.outcome import Act, Look, Outcome, Wait
from penstock.model.unit import Ref, replace
from penstock.worker.flow import Flow, Io
from tests.support.machines import BATCH_ITEM, FeedState, InvoiceState, ItemState, batch_item, batch_run, feed, invoice
from tests.support.probe import FeedProbe, Probe, sent, wired, work, work_on
from tests.support.world import after, instant


def look_first(unit: Any, now: Any, seen: Any) -> Any:
    return Look("unknown") if seen is None else Act("send", "known")


async def see(unit: Any, io: Io) -> str:
    return "facts"


def test_it_decides_then_looks_then_decides_again_then_acts(world):
    (ref,) = world.born(invoice())
    flow = Probe(decide=look_first, look=see)
    worker = work(world, flow)
    assert flow.calls == ["decide", "look", "decide on facts", "send knowing facts"]
    assert world.unit(ref).status is InvoiceState.SENT
    assert (worker.counts.claimed, worker.counts.committed, worker.counts.failed) == (1, 1, 0)


def test_a_second_look_is_a_broken_contract(world):
    (ref,) = world.born(invoice())
    flow = Probe(decide=lambda unit, now, seen: Look("again"), look=see)
    work(world, flow, seconds=1)
    assert flow.calls == ["decide", "look", "decide on facts"]
    assert world.unit(ref).doubts == 1
    assert "may look once" in world.unit(ref).change_reason


def test_a_wait_sets_the_schedule_and_the_unit_comes_back_then(world):
    (ref,) = world.born(feed())
    waits = [Wait(after(60), "too early"), Wait(None, "nothing more")]
    flow = FeedProbe(decide=lambda unit, now, seen: waits.pop(0))
    work(world, flow, seconds=30)
    assert world.unit(ref).due_at == after(60)
    assert flow.calls == ["decide"]
    work(world, flow, seconds=60)
    assert flow.calls == ["decide", "decide"]
    found = world.unit(ref)
    assert (found.due_at, found.status, found.claimed_by) == (None, FeedState.MISSING, None)


def test_an_intent_is_seen_by_others_before_the_act(world):
    (ref,) = world.born(feed())
    others = world.another()
    seen: list[Any] = []

    async def act(unit: Any, io: Io) -> Any:
        if unit.status is FeedState.MISSING:
            return Outcome(unit, replace(unit, status=FeedState.FETCHING), "intent", keep_claim=True)
        seen.append(others.get(ref))
        return Outcome(unit, replace(unit, status=FeedState.COMPLETED, due_at=None), "loaded")

    flow = FeedProbe(act)
    worker = work(world, flow)
    assert [(u.status, u.refreshing) for u in seen] == [(FeedState.FETCHING, True)]
    assert flow.calls == ["decide", "send", "decide", "send"]
    assert world.unit(ref).status is FeedState.COMPLETED
    assert (worker.counts.claimed, worker.counts.committed) == (1, 1)


def test_an_intent_that_is_kept_for_ever_is_a_broken_contract(world):
    (ref,) = world.born(feed())

    async def act(unit: Any, io: Io) -> Any:
        return Outcome(unit, unit, "still at it", keep_claim=True)

    work(world, FeedProbe(act), seconds=1)
    found = world.unit(ref)
    assert (found.doubts, found.claimed_by) == (1, None)
    assert "more than 100 turns" in found.change_reason


def test_how_often_a_claim_may_be_kept_is_for_the_flow_to_say(world):
    (ref,) = world.born(feed())
    pages = 0

    class Pages(FeedProbe):
        turns = 151

    async def act(unit: Any, io: Io) -> Any:
        nonlocal pages
        pages += 1
        if pages <= 150:
            return Outcome(unit, unit, "a page", keep_claim=True)
        return Outcome(unit, replace(unit, status=FeedState.FETCHING, due_at=None), "all pages")

    worker = work(world, Pages(act), seconds=5)
    assert (pages, worker.counts.failed) == (151, 0)
    assert world.unit(ref).change_reason == "all pages"


class Together(Flow[Any, None, Any]):
    machine = BATCH_ITEM

    def __init__(self) -> None:
        super().__init__(None)
        self.acts: list[tuple[str, list[int]]] = []
        self.looks: list[list[int]] = []

    @staticmethod
    def decide(unit: Any, now: Any, settings: Any, seen: Any) -> Any:
        if unit.position == 9:
            return Wait(None, "not this one")
        if unit.position > 2 and seen is None:
            return Look("unsure")
        return Act("even" if unit.position % 2 == 0 else "odd", "due")

    async def act(self, what: str, unit: Any, seen: Any, io: Io) -> Any:
        raise AssertionError("siblings act together")

    async def look_together(self, units: Any, io: Io) -> Any:
        self.looks.append([u.position for u in units])
        return ["seen" for _ in units]

    async def act_together(self, what: str, units: Any, seen: Any, io: Io) -> Any:
        self.acts.append((what, [u.position for u in units]))
        return [Outcome(u, replace(u, status=ItemState.DONE, result=s), what) for u, s in zip(units, seen, strict=True)]


def test_siblings_are_looked_at_and_acted_on_by_one_call(world):
    world.born(batch_run("a", items_expected=5, due_at=None), batch_run("b", items_expected=1, due_at=None))
    world.born(*(batch_item(n, run_id="a") for n in (1, 2, 3, 4, 9)), batch_item(1, run_id="b"))
    flow = Together()
    work(world, flow)
    assert flow.looks == [[3, 4]]
    assert sorted(flow.acts) == [("even", [4, 2]), ("odd", [1]), ("odd", [3, 1])]
    results = world.rows("SELECT run_id, position, status, result FROM batch_item ORDER BY run_id, position")
    assert [tuple(r)[2:] for r in results] == [
        ("done", None),
        ("done", None),
        ("done", "seen"),
        ("done", "seen"),
        ("working", None),
        ("done", None),
    ]


def test_a_step_past_its_deadline_is_cancelled_and_in_doubt(world):
    (ref,) = world.born(invoice())

    class Slow(Probe):
        deadline = timedelta(seconds=5)

    async def act(unit: Any, io: Io) -> Any:
        await asyncio.sleep(0 if unit.attempts else 10_000)
        return sent(unit)

    flow = Slow(act)
    worker = work(world, flow, seconds=7)
    found = world.unit(ref)
    assert (found.attempts, found.crashes, found.status) == (1, 0, InvoiceState.QUEUED)
    assert found.change_reason == "InDoubt: the step took longer than its deadline of 5 s"
    assert worker.counts.failed == 1
    work(world, flow)
    assert world.unit(ref).status is InvoiceState.SENT


def test_a_handler_that_hides_why_it_was_cancelled_still_ends_in_doubt(world):
    (ref,) = world.born(invoice())

    class Slow(Probe):
        deadline = timedelta(seconds=5)

    async def act(unit: Any, io: Io) -> Any:
        try:
            await asyncio.sleep(10_000)
        except asyncio.CancelledError:
            raise asyncio.CancelledError from None

    work(world, Slow(act), seconds=7)
    found = world.unit(ref)
    assert (found.attempts, found.claimed_by) == (1, None)


def test_a_worker_whose_lease_was_taken_goes_on_under_a_fresh_id(world):
    (ref,) = world.born(invoice())

    async def act(unit: Any, io: Io) -> Any:
        if not unit.doubts:
            world.time.advance(31)  # as if the process had been stopped
            assert world.worker("feed").reap() == 1
        return sent(unit)

    flow = Probe(act)
    worker = work(world, flow, seconds=60)
    assert worker.counts.lost == 1
    assert len(flow.acted) == 2
    actors = [actor for _, _, actor, _ in world.history(ref)]
    assert len({a for a in actors if a.startswith("worker:")}) == 2
    assert [h[:2] for h in world.history(ref)] == [(None, "QUEUED"), ("QUEUED", "SENDING"), ("SENDING", "SENT")]


def test_units_of_machines_that_nobody_serves_are_parked_and_reported(world):
    (ref,) = world.born(feed())
    work(world, Probe(), seconds=120, unknown_seconds=30)
    assert world.unit(ref).parked_reason == "no running worker knows this machine"
    alerts = world.rows("SELECT event_type, severity, machine FROM event_log")
    assert [tuple(a) for a in alerts] == [("machine.unknown", "critical", "feed")]
    flow = FeedProbe(decide=lambda unit, now, seen: Wait(None, "seen"))
    work(world, flow, seconds=5)
    assert flow.calls == ["decide"], "a worker that knows the machine takes the unit up again"


def test_an_idle_worker_asks_about_once_a_second(world):
    ledger, wire = wired(world, list(world.ledger.machines.values()))
    world.born(invoice("later", due_at=after(10_000)))
    work_on(ledger, world, [Probe(), FeedProbe()], 100)
    assert 90 <= len(wire.asked) <= 145, "once a second, the lease now and then, coming and going"


def test_an_idle_worker_notices_what_others_bring(world):
    worker_sees: list[Any] = []

    async def act(unit: Any, io: Io) -> Any:
        worker_sees.append(io.now())
        return sent(unit)

    async def later() -> None:
        await asyncio.sleep(50.5)
        world.born(invoice())

    class Bringing(Probe):
        async def start(self) -> None:
            self.bringing = asyncio.create_task(later())

    work(world, Bringing(act), seconds=60)
    assert len(worker_sees) == 1
    assert worker_sees[0] <= after(52)


def test_a_wake_up_during_the_step_is_not_lost(world):
    (ref,) = world.born(feed())
    steps: list[Any] = []

    def decide(unit: Any, now: Any, seen: Any) -> Any:
        steps.append(now)
        if len(steps) == 1:
            world.ledger.nudge([ref])
        return Wait(None, "nothing to do")

    work(world, FeedProbe(decide=decide), seconds=10)
    assert len(steps) == 2


def test_what_is_held_at_the_end_is_given_back(world):
    refs = world.born(*(invoice(str(n)) for n in range(5)))

    async def act(unit: Any, io: Io) -> Any:
        await asyncio.sleep(10_000 if unit.number == "0" else 0.5)
        return sent(unit)

    work(world, Probe(act), seconds=1, concurrency=2)
    units = [world.unit(r) for r in refs]
    assert [u.claimed_by for u in units] == [None] * 5
    assert (units[0].doubts, units[0].status) == (1, InvoiceState.SENDING), "begun: the next looks first"
    waiting = [u for u in units if u.status is InvoiceState.SENDING and u.number != "0"]
    assert [u.doubts for u in waiting] == [0] * len(waiting)
    rows = world.rows("SELECT stopped_at, reaped_at FROM worker")
    assert all(instant(stopped) and instant(reaped) for stopped, reaped in rows)


@pytest.mark.parametrize("outage", [20, 100])
def test_finished_work_is_kept_while_the_database_is_away(world, outage):
    refs = world.born(*(invoice(str(n)) for n in range(3)))
    ledger, wire = wired(world, list(world.ledger.machines.values()))

    async def act(unit: Any, io: Io) -> Any:
        await asyncio.sleep(1)
        wire.away = True
        asyncio.get_running_loop().call_later(outage, setattr, wire, "away", False)
        return sent(unit)

    flow = Probe(act)
    worker = work_on(ledger, world, [flow], 300)
    assert [world.unit(r).status for r in refs] == [InvoiceState.SENT] * 3
    assert (worker.counts.committed, worker.counts.lost, len(flow.acted)) == (3, 0, 3)


def test_a_step_cut_off_by_a_long_outage_is_taken_up_by_looking(world):
    (ref,) = world.born(invoice())
    ledger, wire = wired(world, list(world.ledger.machines.values()))

    async def act(unit: Any, io: Io) -> Any:
        if not unit.doubts:
            wire.away = True
            asyncio.get_running_loop().call_later(60, setattr, wire, "away", False)
            await asyncio.sleep(50)
            raise AssertionError("no step goes on when the lease may be over")
        return sent(unit)

    flow = Probe(act, decide=lambda u, now, seen: Look("?") if u.doubts and not seen else Act("send", ""), look=see)
    worker = work_on(ledger, world, [flow], 300)
    assert flow.calls == ["decide", "send", "decide", "look", "decide on facts", "send knowing facts"]
    assert world.unit(ref).status is InvoiceState.SENT
    assert worker.counts.lost == 0


def test_an_intent_cut_off_by_a_long_outage_does_not_stay_claimed(world):
    (ref,) = world.born(feed())
    ledger, wire = wired(world, list(world.ledger.machines.values()))

    async def act(unit: Any, io: Io) -> Any:
        if unit.status is FeedState.MISSING:
            wire.away = not unit.doubts
            asyncio.get_running_loop().call_later(60, setattr, wire, "away", False)
            return Outcome(unit, replace(unit, status=FeedState.FETCHING), "intent", keep_claim=True)
        return Outcome(unit, replace(unit, status=FeedState.COMPLETED, due_at=None), "loaded")

    work_on(ledger, world, [FeedProbe(act)], 300)
    found: Any = world.unit(ref)
    assert found.status is FeedState.COMPLETED


def test_a_deadline_does_not_run_while_the_database_is_away(world):
    (ref,) = world.born(feed())
    ledger, wire = wired(world, list(world.ledger.machines.values()))

    class Slow(FeedProbe):
        deadline = timedelta(seconds=5)

    async def act(unit: Any, io: Io) -> Any:
        if unit.status is FeedState.MISSING:
            wire.away = True
            asyncio.get_running_loop().call_later(20, setattr, wire, "away", False)
            return Outcome(unit, replace(unit, status=FeedState.FETCHING), "intent", keep_claim=True)
        return Outcome(unit, replace(unit, status=FeedState.COMPLETED, due_at=None), "loaded")

    worker = work_on(ledger, world, [Slow(act)], 100)
    assert world.unit(Ref("feed", "news")).status is FeedState.COMPLETED
    assert (worker.counts.failed, world.unit(ref).crashes) == (0, 0)


class Slow(Together):
    async def act_together(self, what: str, units: Any, seen: Any, io: Io) -> Any:
        await asyncio.sleep(1_000)
        return await super().act_together(what, units, seen, io)


def test_siblings_that_wait_their_turn_are_given_back_at_a_stop(world):
    world.born(batch_run("a", items_expected=1, due_at=None), batch_run("b", items_expected=1, due_at=None))
    world.born(batch_item(1, run_id="a"), batch_item(1, run_id="b"))
    work(world, Slow(), seconds=5, concurrency=1, stop_seconds=2)
    rows = world.rows("SELECT run_id, doubts, claimed_by FROM batch_item ORDER BY run_id")
    # The step that had begun counts a crash, so that the next worker looks first; the one that waited does not.
    assert [tuple(r) for r in rows] == [("a", 1, None), ("b", 0, None)]


def test_a_unit_claimed_anew_while_its_step_runs_is_stepped_by_its_new_claim_alone(world):
    (ref,) = world.born(invoice("1"))
    versions: list[int] = []

    async def act(unit: Any, io: Io) -> Any:
        versions.append(unit.version)
        if len(versions) == 1:
            world.sql("UPDATE invoice SET status = 'QUEUED'")
            await asyncio.sleep(10)
            raise AssertionError("the older claim's step goes on")
        return sent(unit)

    worker = work(world, Probe(act), seconds=15)
    assert len(versions) == 2
    assert world.unit(ref).status is InvoiceState.SENT
    assert (worker.counts.committed, worker.counts.failed) == (1, 0)

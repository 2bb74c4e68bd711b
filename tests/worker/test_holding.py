"""What a worker holds: given back when a gate closes or a step goes wrong, and never begun past the lease."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from penstock.model.errors import Fatal, InDoubt, Throttled
from penstock.model.outcome import Act, Look, Outcome
from penstock.model.unit import replace
from penstock.worker.flow import Flow, Gate, Io
from tests.support.hand import Hand
from tests.support.machines import BATCH_ITEM, FeedState, InvoiceState, ItemState, batch_item, batch_run, feed, invoice
from tests.support.probe import FeedProbe, Probe, reached, sent, wired, work, work_on
from tests.support.world import World, after

TRACES = "SELECT number, status, attempts, crashes, claimed_by FROM invoice ORDER BY number"


class Spy(Probe):
    """Remembers what another process sees so many seconds after the worker came, while it still works."""

    def __init__(self, act: Any, world: World, sql: str, seconds: float = 1) -> None:
        super().__init__(act)
        self._world, self._sql, self._seconds = world, sql, seconds
        self.saw: list[tuple[Any, ...]] = []

    async def start(self) -> None:
        async def look() -> None:
            await asyncio.sleep(self._seconds)
            self.saw = self._world.rows(self._sql)

        self._task = asyncio.create_task(look())


@pytest.mark.parametrize("error", [Throttled("slow down", 30), Fatal("revoked")], ids=["throttled", "fatal"])
def test_what_waits_behind_a_gate_that_closes_is_given_back_at_once(world, error):
    world.born(*(invoice(str(n), gate_id="api/acme") for n in range(4)), invoice("other", gate_id="api/globex"))

    async def act(unit: Any, io: Io) -> Any:
        if unit.gate_id == "api/acme":
            raise error
        return sent(unit)

    flow = Spy(act, world, TRACES)
    work(world, flow, seconds=8)
    assert [name for name, _ in flow.acted] == ["acme/0", "acme/other"], "one call told them all"
    assert flow.saw[-1][:2] == ("other", "SENT")
    assert [row[2:] for row in flow.saw] == [(0, 0, None)] * 5, "nobody is charged, and nothing is held"


class Siblings(Flow[Any, None, Any]):
    machine = BATCH_ITEM

    def __init__(self) -> None:
        super().__init__(None)
        self.acted: list[str] = []

    @staticmethod
    def decide(unit: Any, now: Any, settings: Any, seen: Any) -> Any:
        return Act("all", "due")

    def gate(self, unit: Any) -> Gate:
        return Gate(unit.gate_id)

    async def act(self, what: str, unit: Any, seen: Any, io: Io) -> Any:
        raise NotImplementedError

    async def act_together(self, what: str, units: Any, seen: Any, io: Io) -> Any:
        self.acted.append(units[0].run_id)
        if units[0].gate_id == "closing":
            raise Throttled("slow down", 30)
        return [Outcome(u, replace(u, status=ItemState.DONE), "done") for u in units]


def test_siblings_behind_a_gate_that_closes_are_given_back_too(world):
    for run, gate in (("a", "closing"), ("b", "closing"), ("c", "open")):
        world.born(batch_run(run, items_expected=2, due_at=None))
        world.born(*(batch_item(n, run_id=run, gate_id=gate) for n in (1, 2)))
    flow = Siblings()
    work(world, flow, seconds=5)
    assert flow.acted == ["a", "c"], "of the two groups behind the closing gate, one was tried"
    rows = world.rows("SELECT run_id, doubts, claimed_by FROM batch_item ORDER BY run_id, position")
    assert rows == [(run, 0, None) for run in "aabbcc"]
    assert world.one("SELECT count(*) FROM batch_item WHERE status = 'done'") == 2


class Unprintable(Exception):
    """An error that cannot even be told: whatever wants its text fails as well."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = object.__repr__


def test_a_step_whose_failure_cannot_be_told_is_given_back_and_parked_at_the_third(world):
    bad, good = world.born(invoice("1"), invoice("2"))

    async def act(unit: Any, io: Io) -> Any:
        if unit.number == "1":
            raise Unprintable
        return sent(unit)

    flow = Probe(act)
    work(world, flow, seconds=30)
    assert world.unit(good).status is InvoiceState.SENT
    found = world.unit(bad)
    assert [name for name, _ in flow.acted].count("acme/1") == 3
    assert (found.crashes, found.claimed_by) == (3, None)
    assert found.parked_at is not None
    assert "RuntimeError" in found.parked_reason
    alerts = world.rows("SELECT event_type, severity, unit_id FROM event_log")
    assert alerts == [("unit.parked", "critical", "acme/1")]


def test_a_step_whose_failure_cannot_be_told_waits_for_a_ledger_that_is_away(world):
    (ref,) = world.born(invoice("1"))
    ledger, wire = wired(world, list(world.ledger.machines.values()))

    async def act(unit: Any, io: Io) -> Any:
        if not unit.doubts:
            wire.away = True
            asyncio.get_running_loop().call_later(15, setattr, wire, "away", False)
            raise Unprintable
        return sent(unit)

    worker = work_on(ledger, world, [Probe(act)], 60)
    assert world.unit(ref).status is InvoiceState.SENT
    assert (worker.counts.committed, worker.counts.lost) == (1, 0)


def lease_end(world: World) -> Any:
    """When the worker's lease ends, in milliseconds: PostgreSQL keeps an instant, SQLite the time since boot."""
    (end,) = [row[0] for row in world.rows("SELECT lease_until FROM worker WHERE reaped_at IS NULL")]
    return end if world.sqlite else (end - after(0)) / timedelta(milliseconds=1)


def test_no_step_begins_past_the_lease(world):
    """As if the process had been stopped during a step: what it holds may be somebody else's by now."""
    world.born(*(invoice(str(n)) for n in range(3)))
    margins: list[float] = []

    async def act(unit: Any, io: Io) -> Any:
        margins.append(lease_end(world) - world.time.uptime())
        if len(margins) == 1:
            world.time.advance(31)
        return sent(unit)

    worker = work(world, Probe(act), seconds=90, concurrency=1)
    assert len(margins) == 3
    assert min(margins) > 0, "the lease was renewed before the next step"
    assert (worker.counts.committed, worker.counts.lost) == (3, 0)


def test_a_worker_never_frees_its_own_units(world):
    (ref,) = world.born(invoice("1"))
    worker = world.worker()
    (unit,) = worker.claim({"invoice": 1})
    world.time.advance(3_600)
    assert worker.reap() == 0
    assert world.unit(ref) == unit, "what is finished is offered for commit first, and the fence decides"
    assert worker.renew() is not None


def test_an_intent_whose_step_was_cancelled_meanwhile_gives_its_claim_back(world):
    """The lease ran out while the intent was being committed; it landed, and nobody waits for it any more."""
    (ref,) = world.born(feed())
    ledger, wire = wired(world, list(world.ledger.machines.values()))
    held: list[Any] = []

    async def act(unit: Any, io: Io) -> Any:
        if unit.status is FeedState.MISSING:
            if not unit.doubts:
                wire.away = True
                asyncio.get_running_loop().call_later(45, setattr, wire, "away", False)
            return Outcome(unit, replace(unit, status=FeedState.FETCHING), "intent", keep_claim=True)
        held.append(unit)
        return Outcome(unit, replace(unit, status=FeedState.COMPLETED, due_at=None), "loaded")

    work_on(ledger, world, [FeedProbe(act)], 200)
    assert [(u.status, u.doubts) for u in held] == [(FeedState.FETCHING, 1)], "whoever takes it up looks first"
    assert world.unit(ref).status is FeedState.COMPLETED


class Intending(Siblings):
    """Siblings of which the first records an intent; the second is there to be taken away."""

    async def act_together(self, what: str, units: Any, seen: Any, io: Io) -> Any:
        self.acted += [f"{u.position}:{u.doubts}" for u in units]
        if len(units) == 1:
            return [Outcome(u, replace(u, status=ItemState.DONE), "done") for u in units]
        return [Outcome(u, replace(u, result="intent"), "intent", keep_claim=True) for u in units]


@pytest.mark.parametrize("world_url", ["postgres"], indirect=True)
def test_an_intent_that_lands_after_its_group_was_broken_up_gives_its_claim_back(world):
    """Somebody's lock delays the intent of one sibling; meanwhile the other is taken away, and claimed anew."""
    world.born(batch_run("run", items_expected=2, due_at=None), batch_item(1), batch_item(2))
    with Hand(world.url) as somebody:

        async def meddle() -> None:
            somebody.type("BEGIN")
            somebody.type("SELECT 1 FROM batch_item WHERE position = 1 FOR UPDATE")
            await asyncio.sleep(0.5)
            world.sql("UPDATE batch_item SET status = 'open' WHERE position = 2")
            await asyncio.sleep(0.4)
            somebody.type("COMMIT")

        class Meddling(Intending):
            async def act_together(self, what: str, units: Any, seen: Any, io: Io) -> Any:
                if not self.acted:
                    self.meddling = asyncio.create_task(meddle())
                    await asyncio.sleep(0.1)
                return await super().act_together(what, units, seen, io)

        flow = Meddling()
        work_on(reached(world, 100), world, [flow], 20, idle_seconds=0.1)
    assert flow.acted == ["1:0", "2:0", "2:1", "1:1"], "both are taken up again, and look first"
    assert world.one("SELECT count(*) FROM batch_item WHERE status = 'done'") == 2


class Doubtful(Flow[Any, None, Any]):
    """Siblings whose every call goes unanswered; a look past the last one finds those that arrived."""

    machine = BATCH_ITEM

    def __init__(self) -> None:
        super().__init__(None)
        self.calls: list[tuple[str, list[int]]] = []

    @staticmethod
    def decide(unit: Any, now: Any, settings: Any, seen: Any) -> Any:
        if unit.attempts <= 3:
            return Act("send", "not there")
        if seen is None:
            return Look("it may have arrived")
        return Act("record", "it is there", counts_attempt=False) if seen == "there" else Act("send", "it is not there")

    async def act(self, what: str, unit: Any, seen: Any, io: Io) -> Any:
        raise NotImplementedError

    async def look_together(self, units: Any, io: Io) -> Any:
        self.calls.append(("look", sorted(u.position for u in units)))
        return ["there" if u.position == 1 else "nowhere" for u in units]

    async def act_together(self, what: str, units: Any, seen: Any, io: Io) -> Any:
        self.calls.append((what, sorted(u.position for u in units)))
        if what == "send":
            raise InDoubt("no answer")
        return [Outcome(u, replace(u, status=ItemState.DONE), what) for u in units]


def test_siblings_in_doubt_are_looked_for_before_they_are_given_up(world):
    world.born(batch_run("run", items_expected=2, due_at=None), batch_item(1), batch_item(2))
    flow = Doubtful()
    work(world, flow, seconds=120)
    sends = sum(len(who) for what, who in flow.calls if what == "send")
    looks = sorted(n for what, who in flow.calls for n in who if what == "look")
    assert (sends, looks) == (8, [1, 2]), "four calls each, and one look each"
    assert world.rows("SELECT position, status FROM batch_item ORDER BY position") == [(1, "done"), (2, "failed")]


def test_a_unit_that_cannot_be_set_aside_while_the_ledger_is_away_is_not_forgotten(world):
    (ref,) = world.born(invoice("1"))
    world.sql("UPDATE invoice SET crashes = 2")
    ledger, wire = wired(world, list(world.ledger.machines.values()))
    acted: list[int] = []

    async def act(unit: Any, io: Io) -> Any:
        acted.append(unit.doubts)
        if len(acted) > 1:
            return sent(unit)
        wire.away = True
        asyncio.get_running_loop().call_later(15, setattr, wire, "away", False)
        raise Unprintable

    work_on(ledger, world, [Probe(act)], 60)
    assert acted == [0, 1]
    assert world.unit(ref).status is InvoiceState.SENT


def test_a_halt_before_the_next_step_has_begun_leaves_nothing_standing(world):
    """The first step blocks until the lease is over, and whoever was about to begin the next is still to come."""
    world.born(*(invoice(str(n)) for n in range(4)))
    late: list[int] = []

    async def act(unit: Any, io: Io) -> Any:
        if not late:
            late.append(1)
            world.time.advance(31)
            io.check()
        return sent(unit)

    work(world, Probe(act), seconds=60, watch_seconds=10_000)
    assert {status for _, status, *_ in world.rows(TRACES)} == {"SENT"}

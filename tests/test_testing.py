"""`penstock.testing`, as a user's tests use it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from penstock.app.lifecycle import Lifecycle, NoSettings
from penstock.ledger import delivery
from penstock.ledger.ledger import Ledger
from penstock.model.clock import SystemClock
from penstock.model.errors import InDoubt, Rejected, Throttled, Transient
from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.outcome import Act, Decision, Look, Outcome, Wait
from penstock.model.state import State, done, fault, rest, work
from penstock.model.unit import Ref, Unit, replace
from penstock.operations.bulk.machine import bulk_action
from penstock.testing import (
    KILL,
    Fault,
    HandRefused,
    NeverIdle,
    VirtualClock,
    check_hands,
    inject,
    run_until_idle,
    simulate,
    temporary_ledger,
    work_until_idle,
)
from penstock.worker import schedule_unit
from penstock.worker.flow import Flow, Gate, Io
from penstock.worker.worker import WorkerSettings


class S(State):
    NEW = rest("new", "not sent yet")
    SENDING = work("sending", "the call may have left")
    SENT = done("sent", "the other side has it")
    FAILED = fault("failed", "the other side refuses it")


class Letter(Unit):
    key = ("number",)
    status: S = S.NEW
    number: int
    answer: str | None = None


def again(letter: Letter, now: Any) -> Letter:
    return replace(letter, attempts=0, due_at=now)


EDGES = [
    Edge(S.NEW, S.SENDING, "claim", {Actor.WORKER}, on_claim=True),
    Edge(S.SENDING, S.SENT, "sent", {Actor.WORKER}),
    Edge(S.SENDING, S.NEW, "again", {Actor.WORKER}),
    Edge(S.SENDING, S.FAILED, "refused", {Actor.WORKER}),
    Edge(S.FAILED, S.NEW, "retry", {Actor.OPERATOR}, by_hand=again),
]
CHECKS = {"sent_has_an_answer": "(status = 'sent') = (answer IS NOT NULL)"}
MACHINE = Machine(
    "letter",
    Letter,
    births={S.NEW},
    edges=EDGES,
    terminal={S.SENT},
    on_error=OnError(retry=S.NEW, dead=S.FAILED),
    checks=CHECKS,
)
LIFECYCLE = Lifecycle("letters", "Letters that are sent.", NoSettings, machines=[MACHINE])


class Letters(Flow[Letter, None, str]):
    machine = MACHINE

    def __init__(self) -> None:
        super().__init__(None)
        self.box: dict[int, int] = {}
        self.looks = 0

    @staticmethod
    def decide(unit: Letter, now: Any, settings: None, seen: str | None, /) -> Decision:
        if unit.status is not S.SENDING:
            return Wait(None, "nothing to do")
        if unit.attempts + unit.doubts and seen is None:
            return Look("an earlier call may have arrived")
        return Act("record", "it is there") if seen else Act("send", "not there")

    def gate(self, unit: Letter) -> Gate:
        return Gate("post/office")

    async def look(self, unit: Letter, io: Io) -> str:
        self.looks += 1
        return "there" if unit.number in self.box else ""

    async def act(self, what: str, unit: Letter, seen: str | None, io: Io) -> Outcome[Letter]:
        if what == "send":
            self.box[unit.number] = self.box.get(unit.number, 0) + 1
        return Outcome(unit, replace(unit, status=S.SENT, answer=what), what)


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request):
    server = request.getfixturevalue("postgres_server") if request.param == "postgres" else None
    with temporary_ledger(LIFECYCLE, postgres=server) as made:
        yield made


def born(ledger: Ledger, *numbers: int, **columns: Any) -> None:
    units = [Letter(number=number, **{"due_at": ledger.clock.now(), **columns}) for number in numbers]
    ledger.birth(units, actor=Actor.API, who="test")


def letter(ledger: Ledger, number: int) -> Any:
    return ledger.get(Ref("letter", str(number)))


def test_a_worker_runs_until_everything_is_done(ledger):
    born(ledger, 1, 2, 3)
    flow = Letters()
    work_until_idle(ledger, [flow])
    assert flow.box == {1: 1, 2: 1, 3: 1}
    assert {letter(ledger, number).status for number in (1, 2, 3)} == {S.SENT}
    work_until_idle(ledger, [Letters()])


def test_what_is_due_later_is_waited_for_as_far_as_one_looks(ledger):
    start = ledger.clock.now()
    born(ledger, 1, due_at=start + timedelta(hours=5))
    born(ledger, 2, due_at=start + timedelta(hours=30))
    flow = Letters()
    work_until_idle(ledger, [flow])
    assert flow.box == {1: 1}
    assert start + timedelta(hours=5) <= ledger.clock.now() < start + timedelta(hours=6)
    work_until_idle(ledger, [flow], within=timedelta(hours=26))
    assert flow.box == {1: 1, 2: 1}


@pytest.mark.parametrize("error", [Transient("down"), Throttled("slow down", 30), InDoubt("lost")])
def test_a_call_that_fails_is_made_again(ledger, error):
    born(ledger, 1)
    flow = inject(Letters(), Fault("send", error, times=2))
    work_until_idle(ledger, [flow])
    assert flow.left == {}
    assert flow.flow.box == {1: 1}
    assert letter(ledger, 1).status is S.SENT


def test_an_answer_that_is_lost_is_looked_for(ledger):
    born(ledger, 1, 2)
    flow = inject(Letters(), Fault("send", InDoubt("no answer"), after=True, unit_id="2"))
    work_until_idle(ledger, [flow])
    assert flow.flow.box == {1: 1, 2: 1}, "not sent twice"
    assert (letter(ledger, 1).answer, letter(ledger, 2).answer) == ("send", "record")


@pytest.mark.parametrize("after", [False, True])
def test_a_killed_worker_is_followed_by_another(ledger, after):
    start = ledger.clock.now()
    born(ledger, 1)
    flow = inject(Letters(), Fault("send", KILL, after=after))
    work_until_idle(ledger, [flow])
    assert flow.left == {}
    assert flow.flow.box == {1: 1}
    assert flow.flow.looks == 1, "it was in doubt"
    assert letter(ledger, 1).status is S.SENT
    assert ledger.clock.now() - start >= timedelta(seconds=30), "the lease of the first had to end"


def test_a_look_can_fail_too(ledger):
    born(ledger, 1)
    flow = inject(Letters(), Fault("send", Transient("down")), Fault("look", Transient("down as well")))
    work_until_idle(ledger, [flow])
    assert (flow.left, flow.flow.looks) == ({}, 1)
    assert letter(ledger, 1).status is S.SENT


def test_what_will_never_work_is_a_dead_letter_and_rests(ledger):
    born(ledger, 1)
    work_until_idle(ledger, [inject(Letters(), Fault("send", Rejected("no such address")))])
    assert letter(ledger, 1).status is S.FAILED


def test_a_paused_gate_is_rest(ledger):
    born(ledger, 1, gate_id="post/office")
    ledger.gates.pause("post/office", who="test", reason="closed")
    start = ledger.clock.now()
    work_until_idle(ledger, [Letters()])
    assert letter(ledger, 1).status is S.NEW
    assert ledger.clock.now() - start < timedelta(hours=1)


def test_a_flow_that_never_rests_is_told(monkeypatch):
    class Restless(Letters):
        async def act(self, what: str, unit: Letter, seen: str | None, io: Io) -> Outcome[Letter]:
            return Outcome(unit, replace(unit, status=S.NEW, due_at=io.now()), "again")

    monkeypatch.setattr("penstock.testing.work._CALLS", 500)
    with temporary_ledger(LIFECYCLE) as ledger:
        born(ledger, 1)
        with pytest.raises(NeverIdle, match="500 calls to the ledger, and there is still something to do"):
            work_until_idle(ledger, [Restless()])


def test_it_runs_inside_a_loop_of_the_tests_own():
    clock = VirtualClock()
    with temporary_ledger(LIFECYCLE, clock=clock) as ledger:
        born(ledger, 1)
        simulate(clock, lambda: run_until_idle(ledger, [Letters()]))
        assert letter(ledger, 1).status is S.SENT


def test_it_runs_on_the_machines_time():
    with temporary_ledger(LIFECYCLE, clock=SystemClock()) as ledger:
        born(ledger, 1)
        settings = WorkerSettings(idle_seconds=0.05)
        asyncio.run(run_until_idle(ledger, [Letters()], within=timedelta(seconds=5), settings=settings))
        assert letter(ledger, 1).status is S.SENT


def test_a_temporary_ledger_leaves_nothing(postgres_server):
    with temporary_ledger(LIFECYCLE, postgres=postgres_server) as ledger:
        name = ledger.read(lambda cursor: cursor.rows("SELECT current_database()")[0][0])
        assert name != urlsplit(postgres_server).path[1:]
    with psycopg.connect(postgres_server) as connection:
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchall()
    assert found == []


def machine(**changes: Any) -> Machine:
    given: dict[str, Any] = {"births": {S.NEW}, "edges": EDGES, "terminal": {S.SENT}, "checks": CHECKS}
    return Machine("letter", Letter, **{**given, **changes})


def test_moves_by_hand_are_tried_against_the_checks():
    assert check_hands(MACHINE) == 1
    wrong = [*EDGES[:4], Edge(S.FAILED, S.SENT, "force", {Actor.OPERATOR}, by_hand=again)]
    wrong.append(Edge(S.FAILED, S.NEW, "retry", {Actor.OPERATOR}))
    with pytest.raises(HandRefused, match=r"letter: force \(failed -> sent\): CHECK constraint failed"):
        check_hands(machine(edges=wrong))


def test_a_check_that_no_made_up_unit_meets_wants_one():
    checked = machine(checks={"large": "number > 1000"})
    with pytest.raises(HandRefused, match="no unit in failed meets the CHECKs; give one in `units`"):
        check_hands(checked)
    assert check_hands(checked, [Letter(number=2_000, status=S.FAILED, unit_id="2000", changed_by="test")]) == 1


def test_the_kernels_own_moves_by_hand_keep_their_checks():
    """Those of the lifecycles are tried with theirs."""
    due = datetime(2026, 1, 1, tzinfo=UTC)
    usual: dict[str, Any] = {
        "name": "nightly",
        "unit_id": "nightly",
        "job": "prune",
        "every": "1h",
        "changed_by": "test",
        "due_at": due,
    }
    schedules = [schedule_unit.Schedule(**usual, status=status) for status in schedule_unit.S]
    assert check_hands(schedule_unit.machine, schedules) > 0
    assert check_hands(delivery.machine) > 0
    assert check_hands(bulk_action) > 0

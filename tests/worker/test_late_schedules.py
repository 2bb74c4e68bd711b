"""A clock that was wrong plans ticks for days that are far away: found by the ledger's time, and brought forward."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from penstock.ledger.ledger import Ledger
from penstock.model.clock import Rng, SystemClock, VirtualClock, instant_text
from penstock.model.errors import Throttled, Transient
from penstock.model.machine import Actor
from penstock.model.unit import Ref, replace
from penstock.worker.job import JobResult
from penstock.worker.schedule import belated, keep_schedules, mend_schedules
from penstock.worker.schedule import late_schedules as late
from penstock.worker.schedule_unit import S, Schedule, cadence_of, machine
from tests.worker import test_schedule
from tests.worker.test_schedule import ALONE, START, five_minutes, kept, the_schedule

DAY = timedelta(days=1)
REFRESH = Ref("schedule", "refresh")


def late_schedules(ledger: Ledger) -> list[tuple[Schedule, datetime]]:
    return ledger.read(lambda cursor: late(ledger.database, cursor))


class Shifted(VirtualClock):
    """A virtual wall clock that can be set; what is measured since boot goes on as ever."""

    ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


@pytest.fixture
def world(ledger_url: str) -> Iterator[tuple[Ledger, Shifted]]:
    clock = Shifted(START)
    with Ledger.open(ledger_url, [machine], clock=clock, rng=Rng(1), create=True) as ledger:
        yield ledger, clock


def run(ledger: Ledger, clock: VirtualClock, job: Any, seconds: float, monkeypatch: Any = None) -> None:
    if monkeypatch is not None:
        monkeypatch.setattr(test_schedule, "ALONE", dataclasses.replace(ALONE, place_seconds=60.0, idle_seconds=1.0))
    test_schedule.run(ledger, clock, {"refresh": job}, seconds)


async def refresh(schedule: Schedule, io: Any) -> JobResult:
    return JobResult("refreshed")


def put_off(ledger: Ledger, clock: Shifted) -> None:
    """A tick is planned while the clock is a day ahead; then the clock is set right."""
    kept(ledger, five_minutes())
    clock.ahead = DAY
    run(ledger, clock, refresh, 1)
    clock.ahead = timedelta()


def test_a_clock_set_back_is_found(world):
    ledger, clock = world
    put_off(ledger, clock)
    ((found, tick),) = late_schedules(ledger)
    assert found.due_at - clock.now() > timedelta(hours=23)
    assert tick == datetime(2026, 11, 15, 12, 5, tzinfo=UTC)


def test_a_running_worker_mends_it_within_a_minute_and_it_ticks_on(world, monkeypatch):
    ledger, clock = world
    put_off(ledger, clock)
    ticks = []

    async def job(schedule: Schedule, io: Any) -> JobResult:
        ticks.append(io.now())
        return JobResult("refreshed")

    run(ledger, clock, job, 700, monkeypatch)
    assert [t.strftime("%d %H:%M") for t in ticks] == ["15 12:05", "15 12:10"]
    assert late_schedules(ledger) == []
    rows = ledger.read(lambda c: c.rows("SELECT event_type, severity FROM event_log"))
    assert [tuple(row) for row in rows] == [("schedule.mended", "warning")]


def test_a_worker_that_runs_while_the_clock_is_set_back_mends_it_too(world, monkeypatch):
    ledger, clock = world
    kept(ledger, five_minutes())
    ticks = []

    async def job(schedule: Schedule, io: Any) -> JobResult:
        ticks.append(io.now())
        clock.ahead = timedelta() if len(ticks) > 1 else DAY  # ahead after the first tick, right after the second
        return JobResult("refreshed")

    run(ledger, clock, job, 1_000, monkeypatch)
    assert [t.strftime("%d") for t in ticks] == ["15", "16", *["15"] * (len(ticks) - 2)]
    assert len(ticks) >= 4


def test_a_restart_mends_it(world):
    ledger, clock = world
    put_off(ledger, clock)
    assert kept(ledger, five_minutes()) == {"born": 0, "changed": 0, "retired": 0}
    schedule = the_schedule(ledger)
    assert schedule.due_at == datetime(2026, 11, 15, 12, 5, tzinfo=UTC)
    assert schedule.changed_by == "scheduler:test"
    assert "later than its next tick: a clock was wrong" in schedule.change_reason
    assert mend_schedules(ledger, "test") == 0


def test_one_that_was_born_or_resumed_while_the_clock_was_ahead(world):
    ledger, clock = world
    kept(ledger, Schedule(name="refresh", job="refresh", at=["03:00"]))
    ledger.move(REFRESH, S.PAUSED, actor=Actor.OPERATOR, who="jo", reason="stock-taking")
    clock.ahead = 3 * DAY
    due = clock.now() + DAY
    ledger.move(REFRESH, S.ACTIVE, actor=Actor.OPERATOR, who="jo", reason="go on", due_at=due)
    kept(ledger, Schedule(name="refresh", job="refresh", at=["03:00"]), Schedule(name="new", job="x", at=["03:00"]))
    clock.ahead = timedelta()
    assert {one.name: tick.isoformat() for one, tick in late_schedules(ledger)} == dict.fromkeys(
        ["refresh", "new"], "2026-11-16T03:00:00+00:00"
    )


def far(**changes: Any) -> Schedule:
    """Due long after its next tick, as a worker left it."""
    given: dict[str, Any] = {"name": "x", "job": "x", "every": "5m", "changed_by": "worker:w", "changed_at": START}
    return Schedule(**given | {"due_at": START + DAY} | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": S.PAUSED},
        {"status": S.RETIRED},
        {"due_at": None},
        {"claimed_by": "w"},
        {"parked_at": START},
        {"changed_by": "operator:jo"},
        {"changed_by": "sql"},
        {"due_at": START + timedelta(minutes=14)},
        {"every": "30d"},
        {"every": None, "at": ["11:59"]},
        {"hours": "11:00-12:00", "due_at": START + timedelta(hours=22, minutes=59, seconds=59)},
        {"every": "soon"},
    ],
    ids=str,
)
def test_what_waits_for_a_reason_is_left_alone(changes):
    assert belated([far()], START) == {"x": datetime(2026, 11, 15, 12, 5, tzinfo=UTC)}
    assert belated([far(**changes)], START) == {}


def test_a_share_of_a_long_jitter_is_no_delay():
    spread = {"every": None, "at": ["11:59"], "jitter": "20h"}
    due = cadence_of(far(**spread)).next_after(START, "x")
    assert due > START + timedelta(hours=1)
    assert belated([far(**spread, due_at=due)], START) == {}


def test_a_wish_from_the_future_is_none():
    assert belated([far(changed_by="operator:jo", changed_at=START + DAY)], START) != {}


def test_a_job_that_waits_for_a_closed_gate_is_left_alone(world, monkeypatch):
    ledger, clock = world
    kept(ledger, five_minutes())

    async def throttled(schedule: Schedule, io: Any) -> JobResult:
        async with io.gate("shop/acme"):
            raise Throttled("come back tomorrow", 86_400)

    run(ledger, clock, throttled, 200, monkeypatch)
    assert the_schedule(ledger).due_at - clock.now() > timedelta(hours=1)
    assert late_schedules(ledger) == []
    assert ledger.read(lambda c: c.rows("SELECT 1 FROM event_log WHERE event_type = 'schedule.mended'")) == []


def test_a_failing_job_is_left_alone(world, monkeypatch):
    ledger, clock = world
    kept(ledger, Schedule(name="refresh", job="refresh", every="1s"))

    async def away(schedule: Schedule, io: Any) -> JobResult:
        raise Transient("away")

    run(ledger, clock, away, 200, monkeypatch)
    assert ledger.read(lambda c: c.rows("SELECT 1 FROM event_log WHERE event_type = 'schedule.mended'")) == []


def test_what_somebody_moved_by_hand_in_sql_stays(ledger_url):
    with Ledger.open(ledger_url, [machine], create=True) as ledger:
        kept(ledger, five_minutes())
        later = ledger.clock.now() + 7 * DAY
        ledger.database.write(lambda c: c.run(f"UPDATE schedule SET due_at = '{instant_text(later)}'"))
        kept(ledger, five_minutes())
        assert the_schedule(ledger).due_at == later


class Ahead(SystemClock):
    def now(self) -> datetime:
        return super().now() + DAY


def test_a_process_whose_clock_is_a_day_ahead_plans_by_the_servers_time(postgres_url):
    with Ledger.open(postgres_url, [machine], clock=Ahead(), create=True) as ledger:
        keep_schedules(ledger, [five_minutes(), Schedule(name="daily", job="x", at=["03:00"])], "test")
        now = datetime.now(UTC)
        for one in ledger.get_many(machine, ["daily", "refresh"]):
            assert one.due_at - now < timedelta(hours=24, minutes=1)
        # As an older program left it, which did not ask the server for the time.
        unit = ledger.get(REFRESH)
        ledger.move(REFRESH, S.ACTIVE, actor=Actor.SCHEDULER, who="x", reason="x", due_at=replace(unit).due_at + DAY)  # type: ignore[attr-defined]
        assert mend_schedules(ledger, "test") == 1
        assert the_schedule(ledger).due_at - now < timedelta(minutes=6)

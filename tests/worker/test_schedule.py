"""Periodic jobs: one tick however many processes, no overlap, and a failed job ticks on."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta

import pytest
from structlog.testing import capture_logs

from penstock.ledger.ledger import Ledger
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import Throttled, Transient, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Act, Wait
from penstock.model.simulation import simulate
from penstock.model.unit import Ref
from penstock.worker.executor import InlineExecutor
from penstock.worker.job import JobResult
from penstock.worker.schedule import Schedules, keep_schedules
from penstock.worker.schedule_unit import S, Schedule, cadence_of, decide, machine
from penstock.worker.worker import Worker, WorkerSettings

START = datetime(2026, 11, 15, 12, 0, 1, tzinfo=UTC)
ALONE = WorkerSettings(
    lease_ms=86_400_000,
    renew_seconds=20_000,
    watch_seconds=3_600,
    idle_seconds=None,
    unknown_seconds=1e9,
    place_seconds=None,
)


@pytest.fixture
def world(ledger_url):
    clock = VirtualClock(START)
    with Ledger.open(ledger_url, [machine], clock=clock, rng=Rng(1), create=True) as ledger:
        yield ledger, clock


def run(ledger, clock, jobs, seconds, workers=1):
    async def main():
        running = [Worker(ledger, [Schedules(jobs)], ALONE, executor=InlineExecutor()) for _ in range(workers)]
        tasks = [asyncio.create_task(w.run()) for w in running]
        await asyncio.sleep(seconds)
        for worker in running:
            worker.stop()
        await asyncio.gather(*tasks)

    simulate(clock, main)


def kept(ledger, *wanted):
    return keep_schedules(ledger, wanted, "test")


def five_minutes(**changes):
    return Schedule(name="refresh", job="refresh", every="5m", **changes)


def the_schedule(ledger):
    return ledger.get(Ref("schedule", "refresh"))


@pytest.mark.parametrize(
    ("error", "event", "level"),
    [(ValueError("a bug"), "job.broken", "error"), (Transient("503"), "job.failed", "warning")],
)
def test_a_job_that_fails_is_logged_with_what_happens_next(world, error, event, level):
    ledger, clock = world
    kept(ledger, five_minutes())

    async def refresh(schedule, io):
        raise error

    with capture_logs() as said:
        run(ledger, clock, {"refresh": refresh}, 1)
    (line,) = [line for line in said if line["event"].startswith("job.")]
    assert (line["event"], line["log_level"], line["schedule"]) == (event, level, "refresh")
    assert line["next"].startswith("tried again at 2026-11-15T12:")
    assert ("a bug" in line.get("exception", "")) == (event == "job.broken")


def test_one_tick_however_many_workers(world):
    ledger, clock = world
    kept(ledger, five_minutes())
    ticks = []

    async def refresh(schedule, io):
        ticks.append(io.now())
        await asyncio.sleep(2)
        return JobResult("refreshed")

    run(ledger, clock, {"refresh": refresh}, 1_500, workers=3)
    assert [t.strftime("%H:%M:%S") for t in ticks] == [
        *("12:00:01", "12:05:00", "12:10:00", "12:15:00", "12:20:00", "12:25:00")
    ]


def test_runs_never_overlap_and_missed_ticks_come_to_one(world):
    ledger, clock = world
    kept(ledger, five_minutes())
    runs = []

    async def slow(schedule, io):
        runs.append(io.now())
        await asyncio.sleep(720)
        return JobResult("refreshed")

    run(ledger, clock, {"refresh": slow}, 1_900, workers=2)
    assert [t.strftime("%H:%M") for t in runs] == ["12:00", "12:15", "12:30"]


def test_a_job_that_fails_raises_an_alert_and_ticks_on(world):
    ledger, clock = world
    kept(ledger, five_minutes())

    async def broken(schedule, io):
        raise RuntimeError("no luck")

    run(ledger, clock, {"refresh": broken}, 700)
    schedule = the_schedule(ledger)
    assert (schedule.failures, schedule.last_error, schedule.parked_at) == (3, "RuntimeError: no luck", None)
    assert schedule.due_at == datetime(2026, 11, 15, 12, 15, tzinfo=UTC)
    rows = ledger.read(lambda c: c.rows("SELECT severity FROM event_log ORDER BY created_at"))
    assert [r[0] for r in rows] == ["warning", "warning", "critical"]


def test_a_job_that_is_not_there_is_told(world):
    ledger, clock = world
    kept(ledger, five_minutes())
    run(ledger, clock, {}, 400)
    assert "this program has no job 'refresh'" in the_schedule(ledger).last_error


def test_a_job_with_more_to_do_comes_back_at_once(world):
    ledger, clock = world
    kept(ledger, five_minutes())
    runs = []

    async def chunk(schedule, io):
        runs.append(io.now())
        return JobResult("a part", again=len(runs) < 3)

    run(ledger, clock, {"refresh": chunk}, 200)
    assert len(runs) == 3


def test_a_paused_schedule_rests_until_it_is_resumed(world):
    ledger, clock = world
    kept(ledger, five_minutes())
    ledger.move(Ref("schedule", "refresh"), S.PAUSED, actor=Actor.OPERATOR, who="jo", reason="stock-taking")
    ran = []

    async def refresh(schedule, io):
        ran.append(1)
        return JobResult("refreshed")

    run(ledger, clock, {"refresh": refresh}, 1_000)
    assert ran == []
    assert kept(ledger, five_minutes(settings_version="2")) == {"born": 0, "changed": 0, "retired": 0}
    assert the_schedule(ledger).status is S.PAUSED


def test_schedules_follow_what_is_wanted(world):
    ledger, _ = world
    assert kept(ledger, five_minutes()) == {"born": 1, "changed": 0, "retired": 0}
    assert kept(ledger, five_minutes()) == {"born": 0, "changed": 0, "retired": 0}
    assert kept(ledger, five_minutes(settings_version="2")) == {"born": 0, "changed": 1, "retired": 0}
    assert kept(ledger) == {"born": 0, "changed": 0, "retired": 1}
    assert the_schedule(ledger).status is S.RETIRED
    assert kept(ledger, five_minutes(settings_version="2")) == {"born": 0, "changed": 1, "retired": 0}
    assert the_schedule(ledger).status is S.ACTIVE
    assert the_schedule(ledger).due_at is not None


def test_only_a_new_schedule_ticks_at_once(world):
    """A change, a new start and a second wish wait for the tick that all processes agree on."""
    ledger, clock = world
    kept(ledger, five_minutes())
    assert the_schedule(ledger).due_at == START
    clock.advance(60)
    kept(ledger, five_minutes(settings_version="2"))
    assert the_schedule(ledger).due_at == datetime(2026, 11, 15, 12, 5, tzinfo=UTC)
    kept(ledger)
    kept(ledger, five_minutes(settings_version="2"))
    assert the_schedule(ledger).due_at == datetime(2026, 11, 15, 12, 5, tzinfo=UTC)


@pytest.mark.parametrize("wrong", [{"hours": "03:00"}, {"time_zone": "Nowhere"}, {"jitter": "soon"}, {"every": "5x"}])
def test_what_cannot_tick_is_refused_before_anything_is_written(world, wrong):
    ledger, _ = world
    with pytest.raises(UsageError):
        kept(ledger, Schedule(**{"name": "refresh", "job": "refresh", "every": "5m", **wrong}))
    assert ledger.read(lambda c: c.rows("SELECT count(*) FROM schedule"))[0][0] == 0


def test_decide_runs_what_is_due_and_waits_for_what_is_not():
    due = five_minutes(due_at=START)
    assert isinstance(decide(due, START, None, None), Act)
    assert decide(due, START - timedelta(seconds=1), None, None) == Wait(START, "not due yet")
    assert isinstance(decide(five_minutes(status=S.PAUSED), START, None, None), Wait)
    assert cadence_of(due).every == timedelta(minutes=5)


def test_a_job_whose_other_side_was_away_is_tried_again_within_minutes(world):
    ledger, clock = world
    kept(ledger, Schedule(name="refresh", job="refresh", at=["12:00"]))
    ledger.nudge([Ref("schedule", "refresh")])
    runs = []

    async def away(schedule, io):
        runs.append(io.now())
        if len(runs) < 3:
            raise Transient("away")
        return JobResult("refreshed")

    run(ledger, clock, {"refresh": away}, 1_800)
    waits = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(runs)]
    assert [round(wait / 60) for wait in waits] in ([1, 4], [1, 3], [1, 5])
    assert the_schedule(ledger).failures == 0


def test_a_closed_gate_puts_a_job_off_and_is_no_failure(world):
    ledger, clock = world
    kept(ledger, Schedule(name="refresh", job="refresh", at=["12:00"]))
    ledger.nudge([Ref("schedule", "refresh")])
    runs = []

    async def throttled(schedule, io):
        runs.append(io.now())
        async with io.gate("shop/acme"):
            if len(runs) == 1:
                raise Throttled("slow down", 300)
        return JobResult("refreshed")

    run(ledger, clock, {"refresh": throttled}, 900)
    assert len(runs) == 2
    assert (runs[1] - runs[0]).total_seconds() >= 300
    assert the_schedule(ledger).failures == 0
    assert ledger.read(lambda c: c.rows("SELECT event_type FROM event_log WHERE event_type = 'schedule.failed'")) == []

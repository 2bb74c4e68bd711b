"""The unit and the machine of schedules. It imports nothing heavy: every program has this machine."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from penstock.model.cadence import Cadence
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.outcome import Act, Decision, Wait
from penstock.model.state import State, hold, rest
from penstock.model.unit import Unit, replace


class S(State):
    """Active ticks; paused and retired rest, one by a person's wish and one because nobody wants it any more."""

    ACTIVE = rest("active", "runs at its next tick")
    PAUSED = hold("paused", "stopped by hand until somebody resumes it")
    RETIRED = rest("retired", "no program wants it any more")


class Schedule(Unit):
    """A periodic job: what, how often, in which hours of which time zone, and how the last run went."""

    key = ("name",)
    status: S = S.ACTIVE
    name: str
    job: str
    every: str | None = None
    at: list[str] | None = None
    time_zone: str = "UTC"
    hours: str | None = None
    jitter: str | None = None
    settings: dict[str, Any] | None = None
    settings_version: str = ""
    last_tick_at: datetime | None = None
    last_error: str | None = None
    failures: int = 0


def _rested(schedule: Schedule, now: datetime) -> Schedule:  # noqa: ARG001 - one shape
    return replace(schedule, due_at=None)


def _resumed(schedule: Schedule, now: datetime) -> Schedule:
    return replace(schedule, due_at=cadence_of(schedule).next_after(now, schedule.name))


machine = Machine(
    "schedule",
    Schedule,
    births={S.ACTIVE: {Actor.SCHEDULER}},
    edges=[
        Edge(S.ACTIVE, S.PAUSED, "pause", {Actor.OPERATOR}, by_hand=_rested),
        Edge(S.PAUSED, S.ACTIVE, "resume", {Actor.OPERATOR}, by_hand=_resumed),
        Edge(S.ACTIVE, S.RETIRED, "retire", {Actor.OPERATOR}, by_hand=_rested),
        Edge(S.ACTIVE, S.RETIRED, "unwanted", {Actor.SCHEDULER}),
        Edge(S.RETIRED, S.ACTIVE, "wanted", {Actor.SCHEDULER}),
    ],
    tracked=("settings_version",),
)


def cadence_of(schedule: Schedule) -> Cadence:
    """The schedule's cadence. Raises UsageError that says which part cannot be read."""
    return Cadence.parse(
        every=schedule.every,
        at=schedule.at,
        time_zone=schedule.time_zone,
        hours=schedule.hours,
        jitter=schedule.jitter,
    )


def decide(schedule: Schedule, now: datetime, settings: None, seen: None) -> Decision:  # noqa: ARG001 - one shape
    """Run an active schedule that is due; leave every other alone."""
    if schedule.status is not S.ACTIVE:
        return Wait(None, f"the schedule is {schedule.status}")
    if schedule.due_at is not None and schedule.due_at > now:
        return Wait(schedule.due_at, "not due yet")
    return Act("run", f"the tick of {schedule.job} is due")

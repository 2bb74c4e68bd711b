"""The unit and the machine of schedules. It imports nothing heavy: every program has this machine."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from penstock.model.cadence import Cadence
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.state import State, hold, rest
from penstock.model.unit import Unit


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


machine = Machine(
    "schedule",
    Schedule,
    births={S.ACTIVE: {Actor.SCHEDULER}},
    edges=[
        Edge(S.ACTIVE, S.PAUSED, "pause", {Actor.OPERATOR}),
        Edge(S.PAUSED, S.ACTIVE, "resume", {Actor.OPERATOR}),
        Edge(S.ACTIVE, S.RETIRED, "retire", {Actor.SCHEDULER, Actor.OPERATOR}),
        Edge(S.RETIRED, S.ACTIVE, "want", {Actor.SCHEDULER}),
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

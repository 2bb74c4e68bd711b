"""Schedules: one unit per periodic job, so that any number of processes make one tick and runs never overlap.

A schedule is a driven unit like any other: when it is due a worker claims it, runs its job as the step, and commits
what the job came to together with the next tick. Ticks missed while nobody was there come to one run. A job that fails
is told by an alert and tried again at the next tick, or within minutes where the other side was only away; it never
stops ticking. A gate that is closed puts the job off and is no failure.

A tick that was planned by a clock that went ahead lies in a future that is days away once the clock is right again.
Whoever keeps or serves schedules looks for that and brings them forward.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TypeAlias

import structlog

from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.columns import decoder_of, readable
from penstock.ledger.store.database import Cursor, Database, present
from penstock.model.clock import instant, instant_text
from penstock.model.errors import (
    Fatal,
    GateClosed,
    IllegalMove,
    InDoubt,
    LedgerRefused,
    StepError,
    Throttled,
    Transient,
    UsageError,
)
from penstock.model.machine import Actor
from penstock.model.outcome import Event, Move, Outcome
from penstock.model.retry import RetryPolicy
from penstock.model.unit import Ref, replace
from penstock.settings.kernel import ScheduleSettings
from penstock.worker.failure import following_of, traceback_of
from penstock.worker.flow import Flow, Io
from penstock.worker.job import JobResult
from penstock.worker.schedule_unit import S, Schedule, cadence_of, decide, machine

log = structlog.get_logger()
_CRITICAL_FROM = 3
# Retries, spaced suspects and two clocks that differ a little: none of them puts a tick off for so long.
_LATE = timedelta(minutes=10)
_AHEAD = timedelta(minutes=1)
_SOON = RetryPolicy(base=timedelta(minutes=1), cap=timedelta(hours=1), multiplier=4)


Job: TypeAlias = Callable[[Schedule, Io], Awaitable[JobResult]]


class Schedules(Flow[Schedule, None, None]):
    """Runs the jobs of a program, by name."""

    machine = machine
    decide = staticmethod(decide)
    deadline = timedelta(hours=1)

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        super().__init__(None)
        self._jobs = jobs

    def tend(self, ledger: Ledger) -> None:
        """Bring forward what a wrong clock has put off."""
        mend_schedules(ledger, "worker")

    def _job(self, name: str) -> Job:
        if name not in self._jobs:
            msg = f"this program has no job {name!r}; it has {', '.join(sorted(self._jobs)) or 'none'}"
            raise UsageError(msg)
        return self._jobs[name]

    async def act(self, what: str, unit: Schedule, seen: None, io: Io) -> Outcome[Schedule]:  # noqa: ARG002
        started = io.now()
        try:
            result = await self._job(unit.job)(unit, io)
        except GateClosed:
            raise  # nobody's failure: the job begins anew when the gate opens
        except Exception as error:  # whatever goes wrong in a job, the schedule goes on ticking
            if isinstance(error, (Throttled, Fatal)) and error.through is not None:
                raise  # the gate's affair, which it was told
            outcome = _failed(unit, error, started, io)
            _tell(unit, error, following_of(outcome))
            return outcome
        due = started if result.again else cadence_of(unit).next_after(io.now(), unit.name)
        if result.soon is not None:
            due = min(due, io.now() + result.soon)
        after = replace(unit, due_at=due, last_tick_at=started, last_error=None, failures=0)
        return Outcome(unit, after, result.reason, writes=result.writes, others=result.others, events=result.events)


def _tell(unit: Schedule, error: Exception, following: str) -> None:
    if isinstance(error, StepError):
        log.warning("job.failed", schedule=unit.name, job=unit.job, error=repr(error), next=following)
    else:
        trace = traceback_of(error)
        log.error("job.broken", schedule=unit.name, job=unit.job, error=repr(error), next=following, exception=trace)


def _failed(unit: Schedule, error: Exception, started: datetime, io: Io) -> Outcome[Schedule]:
    text = readable(f"{type(error).__name__}: {error}")
    failures = unit.failures + 1
    due = cadence_of(unit).next_after(io.now(), unit.name)
    if isinstance(error, (Transient, InDoubt)):
        # The other side was away: a job of once a day must not wait a day for that.
        due = min(due, io.now() + _SOON.delay(unit.failures, io.rng))
    after = replace(
        unit,
        due_at=due,
        last_tick_at=started,
        last_error=text,
        failures=failures,
    )
    alert = Event(
        f"schedule.failed:{unit.name}:{unit.version}",
        "schedule.failed",
        {"schedule": unit.name, "job": unit.job, "reason": text, "failures": failures},
        "critical" if failures >= _CRITICAL_FROM else "warning",
    )
    return Outcome(unit, after, text, events=[alert])


def keep_schedules(ledger: Ledger, wanted: Sequence[Schedule], who: str) -> dict[str, int]:
    """Make the ledger's schedules those that are wanted: new ones are born, changed ones changed, others retired.

    A new one that ticks every so long ticks at once: what it is for would else wait for no reason.
    What a wrong clock has put off is brought forward. Any number of processes may do this at once. Returns how many
    were born, changed and retired.
    """
    now = ledger.read(lambda cursor: present(ledger.database, cursor))
    for schedule in wanted:
        cadence_of(schedule)  # refuse what cannot tick before anything is written
    fresh = [replace(s, due_at=cadence_of(s).first(now, s.name)) for s in wanted]
    planned = [replace(s, due_at=cadence_of(s).next_after(now, s.name)) for s in wanted]
    counts = {
        "born": ledger.birth(fresh, actor=Actor.SCHEDULER, who=who, reason="wanted", if_absent=True),
        "changed": 0,
        "retired": 0,
    }
    there = {u.name: u for u in ledger.read(lambda cursor: _all(ledger.database, cursor))}
    for schedule in planned:
        counts["changed"] += _bring_up_to_date(ledger, there.get(schedule.name), schedule, who)
    gone = [u.unit_id for n, u in there.items() if u.status is S.ACTIVE and n not in {s.name for s in wanted}]
    moved = ledger.move_many(
        "schedule", gone, S.RETIRED, actor=Actor.SCHEDULER, who=who, reason="no longer wanted", due_at=None
    )
    counts["retired"] = len(moved.moved)
    mend_schedules(ledger, who)
    return counts


def _all(database: Database, cursor: Cursor) -> list[Schedule]:
    columns = ", ".join(machine.column(name) for name in machine.columns)
    decode = decoder_of(database, Schedule)
    return [decode(row) for row in cursor.rows(f"SELECT {columns} FROM {machine.table} ORDER BY unit_id")]


def belated(schedules: Sequence[Schedule], now: datetime, closed: Sequence[datetime] = ()) -> dict[str, datetime]:
    """By name the next tick of every schedule that is due later than that, and not by anybody's wish.

    `closed`: until when gates are closed. A job that met one waits for it, and somebody who moves a tick by hand means
    it; a change that lies in the future was made under a wrong clock, whoever made it.
    """
    found = {}
    for one in schedules:
        if one.status is not S.ACTIVE or one.due_at is None or one.claimed_by is not None or one.parked_at is not None:
            continue
        by_hand = one.changed_by.partition(":")[0] in {"sql", Actor.OPERATOR}
        by_hand = by_hand and one.changed_at is not None and one.changed_at <= now + _AHEAD
        if by_hand or one.due_at <= now + _LATE or any(one.due_at <= until + _AHEAD for until in closed):
            continue
        try:
            tick = cadence_of(one).next_after(now, one.name)
        except UsageError:
            continue  # nobody could say when it ticks; its next run tells
        if one.due_at > tick + _LATE:
            found[one.name] = tick
    return found


def late_schedules(database: Database, cursor: Cursor) -> list[tuple[Schedule, datetime]]:
    """Every schedule that is due later than its next tick, with that tick, by the ledger's time."""
    rows = cursor.rows("SELECT closed_until FROM gate WHERE closed_until IS NOT NULL")
    there = _all(database, cursor)
    ticks = belated(there, present(database, cursor), [instant(row[0]) for row in rows])
    return [(one, ticks[one.name]) for one in there if one.name in ticks]


def mend_schedules(ledger: Ledger, who: str) -> int:
    """Make every schedule that is due later than its next tick due at that tick; how many were."""
    mended = 0
    for one, tick in ledger.read(lambda cursor: late_schedules(ledger.database, cursor)):
        text = f"it was due at {instant_text(one.due_at)}, later than its next tick: a clock was wrong"  # type: ignore[arg-type]
        move = Move(one, replace(one, due_at=tick), text, actor=Actor.SCHEDULER)
        said = {"schedule": one.name, "reason": text, "due_at": instant_text(tick)}
        alert = Event(f"schedule.mended:{one.name}:{one.version}", "schedule.mended", said, "warning")
        try:
            ledger.together([move], who=who, events=[alert])
        except LedgerRefused:
            continue  # it was changed meanwhile, and whoever did that knew the time
        log.warning("schedule.mended", schedule=one.name, reason=text, due_at=instant_text(tick))
        mended += 1
    return mended


_SPEC = ("job", "every", "at", "time_zone", "hours", "jitter", "settings", "settings_version")


def wanted_by(schedules: Mapping[str, ScheduleSettings], usual: Sequence[Schedule] = ()) -> list[Schedule]:
    """The schedules that a configuration asks for; each carries the version of its own settings alone.

    The `usual` ones of the lifecycles are wanted too, each unless the configuration has one of that name.
    """
    own = [name for name in _SPEC if name != "settings_version"]
    found = [
        replace(one, settings_version=_version({name: getattr(one, name) for name in own}))
        for one in usual
        if one.name not in schedules
    ]
    for name, settings in sorted(schedules.items()):
        spec = settings.texts()
        version = _version(spec)
        spec["time_zone"] = spec["time_zone"] or "UTC"
        found.append(Schedule(name=name, settings_version=version, **spec))
    return found


def _version(spec: Mapping[str, object]) -> str:
    """The same for the same settings: the history keeps it, and so what a schedule was at a moment."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _bring_up_to_date(ledger: Ledger, old: Schedule | None, new: Schedule, who: str) -> bool:
    if old is None or old.status is S.PAUSED:
        return False
    changes = {n: getattr(new, n) for n in _SPEC if getattr(new, n) != getattr(old, n)}
    if not changes and old.status is S.ACTIVE:
        return False
    try:
        ledger.move(
            Ref("schedule", old.unit_id),
            S.ACTIVE,
            actor=Actor.SCHEDULER,
            who=who,
            reason="wanted" if old.status is S.RETIRED else "changed: " + ", ".join(sorted(changes)),
            due_at=new.due_at,
            **changes,
        )
    except IllegalMove:
        return False  # paused meanwhile: a person's wish stands
    return True

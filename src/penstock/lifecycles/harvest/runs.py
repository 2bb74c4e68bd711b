"""The run's own steps, and the job that brings runs about: it scans, and births run and partitions together (H3)."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID

import structlog

from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.columns import document, readable
from penstock.ledger.store.database import Cursor, identifier_sql
from penstock.lifecycles.harvest.decide import Known, Plan, decide_run, plan
from penstock.lifecycles.harvest.feed import Consolidation, Span, Window
from penstock.lifecycles.harvest.flow import Configured
from penstock.lifecycles.harvest.machine import (
    CALLS,
    CONSOLIDATIONS,
    P,
    Partition,
    R,
    Run,
    RunType,
    harvest_partition,
    harvest_run,
)
from penstock.lifecycles.harvest.scan import Counted, Limits, Scanned, scan
from penstock.lifecycles.harvest.tables import harvest_density, harvest_request
from penstock.model.clock import Rng, instant
from penstock.model.errors import Rejected, StepError, Transient, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Event, Move, Outcome, Write
from penstock.model.unit import replace
from penstock.worker.flow import Flow, Io
from penstock.worker.schedule import Job, JobResult, Schedule

log = structlog.get_logger()
JOB = "harvest"
OPEN = tuple(str(s) for s in R if s not in (R.COMPLETED, R.FAILED))
"""The states of a run that is under way; a feed has one such run at most."""
Repair: TypeAlias = Callable[[str, Io], Awaitable[None]]


class Runs(Flow[Run, None, None]):
    """Drives runs of all feeds; what follows the fetching is the consolidation's."""

    machine = harvest_run
    decide = staticmethod(decide_run)
    deadline = timedelta(minutes=30)

    def __init__(self, consolidation: Consolidation) -> None:
        super().__init__(None)
        self._consolidation = consolidation

    async def act(self, what: str, unit: Run, seen: None, io: Io) -> Outcome[Run]:  # noqa: ARG002
        now = io.now()
        match what:
            case "start":
                return await self._start(unit, io)
            case "trigger":
                after = replace(unit, status=R.CONSOLIDATION_TRIGGERED, due_at=now)
                return Outcome(unit, after, f"all {unit.expected_workers} partitions are completed")
            case "skip":
                after = replace(unit, status=R.CONSOLIDATION_SKIPPED, due_at=now)
                why = f"{unit.failed_workers} of {unit.expected_workers} partitions have failed"
                log.warning("harvest.consolidation_skipped", run=str(unit.run_id), feed=unit.feed, reason=why)
                return Outcome(unit, after, why)
            case "alert":
                why = f"{unit.failed_workers} of {unit.expected_workers} partitions have failed"
                return failed_run(unit, f"{why}; the watermark stays where it was")
            case _:
                return await self._consolidation.step(unit, io)

    def failed(self, unit: Run, error: StepError, now: datetime, rng: Rng) -> Outcome[Run] | None:  # noqa: ARG002
        """Consolidation is tried three times; then the run has failed, and the next one covers the same window."""
        hopeless = isinstance(error, Rejected) or CONSOLIDATIONS.exhausted(unit.attempts)
        if unit.status is not R.CONSOLIDATING or not hopeless:
            return None
        return failed_run(unit, f"consolidation failed: {error}; the watermark stays where it was")

    async def _start(self, unit: Run, io: Io) -> Outcome[Run]:
        now = io.now()
        born = await io.ledger(lambda ledger: partitions_of(ledger, unit.run_id))
        starts = [Move(p, replace(p, due_at=now), "its run starts") for p in born if p.status is P.PENDING]
        after = replace(unit, status=R.WORKERS_RUNNING, due_at=None)
        return Outcome(unit, after, f"{len(starts)} partitions are due", others=starts)


def failed_run(unit: Run, why: str) -> Outcome[Run]:
    """The run has failed, and one alert says so."""
    alert = Event(
        f"harvest.failed:{unit.run_id}:{unit.version}",
        "harvest.failed",
        {"run": f"harvest_run:{unit.unit_id}", "feed": unit.feed, "reason": readable(why)},
        "critical",
    )
    after = replace(unit, status=R.FAILED, error=readable(why), due_at=None)
    return Outcome(unit, after, why, events=[alert])


def partitions_of(ledger: Ledger, run_id: UUID) -> list[Partition]:
    """The partitions of a run, in order."""
    sql = f"SELECT unit_id FROM partition_progress WHERE run_id = {identifier_sql(ledger.database, 'run_id')}"
    ids = [str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, run_id=str(run_id)))]
    found: list[Partition] = ledger.get_many(harvest_partition, ids) if ids else []
    return sorted(found, key=lambda p: p.ordinal)


@dataclass(frozen=True, slots=True)
class Rules:
    """When a feed's runs are full, how far their windows overlap, and how finely they are split."""

    overlap: timedelta = timedelta(minutes=10)
    full_every: timedelta = timedelta(days=7)
    full: Limits = field(default_factory=Limits)
    incremental: Limits = field(default_factory=lambda: Limits(most=10))

    def limits(self, run_type: RunType) -> Limits:
        """How a run of that type is split."""
        return self.full if run_type is RunType.FULL else self.incremental


@dataclass(frozen=True, slots=True)
class Standing:
    """What the ledger knows of a feed before a scan."""

    known: Known
    open_run: str | None = None
    requested: Mapping[str, Any] | None = None
    density: Mapping[str, list[Counted]] = field(default_factory=dict)


def schedule_name(feed: str) -> str:
    """The schedule that starts a feed's runs; whoever reopens one takes it too, so that no two are ever under way."""
    return f"harvest-{feed}"


def harvest_job(feeds: Mapping[str, Configured], rules: Mapping[str, Rules], repair: Repair) -> Job:
    """The job `harvest`: one feed's scan, and the birth of its run. `repair` publishes a watermark that was not yet."""

    async def job(schedule: Schedule, io: Io) -> JobResult:
        name = str((schedule.settings or {}).get("feed"))
        if name not in feeds:
            raise UsageError(f"no feed is called {name!r}; add [feeds.{name}] to the configuration")
        await repair(name, io)
        standing = await io.ledger(lambda ledger: standing_of(ledger, name))
        if standing.open_run is not None:
            return JobResult(f"run {standing.open_run} is still under way")
        rule = rules[name]
        wanted = plan(standing.known, io.now(), overlap=rule.overlap, full_every=rule.full_every)
        remembered = standing.density.get(wanted.run_type) or standing.density.get(RunType.FULL) or ()
        scanned = await _scan(feeds[name], rule.limits(wanted.run_type), wanted.window, remembered, io)
        return births(feeds[name], wanted, scanned, requested=standing.requested, now=io.now(), rng=io.rng)

    return job


async def _scan(configured: Configured, limits: Limits, window: Window, remembered: Any, io: Io) -> Scanned:
    feed = configured.feed
    questions = scan(feed.lowest, feed.highest, limits, remembered)
    span = next(questions)
    while True:
        count = await _count(configured, window, span, io)
        try:
            span = questions.send(count)
        except StopIteration as done:
            scanned: Scanned = done.value
            return scanned


async def _count(configured: Configured, window: Window, span: Span, io: Io) -> int:
    """One answer. A call that fails is made again at once, because a scan has dozens of them and begins anew."""
    for attempt in itertools.count():
        try:
            async with io.gate(configured.gate):
                return await configured.source.count(window, span)
        except Transient:
            if CALLS.exhausted(attempt):
                raise
    raise AssertionError("unreachable")


def births(
    configured: Configured,
    wanted: Plan,
    scanned: Scanned,
    *,
    requested: Mapping[str, Any] | None,
    now: datetime,
    rng: Rng,
) -> JobResult:
    """The run, all its partitions and the counts, to be committed together."""
    feed, window = configured.feed.name, wanted.window
    run = Run(
        run_id=UUID(hex=(rng.token() + rng.token())[:32], version=4),
        feed=feed,
        run_type=wanted.run_type,
        expected_workers=len(scanned.partitions),
        watermark_before=wanted.watermark,
        started_at=wanted.window_to,
        window_from=wanted.window_from,
        window_to=wanted.window_to,
        expected_records=scanned.records,
        scan_calls=scanned.calls,
        due_at=now,
    )
    partitions = [
        Partition(
            run_id=run.run_id,
            partition_id=f"partition-{ordinal}",
            feed=feed,
            ordinal=ordinal,
            low=low,
            high=high,
            window_from=window.lower,
            window_to=window.upper,
            expected_records=count,
            created_at=now,
            updated_at=now,
            gate_id=configured.gate,
        )
        for ordinal, (low, high, count) in enumerate(scanned.partitions)
    ]
    reason = f"{wanted.run_type}: {wanted.why}"
    density = {
        "feed": feed,
        "run_type": wanted.run_type,
        "spans": [list(span) for span in scanned.density],
        "calls": scanned.calls,
        "at": now,
    }
    writes = [Write(harvest_density, [density])]
    if requested is not None:
        writes.append(Write(harvest_request, [{**requested, "run_id": run.run_id}]))
        reason = f"{reason} ({requested['requested_by']}: {requested['reason']})"
    return JobResult(
        f"{wanted.run_type} run {run.run_id}: {scanned.records:,} records in {len(partitions)} partitions,"
        f" {scanned.calls} counts",
        others=[Birth(unit, reason, actor=Actor.SCHEDULER) for unit in (run, *partitions)],
        writes=writes,
    )


def standing_of(ledger: Ledger, feed: str) -> Standing:
    """Watermark, runs, requests and density of a feed, of one moment."""

    def work(cursor: Cursor) -> Standing:
        marks = cursor.rows("SELECT last_updated_at FROM watermark WHERE feed = :feed", feed=feed)
        states = ", ".join(f"'{state}'" for state in OPEN)
        runs = cursor.rows(
            f"SELECT unit_id FROM run_metadata WHERE feed = :feed AND status IN ({states}) LIMIT 1", feed=feed
        )
        ((last_full,),) = cursor.rows(
            "SELECT max(started_at) FROM run_metadata WHERE feed = :feed AND run_type = 'full'"
            " AND status = 'completed' AND forced_by IS NULL",
            feed=feed,
        )
        names = ("feed", "run_type", "requested_at", "requested_by", "reason")
        asked = cursor.rows(
            f"SELECT {', '.join(names)} FROM harvest_request WHERE feed = :feed AND run_id IS NULL", feed=feed
        )
        spans = cursor.rows("SELECT run_type, spans FROM harvest_density WHERE feed = :feed", feed=feed)
        requested = dict(zip(names, asked[0], strict=True)) if asked else None
        if requested is not None:
            requested["requested_at"] = instant(requested["requested_at"])
        known = Known(
            watermark=instant(marks[0][0]) if marks else None,
            last_full=None if last_full is None else instant(last_full),
            full_requested=requested is not None and requested["run_type"] == RunType.FULL,
        )
        density = {str(kind): [(low, high, n) for low, high, n in _spans(text)] for kind, text in spans}
        return Standing(known, str(runs[0][0]) if runs else None, requested, density)

    return ledger.read(work)


def _spans(value: Any) -> list[Any]:
    found = document(value) if isinstance(value, (str, bytes)) else value
    return found if isinstance(found, list) else []

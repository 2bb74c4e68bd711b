"""The job `collect-raw`: one for all landed data, whichever lifecycle landed it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from penstock.ledger.ledger import Ledger
from penstock.model.cadence import parse_span
from penstock.model.errors import Transient, UsageError
from penstock.model.outcome import Event
from penstock.raw.collect import UNFINISHED_AGE, Collected, Held, Holds, collect
from penstock.raw.paths import PartitionKey
from penstock.raw.sink import RawSink
from penstock.raw.store import RawUnavailable
from penstock.settings.config import Config
from penstock.worker.flow import Io
from penstock.worker.schedule import Job, JobResult, Schedule

COLLECT = "collect-raw"
SCHEDULE = Schedule(name=COLLECT, job=COLLECT, every="1d", jitter="1h", settings_version="usual")
_MOST_NAMED = 20


def holds_of(ledger: Ledger) -> Holds:
    """What the ledger knows of runs, by every lifecycle that it has."""
    # Their programs import this module.
    from penstock.lifecycles.partitions import keep as partitions
    from penstock.lifecycles.reports import keep as reports

    known = {"extraction": partitions.held, "report": reports.held}
    there = {row[0] for row in ledger.read(lambda cursor: cursor.rows("SELECT name FROM machine_definition"))}
    keepers = [held for name, held in known.items() if name in there]

    def holds(keys: Collection[PartitionKey]) -> dict[PartitionKey, Held]:
        found: dict[PartitionKey, Held] = {}
        for keeper in keepers:
            for key, held in keeper(ledger, keys).items():
                found[key] = held if key not in found else _both(found[key], held)
        return found

    return holds


def _both(one: Held, other: Held) -> Held:
    """Two lifecycles land in the same partition: what either needs stays."""
    currents = (one.current, other.current)
    return Held(
        None if None in currents else min(map(str, currents)),
        one.referenced | other.referenced,
        one.under_way | other.under_way,
        one.claimed or other.claimed,
    )


def collect_all(
    ledger: Ledger, sink: RawSink, now: datetime, *, superseded: str | None = None, dry_run: bool = False
) -> Collected:
    """Collect by the ages in force: a day for attempts, and a span for superseded runs if one is asked for."""
    before = None if superseded is None else now - parse_span(superseded)
    return collect(sink, holds_of(ledger), unfinished=now - UNFINISHED_AGE, superseded=before, dry_run=dry_run)


def collect_job(config: Config) -> Job:
    """The job `collect-raw`. With `settings = { superseded = "90d" }` superseded runs of that age go too."""
    sink = RawSink(config["raw.url"])

    async def job(schedule: Schedule, io: Io) -> JobResult:
        now, age = io.now(), _superseded_age(schedule.settings or {})
        try:
            done = await io.ledger(lambda ledger: collect_all(ledger, sink, now, superseded=age))
        except RawUnavailable as error:
            raise Transient(str(error)) from error
        first = next((f", the first {name}: {why}" for name, why in done.skipped.items()), "")
        return JobResult(f"collected {done.counts()}{first}", events=_alerts(schedule, done))

    return job


def _superseded_age(settings: dict[str, Any]) -> str | None:
    if unknown := sorted(settings.keys() - {"superseded"}):
        msg = f'{COLLECT} takes settings = {{ superseded = "90d" }} and knows no {unknown[0]!r}'
        raise UsageError(msg)
    return settings.get("superseded")


def _alerts(schedule: Schedule, done: Collected) -> list[Event]:
    if not done.skipped:
        return []
    named = dict(list(done.skipped.items())[:_MOST_NAMED])
    facts = {"skipped": len(done.skipped), "runs": named}
    return [Event(f"raw.unreadable:{schedule.name}:{schedule.version}", "raw.unreadable", facts, "warning")]

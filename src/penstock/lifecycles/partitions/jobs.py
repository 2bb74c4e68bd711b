"""The periodic work: want what the configuration asks for, and collect what nothing refers to any more."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import chain, islice

from penstock.cadence import parse_span
from penstock.clock import parse_instant
from penstock.ledger import statements
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.partitions.machine import Extraction, extraction
from penstock.lifecycles.partitions.settings import Settings
from penstock.machine import Actor
from penstock.outcome import Birth
from penstock.raw.paths import PartitionKey
from penstock.raw.sink import RawSink
from penstock.runtime.flow import Io
from penstock.runtime.schedule import Job, JobResult, Schedule

ENUMERATE = "enumerate-partitions"
COLLECT = "collect-raw"
UNFINISHED_AGE = timedelta(days=1)
AT_ONCE = 5_000


def gate_of(key: PartitionKey, *, backfill: bool = False) -> str:
    """The gate that a partition's extraction stands behind: its account's, or the account's own for backfills."""
    return f"{key.source}/{key.customer_id}" + ("/backfill" if backfill else "")


def wanted_unit(key: PartitionKey, due: datetime, *, backfill: bool = False) -> Extraction:
    """A partition that is wanted from that moment on."""
    return Extraction(
        source=key.source,
        customer_id=key.customer_id,
        query_name=key.query_name,
        logical_date=key.logical_date,
        backfill=backfill,
        due_at=due,
        gate_id=gate_of(key, backfill=backfill),
    )


def missing(ledger: Ledger, keys: Iterable[PartitionKey]) -> list[PartitionKey]:
    """Those of some keys that nobody has wanted yet: one statement for all of them, by the primary key."""
    wanted = {str(key): key for key in keys}
    source = statements.batch(ledger.database, {"unit_id": statements.TEXT})
    text = statements.batch_text([[unit_id] for unit_id in wanted])
    sql = (
        f"SELECT n_unit_id FROM {source} WHERE NOT EXISTS"
        f" (SELECT 1 FROM {extraction.table} t WHERE t.unit_id = n_unit_id)"
    )
    absent = {row[0] for row in ledger.read(lambda cursor: cursor.rows(sql, batch=text))}
    return [key for unit_id, key in wanted.items() if unit_id in absent]


def enumerate_partitions(settings: Settings) -> Job:
    """The job `enumerate-partitions`: every wanted key that is not there is born, a few thousand per run."""

    async def job(schedule: Schedule, io: Io) -> JobResult:  # noqa: ARG001 - one shape
        now = io.now()
        ranges = (wanted for source in settings.sources.values() for wanted in source.wanted(now))
        keys = chain.from_iterable(wanted.keys() for wanted in ranges)
        fresh: list[PartitionKey] = []
        while len(fresh) < AT_ONCE and (chunk := list(islice(keys, AT_ONCE))):
            fresh += await io.read(lambda ledger, chunk=chunk: missing(ledger, chunk))  # type: ignore[misc]
        births = [
            Birth(wanted_unit(key, now), "wanted", if_absent=True, actor=Actor.SCHEDULER) for key in fresh[:AT_ONCE]
        ]
        return JobResult(f"{len(births):,} partitions are newly wanted", also=births, again=len(births) == AT_ONCE)

    return job


def collect_raw(sink: RawSink) -> Job:
    """The job `collect-raw`: unfinished attempts go after a day.

    With `settings = { superseded = "90d" }` runs of that age go too, if a newer one is authoritative.
    """

    async def job(schedule: Schedule, io: Io) -> JobResult:
        now = io.now()
        unfinished = await io.run(sink.collect, now - UNFINISHED_AGE)
        age = (schedule.settings or {}).get("superseded")
        old = (
            0 if age is None else await io.read(lambda ledger: collect_superseded(ledger, sink, now - parse_span(age)))
        )
        return JobResult(f"collected {unfinished:,} unfinished attempts and {old:,} superseded runs")

    return job


def collect_superseded(ledger: Ledger, sink: RawSink, before: datetime, *, dry_run: bool = False) -> int:
    """Remove runs from before that moment that a newer authoritative run has replaced, and no others."""
    removed = 0
    for key, run_id in sink.list_partitions():
        if parse_instant(run_id) >= before:
            continue
        # Asked run by run and last thing before the removal, so that one just pointed at is not taken.
        current = _current_run(ledger, key)
        if current is not None and run_id < current:
            removed += 1
            if not dry_run:
                sink.remove(key, run_id)
    return removed


def _current_run(ledger: Ledger, key: PartitionKey) -> str | None:
    sql = "SELECT current_run_id FROM partition_state WHERE unit_id = :unit_id AND status = 'success'"
    rows = ledger.read(lambda cursor: cursor.rows(sql, unit_id=str(key)))
    return None if not rows else str(rows[0][0])

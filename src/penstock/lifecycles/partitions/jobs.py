"""The periodic work: want what the configuration asks for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import chain, islice

from penstock.ledger.ledger import Ledger
from penstock.ledger.store import statements
from penstock.lifecycles.partitions.machine import Extraction, extraction, gate_of
from penstock.lifecycles.partitions.settings import Settings
from penstock.model.machine import Actor
from penstock.model.outcome import Birth
from penstock.raw.paths import PartitionKey
from penstock.worker.flow import Io
from penstock.worker.schedule import Job, JobResult, Schedule

ENUMERATE = "enumerate-partitions"
AT_ONCE = 5_000


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
            fresh += await io.ledger(lambda ledger, chunk=chunk: missing(ledger, chunk))  # type: ignore[misc]
        births = [
            Birth(wanted_unit(key, now), "wanted", if_absent=True, actor=Actor.SCHEDULER) for key in fresh[:AT_ONCE]
        ]
        return JobResult(f"{len(births):,} partitions are newly wanted", others=births, again=len(births) == AT_ONCE)

    return job

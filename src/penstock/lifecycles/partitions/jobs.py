"""The periodic job: want what the configuration asks for."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING

from penstock.app.lifecycle import job
from penstock.lifecycles.partitions.machine import extraction, wanted_unit
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.model.machine import Actor
from penstock.model.outcome import Birth
from penstock.raw.paths import PartitionKey

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.ledger.store.database import Database
    from penstock.worker.flow import Io
    from penstock.worker.job import JobResult
    from penstock.worker.schedule_unit import Schedule

ENUMERATE = "enumerate-partitions"
AT_ONCE = 5_000


def missing(database: Database, keys: Iterable[PartitionKey]) -> list[PartitionKey]:
    """Those of some keys that nobody has wanted yet: one statement for all of them, by the primary key."""
    from penstock.ledger.store import statements

    wanted = {str(key): key for key in keys}
    source = statements.batch(database, {"unit_id": statements.TEXT})
    text = statements.batch_text([[unit_id] for unit_id in wanted])
    sql = (
        f"SELECT n_unit_id FROM {source} WHERE NOT EXISTS"
        f" (SELECT 1 FROM {extraction.table} t WHERE t.unit_id = n_unit_id)"
    )
    absent = {row[0] for row in database.read(lambda cursor: cursor.rows(sql, batch=text))}
    return [key for unit_id, key in wanted.items() if unit_id in absent]


@job(ENUMERATE, "Makes extractions for the last days that are over.")
async def enumerate_partitions(settings: PartitionSettings, schedule: Schedule, io: Io, ports: Ports) -> JobResult:  # noqa: ARG001 - one shape
    """Every wanted key that is not there is born, a few thousand per run."""
    from penstock.worker.job import JobResult

    now = io.now()
    keys = chain.from_iterable(wanted.keys() for wanted in settings.wanted(now))
    fresh: list[PartitionKey] = []
    while len(fresh) < AT_ONCE and (chunk := list(islice(keys, AT_ONCE))):
        fresh += await io.ledger(lambda ledger, chunk=chunk: missing(ledger.database, chunk))  # type: ignore[misc]
    births = [Birth(wanted_unit(key, now), "wanted", if_absent=True, actor=Actor.SCHEDULER) for key in fresh[:AT_ONCE]]
    return JobResult(f"{len(births):,} new partitions are to be extracted", others=births, again=len(births) == AT_ONCE)

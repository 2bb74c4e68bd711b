"""Pages of records with a shape of their own are landed in the raw sink before they are written to their table.

Each page is a run of the partition of its query and day, immutable like all that is landed. A page that was landed and
whose commit failed is landed again; `landed_pages` names those that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from penstock.connectors.searches import Batch, Client, Item
from penstock.lifecycles.queries.machine import Query
from penstock.lifecycles.queries.own_store import OwnStore
from penstock.lifecycles.queries.passes import day_of
from penstock.lifecycles.queries.registry import Configured
from penstock.lifecycles.queries.sources import Source
from penstock.lifecycles.queries.tables import landed_pages
from penstock.model.outcome import Write
from penstock.raw.paths import PartitionKey, run_id_at
from penstock.raw.sink import RawSink
from penstock.raw.store import AlreadyFinalised
from penstock.worker.flow import Io

SCHEMA_VERSION = "1"
_MOMENT = timedelta(milliseconds=1)


class LandedSource(Source):
    """A source whose pages are landed as they came."""

    def __init__(self, name: str, client: Client, store: OwnStore, raw: RawSink) -> None:
        super().__init__(client, store)
        self._name = name
        self._raw = raw

    async def land(self, query: Query, own: Configured, batch: Batch, io: Io) -> Sequence[Write]:
        lines = [one.payload.encode() for one in batch.records if isinstance(one, Item)]
        if not lines:
            return ()
        moment = io.now()
        key = PartitionKey(self._name, query.query_key, own.name, day_of(moment, own.zone))
        run_id = await io.run(land, self._raw, key, lines, moment)
        row = {
            "partition": str(key),
            "raw_run_id": run_id,
            "query_key": query.query_key,
            "run_id": query.run_id,
            "records": len(lines),
            "landed_at": moment,
        }
        return [Write(landed_pages, [row])]


def land(raw: RawSink, key: PartitionKey, lines: Sequence[bytes], moment: datetime) -> str:
    """Land records as a run of their own; its id is the moment, or the first free one after it."""
    while True:
        run_id = run_id_at(moment)
        try:
            raw.write_partition(key, run_id, lines, schema_version=SCHEMA_VERSION, created_at=moment)
        except AlreadyFinalised:
            moment += _MOMENT
        else:
            return run_id

"""Landed pages that have a record which is erased: each is replaced by a copy without it, under a run id of its own.

A copy is written, then the ledger says that it counts, then the original goes. Killed in between, either the original
or the copy counts, and the rest is done by the next who comes: the id of a copy follows from its original, so that one
that was written is found again. Every step holds the run lock: no page is landed and no other erasure copies meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import msgspec

from penstock.connectors.rest_json.mapping import Mapper
from penstock.ledger.ledger import Ledger
from penstock.ledger.store import statements
from penstock.lifecycles.queries.erasure.guard import erased_line, is_erased_line
from penstock.lifecycles.queries.tables import landed_pages
from penstock.model.clock import instant, parse_instant
from penstock.model.outcome import Update, Where, Write
from penstock.raw.paths import PartitionKey, read_folder, read_partition, run_id_at
from penstock.raw.sink import RawSink
from penstock.raw.store import AlreadyFinalised, RawMissing, Unfinished

AT_ONCE = 500
"""So many pages are looked through before it is written down how far that has come."""
_MOMENT = timedelta(milliseconds=1)
_ANY_CLOCK = timedelta(days=1)
"""A store may have another clock than we."""

Page = tuple[PartitionKey, str]
"""A landed page: its partition and its run id."""


class Found(msgspec.Struct, frozen=True):
    """Pages that have the record, how many were looked through, and where to go on (None: there are no more)."""

    pages: Sequence[Page]
    seen: int
    place: str | None


class Record:
    """A record among the lines of landed pages."""

    def __init__(self, mapper: Mapper, record_id: str) -> None:
        self._mapper = mapper
        self._id = record_id
        # Lines are what our own encoder made of records: a line without these bytes has no such id.
        self._bytes = msgspec.json.encode(record_id)[1:-1]

    def blanked(self, line: bytes) -> bytes | None:
        """The line that takes the place of this one; None where it is not of the record, or blank already."""
        if self._bytes not in line:
            return None
        record = msgspec.json.decode(line)
        if self._mapper.record_id(record) != self._id or is_erased_line(record):
            return None
        return erased_line(self._id, self._mapper.date_of(record))


def find(raw: RawSink, client: str, queries: Collection[str], record: Record, place: str | None) -> Found:
    """The next pages of a client's queries. Raises RawError."""
    runs = sorted((str(key), run_id, key) for key, run_id in raw.list_partitions(client) if key.customer_id in queries)
    if place is not None:
        after = tuple(msgspec.json.decode(place))
        runs = [one for one in runs if one[:2] > after]
    found = []
    some = list(islice(runs, AT_ONCE))
    for _, run_id, key in some:
        with contextlib.suppress(RawMissing):
            lines = raw.open_partition(key, run_id).lines()
            # To its end: only there does it show whether it is what was landed.
            if sum(record.blanked(line) is not None for line in lines):
                found.append((key, run_id))
    place = msgspec.json.encode(some[-1][:2]).decode() if len(some) == AT_ONCE else None
    return Found(found, len(some), place)


def copy(raw: RawSink, page: Page, record: Record, erasure: str, now: datetime) -> str:
    """Write a page without the record; the copy's run id. Raises RawError."""
    key, run_id = page
    original = raw.open_partition(key, run_id)
    facts = {**original.metadata.facts, "replaces": run_id, "erasure": erasure}
    moment = parse_instant(run_id)
    while True:
        moment += _MOMENT
        made = run_id_at(moment)
        there = raw.find(key, made)
        if there is not None:
            if dict(there.facts) == facts:
                return made
            continue
        lines = (line if (blank := record.blanked(line)) is None else blank for line in original.lines())
        with contextlib.suppress(AlreadyFinalised):
            version = original.metadata.schema_version
            raw.write_partition(key, made, lines, schema_version=version, created_at=now, facts=facts)
            return made


def recorded(ledger: Ledger, pages: Sequence[Page]) -> dict[tuple[str, str], dict[str, Any]]:
    """The rows of those pages that count. One without was landed by a run that came to nothing: it has no copy."""
    columns = [column.name for column in landed_pages.columns]
    source = statements.batch(ledger.database, {"partition": statements.TEXT, "run": statements.TEXT})
    sql = (
        f"SELECT {', '.join(f'l.{name}' for name in columns)} FROM {source} JOIN {landed_pages.name} l"
        " ON l.partition = n_partition AND l.raw_run_id = n_run WHERE l.replaced_by IS NULL"
    )
    batch = statements.batch_text([[str(key), run_id] for key, run_id in pages])
    rows = [dict(zip(columns, row, strict=True)) for row in ledger.read(lambda cursor: cursor.rows(sql, batch=batch))]
    return {(row["partition"], row["raw_run_id"]): {**row, "landed_at": instant(row["landed_at"])} for row in rows}


def replaced(row: dict[str, Any], made: str) -> tuple[Write, Update]:
    """That a copy counts and its original does not."""
    where = Where(landed_pages, {"partition": row["partition"], "raw_run_id": row["raw_run_id"]})
    return Write(landed_pages, [{**row, "raw_run_id": made}]), Update(where, {"replaced_by": made})


def remove(raw: RawSink, pages: Sequence[Sequence[str]]) -> None:
    """Remove pages; those that are gone already are. Raises RawError."""
    for partition, run_id in pages:
        with contextlib.suppress(RawMissing):
            raw.remove(PartitionKey.parse(partition), run_id)


def remove_leftovers(raw: RawSink, client: str, queries: Collection[str], now: datetime) -> int:
    """Remove what was being written or removed when a worker died: nobody is at it. How many. Raises RawError."""
    gone = 0
    for found in _leftovers(raw, client, queries, now):
        gone += raw.discard(found)
    return gone


def _leftovers(raw: RawSink, client: str, queries: Collection[str], now: datetime) -> Iterator[Unfinished]:
    for found in list(raw.unfinished(now + _ANY_CLOCK)):
        if isinstance(found, Unfinished):
            run = read_folder(found.folder)
            key = run[0] if run is not None else read_partition(found.folder)
            if key is not None and key.source == client and key.customer_id in queries:
                yield found

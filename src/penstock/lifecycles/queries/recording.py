"""What a run leaves behind: its row of `ingestion_runs`, records that could not be used, and lines of the log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast

import structlog

from penstock.connectors.searches import Bad
from penstock.lifecycles.queries.ending import Ended
from penstock.lifecycles.queries.machine import Query, S
from penstock.lifecycles.queries.runs import COUNTERS, Run, run_of
from penstock.lifecycles.queries.tables import ingestion_runs, rejected_records
from penstock.model.outcome import Write

_TOLD = 5
"""So many bad records of a page are told one by one."""
_MOST_BAD, _BAD_PAYLOAD = 200, 4_000
"""So many of them are kept, and so much of each."""

log = structlog.get_logger()


def ended_record(last: Query, end: Ended) -> Write:
    """The record of a run that is over."""
    return record(end.query, run_of(last), end.query.status, end)


def tell_runs(writes: Iterable[Any], queries: Iterable[Query]) -> None:
    """One line of summary for each run that these records say is over."""
    names = {one.query_key: one.name for one in queries}
    for write in writes:
        if not isinstance(write, Write) or write.table is not ingestion_runs:
            continue
        for row in cast("Sequence[Mapping[str, Any]]", write.rows):
            if row["finished_at"] is None:
                continue
            log.info(
                "queries.run",
                query=names.get(row["query_key"]),
                key=row["query_key"],
                run=str(row["id"]),
                status=row["status"],
                stopped_by=row["stopped_by"],
                error=row["error"],
                counts={name: row[name] for name in COUNTERS},
            )


def record(unit: Query, run: Run, status: S, end: Ended | None = None) -> Write:
    """The row of a run in `ingestion_runs`; `end` is how it ended, None while it is under way."""
    row: dict[str, Any] = {
        "id": unit.run_id,
        "query_key": unit.query_key,
        "client": unit.client,
        "status": str(status),
        **run.counters(),
        "stopped_by": None if end is None else str(end.stop),
        "error": None if end is None else run.error or (unit.error if status is S.ERROR else None),
        "started_at": unit.run_started_at,
        # A clock that was set back does not end a run before it began.
        "finished_at": None if end is None else max(filter(None, (end.at, unit.run_started_at))),
    }
    return Write(ingestion_runs, [row])


def rejected(unit: Query, bad: Sequence[Bad], now: datetime) -> list[Write]:
    """Records that could not be used are kept where a person can see them."""
    rows = {}
    for one in bad[:_MOST_BAD]:
        digest = hashlib.blake2b(f"{one.id}|{one.payload}".encode(errors="replace"), digest_size=16).hexdigest()
        rows[digest] = {
            "query_key": unit.query_key,
            "digest": digest,
            "run_id": unit.run_id,
            "record_id": one.id,
            "reason": one.reason,
            "payload": one.payload[:_BAD_PAYLOAD],
            "first_seen_at": now,
            "last_seen_at": now,
        }
    return [Write(rejected_records, list(rows.values()), first=("first_seen_at",))] if rows else []


def tell_bad(unit: Query, bad: Sequence[Bad]) -> None:
    """Log records that could not be used, the first few one by one."""
    for one in bad[:_TOLD]:
        log.warning("queries.bad_record", query=unit.name, record=one.id, reason=one.reason)
    if len(bad) > _TOLD:
        log.warning("queries.bad_records", query=unit.name, more=len(bad) - _TOLD)

"""Runs as people see them: the rows of `ingestion_runs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from penstock.lifecycles.queries.machine import S
from penstock.lifecycles.queries.runs import COUNTERS, Stop
from penstock.model.clock import instant
from penstock.model.spoken import counted
from penstock.operations.fields import Row, column

_SHORT = 8
_OTHERS = ("id", "query_key", "status", "stopped_by", "error", "started_at", "finished_at")
RUN_COLUMNS = ", ".join((*_OTHERS, *COUNTERS))


class RunRow(Row, frozen=True):
    """A run, in a list."""

    run: Annotated[str, column("The beginning of its id.", show="reference")]
    query: Annotated[str, column("The query that it ran.", show="reference")]
    status: Annotated[S, column("The state that it left its query in; RUNNING: it is under way.", show="state")]
    stopped_by: Annotated[Stop | None, column("Why it stopped.", heading="stopped by")]
    started_at: Annotated[datetime, column("When it began.", heading="began")]
    took: Annotated[timedelta | None, column("How long it took, or takes so far.")]
    counted: Annotated[str | None, column("What it counted; unknown of one that was under way.", show="reference")]
    error: Annotated[str | None, column("What went wrong.", show="text")]
    run_id: Annotated[str, column("Its id.", show="detail")]
    key: Annotated[str, column("The query's key.", show="detail")]
    finished_at: Annotated[datetime | None, column("When it ended.", show="detail")]
    pages_fetched: Annotated[int | None, column("Pages that were read.", show="detail")]
    offers_fetched: Annotated[int | None, column("Offers, or records, on these pages.", show="detail")]
    requests_count: Annotated[int | None, column("Calls that were made.", show="detail")]
    http_429_count: Annotated[
        int | None, column("Calls that the client refused because there were too many (429).", show="detail")
    ]
    errors_count: Annotated[
        int | None, column("Records that were set aside, and calls that failed for good.", show="detail")
    ]
    new: Annotated[int | None, column("Records that were not known before.", show="detail")]
    changed: Annotated[int | None, column("Records whose content changed.", show="detail")]
    closed: Annotated[int | None, column("Offers that are no longer listed.", show="detail")]
    companies_aggregated: Annotated[int | None, column("Companies that were aggregated again.", show="detail")]
    companies_failed: Annotated[int | None, column("Companies that could not be aggregated.", show="detail")]


def run_row(row: Sequence[Any], names: Mapping[str, str], now: datetime) -> RunRow:
    """A row of `RUN_COLUMNS`; `names` are those of queries by their keys."""
    run_id, key, status, stopped_by, error, started, finished, *counters = row
    began, ended = instant(started), instant(finished)
    counts = dict(zip(COUNTERS, counters, strict=True))
    return RunRow(
        run=str(run_id)[:_SHORT],
        query=names.get(str(key), str(key)),
        status=S(status),
        stopped_by=None if stopped_by is None else Stop(stopped_by),
        started_at=began,
        took=max((ended or now) - began, timedelta()),
        counted=None if None in counters else _counted(counts),
        error=error,
        run_id=str(run_id),
        key=str(key),
        finished_at=ended,
        **counts,
    )


def _counted(counts: Mapping[str, int]) -> str:
    """`3 pages, 120 offers: 12 new, 1 changed, 2 set aside`; what is nothing is left out."""
    pages, offers = counts["pages_fetched"], counts["offers_fetched"]
    said = f"{counted(pages, 'page')}, {counted(offers, 'offer')}"
    words = {
        "new": "new",
        "changed": "changed",
        "closed": "closed",
        "errors_count": "in error",
        "http_429_count": "throttled",
    }
    rest = ", ".join(f"{counts[name]:,} {word}" for name, word in words.items() if counts[name])
    return f"{said}: {rest}" if rest else said

"""What several parts ask of the ledger: which run a person means, its partitions, and how a feed stands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from penstock.ledger.store.database import Cursor
from penstock.lifecycles.harvest.partition.decide import LIVE
from penstock.lifecycles.harvest.partition.machine import P, Partition, harvest_partition
from penstock.lifecycles.harvest.run.decide import Known
from penstock.lifecycles.harvest.run.machine import OPEN, Run, RunType, harvest_run
from penstock.lifecycles.harvest.run.scan import Counted
from penstock.lifecycles.harvest.settings import schedule_of
from penstock.model.clock import instant, instant_text
from penstock.model.errors import UsageError
from penstock.operations import named

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.operations.reader import Reader

OPEN_SQL = ", ".join(f"'{state}'" for state in OPEN)


@dataclass(frozen=True, slots=True)
class Standing:
    """What the ledger knows of a feed before a scan."""

    known: Known
    open_run: str | None = None
    requested: Mapping[str, Any] | None = None
    density: Mapping[str, list[Counted]] = field(default_factory=dict)


def require_harvest(reader: Reader) -> None:
    """Refuse a ledger that has no harvests. Raises UsageError."""
    if not reader.keeps(harvest_run):
        raise UsageError("this ledger has no tables for harvests; 'penstock db upgrade' adds them")


def require_feed(reader: Reader, feed: str, at: datetime | None = None) -> None:
    """Refuse a feed that the ledger does not know. Raises UsageError that names those it knows.

    `at`: the moment that the reader is of.
    """
    require_harvest(reader)
    prefix = schedule_of("")
    sql = "SELECT feed FROM run_metadata UNION SELECT substr(unit_id, :after) FROM schedule"
    sql += " WHERE substr(unit_id, 1, :size) = :prefix"
    sql += "" if at is not None else " UNION SELECT feed FROM watermark"
    given = {"after": len(prefix) + 1, "size": len(prefix), "prefix": prefix}
    known = reader.read(lambda cursor: sorted(str(row[0]) for row in cursor.rows(sql, **given)))
    if feed not in known and at is not None:
        from penstock.lifecycles.harvest.marks import marks_then

        known = sorted({*known, *(mark.feed for mark in marks_then(reader))})
    if feed not in known:
        if at is not None:
            had = f"it had {', '.join(known) or 'none'}"
            raise UsageError(f"at {instant_text(at)} the ledger had no feed {feed!r}; {had}")
        has = f"it has {', '.join(known)}" if known else "it has none; 'penstock up' makes those of the configuration"
        raise UsageError(f"the ledger has no feed {feed!r}; {has}")


def find_run(reader: Reader, text: str, at: datetime | None = None) -> Run:
    """The run that a person names: by its id, the beginning of it, or a reference. Raises UsageError, UnknownUnit.

    `at`: the moment that the reader is of.
    """
    require_harvest(reader)
    found: Run = named.find_run(reader, harvest_run, text, "harvest runs", at)
    return found


def partitions_of(reader: Ledger | Reader, run_id: UUID) -> list[Partition]:
    """The partitions of a run, in order."""
    sql = f"SELECT unit_id FROM partition_progress WHERE run_id = {reader.database.sql.identifier('run_id')}"
    ids = [str(row[0]) for row in reader.read(lambda cursor: cursor.rows(sql, run_id=str(run_id)))]
    found: list[Partition] = reader.get_many(harvest_partition, ids) if ids else []
    return sorted(found, key=lambda p: p.ordinal)


def is_counted(partition: Partition) -> bool:
    """Whether it is completed, and not yet known to be whole."""
    return partition.status is P.COMPLETED and partition.verified_at is None


def is_going(partition: Partition) -> bool:
    """Whether something would still be fetched for it. One that is counted again may turn out to lack too much."""
    return partition.status in LIVE or (
        partition.due_at is not None and (partition.status is P.PENDING or is_counted(partition))
    )


def standing_of(reader: Ledger | Reader, feed: str) -> Standing:
    """Watermark, runs, requests and density of a feed, of one moment."""

    def work(cursor: Cursor) -> Standing:
        marks = cursor.rows("SELECT last_updated_at FROM watermark WHERE feed = :feed", feed=feed)
        runs = cursor.rows(
            f"SELECT unit_id FROM run_metadata WHERE feed = :feed AND status IN ({OPEN_SQL}) LIMIT 1", feed=feed
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

    return reader.read(work)


def _spans(value: Any) -> list[Any]:
    """What was counted last time; nothing where somebody's SQL left what cannot be read."""
    try:
        found = json.loads(value) if isinstance(value, (str, bytes)) else value
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []

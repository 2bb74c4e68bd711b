"""What people see of harvests: runs and how far they have come, partitions, watermarks, and how each feed stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.harvest.machine import P, R, Run, harvest_run
from penstock.lifecycles.harvest.operate import require_feed, require_harvest
from penstock.lifecycles.harvest.repricing import RUNNING
from penstock.lifecycles.harvest.runs import OPEN, partitions_of, schedule_name
from penstock.model.clock import instant, instant_text


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run has come: records of its present part, how fast, and when that part will be over."""

    fetched: int
    expected: int
    consolidated: int
    #: Records per second of what is going on; None while nothing is.
    rate: float | None
    eta: datetime | None

    @property
    def share(self) -> float:
        """How much of the records have been fetched."""
        return 1.0 if self.expected == 0 else min(1.0, self.fetched / self.expected)


@dataclass(frozen=True, slots=True)
class Shown:
    """A run with its progress."""

    run: Run
    progress: Progress


def list_runs(ledger: Ledger, feed: str | None = None, limit: int = 20) -> list[Shown]:
    """The latest runs, the newest first. Raises UsageError for a feed that the ledger does not know."""
    if feed is not None:
        require_feed(ledger, feed)
    where = "" if feed is None else "WHERE feed = :feed "
    sql = f"SELECT unit_id FROM run_metadata {where}ORDER BY started_at DESC, unit_id LIMIT :n"
    given: dict[str, Any] = {"n": limit} if feed is None else {"n": limit, "feed": feed}

    def work(cursor: Cursor) -> list[str]:
        require_harvest(cursor)
        return [str(row[0]) for row in cursor.rows(sql, **given)]

    ids = ledger.read(work)
    runs: list[Run] = ledger.get_many(harvest_run, ids) if ids else []
    return sorted((show(ledger, run) for run in runs), key=lambda s: ids.index(s.run.unit_id))


def show(ledger: Ledger, run: Run) -> Shown:
    """A run as it stands now."""
    now = ledger.clock.now()
    partitions = partitions_of(ledger, run.run_id)
    fetched = sum(p.found_records if p.found_records is not None else p.records for p in partitions)
    rate = None
    left = 0
    if run.status is R.WORKERS_RUNNING:
        begun = [p.begun_at for p in partitions if p.begun_at is not None]
        rate = _rate(sum(p.records for p in partitions), min(begun, default=now), now)
        left = sum(max(0, p.expected_records - p.next_offset) for p in partitions if p.status is not P.FAILED)
    elif run.status is R.CONSOLIDATING and run.consolidation_started_at is not None:
        done = run.records_consolidated + run.records_rejected
        rate = _rate(done, run.consolidation_started_at, now)
        left = max(0, fetched - done)
    eta = now + timedelta(seconds=left / rate) if rate else None
    progress = Progress(fetched, run.expected_records, run.records_consolidated, rate, eta)
    return Shown(run, progress)


def _rate(records: int, since: datetime, now: datetime) -> float | None:
    seconds = (now - since).total_seconds()
    return records / seconds if seconds > 0 and records else None


@dataclass(frozen=True, slots=True)
class Marked:
    """The watermark of a feed, and whether it is published."""

    feed: str
    last_updated_at: datetime
    last_run_id: str | None
    last_run_completed_at: datetime | None
    publication: str
    published_at: datetime | None
    set_by: str | None
    set_reason: str | None


def list_watermarks(ledger: Ledger) -> list[Marked]:
    """The watermarks of all feeds."""
    columns = "feed, last_updated_at, last_run_id, last_run_completed_at, publication, published_at, set_by, set_reason"
    sql = f"SELECT {columns} FROM watermark ORDER BY feed"

    def work(cursor: Cursor) -> list[Any]:
        require_harvest(cursor)
        return cursor.rows(sql)

    return [
        Marked(
            str(feed),
            instant(updated),
            None if run_id is None else str(run_id),
            instant(completed),
            str(publication),
            instant(published),
            set_by,
            set_reason,
        )
        for feed, updated, run_id, completed, publication, published, set_by, set_reason in ledger.read(work)
    ]


@dataclass(frozen=True, slots=True)
class FeedStanding:
    """How a feed stands in a configuration, and what becomes of its records under it (E3)."""

    feed: str
    state: str
    runs: int
    open_run: str | None
    says: str
    #: How far its records are priced again, or when they last were.
    prices: str = ""


def standings(ledger: Ledger, feeds: Mapping[str, bool]) -> list[FeedStanding]:
    """Every feed of the configuration (name to whether it is paused) or of the ledger; nothing is changed."""
    states = ", ".join(f"'{state}'" for state in OPEN)
    sql = (
        "SELECT feed, count(*), max(started_at),"
        f" max(CASE WHEN status IN ({states}) THEN unit_id END) FROM run_metadata GROUP BY feed"
    )

    def work(cursor: Cursor) -> tuple[dict[str, tuple[int, Any, str | None]], dict[str, str]]:
        require_harvest(cursor)
        runs = {str(name): (int(n), last, under_way) for name, n, last, under_way in cursor.rows(sql)}
        return runs, _repricings(cursor)

    there, prices = ledger.read(work)
    found = [_standing(name, feeds.get(name), *there.get(name, (0, None, None))) for name in _names(there, feeds)]
    return [replace(one, prices=prices.get(one.feed, "")) for one in found]


def _repricings(cursor: Cursor) -> dict[str, str]:
    """What the latest repricing of each feed has come to."""
    sql = "SELECT feed, status, expected, records, changed, finished_at FROM harvest_reprice ORDER BY begun_at"
    said = {}
    for feed, status, expected, records, changed, finished in cursor.rows(sql):
        counts = f"{records:,} of {expected:,} records, {changed:,} prices changed"
        ended = "" if finished is None else f" at {instant_text(instant(finished))}"
        said[str(feed)] = f"repricing: {counts}" if status == RUNNING else f"repriced{ended}: {counts}"
    return said


def _names(*sources: Iterable[str]) -> list[str]:
    return sorted({name for source in sources for name in source})


def _standing(name: str, paused: bool | None, runs: int, last: Any, under_way: str | None) -> FeedStanding:
    busy = f"; run {under_way} waits" if under_way else ""
    if paused is None:
        says = (
            f"not configured: its schedule is retired and no run is started{busy}. Its records and its watermark stay;"
            " configured again it goes on from there"
        )
        return FeedStanding(name, "gone", runs, under_way, says)
    if paused:
        says = f"paused: no page is fetched{busy}. Runs that are started meanwhile are scanned and wait"
        return FeedStanding(name, "paused", runs, under_way, says)
    if runs == 0:
        return FeedStanding(name, "new", runs, None, "new: its first run reads everything")
    says = f"harvested by the schedule {schedule_name(name)}; the last run was started at {instant_text(instant(last))}"
    return FeedStanding(name, "active", runs, under_way, says)

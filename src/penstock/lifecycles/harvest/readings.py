"""What people see of harvests: runs and how far they have come, partitions, watermarks, prices, and how feeds stand."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from penstock.ledger.store.database import Cursor
from penstock.lifecycles.harvest.chunk.machine import harvest_chunk
from penstock.lifecycles.harvest.operations import WhichFeed, WhichRun
from penstock.lifecycles.harvest.partition.machine import P, Partition, harvest_partition
from penstock.lifecycles.harvest.progress import (
    Chunks,
    Progress,
    chunks_of,
    chunks_then,
    progress_of,
    progress_then,
    records_of,
)
from penstock.lifecycles.harvest.queries import OPEN_SQL, find_run, partitions_of, require_feed, require_harvest
from penstock.lifecycles.harvest.run.machine import OPEN, Phase, R, Run, RunType, harvest_run
from penstock.lifecycles.harvest.settings import HarvestSettings, schedule_of
from penstock.model.clock import instant, instant_text
from penstock.operations.declare import Ask, Page, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.named import excused
from penstock.operations.past import At, Then, lacking, lacking_events, refuse_to_watch, said

if TYPE_CHECKING:
    from penstock.operations.reader import Reader

_SHORT = 8
"""So much of a run's id names it, in tables."""
_WATCH_SECONDS = 1.0


class RunsFilter(Parameters, frozen=True):
    """Which runs."""

    feed: Annotated[str | None, option("Only of this feed.")] = None
    limit: Annotated[int, option("How many at most.", ge=1, le=100_000)] = 20
    at: At = None


class ShowParameters(WhichRun, frozen=True):
    """Which run, and for how long."""

    watch: Annotated[bool, option("Stay, and show the progress until the run ends.", terminal=True)] = False
    at: At = None


class PartitionsFilter(Parameters, frozen=True):
    """Which partitions of a run."""

    run: Annotated[
        str | None, argument("The run's id, or the beginning of it; by default the newest run.", example="3f2a91c0")
    ] = None
    failed: Annotated[bool, option("Only those that have failed.")] = False
    at: At = None


class RunRow(Row, frozen=True):
    """A run, in a list."""

    run: Annotated[str, column("The beginning of its id, which is enough to name it.", show="reference", leads="show")]
    feed: Annotated[str, column("Whose catalogue it reads.")]
    run_type: Annotated[
        RunType, column("Everything (full), or what was updated since the watermark (incremental).", heading="type")
    ]
    status: Annotated[R, column("Where it stands.", show="state")]
    phase: Annotated[Phase | None, column("How far consolidation has come.", show="detail")]
    partitions: Annotated[str | None, column("Partitions completed, of all of them.", heading="parts")]
    records: Annotated[int | None, column("Records fetched so far; of the past, if they can still be told.")]
    unseen: Annotated[int | None, column("Live records that a full run did not see and kept.", show="detail")]
    started_at: Annotated[datetime, column("When it was started.", heading="started")]
    ends_at: Annotated[datetime | None, column("When it was completed, or will be at this pace.", show="detail")]
    error: Annotated[str | None, column("Why it has failed.", show="text")]
    forced_by: Annotated[str | None, column("Who had it consolidated although partitions failed.", show="detail")]
    run_id: Annotated[str, column("Its id.", show="detail")]


class RunDetail(RunRow, frozen=True):
    """A run: its window, its counts, how fast it goes and when it will be done."""

    progress: Annotated[str, column("How far it has come, and how fast.")]
    share: Annotated[float | None, column("The share of the expected records that has been fetched.", show="share")]
    rate: Annotated[float | None, column("Records per second of what is going on now; empty of the past.")]
    expected_records: Annotated[int, column("Records that the scan counted.")]
    scan_calls: Annotated[int, column("Calls that the scan took.")]
    expected_workers: Annotated[int, column("Partitions in all.")]
    completed_workers: Annotated[int | None, column("Partitions that are completed.")]
    failed_workers: Annotated[int | None, column("Partitions that have failed.")]
    verified_workers: Annotated[int | None, column("Completed partitions that are known to be whole.")]
    window_from: Annotated[datetime | None, column("Where its window begins; empty for a full run.")]
    window_to: Annotated[datetime, column("Where its window ends; the watermark of a completed run.")]
    watermark_before: Annotated[datetime | None, column("The watermark that it started from.")]
    watermark_after: Annotated[datetime | None, column("The watermark that it left.")]
    consolidation_started_at: Annotated[datetime | None, column("When consolidation began.")]
    expected_chunks: Annotated[int | None, column("Chunks to consolidate.")]
    completed_chunks: Annotated[int | None, column("Chunks that are done.")]
    failed_chunks: Annotated[int | None, column("Chunks that have failed.")]
    records_consolidated: Annotated[int | None, column("Records that became canonical.")]
    records_rejected: Annotated[int | None, column("Records that could not be mapped and were set aside.")]
    records_deleted: Annotated[int | None, column("Records that were soft-deleted.")]
    completed_at: Annotated[datetime | None, column("When it was completed.")]
    forced_reason: Annotated[str | None, column("Why it was forced.")]
    hint: Annotated[str | None, column("What to do about it.")]


class PartitionRow(Row, frozen=True):
    """A partition of a run."""

    partition_id: Annotated[str, column("Its name within the run.", show="reference", heading="partition")]
    low: Annotated[int, column("Where its range begins.", heading="from")]
    high: Annotated[int | None, column("Where its range ends; the end is not part of it.", heading="to")]
    status: Annotated[P, column("Where it stands.", show="state")]
    records: Annotated[
        int | None, column("Distinct records found, or received so far; of the past, if nobody has added any since.")
    ]
    expected_records: Annotated[int | None, column("Records that were counted.", heading="of")]
    pages: Annotated[int | None, column("Pages received; of the past, as the records.")]
    rescans: Annotated[int | None, column("How often it was fetched again because records may be missing.")]
    why: Annotated[str | None, column("Why it failed or is parked, or what is in doubt.", show="text")]
    found_records: Annotated[int | None, column("Distinct records, once the last page is there.", show="detail")]
    error: Annotated[str | None, column("Why it failed.", show="detail")]
    doubt: Annotated[str | None, column("Why records that it did not find may still be there.", show="detail")]


class WatermarkRow(Row, frozen=True):
    """The watermark of a feed, and whether it is published."""

    feed: Annotated[str, column("Whose it is.")]
    last_updated_at: Annotated[datetime, column("Up to when everything was read.", heading="read up to")]
    run: Annotated[str | None, column("The run that moved it.", show="reference", leads="show")]
    last_run_id: Annotated[str | None, column("The whole id of that run.", show="detail")]
    last_run_completed_at: Annotated[datetime | None, column("When that run was completed.", heading="completed")]
    publication: Annotated[
        str | None, column("Whether the published one says the same: published, unpublished or conflict.")
    ]
    published_at: Annotated[datetime | None, column("When it was published.", heading="published")]
    set_by: Annotated[str | None, column("Who set it by hand; empty: its run did.", heading="set by")]
    set_reason: Annotated[str | None, column("Why it was set by hand.", show="text", heading="because")]


class FeedRow(Row, frozen=True):
    """How a feed stands in a configuration, and what becomes of its records under it."""

    feed: Annotated[str, column("Its name.")]
    state: Annotated[str, column("active, paused, new, or gone: no longer configured.")]
    runs: Annotated[int, column("How many runs it has had.")]
    run: Annotated[
        str | None, column("The run that is under way.", show="reference", heading="under way", leads="show")
    ]
    open_run: Annotated[str | None, column("The whole id of that run.", show="detail")]
    prices: Annotated[str | None, column("How far its records are priced again, or when they were.", show="detail")]
    says: Annotated[str, column("What becomes of it.", show="text", heading="what becomes of it")]


class PriceRow(Row, frozen=True):
    """A record whose price would change."""

    record: Annotated[str, column("Which one.", show="reference")]
    before: Annotated[str, column("What it costs.", heading="price")]
    after: Annotated[str, column("What it would cost.", heading="would be")]
    rule_before: Annotated[int | None, column("The rule that priced it.", heading="rule")]
    rule_after: Annotated[int | None, column("The rule that would.", heading="would be by")]


@reading("runs", "The latest runs, the newest first.")
def runs(ask: Ask[HarvestSettings], wanted: RunsFilter) -> Page[RunRow]:
    require_harvest(ask.reader)
    lacks, ask = lacking(ask, [harvest_run], wanted.at), ask.then(wanted.at)
    if wanted.feed is not None:
        with excused(lacks):
            require_feed(ask.reader, wanted.feed, wanted.at)
    found = _runs(ask.reader, wanted.feed, wanted.limit)
    rows = [RunRow(**_run(run, _progress(ask, run, wanted.at))) for run in found]
    return Page(rows=rows, note=said(lacks, None if rows else _no_runs(wanted.at)))


@reading("show", "One run: its window, its counts, its rate and when it ends.")
def show(ask: Ask[HarvestSettings], wanted: ShowParameters) -> RunDetail:
    refuse_to_watch(wanted.at, watch=wanted.watch)
    whole = lacking(ask, [harvest_chunk], wanted.at) is None
    run, ask = _named(ask, wanted.run, wanted.at), ask.then(wanted.at)
    how_far = _progress(ask, run, wanted.at)
    nobody = threading.Event()
    while wanted.watch and run.status in OPEN:
        ask.progress(how_far.done or 0, how_far.expected)
        nobody.wait(_WATCH_SECONDS)
        run = find_run(ask.reader, str(run.run_id))
        how_far = progress_of(ask.reader, run, ask.program.clock.now())
    chunks = chunks_of(run) if wanted.at is None or not whole else chunks_then(ask.reader, run)
    return RunDetail(**_run(run, how_far), **_detail(run, how_far, chunks), hint=_hint(run, wanted.at))


@reading("partitions", "The partitions of a run, and how far each has come.")
def partitions(ask: Ask[HarvestSettings], wanted: PartitionsFilter) -> Page[PartitionRow]:
    require_harvest(ask.reader)
    reader, lacks = ask.then(wanted.at).reader, lacking(ask, [harvest_partition], wanted.at)
    chosen = _runs(reader, None, 1) if wanted.run is None else [_named(ask, wanted.run, wanted.at)]
    if not chosen:
        return Page(rows=[], note=said(lacking(ask, [harvest_run], wanted.at), _no_runs(wanted.at)))
    listed = [p for p in partitions_of(reader, chosen[0].run_id) if not wanted.failed or p.status is P.FAILED]
    nothing = "no partition has failed" if wanted.failed else "the run has no partitions: there was nothing to fetch"
    return Page(rows=[_partition(p) for p in listed], note=said(lacks, None if listed else nothing))


@reading("watermark show", "How far each feed has been read, and whether that is published.")
def watermark_show(ask: Ask[HarvestSettings], wanted: Then) -> Page[WatermarkRow]:
    """Of the past, a publication is shown as far as events tell of it."""
    from penstock.lifecycles.harvest.marks import marks, marks_then

    require_harvest(ask.reader)
    found = marks(ask.reader) if wanted.at is None else marks_then(ask.then(wanted.at).reader)
    rows = [
        WatermarkRow(
            feed=mark.feed,
            last_updated_at=mark.last_updated_at,
            run=None if mark.last_run_id is None else mark.last_run_id[:_SHORT],
            last_run_id=mark.last_run_id,
            last_run_completed_at=mark.last_run_completed_at,
            publication=mark.publication,
            published_at=mark.published_at,
            set_by=mark.set_by,
            set_reason=mark.set_reason,
        )
        for mark in found
    ]
    if wanted.at is None:
        return Page(
            rows=rows, note=None if rows else "no feed has a watermark yet; the first run that completes sets one"
        )
    events = lacking_events(ask, wanted.at, "where a watermark was set by hand is not told")
    lacks = said(events, lacking(ask, [harvest_run], wanted.at))
    return Page(rows=rows, note=said(lacks, None if rows else "no feed had a watermark yet"))


@reading("feeds", "How each feed stands under this configuration.")
def feeds(ask: Ask[HarvestSettings], wanted: Then) -> Page[FeedRow]:
    """With --config of a file that is not in force yet, this says it before it happens.

    Of the past it has the runs of then, under the configuration of now.
    """
    require_harvest(ask.reader)
    lacks, ask = lacking(ask, [harvest_run], wanted.at), ask.then(wanted.at)
    sql = (
        "SELECT feed, count(*), max(started_at),"
        f" max(CASE WHEN status IN ({OPEN_SQL}) THEN unit_id END) FROM run_metadata GROUP BY feed"
    )

    def work(cursor: Cursor) -> tuple[dict[str, tuple[int, Any, str | None]], dict[str, str]]:
        found = {str(name): (int(n), last, under_way) for name, n, last, under_way in cursor.rows(sql)}
        return found, _repricings(cursor)

    there, prices = ask.reader.read(work)
    names = sorted({*there, *ask.settings.feeds})
    paused = {name: own.paused for name, own in ask.settings.feeds.items()}
    rows = [_feed(name, paused, there.get(name, (0, None, None)), prices.get(name)) for name in names]
    nothing = "no feed is configured; add [harvest.feeds.NAME] to penstock.toml"
    return Page(rows=rows, note=said(lacks, None if rows else nothing))


@reading(
    "prices",
    "What the pricing rules in force would change of a feed's records.",
    no_past="it prices the records that are there now, by the rules that are in force now",
)
def prices(ask: Ask[HarvestSettings], wanted: WhichFeed) -> Page[PriceRow]:
    """`reprice` has it done at once; the feed's schedule does it within a minute anyway."""
    from penstock.lifecycles.harvest.prices import Records, preview

    require_feed(ask.reader, wanted.feed)
    found = preview(ask.reader, Records(wanted.feed))
    note = f"all {found.records:,} records of {found.feed} are priced by the {found.rules} rules in force"
    if found.stale:
        note = (
            f"{found.stale:,} of {found.records:,} records of {found.feed} were priced by other rules than the"
            f" {found.rules} in force; {found.changed:,} prices would change"
        )
    if found.unpriced:
        note += f"; {found.unpriced:,} keep their price, because the rules give none; the first: {found.why_not}"
    rows = [
        PriceRow(
            record=change.record,
            before=f"{change.before:,}",
            after=f"{change.after:,}",
            rule_before=change.rule_before,
            rule_after=change.rule_after,
        )
        for change in found.sample
    ]
    names = ("records", "stale", "changed", "unpriced")
    return Page(rows=rows, counts={name: getattr(found, name) for name in names}, note=note)


def _runs(reader: Reader, feed: str | None, limit: int) -> list[Run]:
    """The runs that were started last, the newest first."""
    where = "" if feed is None else "WHERE feed = :feed "
    sql = f"SELECT unit_id FROM run_metadata {where}ORDER BY started_at DESC, unit_id LIMIT :n"
    given: dict[str, Any] = {"n": limit} | ({} if feed is None else {"feed": feed})
    ids = [str(row[0]) for row in reader.read(lambda cursor: cursor.rows(sql, **given))]
    found: list[Run] = reader.get_many(harvest_run, ids) if ids else []
    return sorted(found, key=lambda run: ids.index(run.unit_id))


def _progress(ask: Ask[HarvestSettings], run: Run, at: datetime | None) -> Progress:
    return progress_of(ask.reader, run, ask.now) if at is None else progress_then(ask.reader, run)


def _no_runs(at: datetime | None) -> str:
    if at is None:
        return "no runs yet; a feed's schedule starts them, or 'penstock harvest start FEED'"
    return "there were no runs yet"


def _named(ask: Ask[HarvestSettings], text: str, at: datetime | None) -> Run:
    """The run that a person names, as it stood. `ask` is the question before `then`."""
    with excused(lacking(ask, [harvest_run], at)):
        return find_run(ask.then(at).reader, text, at)


def _hint(run: Run, at: datetime | None) -> str | None:
    if run.status is not R.FAILED:
        return None
    command = f"penstock harvest partitions {str(run.run_id)[:_SHORT]} --failed"
    if at is not None:
        return f"'{command} --at {instant_text(at)}' says what had gone wrong"
    return f"'{command}' says what went wrong, 'retry' fetches it again"


_OF_RUN = (
    *("expected_records", "scan_calls", "expected_workers"),
    *("window_from", "window_to", "watermark_before", "watermark_after", "consolidation_started_at"),
    *("records_consolidated", "records_rejected", "records_deleted", "completed_at", "forced_reason"),
)


def _run(run: Run, how_far: Progress) -> dict[str, Any]:
    """The fields of `RunRow`."""
    return {
        "run": str(run.run_id)[:_SHORT],
        "feed": run.feed,
        "run_type": run.run_type,
        "status": run.status,
        "phase": run.phase,
        "partitions": None if how_far.completed is None else f"{how_far.completed}/{run.expected_workers}",
        "records": how_far.fetched,
        "unseen": run.unseen,
        "started_at": run.started_at,
        "ends_at": run.completed_at or how_far.eta,
        "error": run.error,
        "forced_by": run.forced_by,
        "run_id": str(run.run_id),
    }


def _detail(run: Run, how_far: Progress, chunks: Chunks) -> dict[str, Any]:
    """What `RunDetail` has besides."""
    return {
        **{name: getattr(run, name) for name in _OF_RUN},
        "completed_workers": how_far.completed,
        "failed_workers": how_far.failed,
        "verified_workers": how_far.verified,
        "expected_chunks": chunks.expected,
        "completed_chunks": chunks.completed,
        "failed_chunks": chunks.failed,
        "progress": how_far.says(),
        "share": how_far.share,
        "rate": how_far.rate,
    }


def _partition(partition: Partition) -> PartitionRow:
    return PartitionRow(
        partition_id=partition.partition_id,
        low=partition.low,
        high=partition.high,
        status=partition.status,
        records=records_of(partition),
        expected_records=partition.expected_records,
        pages=partition.pages,
        rescans=partition.rescans,
        why=partition.error or partition.parked_reason or partition.doubt,
        found_records=partition.found_records,
        error=partition.error,
        doubt=partition.doubt,
    )


def _repricings(cursor: Cursor) -> dict[str, str]:
    """What the latest repricing of each feed has come to."""
    sql = "SELECT feed, status, expected, records, changed, finished_at FROM harvest_reprice ORDER BY begun_at"
    told = {}
    for feed, status, expected, records, changed, finished in cursor.rows(sql):
        counts = f"{expected:,} records"
        if records is not None:
            counts = f"{records:,} of {counts}, {changed:,} prices changed"
        ended = "" if finished is None else f" at {instant_text(instant(finished))}"
        told[str(feed)] = f"repricing: {counts}" if status == "running" else f"repriced{ended}: {counts}"
    return told


def _feed(name: str, paused: Mapping[str, bool], there: tuple[int, Any, str | None], prices: str | None) -> FeedRow:
    number, last, under_way = there
    waits = f"; run {under_way} waits" if under_way else ""
    if name not in paused:
        state = "gone"
        says = (
            f"not configured: its schedule is retired and no run is started{waits}. Its records and its watermark stay;"
            " configured again, it goes on from there"
        )
    elif paused[name]:
        state = "paused"
        says = f"paused: no page is fetched{waits}. New runs are scanned, and wait"
    elif number == 0:
        state, says = "new", "new: its first run reads everything"
    else:
        state, started = "active", instant_text(instant(last))
        says = f"harvested by the schedule {schedule_of(name)}; the last run was started at {started}"
    if prices is not None:
        says += f"; {prices}"
    run = None if under_way is None else under_way[:_SHORT]
    return FeedRow(feed=name, state=state, runs=number, run=run, open_run=under_way, prices=prices, says=says)

"""What people do to harvests: start, retry, cancel, force and reopen runs, reprice records, move watermarks.

Whoever brings a run back under way also touches the feed's schedule: a scan that was going on loses its claim and
births nothing, and of two people one is told to look again. So a feed never has two runs under way.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from penstock.lifecycles.harvest.chunk.machine import C, Chunk, harvest_chunk
from penstock.lifecycles.harvest.events import ADVANCED, CONFLICT, PUBLISHED, UNPUBLISHED
from penstock.lifecycles.harvest.partition.decide import LIVE, is_given_up
from penstock.lifecycles.harvest.partition.machine import (
    P,
    Partition,
    W,
    WorkerRun,
    harvest_partition,
    harvest_worker,
    worker_run_id,
)
from penstock.lifecycles.harvest.queries import (
    Standing,
    find_run,
    is_counted,
    is_going,
    partitions_of,
    require_feed,
    require_harvest,
    standing_of,
)
from penstock.lifecycles.harvest.run.machine import R, Run, RunType
from penstock.lifecycles.harvest.settings import HarvestSettings, reprice_schedule_of, schedule_of
from penstock.model.clock import instant, instant_text
from penstock.model.errors import UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Event, Move, Write
from penstock.model.spoken import counted
from penstock.model.unit import NO_GATE, GuardedUnit, replace
from penstock.operations.declare import Ask, operation
from penstock.operations.fields import Parameters, argument, option
from penstock.operations.plan import NOW, Each, Moves, Together
from penstock.worker import schedule_unit
from penstock.worker.schedule_unit import Schedule

if TYPE_CHECKING:
    from penstock.lifecycles.harvest.watermark import Row as Watermark
    from penstock.operations.reader import Reader


class WhichRun(Parameters, frozen=True):
    """A run."""

    run: Annotated[str, argument("The run's id, or the beginning of it.", example="3f2a91c0")]


class WhichFeed(Parameters, frozen=True):
    """A feed."""

    feed: Annotated[str, argument("The feed, as the configuration names it.", example="diamonds")]


class StartParameters(WhichFeed, frozen=True):
    """Which feed, and how much of it."""

    full: Annotated[bool, option("Read everything, whatever the watermark says.")] = False


class SetParameters(WhichFeed, frozen=True):
    """Which feed, and as far back as when."""

    moment: Annotated[datetime, argument("The instant to go back to.", example="2026-11-15T02:00:00Z")]


class PublishParameters(WhichFeed, frozen=True):
    """Which feed, and over what."""

    replace: Annotated[bool, option("Also replace what somebody else wrote there.")] = False


@operation("start", "Start a run now, by running the feed's schedule.", wants_reason=False)
def start(ask: Ask[HarvestSettings], wanted: StartParameters) -> Together:
    from penstock.lifecycles.harvest.tables import harvest_request

    own = _active(ask.reader, schedule_of(wanted.feed), wanted.feed)
    standing = _refuse_another(ask.reader, wanted.feed)
    # Whoever asks again before the first wish is taken up does not take it back.
    full = wanted.full or standing.known.full_requested
    reason = ask.reason or "started by hand"
    request = {
        "feed": wanted.feed,
        "run_type": RunType.FULL if full else None,
        "requested_at": ask.now,
        "requested_by": ask.who,
        "reason": reason,
        "run_id": None,
    }
    return Together(
        f"start {'a full run' if full else 'a run'} of {wanted.feed}",
        moves=[Move(own, replace(own, due_at=ask.now), reason, Actor.OPERATOR)],
        writes=[Write(harvest_request, [request])],
    )


@operation("retry", "Fetch the failed partitions of a run again, and nothing else.", wants_reason=False)
def retry(ask: Ask[HarvestSettings], wanted: WhichRun) -> Together:
    """A partition goes on from where it was. When all are fetched the run is consolidated."""
    run = find_run(ask.reader, wanted.run)
    if run.status not in (R.CONSOLIDATION_SKIPPED, R.FAILED):
        raise UsageError(f"run {run.run_id} is {run.status}; only a run that has failed can be retried")
    _refuse_later(ask.reader, run)
    reason = ask.reason or "retried by hand"
    found = partitions_of(ask.reader, run.run_id)
    ended = [p for p in found if p.status in (P.FAILED, P.PENDING)]
    stopped = [p for p in found if is_given_up(p)]
    counted = [p for p in found if is_counted(p)]
    records = [w for w in _worker_records(ask.reader, ended) if w.status is W.FAILED]
    moves: list[tuple[GuardedUnit, GuardedUnit]] = [
        *((p, replace(_again(p, ask.now), status=P.PENDING)) for p in ended),
        *((p, _again(p, ask.now)) for p in stopped),
        *((p, replace(p, attempts=0, due_at=ask.now)) for p in counted),
        *((w, replace(w, status=W.RUNNING, completed_at=None, error_message=None)) for w in records),
        (run, _brought_back(run, R.WORKERS_RUNNING, None if any(map(_is_left, found)) else ask.now)),
    ]
    says = f"consolidate run {run.run_id} again; nothing is left to fetch"
    if any(map(_is_left, found)):
        says = f"fetch {len(ended) + len(stopped)} of {run.expected_workers} partitions of run {run.run_id} again"
    changed = [Move(before, after, reason, Actor.OPERATOR) for before, after in moves]
    return Together(says, moves=[*changed, _touch(ask.reader, run.feed, reason)])


@operation("cancel", "End a run that is under way.")
def cancel(ask: Ask[HarvestSettings], wanted: WhichRun) -> Together | Each:
    """What it fetched stays, and so does the watermark; `retry` goes on from there.

    The run ends first and its partitions after it: pages come faster than all of them could be taken in one
    transaction. A partition whose page is under way ends by itself when it finds its run ended.
    """
    run = find_run(ask.reader, wanted.run)
    going = [p for p in partitions_of(ask.reader, run.run_id) if is_going(p) and not is_given_up(p)]
    under_way = run.status in (R.CREATED, R.WORKERS_RUNNING, R.CONSOLIDATING)
    if not under_way and not (run.status is R.FAILED and going):
        raise UsageError(f"run {run.run_id} is {run.status}; there is nothing to cancel")
    why = f"cancelled by {ask.who}: {ask.reason}"
    ends = Moves(harvest_partition)
    for partition in going:
        if partition.status in LIVE:
            # Its next step ends it, together with its worker's record; for that it needs no provider.
            ends.add(partition, error=why, due_at=NOW, gate_id=NO_GATE)
        else:
            ends.add(partition, due_at=None)
    stopped = sum(p.status is not P.COMPLETED for p in going)
    then = ends.plan(f"end {stopped} partitions of run {run.run_id}")
    if not under_way:
        return then
    after = replace(run, status=R.FAILED, error=why, due_at=None)
    return Together(
        f"cancel run {run.run_id} with {stopped} partitions that have not ended",
        moves=[Move(run, after, ask.reason, Actor.OPERATOR)],
        then=then if len(then) else None,
        warnings=["What it fetched stays, and the watermark stays where it was."],
    )


@operation("force", "Consolidate a failed run without the partitions that failed.")
def force(ask: Ask[HarvestSettings], wanted: WhichRun) -> Together:
    """The watermark stays where it was, and nothing is deleted."""
    run = find_run(ask.reader, wanted.run)
    if run.status not in (R.CONSOLIDATION_SKIPPED, R.FAILED):
        raise UsageError(f"run {run.run_id} is {run.status}; only a run that has failed can be forced")
    going = [p for p in partitions_of(ask.reader, run.run_id) if is_going(p)]
    if any(not is_given_up(p) for p in going):
        msg = f"run {run.run_id} is still being fetched; 'penstock harvest cancel {run.run_id}' ends that"
        raise UsageError(msg)
    if going:
        raise UsageError(
            f"{len(going)} partitions of run {run.run_id} wait for a worker to end them; try again when they have ended"
        )
    if run.completed_workers == run.verified_workers == run.expected_workers:
        msg = f"no partition of run {run.run_id} has failed; 'penstock harvest retry {run.run_id}' consolidates it"
        raise UsageError(msg)
    _refuse_later(ask.reader, run)
    after = replace(_brought_back(run, R.CONSOLIDATION_TRIGGERED, ask.now), forced_by=ask.who, forced_reason=ask.reason)
    missing = run.expected_workers - run.verified_workers
    return Together(
        f"consolidate run {run.run_id} without {missing} of its {run.expected_workers} partitions",
        moves=[Move(run, after, ask.reason, Actor.OPERATOR), _touch(ask.reader, run.feed, ask.reason)],
        warnings=["The watermark stays where it was, and nothing is deleted."],
    )


@operation("reopen", "Try the failed chunks of a consolidating run again.", wants_reason=False)
def reopen(ask: Ask[HarvestSettings], wanted: WhichRun) -> Each:
    """After the run has failed for them, `retry` does it."""
    run = find_run(ask.reader, wanted.run)
    if run.status is not R.CONSOLIDATING:
        hint = f"; 'penstock harvest retry {run.run_id}' consolidates what is left" if run.status is R.FAILED else ""
        raise UsageError(f"run {run.run_id} is {run.status}; chunks are reopened only while it consolidates{hint}")
    own = f"run_id = {ask.reader.database.sql.identifier('run_id')} AND status = '{C.FAILED}'"
    sql = f"SELECT unit_id FROM harvest_chunk WHERE {own}"
    ids = [str(row[0]) for row in ask.reader.read(lambda cursor: cursor.rows(sql, run_id=str(run.run_id)))]
    if not ids:
        raise UsageError(f"no chunk of run {run.run_id} has failed")
    chunks: list[Chunk] = ask.reader.get_many(harvest_chunk, ids)
    moves = Moves(harvest_chunk)
    for chunk in chunks:
        moves.add(chunk, C.OPEN, error=None, attempts=0, due_at=NOW)
    return moves.plan(f"try {counted(len(chunks), 'chunk')} of run {run.run_id} again")


@operation("reprice", "Price a feed's records by the rules in force, without waiting.", wants_reason=False)
def reprice(ask: Ask[HarvestSettings], wanted: WhichFeed) -> Together:
    """The feed's schedule does it. `prices` shows what would change."""
    from penstock.lifecycles.harvest.prices import Records, preview
    from penstock.lifecycles.harvest.reprice import Priced, under_way, wish
    from penstock.lifecycles.harvest.tables import harvest_reprice

    feed, reader = wanted.feed, ask.reader
    require_feed(reader, feed)
    found = preview(reader, Records(feed))
    if not found.stale:
        return Together(f"price no record of {feed}: all {found.records:,} are priced by the rules in force")
    own = _active(reader, reprice_schedule_of(feed), feed)
    there = reader.read(lambda cursor: under_way(cursor, feed))
    if there is not None:
        how_far = f"{there['records']:,} of {there['expected']:,} records are done"
        raise UsageError(f"{feed} is being repriced, {how_far}; 'penstock harvest feeds' shows its progress")
    reason = ask.reason or "repriced by hand"
    row = reader.read(lambda cursor: wish(cursor, Priced(feed), ask.now, ask.who, reason))
    unpriced = f"{found.unpriced:,} records keep their price, because the rules give none; the first: {found.why_not}"
    return Together(
        f"price {found.stale:,} records of {feed} again and change {found.changed:,} prices",
        moves=[Move(own, replace(own, due_at=ask.now), reason, Actor.OPERATOR)],
        writes=[Write(harvest_reprice, [row])],
        warnings=[unpriced] if found.unpriced else [],
    )


@operation("watermark set", "Set a feed's watermark back: its next run reads from there.")
def watermark_set(ask: Ask[HarvestSettings], wanted: SetParameters) -> Together:
    """It is never set forward: what was updated in between would never be read."""
    from penstock.lifecycles.harvest.tables import watermark

    feed, moment = wanted.feed, wanted.moment
    if moment.tzinfo is None:
        raise UsageError(f"{moment.isoformat()} has no time zone; write {moment.isoformat()}Z for UTC")
    row = _watermark(ask.reader, feed)
    was, to = instant_text(row.last_updated_at), instant_text(moment)
    if moment > row.last_updated_at:
        msg = (
            f"the watermark of {feed} is {was}; if it were set forward to {to}, what was updated in between would"
            " never be read"
        )
        raise UsageError(msg)
    _refuse_another(ask.reader, feed)
    touch = _touch(ask.reader, feed, ask.reason)
    again = _updated_since(ask.reader, feed, moment)
    mark = {
        "feed": feed,
        "last_updated_at": moment,
        "last_run_id": row.last_run_id,
        "last_run_completed_at": row.last_run_completed_at,
        "publication": UNPUBLISHED,
        "set_by": ask.who,
        "set_reason": ask.reason,
    }
    payload = {"feed": feed, "set_by": ask.who, "reason": ask.reason, "last_updated_at": to}
    return Together(
        f"set the watermark of {feed} back from {was} to {to}",
        moves=[touch],
        writes=[Write(watermark, [mark])],
        events=[Event(f"{ADVANCED}:{feed}:set:{touch.before.version}", ADVANCED, payload)],
        warnings=[f"{again:,} known records were updated since, and are read again."],
    )


@operation("watermark publish", "Publish a feed's watermark now.")
def watermark_publish(ask: Ask[HarvestSettings], wanted: PublishParameters) -> Together:
    """A worker does it, without waiting for the outbox or the feed's next run."""
    from penstock.lifecycles.harvest.watermark import requested

    feed = wanted.feed
    row = _watermark(ask.reader, feed)
    own = ask.settings.feeds.get(feed)
    if own is None or own.watermark is None:
        raise UsageError(f"the watermark of {feed} is not published; set harvest.feeds.{feed}.watermark")
    if row.publication == CONFLICT and not wanted.replace:
        msg = f"{own.watermark} was written by somebody else; look at it, and publish with 'replace' to put ours there"
        raise UsageError(msg)
    if row.publication == PUBLISHED and not wanted.replace:
        raise UsageError(f"the watermark of {feed} is published already, at {own.watermark}")
    what = f"replace what is at {own.watermark} with" if wanted.replace else f"publish at {own.watermark}"
    return Together(
        f"{what} the watermark of {feed}, {instant_text(row.last_updated_at)}",
        events=[requested(row, ask.who, ask.reason, ask.now, replaces=wanted.replace)],
    )


def _brought_back(run: Run, to: R, due_at: datetime | None) -> Run:
    """The run as it goes on after it had failed; the reasons of an earlier end are gone."""
    return replace(
        run, status=to, forced_by=None, forced_reason=None, error=None, phase=None, attempts=0, due_at=due_at
    )


def _again(partition: Partition, now: datetime) -> Partition:
    """The partition as it goes on from where it was."""
    after = replace(partition, error=None, attempts=0, rescans=0, updated_at=now, due_at=now)
    return replace(after, parked_at=None, parked_reason=None)


def _is_left(partition: Partition) -> bool:
    """Whether its end will wake the run."""
    return partition.status is not P.COMPLETED or is_counted(partition)


def _worker_records(reader: Reader, partitions: Sequence[Partition]) -> list[WorkerRun]:
    ids = [str(worker_run_id(p.run_id, p.partition_id)) for p in partitions]
    return reader.get_many(harvest_worker, ids) if ids else []


def _watermark(reader: Reader, feed: str) -> Watermark:
    """The watermark of a feed. Raises UsageError where there is none."""
    from penstock.lifecycles.harvest.watermark import read_row

    require_harvest(reader)
    row = read_row(reader, feed)
    if row is None:
        require_feed(reader, feed)
        raise UsageError(f"{feed} has no watermark yet; its first run reads everything and sets one")
    return row


def _updated_since(reader: Reader, feed: str, moment: datetime) -> int:
    since = reader.database.sql.instant("moment")
    sql = f"SELECT count(*) FROM diamonds WHERE feed = :feed AND source_updated_at >= {since}"
    return int(reader.read(lambda cursor: cursor.rows(sql, feed=feed, moment=instant_text(moment)))[0][0])


def _schedule(reader: Reader, name: str, feed: str) -> Schedule:
    require_harvest(reader)
    found: list[Schedule] = reader.get_many(schedule_unit.machine, [name])
    if not found:
        msg = f"there is no schedule {name}; add [harvest.feeds.{feed}] to the configuration and run 'penstock up'"
        raise UsageError(msg)
    return found[0]


def _active(reader: Reader, name: str, feed: str) -> Schedule:
    """The schedule, if it ticks. Raises UsageError that says how to make it."""
    own = _schedule(reader, name, feed)
    if own.status is schedule_unit.S.PAUSED:
        raise UsageError(f"the schedule {own.name} is paused; 'penstock schedules resume {own.name}' lets it go on")
    if own.status is not schedule_unit.S.ACTIVE:
        msg = f"the schedule {own.name} is {own.status}; configure the feed again and run 'penstock up'"
        raise UsageError(msg)
    return own


def _touch(reader: Reader, feed: str, reason: str) -> Move:
    """Take the feed's schedule: a scan that is going on loses it."""
    own = _schedule(reader, schedule_of(feed), feed)
    return Move(own, replace(own), reason, Actor.OPERATOR)


def _refuse_another(reader: Reader, feed: str) -> Standing:
    standing = standing_of(reader, feed)
    if standing.open_run is not None:
        msg = f"run {standing.open_run} of {feed} is under way; wait for it, or end it with 'penstock harvest cancel'"
        raise UsageError(msg)
    return standing


def _refuse_later(reader: Reader, run: Run) -> None:
    """Refuse to bring a run back beside another one, or after one that has covered its window."""
    _refuse_another(reader, run.feed)
    sql = "SELECT unit_id, started_at FROM run_metadata WHERE feed = :feed AND status = 'completed'"
    rows = reader.read(lambda cursor: cursor.rows(sql, feed=run.feed))
    later = [str(unit_id) for unit_id, started in rows if instant(started) > run.started_at]
    if later:
        msg = f"run {later[0]} was started later and is completed; the next run fetches what run {run.run_id} lacks"
        raise UsageError(msg)

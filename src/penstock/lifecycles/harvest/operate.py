"""What people do to harvests: start, retry, cancel, force, reopen, reprice, rewind.

Each says what it would change before it does.

Whoever brings a run back under way also touches the feed's schedule: a scan that was going on loses its claim and
births nothing, and of two people one is told to look again. So a feed never has two runs under way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar
from uuid import UUID

import sqlalchemy as sa

from penstock.ledger.commit import OthersMissed
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor, identifier_sql, instant_sql
from penstock.lifecycles.harvest import reprice as prices
from penstock.lifecycles.harvest import repricing
from penstock.lifecycles.harvest.flow import worker_run_id
from penstock.lifecycles.harvest.machine import (
    C,
    Chunk,
    P,
    Partition,
    R,
    Run,
    RunType,
    W,
    WorkerRun,
    harvest_chunk,
    harvest_partition,
    harvest_run,
    harvest_worker,
)
from penstock.lifecycles.harvest.runs import Standing, partitions_of, schedule_name, standing_of
from penstock.lifecycles.harvest.tables import diamonds, harvest_reprice, harvest_request, watermark
from penstock.lifecycles.harvest.watermark import ADVANCED, UNPUBLISHED, read_row
from penstock.model.clock import instant, instant_text
from penstock.model.errors import LedgerRefused, UnknownUnit, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Event, Move, Write
from penstock.model.unit import replace
from penstock.worker import schedule as schedules
from penstock.worker.schedule import Schedule

T = TypeVar("T")
_TRIES = 5
_ROUNDS = 100
_LIVE = (P.IN_PROGRESS, P.FETCHING_PAGES)


@dataclass(frozen=True, slots=True)
class Done:
    """What an action changed, or would: how many partitions, and a sentence for people."""

    run_id: str | None
    partitions: int
    says: str
    dry_run: bool


def require_harvest(cursor: Cursor) -> None:
    """Refuse a ledger that has no harvests. Raises UsageError."""
    if not cursor.rows("SELECT 1 FROM machine_definition WHERE name = :name", name=harvest_run.name):
        msg = "this ledger keeps no harvests; 'penstock db upgrade --app penstock.lifecycles.harvest:app' adds them"
        raise UsageError(msg)


def require_feed(ledger: Ledger, feed: str) -> None:
    """Refuse a feed that the ledger knows nothing of. Raises UsageError that names those it knows."""
    prefix = schedule_name("")
    sql = "SELECT feed FROM run_metadata UNION SELECT feed FROM watermark UNION SELECT substr(unit_id, :after)"
    sql += " FROM schedule WHERE substr(unit_id, 1, :size) = :prefix"
    given = {"after": len(prefix) + 1, "size": len(prefix), "prefix": prefix}

    def work(cursor: Cursor) -> list[str]:
        require_harvest(cursor)
        return sorted(str(row[0]) for row in cursor.rows(sql, **given))

    known = ledger.read(work)
    if feed not in known:
        has = f"it has {', '.join(known)}" if known else "it has none; 'penstock up' makes those of the configuration"
        raise UsageError(f"the ledger has no feed {feed!r}; {has}")


def find_run(ledger: Ledger, text: str) -> Run:
    """The run that a person names: by its id, the beginning of it, or a reference. Raises UsageError."""
    wanted = text.removeprefix(f"{harvest_run.name}:").lower()
    sql = "SELECT unit_id FROM run_metadata WHERE substr(unit_id, 1, :size) = :wanted ORDER BY unit_id LIMIT 2"

    def work(cursor: Cursor) -> list[str]:
        require_harvest(cursor)
        return [str(row[0]) for row in cursor.rows(sql, size=len(wanted), wanted=wanted)]

    found = ledger.read(work) if wanted else []
    if len(found) > 1:
        raise UsageError(f"more than one run begins with {text!r}; give more of its id")
    if not found:
        raise UnknownUnit(f"no run {text!r} in the ledger; 'penstock harvest runs' lists them")
    run: Run = ledger.get_many(harvest_run, found)[0]
    return run


def start(ledger: Ledger, feed: str, *, full: bool, who: str, reason: str, dry_run: bool = False) -> Done:
    """Have the feed's schedule start a run now. Raises UsageError where it cannot."""
    return _again(lambda: _start(ledger, feed, who, reason, full=full, dry_run=dry_run))


def _start(ledger: Ledger, feed: str, who: str, reason: str, *, full: bool, dry_run: bool) -> Done:
    own = _active(ledger, schedule_name(feed), feed)
    standing = _refuse_another(ledger, feed)
    # Whoever asks again before the first wish is taken up does not take it back.
    full = full or standing.known.full_requested
    kind = "a full run" if full else "a run"
    says = f"{kind} of {feed} {'would be' if dry_run else 'is'} started by its schedule"
    if not dry_run:
        request = {
            "feed": feed,
            "run_type": RunType.FULL if full else None,
            "requested_at": ledger.clock.now(),
            "requested_by": who,
            "reason": reason,
            "run_id": None,
        }
        touched = Move(own, replace(own, due_at=ledger.clock.now()), reason, Actor.OPERATOR)
        ledger.together([touched], who=who, writes=[Write(harvest_request, [request])])
    return Done(None, 0, says, dry_run)


def retry(ledger: Ledger, text: str, *, who: str, reason: str, dry_run: bool = False) -> Done:
    """Fetch again what failed or was cancelled, and nothing else (H4). Raises UsageError where it cannot."""
    return _again(lambda: _retry(ledger, find_run(ledger, text), who, reason, dry_run=dry_run))


def _retry(ledger: Ledger, run: Run, who: str, reason: str, *, dry_run: bool) -> Done:
    if run.status not in (R.CONSOLIDATION_SKIPPED, R.FAILED):
        raise UsageError(f"run {run.run_id} is {run.status}; only one that has failed is retried")
    _refuse_later(ledger, run)
    now = ledger.clock.now()
    found = partitions_of(ledger, run.run_id)
    wanted = [p for p in found if p.status in (P.FAILED, P.PENDING)]
    counted = [p for p in found if _is_counted(p)]
    moves = [_partition_again(p, now, reason) for p in wanted]
    moves += [Move(p, replace(p, attempts=0, due_at=now), reason, Actor.OPERATOR) for p in counted]
    moves += [_worker_again(w, reason) for w in _workers(ledger, wanted) if w.status is W.FAILED]
    after = replace(
        run,
        status=R.WORKERS_RUNNING,
        forced_by=None,
        forced_reason=None,
        error=None,
        phase=None,
        attempts=0,
        # Without anything to fetch there is nobody to wake it.
        due_at=None if wanted or counted else now,
    )
    moves += [Move(run, after, reason, Actor.OPERATOR), _touch(ledger, run.feed, reason)]
    if not dry_run:
        ledger.together(moves, who=who)
    what = "nothing; it is consolidated again"
    if wanted or counted:
        what = f"{len(wanted)} of {run.expected_workers} partitions"
    says = f"run {run.run_id} {'would fetch' if dry_run else 'fetches'} {what}"
    return Done(str(run.run_id), len(wanted), says, dry_run)


def cancel(ledger: Ledger, text: str, *, who: str, reason: str, dry_run: bool = False) -> Done:
    """End a run; what it fetched stays, and a retry goes on from there. Raises UsageError where it cannot.

    The run ends first and its partitions one by one after it: pages come faster than all of them could be taken in one
    transaction. Where that is interrupted, cancelling once more ends the rest.
    """
    done = _again(lambda: _cancel(ledger, find_run(ledger, text), who, reason, dry_run=dry_run))
    if not dry_run:
        _end_partitions(ledger, UUID(done.run_id), who, reason)
    return done


def _cancel(ledger: Ledger, run: Run, who: str, reason: str, *, dry_run: bool) -> Done:
    going = [p for p in partitions_of(ledger, run.run_id) if _is_going(p)]
    if run.status not in (R.CREATED, R.WORKERS_RUNNING, R.CONSOLIDATING) and not (run.status is R.FAILED and going):
        raise UsageError(f"run {run.run_id} is {run.status}; there is nothing to cancel")
    if not dry_run and run.status is not R.FAILED:
        after = replace(run, status=R.FAILED, error=f"cancelled by {who}: {reason}", due_at=None)
        ledger.together([Move(run, after, reason, Actor.OPERATOR)], who=who)
    stopped = sum(p.status is not P.COMPLETED for p in going)
    says = f"run {run.run_id} {'would be' if dry_run else 'is'} cancelled with {stopped} partitions that have not ended"
    return Done(str(run.run_id), stopped, f"{says}; the watermark stays where it was", dry_run)


def _end_partitions(ledger: Ledger, run_id: UUID, who: str, reason: str) -> None:
    """Have nothing more fetched under a run that has ended. Each partition is read just before it is moved."""
    for _ in range(_ROUNDS):
        going = [p.unit_id for p in partitions_of(ledger, run_id) if _is_going(p)]
        if not going:
            return
        for unit_id in going:
            found: list[Partition] = ledger.get_many(harvest_partition, [unit_id])
            with contextlib.suppress(OthersMissed):
                ledger.together(_ended(ledger, found[0], who, reason), who=who)
    raise LedgerRefused(f"run {run_id} is cancelled, but some of its partitions would not end; cancel it again")


def _is_going(partition: Partition) -> bool:
    """Whether something would still be fetched for it. One that is counted again may turn out to lack too much."""
    return partition.status in _LIVE or (
        partition.due_at is not None and (partition.status is P.PENDING or _is_counted(partition))
    )


def _ended(ledger: Ledger, partition: Partition, who: str, reason: str) -> list[Move]:
    now, why = ledger.clock.now(), f"cancelled by {who}: {reason}"
    if partition.status not in _LIVE:
        return [Move(partition, replace(partition, due_at=None), reason, Actor.OPERATOR)]
    after = replace(partition, status=P.FAILED, error=why, updated_at=now, due_at=None)
    workers = [
        Move(
            w,
            replace(w, status=W.FAILED, completed_at=now, error_message=why),
            reason,
            Actor.OPERATOR,
        )
        for w in _workers(ledger, [partition])
        if w.status is W.RUNNING
    ]
    return [Move(partition, after, reason, Actor.OPERATOR), *workers]


def force(ledger: Ledger, text: str, *, who: str, reason: str, dry_run: bool = False) -> Done:
    """Consolidate what there is although partitions have failed; the watermark stays. Raises UsageError."""
    return _again(lambda: _force(ledger, find_run(ledger, text), who, reason, dry_run=dry_run))


def _force(ledger: Ledger, run: Run, who: str, reason: str, *, dry_run: bool) -> Done:
    if not reason.strip():
        raise UsageError("say why it is forced: --reason is kept with the run")
    if run.status not in (R.CONSOLIDATION_SKIPPED, R.FAILED):
        raise UsageError(f"run {run.run_id} is {run.status}; only one that has failed is forced")
    if any(_is_going(p) for p in partitions_of(ledger, run.run_id)):
        msg = f"run {run.run_id} is still being fetched; 'penstock harvest cancel {run.run_id}' ends that"
        raise UsageError(msg)
    if run.completed_workers == run.verified_workers == run.expected_workers:
        msg = f"no partition of run {run.run_id} has failed; 'penstock harvest retry {run.run_id}' consolidates it"
        raise UsageError(msg)
    _refuse_later(ledger, run)
    now = ledger.clock.now()
    after = replace(
        run,
        status=R.CONSOLIDATION_TRIGGERED,
        forced_by=who,
        forced_reason=reason,
        error=None,
        phase=None,
        attempts=0,
        due_at=now,
    )
    if not dry_run:
        ledger.together([Move(run, after, reason, Actor.OPERATOR), _touch(ledger, run.feed, reason)], who=who)
    missing = run.expected_workers - run.verified_workers
    says = (
        f"run {run.run_id} {'would be' if dry_run else 'is'} consolidated without {missing} of {run.expected_workers}"
        " partitions; the watermark stays where it was, and nothing is deleted"
    )
    return Done(str(run.run_id), missing, says, dry_run)


def reopen(ledger: Ledger, text: str, *, who: str, reason: str, dry_run: bool = False) -> Done:
    """Have the failed chunks of a run that is still consolidating tried again. Raises UsageError where it cannot."""
    return _again(lambda: _reopen(ledger, find_run(ledger, text), who, reason, dry_run=dry_run))


def _reopen(ledger: Ledger, run: Run, who: str, reason: str, *, dry_run: bool) -> Done:
    if run.status is not R.CONSOLIDATING:
        hint = f"; 'penstock harvest retry {run.run_id}' consolidates what is left" if run.status is R.FAILED else ""
        raise UsageError(f"run {run.run_id} is {run.status}; only while it consolidates are its chunks reopened{hint}")
    own = f"run_id = {identifier_sql(ledger.database, 'run_id')} AND status = '{C.FAILED}'"
    sql = f"SELECT unit_id FROM harvest_chunk WHERE {own}"
    ids = [str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, run_id=str(run.run_id)))]
    if not ids:
        raise UsageError(f"no chunk of run {run.run_id} has failed")
    failed: list[Chunk] = ledger.get_many(harvest_chunk, ids)
    now = ledger.clock.now()
    again = [replace(c, status=C.OPEN, error=None, attempts=0, due_at=now) for c in failed]
    if not dry_run:
        moves = [Move(c, after, reason, Actor.OPERATOR) for c, after in zip(failed, again, strict=True)]
        ledger.together(moves, who=who)
    chunks = f"{len(failed):,} chunk{'s' if len(failed) != 1 else ''}"
    says = f"{chunks} of run {run.run_id} {'would be' if dry_run else 'are'} tried again"
    return Done(str(run.run_id), 0, says, dry_run)


def reprice(ledger: Ledger, feed: str, *, who: str, reason: str) -> Done:
    """Have the feed's records priced by the rules in force now. Raises UsageError where it cannot."""
    return _again(lambda: _reprice(ledger, feed, who, reason))


def _reprice(ledger: Ledger, feed: str, who: str, reason: str) -> Done:
    own = _active(ledger, prices.schedule_name(feed), feed)
    there = ledger.read(lambda cursor: repricing.under_way(cursor, feed))
    if there is not None:
        how_far = f"{there['records']:,} of {there['expected']:,} records are done"
        raise UsageError(f"{feed} is being repriced, {how_far}; 'penstock harvest feeds' shows how far it has come")
    wish = repricing.wished(ledger, repricing.Priced(feed), who, reason)
    touched = Move(own, replace(own, due_at=ledger.clock.now()), reason, Actor.OPERATOR)
    ledger.together([touched], who=who, writes=[Write(harvest_reprice, [wish])])
    return Done(None, 0, f"{wish['expected']:,} records of {feed} are priced again by its schedule {own.name}", False)


@dataclass(frozen=True, slots=True)
class Rewound:
    """Where the watermark was and is, and how many records that are known were updated in between."""

    feed: str
    before: datetime
    after: datetime
    records: int
    dry_run: bool


def set_watermark(
    ledger: Ledger,
    feed: str,
    moment: datetime,
    *,
    who: str,
    reason: str,
    dry_run: bool = False,
    canonical: sa.Table = diamonds,
) -> Rewound:
    """Set the watermark back, so that the next run reads again what was updated since (E6). Raises UsageError."""
    before = _again(lambda: _rewind(ledger, feed, moment, who, reason, dry_run=dry_run))
    return Rewound(feed, before, moment, _updated_since(ledger, canonical, feed, moment), dry_run)


def _rewind(ledger: Ledger, feed: str, moment: datetime, who: str, reason: str, *, dry_run: bool) -> datetime:
    if not reason.strip():
        raise UsageError("say why the watermark is set: --reason is kept with it")
    row = read_row(ledger, feed)
    if row is None:
        require_feed(ledger, feed)
        raise UsageError(f"{feed} has no watermark yet; its first run reads everything")
    if moment > row.last_updated_at:
        msg = (
            f"the watermark of {feed} is {instant_text(row.last_updated_at)}; set forward to {instant_text(moment)},"
            " what was updated in between would never be read"
        )
        raise UsageError(msg)
    _refuse_another(ledger, feed)
    touch = _touch(ledger, feed, reason)
    mark = {
        "feed": feed,
        "last_updated_at": moment,
        "last_run_id": row.last_run_id,
        "last_run_completed_at": row.last_run_completed_at,
        "publication": UNPUBLISHED,
        "set_by": who,
        "set_reason": reason,
    }
    payload = {"feed": feed, "set_by": who, "reason": reason, "last_updated_at": instant_text(moment)}
    told = Event(f"{ADVANCED}:{feed}:set:{touch.before.version}", ADVANCED, payload)
    if not dry_run:
        ledger.together([touch], who=who, writes=[Write(watermark, [mark])], events=[told])
    return row.last_updated_at


def _updated_since(ledger: Ledger, canonical: sa.Table, feed: str, moment: datetime) -> int:
    since = instant_sql(ledger.database, "moment")
    sql = f"SELECT count(*) FROM {canonical.name} WHERE feed = :feed AND source_updated_at >= {since}"
    return int(ledger.read(lambda cursor: cursor.rows(sql, feed=feed, moment=instant_text(moment)))[0][0])


def _again(action: Callable[[], T]) -> T:
    """An action on what was read; when something changed meanwhile it is read again."""
    for _ in range(_TRIES):
        try:
            return action()
        except OthersMissed:
            continue
    raise LedgerRefused("the run changes faster than it can be acted on; try again")


def _schedule(ledger: Ledger, name: str, feed: str) -> Schedule:
    found: list[Schedule] = ledger.get_many(schedules.machine, [name])
    if not found:
        msg = f"there is no schedule {name}; add [feeds.{feed}] to the configuration and run 'penstock up'"
        raise UsageError(msg)
    return found[0]


def _active(ledger: Ledger, name: str, feed: str) -> Schedule:
    """The schedule, if it ticks. Raises UsageError that says how to make it."""
    own = _schedule(ledger, name, feed)
    if own.status is not schedules.S.ACTIVE:
        raise UsageError(f"the schedule {own.name} is {own.status}; {_revived(own)}")
    return own


def _touch(ledger: Ledger, feed: str, reason: str) -> Move:
    """Take the feed's schedule: a scan that is going on loses it."""
    own = _schedule(ledger, schedule_name(feed), feed)
    return Move(own, replace(own), reason, Actor.OPERATOR)


def _revived(schedule: Schedule) -> str:
    if schedule.status is schedules.S.PAUSED:
        return f"'penstock schedules resume {schedule.name}' lets it go on"
    return "configure the feed again and run 'penstock up'"


def _refuse_another(ledger: Ledger, feed: str) -> Standing:
    standing = standing_of(ledger, feed)
    if standing.open_run is not None:
        msg = f"run {standing.open_run} of {feed} is under way; wait for it, or 'penstock harvest cancel' it"
        raise UsageError(msg)
    return standing


def _refuse_later(ledger: Ledger, run: Run) -> None:
    """Refuse to bring a run back beside another one, or after one that has covered its window."""
    _refuse_another(ledger, run.feed)
    sql = "SELECT unit_id, started_at FROM run_metadata WHERE feed = :feed AND status = 'completed'"
    rows = ledger.read(lambda cursor: cursor.rows(sql, feed=run.feed))
    later = [str(unit_id) for unit_id, started in rows if instant(started) > run.started_at]
    if later:
        msg = f"run {later[0]} was started later and is completed; what run {run.run_id} lacks, the next run fetches"
        raise UsageError(msg)


def _workers(ledger: Ledger, partitions: Sequence[Partition]) -> list[WorkerRun]:
    ids = [str(worker_run_id(p.run_id, p.partition_id)) for p in partitions]
    return ledger.get_many(harvest_worker, ids) if ids else []


def _partition_again(partition: Partition, now: datetime, reason: str) -> Move:
    after = replace(
        partition, status=P.PENDING, error=None, attempts=0, rescans=0, updated_at=now, due_at=now, parked_at=None
    )
    return Move(partition, replace(after, parked_reason=None), reason, Actor.OPERATOR)


def _is_counted(partition: Partition) -> bool:
    """Whether it is completed, and not yet known to be whole."""
    return partition.status is P.COMPLETED and partition.verified_at is None


def _worker_again(worker: WorkerRun, reason: str) -> Move:
    after = replace(worker, status=W.RUNNING, completed_at=None, error_message=None)
    return Move(worker, after, reason, Actor.OPERATOR)

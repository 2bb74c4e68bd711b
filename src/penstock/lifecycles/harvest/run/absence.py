"""What a run did not see: soft-deleted once its absence is proved, and until then kept and counted.

A full run proves something only if it read every partition to its end and found all that was counted there. What two
such runs did not see, with no run in between that did, is gone. Whatever any run sees again lives again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.ledger.store.statements import begins_sql
from penstock.lifecycles.harvest.feed import UNNAMED, Feed
from penstock.lifecycles.harvest.run.machine import Phase, Run, RunType
from penstock.lifecycles.harvest.settings import HarvestSettings
from penstock.model.errors import Rejected
from penstock.model.outcome import MAX_ROWS, Event, Outcome, Update, Where
from penstock.model.unit import replace
from penstock.worker.flow import Io

UNPROVED = "harvest.absence_unproved"
JUDGED_FROM = 1_000
"""With fewer live records nothing is too much to be gone: a small catalogue changes by leaps."""


async def settle(
    run: Run,
    feed: Feed,
    settings: HarvestSettings,
    io: Io,
    *,
    at_once: int = MAX_ROWS,
    judged_from: int = JUDGED_FROM,
) -> Outcome[Run]:
    """One step of `updating_run_metadata`, of so many records at most.

    Raises Rejected where too much is missing to be believed.
    """
    if run.unseen is None:
        gone, missed = await io.ledger(lambda ledger: _seen_again(ledger, run, feed, at_once))
        if gone or missed:
            return _revived(run, feed, gone, missed, io)
        if run.run_type is not RunType.FULL:
            return _over(run, "nothing is soft-deleted by such a run")
        return await _look(run, feed, settings, io, judged_from)
    doubt = "it was forced" if run.forced_by else await io.ledger(lambda ledger: _doubt(ledger, run))
    if doubt is not None:
        return _kept(run, doubt)
    gone, missed = await io.ledger(lambda ledger: _unseen(ledger, run, feed, at_once))
    if gone or missed:
        return _absent(run, feed, gone, missed, io)
    return _over(run, f"{run.records_deleted:,} records are soft-deleted, {run.unseen:,} others were not seen")


async def _look(run: Run, feed: Feed, settings: HarvestSettings, io: Io, judged_from: int) -> Outcome[Run]:
    """How many records it did not see. More than are believed to be gone fail it, unless it was forced."""
    live, unseen = await io.ledger(lambda ledger: _live_and_unseen(ledger, run, feed))
    if run.forced_by is None and live >= judged_from and unseen > live * settings.most_deleted:
        raise Rejected(
            f"it did not see {unseen:,} of {live:,} records, more than {settings.most_deleted:.3g} of them;"
            " if they are really gone, raise harvest.most_deleted and retry"
        )
    return Outcome(run, replace(run, unseen=unseen), f"{unseen:,} of {live:,} records were not seen", keep_claim=True)


def _over(run: Run, reason: str, *events: Event) -> Outcome[Run]:
    after = replace(run, phase=Phase.ADVANCING_WATERMARK, attempts=0)
    return Outcome(run, after, reason, events=events, keep_claim=True)


def _kept(run: Run, doubt: str) -> Outcome[Run]:
    """Nothing is soft-deleted; somebody is told where that will not pass by itself."""
    reason = f"{run.unseen:,} records that it did not see are kept: {doubt}"
    if not run.unseen or run.forced_by is not None:
        return _over(run, reason)
    payload = {"run": f"harvest_run:{run.unit_id}", "feed": run.feed, "unseen": run.unseen, "reason": doubt}
    return _over(run, reason, Event(f"{UNPROVED}:{run.run_id}", UNPROVED, payload, "warning"))


def _revived(run: Run, feed: Feed, gone: Sequence[str], missed: Sequence[str], io: Io) -> Outcome[Run]:
    """Also where the row itself stays as it is, because it is newer than what the run has, or cannot be mapped."""
    now, own = io.now(), {"feed": run.feed}
    updates = [
        *_update(feed, own, gone, {"missed_by_run_id": None, "deleted_at": None, "updated_at": now}),
        *_update(feed, own, missed, {"missed_by_run_id": None}),
    ]
    reason = f"{len(gone):,} records live again, {len(missed):,} that were missed are seen again"
    return Outcome(run, replace(run, due_at=now), reason, updates=updates)


def _absent(run: Run, feed: Feed, gone: Sequence[str], missed: Sequence[str], io: Io) -> Outcome[Run]:
    """The second run that does not see a record soft-deletes it; the first one leaves its mark."""
    now, live = io.now(), {"feed": run.feed, "deleted_at": None}
    updates = [
        *_update(feed, live, gone, {"deleted_at": now, "updated_at": now}),
        *_update(feed, live, missed, {"missed_by_run_id": run.run_id}),
    ]
    deleted, unseen = run.records_deleted + len(gone), (run.unseen or 0) - len(gone)
    after = replace(run, records_deleted=deleted, unseen=unseen, due_at=now)
    reason = f"{len(gone):,} records are soft-deleted, {len(missed):,} were missed for the first time"
    return Outcome(run, after, reason, updates=updates)


def _update(feed: Feed, where: Mapping[str, Any], names: Sequence[str], values: Mapping[str, Any]) -> list[Update]:
    return [Update(Where(feed.canonical, where, among=(feed.identity, names)), values)] if names else []


def _doubt(ledger: Ledger, run: Run) -> str | None:
    """Why what the run did not see may be there all the same; None: it read everything."""
    if run.records_consolidated + run.records_rejected == 0:
        return "it saw no record at all"
    own = f"FROM partition_progress WHERE run_id = {ledger.database.sql.identifier('run_id')}"
    proved = "verified_at IS NOT NULL AND doubt IS NULL"
    others = f"SELECT partition_id, doubt, status {own} AND NOT ({proved}) ORDER BY ordinal"

    def work(cursor: Cursor) -> str | None:
        given = {"run_id": str(run.run_id)}
        ((number,),) = cursor.rows(f"SELECT count(*) {own} AND {proved}", **given)
        if int(number) == run.expected_workers:
            return None
        told = [f"{name}: {doubt or status}" for name, doubt, status in cursor.rows(others, **given)]
        return f"{number} of {run.expected_workers} partitions are known to be whole; {'; '.join(told[:3])}"

    return ledger.read(work)


def _seen_again(ledger: Ledger, run: Run, feed: Feed, limit: int) -> tuple[list[str], list[str]]:
    """Some of the records that the run saw: those that are soft-deleted, and those that an earlier run missed."""
    run_id, name = ledger.database.sql.identifier("run_id"), feed.identity
    # SQLite goes through a cross join from left to right: the run's rows are few where it is incremental.
    sql = (
        f"SELECT c.{name}, CASE WHEN c.deleted_at IS NULL THEN 0 ELSE 1 END FROM {feed.raw.name} AS r"
        f" CROSS JOIN {feed.canonical.name} AS c WHERE r.run_id = {run_id} AND c.feed = :feed AND c.{name} = r.{name}"
        f" AND (c.deleted_at IS NOT NULL OR c.missed_by_run_id IS NOT NULL) LIMIT {limit}"
    )
    return _sorted_out(ledger, run, sql)


def _not_seen(feed: Feed, ledger: Ledger) -> str:
    """Live records of the feed that the run has no raw row of; one that was set aside, or not named, was seen."""
    run_id = ledger.database.sql.identifier("run_id")
    raw = f"NOT EXISTS (SELECT 1 FROM {feed.raw.name} AS r WHERE r.run_id = {run_id} AND r."
    missing = f"{raw}{feed.identity} = c.{feed.identity})"
    if feed.known_by is not None:
        unnamed = begins_sql(ledger.database, f"r.{feed.identity}", UNNAMED)
        missing += f" AND {raw}{feed.known_by} = c.{feed.known_by} AND {unnamed})"
    return f"FROM {feed.canonical.name} AS c WHERE c.feed = :feed AND c.deleted_at IS NULL AND {missing}"


def _unseen(ledger: Ledger, run: Run, feed: Feed, limit: int) -> tuple[list[str], list[str]]:
    """Some of the records that it did not see: those that an earlier run missed too, and those that none did."""
    run_id = ledger.database.sql.identifier("run_id")
    sql = (
        f"SELECT c.{feed.identity}, CASE WHEN c.missed_by_run_id IS NULL THEN 0 ELSE 1 END {_not_seen(feed, ledger)}"
        f" AND (c.missed_by_run_id IS NULL OR c.missed_by_run_id <> {run_id}) LIMIT {limit}"
    )
    return _sorted_out(ledger, run, sql)


def _sorted_out(ledger: Ledger, run: Run, sql: str) -> tuple[list[str], list[str]]:
    """The identities whose second column is 1, and the others."""
    given = {"run_id": str(run.run_id), "feed": run.feed}
    found = ledger.read(lambda cursor: cursor.rows(sql, **given))
    return [str(name) for name, flag in found if flag], [str(name) for name, flag in found if not flag]


def _live_and_unseen(ledger: Ledger, run: Run, feed: Feed) -> tuple[int, int]:
    given = {"run_id": str(run.run_id), "feed": run.feed}
    live = f"SELECT count(*) FROM {feed.canonical.name} WHERE feed = :feed AND deleted_at IS NULL"

    def work(cursor: Cursor) -> tuple[int, int]:
        ((there,),) = cursor.rows(live, feed=run.feed)
        ((gone,),) = cursor.rows(f"SELECT count(*) {_not_seen(feed, ledger)}", **given)
        return int(there), int(gone)

    return ledger.read(work)

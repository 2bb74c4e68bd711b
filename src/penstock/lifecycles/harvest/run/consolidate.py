"""A run's consolidation, phase by phase, each a commit that others see before its work begins.

The run validates itself, takes the pricing rules as they stand, and cuts its raw rows into chunks that any worker
consolidates (`chunks`). When all have ended it judges what was set aside, settles what it did not see (`absence`), and
completes: in one transaction that locks the run, finds no row unconsolidated, and moves the watermark.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.harvest.chunk.flow import of_run
from penstock.lifecycles.harvest.chunk.machine import Chunk
from penstock.lifecycles.harvest.events import UNPUBLISHED
from penstock.lifecycles.harvest.feed import Feed
from penstock.lifecycles.harvest.prices import rules_in_force
from penstock.lifecycles.harvest.pricing import BadRule, digest
from penstock.lifecycles.harvest.run import absence
from penstock.lifecycles.harvest.run.machine import Phase, R, Run, RunType
from penstock.lifecycles.harvest.settings import HarvestSettings
from penstock.lifecycles.harvest.tables import harvest_pricing, harvest_rejected, watermark
from penstock.lifecycles.harvest.watermark import advanced
from penstock.model.clock import instant, instant_text
from penstock.model.errors import Rejected
from penstock.model.outcome import MAX_ROWS, Birth, Outcome, Update, Where, Write
from penstock.model.unit import replace
from penstock.worker.flow import Io

MOST_CHUNKS = 4_000
_UNCONFIGURED = timedelta(minutes=5)


class Consolidator:
    """What a run is handed over to when its partitions have been fetched."""

    def __init__(self, settings: HarvestSettings, feeds: Mapping[str, Feed], **bounds: int) -> None:
        """`bounds` are those of `absence.settle`."""
        self._settings = settings
        self._feeds = feeds
        self._bounds = bounds

    async def step(self, run: Run, io: Io) -> Outcome[Run]:
        """One step of a run in `consolidation_triggered` or `consolidating`. Raises Rejected where it cannot go on."""
        if run.status is R.CONSOLIDATION_TRIGGERED:
            return _begun(run, io)
        feed = self._feeds.get(run.feed)
        if feed is None:
            why = f"the feed {run.feed!r} is not configured; configure it again or cancel the run"
            return Outcome(run, replace(run, due_at=io.now() + _UNCONFIGURED), why)
        match run.phase:
            case Phase.LOADING_PRICING_RULES:
                return await self._load_rules(run, io)
            case Phase.FETCHING_RAW_BATCH:
                return await self._cut(run, feed, io)
            case Phase.PROCESSING_BATCH:
                return await self._judge(run, feed, io)
            case Phase.UPDATING_RUN_METADATA:
                return await absence.settle(run, feed, self._settings, io, **self._bounds)
            case Phase.ADVANCING_WATERMARK:
                return await self._complete(run, feed, io)
            case _:
                return await self._validate(run, feed, io)

    async def _validate(self, run: Run, feed: Feed, io: Io) -> Outcome[Run]:
        """What an earlier consolidation of the run set aside is taken up again: the mapping may be another by now."""
        aside = await io.ledger(lambda ledger: _set_aside(ledger, run))
        if not aside:
            return _next(run, Phase.LOADING_PRICING_RULES, "the run is valid")
        now = io.now()
        updates = [
            Update(Where(feed.raw, {"run_id": run.run_id}, among=(feed.identity, aside)), {"consolidated": False}),
            Update(Where(harvest_rejected, {"run_id": run.run_id}, among=("identity", aside)), {"resolved_at": now}),
        ]
        after = replace(run, due_at=now)
        return Outcome(run, after, f"{len(aside):,} rows that were set aside are taken up again", updates=updates)

    async def _load_rules(self, run: Run, io: Io) -> Outcome[Run]:
        try:
            rules = await io.ledger(lambda ledger: ledger.read(lambda cursor: rules_in_force(cursor, run.feed)))
        except BadRule as error:
            raise Rejected(str(error)) from error
        kept = {
            "run_id": run.run_id,
            "digest": digest(rules),
            "rules": [rule.document() for rule in rules],
            "loaded_at": io.now(),
        }
        outcome = _next(run, Phase.FETCHING_RAW_BATCH, f"{len(rules)} pricing rules")
        return replace(outcome, writes=[Write(harvest_pricing, [kept])])

    async def _cut(self, run: Run, feed: Feed, io: Io) -> Outcome[Run]:
        now = io.now()
        cut = await io.ledger(lambda ledger: _ranges(ledger, run, feed, self._settings.chunk_rows))
        births = [
            Birth(Chunk(run_id=run.run_id, number=number, feed=run.feed, first=first, last=last, due_at=now), "cut")
            for number, (first, last) in enumerate(cut.ranges, start=cut.chunks)
        ]
        total = cut.chunks - cut.parked + len(births)
        after = replace(run, phase=Phase.PROCESSING_BATCH, expected_chunks=total, attempts=0, due_at=None)
        reason = f"{cut.rows:,} raw rows in {len(births):,} chunks"
        if not births:
            return Outcome(run, after, reason, keep_claim=True)
        return Outcome(run, after, reason, others=births)

    async def _judge(self, run: Run, feed: Feed, io: Io) -> Outcome[Run]:
        ended = run.completed_chunks + run.failed_chunks
        if ended < run.expected_chunks:
            return Outcome(run, replace(run, due_at=None), f"{ended} of {run.expected_chunks} chunks have ended")
        found = await io.ledger(lambda ledger: _counted(ledger, run, feed))
        if found.unconsolidated:
            raise Rejected(f"{found.unconsolidated:,} rows of {found.rows:,} are not consolidated: {found.why}")
        if found.rejected > found.rows * self._settings.most_rejected and run.forced_by is None:
            raise Rejected(
                f"{found.rejected:,} rows of {found.rows:,} cannot be mapped, more than"
                f" {self._settings.most_rejected:.3g} of them; the first: {found.why}"
            )
        outcome = _next(run, Phase.UPDATING_RUN_METADATA, f"{found.rejected:,} of {found.rows:,} rows are set aside")
        after = replace(
            outcome.after,
            records_consolidated=found.rows - found.rejected,
            records_rejected=found.rejected,
            unseen=None,
        )
        return replace(outcome, after=after)

    async def _complete(self, run: Run, feed: Feed, io: Io) -> Outcome[Run]:
        # Asked again under the lock. Here it is asked so that a row that has come since leads back and not in circles.
        if await io.ledger(lambda ledger: _unconsolidated(ledger, run, feed)):
            return _next(run, Phase.FETCHING_RAW_BATCH, "rows have come since; they are consolidated too")
        now = io.now()
        only_if_absent = [Where(feed.raw, {"run_id": run.run_id, "consolidated": False})]
        forced = run.forced_by is not None
        after = replace(
            run,
            status=R.COMPLETED,
            phase=None,
            completed_at=now,
            watermark_after=run.watermark_before if forced else run.window_to,
        )
        if forced:
            return Outcome(
                run, after, "consolidated by force; the watermark stays where it was", only_if_absent=only_if_absent
            )
        mark = {
            "feed": run.feed,
            "last_updated_at": run.window_to,
            "last_run_id": run.run_id,
            "last_run_completed_at": now,
            "publication": UNPUBLISHED,
            "set_by": None,
            "set_reason": None,
        }
        write = Write(watermark, [mark], newer="last_updated_at")
        if run.run_type is RunType.INCREMENTAL and run.watermark_before is not None:
            behind = await io.ledger(lambda ledger: _behind(ledger, run))
            if behind:
                # Set back meanwhile: what lies between was not this run's to read, and is read by the next one.
                return Outcome(
                    run, after, "consolidated; the watermark was set back meanwhile", only_if_absent=only_if_absent
                )
            since = ("last_updated_at", _BEGINNING, run.watermark_before)
            only_if_absent.append(Where(watermark, {"feed": run.feed}, span=since))
        event = advanced(run.feed, str(run.run_id), run.window_to)
        return Outcome(run, after, "consolidated", only_if_absent=only_if_absent, writes=[write], events=[event])


_BEGINNING = "0001-01-01T00:00:00.000Z"


def _begun(run: Run, io: Io) -> Outcome[Run]:
    after = replace(
        run,
        status=R.CONSOLIDATING,
        phase=Phase.VALIDATING_RUN,
        consolidation_started_at=io.now(),
        records_consolidated=0,
        records_rejected=0,
        records_deleted=0,
        unseen=None,
        error=None,
        attempts=0,
        due_at=io.now(),
    )
    return Outcome(run, after, "consolidation begins", keep_claim=True)


def _next(run: Run, phase: Phase, reason: str) -> Outcome[Run]:
    return Outcome(run, replace(run, phase=phase, attempts=0), reason, keep_claim=True)


@dataclass(frozen=True, slots=True)
class _Cut:
    ranges: list[tuple[int, int]]
    rows: int
    #: How many chunks the run has already, from an earlier consolidation, and how many of them nobody will end.
    chunks: int
    parked: int


def _ranges(ledger: Ledger, run: Run, feed: Feed, size: int) -> _Cut:
    """Ranges of positions with so many unconsolidated rows each, and together all of them."""
    raw, mine = feed.raw.name, of_run(ledger.database)
    open_rows = f"FROM {raw} WHERE {mine} AND NOT consolidated"

    def work(cursor: Cursor) -> _Cut:
        given = {"run_id": str(run.run_id)}
        ((rows, last),) = cursor.rows(f"SELECT count(*), max(position) {open_rows}", **given)
        ((chunks, parked),) = cursor.rows(f"SELECT count(*), count(parked_at) FROM harvest_chunk WHERE {mine}", **given)
        each = max(size, -(-rows // MOST_CHUNKS))
        # By one statement that reads the rows once, whatever the planner believes of a table that nobody has analysed.
        # Rows that share a position stay together.
        numbered = f"SELECT position, row_number() OVER (ORDER BY position) AS n {open_rows}"
        sql = f"SELECT DISTINCT position FROM ({numbered}) AS r WHERE (n - 1) % {each} = 0 ORDER BY position"
        starts = [int(row[0]) for row in cursor.rows(sql, **given)] if rows else []
        ends = [*starts[1:], *([int(last) + 1] if rows else ())]
        return _Cut(list(zip(starts, ends, strict=True)), int(rows), int(chunks), int(parked))

    return ledger.read(work)


@dataclass(frozen=True, slots=True)
class _Counted:
    rows: int
    unconsolidated: int
    rejected: int
    why: str


def _counted(ledger: Ledger, run: Run, feed: Feed) -> _Counted:
    """What became of the run's rows."""
    mine, given = of_run(ledger.database), {"run_id": str(run.run_id)}

    def work(cursor: Cursor) -> _Counted:
        sql = f"SELECT count(*), sum(CASE WHEN consolidated THEN 0 ELSE 1 END) FROM {feed.raw.name} WHERE {mine}"
        ((rows, left),) = cursor.rows(sql, **given)
        aside = f"FROM harvest_rejected WHERE {mine} AND resolved_at IS NULL"
        ((rejected,),) = cursor.rows(f"SELECT count(*) {aside}", **given)
        failed = f"SELECT error FROM harvest_chunk WHERE {mine} AND status = 'failed' ORDER BY number DESC LIMIT 1"
        first = f"SELECT identity, reason {aside} ORDER BY identity LIMIT 1"
        why = "a chunk has failed"
        if left:
            why = next((str(row[0]) for row in cursor.rows(failed, **given) if row[0]), why)
        else:
            why = next((f"{row[0]}: {row[1]}" for row in cursor.rows(first, **given)), why)
        return _Counted(int(rows), int(left or 0), int(rejected), why)

    return ledger.read(work)


def _unconsolidated(ledger: Ledger, run: Run, feed: Feed) -> bool:
    sql = f"SELECT 1 FROM {feed.raw.name} WHERE {of_run(ledger.database)} AND NOT consolidated LIMIT 1"
    return bool(ledger.read(lambda cursor: cursor.rows(sql, run_id=str(run.run_id))))


def _set_aside(ledger: Ledger, run: Run) -> list[str]:
    """Some of the rows that an earlier consolidation of the run set aside and marked."""
    mine = of_run(ledger.database)
    sql = f"SELECT identity FROM harvest_rejected WHERE {mine} AND resolved_at IS NULL LIMIT {MAX_ROWS}"
    return [str(row[0]) for row in ledger.read(lambda cursor: cursor.rows(sql, run_id=str(run.run_id)))]


def _behind(ledger: Ledger, run: Run) -> bool:
    """Whether the watermark lies before the one that the run started from."""
    sql = "SELECT last_updated_at FROM watermark WHERE feed = :feed"
    found: list[Any] = ledger.read(lambda cursor: cursor.rows(sql, feed=run.feed))
    assert run.watermark_before is not None  # noqa: S101 - asked by the caller
    return bool(found) and instant_text(instant(found[0][0])) < instant_text(run.watermark_before)

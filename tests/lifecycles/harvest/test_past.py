"""Harvests as they stood: what was answered while they went on is what is answered of those moments later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from penstock.connectors.watermark import FileBlob, ForeignBlob
from penstock.ledger.births import birth_products
from penstock.ledger.care.prune import EVENTS, HISTORY, UNITS, Ages, Pruner
from penstock.lifecycles.harvest import operations, readings
from penstock.lifecycles.harvest.chunk.flow import Chunks
from penstock.lifecycles.harvest.events import CONFLICT, PUBLISHED, UNPUBLISHED
from penstock.lifecycles.harvest.feed import Span
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.past import PAST
from penstock.lifecycles.harvest.run.consolidate import Consolidator
from penstock.lifecycles.harvest.run.machine import R, RunType
from penstock.lifecycles.harvest.tables import harvest_reprice
from penstock.lifecycles.harvest.watermark import adopt, advanced, publish
from penstock.model.clock import Rng, instant_text
from penstock.model.errors import Transient, UnknownUnit, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Write
from penstock.operations.declare import Page
from penstock.worker.schedule_unit import Schedule
from tests.support.consolidation import FEEDS, map_stone
from tests.support.harvest import FEED, START, Bench, Catalogue, Stone, on_bench, small, stones

BEFORE = START - timedelta(hours=1)
HOUR = 3_600
_PHRASES = {"progress", "hint", "rate", "ends_at", "says"}
"""What is said otherwise of the past; rates and the end that is expected are not told of it."""
_CERTAIN = {
    "runs": {"run_id", "feed", "run_type", "status", "partitions", "started_at", "error", "forced_by"},
    "show": {
        *(
            "run_id",
            "status",
            "partitions",
            "completed_workers",
            "failed_workers",
            "verified_workers",
            "expected_workers",
        ),
        *("completed_chunks", "failed_chunks", "window_from", "window_to", "watermark_before", "watermark_after"),
        *("consolidation_started_at", "completed_at", "error", "forced_by", "forced_reason"),
    },
    "partitions": {"partition_id", "low", "high", "status"},
    "watermark show": {"feed", "last_updated_at", "last_run_id", "last_run_completed_at", "set_by", "set_reason"},
    "feeds": {"feed", "state", "runs", "open_run", "says"},
}
"""What of a moment is always known."""


class Mapped:
    """What maps a record of the feed; `meanwhile` happens before each."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], Any] = lambda: None

    def __call__(self, payload: str) -> dict[str, Any]:
        self.meanwhile()
        return map_stone(payload)


def harvested(url: str, source: Catalogue, test: Any, mapped: Mapped | None = None) -> None:
    """A bench that consolidates as the program does."""
    known, feed = small(chunk_rows=60), replace(FEEDS[FEED], map=mapped or map_stone)
    flows = {"consolidation": Consolidator(known, {FEED: feed}), "more": [Chunks(known, {FEED: feed})]}
    on_bench(url, source, test, feed=feed, settings=known, **flows)


def rows_of(answer: Any) -> list[dict[str, Any]]:
    """The rows of an answer, by their fields."""
    found = answer.rows if isinstance(answer, Page) else [answer]
    return [msgspec.structs.asdict(row) for row in found]


def all_asked(bench: Bench, runs: list[str], at: datetime | None = None) -> dict[tuple[str, str], Any]:
    """Every reading that has a past, with its rows."""
    asked: list[tuple[Any, dict[str, Any]]] = [
        (readings.runs, {"feed": FEED}),
        (readings.watermark_show, {}),
        (readings.feeds, {}),
        *((reading, {"run": run}) for run in runs for reading in (readings.show, readings.partitions)),
    ]
    return {(one.name, given.get("run", "")): rows_of(bench.read(one, at=at, **given)) for one, given in asked}


@dataclass
class Recorder:
    """Asks live, now and then, and later the same of those moments."""

    bench: Bench
    every: int = 1
    moments: dict[datetime, dict[tuple[str, str], Any]] = field(default_factory=dict)
    calls: int = 0

    def record(self) -> datetime:
        """Ask now; nothing else happens at this moment."""
        now = self.bench.clock.now()
        runs = [str(run.run_id) for run in self.bench.runs()]
        self.moments[now] = all_asked(self.bench, runs)
        self.bench.clock.advance(1)
        return now

    def sometimes(self) -> None:
        """Record every so many calls."""
        self.calls += 1
        if self.calls % self.every == 0:
            self.record()

    def while_(self, trouble: Callable[[str, Span, int], None]) -> Callable[[str, Span, int], None]:
        """The same trouble, and a record now and then."""

        def called(what: str, span: Span, offset: int) -> None:
            self.sometimes()
            trouble(what, span, offset)

        return called

    def statuses(self, reading: str) -> set[Any]:
        found = (rows for told in self.moments.values() for (name, _), rows in told.items() if name == reading)
        return {row["status"] for rows in found for row in rows}

    def compare(self) -> tuple[int, int]:
        """Nothing that is told of a moment differs from what was told then; how much is known, of how much."""
        known = whole = 0
        for moment, told in self.moments.items():
            runs = [run for name, run in told if name == "show"]
            later = all_asked(self.bench, runs, moment)
            for (name, run), before in told.items():
                after = later[name, run]
                where = f"{name} {run} at {moment}"
                assert len(after) == len(before), where
                for was, tells in zip(before, after, strict=True):
                    for column in was.keys() - _PHRASES:
                        known += tells[column] == was[column]
                        whole += 1
                        if column in _CERTAIN[name] or tells[column] is not None:
                            assert tells[column] == was[column], f"{column} of {where}"
        return known, whole


def nothing(what: str, span: Span, offset: int) -> None:
    """No trouble."""


def failing(number: int) -> Callable[[str, Span, int], None]:
    """The pages at 60 of so many partitions fail."""
    spans: list[Span] = []

    def trouble(what: str, span: Span, offset: int) -> None:
        if what == "page" and offset == 60 and (span in spans or len(spans) < number):
            if span not in spans:
                spans.append(span)
            raise Transient("away")

    return trouble


def growing(source: Catalogue) -> Callable[[str, Span, int], None]:
    """A record comes into one partition after its last page: it is read again."""
    came: list[Stone] = []

    def trouble(what: str, span: Span, offset: int) -> None:
        if what == "page" and offset == 60 and not came:
            came.append(Stone(span.low, "late"))
            source.put(*came)

    return trouble


def cancelling(bench: Bench) -> Callable[[str, Span, int], None]:
    """Somebody cancels the run while its first pages are fetched."""
    done: list[str] = []

    def trouble(what: str, span: Span, offset: int) -> None:
        if what == "page" and offset == 30 and not done:
            done.append(bench.do(operations.cancel, run=str(bench.run().run_id), reason="enough").says)

    return trouble


def compared(url: str, source: Catalogue, test: Callable[[Bench, Recorder], Any], known_of: float) -> None:
    """What is told while the test goes on is told later of the same moments, and so much of it is known."""
    mapped = Mapped()

    async def main(bench: Bench) -> None:
        told, mapping = Recorder(bench, every=7), Recorder(bench, every=90)
        mapping.moments, mapped.meanwhile = told.moments, mapping.sometimes
        told.record()
        bench.clock.advance(HOUR)
        await test(bench, told)
        told.record()
        assert told.statuses("show") >= {R.WORKERS_RUNNING, R.CONSOLIDATING, R.COMPLETED, R.FAILED}
        assert told.statuses("partitions") >= {P.IN_PROGRESS, P.FETCHING_PAGES, P.COMPLETED}
        assert len(told.moments) > 15
        known, whole = told.compare()
        assert known > whole * known_of

    harvested(url, source, main, mapped)


def test_runs_that_fail_are_retried_and_forced_are_told_later_as_they_were_told_then(ledger_url, tmp_path):
    source, blob = Catalogue(stones(400)), FileBlob(tmp_path / "watermark.json")

    async def test(bench: Bench, told: Recorder) -> None:
        source.trouble = told.while_(failing(2))
        first = await bench.harvest()
        assert (first.status, first.failed_workers) == (R.FAILED, 2)
        bench.clock.advance(HOUR)
        bench.do(operations.retry, run=str(first.run_id))
        told.record()
        source.trouble = told.while_(nothing)
        assert (await bench.settled()).status is R.COMPLETED
        told.record()
        publish(bench.ledger, FEED, blob)
        told.record()
        source.put(*(Stone(s.price, s.stone, bench.clock.now(), "new") for s in source.stones[:150]))
        second = await bench.harvest()
        assert (second.status, second.run_type) == (R.COMPLETED, RunType.INCREMENTAL)
        told.record()
        bench.do(operations.watermark_set, feed=FEED, moment=START + timedelta(minutes=30), reason="too early")
        told.record()
        bench.do(operations.start, feed=FEED, full=True)
        source.trouble = told.while_(failing(1))
        third = await bench.settled()
        assert third.status is R.FAILED
        told.record()
        bench.do(operations.force, run=str(third.run_id), reason="at any rate")
        told.record()
        third = await bench.settled()
        assert (third.status, third.forced_by) == (R.COMPLETED, "ada")

    compared(ledger_url, source, test, 0.97)


def test_runs_that_read_again_and_are_cancelled_are_told_later_as_they_were_told_then(ledger_url):
    source = Catalogue(stones(300))

    async def test(bench: Bench, told: Recorder) -> None:
        source.trouble = told.while_(growing(source))
        first = await bench.harvest()
        assert (first.status, first.run_type) == (R.COMPLETED, RunType.FULL)
        assert sum(p.rescans for p in bench.partitions()) > 0
        told.record()
        bench.clock.advance(HOUR)
        bench.do(operations.start, feed=FEED, full=True)
        source.trouble = told.while_(cancelling(bench))
        second = await bench.settled()
        assert second.error == "cancelled by ada: enough"
        told.record()
        bench.do(operations.retry, run=str(second.run_id))
        source.trouble = told.while_(nothing)
        assert (await bench.settled()).status is R.COMPLETED

    compared(ledger_url, source, test, 0.9)


def test_a_harvest_is_shown_before_during_and_after(ledger_url):
    source = Catalogue(stones(300))
    seen: list[datetime] = []

    async def test(bench: Bench) -> None:
        def during(what: str, span: Span, offset: int) -> None:
            if what == "page" and offset == 60 and not seen:
                seen.append(bench.clock.now())
                bench.clock.advance(60)

        source.trouble = during
        bench.clock.advance(60)
        began = bench.clock.now()
        run = await bench.harvest()
        assert run.status is R.COMPLETED
        name, moment = str(run.run_id)[:8], seen[0]
        bench.clock.advance(HOUR)

        early = bench.read(readings.runs, at=began - timedelta(seconds=1))
        assert (early.rows, early.note) == ([], "there were no runs yet")
        assert bench.read(readings.partitions, at=START).note == "there were no runs yet"
        assert bench.read(readings.feeds, at=START).rows[0].state == "new"
        assert bench.read(readings.watermark_show, at=moment).note == "no feed had a watermark yet"

        half = bench.read(readings.show, run=name, at=moment)
        assert (half.status, half.partitions, half.records, half.share) == (R.WORKERS_RUNNING, "0/3", None, None)
        assert (half.rate, half.ends_at, half.completed_at, half.expected_records) == (None, None, None, 300)
        assert half.progress == "300 records are expected; how many had been fetched is not known any more"
        assert (half.expected_chunks, half.records_consolidated, half.watermark_after) == (0, 0, None)
        listed = bench.read(readings.partitions, at=moment).rows
        assert {row.status for row in listed} == {P.FETCHING_PAGES}
        assert {(row.records, row.pages, row.rescans, row.found_records) for row in listed} == {(None, None, 0, None)}
        assert sum(row.expected_records for row in listed) == 300
        (feed,) = bench.read(readings.feeds, at=moment).rows
        assert (feed.runs, feed.open_run) == (1, str(run.run_id))

        after = bench.read(readings.show, run=name, at=bench.clock.now())
        assert (after.status, after.records, after.share, after.ends_at) == (R.COMPLETED, 300, 1.0, run.completed_at)
        assert (after.completed_chunks, after.records_consolidated) == (run.completed_chunks, 300)
        (mark,) = bench.read(readings.watermark_show, at=bench.clock.now()).rows
        assert (mark.last_updated_at, mark.publication) == (run.window_to, UNPUBLISHED)

    harvested(ledger_url, source, test)


def test_what_was_not_there_then_is_refused(ledger_url):
    source = Catalogue(stones(60))

    async def test(bench: Bench) -> None:
        bench.clock.advance(60)
        run = await bench.harvest()
        bench.clock.advance(60)
        with pytest.raises(UnknownUnit, match=f"there was no run '{run.run_id}' at 2026-11-02T12:00:00.000Z"):
            bench.read(readings.show, run=str(run.run_id), at=START)
        with pytest.raises(UnknownUnit, match="there was no run"):
            bench.read(readings.partitions, run=str(run.run_id), at=START)
        with pytest.raises(
            UsageError, match=f"at 2026-11-02T11:00:00.000Z the ledger had no feed '{FEED}'; it had none"
        ):
            bench.read(readings.runs, feed=FEED, at=BEFORE)
        assert bench.read(readings.runs, feed=FEED, at=START).rows == []
        with pytest.raises(UsageError, match=f"no feed 'pearls'; it had {FEED}"):
            bench.read(readings.runs, feed="pearls", at=START)
        other = Birth(Schedule(name="often", job="prune", every="5m"), "with it", actor=Actor.SCHEDULER)
        bench.ledger.together([other], who="test", events=[advanced("pearls", "", START)])
        assert bench.read(readings.runs, feed="pearls", at=bench.clock.now()).rows == []
        assert "watermark" not in PAST, "which feeds had one is not sought in all events"
        with pytest.raises(UsageError, match="the past does not go on"):
            bench.read(readings.show, run=str(run.run_id), watch=True, at=START)
        assert readings.prices.no_past

    harvested(ledger_url, source, test)


def test_watermarks_are_told_with_their_publication(ledger_url, tmp_path):
    source = Catalogue(stones(60))
    blob = FileBlob(tmp_path / "watermark.json")

    async def test(bench: Bench) -> None:
        told: dict[datetime, Any] = {}

        def remember() -> None:
            now = bench.clock.now()
            told[now] = bench.read(readings.watermark_show).rows
            bench.clock.advance(60)

        def back() -> None:
            bench.do(operations.watermark_set, feed=FEED, moment=START, reason="again")
            remember()

        def published() -> None:
            publish(bench.ledger, FEED, blob)
            remember()

        async def run() -> None:
            bench.tick()
            await bench.settled()
            remember()

        remember()
        await run()
        published()
        back()
        published()
        await run()
        (tmp_path / "watermark.json").write_bytes(b"theirs")
        with pytest.raises(ForeignBlob):
            publish(bench.ledger, FEED, blob)
        remember()
        adopt(bench.ledger, FEED, blob, who="ada", reason="ours")
        remember()
        back()
        published()
        states = [rows[0].publication for rows in told.values() if rows]
        assert states == [
            *(UNPUBLISHED, PUBLISHED, UNPUBLISHED, PUBLISHED),
            *(UNPUBLISHED, CONFLICT, PUBLISHED, UNPUBLISHED, PUBLISHED),
        ]
        later = {moment: bench.read(readings.watermark_show, at=moment).rows for moment in told}
        *known, second, last = told
        assert {moment: later[moment] for moment in known} == {moment: told[moment] for moment in known}
        # It was published at that moment before, and is not told again.
        for moment in (second, last):
            unsure = {"publication": None, "published_at": None}
            assert later[moment] == [msgspec.structs.replace(told[moment][0], **unsure)]

    harvested(ledger_url, source, test)


def test_a_watermark_is_told_by_runs_where_events_are_gone(ledger_url):
    source = Catalogue(stones(60))

    async def test(bench: Bench) -> None:
        source.trouble = lambda *_: bench.clock.advance(1)
        run = await bench.harvest()
        bench.clock.advance(15 * 86_400)
        moment = bench.clock.now()
        live = all_asked(bench, [str(run.run_id)])
        bench.clock.advance(15 * 86_400)
        newest = instant_text((await bench.harvest()).completed_at)
        days = timedelta(days=20)
        ages = Ages({EVENTS: days, HISTORY: days, UNITS: None})
        assert Pruner(bench.ledger.database, ages, who="ada", rng=Rng(1)).prune()[EVENTS] == 1
        later = all_asked(bench, [str(run.run_id)], moment)
        (mark,), (before,) = later.pop(("watermark show", "")), live.pop(("watermark show", ""))
        assert mark == before | {"publication": None, "published_at": None}
        assert mark["last_updated_at"] == run.window_to
        assert later == live
        note = f"events before {newest} were pruned: where a watermark was set by hand is not told"
        assert bench.read(readings.watermark_show, at=moment).note == note
        assert bench.read(readings.watermark_show, at=bench.clock.now()).note is None
        with pytest.raises(UnknownUnit, match=r"there was no run .*; history before .* was pruned"):
            bench.read(readings.show, run=str(run.run_id), at=START)
        assert "was pruned" in bench.read(readings.runs, at=START).note

    harvested(ledger_url, source, test)


def test_a_repricing_is_told_as_it_stood(ledger_url):
    async def test(bench: Bench) -> None:
        counts = {"expected": 25, "records": 25, "changed": 7, "unpriced": 0, "status": "completed", "digest": "d"}
        ended = {"begun_at": START + timedelta(minutes=10), "finished_at": START + timedelta(minutes=20)}
        write = Write(harvest_reprice, [{"feed": FEED, **counts, **ended}])
        birth_products(bench.ledger, [], actor=Actor.SCHEDULER, who="test", writes=[write])
        bench.clock.advance(HOUR)
        rows = [bench.read(readings.feeds, at=START + timedelta(minutes=n)).rows for n in (5, 15, 25)]
        assert [row.prices for (row,) in rows] == [
            None,
            "repricing: 25 records",
            "repriced at 2026-11-02T12:20:00.000Z: 25 of 25 records, 7 prices changed",
        ]
        assert rows[2] == bench.read(readings.feeds).rows

    harvested(ledger_url, Catalogue([]), test)

"""Harvests as they stood: what was answered while they went on is what is answered of those moments later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.connectors.watermark import FileBlob, ForeignBlob
from penstock.lifecycles.harvest import operations, readings
from penstock.lifecycles.harvest.chunk.flow import Chunks
from penstock.lifecycles.harvest.events import CONFLICT, PUBLISHED, UNPUBLISHED
from penstock.lifecycles.harvest.feed import Span
from penstock.lifecycles.harvest.partition.machine import P
from penstock.lifecycles.harvest.run.consolidate import Consolidator
from penstock.lifecycles.harvest.run.machine import R, RunType
from penstock.lifecycles.harvest.watermark import adopt, publish
from penstock.model.errors import Transient, UnknownUnit, UsageError
from penstock.operations.declare import Page
from tests.support.consolidation import FEEDS
from tests.support.harvest import FEED, SCHEDULE, START, Bench, Catalogue, Stone, asking, on_bench, small, stones

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


def harvested(url: str, source: Catalogue, test: Any, **more: Any) -> None:
    """A bench that consolidates as the program does."""
    known = small(chunk_rows=60, **more)
    flows = {"consolidation": Consolidator(known, FEEDS), "more": [Chunks(known, FEEDS)]}
    on_bench(url, source, test, feed=FEEDS[FEED], settings=known, **flows)


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

    def while_(self, trouble: Callable[[str, Span, int], None]) -> Callable[[str, Span, int], None]:
        """The same trouble, and a record of every so many calls."""

        def called(what: str, span: Span, offset: int) -> None:
            self.calls += 1
            if self.calls % self.every == 0:
                self.record()
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


def test_what_was_told_of_a_moment_is_told_of_it_later(ledger_url, tmp_path):
    source = Catalogue(stones(400))
    blob = FileBlob(tmp_path / "watermark.json")

    async def test(bench: Bench) -> None:
        told = Recorder(bench, every=7)

        async def harvest(trouble: Callable[[str, Span, int], None]) -> Any:
            told.record()
            bench.clock.advance(HOUR)
            source.trouble = told.while_(trouble)
            run = await bench.harvest()
            told.record()
            return run

        first = await harvest(failing(2))
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
        second = await harvest(nothing)
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
        assert (await bench.settled()).forced_by == "ada"
        told.record()
        bench.do(operations.start, feed=FEED, full=True)
        source.trouble = told.while_(growing(source))
        fourth = await bench.settled()
        assert (fourth.status, fourth.run_type) == (R.COMPLETED, RunType.FULL)
        assert sum(p.rescans for p in bench.partitions()) > 0
        publish(bench.ledger, FEED, blob)
        told.record()
        bench.clock.advance(HOUR)
        bench.do(operations.start, feed=FEED, full=True)
        source.trouble = told.while_(cancelling(bench))
        assert (await bench.settled()).error == "cancelled by ada: enough"
        told.record()

        assert told.statuses("show") >= {R.WORKERS_RUNNING, R.COMPLETED, R.FAILED}
        assert told.statuses("partitions") >= {P.PENDING, P.IN_PROGRESS, P.FETCHING_PAGES, P.COMPLETED, P.FAILED}
        assert len(told.moments) > 25
        known, whole = told.compare()
        assert known > whole * 0.9

    harvested(ledger_url, source, test)

"""Harvests on a clock that the test owns: a real worker, and a catalogue in this process or a simulator on a socket."""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.app.app import App
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest import lifecycle
from penstock.lifecycles.harvest.feed import Configured, Consolidation, Feed, Source, Span, Window
from penstock.lifecycles.harvest.partition.flow import Partitions
from penstock.lifecycles.harvest.past import PAST
from penstock.lifecycles.harvest.run.flow import Runs
from penstock.lifecycles.harvest.run.machine import R, Run
from penstock.lifecycles.harvest.run.start import start_run
from penstock.lifecycles.harvest.settings import FeedSettings, HarvestSettings, schedule_of
from penstock.lifecycles.harvest.tables import diamonds, raw_diamonds_nivoda, watermark
from penstock.model.clock import Rng, VirtualClock, parse_instant
from penstock.model.machine import Actor
from penstock.model.outcome import Outcome, Write
from penstock.model.unit import Ref, replace
from penstock.operations.bulk.flow import BulkActions
from penstock.operations.carry import Done, Planned, carry_out, make_plan
from penstock.operations.declare import Ask, Operation, Reading
from penstock.operations.reader import Reader
from penstock.settings.typed import Secret
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Io
from penstock.worker.job import JobResult
from penstock.worker.schedule import Schedules
from penstock.worker.schedule_unit import Schedule
from penstock.worker.worker import Worker, WorkerSettings

START = datetime(2026, 11, 2, 12, tzinfo=UTC)
FEED = "stones"
GATE = "catalogue/stones"
JOB = "harvest"
SCHEDULE = Ref("schedule", schedule_of(FEED))
SMALL = {"target_records": 100, "least_records": 20, "full_workers": 6, "incremental_workers": 3}
_TABLES = ("run_metadata", "partition_progress", "harvest_chunk", "bulk_action", "schedule")
_APP = App(lifecycle)
ALL, TABLES = _APP.machines, _APP.data.tables
_PATIENT = 60.0
_ALONE = WorkerSettings(
    lease_ms=400 * 86_400_000,
    idle_seconds=0.01,
    watch_seconds=3_600,
    unknown_seconds=1e9,
    place_seconds=None,
    stop_seconds=1.0,
)


@dataclass(order=True)
class Stone:
    """A record: what it costs, which it is, and when it last changed."""

    price: int
    stone: str
    updated: datetime = field(compare=False, default=START - timedelta(days=30))
    note: str = field(compare=False, default="")

    def payload(self) -> str:
        return json.dumps({"id": f"offer-{self.stone}", "price": self.price, "note": self.note})


def small(*, paused: bool = False, feed: str = FEED, **more: Any) -> HarvestSettings:
    """Settings of one feed, with partitions and chunks as small as a test wants them."""
    own = FeedSettings(username="buyer@example.com", password=Secret("env", "NIVODA_PASSWORD"), paused=paused)
    return HarvestSettings(feeds={feed: own}, **SMALL | more)


Trouble = Callable[[str, Span, int], None]


@dataclass
class Catalogue:
    """A source in this process. `trouble` is asked before every call, and may raise or change the catalogue."""

    stones: list[Stone]
    trouble: Trouble = lambda *_: None
    calls: list[tuple[str, Span, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stones = sorted(self.stones)

    def put(self, *stones: Stone) -> None:
        names = {s.stone for s in stones}
        self.stones = sorted([*(s for s in self.stones if s.stone not in names), *stones])

    def drop(self, names: Iterable[str]) -> None:
        gone = set(names)
        self.stones = [s for s in self.stones if s.stone not in gone]

    def _within(self, window: Window, span: Span) -> Sequence[Stone]:
        first = bisect.bisect_left(self.stones, span.low, key=lambda s: s.price)
        last = len(self.stones)
        if span.high is not None:
            last = bisect.bisect_left(self.stones, span.high, key=lambda s: s.price)
        found = self.stones[first:last]
        if window.lower is None:
            return found
        return [s for s in found if window.lower <= s.updated and (window.upper is None or s.updated <= window.upper)]

    async def count(self, window: Window, span: Span) -> int:
        self.calls.append(("count", span, 0))
        self.trouble("count", span, 0)
        return len(self._within(window, span))

    async def page(self, window: Window, span: Span, offset: int, limit: int) -> Sequence[Any]:
        self.calls.append(("page", span, offset))
        self.trouble("page", span, offset)
        return self._within(window, span)[offset : offset + limit]

    async def close(self) -> None:
        pass

    def asked(self, what: str) -> int:
        return sum(1 for kind, _, _ in self.calls if kind == what)


def raw_row(stone: Stone) -> dict[str, Any]:
    payload = stone.payload()
    return {
        "supplier_stone_id": stone.stone,
        "offer_id": f"offer-{stone.stone}",
        "payload": payload,
        "payload_hash": hashlib.blake2b(payload.encode(), digest_size=16).hexdigest(),
        "source_updated_at": stone.updated,
    }


STONES = Feed(
    name=FEED,
    raw=raw_diamonds_nivoda,
    canonical=diamonds,
    identity="supplier_stone_id",
    raw_row=raw_row,
    map=json.loads,
    axis="price",
    lowest=0,
    highest=100_000,
    order={"type": "price", "direction": "ASC"},
)


def stones(number: int, *, seed: int = 1) -> list[Stone]:
    """A catalogue with many cheap records and few dear ones."""
    rng = Rng(seed)
    return [Stone(int(50 + 20_000 * rng.uniform(0, 1) ** 3), f"s{n:06d}") for n in range(number)]


class Shortly(Consolidation):
    """Stands where consolidation begins: it completes the run and writes its watermark, and consolidates nothing."""

    async def step(self, run: Run, io: Io) -> Outcome[Run]:
        now = io.now()
        if run.status is R.CONSOLIDATION_TRIGGERED:
            return Outcome(run, replace(run, status=R.CONSOLIDATING, due_at=now), "begins")
        after = run.watermark_before if run.forced_by else run.window_to
        mark = {"feed": run.feed, "last_updated_at": after, "last_run_id": run.run_id, "publication": "unpublished"}
        done = replace(run, status=R.COMPLETED, completed_at=now, watermark_after=after)
        return Outcome(run, done, "done", writes=[Write(watermark, [mark])] if after else ())


@dataclass
class Bench:
    """Everything a test needs: time moves in `until`, from one due moment to the next, and nowhere else."""

    ledger: Ledger
    clock: VirtualClock
    worker: Worker
    source: Any
    settings: HarvestSettings

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, **parameters)])

    def runs(self) -> list[Any]:
        ids = [row[0] for row in self.rows("SELECT unit_id FROM run_metadata")]
        found = self.ledger.get_many(self.ledger.machine("harvest_run"), ids) if ids else []
        return sorted(found, key=lambda run: run.started_at)

    def run(self) -> Any:
        return self.runs()[-1]

    def partitions(self) -> list[Any]:
        """Those of the last run."""
        ids = [row[0] for row in self.rows("SELECT unit_id FROM partition_progress")]
        found = self.ledger.get_many(self.ledger.machine("harvest_partition"), ids) if ids else []
        return sorted((p for p in found if p.run_id == self.run().run_id), key=lambda p: p.ordinal)

    def workers(self) -> list[tuple[Any, ...]]:
        """(partition, status, records, error) of the last run."""
        found = self.rows("SELECT run_id, partition_id, status, records_processed, error_message FROM worker_runs")
        return sorted(tuple(row[1:]) for row in found if str(row[0]) == str(self.run().run_id))

    def raw(self) -> dict[str, str]:
        """What was fetched by the last run: record to payload."""
        found = self.rows("SELECT run_id, supplier_stone_id, payload FROM raw_diamonds_nivoda")
        return {stone: _text(payload) for run, stone, payload in found if str(run) == str(self.run().run_id)}

    def edges(self, machine: str, unit_id: str) -> list[str]:
        found = self.rows(
            "SELECT from_status, to_status FROM transition_log WHERE machine = :machine AND unit_id = :unit"
            " ORDER BY seq",
            machine=machine,
            unit=unit_id,
        )
        return [target for source, target in found if source != target]

    def alerts(self) -> list[tuple[str, str | None]]:
        return [(k, s) for k, s in self.rows("SELECT event_type, severity FROM event_log ORDER BY event_key")]

    def plan(self, operation: Operation[Any], **asked: Any) -> Planned:
        return planned(self.ledger, self.settings, operation, **asked)

    def do(self, operation: Operation[Any], **asked: Any) -> Done:
        return done(self.ledger, self.settings, operation, **asked)

    def read(self, reading: Reading[Any], **asked: Any) -> Any:
        return read(self.ledger, self.settings, reading, **asked)

    def tick(self) -> None:
        """The schedule's moment has come."""
        self.ledger.nudge([SCHEDULE])

    async def settled(self, *, within: timedelta = timedelta(hours=2)) -> Any:
        """Let time pass until the last run rests; the run."""
        end = self.clock.now() + within
        while True:
            await self.quiet()
            coming = self._next()
            if coming is None or coming > end:
                break
            self._move_to(coming)
        return self.run()

    async def harvest(self) -> Any:
        """One tick, and all that comes of it."""
        self.tick()
        return await self.settled()

    async def quiet(self) -> None:
        """Wait, in real time, until nothing is claimed and nothing is due behind an open gate."""
        async with asyncio.timeout(_PATIENT):
            calm = 0
            while calm < 3:
                calm = 0 if self._busy() else calm + 1
                await asyncio.sleep(0.003)

    def _move_to(self, moment: datetime) -> None:
        self.clock.advance((moment - self.clock.now()).total_seconds())

    def _busy(self) -> bool:
        now = self.ledger.database.now_sql
        for table in _TABLES:
            sql = (
                f"SELECT 1 FROM {table} u JOIN gate g ON g.gate_id = u.gate_id WHERE"
                f" u.claimed_by IS NOT NULL OR (u.due_at <= {now} AND u.parked_at IS NULL AND g.held_by IS NULL"
                f" AND (g.closed_until IS NULL OR g.closed_until <= {now})"
                f" AND (g.next_at IS NULL OR g.next_at <= {now})) LIMIT 1"
            )
            if self.rows(sql, **self.ledger.database.bind_now()):
                return True
        return False

    def _next(self) -> datetime | None:
        """The next moment of anything but the schedule: a tick is the test's to give."""
        now = self.ledger.database.now_sql
        parts = [
            f"SELECT min(u.due_at) AS at FROM {table} u WHERE u.parked_at IS NULL AND u.due_at > {now}"
            for table in _TABLES[:-1]
        ]
        parts += [
            f"SELECT min({c}) FROM gate WHERE {c} > {now} AND held_by IS NULL" for c in ("closed_until", "next_at")
        ]
        # A scan that found its gate closed waits until it opens.
        parts.append(f"SELECT min(due_at) FROM schedule WHERE due_at > {now} AND change_reason LIKE '%closed%'")
        sql = f"SELECT min(at) FROM ({' UNION ALL '.join(parts)}) AS moments"
        ((found,),) = self.rows(sql, **self.ledger.database.bind_now())
        return parse_instant(found) if isinstance(found, str) else found


def asking(ledger: Ledger, settings: HarvestSettings, *, who: str = "ada", reason: str = "because") -> Ask[Any]:
    """What a reading or an operation is asked with, now."""
    return Ask(Reader(ledger.database, ledger.machines.values(), PAST), settings, ledger.clock.now(), who, reason)


def planned(ledger: Ledger, settings: HarvestSettings, operation: Operation[Any], **asked: Any) -> Planned:
    """What an operation would do; `who` and `reason` are taken out of what it is asked with."""
    ask = asking(ledger, settings, **{n: asked.pop(n) for n in ("who", "reason") if n in asked})
    return make_plan(operation, ask, operation.parameters(**asked), owner="harvest", version="test")


def done(ledger: Ledger, settings: HarvestSettings, operation: Operation[Any], **asked: Any) -> Done:
    """Plan an operation and carry it out; a bulk action is left to the workers."""
    ask = asking(ledger, settings, **{n: asked[n] for n in ("who", "reason") if n in asked})
    return carry_out(ledger, ask, planned(ledger, settings, operation, **asked))


def read(ledger: Ledger, settings: HarvestSettings, reading: Reading[Any], **asked: Any) -> Any:
    """What a reading answers."""
    return reading(asking(ledger, settings), reading.parameters(**asked))


def _text(payload: Any) -> str:
    return payload if isinstance(payload, str) else json.dumps(payload)


@contextlib.asynccontextmanager
async def bench(
    url: str,
    source: Source,
    *,
    feed: Feed = STONES,
    settings: HarvestSettings | None = None,
    consolidation: Consolidation | None = None,
    metered: bool = False,
    more: Sequence[Any] = (),
    clock: VirtualClock | None = None,
) -> AsyncIterator[Bench]:
    """A worker on a ledger with the feed's schedule, whose ticks are the test's."""
    clock = clock or VirtualClock(START)
    known = settings or small(feed=feed.name)
    feeds = {feed.name: Configured(feed, source, f"catalogue/{feed.name}", metered=metered)}
    ledger = Ledger.open(url, ALL, clock=clock, rng=Rng(7), create=True, data_tables=TABLES)

    async def job(schedule: Schedule, io: Io) -> JobResult:
        return await start_run(feeds[str((schedule.settings or {})["feed"])], known, io)

    flows = [
        Runs(known, consolidation or Shortly()),
        Partitions(known, feeds),
        Schedules({JOB: job}),
        BulkActions(),
        *more,
    ]
    worker = Worker(ledger, flows, _ALONE, executor=InlineExecutor())
    with ledger:
        own = Schedule(name=schedule_of(feed.name), job=JOB, at=["03:00"], settings={"feed": feed.name})
        ledger.birth([own], actor=Actor.SCHEDULER, who="test", if_absent=True)
        running = asyncio.create_task(worker.run())
        try:
            yield Bench(ledger, clock, worker, source, known)
        finally:
            worker.stop()
            await running


def on_bench(url: str, source: Source, test: Callable[[Bench], Awaitable[None]], **options: Any) -> None:
    """Run a test on a bench."""

    async def main() -> None:
        async with bench(url, source, **options) as made:
            await test(made)

    asyncio.run(main())

"""A year of queries on virtual time, with troubles: the ledger, the worker, the connector and the providers are real.

`python -m tests.support.query_year [DAYS] [SEED]` runs one and says what it took.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from penstock.app.app import App
from penstock.connectors.http.in_process import InProcess
from penstock.connectors.infojobs.client import InfoJobs
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.queries import gates, lifecycle
from penstock.lifecycles.queries.flow import Queries
from penstock.lifecycles.queries.jobs import keep_queries
from penstock.lifecycles.queries.offer_store import OfferStore
from penstock.lifecycles.queries.settings import InfojobsSettings, QueriesSettings, QuerySettings
from penstock.lifecycles.queries.sources import Source
from penstock.model.clock import Clock, Rng, VirtualClock
from penstock.model.simulation import simulate
from penstock.settings.secret import Secret
from penstock.simulators.infojobs import InfoJobsSimulator
from penstock.simulators.infojobs_data import Market
from penstock.worker.executor import InlineExecutor
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.query_world import Journal, Provider, Skewed, Troubles, Window, jumps, outages

START = datetime(2026, 1, 1, tzinfo=UTC)
PAUSE = timedelta(hours=4)
QUERIES = {"one": ("python", "datos", "enfermería"), "two": ("camarero", "contable")}
"""What is asked of which client. Some offers are found by queries of both."""
CAPPED = "two"
CAP = 150
"""The second client lists no more than so many offers."""
QUIET = timedelta(days=2)
"""At the end nothing goes wrong for so long."""
SECRET_NAME = "SIMULATED_INFOJOBS_SECRET"
_LATE = timedelta(hours=1)
_EARLY = 60.0
"""So many seconds before the lease of a killed worker ends, one in ten of its successors comes, and waits for that."""
_HISTORY = timedelta(days=60)
_KEEP_SECONDS = 4 * 3_600.0
_LATENCY = 0.4
# Nobody else is there, and a year is to pass in a minute: renewals would take most of it.
_SETTINGS = WorkerSettings(
    lease_ms=3_600_000,
    renew_seconds=3_000.0,
    watch_seconds=1_800.0,
    idle_seconds=None,
    unknown_seconds=1e9,
    place_seconds=None,
)
# Where another is there, it takes over soon.
_SOON = replace(_SETTINGS, lease_ms=300_000, renew_seconds=200.0)


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that ended, by the true time, as its line in the log tells it."""

    at: datetime
    query: str
    status: str
    stopped_by: str
    error: str | None


@dataclass(slots=True)
class Year:
    """Everything that there is to look at when it is over."""

    ledger: Ledger
    settings: QueriesSettings
    clock: VirtualClock
    providers: dict[str, Provider]
    journal: Journal
    ended: list[Ended] = field(default_factory=list)
    killed: int = 0
    jumps: Sequence[Window] = ()
    #: What the audit has found out of what there was to be found, by query.
    listed: dict[str, Any] = field(default_factory=dict)
    #: What the runs took, in seconds: by the wall clock, and of the processor.
    seconds: float = 0.0
    processor: float = 0.0

    def rows(self, sql: str, **given: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.ledger.read(lambda cursor: cursor.rows(sql, **given))]


@contextlib.contextmanager
def lived(
    url: str, days: float, seed: int, *, workers: int = 1, troubles: Troubles | None = None, rate: float = 0.3
) -> Iterator[Year]:
    """A ledger after so many days. The same seed comes to the same."""
    true = VirtualClock(START)
    skewed = Skewed(true)
    # A file has this machine's time, which jumps; a server has its own.
    ledger_clock: Clock = skewed if url.startswith("sqlite") else true
    app = App(lifecycle)
    rng = Rng(seed)
    settings = _settings()
    os.environ[SECRET_NAME] = "simulated-secret"
    opened = Ledger.open(
        url,
        app.machines,
        clock=ledger_clock,
        rng=rng.child(),
        create=True,
        data_tables=app.data.tables,
        views=app.data.views,
    )
    with opened as ledger:
        ledger.gates.providers = tuple(gates(settings))
        year = Year(ledger, settings, true, {}, Journal())
        _build(year, rng, troubles or Troubles(), seed=seed, rate=rate, days=days)
        life = _Life(year, skewed, workers)
        with _listening(year):
            began, used = time.perf_counter(), time.process_time()
            simulate(true, lambda: life.live(days * 86_400))
            year.seconds, year.processor = time.perf_counter() - began, time.process_time() - used
        yield year


def _settings() -> QueriesSettings:
    client = InfojobsSettings(
        client_id="simulated-client",
        client_secret=Secret("env", SECRET_NAME),
        page_size=20,
        requests_per_second=0,
    )
    return QueriesSettings(
        pause=PAUSE,
        horizon=timedelta(days=30),
        max_pages=15,
        infojobs=dict.fromkeys(QUERIES, client),
        queries={
            word: QuerySettings(client=name, parameters={"q": word})
            for name, words in QUERIES.items()
            for word in words
        },
    )


def _build(year: Year, rng: Rng, troubles: Troubles, *, seed: int, rate: float, days: float) -> None:
    seconds = days * 86_400 - QUIET.total_seconds()
    share = days / 365
    for name in QUERIES:
        market = Market(START, seed=seed, history=_HISTORY, rate=rate, bad=0.003, late=_LATE)
        simulator = InfoJobsSimulator(year.clock, market, latency=_LATENCY, most_offers=CAP if name == CAPPED else None)
        provider = Provider(name, simulator, year.journal, rng.child(), troubles)
        provider.outages = outages(rng.child(), round(troubles.outages * share), seconds)
        provider.quiet_from = seconds
        year.providers[name] = provider
    year.jumps = jumps(rng.child(), max(1, round(troubles.jumps * share)) if troubles.jumps else 0, seconds)


class _Life:
    """Workers that are killed and replaced, and a clock that is set."""

    def __init__(self, year: Year, clock: Skewed, workers: int) -> None:
        self._year, self._clock, self._workers = year, clock, workers
        self._settings = _SETTINGS if workers == 1 else _SOON
        self._working: dict[int, Worker] = {}

    async def live(self, seconds: float) -> None:
        members = [asyncio.create_task(self._member(number)) for number in range(self._workers)]
        others = [asyncio.create_task(self._keep()), asyncio.create_task(self._jump())]
        over = asyncio.create_task(asyncio.sleep(seconds))
        done, _ = await asyncio.wait([*members, *others, over], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        assert over.done(), "somebody ended before the time"
        for task in others:
            task.cancel()
        for worker in self._working.values():
            worker.stop()
        done, _ = await asyncio.wait(members, timeout=10 * self._settings.lease_ms / 1_000)
        assert len(done) == len(members), "a worker does not stop"
        await asyncio.gather(*others, return_exceptions=True)

    async def _member(self, number: int) -> None:
        """One worker after another; each has connections of its own, and nothing else of the one before it."""
        while True:
            killed = asyncio.Event()
            worker = self._working[number] = Worker(
                self._year.ledger, [self._flow(killed)], self._settings, executor=InlineExecutor()
            )
            running = asyncio.create_task(worker.run())
            dying = asyncio.create_task(killed.wait())
            await asyncio.wait([running, dying], return_when=asyncio.FIRST_COMPLETED)
            if not killed.is_set():
                dying.cancel()
                return running.result()
            # Cancelled, it gives nothing back: what it held stays claimed until its lease has ended.
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            self._year.killed += 1
            # Mostly the next one comes when the lease has ended; waiting for that, it looks every second.
            early = self._year.killed % 10 == 1
            await asyncio.sleep(max(0.0, self._lease_left() - _EARLY) if early else self._settings.lease_ms / 1_000)

    def _lease_left(self) -> float:
        database = self._year.ledger.database
        sql = f"SELECT max({database.lease_left_sql}) FROM worker WHERE reaped_at IS NULL"
        return float(self._year.rows(sql, **database.bind_now())[0][0] or 0.0)

    def _flow(self, killed: asyncio.Event) -> Queries:
        settings, sources = self._year.settings, {}
        for name, provider in self._year.providers.items():
            own = settings.infojobs[name]
            transport = InProcess(_Line(provider, killed))
            client = InfoJobs(
                "http://infojobs",
                own.client_id,
                own.client_secret,
                self._clock,
                page_size=own.page_size,
                transport=transport,
            )
            sources[name] = Source(client, OfferStore(settings.repost_within))
        return Queries(settings, sources)

    async def _keep(self) -> None:
        """What the schedule does every minute; here it is enough now and then, and after every jump."""
        while True:
            self.keep()
            await asyncio.sleep(_KEEP_SECONDS)

    def keep(self) -> None:
        keep_queries(self._year.ledger, self._year.settings, self._year.ledger.clock.now(), "schedule")
        for worker in self._working.values():
            worker.poke()

    async def _jump(self) -> None:
        for window in self._year.jumps:
            await asyncio.sleep(window.start - self._clock.elapsed())
            self._clock.skew = window.skew
            self.keep()
            await asyncio.sleep(window.end - self._clock.elapsed())
            self._clock.skew = timedelta()
            self.keep()
        await asyncio.get_running_loop().create_future()


class _Line:
    """The way of one worker to a provider: a kill on it ends this worker."""

    def __init__(self, provider: Provider, killed: asyncio.Event) -> None:
        self._provider, self._killed = provider, killed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self._provider.kill = self._killed.set
        await self._provider(scope, receive, send)


@contextlib.contextmanager
def _listening(year: Year) -> Iterator[None]:
    """Hear what the log says of runs, and nothing else."""

    def hear(_: Any, __: str, said: Any) -> Any:
        if said.get("event") == "queries.run":
            end = (said["query"], said["status"], said["stopped_by"], said["error"])
            year.ended.append(Ended(year.clock.now(), *end))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[hear], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        yield
    finally:
        structlog.configure(**before)


def main() -> None:
    from tests.support.postgres import in_memory
    from tests.support.query_audit import digest, findings

    days, seed = float(sys.argv[1]) if len(sys.argv) > 1 else 365.0, int(sys.argv[2]) if len(sys.argv) > 2 else 1
    url = "sqlite:///{}/penstock.db"
    with tempfile.TemporaryDirectory(dir=in_memory()) as folder, lived(url.format(folder), days, seed) as year:
        counts = year.rows("SELECT status, stopped_by, count(*) FROM ingestion_runs GROUP BY 1, 2 ORDER BY 1, 2")
        lines = [
            f"{days:g} days, seed {seed}: {sum(row[2] for row in counts):,} runs, {year.killed} kills",
            f"{year.seconds:.1f} s, {year.processor:.1f} s of the processor",
            *(f"  {status} {stop}: {count:,}" for status, stop, count in counts),
            f"troubles: {dict(year.journal.troubles)}; calls: {len(year.journal.calls):,}",
            f"digest {digest(year)}",
            *findings(year),
        ]
        sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

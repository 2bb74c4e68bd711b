"""Reports on a clock that the test owns: a real worker, the real connector, Amazon's simulator on a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from penstock.connectors.amazon_ads.client import Amazon, Region
from penstock.connectors.amazon_ads.stream import AmazonStream
from penstock.connectors.http.download import Allowed
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports.datasets import LIKE, Window, columns_of, datasets
from penstock.lifecycles.reports.flow import Reports
from penstock.lifecycles.reports.machine import Aggregation, EntityType, Report, machine
from penstock.lifecycles.reports.settings import Account, ReportSettings
from penstock.lifecycles.reports.sources import Source
from penstock.lifecycles.reports.tables import DATA_TABLES, VIEWS
from penstock.model.clock import Rng, VirtualClock, parse_instant
from penstock.model.machine import Actor
from penstock.model.unit import Ref, replace, unit_id_of
from penstock.raw.sink import RawSink
from penstock.settings.typed import TimeZone
from penstock.simulators.amazon_ads import AmazonAdsSimulator
from penstock.simulators.server import serving
from penstock.worker.executor import InlineExecutor
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.amazon import secrets

START = datetime(2026, 11, 2, 12, tzinfo=UTC)
DAY = date(2026, 11, 1)
ACCOUNTS = {
    "acme": Account(profile_id="1001", country="ES", time_zone=TimeZone("Europe/Madrid")),
    "globex": Account(profile_id="1002", country="US", time_zone=TimeZone("America/Los_Angeles")),
}
ACME = {"acme": ACCOUNTS["acme"]}
REF = Ref("report", "acme/2026-11-01/daily/target")
_PATIENT = 60.0
_ALONE = WorkerSettings(
    lease_ms=400 * 86_400_000, idle_seconds=0.01, watch_seconds=3_600, unknown_seconds=1e9, place_seconds=None
)


@dataclass
class Bench:
    """Everything a test needs: time moves in `until`, from one due moment to the next, and nowhere else."""

    folder: Path
    ledger: Ledger
    clock: VirtualClock
    simulator: AmazonAdsSimulator
    settings: ReportSettings
    flow: Reports
    worker: Worker

    def unit(self, ref: Ref = REF) -> Any:
        return self.ledger.get(ref)

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, **parameters)])

    def history(self, ref: Ref = REF) -> list[tuple[Any, ...]]:
        """(from, to, reason) of every logged change, oldest first."""
        return self.rows(
            "SELECT from_status, to_status, reason FROM transition_log"
            " WHERE machine = 'report' AND unit_id = :unit_id ORDER BY seq",
            unit_id=ref.unit_id,
        )

    def edges(self, ref: Ref = REF) -> list[tuple[str, str]]:
        return [(source, target) for source, target, _ in self.history(ref) if source is not None and source != target]

    def alerts(self) -> list[tuple[str, str]]:
        return [
            (kind, str(payload))
            for kind, payload in self.rows("SELECT event_type, payload FROM event_log ORDER BY event_key")
        ]

    async def until(self, moment: datetime) -> None:
        """Let the worker do all that falls due until then."""
        while True:
            await self.quiet()
            coming = self._next()
            if coming is None or coming > moment:
                break
            self._move_to(coming)
        self._move_to(moment)
        await self.quiet()

    async def next(self) -> None:
        """Let the worker do what falls due next."""
        await self.quiet()
        coming = self._next()
        assert coming is not None, "nothing is scheduled"
        self._move_to(coming)
        await self.quiet()

    async def quiet(self) -> None:
        """Wait, in real time, until nothing is claimed and nothing is due behind an open gate."""
        async with asyncio.timeout(_PATIENT):
            calm = 0
            while calm < 3:  # a unit that has just been given back is due at once
                calm = 0 if self._busy() else calm + 1
                await asyncio.sleep(0.005)

    def _move_to(self, moment: datetime) -> None:
        self.clock.advance((moment - self.clock.now()).total_seconds())

    def _busy(self) -> bool:
        now = self.ledger.database.now_sql
        sql = (
            "SELECT 1 FROM report_dataset_metadata u JOIN gate g ON g.gate_id = u.gate_id WHERE"
            f" u.claimed_by IS NOT NULL OR (u.next_refresh_at <= {now} AND u.parked_at IS NULL AND g.held_by IS NULL"
            f" AND (g.closed_until IS NULL OR g.closed_until <= {now})"
            f" AND (g.next_at IS NULL OR g.next_at <= {now})) LIMIT 1"
        )
        return bool(self.rows(sql, **self.ledger.database.bind_now()))

    def _next(self) -> datetime | None:
        now = self.ledger.database.now_sql
        sql = (
            "SELECT min(at) FROM (SELECT min(u.next_refresh_at) AS at FROM report_dataset_metadata u JOIN gate g ON"
            f" g.gate_id = u.gate_id WHERE u.parked_at IS NULL AND g.held_by IS NULL AND u.next_refresh_at > {now}"
            f" UNION ALL SELECT min(closed_until) FROM gate WHERE closed_until > {now} AND held_by IS NULL"
            f" UNION ALL SELECT min(next_at) FROM gate WHERE next_at > {now} AND held_by IS NULL) AS moments"
        )
        ((found,),) = self.rows(sql, **self.ledger.database.bind_now())
        return parse_instant(found) if isinstance(found, str) else found


def dataset(
    name: str = "acme",
    account: Account | None = None,
    *,
    day: date = DAY,
    aggregation: Aggregation = Aggregation.DAILY,
    entity: EntityType = EntityType.TARGET,
    settings: ReportSettings | None = None,
    hour: datetime | None = None,
    **fields: Any,
) -> Report:
    """One dataset as the job would make it."""
    known, account = settings or ReportSettings(), account or ACCOUNTS[name]
    within = Window(hour, hour) if aggregation is Aggregation.HOURLY else Window(day, day)
    (columns,) = datasets(within, aggregation, account.time_zone, known, [entity])
    (own,) = columns_of({name: account}, aggregation)
    return replace(LIKE, time_zone=account.time_zone, **own, **columns, **fields)


@contextlib.asynccontextmanager
async def bench(
    url: str,
    folder: Path,
    *units: Report,
    settings: ReportSettings | None = None,
    stream: str | None = "stream",
    **simulated: Any,
) -> AsyncIterator[Bench]:
    """A worker on the ledger with those datasets, and the simulator behind it; `stream` is where hours come from."""
    clock = VirtualClock(START)
    simulator = AmazonAdsSimulator(clock, **simulated)
    known = settings or ReportSettings(accounts=ACCOUNTS)
    sink = RawSink(folder / "raw", rng=Rng(3))
    ledger = Ledger.open(url, [machine], clock=clock, rng=Rng(7), create=True, data_tables=DATA_TABLES, views=VIEWS)
    async with serving(simulator) as address:
        allowed = Allowed((), (urlsplit(address).netloc,))
        amazon = Amazon(Region(address, f"{address}/auth/o2/token"), clock, downloads=allowed)
        credentials = secrets(folder, simulator)
        sources = {
            name: Source(
                amazon.profile(account.profile_id, credentials),
                None if stream is None else AmazonStream(folder / stream, account.profile_id, clock),
            )
            for name, account in ACCOUNTS.items()
        }
        flow = Reports(known, sources, sink, close=[amazon])
        worker = Worker(ledger, [flow], _ALONE, executor=InlineExecutor())
        with ledger:
            ledger.birth(units, actor=Actor.SCHEDULER, who="test")
            running = asyncio.create_task(worker.run())
            try:
                yield Bench(folder, ledger, clock, simulator, known, flow, worker)
            finally:
                worker.stop()
                await running


def on_bench(url: str, folder: Path, test: Callable[[Bench], Awaitable[None]], *units: Report, **options: Any) -> None:
    """Run a test on a bench; with no datasets named, on one of acme's."""

    async def main() -> None:
        async with bench(url, folder, *(units or (dataset(),)), **options) as made:
            await test(made)

    asyncio.run(main())


def days(number: float) -> timedelta:
    return timedelta(days=number)


def ref_of(report: Report) -> Ref:
    return Ref("report", unit_id_of(report))

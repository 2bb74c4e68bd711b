"""A spreadsheet of Google's that is really a simulator in this process, and a ledger of companies and offers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.connectors.google_sheets.client import GoogleSheets
from penstock.connectors.http.in_process import InProcess
from penstock.lifecycles.queries.settings import QueriesSettings, SheetSettings
from penstock.lifecycles.queries.sheet_calls import gates
from penstock.lifecycles.queries.sheet_job import schedule
from penstock.lifecycles.queries.sheet_ranges import KEY
from penstock.lifecycles.queries.sheets import sync
from penstock.lifecycles.queries.tables import companies, offers
from penstock.model.clock import Rng, VirtualClock
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from penstock.model.simulation import simulate
from penstock.model.unit import Ref, replace
from penstock.settings.secret import Secret
from penstock.simulators.google_grids import Grid
from penstock.simulators.google_sheets import SPREADSHEET, GoogleSheetsSimulator
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Io
from penstock.worker.job import JobResult
from penstock.worker.schedule import Schedules
from penstock.worker.schedule_unit import Schedule
from penstock.worker.schedule_unit import machine as schedules
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.queries import open_ledger

START = datetime(2026, 11, 15, 2, 30, tzinfo=UTC)  # half past three in Madrid
ADDRESS = "http://127.0.0.1:1"
GATE = f"google_sheets/{SPREADSHEET}"
_FOREVER = 1e9


class Sheets:
    """One ledger and one spreadsheet, on virtual time."""

    def __init__(self, url: str, folder: Path, *, start: datetime = START, **settings: Any) -> None:
        self.time = VirtualClock(start)
        self.ledger = open_ledger(url, self.time)
        self.simulator = GoogleSheetsSimulator(self.time)
        key = folder / "key.json"
        key.write_text(self.simulator.key(ADDRESS))
        settings = {"every": timedelta(minutes=30), **settings}
        own = SheetSettings(spreadsheet_id=SPREADSHEET, credentials=Secret("file", str(key)), **settings)
        self.settings = QueriesSettings(sheet=own)
        self.results: list[JobResult] = []
        # One for all runs: to read a key takes longer than a whole run.
        self.sheet = GoogleSheets(ADDRESS, own.credentials, self.time, transport=InProcess(self.simulator))
        wanted = schedule(self.settings)
        assert wanted is not None
        self.ledger.birth([replace(wanted, due_at=start)], actor=Actor.SCHEDULER, who="test", if_absent=True)

    def close(self) -> None:
        self.ledger.close()

    def company(self, key: str, **columns: Any) -> None:
        row = {
            "company_key": key,
            "name": key.upper(),
            "cities": ["Madrid", "Vigo"],
            "offers_open": 2,
            "offers_total": 3,
            "first_seen_at": START,
            "last_seen_at": START,
            "erased_at": None,
            **columns,
        }
        self.ledger.write([Write(companies, [row])])

    def offer(self, *ids: str, client: str = "infojobs", **columns: Any) -> None:
        rows = [
            {
                **dict.fromkeys(column.name for column in offers.columns),
                "client": client,
                "offer_id": one,
                "title": f"Title {one}",
                "company": "Acme",
                "city": "Madrid",
                "updated_at": START,
                "content_hash": "1",
                "first_seen_at": START,
                "last_seen_at": START,
                **columns,
            }
            for one in ids
        ]
        for start in range(0, len(rows), 1_000):
            self.ledger.write([Write(offers, rows[start : start + 1_000])])

    def work(self, seconds: float = 60, *, nudge: bool = True) -> None:
        """Let the job tick now, and a worker run for so much virtual time."""
        if nudge:
            self.ledger.nudge([Ref("schedule", "queries-sheet")])
        chosen = WorkerSettings(
            lease_ms=4_000 * 86_400_000,
            renew_seconds=_FOREVER,
            idle_seconds=None,
            watch_seconds=max(10.0, seconds / 60),
            unknown_seconds=_FOREVER,
            place_seconds=None,
        )
        self.ledger.gates.providers = gates(self.settings)

        async def main() -> None:
            worker = Worker(
                self.ledger, [Schedules({"sync-sheet": self._sync})], chosen, executor=InlineExecutor(), rng=Rng(7)
            )
            running = asyncio.create_task(worker.run())
            ended, _ = await asyncio.wait([running], timeout=seconds)
            worker.stop()
            await running
            assert not ended, "the worker stopped by itself"

        simulate(self.time, main)

    async def _sync(self, schedule: Schedule, io: Io) -> JobResult:
        self.results.append(await sync(self.settings, io, self.sheet))
        return self.results[-1]

    # What came of it.

    @property
    def said(self) -> str:
        """What the last synchronisation came to."""
        return self.results[-1].reason

    def grid(self, tab: str = "Offers") -> Grid:
        return self.simulator.grid(tab)

    def rows(self, tab: str = "Offers") -> list[dict[str, Any]]:
        """The rows below the header, by header."""
        header, *rest = self.grid(tab).values() or [[]]
        return [dict(zip(header, [*row, *([""] * len(header))], strict=False)) for row in rest]

    def keys(self, tab: str = "Offers") -> list[str]:
        return [row[KEY] for row in self.rows(tab) if row[KEY]]

    def schedule(self) -> Schedule:
        (found,) = self.ledger.get_many(schedules, ["queries-sheet"])
        assert isinstance(found, Schedule)
        return found

    def feedback(self) -> dict[tuple[str, str], str]:
        return {(kind, key): text for kind, key, text in self.query("SELECT kind, key, text FROM feedback")}

    def events(self, kind: str) -> list[tuple[str, str | None]]:
        sql = "SELECT event_key, severity FROM event_log WHERE event_type = :kind ORDER BY event_key"
        return [(key, severity) for key, severity in self.query(sql, kind=kind)]

    def query(self, sql: str, **given: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, **given)])


@contextmanager
def sheets(url: str, folder: Path, **options: Any) -> Iterator[Sheets]:
    """A ledger and a spreadsheet, closed at the end."""
    made = Sheets(url, folder, **options)
    try:
        yield made
    finally:
        made.close()

"""The hours in which the spreadsheet is used: no call leaves outside of them, whatever daylight saving does."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.app.app import App
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.queries.settings import QueriesSettings, SheetSettings
from penstock.lifecycles.queries.sheet_job import schedule, sync_sheet
from penstock.model.clock import Rng, SystemClock
from penstock.settings.typed import Hours, Secret, TimeZone, Url
from penstock.simulators.google_sheets import SPREADSHEET, Fault, GoogleSheetsSimulator
from penstock.simulators.server import serving
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Io
from penstock.worker.gates import WorkerGates
from penstock.worker.job import JobResult
from tests.support.sheets import START, Sheets, sheets


@pytest.fixture
def made(queries_file: Path, tmp_path: Path):
    """Makes a world that begins at some moment, with hours of its own."""

    @contextmanager
    def make(start: datetime, **settings: object) -> Iterator[Sheets]:
        shutil.copy(queries_file, tmp_path / "penstock.db")
        with sheets(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path, start=start, **settings) as world:
            yield world

    return make


def watched(world: Sheets) -> list[datetime]:
    """The moments of all calls from now on."""
    moments: list[datetime] = []
    world.simulator.before = lambda operation: moments.append(world.time.now())
    return moments


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]


NIGHTS = {
    # Clocks go from 02:00 to 03:00, which is 01:00 UTC.
    "march": ("03:00-06:00", utc(2026, 3, 28, 20), utc(2026, 3, 29, 1), utc(2026, 3, 29, 4)),
    "march, opens in the gap": ("02:30-04:00", utc(2026, 3, 28, 20), utc(2026, 3, 29, 1), utc(2026, 3, 29, 2)),
    # Clocks go from 03:00 to 02:00, which is 01:00 UTC.
    "october": ("03:00-06:00", utc(2026, 10, 24, 20), utc(2026, 10, 25, 2), utc(2026, 10, 25, 5)),
    "october, opens twice": ("02:30-04:00", utc(2026, 10, 24, 20), utc(2026, 10, 25, 0, 30), utc(2026, 10, 25, 3)),
    "winter": ("03:00-06:00", utc(2026, 1, 10, 20), utc(2026, 1, 11, 2), utc(2026, 1, 11, 5)),
    "summer": ("03:00-06:00", utc(2026, 7, 10, 20), utc(2026, 7, 11, 1), utc(2026, 7, 11, 4)),
    "over midnight": ("23:00-01:00", utc(2026, 7, 10, 12), utc(2026, 7, 10, 21), utc(2026, 7, 10, 23)),
}


@pytest.mark.parametrize("night", NIGHTS)
def test_calls_are_made_inside_the_window_alone(made, night):
    hours, start, opens, closes = NIGHTS[night]
    with made(start, hours=Hours(hours), every=timedelta(minutes=10), requests_per_minute=0.0) as world:
        world.company("acme")
        moments = watched(world)
        world.work(12 * 3600)  # the first tick is asked for outside of the window, and finds it closed
        assert world.results[0].reason == "the window closed"
        assert world.query("SELECT count(*) FROM sheet_state") == [(1,)]
        assert opens <= min(moments) < opens + timedelta(minutes=11)
        assert closes - timedelta(minutes=11) < max(moments) < closes
        ticks = {moment.replace(second=0, microsecond=0) for moment in moments}
        assert len(ticks) == (closes - opens) / timedelta(minutes=10)


def test_outside_of_the_window_nobody_is_called(made):
    with made(utc(2026, 11, 15, 12)) as world:
        world.company("acme")
        world.work(600)
        assert world.said == "the window closed"
        assert sum(world.simulator.counted.values()) == 0
        assert world.query("SELECT * FROM sheet_state") == []


def test_a_window_that_closes_in_the_middle_ends_kindly_and_the_next_night_goes_on(made):
    closes = utc(2026, 11, 15, 5)
    with made(closes - timedelta(seconds=60), requests_per_minute=30.0) as world:
        world.offer(*(f"{number:05}" for number in range(3_000)))
        moments = watched(world)
        world.work(180)
        added = len(world.keys())
        assert 500 <= added < 3_000
        assert world.said.startswith(f"the window closed; {3_000 - added:,} rows are left ({added:,} rows added")
        assert max(moments) < closes
        assert world.schedule().failures == 0
        assert world.events("queries.sheet_failed") == []
        world.work(86_400, nudge=False)
        assert Counter(world.keys()) == Counter(f"infojobs/{number:05}" for number in range(3_000))
        assert not [moment for moment in moments if closes <= moment < closes + timedelta(hours=21)]


@pytest.mark.parametrize("seconds", [10.2, 10.6, 11.0, 11.4, 11.8])
def test_a_window_that_closes_while_the_gate_is_waited_for(made, seconds):
    closes = utc(2026, 11, 15, 5)
    with made(closes - timedelta(seconds=seconds), requests_per_minute=45.0) as world:
        world.company("acme")
        moments = watched(world)
        world.work(60)
        assert 3 < len(moments) < 20
        assert max(moments) < closes


def test_a_window_that_closes_while_a_failure_is_waited_for_is_no_failure(made):
    closes = utc(2026, 11, 15, 5)
    with made(closes - timedelta(seconds=3)) as world:
        world.company("acme")
        world.simulator.every["tabs", 1] = Fault(500)
        world.work(60)
        assert world.said == "the window closed"
        assert world.events("queries.sheet_failed") == []


def test_the_job_works_over_a_socket(queries_file, tmp_path):
    shutil.copy(queries_file, tmp_path / "penstock.db")
    clock, rng, executor = SystemClock(), Rng(7), InlineExecutor()
    simulator = GoogleSheetsSimulator(clock)
    hours = Hours("23:00-13:00" if clock.now().hour < 12 else "11:00-01:00")

    async def main(ledger: Ledger) -> JobResult:
        async with serving(simulator) as address:
            (tmp_path / "key.json").write_text(simulator.key(address))
            credentials = Secret("file", str(tmp_path / "key.json"))
            own = SheetSettings(
                spreadsheet_id=SPREADSHEET,
                credentials=credentials,
                url=Url(address),
                hours=hours,
                time_zone=TimeZone("UTC"),
            )
            found = QueriesSettings(sheet=own)
            wanted = schedule(found)
            assert wanted is not None
            gates = WorkerGates(ledger.gates, executor, clock, rng)
            ports: Any = SimpleNamespace(clock=clock)
            return await sync_sheet.run(found, wanted, Io(ledger, executor, clock.now, rng, gates), ports)

    with Ledger.open(f"sqlite:///{tmp_path / 'penstock.db'}", App().machines, clock=clock, rng=rng) as ledger:
        assert asyncio.run(main(ledger)).reason == "0 rows added, 0 changed, 0 feedback read"
    assert [grid.title for grid in simulator.spreadsheets[SPREADSHEET].grids] == ["Sheet1", "Companies", "Offers"]


def test_the_schedule_keeps_the_hours_of_the_settings(made):
    with made(START, every=timedelta(minutes=45)) as world:
        found = schedule(world.settings)
        assert found is not None
        assert (found.name, found.job, found.every) == ("queries-sheet", "sync-sheet", "45m")
        assert (found.hours, found.time_zone) == ("03:00-06:00", "Europe/Madrid")
    assert schedule(QueriesSettings()) is None

"""Staging from within a step: bounded, patient with the database, and swept by its job."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from penstock.app.app import App
from penstock.app.lifecycle import Data, Lifecycle, NoSettings
from penstock.app.program import Program
from penstock.ledger import stage
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import Transient
from penstock.model.machine import Actor
from penstock.model.outcome import MAX_ROWS, Outcome
from penstock.model.simulation import simulate
from penstock.model.unit import Ref, replace
from penstock.operations.bulk.machine import bulk_action
from penstock.operations.bulk.tables import bulk_item
from penstock.settings.file import Configuration
from penstock.settings.kernel import KernelSettings
from penstock.worker import schedule_unit
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Io
from penstock.worker.schedule import Schedules, keep_schedules
from penstock.worker.schedule_unit import Schedule
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.machines import DUE
from tests.support.probe import Wire
from tests.support.staging import LOAD, MEASURES, Load, Loads, S, measure, measures

SWEEP_STAGES = "sweep-stages"
LOADS = Lifecycle(
    "loads",
    "Loads.",
    settings=NoSettings,
    machines=[LOAD],
    data=lambda: Data([measure], staged=[MEASURES]),
)
ALONE = WorkerSettings(
    lease_ms=86_400_000,
    renew_seconds=20_000,
    watch_seconds=3_600,
    idle_seconds=None,
    unknown_seconds=1e9,
    place_seconds=None,
)


class Loading:
    """A ledger with loads on virtual time, behind a wire that can be cut."""

    def __init__(self, url: str) -> None:
        self.time = VirtualClock(DUE)
        machines = [LOAD, schedule_unit.machine, bulk_action]
        plain = Ledger.open(url, machines, clock=self.time, rng=Rng(1), create=True, data_tables=[measure, bulk_item])
        self.wire = Wire(plain.database)
        self.ledger = Ledger(self.wire, machines, self.time, Rng(2))

    def jobs(self) -> Schedules:
        """The schedules of a program that has the lifecycle."""
        program = Program(App(LOADS), Configuration(KernelSettings(), {"loads": NoSettings()}), self.time)
        return Schedules(program.jobs())

    def born(self, name: str = "a", **fields: Any) -> None:
        self.ledger.birth([Load(name=name, due_at=DUE, **fields)], actor=Actor.API, who="test")

    def run(self, *flows: Any, seconds: float = 30, during: Any = None) -> None:
        async def main() -> None:
            worker = Worker(self.ledger, list(flows), ALONE, executor=InlineExecutor(), rng=Rng(3))
            running = asyncio.create_task(worker.run())
            if during is not None:
                await during()
            await asyncio.sleep(seconds)
            worker.stop()
            await running

        simulate(self.time, main)

    def unit(self, name: str = "a") -> Any:
        return self.ledger.get(Ref("load", name))

    def count(self, source: str) -> int:
        return int(self.ledger.read(lambda c: c.rows(f"SELECT count(*) FROM {source}"))[0][0])


@pytest.fixture
def loading(ledger_url: str) -> Iterator[Loading]:
    made = Loading(ledger_url)
    yield made
    made.ledger.close()


def test_a_step_loads_more_than_an_outcome_carries(loading):
    loading.born(row_count=MAX_ROWS * 2 + 7)
    loading.run(Loads(None))
    unit = loading.unit()
    assert (unit.status, unit.loaded_rows, unit.claimed_by) == (S.LOADED, MAX_ROWS * 2 + 7, None)
    assert loading.count(MEASURES.visible) == loading.count("measure") == MAX_ROWS * 2 + 7
    assert loading.count("stage WHERE sealed_at IS NOT NULL AND loose_at IS NULL") == 1


class Stumbling(Loads):
    """Fails in the middle of its first attempt, after a chunk is in the ledger."""

    failures = 1

    async def act(self, what: str, unit: Load, seen: None, io: Io) -> Outcome[Load]:
        async with io.stage(unit, MEASURES) as stage:
            await stage.add(measures(MAX_ROWS + 1))
            if self.failures:
                self.failures -= 1
                raise Transient("the download broke off")
        return Outcome(unit, replace(unit, status=S.LOADED, loaded_stage=stage.sealed, due_at=None), "loaded")


def test_what_a_failed_step_left_is_swept_by_the_job(loading):
    loading.born()
    wanted = Schedule(name="sweep", job=SWEEP_STAGES, every="10m")
    keep_schedules(loading.ledger, [wanted], "test")
    jobs = loading.jobs()
    loading.run(Stumbling(None), jobs, seconds=60)
    assert loading.count("stage") == 2
    assert loading.count("measure") == MAX_ROWS * 2 + 1
    loading.run(Stumbling(None), jobs, seconds=900)
    assert loading.count("stage") == 1
    assert loading.count("measure") == loading.count(MEASURES.visible) == MAX_ROWS + 1
    swept: Any = loading.ledger.get(Ref("schedule", "sweep"))
    assert (swept.last_error, swept.failures) == (None, 0)


def test_the_job_comes_back_at_once_while_there_is_more(loading, monkeypatch):
    monkeypatch.setattr(stage, "AT_MOST", 600)
    loading.born()
    loading.run(Stumbling(None), seconds=60)
    assert loading.count("measure") == MAX_ROWS * 2 + 1
    keep_schedules(loading.ledger, [Schedule(name="sweep", job=SWEEP_STAGES, every="1h")], "test")
    loading.run(loading.jobs(), seconds=3_605)
    assert loading.count("measure") == loading.count(MEASURES.visible) == MAX_ROWS + 1


def test_a_ledger_that_is_away_is_waited_for(loading):
    loading.born(row_count=MAX_ROWS * 3, pause_ms=1_000)

    async def cut() -> None:
        await asyncio.sleep(7.5)
        loading.wire.away = True
        await asyncio.sleep(60)
        loading.wire.away = False

    loading.run(Loads(None), seconds=60, during=cut)
    assert loading.unit().status is S.LOADED
    assert loading.count("measure") == loading.count(MEASURES.visible) == MAX_ROWS * 3
    assert loading.count("stage") == 1


class Hasty(Loads):
    """Points at its batch before it is complete."""

    async def act(self, what: str, unit: Load, seen: None, io: Io) -> Outcome[Load]:
        async with io.stage(unit, MEASURES) as stage:
            await stage.add(measures(1))
            return Outcome(unit, replace(unit, status=S.LOADED, loaded_stage=stage.sealed), "loaded")


class Late(Loads):
    """Adds to a batch that is sealed."""

    async def act(self, what: str, unit: Load, seen: None, io: Io) -> Outcome[Load]:
        async with io.stage(unit, MEASURES) as stage:
            pass
        await stage.add(measures(1))
        raise AssertionError


@pytest.mark.parametrize("flow", [Hasty, Late])
def test_a_batch_is_pointed_at_once_it_is_sealed_and_then_takes_no_more(loading, flow):
    loading.born()
    loading.run(flow(None), seconds=120)
    unit = loading.unit()
    assert (unit.status, unit.loaded_stage) == (S.WANTED, None)
    assert "BrokenFlow" in unit.parked_reason
    assert loading.count(MEASURES.visible) == 0


class Careless(Loads):
    """Stages for a unit as it was before its claim."""

    async def act(self, what: str, unit: Load, seen: None, io: Io) -> Outcome[Load]:
        async with io.stage(replace(unit, claimed_by=None), MEASURES):
            raise AssertionError


def test_a_handler_cannot_stage_for_a_unit_that_it_does_not_hold(loading):
    loading.born()
    loading.run(Careless(None), seconds=120)
    assert "measure is filled by a claimed unit of load" in loading.unit().parked_reason


class Parallel(Loads):
    """Adds several pages at once."""

    async def act(self, what: str, unit: Load, seen: None, io: Io) -> Outcome[Load]:
        async with io.stage(unit, MEASURES) as stage:
            pages = [[{"position": n} for n in range(start, start + 2_000)] for start in range(0, 20_000, 2_000)]
            await asyncio.gather(*(stage.add(page) for page in pages))
        return Outcome(unit, replace(unit, status=S.LOADED, loaded_stage=stage.sealed, due_at=None), "loaded")


def test_pages_may_be_added_at_once(ledger_url):
    """On threads, as in production."""
    with Ledger.open(ledger_url, [LOAD], create=True, data_tables=[measure]) as ledger:
        ledger.birth([Load(name="a", due_at=ledger.clock.now())], actor=Actor.API, who="test")

        async def main() -> None:
            worker = Worker(ledger, [Parallel(None)])
            running = asyncio.create_task(worker.run())
            while worker.counts.committed == 0 and not running.done():  # noqa: ASYNC110 - it is a plain counter
                await asyncio.sleep(0.05)
            worker.stop()
            await running

        asyncio.run(asyncio.wait_for(main(), 60))
        rows = ledger.read(lambda c: c.rows(f"SELECT count(*), count(DISTINCT position) FROM {MEASURES.visible}"))
        assert tuple(rows[0]) == (20_000, 20_000)

"""The kernel's own jobs, run by a worker."""

from __future__ import annotations

import asyncio

import pytest

from penstock.app import kernel_jobs
from penstock.app.app import App
from penstock.model.clock import Rng
from penstock.model.simulation import simulate
from penstock.worker.executor import InlineExecutor
from penstock.worker.schedule import Schedules, keep_schedules
from penstock.worker.worker import Worker, WorkerSettings
from tests.operations.conftest import ORDERS, Desk


@pytest.mark.parametrize(("much", "runs"), [(0, 50), (500, 8)], ids=["much", "little"])
def test_flow_is_rolled_up_every_minute_and_sooner_where_much_happens(ledger_url, monkeypatch, much, runs):
    monkeypatch.setattr(kernel_jobs, "_MUCH", much)
    desk = Desk(ledger_url, App(ORDERS))
    desk.orders(3)
    wanted = desk.program.schedules()
    assert [(one.name, one.every, one.jitter) for one in wanted] == [
        ("watch-alerts", "1m", None),
        ("watch-doctor", "6h", "10m"),
        ("roll-up-flow", "1m", None),
    ]
    keep_schedules(desk.ledger, [one for one in wanted if one.name == "roll-up-flow"], "test")

    async def main() -> int:
        settings = WorkerSettings(place_seconds=None)
        flows = [Schedules(desk.program.jobs())]
        worker = Worker(desk.ledger, flows, settings, executor=InlineExecutor(), rng=Rng(5))
        running = asyncio.create_task(worker.run())
        await asyncio.wait([running], timeout=150)
        worker.stop()
        await running
        return worker.counts.committed

    ran = simulate(desk.clock, main)
    counted = desk.rows("SELECT machine, to_status, n FROM flow_hour WHERE machine = 'order'")
    assert counted == [("order", "new", 3)]
    assert ran == pytest.approx(runs, abs=1)
    desk.ledger.close()

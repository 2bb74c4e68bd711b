"""The watchdog comes and goes with its worker; what it does is in tests/crash/test_blocked.py."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

from penstock.model.simulation import simulate
from penstock.worker.executor import InlineExecutor
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.machines import invoice
from tests.support.probe import Probe, sent

SETTINGS = WorkerSettings(place_seconds=None, idle_seconds=0.05)


def watching() -> tuple[bool, bool]:
    """Whether a guardian stands beside this process, and whether there is a thread."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    commands = [Path(f"/proc/{child}/cmdline").read_bytes() for child in children]
    threads = {thread.name for thread in threading.enumerate()}
    return any(b"guardian.py" in command for command in commands), "penstock-watchdog" in threads


def worked(world: Any, **options: Any) -> list[tuple[bool, bool]]:
    """What was seen while a step ran, and after the worker's end."""
    world.born(invoice("1", gate_id="none"))
    seen = []

    async def main() -> None:
        async def act(unit: Any, io: Any) -> Any:
            seen.append(watching())
            worker.stop()
            return sent(unit)

        worker = Worker(world.ledger, [Probe(act)], SETTINGS, **options)
        await worker.run()

    if "executor" in options:
        simulate(world.time, main)
    else:
        asyncio.run(main())
        for thread in threading.enumerate():
            if thread.name == "penstock-watchdog":
                thread.join(10)  # it is on its way out
    return [*seen, watching()]


def test_it_watches_while_the_worker_works_and_leaves_nothing_behind(real_world):
    assert worked(real_world, watchdog=True) == [(True, True), (False, False)]


def test_nobody_is_watched_who_did_not_ask_for_it(real_world):
    assert worked(real_world) == [(False, False)] * 2


def test_there_is_none_on_virtual_time(world):
    assert worked(world, watchdog=True, executor=InlineExecutor()) == [(False, False)] * 2

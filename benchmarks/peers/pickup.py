"""How long a work item waits until its step starts, where the worker has nothing else to do.

A worker runs in a process of its own at its defaults, connected and idle. Items are brought one by one, each some time
after the last was begun, by a process that is connected as well. A wait counts from the call that brings the item, its
commit included, to the first line of its step. Before that the worker is left alone, and what it uses is counted.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

CONTEXT: SpawnContext = multiprocessing.get_context("spawn")
IDLE_SECONDS = 10.0
SETTLE_SECONDS = 2.0
PATIENCE = 60.0
POLL_SECONDS = 0.005
Birth = Callable[[int], Awaitable[object]]


class Board:
    """When the step of each item began; shared between processes of one machine."""

    def __init__(self, items: int) -> None:
        self._began: Any = CONTEXT.RawArray("d", items + 1)

    def begin(self, number: int) -> None:
        self._began[number] = time.monotonic()

    async def began(self, number: int) -> float:
        """Raises SystemExit when it does not begin at all."""
        deadline = time.monotonic() + PATIENCE
        while not self._began[number]:
            if time.monotonic() > deadline:
                raise SystemExit(f"item {number} was not begun within {PATIENCE:g} seconds")
            await asyncio.sleep(POLL_SECONDS)
        return float(self._began[number])


def processor_seconds(pid: int) -> float:
    """What the threads of a process have used so far, to the microsecond."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


async def measure(pid: int, board: Board, birth: Birth, items: int) -> dict[str, float]:
    """The waits of items 1 to `items` in milliseconds, and the idle worker's share of a core in per cent."""
    await birth(0)
    await board.began(0)
    await asyncio.sleep(SETTLE_SECONDS)
    used = processor_seconds(pid)
    await asyncio.sleep(IDLE_SECONDS)
    idle = processor_seconds(pid) - used
    waits, chance = [], random.Random(1)
    for number in range(1, items + 1):
        await asyncio.sleep(chance.uniform(0.05, 1.05))  # whoever asks every second is met at any moment of it
        asked = time.monotonic()
        await birth(number)
        waits.append(1000 * (await board.began(number) - asked))
    return {
        "p50_ms": round(statistics.median(waits), 1),
        "p99_ms": round(sorted(waits)[min(items - 1, int(items * 0.99))], 1),
        "idle_percent": round(100 * idle / IDLE_SECONDS, 2),
    }


def started(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """A worker's process; the caller ends it."""
    process = CONTEXT.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process

"""Where blocking work runs: on threads in production, inline in simulation.

Nothing else starts a thread. Inline matters because a virtual clock must not move while a commit is under way.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Executor(Protocol):
    """Runs a blocking function and lets the event loop go on."""

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """The function's result; its exception is raised here."""

    def close(self) -> None:
        """Take no more work."""


class ThreadExecutor:
    """A few threads: one claims, one commits, others ask."""

    def __init__(self, threads: int = 4) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="penstock-ledger")

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, functools.partial(work, *args))

    def close(self) -> None:
        # A thread that waits for somebody's lock may wait for long: the program's end does not depend on it.
        self._pool.shutdown(wait=False, cancel_futures=True)


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work comes to; None as soon as `stop` is set, however long a thread of it waits for somebody's lock."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()


class InlineExecutor:
    """No threads at all."""

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        return work(*args)

    def close(self) -> None:
        """Nothing to stop."""

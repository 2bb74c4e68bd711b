"""The next page of a run, read while the last one is committed.

A page says where the next one begins. So it is asked for at once, through the same gate and within the same lease, and
only the run that asked for it gets it, where its reading goes on as was foreseen. Otherwise it is forgotten: to ask for
a page changes nothing, and what was committed says where the reading goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from penstock.lifecycles.queries.fetch import Asked, Fetched
from penstock.lifecycles.queries.passes import Pass

_LEAVES = 0.05
"""So many seconds the commit waits until the call has left: on SQLite the gate would have to wait for the commit."""


class Ahead:
    """At most one page."""

    def __init__(self) -> None:
        self._wanted: tuple[str, Pass] | None = None
        self._task: asyncio.Task[Fetched] | None = None

    async def begin(self, run: str, now: Pass, read: Callable[[Asked], Coroutine[Any, Any, Fetched]]) -> None:
        """Read the next page of a run, that of this pass; this returns as soon as it was asked for."""
        self.forget()
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(read(lambda: None if asked.done() else asked.set_result(None)))
        self._wanted, self._task = (run, now), task
        either: list[asyncio.Future[Any]] = [asked, task]
        try:
            await asyncio.wait(either, timeout=_LEAVES, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.forget()
            raise

    async def take(self, run: str, now: Pass) -> Fetched | None:
        """The page, if it is this one; None: it must be read now. Raises what the reading raised."""
        task, wanted = self._task, self._wanted
        if task is None or wanted != (run, now):
            self.forget()
            return None
        try:
            await asyncio.wait([task])
            # Cancelled: the lease was in doubt. Whoever asks now has it still, or is told so by the next call.
            return None if task.cancelled() else task.result()
        finally:
            self.forget()

    def forget(self) -> None:
        """Nobody wants it any more."""
        if self._task is not None:
            self._task.add_done_callback(_heard)
            self._task.cancel()
        self._wanted = self._task = None


def _heard(task: asyncio.Task[Fetched]) -> None:
    """What went wrong with a page that nobody wants is nobody's affair."""
    if not task.cancelled():
        task.exception()

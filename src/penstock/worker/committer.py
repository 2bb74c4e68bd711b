"""The group committer: no timer. It commits when idle, and takes whatever gathered while the last commit ran."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import structlog

from penstock.ledger.commit import Busy, Result
from penstock.ledger.incarnation import Incarnation
from penstock.ledger.prepare import PreparedOutcome
from penstock.model.clock import Rng
from penstock.model.errors import LedgerUnavailable
from penstock.worker.executor import Executor
from penstock.worker.patience import pauses

MAX_BATCH = 2_000
MAX_BATCH_ROWS = 20_000
_BUSY_SECONDS = 1.0
log = structlog.get_logger()

Done = Callable[[Any, Result], None]
"""Called with what the entry was submitted for, and what became of it."""
_Waiting = tuple[PreparedOutcome, Done, Any]


class GroupCommitter:
    """Queues entries and commits them in batches, keeping them while the database is away."""

    def __init__(self, incarnation: Incarnation, executor: Executor, rng: Rng) -> None:
        self.incarnation = incarnation
        self._executor = executor
        self._rng = rng
        self._queue: deque[_Waiting] = deque()
        self._ready = asyncio.Event()
        self._stopping = False
        self._waiting = 0

    def submit(self, entry: PreparedOutcome, done: Done, about: Any) -> None:
        """Queue one entry; `done` is called with `about` and its result, on the event loop."""
        if not self._queue:
            self._ready.set()
        self._queue.append((entry, done, about))

    def stop(self) -> None:
        """Let `run` end once its queue is empty."""
        self._stopping = True
        self._ready.set()

    async def run(self) -> None:
        """Commit until stopped."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            while self._queue:
                # One turn of the loop lets every step that is ready finish first; together they share a commit.
                await asyncio.sleep(0)
                await self._commit_some()
            if self._stopping and not self._waiting:
                return

    async def _commit_some(self) -> None:
        batch: list[_Waiting] = []
        queue, rows = self._queue, 0
        while queue and len(batch) < MAX_BATCH and rows < MAX_BATCH_ROWS:
            waiting = queue.popleft()
            batch.append(waiting)
            if waiting[0].more:
                rows += waiting[0].rows
        results = await self._until_answered([entry for entry, _, _ in batch])
        for waiting, result in zip(batch, results, strict=True):
            entry, done, about = waiting
            if type(result) is Busy:
                log.warning("commit.busy", unit=entry.change.unit_id, error=str(result.error))
                self._waiting += 1
                asyncio.get_running_loop().call_later(_BUSY_SECONDS, self._again, waiting)
            else:
                done(about, result)

    def _again(self, waiting: _Waiting) -> None:
        """Somebody's lock was in the way of one entry: it is tried again behind the others."""
        self._waiting -= 1
        self.submit(*waiting)

    async def _until_answered(self, entries: list[PreparedOutcome]) -> list[Result]:
        waits = pauses(self._rng)
        while True:
            try:
                return await self._executor.run(self.incarnation.commit, entries)
            except LedgerUnavailable:
                await asyncio.sleep(next(waits))

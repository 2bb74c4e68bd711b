"""A worker's ear: while it sleeps, it hears of what other processes write to the ledger, and asks what is due."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
from collections.abc import Callable

from penstock.ledger.store.bell import Listener
from penstock.ledger.store.database import Database
from penstock.model.clock import Clock, Rng
from penstock.model.errors import LedgerError
from penstock.worker.executor import Executor
from penstock.worker.patience import pauses
from penstock.worker.rest import Rest

_DEAF_SECONDS = 60.0
_AWAKE_SECONDS = 10.0
_LEAST, _MOST = 0.01, 0.25
_QUIET_SECONDS = 1.0


class Ear:
    """Tells a worker at rest that others wrote; ever more seldom while that is for nothing, four times a second then.

    A worker on a busy file would otherwise ask after every commit of its neighbours.
    """

    def __init__(self, database: Database, executor: Executor, clock: Clock, rng: Rng, rest: Rest) -> None:
        self._database = database
        self._executor = executor
        self._clock = clock
        self._rng = rng
        self._rest = rest
        self._pause = _LEAST
        self._heard_at = -math.inf

    async def run(self) -> None:
        """Listen, and when that breaks begin anew, as long as the worker runs."""
        over = threading.Event()

        def listen() -> Listener | None:
            listener = self._database.listen()
            if listener is not None and over.is_set():  # nobody waits for it any more
                listener.close()
            return listener

        try:
            await self._listen(listen)
        finally:
            over.set()

    async def _listen(self, listen: Callable[[], Listener | None]) -> None:
        waits = pauses(self._rng)
        while True:
            try:
                listener = await self._executor.run(listen)
                if listener is None:
                    await asyncio.sleep(_DEAF_SECONDS)
                    continue
                waits = pauses(self._rng)
                try:
                    await self._attend(listener)
                finally:
                    listener.close()
            except LedgerError:
                await asyncio.sleep(next(waits))

    async def _attend(self, listener: Listener) -> None:
        self._rest.hear()  # what was said before was said to nobody
        while True:
            if await self._asleep():
                await _something(listener)
            # Now and then in any case: it may have to give its place on the server to others.
            if listener.heard():
                self._rest.hear()
                await asyncio.sleep(self._pace())

    async def _asleep(self) -> bool:
        """Wait for the worker to sleep: whoever is awake looks anyway. False when it is awake for long."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._rest.asleep.wait(), _AWAKE_SECONDS)
        return self._rest.asleep.is_set()

    def _pace(self) -> float:
        """How long to hear nothing now."""
        now = self._clock.elapsed()
        if self._rest.worthwhile or now - self._heard_at > _QUIET_SECONDS:
            self._pause = _LEAST
        self._rest.worthwhile = False
        pause, self._heard_at = self._pause, now
        self._pause = min(_MOST, 2 * self._pause)
        return pause


async def _something(listener: Listener) -> None:
    """Wait until there may be something to hear."""
    file = listener.fileno()
    if file is None:
        await asyncio.sleep(listener.again)
        return
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(file, lambda: None if readable.done() else readable.set_result(None))
    try:
        await asyncio.wait([readable], timeout=listener.again)
    finally:
        loop.remove_reader(file)

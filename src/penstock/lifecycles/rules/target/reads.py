"""Reads of many targets, coalesced: variants of different products are asked for by one call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from penstock.lifecycles.rules.money import Price

_GATHER_SECONDS = 0.01

Read = Callable[[Sequence[str]], Awaitable[Mapping[str, Price]]]


class Reads:
    """Gathers what is asked for within some milliseconds into calls of at most `most` variants."""

    def __init__(self, read: Read, most: int) -> None:
        self._read = read
        self._most = most
        self._waiting: dict[str, list[asyncio.Future[Price | None]]] = {}
        self._gathering: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def read(self, ids: Sequence[str]) -> list[Price | None]:
        """The live prices in the order of the ids; None: the variant does not exist. Raises what the call raises."""
        loop = asyncio.get_running_loop()
        futures = []
        for one in ids:
            future: asyncio.Future[Price | None] = loop.create_future()
            self._waiting.setdefault(one, []).append(future)
            futures.append(future)
        if len(self._waiting) >= self._most:
            self._call()
        elif self._gathering is None:
            self._gathering = asyncio.create_task(self._gather())
        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()

    async def close(self) -> None:
        """Nobody waits any more."""
        tasks = [*self._calls, *([self._gathering] if self._gathering else [])]
        for task in tasks:
            task.cancel()
        for future in (future for futures in self._waiting.values() for future in futures):
            future.cancel()
        self._waiting = {}
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _gather(self) -> None:
        await asyncio.sleep(_GATHER_SECONDS)
        self._gathering = None
        self._call()

    def _call(self) -> None:
        """Start calls for all that waits. Whatever becomes of them, those who wait hear of it."""
        waiting, self._waiting = self._waiting, {}
        ids = list(waiting)
        for start in range(0, len(ids), self._most):
            part = {one: waiting[one] for one in ids[start : start + self._most]}
            task = asyncio.create_task(self._answer(part))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)

    async def _answer(self, part: Mapping[str, Sequence[asyncio.Future[Price | None]]]) -> None:
        try:
            found = await self._read(list(part))
        except Exception as error:  # noqa: BLE001 - each of those who wait raises it
            for future in (f for futures in part.values() for f in futures if not f.done()):
                future.set_exception(error)
            return
        except asyncio.CancelledError:
            for future in (f for futures in part.values() for f in futures if not f.done()):
                future.cancel()
            raise
        for one, futures in part.items():
            for future in futures:
                if not future.done():
                    future.set_result(found.get(one))

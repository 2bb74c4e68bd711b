"""A TCP proxy in front of PostgreSQL that breaks connections exactly around COMMIT, or stalls them all."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable
from typing import Literal, Self

Fault = Literal["before", "after", "during"]
FAULTS: tuple[Fault, ...] = ("before", "after", "during")
"""COMMIT never arrives; its answer never does; or the line breaks while nobody knows how far it got."""

_COMMIT = b"Q" + struct.pack("!I", 11) + b"COMMIT\0"  # the simple query, as psycopg sends it


class Proxy:
    """Listens on a free port of this machine. `plan` is asked for a fault at every COMMIT that comes by."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.plan: Callable[[], Fault | None] = lambda: None
        self.faults = 0
        self.frozen = False
        """While it is, everything is taken and nothing passed on, in either direction: the line is up, and silent."""

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def once(self, fault: Fault) -> None:
        """Break the line at the next COMMIT."""
        left: list[Fault] = [fault]
        self.plan = lambda: left.pop() if left else None

    freeze_at_commit = False
    """Whether the next COMMIT freezes it, before it is passed on."""

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        answers = asyncio.create_task(self._pump(server_reader, writer))
        try:
            await self._forward(reader, server_writer, server_reader, answers)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)
            writer.transport.abort()
            server_writer.transport.abort()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        answer: asyncio.StreamReader,
        answers: asyncio.Task[None],
    ) -> None:
        while data := await reader.read(65_536):
            if _COMMIT in data and self.freeze_at_commit:
                self.frozen = True
            await self._thawed()
            fault = self.plan() if _COMMIT in data else None
            if fault is None:
                server.write(data)
                await server.drain()
                continue
            self.faults += 1
            if fault == "before":
                return
            answers.cancel()  # from here on the client hears nothing
            await asyncio.gather(answers, return_exceptions=True)
            server.write(data)
            await server.drain()
            if fault == "after":
                await answer.read(1)
            return

    async def _thawed(self) -> None:
        while self.frozen:  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.02)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            await self._thawed()
            writer.write(data)
            await writer.drain()
        writer.close()

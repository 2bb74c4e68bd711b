"""Connections that end: who says nothing, trickles, or does not read its answer keeps nobody else out.

A process has a thousand connections, or half of the files that it may open if these are fewer, so that the work beside
the desk always has some. When all are taken, the one that has been idle for longest makes room. A few are accepted at
once, and some turns of the loop pass until one that is too many is closed: there is room for these beyond.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST = 1_000
AT_ONCE = 32
_BEYOND = 4 * AT_ONCE
REQUEST_SECONDS = 15.0
"""Within so long a connection that is idle sends a whole request: its line and its headers."""
STALL_SECONDS = 60.0
READ_BYTES = 1 << 16
"""Within so long so much of an answer is read that fills the buffers: a kilobyte a second will do."""


def most_connections() -> int:
    """How many there may be at once."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, (files - _BEYOND) // 2))


class Connection(H11Protocol):
    """A connection of the desk."""

    most: int | None = None
    request_seconds = REQUEST_SECONDS
    stall_seconds = STALL_SECONDS

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._idle: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        most = most_connections() if self.most is None else self.most
        if len(self.connections) > most and not self._make_room():
            transport.abort()
        else:
            self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._idle = _cancelled(self._idle)
        self._stalled = _cancelled(self._stalled)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = _cancelled(self._stalled)
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stalled = _cancelled(self._stalled)

    def _watch(self) -> None:
        """Look again later whether enough was read."""
        left = self.transport.get_write_buffer_size()
        self._stalled = self.loop.call_later(self.stall_seconds, self._read_on, left)

    def _read_on(self, before: int) -> None:
        if self.transport.get_write_buffer_size() > before - READ_BYTES:
            self.transport.abort()
        else:
            self._watch()

    def _look(self) -> None:
        """Begin to wait for a request where none is answered. What trickles in does not make the time longer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._idle = _cancelled(self._idle)
        elif self._idle is None and not self.transport.is_closing():
            self._idle = self.loop.call_later(self.request_seconds, self._end)

    def _end(self) -> None:
        """Close it, and do not wait for ever until the rest of an answer is read."""
        self.transport.close()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.stall_seconds, self.transport.abort)

    def _make_room(self) -> bool:
        """Close the connection that has been idle for longest, if there is one."""
        idle = [one for one in self.connections if isinstance(one, Connection) and one.idle_since is not None]
        longest = min(idle, key=lambda one: one.idle_since or 0.0, default=None)
        if longest is not None:
            longest.give_way()
        return longest is not None

    @property
    def idle_since(self) -> float | None:
        """Since when no request has come; None while one is answered, and once it is closed."""
        return None if self._idle is None else self._idle.when() - self.request_seconds

    def give_way(self) -> None:
        """Close it at once."""
        self._idle = _cancelled(self._idle)
        self.transport.abort()


def _cancelled(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """No timer any more."""
    if timer is not None:
        timer.cancel()
    return None

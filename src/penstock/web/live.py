"""Pages that follow what happens: one look at the ledger for all who watch, and a word to each when something changed.

A page that hears it fetches itself and puts what is new in its place. Nobody watching costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.ledger.roll_up import bookmark, newest
from penstock.model.errors import LedgerError

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.web.frame import Frame

_LOOK_SECONDS = 1.0
_EACH_SECONDS = 0.1
"""Each page that watches makes the pause after a word so much longer: what they fetch stays the same in all."""
_PING_SECONDS = 15.0
_MOST = 500


def pause_after(watching: int) -> float:
    """How many seconds nobody is told anything, after so many were."""
    return max(_LOOK_SECONDS, _EACH_SECONDS * watching)


class Broadcaster:
    """Tells those who watch that something changed, within a second after quiet; the more watch, the less often."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._watching: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None

    async def stream(self, request: Request) -> Response:
        """The endpoint `/live`: server-sent events."""
        await self._frame.allow(request)
        if len(self._watching) >= _MOST:
            return Response("too many pages are open\n", 503, media_type="text/plain")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(), media_type="text/event-stream", headers=headers)

    async def _events(self) -> AsyncIterator[str]:
        changed = asyncio.Event()
        self._watching.add(changed)
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            yield "retry: 3000\n\n"
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), _PING_SECONDS)
                yield "event: changed\ndata: now\n\n" if changed.is_set() else ": still here\n\n"
                changed.clear()
        finally:
            self._watching.discard(changed)

    async def _look(self) -> None:
        """While anybody watches. What it sees is compared with what it saw before."""
        before: object = None
        try:
            while self._watching:
                pause = _LOOK_SECONDS
                with contextlib.suppress(LedgerError):
                    now = await self._frame.desk.read(self._mark)
                    if before is not None and now != before:
                        pause = pause_after(len(self._watching))
                        for one in self._watching:
                            one.set()
                    before = now
                await asyncio.sleep(pause)
        finally:
            self._task = None

    def _mark(self) -> object:
        def read(cursor: Cursor) -> object:
            gates = cursor.rows("SELECT count(*), sum(epoch), count(held_by) FROM gate")
            return newest(cursor, bookmark(cursor).seq), [tuple(row) for row in gates]

        return self._frame.desk.ledger().read(read)

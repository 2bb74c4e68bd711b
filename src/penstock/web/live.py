"""Pages that follow what happens: one look at the ledger for all who watch, and a word to each of what changed.

The word names machines, and `gates`. A page is made of regions that say what they follow; it fetches those that follow
what was named, and puts what is new in their place. Nobody watching costs nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.ledger.roll_up import bookmark, newest
from penstock.model.errors import LedgerError

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.web.frame import Frame

GATES = "gates"
EVERYTHING = "*"
_LOOK_SECONDS = 1.0
_EACH_SECONDS = 0.1
"""Each page that watches makes the pause after a word so much longer: what they fetch stays the same in all."""
_WHOLE_SECONDS = 60.0
"""So often everything is named: what says "3 min ago" grows old where nothing happens."""
_PING_SECONDS = 15.0
_MOST = 500
_MANY = 5_000
_LATE = 200


def pause_after(watching: int) -> float:
    """How many seconds nobody is told anything, after so many were."""
    return max(_LOOK_SECONDS, _EACH_SECONDS * watching)


class Changes:
    """What has changed since the last look: names of machines, and `gates`; of very much, everything.

    On PostgreSQL a row of the history may be seen after one with a higher number. So each look goes back a little, and
    knows the rows that it has seen.
    """

    def __init__(self) -> None:
        self._newest: int | None = None
        self._known: set[int] = set()
        self._gates: list[Any] = []

    def names(self, cursor: Cursor) -> set[str]:
        """What is new; nothing at the first look."""
        gates = [tuple(row) for row in cursor.rows("SELECT count(*), sum(epoch), count(held_by) FROM gate")]
        last = newest(cursor, bookmark(cursor).seq)
        before, first = (last, True) if self._newest is None else (self._newest, False)
        many = last - before > _MANY
        since = (last if many else min(before, last)) - _LATE
        rows = [(int(seq), str(name)) for seq, name in cursor.rows(_ROWS, since=since)]
        found = {EVERYTHING} if many else {name for seq, name in rows if seq not in self._known}
        if gates != self._gates:
            found.add(GATES)
        self._newest, self._known, self._gates = last, {seq for seq, _ in rows}, gates
        return set() if first else found


_ROWS = "SELECT seq, machine FROM transition_log WHERE seq > :since"


class _Watcher:
    """A page that is open: what it has not been told yet, and that there is something."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.told = asyncio.Event()

    def tell(self, names: set[str]) -> None:
        self.names |= names
        self.told.set()

    def word(self) -> str:
        """All that is to be told, as an event."""
        names = {EVERYTHING} if EVERYTHING in self.names else self.names
        text = f"event: changed\ndata: {' '.join(sorted(names))}\n\n"
        self.names = set()
        self.told.clear()
        return text


class Broadcaster:
    """Tells those who watch what changed, within a second after quiet; the more watch, the less often."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._watching: set[_Watcher] = set()
        self._task: asyncio.Task[None] | None = None

    async def stream(self, request: Request) -> Response:
        """The endpoint `/live`: server-sent events."""
        await self._frame.allow(request)
        if len(self._watching) >= _MOST:
            return Response("too many pages are open\n", 503, media_type="text/plain")
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._events(request), media_type="text/event-stream", headers=headers)

    async def _events(self, request: Request) -> AsyncIterator[str]:
        """Until who watches goes away, or is let in no longer."""
        one = _Watcher()
        self._watching.add(one)
        if self._task is None:
            self._task = asyncio.create_task(self._look())
        try:
            yield "retry: 3000\n\n"
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(one.told.wait(), _PING_SECONDS)
                if not await self._may_stay(request):
                    return
                yield one.word() if one.told.is_set() else ": still here\n\n"
        finally:
            self._watching.discard(one)

    async def _may_stay(self, request: Request) -> bool:
        """A token may have ended since. While the ledger cannot say, nothing is told that it has not said before."""
        try:
            return await self._frame.access.still(request)
        except LedgerError:
            return True

    async def _look(self) -> None:
        """While anybody watches."""
        changes, whole = Changes(), self._elapsed()
        try:
            while self._watching:
                pause = _LOOK_SECONDS
                with contextlib.suppress(LedgerError):
                    names = await self._frame.desk.read(self._names, changes)
                    if self._elapsed() - whole >= _WHOLE_SECONDS:
                        names, whole = {EVERYTHING}, self._elapsed()
                    if names:
                        pause = pause_after(len(self._watching))
                        for one in self._watching:
                            one.tell(names)
                await asyncio.sleep(pause)
        finally:
            self._task = None

    def _elapsed(self) -> float:
        return self._frame.desk.clock.elapsed()

    def _names(self, changes: Changes) -> set[str]:
        return self._frame.desk.ledger().read(changes.names)

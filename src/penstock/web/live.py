"""Pages that follow what happens: one look at the ledger for all who watch, and a word to each of what changed.

The word names machines, and `gates`. A page is made of regions that say what they follow; it fetches those that follow
what was named, and puts what is new in their place. Nobody watching costs nothing.

Nothing is lost on the way. A page carries a mark of what the ledger held before anything of it was read. Who subscribes
says the mark, and hears at once what has changed since. Each word has the mark that it was told at: it is said when the
stream is opened anew, and with what is fetched, so that no older answer serves.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from penstock.ledger.roll_up import bookmark, newest
from penstock.model.errors import LedgerError

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.web.frame import Frame

GATES = "gates"
OF_THE_SCRIPT = ("regions", "told")
"""Parameters of a page that is fetched anew: which regions, and the mark that it was told."""
UNREAD = "unread"
"""A mark of nothing: all may be new."""
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
        self._gates: list[int] = []

    @classmethod
    def since(cls, mark: str) -> Changes:
        """As of a mark; of one that cannot be read everything is new."""
        made = cls()
        try:
            newest_then, gates, missing = mark.split("-")
            made._newest = int(newest_then)
            made._gates = _numbers(gates)
            gaps = {made._newest - back for back in _numbers(missing)}
        except ValueError:
            made._newest = -_MANY * _LATE
        else:
            made._known = {*range(made._newest - _LATE + 1, made._newest + 1)} - gaps
        return made

    @property
    def mark(self) -> str:
        """All that was seen by the last look: the newest number, the gates, and how far back numbers were missing."""
        last = self._newest or 0
        missing = [last - seq for seq in range(max(1, last - _LATE + 1), last + 1) if seq not in self._known]
        return "-".join([str(last), *(".".join(map(str, numbers)) for numbers in (self._gates, missing))])

    def names(self, cursor: Cursor) -> set[str]:
        """What is new; nothing at the first look."""
        ((many_gates, epochs, held),) = cursor.rows("SELECT count(*), sum(epoch), count(held_by) FROM gate")
        gates = [int(many_gates), int(epochs or 0), int(held)]
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


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(".") if one]


def mark_of(cursor: Cursor) -> str:
    """The mark of what the ledger holds now."""
    changes = Changes()
    changes.names(cursor)
    return changes.mark


class Mark(NamedTuple):
    """When somebody looked, and the mark of what the ledger held; empty: it could not be read."""

    looked: float
    text: str


def first_of(marks: Iterable[Mark]) -> str:
    """The mark of the first of several looks, or `UNREAD` if one of them saw nothing; empty: there was none."""
    found = sorted(marks)
    return UNREAD if not all(one.text for one in found) else found[0].text if found else ""


class _Watcher:
    """A page that is open: what it has not been told yet, and that there is something."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.told = asyncio.Event()
        #: It has been told what changed before it came; only then does a mark cover all that it was told.
        self.caught_up = False
        self._mark = Mark(0.0, "")

    def tell(self, names: set[str], mark: Mark) -> None:
        self.names |= names
        self._mark = max(self._mark, mark)
        self.told.set()

    def word(self) -> str:
        """All that is to be told, as an event."""
        names = {EVERYTHING} if EVERYTHING in self.names else self.names
        mark = f"id: {self._mark.text}\n" if self.caught_up else ""
        text = f"{mark}event: changed\ndata: {' '.join(sorted(names))}\n\n"
        self.names = set()
        self.told.clear()
        return text


class Broadcaster:
    """Tells those who watch what changed, within a second after quiet; the more watch, the less often."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._watching: set[_Watcher] = set()
        self._task: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()

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
            self._looked = asyncio.Event()
            self._task = asyncio.create_task(self._look())
        since = request.headers.get("last-event-id") or request.query_params.get("since", "")
        coming = asyncio.create_task(self._catch_up(one, since))
        try:
            yield "retry: 3000\n\n"
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(one.told.wait(), _PING_SECONDS)
                if not await self._may_stay(request):
                    return
                yield one.word() if one.told.is_set() else ": still here\n\n"
        finally:
            coming.cancel()
            self._watching.discard(one)

    async def _catch_up(self, one: _Watcher, since: str) -> None:
        """Tell who has just come what has changed since a mark.

        After a look of the broadcaster: what happens after that is told by its next ones.
        """
        await self._looked.wait()
        changes, names = Changes.since(since) if since else Changes(), None
        while names is None:
            looked = self._elapsed()
            try:
                names = await self._frame.desk.read(self._names, changes)
            except LedgerError:
                await asyncio.sleep(_LOOK_SECONDS)
        one.caught_up = True
        if names:
            one.tell(names, Mark(looked, changes.mark))

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
                pause, looked = _LOOK_SECONDS, self._elapsed()
                with contextlib.suppress(LedgerError):
                    names = await self._frame.desk.read(self._names, changes)
                    self._looked.set()
                    if self._elapsed() - whole >= _WHOLE_SECONDS:
                        names, whole = {EVERYTHING}, self._elapsed()
                    if names:
                        pause = pause_after(len(self._watching))
                        for one in self._watching:
                            one.tell(names, Mark(looked, changes.mark))
                await asyncio.sleep(pause)
        finally:
            self._task = None

    def _elapsed(self) -> float:
        return self._frame.desk.clock.elapsed()

    def _names(self, changes: Changes) -> set[str]:
        return self._frame.desk.ledger().read(changes.names)

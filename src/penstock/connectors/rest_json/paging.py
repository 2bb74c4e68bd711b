"""The ways in which a list is read: by the numbers of its pages, by places, by cursors, by links, or in one answer.

A short page is never taken for the end of a list: an API may simply give less than it was asked for, and the rest
would be left out in silence. The end is where a total says so, or where nothing follows. Where nobody can ask what
follows, the list is cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from penstock.connectors.http.client import Head
from penstock.connectors.paging import MOST_OVERLAP, covering
from penstock.connectors.rest_json.links import LONGEST, followed, next_in_header
from penstock.connectors.rest_json.paths import getter
from penstock.connectors.rest_json.settings import CursorPaging, LinkPaging, OffsetPaging, PagePaging, PagingSettings
from penstock.connectors.searches import Bad, Batch, Item, Parameters, Wanted
from penstock.model.errors import Rejected

_CERTAIN = 2
"""How often a page must repeat another to be no chance."""
Records = Sequence[Item | Bad]


class Reply(msgspec.Struct, frozen=True):
    """An answer: its records, and what else it says. `target` is what was asked, `call` the same in short."""

    records: Records
    total: int | None
    document: Any
    head: Head
    target: str
    call: str


class Source(Protocol):
    """What asks an API."""

    origin: str

    async def ask(self, parameters: Parameters, since: str | None, paging: Mapping[str, str], *, end_ok: bool) -> Reply:
        """One page. With `end_ok` a 404 is an empty one: the list has ended before it."""

    async def follow(self, target: str) -> Reply:
        """One page by its path and parameters."""

    def since(self, wanted: Wanted) -> str | None:
        """What the API is told of the date from which on records are wanted."""


class Style(Protocol):
    """One way."""

    by_place: bool
    overlaps: bool

    async def page(self, source: Source, parameters: Parameters, wanted: Wanted) -> Batch:
        """The page that is wanted."""


def style_of(paging: PagingSettings) -> Style:
    """The way that the configuration describes."""
    if paging.page is not None:
        return ByNumber(paging.page)
    if paging.offset is not None:
        return ByOffset(paging.offset)
    if paging.cursor is not None:
        return ByCursor(paging.cursor)
    return ByLink(paging.link) if paging.link is not None else Whole()


class Whole:
    """One answer has the whole list."""

    by_place = overlaps = False

    async def page(self, source: Source, parameters: Parameters, wanted: Wanted) -> Batch:
        reply = await source.ask(parameters, source.since(wanted), {}, end_ok=False)
        return Batch(reply.records, last=True, total=reply.total)


class ByNumber:
    """Pages by their numbers. Where the size can be chosen, pages overlap."""

    by_place = True

    def __init__(self, settings: PagePaging) -> None:
        self._settings = settings
        self.overlaps = settings.size_parameter is not None
        self._last = math.inf if settings.last is None else settings.last - settings.first
        self._reach = min(settings.most_records or math.inf, (self._last + 1) * settings.size)
        self._repeats = Repeats()

    async def page(self, source: Source, parameters: Parameters, wanted: Wanted) -> Batch:
        if wanted.place >= self._reach:
            return Batch((), place=wanted.place, cut=True)
        index, size = self._choose(wanted.place)
        reply = await self._ask(source, parameters, wanted, index, size)
        self._check(reply, parameters, index, size)
        if index < self._last and self._unproved(reply, index, size):
            following = await self._ask(source, parameters, wanted, index + 1, size)
            if following.records:
                # It was no end. A list that grew meanwhile fills the page by now.
                reply = await self._ask(source, parameters, wanted, index, size)
                self._check(reply, parameters, index, size)
                if self._unproved(reply, index, size):
                    raise Rejected(self._says_short(reply, following, size))
        start, count, total = index * size, len(reply.records), reply.total
        end = start + count
        more = total is not None and total > end
        if count < size:
            # Nobody can ask what follows the last page that is served.
            cut = more or (index >= self._last and self._unproved(reply, index, size))
            return Batch(reply.records, start, last=not cut, cut=cut, total=total)
        out = end >= self._reach or (not self.overlaps and index >= self._last)
        ended = out and total is not None and not more
        return Batch(reply.records, start, last=ended, cut=out and not ended, total=total)

    def _check(self, reply: Reply, parameters: Parameters, index: int, size: int) -> None:
        if len(reply.records) > size:
            raise Rejected(self._says_size(reply.call, size, len(reply.records)))
        self._repeats.check(reply, parameters, index * size)

    @staticmethod
    def _unproved(reply: Reply, index: int, size: int) -> bool:
        """Whether a page is short, and nothing says that the list ends with it."""
        count = len(reply.records)
        told = reply.total is not None and reply.total <= index * size + count
        return 0 < count < size and not told

    def _choose(self, place: int) -> tuple[int, int]:
        """Index and size of the page from a place on, within what the API serves."""
        if not self.overlaps:
            return place // self._settings.size, self._settings.size
        for most in range(self._settings.size, 0, -1):
            index, size = covering(place, most)
            if index <= self._last and (index + 1) * size <= self._reach:
                return index, size
        return place // self._settings.size, self._settings.size

    async def _ask(self, source: Source, parameters: Parameters, wanted: Wanted, index: int, size: int) -> Reply:
        sent = {self._settings.parameter: str(self._settings.first + index)}
        if self._settings.size_parameter is not None:
            sent[self._settings.size_parameter] = str(size)
        return await source.ask(parameters, source.since(wanted), sent, end_ok=index > 0)

    def _says_short(self, reply: Reply, following: Reply, size: int) -> str:
        if following.records == reply.records:
            return (
                f"{reply.call}: a page repeats the one before it, so nothing says where the list ends;"
                " check paging.page.parameter, and leave paging out if the API gives the whole list at once"
            )
        return self._says_size(reply.call, size, len(reply.records))

    def _says_size(self, call: str, size: int, count: int) -> str:
        asked = "were asked for" if self.overlaps else "are expected"
        return (
            f"{call}: a page has {count} records where {size} {asked}, and more follow;"
            f" correct paging.page: size = {count} is what the API gives, if size_parameter is right"
        )


class ByOffset:
    """Pages by places. A page begins a little before the wanted place, so that pages overlap."""

    by_place = overlaps = True

    def __init__(self, settings: OffsetPaging) -> None:
        self._settings = settings
        self._reach = settings.most_records or math.inf
        self._repeats = Repeats()

    async def page(self, source: Source, parameters: Parameters, wanted: Wanted) -> Batch:
        if wanted.place >= self._reach:
            return Batch((), place=wanted.place, cut=True)
        start = max(0, wanted.place - min(MOST_OVERLAP, self._settings.size // 2))
        size = int(min(self._settings.size, self._reach - start))
        reply = await self._ask(source, parameters, wanted, start)
        self._repeats.check(reply, parameters, start)
        if self._unproved(reply, start, wanted.place):
            following = await self._ask(source, parameters, wanted, wanted.place)
            if following.records:
                # It was no end. A list that grew meanwhile passes the place by now.
                reply = await self._ask(source, parameters, wanted, start)
                if self._unproved(reply, start, wanted.place):
                    raise Rejected(self._says_size(reply.call, size, len(reply.records)))
        end, total = start + len(reply.records), reply.total
        more = total is not None and total > end
        if end <= wanted.place:  # nothing new: the list has ended
            return Batch(reply.records, start, last=not more, cut=more, total=total)
        ended = total is not None and not more and end - start < size
        cut = end >= self._reach and not (total is not None and not more)
        return Batch(reply.records, start, last=ended or (end >= self._reach and not cut), cut=cut, total=total)

    async def _ask(self, source: Source, parameters: Parameters, wanted: Wanted, start: int) -> Reply:
        sent = {self._settings.parameter: str(self._settings.first + start)}
        if self._settings.size_parameter is not None:
            sent[self._settings.size_parameter] = str(int(min(self._settings.size, self._reach - start)))
        return await source.ask(parameters, source.since(wanted), sent, end_ok=start > 0)

    @staticmethod
    def _unproved(reply: Reply, start: int, place: int) -> bool:
        """Whether a page that begins before a place does not pass it, and nothing says that the list ends there."""
        end = start + len(reply.records)
        return start < end <= place and (reply.total is None or reply.total > end)

    @staticmethod
    def _says_size(call: str, size: int, count: int) -> str:
        return (
            f"{call}: a page has {count} records where {size} were asked for, and more follow;"
            f" correct paging.offset: size = {count} is what the API gives, if size_parameter is right"
        )


class ByCursor:
    """Each answer has a cursor for the next page. A token is the cursor, and from when on records were asked for."""

    by_place = overlaps = False

    def __init__(self, settings: CursorPaging) -> None:
        self._parameter = settings.parameter
        self._next = getter(settings.next)
        self._more = None if settings.more is None else getter(settings.more)
        self._path = settings.next

    async def page(self, source: Source, parameters: Parameters, wanted: Wanted) -> Batch:
        cursor, since = _parted(wanted.token) if wanted.token is not None else (None, source.since(wanted))
        reply = await source.ask(parameters, since, {} if cursor is None else {self._parameter: cursor}, end_ok=False)
        found = self._next(reply.document)
        if found in (None, "", False) or (self._more is not None and not self._more(reply.document)):
            return Batch(reply.records, last=True, total=reply.total)
        following = str(found) if isinstance(found, str | int) else ""
        if not following or len(following) > LONGEST:
            raise Rejected(f"{reply.call}: the cursor at {self._path!r} is neither text nor a number, or too long")
        if following == cursor:
            raise Rejected(f"{reply.call}: the cursor at {self._path!r} repeats: it is the one that was just used")
        token = msgspec.json.encode((following, since)).decode()
        return Batch(reply.records, after=token, total=reply.total)


class ByLink:
    """Each answer has the address of the next page. A token is the path and the parameters of that address."""

    by_place = overlaps = False

    def __init__(self, settings: LinkPaging) -> None:
        self._path = settings.next
        self._next = getter(settings.next)

    async def page(self, source: Source, parameters: Parameters, wanted: Wanted) -> Batch:
        if wanted.token is None:
            reply = await source.ask(parameters, source.since(wanted), {}, end_ok=False)
        else:
            reply = await source.follow(wanted.token)
        if self._path is None:
            link = next_in_header(reply.head.headers.get("link", ""))
        else:
            link = self._next(reply.document)
            if link is not None and link is not False and not isinstance(link, str):
                raise Rejected(f"{reply.call}: what is at {self._path!r} is not the address of a next page")
        if not link:
            return Batch(reply.records, last=True, total=reply.total)
        after = followed(reply.call, source.origin, reply.target, link)
        return Batch(reply.records, after=after, total=reply.total)


class Repeats:
    """Notices an API that gives the same page whatever it is asked: its parameter of the place is another one."""

    def __init__(self) -> None:
        self._seen: tuple[Any, int, Records] = (None, 0, ())
        self._times = 0

    def check(self, reply: Reply, parameters: Parameters, start: int) -> None:
        """Raises Rejected for the records that were at two other places, far apart, just before.

        Once may happen: to a list that grew by as many records as lie between the two places.
        """
        asked, before, records = self._seen
        count = min(len(records), len(reply.records))
        far = 2 * abs(start - before) >= count > 1
        same = far and asked == parameters and records[:count] == reply.records[:count]
        self._times = self._times + 1 if same else 0
        self._seen = (parameters, start, reply.records)
        if self._times >= _CERTAIN:
            raise Rejected(
                f"{reply.call}: the page from {start} repeats the one from {before}; check paging.*.parameter"
            )


def _parted(token: str) -> tuple[str, str | None]:
    try:
        return msgspec.json.decode(token, type=tuple[str, str | None])
    except (msgspec.MsgspecError, ValueError):
        raise Rejected(
            "the token of the next page is not one of this client's; the list is read from its beginning"
        ) from None

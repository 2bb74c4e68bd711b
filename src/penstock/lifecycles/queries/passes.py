"""Passes: a list is read from its newest record down to a day, page by page, over as many runs as that takes.

A pass remembers where it is, so that a limit, a throttle or a crash costs no more than a page. Lists change while they
are read. What is added pushes the rest down, and is found by the next pass; what is removed pulls the rest up, past a
border between two pages. So pages overlap: each has one of the records that the page before ended with, or the pass
steps back until it finds its place again. Everything here is pure.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from penstock.connectors.searches import Bad, Batch, Client, Item, Wanted
from penstock.model.cadence import local_instant
from penstock.model.clock import instant_text

_TAIL = 10
"""So many records of the last page are remembered."""
_STEP_BACK = 25
_LOST = 50
"""After so many steps back a pass goes on where it is: the list is in another order at every look."""
_REPEATS = 3
"""So many pages in a row without anything that was not seen before are a list that repeats itself."""
_LATER = timedelta(hours=1)
"""A record that is newer by so much than the one before it is out of order."""
_ODD, _ODD_SHARE = 2, 10
"""So many records, or one in ten, may be out of order: some are pinned to the top, or have a wrong date."""
_MIDNIGHT = time(0)


class Kind(StrEnum):
    """What a pass is for."""

    RECENT = "recent"
    """What was listed since the last one, a little more than that."""
    CENSUS = "census"
    """Everything that was ever covered, to find what is closed."""
    SEED = "seed"
    """History, day by day."""


class Pass(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reading of a list. It ends where records are older than `until`, or where the list ends."""

    kind: Kind
    number: int
    begun: datetime
    until: datetime
    #: Where it goes on: a place in the list, or a token.
    place: int = 0
    token: str | None = None
    #: The dates of the first record, and of the last one so far.
    newest: datetime | None = None
    reached: datetime | None = None
    tail: tuple[str, ...] = ()
    pages: int = 0
    #: How many pages went further down than the ones before: what is new pushes the rest down, and is read past first.
    further: int = 0
    #: Steps back since it last knew its place, and in all.
    steps_back: int = 0
    lost: int = 0
    repeats: int = 0
    #: By what the last page is known again: its first id, and a digest of it all.
    head: str = ""
    page: str = ""
    #: Records with a date so far, and how many of them are newer than the one before.
    dated: int = 0
    risen: int = 0
    #: Whether everything was seen: what it did not find is not there.
    whole: bool = True

    @property
    def disordered(self) -> bool:
        """Whether the list is not in the order that its client promises: then no date says where to stop."""
        return self.risen > max(_ODD, self.dated // _ODD_SHARE)

    def document(self) -> dict[str, Any]:
        """As a column keeps it."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]

    def wanted(self, client: Client) -> Wanted:
        """Its next page."""
        since = self.until
        return Wanted(place=self.place, since=since) if client.by_place else Wanted(token=self.token, since=since)

    def says(self) -> str:
        """What it is at, in a few words."""
        down = f"down to {instant_text(self.reached)}" if self.reached else "at its beginning"
        return f"{_WORDS[self.kind]}, page {self.pages + 1}, {down}"


_WORDS = {Kind.RECENT: "new records", Kind.CENSUS: "the whole list", Kind.SEED: "history"}


def read_pass(document: dict[str, Any] | None) -> Pass | None:
    """The pass that a column keeps."""
    return None if document is None else msgspec.convert(document, Pass)


class Step(msgspec.Struct, frozen=True):
    """What a page does to a pass: the pass as it goes on, and whether it is over. `cut`: the provider gave no more."""

    following: Pass
    over: bool = False
    cut: bool = False
    #: The list repeats itself: nothing more comes of it.
    repeating: bool = False


def advance(now: Pass, batch: Batch, client: Client, fresh: int) -> Step:
    """The pass after a page of which `fresh` records were not seen in it before."""
    records = batch.records
    dated = [one for one in records if one.at is not None]
    last = dated[-1].at if dated else None
    following = msgspec.structs.replace(
        now,
        pages=now.pages + 1,
        newest=_newest(now, dated),
        whole=now.whole and all(one.id is not None for one in records),
    )
    if _lost_its_place(now, batch, client):
        return Step(_stepped_back(following, batch))
    one_page = batch.last and not now.pages
    repeats = now.repeats + 1 if _repeats(now, batch, client, fresh) else 0
    following = msgspec.structs.replace(
        following,
        further=now.further + (not _pushed_down(now, last, client)),
        place=batch.place + len(records) if client.by_place else 0,
        token=batch.after,
        tail=_tail(records) or now.tail,
        reached=_oldest(now.reached, last, ordered=client.newest_first),
        repeats=repeats,
        head=_head(records),
        page=_digest(records),
        dated=now.dated + len(dated),
        risen=now.risen + (_risen(now, dated, fresh) if client.newest_first and not one_page else 0),
        steps_back=0,
    )
    if following.disordered:
        following = msgspec.structs.replace(following, whole=False)
    passed = client.newest_first and not following.disordered and last is not None and last < now.until
    over = passed or batch.last or batch.cut or not records
    # The end of a list that goes on after the page before must have something new.
    if (repeats >= _REPEATS and not over) or (repeats and batch.last and _goes_on(now, batch, client)):
        return Step(following, repeating=True)
    return Step(following, over=over, cut=batch.cut and not passed)


def _pushed_down(now: Pass, last: datetime | None, client: Client) -> bool:
    """Whether a page lies above where the pass already was, whole: as much is new as lies between."""
    return client.newest_first and last is not None and now.reached is not None and last > now.reached


def _newest(now: Pass, dated: Sequence[Item | Bad]) -> datetime | None:
    """The date of the newest record; one that lies in the future does not count for more than the present."""
    found = [one.at for one in dated if one.at is not None]
    if now.newest is not None and now.pages:
        found.append(now.newest)
    return min(max(found), now.begun) if found else None


def _oldest(reached: datetime | None, last: datetime | None, *, ordered: bool) -> datetime | None:
    """How far down the pass is; a list without order is nowhere until its end."""
    if not ordered or last is None:
        return reached
    return last if reached is None else min(reached, last)


def _tail(records: Sequence[Item | Bad]) -> tuple[str, ...]:
    return tuple(map(_mark, records[-_TAIL:]))


def _mark(record: Item | Bad) -> str:
    """By what a record is known again: its id, or all that it says where it has none."""
    if record.id is not None:
        return record.id
    return f"?{hashlib.blake2b(record.payload.encode(errors='replace'), digest_size=8).hexdigest()}"


def _head(records: Sequence[Item | Bad]) -> str:
    return next((one.id for one in records if one.id is not None), "")


def _digest(records: Sequence[Item | Bad]) -> str:
    return hashlib.blake2b("\n".join(map(_mark, records)).encode(errors="replace"), digest_size=8).hexdigest()


def _repeats(now: Pass, batch: Batch, client: Client, fresh: int) -> bool:
    """Whether a page has nothing that was not seen before, and is the last one again.

    By places, records that were pushed down are read once more: then the page is another one. Of bad records nothing
    but the last page is known. Tokens lead in a circle.
    """
    records = batch.records
    if fresh or now.steps_back or not now.pages or not records:
        return False
    if not client.by_place and not any(isinstance(one, Bad) for one in records):
        return True
    head = _head(records) if client.by_place else ""
    return _digest(records) == now.page or (head != "" and head == now.head)


def _goes_on(now: Pass, batch: Batch, client: Client) -> bool:
    """Whether a page has records beyond where the pass already was."""
    return client.by_place and 0 < now.place < batch.place + len(batch.records)


def _risen(now: Pass, dated: Sequence[Item | Bad], fresh: int) -> int:
    """How many records are newer than the one before; where nothing was seen before, than the end of the last page.

    By far, unless the page climbs from its beginning to its end: then by small steps too. It is listed oldest first.
    """
    dates = [one.at for one in dated if one.at is not None]
    if now.reached is not None and fresh == len(dates):
        dates.insert(0, now.reached)
    pairs = [*itertools.pairwise(dates)]
    rising = sum(later > earlier for earlier, later in pairs)
    climbs = rising > sum(later < earlier for earlier, later in pairs) and dates[-1] - dates[0] > _LATER
    return rising if climbs else sum(later - earlier > _LATER for earlier, later in pairs)


def _lost_its_place(now: Pass, batch: Batch, client: Client) -> bool:
    """Whether records may have moved up past the border between the last page and this one.

    They have not where this page has a record of the last one, or begins above where the pass already was.
    """
    if not (client.overlaps and now.tail and batch.place) or now.lost > _LOST:
        return False
    first = next((one.at for one in batch.records if one.at is not None), None)
    if client.newest_first and first is not None and now.reached is not None and first > now.reached:
        return False
    return not {*map(_mark, batch.records)} & {*now.tail}


def _stepped_back(now: Pass, batch: Batch) -> Pass:
    """Look further up, ever further, at last at the beginning; one that loses its place for ever proves no absence."""
    if now.lost == _LOST:
        return msgspec.structs.replace(now, lost=now.lost + 1, whole=False)
    place = max(0, batch.place - (_STEP_BACK << now.steps_back))
    return msgspec.structs.replace(now, place=place, steps_back=now.steps_back + 1, lost=now.lost + 1)


def day_of(moment: datetime, zone: ZoneInfo) -> date:
    """The day of an instant, where the client is."""
    return moment.astimezone(zone).date()


def begin_of(day: date, zone: ZoneInfo) -> datetime:
    """When a day begins, where the client is."""
    return local_instant(day, _MIDNIGHT, zone).astimezone(UTC)


def closed_day(reached: datetime | None, zone: ZoneInfo, newest: datetime) -> date | None:
    """The oldest day that is read to its end when a pass from `newest` down has reached that moment; None: no day."""
    if reached is None:
        return None
    day = day_of(reached, zone) + timedelta(days=1)
    return day if day <= day_of(newest, zone) else None

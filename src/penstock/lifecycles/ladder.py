"""When something that its provider goes on restating is fetched again: at a ladder of offsets from its beginning.

An offset is *due* once its moment has come, and *served* by whatever was fetched at that moment or later, so that
several missed offsets come to one fetch. A failure serves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from penstock.model.cadence import parse_span
from penstock.model.errors import UsageError

_SIZES = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


@dataclass(frozen=True, slots=True)
class Ladder:
    """The offsets of one thing, shortest first. `begins` is what they count from; none is due before `earliest`."""

    begins: datetime
    offsets: Sequence[timedelta]
    earliest: datetime | None = None

    def at(self, offset: timedelta) -> datetime:
        """The moment of an offset."""
        moment = self.begins + offset
        return moment if self.earliest is None else max(moment, self.earliest)

    def due(self, now: datetime) -> timedelta | None:
        """The latest offset whose moment has come."""
        return max((offset for offset in self.offsets if self.at(offset) <= now), default=None)

    def coming(self, now: datetime) -> timedelta | None:
        """The next offset; None after the last."""
        return min((offset for offset in self.offsets if self.at(offset) > now), default=None)

    def next_at(self, now: datetime) -> datetime | None:
        """The moment of the next offset; None after the last."""
        coming = self.coming(now)
        return None if coming is None else self.at(coming)

    def wanted(
        self, now: datetime, fetched_at: datetime | None, serving: timedelta | None, *, given_up: bool
    ) -> timedelta | None:
        """The offset that a fetch would serve now; None when none is wanted.

        `fetched_at` is when the last good fetch was begun. `serving` is an offset that was tried and is not served; it
        is tried again unless it is given up, and gives way to a later one.
        """
        due = self.due(now)
        if serving is not None and (due is None or due <= serving):
            return None if given_up else serving
        if due is None:
            return None
        unserved = serving is not None or fetched_at is None or fetched_at < self.at(due)
        return due if unserved else None

    def attention(
        self, now: datetime, fetched_at: datetime | None, serving: timedelta | None, *, given_up: bool
    ) -> datetime | None:
        """When it wants attention: now where an offset is wanted, else at the next one."""
        wanted = self.wanted(now, fetched_at, serving, given_up=given_up)
        return self.next_at(now) if wanted is None else now


def offset_name(seconds: int, *, days: bool = True) -> str:
    """An offset for people: `T+3d`, or `T+72h` without days."""
    for unit, size in _SIZES if days else _SIZES[1:]:
        if seconds % size == 0:
            return f"T+{seconds // size}{unit}"
    raise AssertionError(seconds)


def offset_list(value: Any) -> tuple[timedelta, ...]:
    """Read a setting: different spans of time, the shortest first. Raises ValueError with what is allowed."""
    return _offsets(value, 'a list of different spans of time, shortest first, for example ["1d", "3d"]')


def optional_offset_list(value: Any) -> tuple[timedelta, ...]:
    """Likewise; none at all switches off what they are for."""
    wanted = 'a list of different spans of time, shortest first, for example ["1d", "3d"], or []'
    return () if value == [] else _offsets(value, wanted)


def written_offsets(offsets: Sequence[timedelta], *, days: bool = True) -> list[str]:
    """The list as a file has it; without days, in hours or less."""
    return [offset_name(int(offset.total_seconds()), days=days).removeprefix("T+") for offset in offsets]


def _offsets(value: Any, wanted: str) -> tuple[timedelta, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(item, str) for item in value):
        raise ValueError(wanted)
    try:
        found = [parse_span(item) for item in value]
    except UsageError:
        raise ValueError(wanted) from None
    if sorted(set(found)) != found:
        raise ValueError(wanted)
    return tuple(found)

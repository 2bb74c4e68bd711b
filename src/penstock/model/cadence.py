"""When something periodic is next due: pure arithmetic on instants, time zones and windows.

A cadence is either an interval (`every`), counted from a fixed origin so that every process finds the same ticks, or
times of day (`at`) in a time zone. A window keeps ticks inside certain hours of the day. Local times that a
daylight-saving change skips become the first instant after the gap; those that occur twice count once, the first time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from typing import TYPE_CHECKING

from penstock.model.clock import EPOCH, truncate
from penstock.model.errors import UsageError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_YEAR = 365
_SPAN = re.compile(r"(\d+)\s*([smhdy])\Z")
_DAYS_AHEAD = 8
_DIGITS = 6
_LONGEST_SPAN = timedelta(days=36_500)
"""A longer one would lead out of the calendar."""


def parse_span(text: str) -> timedelta:
    """`30s`, `5m`, `6h`, `7d` or `1y`, which is 365 days. Raises UsageError."""
    match = _SPAN.match(text.strip())
    span = None
    if match is not None and len(match[1]) <= _DIGITS:
        number, unit = int(match[1]), match[2]
        span = timedelta(days=number * _YEAR) if unit == "y" else timedelta(**{_UNITS[unit]: number})
    if not span or span > _LONGEST_SPAN:
        msg = f"{text!r} is not a span of time; write a number and s, m, h, d or y, for example 5m; 36500d at most"
        raise UsageError(msg)
    return span


def parse_time(text: str) -> time:
    """`03:00`. Raises UsageError."""
    try:
        found = time.fromisoformat(text.strip())
    except ValueError:
        found = None
    if found is None or found.tzinfo is not None or found.second or found.microsecond:
        msg = f"{text!r} is not a time of day; write hours and minutes, for example 03:00"
        raise UsageError(msg)
    return found


def parse_zone(name: str) -> ZoneInfo:
    """`Europe/Madrid`. Raises UsageError."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        msg = f"{name!r} is not a time zone; write a name such as Europe/Madrid or UTC"
        raise UsageError(msg) from None


def local_instant(day: date, moment: time, zone: ZoneInfo) -> datetime:
    """The instant of a local time: after the gap where it was skipped, the first where it occurs twice."""
    wall = datetime.combine(day, moment, zone)
    instant = wall.astimezone(UTC)
    back = instant.astimezone(zone)
    if back.replace(tzinfo=None) == wall.replace(tzinfo=None):
        return instant
    # Skipped: read with the offset from before the change it lies after the gap by as much as it lay inside
    # it, and with the offset from after the change before it by as much. The change itself is the first instant.
    late = wall.replace(fold=0).astimezone(UTC)
    early = wall.replace(fold=1).astimezone(UTC)
    low, high = min(early, late), max(early, late)
    offset = low.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) / 2
        if middle.astimezone(zone).utcoffset() == offset:
            low = middle
        else:
            high = middle
    return high.replace(microsecond=0)


@dataclass(frozen=True, slots=True)
class Window:
    """Hours of the day in a time zone; one that ends before it starts goes over midnight."""

    start: time
    end: time
    zone: ZoneInfo

    def __post_init__(self) -> None:
        if self.start == self.end:
            msg = f"the window {self.start:%H:%M}-{self.end:%H:%M} is empty; leave it out to allow the whole day"
            raise UsageError(msg)

    def open_or_next(self, moment: datetime) -> datetime:
        """The moment itself when it lies inside the window, else the start of the next one."""
        day = moment.astimezone(self.zone).date() - timedelta(days=1)
        for ahead in range(_DAYS_AHEAD):
            opens, closes = self._on(day + timedelta(days=ahead))
            if moment < opens:
                return opens
            if moment < closes:
                return moment
        raise AssertionError

    def next_opening(self, moment: datetime) -> datetime:
        """The first start of the window after the moment; it counts as a tick, however the interval falls."""
        day = moment.astimezone(self.zone).date() - timedelta(days=1)
        return next(
            opens for ahead in range(_DAYS_AHEAD) if (opens := self._on(day + timedelta(days=ahead))[0]) > moment
        )

    def _on(self, day: date) -> tuple[datetime, datetime]:
        ends = day if self.end > self.start else day + timedelta(days=1)
        return local_instant(day, self.start, self.zone), local_instant(ends, self.end, self.zone)


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often; exactly one of `every` and `at`. `jitter` spreads many that would fall due together."""

    every: timedelta | None = None
    at: Sequence[time] = ()
    zone: ZoneInfo = field(default_factory=lambda: parse_zone("UTC"))
    window: Window | None = None
    jitter: timedelta = timedelta()

    def __post_init__(self) -> None:
        if (self.every is None) == (not self.at):
            msg = "give either 'every' (a span) or 'at' (times of day)"
            raise UsageError(msg)
        if self.every is not None and self.every < timedelta(seconds=1):
            msg = "'every' must be at least one second"
            raise UsageError(msg)
        if self.at and self.window is not None:
            msg = "'hours' goes with 'every'; 'at' already says when"
            raise UsageError(msg)
        if self.jitter < timedelta():
            msg = "a jitter cannot be negative"
            raise UsageError(msg)

    def next_after(self, moment: datetime, name: str = "") -> datetime:
        """The first tick strictly after the moment; the same for everyone who asks with the same name."""
        offset = self._offset(name)
        asked = moment - offset
        tick = self._tick_after(asked)
        if self.window is not None:
            tick = min(self.window.open_or_next(tick), self.window.next_opening(asked))
        # Cut to milliseconds a tick may fall on the moment itself; it was due then, and the next one is asked for.
        due = truncate(tick + offset)
        return due if due > moment else self.next_after(moment + timedelta(milliseconds=1), name)

    def first(self, moment: datetime, name: str = "") -> datetime:
        """The first tick of one that is new: at once where it is `every` so long, after its jitter and in its window.

        Times of day are waited for, and so is a window that is not open.
        """
        following = self.next_after(moment, name)
        soon = truncate(moment + self._offset(name))
        if self.every is None or (self.window is not None and self.window.open_or_next(soon) != soon):
            return following
        return min(soon, following)

    def _tick_after(self, moment: datetime) -> datetime:
        if self.every is not None:
            return EPOCH + ((moment - EPOCH) // self.every + 1) * self.every
        day = moment.astimezone(self.zone).date() - timedelta(days=1)
        for ahead in range(_DAYS_AHEAD):
            ticks = sorted(local_instant(day + timedelta(days=ahead), t, self.zone) for t in self.at)
            for tick in ticks:
                if tick > moment:
                    return tick
        raise AssertionError

    @classmethod
    def parse(
        cls,
        *,
        every: str | None = None,
        at: Sequence[str] | None = None,
        time_zone: str = "UTC",
        hours: str | None = None,
        jitter: str | None = None,
    ) -> Cadence:
        """A cadence from its texts, as a file or a row has them. Raises UsageError that says which cannot be read."""
        zone = parse_zone(time_zone)
        window = None
        if hours is not None:
            start, dash, end = hours.partition("-")
            if not dash:
                msg = f"{hours!r} is not a window; write two times of day, for example 03:00-06:00"
                raise UsageError(msg)
            window = Window(parse_time(start), parse_time(end), zone)
        return cls(
            every=parse_span(every) if every else None,
            at=[parse_time(moment) for moment in at or ()],
            zone=zone,
            window=window,
            jitter=parse_span(jitter) if jitter else timedelta(),
        )

    def _offset(self, name: str) -> timedelta:
        """A share of the jitter that depends on the name alone, so that it never moves."""
        if not self.jitter:
            return timedelta()
        import hashlib

        share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
        return timedelta(milliseconds=int(self.jitter.total_seconds() * 1000 * share))

"""The time bar: how much happened on each of the last days, and the way to how things stood then."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from markupsafe import Markup

from penstock.operations.flow import FlowWanted, HourRow, activity
from penstock.web.live import OF_THE_SCRIPT
from penstock.web.svg.charts import Bar, Tick, time_bar

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.operations.declare import Ask

DAYS = 30
_NOT_KEPT = ("at", "after", "skip", *OF_THE_SCRIPT)

Kept = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TimeBar:
    """The bars, and where the slider stands: hours as seconds since 1970. What the address says besides is kept."""

    chart: Markup
    first: int
    last: int
    stands: int
    kept: Kept = ()


def kept_of(request: Request) -> Kept:
    """What an address asks for, but for the moment and the page of a list."""
    return tuple(pair for pair in request.query_params.multi_items() if pair[0] not in _NOT_KEPT)


def end_of(now: datetime, at: datetime | None) -> datetime:
    """Where the bar ends: now, or where that is too far away in the middle of which the moment stands."""
    return now if at is None or at > now - timedelta(days=DAYS - 1) else at + timedelta(days=DAYS // 2)


def hours_of(ask: Ask[Any], at: datetime | None, machine: str | None = None) -> Sequence[HourRow]:
    """What happened in the days of the bar, hour by hour."""
    end = end_of(ask.now, at)
    wanted = FlowWanted(machine=machine, window=timedelta(days=DAYS), at=None if end == ask.now else end)
    return list(activity(ask, wanted).rows)


def bar_of(
    hours: Sequence[HourRow],
    now: datetime,
    at: datetime | None,
    only: Collection[str] | None = None,
    kept: Kept = (),
) -> TimeBar:
    """Of some machines, or of all. Each day leads to how it stood when it ended."""
    ends = end_of(now, at)
    days = [(ends - timedelta(days=back)).date() for back in range(DAYS - 1, -1, -1)]
    moved = dict.fromkeys(days, 0)
    failed = dict.fromkeys(days, 0)
    for one in hours:
        if one.hour.date() in moved and (only is None or one.machine in only):
            moved[one.hour.date()] += one.moved
            failed[one.hour.date()] += one.failed
    bars = [
        Bar(
            float(moved[day]),
            f"{day}: {moved[day]:,} changes, {failed[day]:,} into a fault",
            f"?{urlencode([*kept, *([('at', f'{day}T23:59:59Z')] if day != now.date() else [])])}",
            "fault" if failed[day] else None,
        )
        for day in days
    ]
    ticks = [Tick(place / DAYS, f"{days[place]:%d %b}") for place in range(0, DAYS - 6, 7)]
    start = datetime(days[0].year, days[0].month, days[0].day, tzinfo=now.tzinfo)
    end = start + timedelta(days=DAYS)
    share = ((now if at is None else at) - start) / (end - start)
    label = f"Changes a day since {days[0]}"
    ticks.append(Tick(1.0, "now" if ends == now else f"{days[-1]:%d %b}"))
    chart = Markup(time_bar(bars, ticks, label, at=share))  # noqa: S704 - escaped by element
    stands = int((at or now).timestamp()) // 3_600 * 3_600 + (3_600 if at is None else 0)
    return TimeBar(chart, int(start.timestamp()), int(end.timestamp()), stands, kept)

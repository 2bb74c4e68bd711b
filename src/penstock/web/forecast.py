"""What happens next, hour by hour: a page of its own, and the first few lines of it on the overview."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from penstock.operations.forecast import ForecastAnswer, ForecastWanted, forecast
from penstock.web.svg.charts import Bar, Tick, ahead, time_bar
from penstock.web.timebar import bar_of, hours_of

if TYPE_CHECKING:
    from penstock.operations.declare import Ask
    from penstock.web.frame import Frame

_HOURS = 24
_KEPT = timedelta(minutes=1)
_FIRST = 6
_GATES = 50
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Coming:
    """What a machine will do within an hour: how many changes, and into which states."""

    hour: datetime
    machine: str
    link: str
    n: int
    states: list[tuple[str, str, int]]
    example: str
    example_link: str


class ForecastPage:
    """The page `/forecast`. Of now it is reckoned at most once a minute, however many look at it."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._last: tuple[datetime, ForecastAnswer] | None = None

    async def show(self, request: Request) -> Response:
        person = await self._frame.allow(request)
        at = self._frame.at(request)
        view = await self._frame.desk.read(self._view, person.name, at)
        return await self._frame.show(request, "forecast", "What happens next", view)

    def _view(self, who: str, at: datetime | None) -> dict[str, Any]:
        ask = self._frame.desk.ask(self._frame.desk.program.app.lifecycles[0], who=who)
        answer = self._answer(ask, at)
        hours = [
            (hour, sum(one.n for one in found), found)
            for hour, rows in groupby(self._coming(answer, at), key=lambda one: one.hour)
            for found in [list(rows)]
        ]
        return {
            "answer": answer,
            "bar": self._bar(answer),
            "time": bar_of(hours_of(ask, at), ask.now, at),
            "hours": hours,
            "gates": [(one, self._frame.link("read", "gates", gate=one.gate, at=at)) for one in busiest(answer)],
            "command": f"penstock forecast{f' --at {answer.start:%Y-%m-%dT%H:%M:%SZ}' if at is not None else ''}",
        }

    def first(self, ask: Ask[Any], at: datetime | None) -> dict[str, Any]:
        """For the overview: the first lines, how much there is in all, and the gates that starve."""
        answer = self._answer(ask, at)
        return {
            "coming": list(self._coming(answer, at))[:_FIRST],
            "total": answer.total,
            "starving": [one for one in answer.gates if one.starves is not None],
            "bar": self._short_bar(answer),
            "link": self._frame.link("forecast", at=at),
        }

    def _answer(self, ask: Ask[Any], at: datetime | None) -> ForecastAnswer:
        if at is not None:
            past: ForecastAnswer = forecast(ask, ForecastWanted(hours=_HOURS, at=at))
            return past
        if self._last is None or not timedelta(0) <= ask.now - self._last[0] < _KEPT:
            self._last = ask.now, forecast(ask, ForecastWanted(hours=_HOURS))
        return self._last[1]

    def _coming(self, answer: ForecastAnswer, at: datetime | None) -> Iterator[Coming]:
        machines = {one.name: one for one in self._frame.desk.program.app.machines}
        for (hour, name), rows in groupby(answer.coming, key=lambda one: (one.hour, one.machine)):
            found = list(rows)
            example = next((one.example for one in found if one.example is not None), "")
            yield Coming(
                hour,
                name,
                self._frame.link("machines", name, at=at),
                sum(one.n for one in found),
                [
                    (one.target, str(machines[name].status(one.target).meaning), one.n)
                    for one in found
                    if one.target is not None
                ],
                example,
                self._frame.unit_link(example, at) if example else "",
            )

    def _short_bar(self, answer: ForecastAnswer) -> Markup:
        coming = [(hour, Bar(float(n), f"{hour:%d %b %H:%M}: {n:,} changes")) for hour, n in _sums(answer).items()]
        return Markup(ahead(coming, answer.start, _HOURS, "Changes that are expected within a day"))  # noqa: S704 - escaped by element

    def _bar(self, answer: ForecastAnswer) -> Markup:
        first = answer.start.replace(minute=0, second=0, microsecond=0)
        hours = [first + n * _HOUR for n in range(_HOURS + 1)]
        sums = dict.fromkeys(hours, 0) | _sums(answer)
        bars = [
            Bar(float(sums[hour]), f"{hour:%d %b %H:%M}: {sums[hour]:,} changes", f"#{anchor(hour)}") for hour in hours
        ]
        ticks = [Tick(n / len(hours), f"{hours[n]:%H:%M}") for n in range(0, _HOURS, 4)]
        return Markup(time_bar(bars, ticks, "Changes that are expected, hour by hour", none="nothing is expected"))  # noqa: S704 - escaped by element


def busiest(answer: ForecastAnswer) -> list[Any]:
    """The gates; where there are too many those that are asked the most."""
    if len(answer.gates) <= _GATES:
        return list(answer.gates)
    busiest = sorted(answer.gates, key=lambda one: -one.calls)[:_GATES]
    return [one for one in busiest if one.calls] or busiest


def _sums(answer: ForecastAnswer) -> dict[datetime, int]:
    found: dict[datetime, int] = {}
    for one in answer.coming:
        found[one.hour] = found.get(one.hour, 0) + one.n
    return found


def anchor(hour: datetime) -> str:
    """The place of an hour on the page."""
    return f"h{hour:%m%d%H}"

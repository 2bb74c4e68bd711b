"""The overview: what needs a person, what waits by itself, how each flow stands, and what happened last."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from penstock.model.inert import inert
from penstock.model.spoken import duration
from penstock.operations.flow import FlowWanted, HourRow, activity, flow
from penstock.operations.gates import GateList, list_gates
from penstock.operations.needs import YOU, needs
from penstock.operations.status import WorkersWanted, workers
from penstock.operations.words import when
from penstock.web.cards import Cards, Standing, dues_of
from penstock.web.latest import latest_transitions
from penstock.web.svg.charts import Bar, Tick, time_bar

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.operations.declare import Ask
    from penstock.operations.needs import Need, Step
    from penstock.web.declared import Declared
    from penstock.web.forecast import ForecastPage
    from penstock.web.frame import Frame

DAYS = 30
_LATEST = 12
_NEEDS = 8
_GATES = 12


@dataclass(frozen=True, slots=True)
class TimeBar:
    """How much happened on each of the last days, and where the slider stands: hours as seconds since 1970."""

    chart: Markup
    first: int
    last: int
    stands: int


class Overview:
    """The page `/`."""

    def __init__(self, frame: Frame, declared: Declared, forecast: ForecastPage) -> None:
        self._frame = frame
        self._declared = declared
        self._forecast = forecast
        self._cards = Cards(frame)

    async def show(self, request: Request) -> Response:
        person = await self._frame.allow(request)
        at = self._frame.at(request)
        view = await self._frame.seen(self._view, person, at)
        return await self._frame.show(request, "overview", "Overview", view)

    def _view(self, person: Any, at: datetime | None) -> dict[str, Any]:
        ask = self._frame.desk.ask(self._frame.desk.program.app.lifecycles[0], who=person.name)
        standing = self.standing(ask, at)
        found = [] if at is not None else list(needs(ask).rows)
        people = sum(one.who == YOU for one in found)
        cards = self._cards.all(person.name, standing)
        units = sum(stack.total for card in cards for stack in card.stacks)
        return {
            "sentence": _sentence(people, len(found) - people, at),
            "facts": f"{units:,} units in {sum(len(card.stacks) for card in cards)} machines. {_soon(standing)}",
            "needs": [self._need(one, person, ask.now) for one in found[:_NEEDS]],
            "more": max(0, len(found) - _NEEDS),
            "bar": self.bar(standing.hours, standing.now, at),
            "cards": cards,
            "ahead": self._forecast.first(ask, at),
            "gates": self._gates(ask) if at is None else None,
            "latest": self._latest(ask, at),
            "workers": len(workers(ask, WorkersWanted(at=at)).rows),
        }

    def standing(self, ask: Ask[Any], at: datetime | None) -> Standing:
        """What the ledger says of all machines."""
        counts = flow(ask, FlowWanted(window=timedelta(days=1), at=at))
        hours = list(activity(ask, FlowWanted(window=timedelta(days=DAYS))).rows)
        return Standing(counts, hours, dues_of(ask) if at is None else {}, ask.now, at)

    def _need(self, one: Need, person: Any, now: datetime) -> dict[str, Any]:
        look = None if one.look is None else self._step(one.look, person)
        return {
            "meaning": one.meaning,
            "title": inert(one.what),
            "says": inert(one.why),
            "since": "" if one.since is None else duration((now - one.since).total_seconds()),
            "until": "" if one.until is None else when(one.until, now, short=True),
            "units": [(unit, self._frame.unit_link(unit)) for unit in one.units],
            "look": look,
            "act": [step for given in one.act if (step := self._step(given, person)) is not None],
            "command": inert(one.command),
            "you": one.who == YOU,
        }

    def _step(self, step: Step, person: Any) -> dict[str, str] | None:
        return self._declared.step(step.name, step.given, person)

    def _gates(self, ask: Ask[Any]) -> dict[str, Any]:
        """Those that are not open, first."""
        rows = sorted(list_gates(ask, GateList()).rows, key=lambda gate: (gate.state in {"open", "busy"}, gate.gate))
        closed = sum(gate.state not in {"open", "busy"} for gate in rows)
        shown = [
            {
                "name": gate.gate,
                "state": gate.state,
                "meaning": {"open": "done", "busy": "work", "stopped": "fault"}.get(gate.state, "hold"),
                "until": "" if gate.until is None else when(gate.until, ask.now, short=True),
                "waiting": gate.waiting or 0,
                "link": self._frame.link("read", "gates", gate=gate.gate),
            }
            for gate in rows[:_GATES]
        ]
        return {"rows": shown, "open": len(rows) - closed, "closed": closed, "more": len(rows) > _GATES}

    def bar(
        self, hours: Sequence[HourRow], now: datetime, at: datetime | None, only: Collection[str] | None = None
    ) -> TimeBar:
        """How much happened on each of the last days; each leads to how it stood then."""
        days = [(now - timedelta(days=back)).date() for back in range(DAYS - 1, -1, -1)]
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
                f"?at={day}T23:59:59Z" if day != days[-1] else "?",
                "fault" if failed[day] else None,
            )
            for day in days
        ]
        ticks = [Tick(place / DAYS, f"{days[place]:%d %b}") for place in range(0, DAYS - 6, 7)]
        start = datetime(days[0].year, days[0].month, days[0].day, tzinfo=now.tzinfo)
        end = start + timedelta(days=DAYS)
        share = ((now if at is None else at) - start) / (end - start)
        chart = Markup(time_bar(bars, ticks, f"Changes a day since {days[0]}", at=share))  # noqa: S704 - escaped by element
        stands = int((at or now).timestamp()) // 3_600 * 3_600 + (3_600 if at is None else 0)
        return TimeBar(chart, int(start.timestamp()), int(end.timestamp()), stands)

    def _latest(self, ask: Ask[Any], at: datetime | None) -> list[dict[str, Any]]:
        meanings = {(m.name, str(s)): str(s.meaning) for m in self._frame.desk.program.app.machines for s in m.status}
        return [
            {
                "ago": duration((ask.now - one.at).total_seconds()),
                "unit": f"{one.machine}:{one.unit_id}",
                "link": self._frame.unit_link(f"{one.machine}:{one.unit_id}", at),
                "source": one.source or "born",
                "target": one.target or "gone",
                "meaning": meanings.get((one.machine, one.target or "")),
                "why": inert(one.reason or ""),
            }
            for one in latest_transitions(ask.reader, at, _LATEST)
        ]


def _soon(standing: Standing) -> str:
    if not standing.dues:
        return ""
    due = min(standing.dues.values())
    return f"The next change comes at {due:%H:%M}, {when(due, standing.now, short=True)}."


def _sentence(urgent: int, waiting: int, at: datetime | None) -> str:
    if at is not None:
        return f"How it stood on {at:%d %B %Y at %H:%M} UTC."
    if urgent:
        things = "One thing needs" if urgent == 1 else f"{urgent} things need"
        return f"{things} you. The rest moves by itself."
    return "Nothing needs you. " + ("What waits goes on by itself." if waiting else "Everything moves by itself.")

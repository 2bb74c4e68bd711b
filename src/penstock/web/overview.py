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
from penstock.model.state import Meaning
from penstock.operations.dead import DeadFilter, list_dead
from penstock.operations.flow import FlowWanted, activity, flow
from penstock.operations.status import StatusAnswer, StatusWanted, status
from penstock.web.svg.charts import Bar, Tick, rows, time_bar

if TYPE_CHECKING:
    from penstock.operations.declare import Ask
    from penstock.web.forecast import ForecastPage
    from penstock.web.frame import Frame

_DAYS = 30
_LATEST = 12
_DEAD = 6
_ORDER = (Meaning.FAULT, Meaning.HOLD, Meaning.WORK, Meaning.REST, Meaning.DONE)


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a person should see to, or that waits by itself."""

    meaning: str
    title: str
    says: str
    link: str
    action: str
    command: str


@dataclass(frozen=True, slots=True)
class State:
    """How many units are in a state."""

    name: str
    meaning: str
    count: int
    share: int
    link: str


@dataclass(frozen=True, slots=True)
class Card:
    """One machine of a flow."""

    name: str
    link: str
    meaning: str
    says: str
    total: int
    states: list[State]
    chart: Markup


class Overview:
    """The page `/`."""

    def __init__(self, frame: Frame, forecast: ForecastPage) -> None:
        self._frame = frame
        self._forecast = forecast

    async def show(self, request: Request) -> Response:
        person = await self._frame.allow(request)
        at = self._frame.at(request)
        view = await self._frame.desk.read(self._view, person.name, at)
        return await self._frame.show(request, "overview", "Overview", view)

    def _view(self, who: str, at: datetime | None) -> dict[str, Any]:
        ask = self._frame.desk.ask(self._frame.desk.program.app.lifecycles[0], who=who)
        stands = status(ask, StatusWanted())
        counts = flow(ask, FlowWanted(window=timedelta(days=1), at=at))
        by_machine: dict[str, dict[str, int]] = {}
        for one in counts.states:
            by_machine.setdefault(one.machine, {})[one.state] = one.units
        needs = [] if at is not None else [*self._dead(ask), *self._gates(stands)]
        urgent = sum(need.meaning == "fault" for need in needs)
        return {
            "sentence": _sentence(urgent, sum(need.meaning == "hold" for need in needs), at),
            "facts": f"{sum(sum(one.values()) for one in by_machine.values()):,} units in {len(by_machine)} machines.",
            "needs": needs,
            "bar": self.bar(ask, None, at),
            "groups": self._groups(by_machine, counts, at),
            "ahead": self._forecast.first(ask, at),
            "latest": self._latest(ask, at),
            "workers": len(stands.workers),
        }

    def _dead(self, ask: Ask[Any]) -> list[Need]:
        page = list_dead(ask, DeadFilter())
        found = []
        for one in list(page.rows)[:_DEAD]:
            count = f"{one.count:,} dead letter{'s' if one.count != 1 else ''} of {one.machine}"
            link = self._frame.link("read", "dead", "show", cause=one.cause)
            found.append(
                Need("fault", count, inert(one.reason), link, "Look at them", f"penstock dead show {one.cause}")
            )
        return found

    def _gates(self, stands: StatusAnswer) -> list[Need]:
        found = []
        for gate in stands.gates:
            until = f" until {gate.until:%Y-%m-%d %H:%M} UTC" if gate.until is not None else ""
            stopped = gate.state == "stopped"
            link = self._frame.link("read", "gates", gate=gate.gate)
            command = f"penstock gates list {gate.gate}"
            title = f"{gate.gate} is {gate.state}{until}"
            found.append(Need("fault" if stopped else "hold", title, inert(gate.reason or ""), link, "Why", command))
        return found

    def bar(self, ask: Ask[Any], machine: str | None, at: datetime | None) -> Markup:
        """How much happened on each of the last days; each leads to how it stood then."""
        now = self._frame.desk.clock.now()
        days = [(now - timedelta(days=back)).date() for back in range(_DAYS - 1, -1, -1)]
        page = activity(ask, FlowWanted(machine=machine, window=timedelta(days=_DAYS)))
        moved = dict.fromkeys(days, 0)
        failed = dict.fromkeys(days, 0)
        for one in page.rows:
            if one.hour.date() in moved:
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
        ticks = [Tick(place / _DAYS, f"{days[place]:%d %b}") for place in range(0, _DAYS, 7)]
        start = now - timedelta(days=_DAYS)
        share = 1.0 if at is None else (at - start) / (now - start)
        return Markup(time_bar(bars, ticks, f"Changes a day since {days[0]}", at=share))  # noqa: S704 - escaped by element

    def _groups(
        self, by_machine: dict[str, dict[str, int]], counts: Any, at: datetime | None
    ) -> list[tuple[str, str, list[Card]]]:
        found = []
        for lifecycle in self._frame.desk.program.app.lifecycles:
            cards = [
                self._card(machine, by_machine[machine.name], counts, at)
                for machine in lifecycle.machines
                if sum(by_machine.get(machine.name, {}).values())
            ]
            if cards:
                found.append((lifecycle.name, lifecycle.says, cards))
        return found[1:] + found[:1]  # the kernel's own come last

    def _card(self, machine: Any, states: dict[str, int], counts: Any, at: datetime | None) -> Card:
        total = sum(states.values())
        shown = [
            State(
                str(state),
                str(state.meaning),
                states[str(state)],
                max(1, min(20, round(20 * states[str(state)] / total))),
                self._frame.link("read", "units", machine=machine.name, status=str(state), at=at),
            )
            for state in machine.status
            if states.get(str(state))
        ]
        worst = next((one for one in _ORDER if any(state.meaning == one for state in shown)), Meaning.DONE)
        edges = [one for one in counts.edges if one.machine == machine.name and one.source]
        bars = [_edge_bar(machine, one) for one in sorted(edges, key=lambda edge: -edge.n)[:3]]
        chart = Markup(rows(bars, f"What moved {machine.name} in a day", left=84)) if bars else Markup("")  # noqa: S704 - escaped by element
        worst_count = sum(state.count for state in shown if state.meaning == worst)
        says = "all done" if worst is Meaning.DONE else f"{worst_count:,} {_WORDS[worst]}"
        return Card(
            machine.name, self._frame.link("machines", machine.name, at=at), str(worst), says, total, shown, chart
        )

    def _latest(self, ask: Ask[Any], at: datetime | None) -> list[dict[str, Any]]:
        from penstock.web.latest import latest_transitions

        meanings = {(m.name, str(s)): str(s.meaning) for m in self._frame.desk.program.app.machines for s in m.status}
        now = self._frame.desk.clock.now()
        return [
            {
                "ago": duration((now - one.at).total_seconds()),
                "unit": f"{one.machine}:{one.unit_id}",
                "link": self._frame.unit_link(f"{one.machine}:{one.unit_id}", at),
                "source": one.source or "born",
                "target": one.target or "gone",
                "meaning": meanings.get((one.machine, one.target or "")),
                "why": inert(one.reason or ""),
            }
            for one in latest_transitions(ask.reader, at, _LATEST)
        ]


_WORDS = {
    Meaning.FAULT: "went wrong",
    Meaning.HOLD: "wait for others",
    Meaning.WORK: "at work",
    Meaning.REST: "at rest",
}


def _edge_bar(machine: Any, one: Any) -> Bar:
    meaning = str(machine.status(one.target).meaning) if one.target else None
    return Bar(float(one.n), f"{one.source} → {one.target}", None, meaning, (one.trigger or "")[:12], f"{one.n:,}")


def _sentence(urgent: int, waiting: int, at: datetime | None) -> str:
    if at is not None:
        return f"How it stood on {at:%d %B %Y at %H:%M} UTC."
    if urgent:
        things = "One thing needs" if urgent == 1 else f"{urgent} things need"
        return f"{things} you. The rest moves by itself."
    return "Nothing needs you. " + ("What waits goes on by itself." if waiting else "Everything moves by itself.")

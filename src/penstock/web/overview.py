"""The overview: what needs a person, what waits by itself, how each flow stands, and what happened last."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from penstock.model.clock import instant_text
from penstock.model.inert import inert
from penstock.model.spoken import counted, duration
from penstock.operations.flow import FlowWanted, flow
from penstock.operations.gates import GateList, list_gates
from penstock.operations.needs import YOU, NeedsWanted, needs
from penstock.operations.status import WorkersWanted, workers
from penstock.operations.words import when
from penstock.web.cards import Cards, Standing, dues_of
from penstock.web.frame import moment
from penstock.web.latest import latest_transitions
from penstock.web.timebar import bar_of, hours_of

if TYPE_CHECKING:
    from penstock.operations.declare import Ask
    from penstock.operations.needs import Need, Step
    from penstock.web.declared import Declared
    from penstock.web.forecast import ForecastPage
    from penstock.web.frame import Frame

_LATEST = 12
_NEEDS = 8
_GATES = 12
_EMPTY = "Nothing is in this ledger yet."


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
        view = await self._frame.seen(request, self._view, person, at)
        return await self._frame.show(request, "overview", "Overview", view)

    def _view(self, person: Any, at: datetime | None) -> dict[str, Any]:
        ask = self._frame.desk.ask(self._frame.desk.program.app.lifecycles[0], who=person.name)
        standing = self.standing(ask, at)
        found = list(needs(ask, NeedsWanted(at=at)).rows)
        people = sum(one.who == YOU for one in found)
        cards = self._cards.all(person.name, standing)
        stacks = [stack for card in cards for stack in card.stacks]
        units = sum(stack.total for stack in stacks)
        return {
            "sentence": _sentence(people, len(found) - people, at) if units or found else _EMPTY,
            "facts": f"{counted(units, 'unit')} in {counted(len(stacks), 'machine')}. {_soon(standing)}"
            if units
            else "",
            "needs": [self._need(one, person, ask.now, at) for one in found[:_NEEDS]],
            "more": max(0, len(found) - _NEEDS),
            "bar": bar_of(standing.hours, standing.now, at),
            "cards": cards,
            "ahead": self._forecast.first(ask, at),
            "gates": self._gates(ask, at),
            "latest": self._latest(ask, at),
            "workers": len(workers(ask, WorkersWanted(at=at)).rows),
        }

    def standing(self, ask: Ask[Any], at: datetime | None) -> Standing:
        """What the ledger says of all machines."""
        counts = flow(ask, FlowWanted(window=timedelta(days=1), at=at))
        hours = hours_of(ask, at)
        return Standing(counts, hours, dues_of(ask) if at is None else {}, ask.now, at)

    def _need(self, one: Need, person: Any, now: datetime, at: datetime | None) -> dict[str, Any]:
        look = None if one.look is None else self._step(one.look, person, at)
        return {
            "meaning": one.meaning,
            "title": inert(one.what),
            "says": inert(one.why),
            "since": "" if one.since is None else duration(((at or now) - one.since).total_seconds()),
            "until": _until(one.until, now, at),
            "units": [(unit, self._frame.unit_link(unit, at)) for unit in one.units],
            "look": look,
            "act": [step for given in one.act if at is None and (step := self._step(given, person, at)) is not None],
            "command": inert(one.command),
            "you": one.who == YOU,
        }

    def _step(self, step: Step, person: Any, at: datetime | None) -> dict[str, str] | None:
        then = {} if at is None else {"at": instant_text(at)}
        return self._declared.step(step.name, {**step.given, **then}, person)

    def _gates(self, ask: Ask[Any], at: datetime | None) -> dict[str, Any]:
        """Those that are not open, first."""
        rows = sorted(
            list_gates(ask, GateList(at=at)).rows, key=lambda gate: (gate.state in {"open", "busy"}, gate.gate)
        )
        closed = sum(gate.state not in {"open", "busy"} for gate in rows)
        shown = [
            {
                "name": gate.gate,
                "state": gate.state,
                "meaning": str(gate.state.meaning),
                "until": _until(gate.until, ask.now, at),
                "waiting": gate.waiting,
                "link": self._frame.link("read", "gates", at=at, gate=gate.gate),
            }
            for gate in rows[:_GATES]
        ]
        return {"rows": shown, "open": len(rows) - closed, "closed": closed, "more": len(rows) > _GATES}

    def _latest(self, ask: Ask[Any], at: datetime | None) -> list[dict[str, Any]]:
        meanings = {(m.name, str(s)): str(s.meaning) for m in self._frame.desk.program.app.machines for s in m.status}
        return [
            {
                "when": moment(one.at, ask.now, at),
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


def _until(until: datetime | None, now: datetime, at: datetime | None) -> str:
    if until is None:
        return ""
    return when(until, now, short=True) if at is None else f"{until:%Y-%m-%d %H:%M}"


def _sentence(urgent: int, waiting: int, at: datetime | None) -> str:
    if at is not None:
        things = {0: "Nothing", 1: "One thing"}.get(urgent, f"{urgent:,} things")
        return f"On {at.day} {at:%B %Y at %H:%M} UTC: {things.lower() if urgent < 2 else things} needed a person."  # noqa: PLR2004 - a word, or a number
    if urgent:
        things = "One thing needs" if urgent == 1 else f"{urgent:,} things need"
        return f"{things} you. The rest moves by itself."
    return "Nothing needs you. " + ("What waits goes on by itself." if waiting else "Everything moves by itself.")

"""The page of a machine: its diagram with counts, flow and dwell, its units, and what the database refuses."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from penstock.model.spoken import duration
from penstock.operations.flow import FlowAnswer, FlowWanted, flow
from penstock.operations.units import UnitList, list_units
from penstock.operations.watching import GuardsWanted, StuckWanted, guards, stuck_units
from penstock.web.answers import Answers, Table
from penstock.web.svg.charts import spans
from penstock.web.svg.diagram import Live, diagram
from penstock.web.timebar import Kept, TimeBar, bar_of, hours_of, kept_of

if TYPE_CHECKING:
    from penstock.api.access import Person
    from penstock.model.machine import Machine
    from penstock.operations.declare import Ask
    from penstock.web.declared import Declared
    from penstock.web.frame import Frame

_WINDOWS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}
_USUAL = ("24h", "30d")
_UNITS = 25
_STUCK = 10


class MachinePage:
    """The page `/machines/NAME`."""

    def __init__(self, frame: Frame, declared: Declared) -> None:
        self._frame = frame
        self._declared = declared

    async def show(self, request: Request) -> Response:
        person = await self._frame.allow(request)
        machine = self._frame.machine(request.path_params["machine"])
        at = self._frame.at(request)
        window = request.query_params.get("window")
        window = window if window in _WINDOWS else None
        view = await self._frame.seen(request, self._view, person, machine, at, window, kept_of(request))
        lifecycle = self._frame.desk.program.app.owner(machine.name)
        view |= {
            "machine": machine,
            "lifecycle": lifecycle.name,
            "operations": self._declared.operations(lifecycle, person, at=at),
        }
        return await self._frame.show(request, "machine", lifecycle.name, view)

    def _view(
        self, person: Person, machine: Machine, at: datetime | None, asked: str | None, kept: Kept
    ) -> dict[str, Any]:
        ask = self._frame.desk.ask(self._frame.desk.program.app.lifecycles[0], who=person.name)
        window, found = _flow(ask, machine, at, asked)
        counts = {one.state: one.units for one in found.states}
        stays = {one.state: one for one in found.states if one.stay is not None}
        live = Live(
            counts,
            {(str(one.source), str(one.target), str(one.trigger)): one.n for one in found.edges if one.source},
            {state: _stay(one.stay) for state, one in stays.items() if one.stay is not None},
        )

        def state_link(state: str) -> str:
            return self._frame.link("read", "units", machine=machine.name, status=state, at=at)

        def edge_link(source: str, target: str, trigger: str) -> str:  # noqa: ARG001 - the units that came by it are there
            return state_link(target)

        units = list_units(ask, UnitList(machine=machine.name, limit=_UNITS, at=at))
        answers = Answers(self._frame, self._frame.desk.clock.now(), at, within=machine.name)
        table = answers.table("", units.rows)
        picture = spans(
            [
                (state, str(machine.status(state).meaning), one.stay.total_seconds(), one.longest.total_seconds())
                for state, one in stays.items()
                if one.stay is not None and one.longest is not None
            ],
            f"Time spent in the states of {machine.name}",
        )
        pairs = len(machine.states) * (len(machine.states) - 1)
        legal = sum(source != target for source, target in machine.pairs)
        return {
            "total": sum(counts.values()),
            "bar": self._bar(ask, machine, at, kept),
            "guards": self._guards(ask, machine) if at is None else None,
            "stuck": self._stuck(ask, machine, answers, at),
            "by_sql": [
                (one.source, one.target, one.n)
                for one in found.edges
                if one.trigger is None and one.source and one.target and one.source != one.target
            ],
            "diagram": Markup(diagram(machine, live, state_link, edge_link)),  # noqa: S704 - escaped by element
            "dwell": Markup(picture) if stays else None,  # noqa: S704 - escaped by element
            "units": table,
            "all_units": self._frame.link("read", "units", machine=machine.name, at=at),
            "window": window,
            "windows": [(name, self._frame.link("machines", machine.name, at=at, window=name)) for name in _WINDOWS],
            "tabs": [
                (str(state), str(state.meaning), counts.get(str(state), 0), state_link(str(state)))
                for state in machine.status
                if counts.get(str(state))
            ],
            "refused": f"{pairs - legal} of {pairs}",
            "checks": sorted(machine.checks),
        }

    def _bar(self, ask: Any, machine: Machine, at: datetime | None, kept: Kept) -> TimeBar:
        return bar_of(hours_of(ask, at, machine.name), ask.now, at, kept=kept)

    def _guards(self, ask: Any, machine: Machine) -> list[str]:
        """What is wrong with what guards its table; nothing: they are intact."""
        return [one.message for one in guards(ask, GuardsWanted(machine=machine.name)).rows]

    def _stuck(self, ask: Any, machine: Machine, answers: Answers, at: datetime | None) -> Table | None:
        found = stuck_units(ask, StuckWanted(machine=machine.name, limit=_STUCK, at=at))
        return answers.table("", found.rows) if found.rows else None


def _flow(ask: Ask[Any], machine: Machine, at: datetime | None, asked: str | None) -> tuple[str, FlowAnswer]:
    """What flowed within the window that was asked for; by default within a day, or a month where a day was quiet."""
    for window in (asked,) if asked is not None else _USUAL:
        found: FlowAnswer = flow(ask, FlowWanted(machine=machine.name, window=_WINDOWS[window], at=at))
        if found.edges:
            break
    return window, found


def _stay(given: timedelta) -> str:
    return duration(given.total_seconds()) if given >= timedelta(seconds=1) else "< 1 s"

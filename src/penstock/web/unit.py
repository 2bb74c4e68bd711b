"""The page of a unit: what is known of it, why it stands so, its history, and what can be done with it."""

from __future__ import annotations

import shlex
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response

from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.model.spoken import duration
from penstock.model.unit import Ref
from penstock.operations.conversion import from_texts
from penstock.operations.declare import Role
from penstock.operations.kin import children_of
from penstock.operations.units import HistoryWanted, OneUnit, UnitThen, show_unit, unit_history, why
from penstock.web.answers import Answers, Block, Facts
from penstock.web.declared import NO_PAST
from penstock.web.frame import moment, pill
from penstock.web.live import GATES
from penstock.web.timebar import bar_of, hours_of

if TYPE_CHECKING:
    from penstock.api.access import Person
    from penstock.model.machine import Machine
    from penstock.web.declared import Declared
    from penstock.web.frame import Frame

_HANDS = ("wake", "park", "unpark")
_CHILDREN = 12
_CHANGES = 40
_HOLDS, _HELD = "What holds it back, and what moves it on", "What held it back, and what moved it on"


class UnitPage:
    """The page `/units/MACHINE/KEY`."""

    def __init__(self, frame: Frame, declared: Declared) -> None:
        self._frame = frame
        self._declared = declared

    async def show(self, request: Request) -> Response:
        person = await self._frame.allow(request)
        machine = self._frame.machine(request.path_params["machine"])
        wanted = from_texts(OneUnit, [("unit", str(Ref(machine.name, request.path_params["unit_id"])))])
        ref = wanted.unit
        at = self._frame.at(request)
        view = await self._frame.desk.read(self._view, person, machine, ref, at)
        lifecycle = self._frame.desk.program.app.owner(machine.name)
        view |= {
            "ref": ref,
            "machine": machine,
            "machine_link": self._frame.link("machines", machine.name, at=at),
            "follows": " ".join([machine.name, *(one.name for one in self._born_of(machine)), GATES]),
        }
        return await self._frame.show(request, "unit", lifecycle.name, view)

    def _view(self, person: Person, machine: Machine, ref: str, at: datetime | None) -> dict[str, Any]:
        ask = self._frame.desk.ask(self._frame.desk.program.app.lifecycles[0], who=person.name)
        now = self._frame.desk.clock.now()
        answers = Answers(self._frame, now, at)
        told = unit_history(ask, HistoryWanted(unit=ref))
        rows = [one for one in getattr(told, "rows", []) if at is None or one.at <= at]
        newest = max(rows, key=lambda one: (one.at, one.version), default=None)
        facts, reasons, status, parent, parked = [], [], Markup(""), None, False
        if at is None or (newest is not None and newest.target is not None):
            shown = show_unit(ask, UnitThen(unit=ref, at=at))
            parent, parked = shown.parent, shown.parked_at is not None
            facts = [
                *_without(answers.blocks(msgspec.structs.replace(shown, history=[], columns={})), "unit", "status"),
                answers.known(shown.columns),
            ]
            try:
                reasons = _without(answers.blocks(why(ask, UnitThen(unit=ref, at=at))), "unit")
                reasons[-1].title = _HOLDS if at is None else _HELD
            except UsageError as error:
                reasons = [*answers.blocks(inert(str(error)))]
        if newest is not None and newest.target is not None:
            status = pill(newest.target, _meaning(machine, newest.target))
        return {
            "status": status,
            "bar": bar_of(hours_of(ask, at, machine.name), ask.now, at),
            "facts": facts,
            "why": reasons,
            "timeline": _timeline(machine, sorted(rows, key=lambda one: (one.at, one.version)), at, now)[:_CHANGES],
            "more": max(0, len(rows) - _CHANGES),
            "whole": self._frame.link("read", "units", "history", unit=ref, at=at),
            "kin": self._kin(ask, machine, ref, parent, at),
            "attempts": _attempts(rows, now, at)[:_CHANGES],
            "command": f"penstock units show {shlex.quote(ref)}"
            + (f" --at {instant_text(at)}" if at is not None else ""),
            "actions": self._actions(person, machine, ref, newest.target if newest else None, at, parked=parked),
        }

    def _actions(
        self, person: Person, machine: Machine, ref: str, state: str | None, at: datetime | None, *, parked: bool
    ) -> list[dict[str, str]]:
        """Edges that hands may pull, and what can be done with any unit; what cannot be done says why."""
        found = []
        why_not = NO_PAST if at is not None else ""
        if not person.may(Role.OPERATOR):
            why_not = f"this needs the role operator; yours is {person.role}"
        sources: dict[tuple[str, str], list[str]] = {}
        for edge in machine.edges:
            if edge.by_hand is not None:
                sources.setdefault((edge.trigger, str(edge.target)), []).append(str(edge.source))
        for (trigger, target), states in sources.items():
            own = why_not or ("" if state in states else f"only from {' or '.join(states)}; it is {state}")
            step = self._declared.step("units move", {"units": ref, "to": target}, person) or {}
            found.append(step | {"name": f"{trigger} → {target}", "why": own})
        for name in _HANDS if machine.driven else ():
            own = why_not or ("it has ended" if state in machine.terminal else "")
            if not own and name != "wake" and parked == (name == "park"):
                own = "it is parked already" if parked else "it is not parked"
            step = self._declared.step(f"units {name}", {"units": ref}, person) or {}
            found.append(step | {"name": name, "why": own})
        return found

    def _kin(
        self, ask: Any, machine: Machine, ref: str, parent: str | None, at: datetime | None
    ) -> list[tuple[str, str, str]]:
        """Its parent and the first of its children, as (what, name, link); last, where the others are."""
        unit_id = ref.partition(":")[2]
        found = []
        if parent is not None:
            found.append(("parent", parent, self._frame.unit_link(parent, at)))
        for child in self._born_of(machine):
            names = children_of(ask.then(at), child, unit_id, _CHILDREN + 1)
            found += [("child", one, self._frame.unit_link(one, at)) for one in names[:_CHILDREN]]
            if len(names) > _CHILDREN:
                every = self._frame.link("read", "find", text=f"{child.name}:{unit_id}/", limit="1000", at=at)
                found.append(("and", f"more of {child.name}", every))
        return found

    def _born_of(self, machine: Machine) -> list[Machine]:
        """The machines whose units have a parent of this one."""
        machines = self._frame.desk.program.app.machines
        return [one for one in machines if one.parent is not None and one.parent.machine == machine.name]


def _without(blocks: list[Block], *names: str) -> list[Block]:
    """Facts without those that the page says already."""
    for one in blocks:
        if isinstance(one, Facts):
            one.items = [item for item in one.items if item[0] not in names]
    return blocks


def _attempts(rows: list[Any], now: datetime, then: datetime | None) -> list[dict[str, Any]]:
    """The changes that tell of an error, newest first."""
    found = [
        {"at": moment(one.at, now, then), "error": inert(str(error))}
        for one in rows
        if (error := (one.data or {}).get("error") or (one.data or {}).get("error_message"))
    ]
    return found[::-1]


def _timeline(machine: Machine, rows: list[Any], then: datetime | None, now: datetime) -> list[dict[str, Any]]:
    """Newest first, each with how long it stayed."""
    moments = [one.at for one in rows] + [then or now]
    stays = [later - earlier for earlier, later in pairwise(moments)]
    found = [
        {
            "at": moment(one.at, now, then),
            "target": pill(one.target or "gone", _meaning(machine, one.target)),
            "trigger": one.trigger or ("born" if one.source is None else ""),
            "who": inert(one.actor),
            "why": inert(one.reason or ""),
            "stay": duration(stay.total_seconds()),
        }
        for one, stay in zip(rows, stays, strict=True)
    ]
    return found[::-1]


def _meaning(machine: Machine, state: str | None) -> str | None:
    return str(machine.status(state).meaning) if state in machine.states else None

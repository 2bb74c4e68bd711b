"""What will happen by itself: units are led along the ways that the history knows, hour by hour, through their gates.

Pure: everything that is known at the instant is given. Numbers are expectations and are rounded at the end.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from penstock.model.experience import Experience, Way
from penstock.model.machine import Actor, Machine
from penstock.model.state import Meaning

HOUR = timedelta(hours=1)
_STEPS = 40
_EVENTS = 200_000
_TOO_FEW = 0.05
_BY_ITSELF = {Actor.WORKER, Actor.SCHEDULER, Actor.VALIDATOR}


class Expected(Struct, frozen=True, kw_only=True):
    """Units of a machine will leave `source` (None: be born) at that moment; None as `target`: as history says."""

    machine: str
    at: datetime
    source: str | None = None
    target: str | None = None
    trigger: str | None = None
    n: float = 1.0
    kind: str = ""
    unit_id: str | None = None
    #: The unit itself, for what its lifecycle expects of it next, and how often it has left which state.
    unit: Any = None
    visits: Mapping[str, int] = {}
    #: Nothing follows from it that is not expected by itself.
    rests: bool = False


class Foreseen(Struct, frozen=True):
    """So many units of a machine will go that way within an hour; `example` is one of them."""

    hour: datetime
    machine: str
    source: str | None
    target: str | None
    trigger: str | None
    n: int
    example: str | None


@dataclass(slots=True)
class Budget:
    """One limit of a gate: what it refills by in a second, holds at most, has now, and what a call takes."""

    rate: float
    burst: float
    cost: float
    left: float


@dataclass(slots=True)
class Door:
    """A gate and what is expected of it. `opens`: when it is open, None: nobody knows. `at`: when it had its budget."""

    gate_id: str
    opens: datetime | None
    at: datetime
    budgets: Sequence[Budget] = ()
    calls: dict[datetime, float] = field(default_factory=dict)
    put_off: dict[datetime, float] = field(default_factory=dict)

    def room(self, at: datetime) -> float:
        """How many calls may begin from a moment until the end of its hour."""
        rest = (_hour(at) + HOUR - at).total_seconds()
        return min(((self._level(one, at) + one.rate * rest) / one.cost for one in self.budgets), default=math.inf)

    def take(self, at: datetime, calls: float) -> None:
        """So many calls begin within the hour of a moment; what its budget lacks then comes within the hour."""
        for one in self.budgets:
            one.left = self._level(one, at) - calls * one.cost
        self.at = max(self.at, at)
        hour = _hour(at)
        self.calls[hour] = self.calls.get(hour, 0.0) + calls

    def refuse(self, at: datetime, calls: float) -> None:
        """So many calls that were wanted at a moment are put off into the next hour."""
        hour = _hour(at)
        self.put_off[hour] = self.put_off.get(hour, 0.0) + calls

    def _level(self, one: Budget, at: datetime) -> float:
        return min(one.burst, one.left + one.rate * max(0.0, (at - self.at).total_seconds()))

    def starves(self) -> datetime | None:
        """The first hour in which the budget puts work off into a later one."""
        return min((hour for hour, n in self.put_off.items() if n >= 1), default=None)

    def affords(self, until: datetime) -> int | None:
        """How many calls the budget allows from now on until a moment; None: as many as there are."""
        seconds = max(0.0, (until - self.at).total_seconds())
        allowed = [(min(one.burst, max(0.0, one.left)) + one.rate * seconds) / one.cost for one in self.budgets]
        return math.floor(min(allowed)) if allowed else None


GateOf = Callable[[Expected], "str | None"]
"""The gate through which a unit leaves its state."""
Expects = Callable[[Any, str, datetime], "Sequence[Expected] | None"]
"""What a unit that came into a state then does next; None: its lifecycle does not say."""


class Outlook:
    """Leads what is expected up to an instant. `expects` asks a unit's lifecycle what it does next, None: not known."""

    def __init__(
        self,
        machines: Mapping[str, Machine],
        known: Experience,
        doors: Mapping[str, Door],
        until: datetime,
        *,
        expects: Expects = lambda unit, state, since: None,  # noqa: ARG005 - nobody knows
        gate_of: GateOf = lambda one: None,  # noqa: ARG005 - none needs one
    ) -> None:
        self._machines = machines
        self._known = known
        self._doors = doors
        self._until = until
        self._expects = expects
        self._gate_of = gate_of
        self._queue: list[tuple[datetime, int, int, Expected]] = []
        self._numbers = itertools.count()
        self._sums: dict[tuple[Any, ...], float] = {}
        self._examples: dict[tuple[Any, ...], str] = {}
        self.stopped_early = False

    def lead(self, expected: Iterable[Expected]) -> list[Foreseen]:
        """Everything that follows from that, in order."""
        for one in expected:
            self._push(one, 0)
        for _ in range(_EVENTS):
            if not self._queue:
                break
            at, _, steps, one = heapq.heappop(self._queue)
            self._happen(at, steps, one)
        self.stopped_early = bool(self._queue)
        rows = [
            Foreseen(hour, machine, source, target, trigger, round_half_up(n), self._examples.get(key))
            for key, n in self._sums.items()
            for hour, machine, source, target, trigger in [key]
            if round_half_up(n) > 0
        ]
        # Of one machine in the order in which they happen.
        return sorted(rows, key=lambda one: (one.hour, one.machine))

    def _push(self, one: Expected, steps: int) -> None:
        if one.at < self._until and steps < _STEPS and one.n >= _TOO_FEW:
            heapq.heappush(self._queue, (one.at, next(self._numbers), steps, one))

    def _happen(self, at: datetime, steps: int, one: Expected) -> None:
        machine = self._machines[one.machine]
        if one.source is None:
            self._arrive(one, Way(str(one.target), None, 1.0, {}), at, steps)
            return
        admitted = self._admitted(machine, one, at, steps)
        if admitted is None:
            return
        visit = one.visits.get(one.source, 0) + 1
        if one.target is not None:
            ways = [Way(one.target, one.trigger, 1.0, {})]
        else:
            ways = self._known.ways(one.machine, one.source, one.kind, visit) or declared_way(machine, one.source)
        for way in ways:
            self._arrive(admitted, way, admitted.at, steps)

    def _admitted(self, machine: Machine, one: Expected, at: datetime, steps: int) -> Expected | None:
        """What of it goes through its gate within the hour; the rest comes again. None: nothing does.

        A claim that is an edge is no call, and siblings share one.
        """
        door = self._doors.get(self._gate_of(one) or "") if self._doors else None
        if door is None:
            return one
        if door.opens is None:
            return None
        if door.opens > at:
            self._push(_replaced(one, at=door.opens), steps)
            return None
        if one.source in machine.on_claim:
            return one
        each = 1.0 if machine.siblings is None else 1.0 / machine.siblings_at_once
        room = max(0.0, door.room(at)) / each
        fits = one.n if one.n <= room else float(math.floor(room))
        if fits < one.n:
            door.refuse(at, (one.n - fits) * each)
            self._push(_replaced(one, at=_hour(at) + HOUR, n=one.n - fits), steps)
        if not fits:
            return None
        door.take(at, fits * each)
        return _replaced(one, n=fits)

    def _arrive(self, one: Expected, way: Way, at: datetime, steps: int) -> None:
        n = one.n * way.share
        self._count(at, one.machine, one.source, way.target, way.trigger, n, one.unit_id)
        for brought, many in way.brings.items():
            self._count_brought(brought, at, n * many, steps)
        visits = dict(one.visits)
        if one.source is not None:
            visits[one.source] = visits.get(one.source, 0) + 1
        if not one.rests:
            self._go_on(one, way.target, visits, n, at, steps)

    def _count_brought(self, brought: Any, at: datetime, n: float, steps: int) -> None:
        machine = self._machines[brought.machine]
        if brought.source is None and machine.driven and brought.target is not None:
            born = Expected(machine=brought.machine, at=at, target=brought.target, n=n, kind=brought.kind)
            self._push(born, steps + 1)
        else:
            self._count(at, brought.machine, brought.source, brought.target, brought.trigger, n, None)

    def _go_on(  # noqa: PLR0917 - all that is known of where it is
        self, one: Expected, state: str, visits: Mapping[str, int], n: float, at: datetime, steps: int
    ) -> None:
        """What it does next: what its lifecycle expects, else what units like it did."""
        machine = self._machines[one.machine]
        if not machine.driven or state in machine.terminal:
            return
        if one.unit is not None and (expected := self._expects(one.unit, state, at)) is not None:
            for each in expected:
                self._push(own(each, one, visits, n), steps + 1)
            return
        stay = self._known.stay(one.machine, state, one.kind, visits.get(state, 0) + 1)
        if stay is None:
            if machine.status(state).meaning is not Meaning.WORK or not declared_way(machine, state):
                return
            stay = 0.0
        due = at + timedelta(seconds=stay)
        self._push(_replaced(one, at=due, source=state, target=None, trigger=None, n=n, visits=visits), steps + 1)

    def _count(  # noqa: PLR0917 - a row of the forecast
        self, at: datetime, machine: str, source: str | None, target: str | None, trigger: str | None, n: float,
        unit_id: str | None,
    ) -> None:  # fmt: skip
        if at >= self._until:
            return
        key = (_hour(at), machine, source, target, trigger)
        self._sums[key] = self._sums.get(key, 0.0) + n
        if unit_id is not None:
            self._examples.setdefault(key, f"{machine}:{unit_id}")


def own(each: Expected, of: Expected, visits: Mapping[str, int], n: float) -> Expected:
    """What a lifecycle expects of a unit, with what is known of the unit; of others it says itself."""
    if each.machine != of.machine or each.source is None:
        return _replaced(each, n=each.n * n)
    return _replaced(each, kind=of.kind, unit_id=of.unit_id, unit=of.unit, visits=visits, n=each.n * n)


def _replaced(one: Expected, **changes: Any) -> Expected:
    from msgspec.structs import replace

    return replace(one, **changes)


def declared_way(machine: Machine, state: str) -> list[Way]:
    """The first declared edge that is pulled without a person: the way that things are meant to go."""
    for edge in machine.edges:
        if edge.source == state and edge.target != state and _BY_ITSELF & set(edge.actors):
            return [Way(str(edge.target), edge.trigger, 1.0, {})]
    return []


def round_half_up(n: float) -> int:
    """The nearest whole number."""
    return math.floor(n + 0.5)


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)

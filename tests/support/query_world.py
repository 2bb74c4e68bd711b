"""A provider of offers with troubles that a seed decides, and clocks that are wrong for a while."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import parse_qs

from starlette.types import Receive, Scope, Send

from penstock.model.clock import Rng, VirtualClock
from penstock.simulators.infojobs import HTML, OPERATION, Fault, InfoJobsSimulator, throttle
from penstock.simulators.infojobs_data import DEFECTS

_OUTAGE = Fault(503, {"error_description": "Service Unavailable"})
_CUT = Fault(cut=True)
_HOUR = 3_600.0


class Skewed:
    """This machine's clock: right, but for `skew`. What has passed is never wrong."""

    def __init__(self, true: VirtualClock) -> None:
        self.true = true
        self.skew = timedelta()

    def now(self) -> datetime:
        return self.true.now() + self.skew

    def elapsed(self) -> float:
        return self.true.elapsed()

    def uptime(self) -> int:
        return self.true.uptime()

    def boot_id(self) -> str:
        return self.true.boot_id()


@dataclass(frozen=True, slots=True)
class Troubles:
    """How often a call meets what, one in so many; and how many outages and jumps of the clock there are in a year."""

    throttles: float = 300
    errors: float = 60
    cuts: float = 80
    pages: float = 400
    spoils: float = 100
    kills: float = 150
    outages: int = 14
    jumps: int = 12


@dataclass(frozen=True, slots=True)
class Window:
    """From when to when, in seconds from the beginning."""

    start: float
    end: float
    skew: timedelta = timedelta()

    def has(self, moment: float) -> bool:
        return self.start <= moment < self.end


def outages(rng: Rng, count: int, seconds: float) -> list[Window]:
    """Some of minutes, some of hours."""
    found = []
    for number in range(count):
        start = rng.uniform(0, seconds)
        length = rng.uniform(60, 900) if number % 2 else rng.uniform(1, 40) * _HOUR
        found.append(Window(start, start + length))
    return found


def jumps(rng: Rng, count: int, seconds: float) -> list[Window]:
    """The clock jumps ahead and back by turns, by hours and by days, one jump after another."""
    found = []
    room = seconds / max(1, count)
    for number in range(count):
        start = number * room + rng.uniform(0.1, 0.5) * room
        length = rng.uniform(0.05, 0.4) * room
        hours = rng.uniform(1, 23) if number % 4 < 2 else rng.uniform(24, 24 * 6)
        skew = timedelta(seconds=int(hours * _HOUR)) * (1 if number % 2 else -1)
        found.append(Window(start, start + length, skew))
    return found


@dataclass(frozen=True, slots=True)
class Call:
    """One call, and what was done to it on purpose: a status, "cut", "html", "kill" or a defect."""

    at: datetime
    client: str
    query: str
    trouble: str | None


@dataclass(slots=True)
class Journal:
    """What the providers saw, together: who called, and how many calls were under way at once."""

    calls: list[Call] = field(default_factory=list)
    under_way: int = 0
    most_under_way: int = 0

    @property
    def troubles(self) -> Counter[str]:
        return Counter(call.trouble for call in self.calls if call.trouble)


class Provider:
    """A simulator with troubles in front of it. `kill` ends the worker whose call has just come; None: it may live."""

    def __init__(self, name: str, simulator: InfoJobsSimulator, journal: Journal, rng: Rng, troubles: Troubles) -> None:
        self.name, self.simulator, self.journal, self.troubles = name, simulator, journal, troubles
        self.outages: list[Window] = []
        self.kill: Callable[[], None] = lambda: None
        self.quiet_from = float("inf")
        self._rng, self._clock = rng, simulator.clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = " ".join(parse_qs(scope["query_string"].decode()).get("q", [""]))
        told, fault = self._trouble()
        journal = self.journal
        journal.calls.append(Call(self._clock.now(), self.name, query, told))
        journal.under_way += 1
        journal.most_under_way = max(journal.most_under_way, journal.under_way)
        try:
            if told == "kill":
                self.kill()
                await asyncio.get_running_loop().create_future()
            if fault is not None:
                self.simulator.faults[OPERATION].append(fault)
            await self.simulator(scope, receive, send)
        finally:
            journal.under_way -= 1

    def _trouble(self) -> tuple[str | None, Fault | None]:
        now, rng, often = self._clock.elapsed(), self._rng, self.troubles
        if now >= self.quiet_from:
            return None, None
        if any(window.has(now) for window in self.outages):
            return ("503", _OUTAGE) if rng.uniform(0, 1) < 0.5 else ("cut", _CUT)
        found: list[tuple[float, str, Fault | None]] = [
            (often.kills, "kill", None),
            (often.throttles * 2, "429", throttle()),
            (often.throttles * 4, "429", throttle("600")),
            (often.throttles * 4, "429", throttle("36000")),
            (often.errors, "500", Fault(500, {"error_description": "Internal Server Error"})),
            (often.cuts, "cut", _CUT),
            (often.pages, "html", HTML),
        ]
        defect = DEFECTS[int(rng.uniform(0, len(DEFECTS))) % len(DEFECTS)]
        found.append((often.spoils, defect, Fault(200, spoils=defect)))
        chance = rng.uniform(0, 1)
        for every, told, fault in found:
            if chance < 1 / every:
                return told, fault
            chance -= 1 / every
        return None, None

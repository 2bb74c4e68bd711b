"""What the history teaches: which way units leave a state, how long they stay in it, and what else that brings. Pure.

Units are alike by their *kind*, the parts of their key that are no date and no identifier, and by how often they have
been in the state: a dataset's third refresh is like the third one of the dataset before. Where too few are alike the
others speak.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from statistics import median

from msgspec import Struct

from penstock.model.machine import Machine

HANDS = frozenset({"operator", "sql"})
"""Whose changes teach nothing of what happens by itself."""
OUTBOX = "scheduler:outbox"
_STEPS = frozenset({"worker", "validator"})
_REMEMBERED = 30
_ENOUGH = (1, 2, 2, 1)
"""How many departures of units that are so much alike are believed."""
_VISITS = 8
_TOGETHER = timedelta(seconds=1)
_LOOKED_BACK = 64
_RARE = 0.1
_PASSING = re.compile(r"\d{4}-\d\d(?:-\d\d.*)?\Z|[0-9a-f]{8}-[0-9a-f]{4}-.*")


class Happened(Struct, frozen=True, gc=False):
    """A row of the history; a birth has no `source`, a death no `target`."""

    machine: str
    unit_id: str
    source: str | None
    target: str | None
    trigger: str | None
    actor: str
    at: datetime


class Brought(Struct, frozen=True, gc=False):
    """A change of another unit that comes with a departure: a birth, or a move of a unit that nobody drives."""

    machine: str
    source: str | None
    target: str | None
    trigger: str | None
    kind: str


class Departure(Struct, gc=False):
    """A unit has left a state in which it had stayed for so many seconds."""

    target: str | None
    trigger: str | None
    seconds: float
    #: How many of each.
    brings: dict[Brought, int]


class Way(Struct, frozen=True):
    """One way out of a state: how likely it is, and how many of what it brings."""

    target: str
    trigger: str | None
    share: float
    brings: Mapping[Brought, float]


@lru_cache(maxsize=20_000)
def kind_of(unit_id: str) -> str:
    """The parts of a key that units of later days have too."""
    return "/".join(part for part in unit_id.split("/") if not _PASSING.match(part))


class _Standing(Struct, gc=False):
    """Since when a unit stands where it does, and how often it has left which state."""

    since: datetime
    visits: dict[str, int]


class Experience:
    """Made of the rows of a history, oldest first. `homes` names the lifecycle of each machine."""

    def __init__(self, machines: Mapping[str, Machine], homes: Mapping[str, str], rows: Iterable[Happened]) -> None:
        self._machines = machines
        self._homes = homes
        self._departures: dict[tuple[str, ...], deque[Departure]] = {}
        #: Those of every level, by what the levels are made of: most of this is done for each row of a long history.
        self._alike: dict[tuple[str, str, str, int], list[deque[Departure]]] = {}
        self._births: dict[tuple[str, str, int], Counter[str]] = {}
        self._born_otherwise: set[tuple[str, str]] = set()
        self._units: dict[tuple[str, str], _Standing] = {}
        self._newest: deque[tuple[Happened, Departure]] = deque(maxlen=_LOOKED_BACK)
        for row in rows:
            self._add(row)
        self._newest.clear()

    def ways(self, machine: str, state: str, kind: str, visit: int) -> list[Way]:
        """The ways out of a state, those that are rare left out; none where nobody was seen to leave it."""
        found = self._like(machine, state, kind, visit)
        counts = Counter((one.target, one.trigger) for one in found if one.target is not None)
        kept = {way: n for way, n in counts.items() if n >= _RARE * len(found)}
        total = sum(kept.values())
        ways = []
        for (target, trigger), n in kept.items():
            brings: Counter[Brought] = Counter()
            for one in found:
                if one.brings and (one.target, one.trigger) == (target, trigger):
                    brings.update(one.brings)
            means = {brought: many / n for brought, many in brings.items()}
            ways.append(Way(str(target), trigger, n / total, means))
        return ways

    def stay(self, machine: str, state: str, kind: str, visit: int, elapsed: float = 0.0) -> float | None:
        """How long units stay there, of those that stay longer than `elapsed` seconds; None: nobody was seen to."""
        spans = [one.seconds for one in self._like(machine, state, kind, visit) if one.seconds >= elapsed]
        return median(spans) if spans else None

    def born_by_schedule(self, machine: str, state: str) -> bool:
        """Whether schedules bring forth such units: unless all that were seen came otherwise."""
        return (machine, state, -1) in self._births or (machine, state) not in self._born_otherwise

    def kinds_born(self, machine: str, state: str, hour: int) -> Mapping[str, float]:
        """Of the units that are born in that hour of the day, or at all, the share of each kind."""
        counts = self._births.get((machine, state, hour)) or self._births.get((machine, state, -1)) or Counter({"": 1})
        total = sum(counts.values())
        return {kind: n / total for kind, n in counts.items()}

    def _like(self, machine: str, state: str, kind: str, visit: int) -> Collection[Departure]:
        for level, enough in zip(_levels(machine, state, kind, visit), _ENOUGH, strict=True):
            if len(found := self._departures.get(level, ())) >= enough:
                return found
        return ()

    def _add(self, row: Happened) -> None:
        machine = self._machines.get(row.machine)
        if machine is None:
            return
        place = (row.machine, row.unit_id)
        before = self._units.get(place)
        if row.source is None:
            self._born(row)
        elif row.actor.partition(":")[0] in HANDS:
            pass
        elif not machine.driven:
            self._attach(row)
        elif before is not None and row.source != row.target:
            self._left(row, row.source, before)
        if row.source == row.target:
            return
        if before is None:
            before = self._units[place] = _Standing(row.at, {})
        before.since = row.at
        if row.source is not None:
            before.visits[row.source] = before.visits.get(row.source, 0) + 1

    def _born(self, row: Happened) -> None:
        kind, state = kind_of(row.unit_id), str(row.target)
        if row.actor.startswith("scheduler:") and row.actor != OUTBOX:
            for hour in (row.at.hour, -1):
                self._births.setdefault((row.machine, state, hour), Counter())[kind] += 1
            return
        self._born_otherwise.add((row.machine, state))
        if row.actor == OUTBOX or row.actor.partition(":")[0] in _STEPS:
            self._attach(row)

    def _left(self, row: Happened, source: str, before: _Standing) -> None:
        one = Departure(row.target, row.trigger, max(0.0, (row.at - before.since).total_seconds()), {})
        like = (row.machine, source, kind_of(row.unit_id), min(before.visits.get(source, 0) + 1, _VISITS))
        alike = self._alike.get(like)
        if alike is None:
            alike = self._alike[like] = [self._kept(level) for level in _levels(*like)]
        for kept in alike:
            kept.append(one)
        self._newest.append((row, one))

    def _kept(self, level: tuple[str, ...]) -> deque[Departure]:
        found = self._departures.get(level)
        if found is None:
            found = self._departures[level] = deque(maxlen=_REMEMBERED)
        return found

    def _attach(self, row: Happened) -> None:
        """To the departure that it came with: of the same key, else the last of its lifecycle, else the last."""
        home, of_any = self._homes.get(row.machine), row.actor == OUTBOX
        earliest = row.at - _TOGETHER
        found = None
        for one, departure in reversed(self._newest):
            if not earliest <= one.at <= row.at or not (of_any or self._homes.get(one.machine) == home):
                continue
            if one.unit_id == row.unit_id:
                found = departure
                break
            found = found or departure
        if found is None:
            return
        # What is sent to subscribers is named by its event, which is another each time.
        kind = "" if of_any else kind_of(row.unit_id)
        brought = Brought(row.machine, row.source, row.target, row.trigger, kind)
        found.brings[brought] = found.brings.get(brought, 0) + 1


def _levels(machine: str, state: str, kind: str, visit: int) -> list[tuple[str, ...]]:
    """Whom a unit is like, those that are most like it first."""
    times = str(min(visit, _VISITS))
    place = (machine, state)
    return [(*place, "both", kind, times), (*place, "times", times), (*place, "kind", kind), place]

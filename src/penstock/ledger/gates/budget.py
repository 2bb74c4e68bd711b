"""How many calls a gate allows, reckoned from its limits, its places and its health at one moment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import MappingProxyType

#: How long a place in a budget stays good: a call that leaves later might meet those of the next.
HORIZON = 0.25
#: No less than this, however small the burst: a call needs some time to leave.
_LEAST_HORIZON = 0.05
#: A gate whose budget is spent is left alone for so long, where that wastes nothing, and then gives several places.
PACE = 0.1
#: A gate whose places are all taken is told when one is given back; whoever died could not tell.
FULL_SECONDS = 1.0
BREAKER_AFTER = 5
#: While a provider does not answer, one call goes out after a minute, and then less and less often.
OUTAGE_SECONDS = 60.0
MOST_OUTAGE_SECONDS = 300.0
PROBE_SECONDS = 60.0
#: Who holds a gate that a fatal error stopped, where it is no operator.
FATAL = "fatal"
_MILLISECOND = timedelta(milliseconds=1)
_ROUNDING = 1e-9
_ANY = 2**31 - 1

#: What a step costs, by the names of limits; in a limit that is not named it costs as much as a usual call.
Costs = Mapping[str, float]
USUAL: Costs = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Pass:
    """Leave to make one call through a gate: the epoch that it carries, and what is known of the gate's health."""

    gate_id: str
    epoch: int
    #: It was closed or calls failed lately, and none has come through since: tell it when one does.
    troubled: bool = False
    #: This call is the one that finds out whether the provider is back.
    probe: bool = False
    #: For how many seconds the place in its budget is good; None: nothing is counted.
    good_for: float | None = None
    #: The gate has a number of places: tell it when this one is given back.
    placed: bool = False
    #: How many calls had failed in a row when this one was let through, and since when none has come through.
    failures: int = 0
    failing_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a failed call found at its gate: since when none has come through, how many failed, until when it is closed.

    `failing_since` None: others have come through, or nobody knows.
    """

    failing_since: datetime | None
    failures: int
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Closed:
    """No call may be made through the gate until then (None: until somebody resumes it)."""

    until: datetime | None
    reason: str
    #: Where only its budget is spent: in how many seconds there is room for one call, and for each more.
    seconds: float | None = None
    each: float = 0.0


@dataclass(slots=True)
class Budget:
    """One limit of a gate as it stands at a moment."""

    name: str
    rate: float
    burst: float
    cost: float
    level: float
    #: What was taken from it in this transaction.
    taken: float = 0.0
    #: How long a place is good: at most what half of the burst covers, so that the other half can be given out.
    horizon: float = field(init=False)
    #: The provider's burst less what may be on its way: places given out and not yet used.
    capacity: float = field(init=False)

    def __post_init__(self) -> None:
        self.horizon = min(HORIZON, max(_LEAST_HORIZON, (self.burst - self.cost) / (2 * self.rate)))
        self.capacity = max(self.cost, self.burst - self.horizon * self.rate)

    def of(self, costs: Costs) -> float:
        """What a step of those costs takes from it: the usual where they do not say."""
        return costs.get(self.name, self.cost)

    def places(self, cost: float) -> int:
        """How many steps of that cost it allows now; at most the block that comes in one horizon."""
        if cost > self.capacity:
            return int(self.level >= self.capacity)  # it will never have more: the rest is owed
        room = max(0.0, min(self.level, max(cost, self.horizon * self.rate)))
        return _ANY if cost * _ANY <= room else math.floor(room / cost + _ROUNDING)

    def affords(self, cost: float) -> bool:
        """Whether one more step of that cost may leave with this claim."""
        first = not self.taken or self.taken + cost <= self.horizon * self.rate + _ROUNDING
        return first and self.level >= min(cost, self.capacity) - _ROUNDING

    def take(self, amount: float) -> None:
        """So much will be used."""
        self.level -= amount
        self.taken += amount

    def wait(self, cost: float) -> float:
        """In how many seconds it is worth asking again: for one step, or for a few if nothing overflows meanwhile."""
        overflows = (self.capacity - self.level) / self.rate
        return max((min(cost, self.capacity) - self.level) / self.rate, min(PACE, overflows / 2))


def breaker_open(throttles: int, failures: int) -> bool:
    """Whether a gate was closed too often in a row, or too many calls through it failed in a row."""
    return throttles > BREAKER_AFTER or failures > BREAKER_AFTER


def outage_seconds(failures: int) -> float:
    """How long a gate stays closed after so many failures in a row: 60, 120, 240 and then 300 s."""
    return min(OUTAGE_SECONDS * 2.0 ** min(failures - BREAKER_AFTER - 1, 10), MOST_OUTAGE_SECONDS)


@dataclass(slots=True)
class Metered:
    """A gate that must be asked before units are claimed behind it."""

    gate_id: str
    epoch: int
    throttles: int
    max_in_flight: int | None
    now: datetime
    failures: int = 0
    failing_since: datetime | None = None
    budgets: list[Budget] = field(default_factory=list)
    in_flight: int = 0
    taken: int = 0
    #: What the last step cost that was let in, and the first that found no room.
    last_costs: Costs = field(default_factory=dict)
    refused: Costs | None = None

    @property
    def half_open(self) -> bool:
        """One probe first: the breaker was open, or it was closed and has no budget that would let it open gently."""
        return breaker_open(self.throttles, self.failures) or (self.throttles > 0 and not self.budgets)

    @property
    def full(self) -> bool:
        """Whether as many calls are under way as may be."""
        return self.max_in_flight is not None and self.in_flight >= self.max_in_flight

    @property
    def limits(self) -> list[str]:
        """The names of its budgets."""
        return [budget.name for budget in self.budgets]

    def allowed(self, wanted: int, costs: Costs = USUAL) -> int:
        """How many steps of those costs may begin now, of so many."""
        room = [wanted, *(b.places(b.of(costs)) for b in self.budgets)]
        if self.max_in_flight is not None:
            room.append(self.max_in_flight - self.in_flight)
        if self.half_open:
            room.append(1 - self.taken)
        return max(0, min(room))

    def admits(self, costs: Costs) -> bool:
        """Whether one more step, of those costs, may begin with this claim."""
        admitted = self.allowed(1, costs) > 0 and all(b.affords(b.of(costs)) for b in self.budgets)
        if not admitted and self.refused is None:
            self.refused = costs
        return admitted

    def take(self, count: int, costs: Costs = USUAL) -> None:
        """So many steps will begin."""
        self.last_costs = costs
        self.taken += count
        self.in_flight += count
        for budget in self.budgets:
            budget.take(count * budget.of(costs))

    def next_at(self) -> datetime | None:
        """When the gate is worth asking again; None: whenever a unit is due."""
        if self.half_open and self.taken:
            return self.now + timedelta(seconds=PROBE_SECONDS)
        waits = [wait for wait in map(self._wait, self.budgets) if wait is not None]
        if self.full:
            waits.append(FULL_SECONDS)
        # Instants are cut to milliseconds: a moment too early would find nothing.
        return self.now + timedelta(seconds=max(waits)) + _MILLISECOND if waits else None

    def _wait(self, budget: Budget) -> float | None:
        """In how many seconds a budget is worth asking again; None: now."""
        cost = budget.of(self.last_costs if self.refused is None else self.refused)
        if budget.places(cost):
            return None
        if self.refused is not None:
            return budget.wait(cost)
        # The next step may cost less than the last.
        return min(budget.wait(cost), max(budget.wait(budget.cost), PACE))

    def closed(self, until: datetime | None) -> Closed:
        """There is no room until then."""
        why = f"{self.gate_id} has no room"
        if until is None or self.half_open or not self.budgets:
            return Closed(until, why)
        each = max((b.of(self.refused or USUAL) or b.cost) / b.rate for b in self.budgets)
        return Closed(until, why, (until - self.now).total_seconds(), each)

    def given(self) -> Pass:
        """What a call through it carries."""
        return Pass(
            self.gate_id,
            self.epoch,
            troubled=self.throttles > 0 or self.failing_since is not None,
            probe=self.half_open,
            good_for=min((b.horizon for b in self.budgets), default=None),
            placed=self.max_in_flight is not None,
            failures=self.failures,
            failing_since=self.failing_since,
        )

"""A flow: one machine, how it decides, and how it acts.

A lifecycle subclasses `Flow`. `decide` is pure; `look` makes one observation; `act` does one thing and returns what it
came to. None of them writes to the ledger.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from penstock.clock import Rng
from penstock.machine import Machine
from penstock.outcome import Decision, Outcome
from penstock.unit import NO_GATE, Unit

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.runtime.executor import Executor

U = TypeVar("U", bound=Unit)
S = TypeVar("S")
Seen = TypeVar("Seen")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Door:
    """Which gate the unit's next step goes through, and at what cost."""

    gate_id: str = NO_GATE
    cost: int = 1


class Io:
    """What a step may touch besides its connector: the time, chance, and reads of the ledger."""

    def __init__(self, ledger: Ledger, executor: Executor, now: Callable[[], datetime], rng: Rng) -> None:
        self._ledger = ledger
        self._executor = executor
        self.now = now
        self.rng = rng

    async def read(self, work: Callable[[Ledger], T]) -> T:
        """Read the ledger off the event loop."""
        return await self._executor.run(work, self._ledger)


class Flow(ABC, Generic[U, S, Seen]):
    """One configured pipeline over one machine. Subclass it; everything a subclass must give is abstract."""

    machine: ClassVar[Machine]
    #: A step that takes longer is cancelled and counts as in doubt.
    deadline: ClassVar[timedelta] = timedelta(minutes=5)
    #: Units that agree in this field are acted on together by `act_together`.
    batch_by: ClassVar[str | None] = None

    def __init__(self, settings: S, name: str | None = None) -> None:
        self.settings = settings
        self.name = name or self.machine.name

    @staticmethod
    @abstractmethod
    def decide(unit: Any, now: datetime, settings: Any, seen: Any, /) -> Decision:
        """What to do with the unit now, and why. Pure: no clock, no I/O, no state of its own."""

    def door(self, unit: U) -> Door:  # noqa: ARG002 - a flow without a provider needs no door
        """The gate that the unit's next step needs."""
        return Door()

    async def look(self, unit: U, io: Io) -> Seen:
        """One observation of the outside, asked for by `decide`."""
        raise NotImplementedError

    @abstractmethod
    async def act(self, what: str, unit: U, seen: Seen | None, io: Io) -> Outcome[U]:
        """Do what was decided. Raise a StepError when the other side fails."""

    async def look_together(self, units: Sequence[U], io: Io) -> Sequence[Seen]:
        """One observation for siblings (see `batch_by`), in their order."""
        return [await self.look(unit, io) for unit in units]

    async def act_together(
        self, what: str, units: Sequence[U], seen: Sequence[Seen | None], io: Io
    ) -> Sequence[Outcome[U]]:
        """Act on siblings with one call; one outcome each, in their order."""
        return [await self.act(what, unit, found, io) for unit, found in zip(units, seen, strict=True)]

    async def start(self) -> None:
        """Open what the flow needs while a worker runs."""

    async def stop(self) -> None:
        """Close it again."""

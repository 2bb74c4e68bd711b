"""A flow: one machine, how it decides, and how it acts.

A lifecycle subclasses `Flow`. `decide` is pure; `look` makes one observation; `act` does one thing and returns what it
came to. None of them writes to the ledger. Nothing heavy is imported here: a lifecycle in one file subclasses `Flow`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from penstock.model import tenure
from penstock.model.clock import Rng
from penstock.model.errors import StepError, UsageError
from penstock.model.machine import Machine
from penstock.model.outcome import Decision, Outcome
from penstock.model.unit import NO_GATE, Unit

if TYPE_CHECKING:
    from penstock.ledger.gates.budget import Pass
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.stage import Staged
    from penstock.worker.executor import Executor
    from penstock.worker.gates import WorkerGates
    from penstock.worker.stage import Stage

U = TypeVar("U", bound=Unit)
S = TypeVar("S")
Seen = TypeVar("Seen")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gate:
    """Which gate the unit's next step goes through."""

    gate_id: str = NO_GATE


class Io:
    """What a step may touch besides its connector: the time, chance, and reads of the ledger."""

    def __init__(  # noqa: PLR0917 - the parts of a worker
        self,
        ledger: Ledger,
        executor: Executor,
        now: Callable[[], datetime],
        rng: Rng,
        gates: WorkerGates,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """`stopping`: whether the worker was told to stop. A step that takes minutes looks, and ends where it can."""
        self.stopping = stopping
        self._ledger = ledger
        self._gates = gates
        self._executor = executor
        self.now = now
        self.rng = rng

    async def ledger(self, work: Callable[[Ledger], T]) -> T:
        """Read the ledger off the event loop. While it is away this waits; the step's deadline is the limit.

        Work that writes must come to the same when it is done twice: an answer that was lost has it done again.
        """
        from penstock.worker.patience import patiently

        return await patiently(self._executor, self.rng, work, self._ledger)

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Run something that blocks, off the event loop: a write to a disk, a long computation."""
        return await self._executor.run(work, *args)

    def check(self) -> None:
        """Right before a call by a client that is not Penstock's: past the lease it ends the step, and nothing is sent.

        `Http`, gates and deliveries ask by themselves.
        """
        tenure.check()

    def gate(self, gate_id: str, costs: Mapping[str, float] | None = None) -> AbstractAsyncContextManager[Pass]:
        """The gate of a later call of the step: `async with io.gate("shop/acme/download"): …`.

        Where it is closed, the unit waits until it opens and the step begins anew. `costs`: as for `charge`; in a limit
        that they do not name the call takes the usual.
        """
        return self._gates.through(gate_id, costs or {})

    def charge(self, gate_id: str, costs: Mapping[str, float]) -> None:
        """The step used more of a gate's limits than its `Flow.costs` said, or less: `io.charge(gate, {"points": -2})`.

        What is owed is paid before the next call leaves; what was not used is given back.
        """
        self._gates.charge(gate_id, costs)

    async def learn(self, gate_id: str, limit: str, *, left: float | None = None, rate: float | None = None) -> None:
        """What a response says of a limit: how much is left, how fast it refills. It may only lower ours."""
        await self._gates.learn(gate_id, limit, left=left, rate=rate)

    def stage(self, unit: Unit, staged: Staged) -> Stage:
        """A batch of rows for the claimed unit, of any number: `async with io.stage(unit, staged) as stage: …`."""
        from penstock.ledger.stage import StageWriter
        from penstock.worker.stage import Stage

        return Stage(StageWriter(self._ledger.database, staged, unit, self.rng.token()), self._executor, self.rng)


class Flow(ABC, Generic[U, S, Seen]):
    """One configured pipeline over one machine. Subclass it; everything a subclass must give is abstract."""

    machine: ClassVar[Machine]
    #: A step that takes longer is cancelled and counts as in doubt.
    deadline: ClassVar[timedelta] = timedelta(minutes=5)
    #: How often one claim may be kept (`keep_claim`) and decided anew before it counts as a bug that never ends. A flow
    #: that fetches hundreds of pages over one claim says so.
    turns: ClassVar[int] = 100
    #: Whether an outage of the provider is charged to its units. False: a call that fails raises `attempts` only if
    #: another has come through the same gate since the unit's last one failed; the unit then needs the column
    #: `failing_since: datetime | None = None`.
    charges_outages: ClassVar[bool] = True
    #: How many of its units one worker holds at once, where a step needs much memory or others are to have their share.
    #: Siblings are not parted for it.
    at_once: int | None = None

    def __init__(self, settings: S, name: str | None = None) -> None:
        """`name` is what the log and `why` call the flow's steps, where that is not the machine's name."""
        self.settings = settings
        self.name = name or self.machine.name

    @staticmethod
    @abstractmethod
    def decide(unit: Any, now: datetime, settings: Any, seen: Any, /) -> Decision:
        """What to do with the unit now, and why. Pure: no clock, no I/O, no state of its own."""

    def gate(self, unit: U) -> Gate:  # noqa: ARG002 - a flow without a provider needs no gate
        """The gate that the unit's next step needs."""
        return Gate()

    def costs(self, units: Sequence[U]) -> Mapping[str, float]:  # noqa: ARG002 - a call costs what its limit says
        """What the step of a unit, or of siblings, costs in each limit of its gate: all its calls, looks included.

        Asked before the claim, of units as it will leave them; only as much is claimed as the limits have room for. A
        limit that is not named is charged a usual call. A flow that does not say pays one usual call with the claim,
        and for each further call, of a look that asks or of an act, when it was made.
        """
        return {}

    async def look(self, unit: U, io: Io) -> Seen:
        """One observation of the outside, asked for by `decide`."""
        raise NotImplementedError

    def peek(self, unit: U, ledger: Ledger) -> Seen | None:  # noqa: ARG002 - most looks ask a provider
        """For `why`: what a look would find that asks the ledger alone; None where it takes more than that."""
        return None

    @abstractmethod
    async def act(self, what: str, unit: U, seen: Seen | None, io: Io) -> Outcome[U]:
        """Do what was decided. Raise a StepError when the other side fails."""

    async def look_together(self, units: Sequence[U], io: Io) -> Sequence[Seen]:
        """One observation for siblings (see `Machine.siblings`), in their order."""
        return [await self.look(unit, io) for unit in units]

    async def act_together(
        self, what: str, units: Sequence[U], seen: Sequence[Seen | None], io: Io
    ) -> Sequence[Outcome[U]]:
        """Act on siblings with one call; one outcome each, in their order."""
        return [await self.act(what, unit, found, io) for unit, found in zip(units, seen, strict=True)]

    def failed(self, unit: U, error: StepError, now: datetime, rng: Rng) -> Outcome[U] | None:  # noqa: ARG002
        """What becomes of a failed call where the machine's `on_error` is not enough; None leaves it to that.

        Not asked for `Throttled` and `Fatal`, which are the gate's affair, nor for what is not charged. Siblings that
        fail together are given one moment, and `rng` draws the same for each: by these they are tried again together.
        """
        return None

    def committed(self, outcome: Outcome[U]) -> None:
        """Told of each outcome of its steps once it is in the ledger: for the log, on the event loop."""

    def tend(self, ledger: Ledger) -> None:
        """Put right what no step can see, about once a minute while a worker runs; off the event loop."""

    def check(self) -> None:
        """Raise UsageError for a flow that does not charge outages and whose machine cannot keep that."""
        if self.charges_outages:
            return
        machine = self.machine
        if "failing_since" not in machine.columns:
            msg = (
                f"the flow of {machine.name} does not charge outages, and its unit has no column for that;"
                f" add 'failing_since: datetime | None = None' to {machine.unit.__name__}"
            )
            raise UsageError(msg)
        if machine.on_error is not None and machine.on_error.policy.max_retries == 0:
            msg = f"the flow of {machine.name} does not charge outages, and allows no retry; allow one at least"
            raise UsageError(msg)

    async def start(self) -> None:
        """Open what the flow needs while a worker runs."""

    async def stop(self) -> None:
        """Close it again."""


AnyFlow = Flow[Any, Any, Any]


def overrides(flow: AnyFlow, method: str) -> bool:
    """Whether a flow has a method of its own in place of what `Flow` does."""
    return getattr(getattr(flow, method), "__func__", None) is not getattr(Flow, method)

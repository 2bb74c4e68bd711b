"""A claimed unit in a worker's hands, and what a step needs of whoever holds it."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from penstock.ledger.gates.budget import Pass
from penstock.ledger.incarnation import Incarnation
from penstock.ledger.prepare import Preparer
from penstock.model import correlation
from penstock.model.clock import Clock, Rng
from penstock.model.unit import Unit
from penstock.worker.committer import GroupCommitter
from penstock.worker.executor import Executor
from penstock.worker.failure import ALONE, Like
from penstock.worker.flow import AnyFlow, Io, overrides
from penstock.worker.gates import WorkerGates


@dataclass(slots=True)
class Counts:
    """What the worker did since it started."""

    claimed: int = 0
    committed: int = 0
    #: Steps that were committed: siblings make one together.
    steps: int = 0
    lost: int = 0
    refused: int = 0
    failed: int = 0
    reaped: int = 0


class WorkerCounts(Counts):
    """The same, and for each flow by the name of its machine. What was reaped is nobody's."""

    __slots__ = ("flows",)

    def __init__(self) -> None:
        super().__init__()
        self.flows: defaultdict[str, Counts] = defaultdict(Counts)


class Held:
    """A claimed unit; `begun` once its step may have had an effect outside.

    What a quick step never sets stays with the class: thousands are made a second.
    """

    begun = False
    #: Nobody has started its step.
    fresh = True
    task: asyncio.Task[None] | None = None
    started = math.inf
    overdue = False
    displaced = False
    #: Its step has made a call: the one that its place was for.
    called = False
    #: What it has in common with siblings that fail in the same turn.
    fate: Fate | None = None
    #: The sibling that its step belongs to; None: the step is its own.
    alongside: Held | None = None
    #: The unit as it was claimed, once a kept claim has given it another version.
    claimed: Unit | None = None
    #: In how many seconds the commit under way makes something due that this worker may want to claim.
    soon: float | None = None

    def __init__(self, key: tuple[str, str], unit: Unit, flow: AnyFlow, given: Pass | None, taken: float) -> None:
        self.key = key
        self.unit = unit
        self.flow = flow
        #: Leave to call through its gate, taken with the claim at that moment (of the clock's `elapsed`).
        self.given = given
        self.taken = taken


class Fate:
    """What siblings have in common that fail in one turn of their step, so that they are tried again at one instant.

    The moment and the chance are those of the first that fails: whoever asks for a number gets the same one.
    """

    def __init__(self, io: Io, group: Sequence[Held]) -> None:
        self._io = io
        self._fixed: tuple[datetime, int] | None = None
        self.like = Like(max(h.unit.attempts for h in group), max(h.unit.crashes for h in group))

    def now(self) -> datetime:
        return self._fix()[0]

    @property
    def rng(self) -> Rng:
        return Rng(self._fix()[1])

    def _fix(self) -> tuple[datetime, int]:
        if self._fixed is None:
            self._fixed = (self._io.now(), self._io.rng.version())
        return self._fixed


@dataclass(frozen=True, slots=True)
class Parts:
    """What a worker's steps work with."""

    incarnation: Incarnation
    committer: GroupCommitter
    preparer: Preparer
    executor: Executor
    flows: Mapping[str, AnyFlow]
    io: Io
    gates: WorkerGates
    clock: Clock
    counts: WorkerCounts

    def priced(self) -> set[AnyFlow]:
        """The flows that say what a step costs; the others pay for each call."""
        return {flow for flow in self.flows.values() if overrides(flow, "costs")}

    def gated(self) -> set[AnyFlow]:
        """The flows that say which gate a step needs; the units of others stay behind the gate they have."""
        return {flow for flow in self.flows.values() if overrides(flow, "gate")}

    def telling(self) -> set[AnyFlow]:
        """The flows that tell of what was committed."""
        return {flow for flow in self.flows.values() if overrides(flow, "committed")}


class Holder(Protocol):
    """Who holds the units: what a step gives back to it."""

    def drop(self, held: Held, soon: float | None) -> None:
        """The unit is settled; in so many seconds something is due because of it (None: nothing)."""

    def interrupt(self, held: Held) -> None:
        """Nothing can be written of the unit now: keep it until the lease is renewed, then give it back."""

    async def release_behind(self, gates: Collection[str]) -> None:
        """Give back what is claimed and not begun behind gates that have just closed."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the steps; it is waited for at the end."""


def fate_of(held: Held, io: Io) -> tuple[datetime, Rng, Like]:
    """The moment and the chance by which a unit is tried again whose step failed, and whom it is tried again with."""
    if held.fate is None:
        return io.now(), io.rng, ALONE
    return held.fate.now(), held.fate.rng, held.fate.like


def named(held: Held) -> str:
    """The unit, for the log."""
    return f"{held.flow.machine.name}:{held.unit.unit_id}"


def correlation_of(held: Held) -> str:
    """The id of the step that runs here; outside of steps, as when a commit was refused, the unit's own."""
    return correlation.current() or correlation.of(held.flow.machine.name, held.claimed or held.unit)

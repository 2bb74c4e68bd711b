"""Faults on purpose: a flow whose calls fail, lose their answer, or kill their worker, at a point that is named."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeVar

from penstock.model.errors import StepError
from penstock.model.unit import Unit
from penstock.worker.flow import AnyFlow, Flow, Io

F = TypeVar("F", bound=AnyFlow)

KILL: Final = "kill"
"""In place of an error: the worker dies there, as by `kill -9`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong at a point: `at` is "look", or what `decide` calls the act.

    Without `after` the call is never made; with it, it is made, and then its answer is lost. `unit_id` limits it to one
    unit; `times` is how often it happens.
    """

    at: str
    what: StepError | Literal["kill"]
    after: bool = False
    unit_id: str | None = None
    times: int = 1


class Faulty(Flow[Any, Any, Any], Generic[F]):
    """A flow with faults injected; `left` are those that have not happened yet, with how often."""

    def __init__(self, flow: F, faults: Sequence[Fault]) -> None:
        self.flow = flow
        self.left: dict[Fault, int] = {fault: fault.times for fault in faults}
        self.killed: asyncio.Event | None = None
        for name in ("machine", "deadline", "turns", "charges_outages", "at_once", "settings", "name"):
            object.__setattr__(self, name, getattr(flow, name))
        for name in ("decide", "gate", "costs", "failed", "committed", "peek", "tend", "check", "start", "stop"):
            object.__setattr__(self, name, getattr(flow, name))

    @staticmethod
    def decide(unit: Any, now: Any, settings: Any, seen: Any, /) -> Any:
        """The flow's own takes its place."""
        raise NotImplementedError

    async def look(self, unit: Any, io: Io) -> Any:
        await self._fail("look", unit, after=False)
        seen = await self.flow.look(unit, io)
        await self._fail("look", unit, after=True)
        return seen

    async def act(self, what: str, unit: Any, seen: Any, io: Io) -> Any:
        await self._fail(what, unit, after=False)
        outcome = await self.flow.act(what, unit, seen, io)
        await self._fail(what, unit, after=True)
        return outcome

    async def look_together(self, units: Sequence[Any], io: Io) -> Sequence[Any]:
        for unit in units:
            await self._fail("look", unit, after=False)
        seen = await self.flow.look_together(units, io)
        for unit in units:
            await self._fail("look", unit, after=True)
        return seen

    async def act_together(self, what: str, units: Sequence[Any], seen: Sequence[Any], io: Io) -> Sequence[Any]:
        for unit in units:
            await self._fail(what, unit, after=False)
        outcomes = await self.flow.act_together(what, units, seen, io)
        for unit in units:
            await self._fail(what, unit, after=True)
        return outcomes

    async def _fail(self, at: str, unit: Unit, *, after: bool) -> None:
        for fault, left in self.left.items():
            wanted = fault.at == at and fault.after is after and fault.unit_id in (None, unit.unit_id)
            if not wanted:
                continue
            if left > 1:
                self.left[fault] = left - 1
            else:
                del self.left[fault]
            if isinstance(fault.what, StepError):
                raise fault.what
            assert self.killed is not None, "KILL needs run_until_idle or work_until_idle"  # noqa: S101 - a test's own error
            self.killed.set()
            await asyncio.get_running_loop().create_future()


def inject(flow: F, *faults: Fault) -> Faulty[F]:
    """The flow with these faults, which happen in this order where several fit: `Fault("send", Transient("down"))`."""
    return Faulty(flow, faults)

"""A worker's dealings with provider gates: leave for calls within a step, and what the answers mean for everybody."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog

from penstock.ledger.gates.budget import HORIZON, USUAL, Closed, Costs, Pass, Trouble
from penstock.ledger.gates.gates import Gates
from penstock.ledger.schema.columns import readable
from penstock.model import tenure
from penstock.model.clock import Clock, Rng
from penstock.model.errors import (
    BrokenFlow,
    Fatal,
    GateClosed,
    InDoubt,
    LedgerUnavailable,
    StepError,
    Throttled,
    Transient,
)
from penstock.model.unit import NO_GATE
from penstock.worker.executor import Executor

T = TypeVar("T")
log = structlog.get_logger()
_MOST_WAITERS = 1_000
#: How long a step waits for its turn at a budget; longer waits are the unit's, not the step's.
_PATIENCE = 2.0
_Granted = tuple[Pass, float]
#: What trouble a gate is in, from the last success to the next: its epoch, and since when no call has come through.
_Row = tuple[int, datetime | None]


class WorkerGates:
    """Leave is asked for together: whoever comes while the ledger is asked waits for the next answer.

    `wake` is called when a gate may have opened by what was told here.
    """

    def __init__(
        self,
        gates: Gates,
        executor: Executor,
        clock: Clock,
        rng: Rng,
        config_version: str | None = None,
        *,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._wake = wake
        self._gates = gates
        self._executor = executor
        self._clock = clock
        self._rng = rng
        self.config_version = config_version
        #: By gate and costs.
        self._waiting: dict[tuple[Any, ...], deque[asyncio.Future[_Granted]]] = {}
        self._owed: dict[str, tuple[Costs, int]] = {}
        self._open: dict[str, _Granted] = {}
        self._failing: dict[str, tuple[_Row, int]] = {}
        self._healed: dict[str, _Row] = {}
        self._counting: dict[Pass, asyncio.Task[Trouble | None]] = {}
        self._left: set[str] = set()
        self._lessons: dict[tuple[str, str], tuple[float | None, float | None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def through(self, gate_id: str, costs: Costs = USUAL) -> AsyncIterator[Pass]:
        """One call through a gate that the unit does not stand behind. Raises GateClosed, with the moment it opens.

        What the provider answers inside is this gate's affair, not that of the unit's own, and the gate is told even
        if the step deals with it.
        """
        if gate_id == NO_GATE:
            yield Pass(NO_GATE, 0)
            return
        given = await self.enter(gate_id, costs)
        try:
            tenure.check()
            yield given
            self.worked(given)
        except StepError as error:
            if error.through is None:
                error.through = given
                error.until = (await self.failed([given], error)).get(gate_id)
            raise
        finally:
            self.over(given)

    async def enter(self, gate_id: str, costs: Costs = USUAL) -> Pass:
        """Leave for one call, to be made at once."""
        while True:
            known = self._open.get(gate_id)
            if known is None or self._clock.elapsed() - known[1] >= HORIZON:
                known = await self._wait(gate_id, costs)
            given, at = known
            if given.good_for is None or self._clock.elapsed() - at <= given.good_for:
                return given

    def _wait(self, gate_id: str, costs: Costs) -> asyncio.Future[_Granted]:
        future: asyncio.Future[_Granted] = asyncio.get_running_loop().create_future()
        alike = (gate_id, *sorted(costs.items()))
        queue = self._waiting.get(alike)
        if queue is None:
            self._waiting[alike] = queue = deque()
            self._spawn(self._ask(alike, costs))
        queue.append(future)
        return future

    async def _ask(self, alike: tuple[Any, ...], costs: Costs) -> None:
        gate_id, queue = alike[0], self._waiting[alike]
        try:
            while queue:
                wanted = min(len(queue), _MOST_WAITERS)
                at = self._clock.elapsed()
                answer = await self._executor.run(self._gates.enter, gate_id, wanted, costs)
                if isinstance(answer, Closed):
                    await self._refuse(queue, answer)
                else:
                    self._grant(queue, *answer, wanted, at)
        except Exception as error:  # noqa: BLE001 - those who wait must hear of it
            away = isinstance(error, LedgerUnavailable)
            for future in queue:
                if not future.done():
                    future.set_exception(GateClosed(f"{gate_id}: {error}", None) if away else error)
        finally:
            del self._waiting[alike]

    async def _refuse(self, queue: deque[asyncio.Future[_Granted]], answer: Closed) -> None:
        """Where only a budget is spent, the first few wait here; the others come again when it will be their turn.

        Were they all to come when there is room for one, their steps would begin anew time after time.
        """
        patient = 0
        if answer.seconds is not None and answer.seconds <= _PATIENCE:
            patient = 1 + int((_PATIENCE - answer.seconds) / answer.each)
        asked = [future for future in queue if not future.done()]
        queue.clear()
        queue.extend(asked[:patient])
        for turn, future in enumerate(asked[patient:], start=patient):
            until = answer.until and answer.until + timedelta(seconds=turn * answer.each)
            future.set_exception(GateClosed(answer.reason, until))
        if queue and answer.seconds is not None:
            await asyncio.sleep(answer.seconds)

    def _grant(self, queue: deque[asyncio.Future[_Granted]], given: Pass, granted: int, wanted: int, at: float) -> None:
        self.seen([given])
        asked = [future for future in (queue.popleft() for _ in range(wanted)) if not future.done()]
        if given.good_for is None and not given.troubled:
            # Nothing is counted here: the answer stands until it might have changed.
            self._open[given.gate_id] = (given, at)
        for future in asked[:granted]:
            future.set_result((given, at))
        queue.extendleft(reversed(asked[granted:]))  # asked again, which tells until when

    async def failed(self, passes: Iterable[Pass], error: Exception) -> dict[str, datetime | None]:
        """What a failed call means for the gates it went through; those that are now closed, and until when."""
        closed: dict[str, datetime | None] = {}
        reason = readable(str(error))
        for given in sorted(passes, key=lambda p: p.gate_id):
            if isinstance(error, StepError) and error.answered:
                self.worked(given)
                continue
            if isinstance(error, Throttled):
                chance = self._rng.uniform(0.0, 1.0)
                until = await self._told(
                    functools.partial(self._gates.throttle, given, error.retry_after, reason, chance)
                )
            elif isinstance(error, Fatal):
                until = None
                await self._told(functools.partial(self._gates.stop, given.gate_id, reason, self.config_version))
            elif isinstance(error, (Transient, InDoubt)):
                found = await self._count(given, reason)
                if found is not None:
                    error.trouble = {**error.trouble, given.gate_id: found}
                until = found.until if found is not None else None
                if until is None:
                    continue
            else:
                continue
            closed[given.gate_id] = until
            self._open.pop(given.gate_id, None)
        return closed

    async def _count(self, given: Pass, reason: str) -> Trouble | None:
        """One more failure in a row. Calls that were let through together and fail together are told of once."""
        task = self._counting.get(given)
        if task is None:
            work = functools.partial(self._gates.fail, given, reason, self._rng.uniform(0.0, 1.0))
            self._counting[given] = task = self._spawn(self._told(work))
            task.add_done_callback(lambda _: self._counting.pop(given))
        found = await asyncio.shield(task)
        if found is not None and found.failing_since is not None:
            self._notice(given.gate_id, (given.epoch, found.failing_since), found.failures)
        return found

    def seen(self, passes: Iterable[Pass]) -> None:
        """What is known of gates in trouble: the next success through one of them, whichever it is, is to be told."""
        for given in passes:
            if given.troubled:
                self._notice(given.gate_id, (given.epoch, given.failing_since), given.failures)

    def _notice(self, gate_id: str, row: _Row, failures: int) -> None:
        if self._healed.get(gate_id) != row:
            self._failing[gate_id] = (row, failures)

    def leaving(self, given: Pass | None) -> Pass | None:
        """The pass of a call that leaves now and was let through earlier: with what has failed here meanwhile."""
        if given is None or not self._failing:
            return given
        known = self._failing.get(given.gate_id)
        if known is None or known[0][0] != given.epoch:
            return given
        (_, since), failures = known
        return dataclasses.replace(given, troubled=True, failures=failures, failing_since=since)

    async def look_around(self) -> None:
        """Hear of gates that fail elsewhere: a call that was let through long ago may be the one that comes through."""
        self.seen(await self._told(self._gates.failing) or ())

    def worked(self, given: Pass | None) -> None:
        """A call came through: where calls had failed, the ledger is told, once."""
        if given is None or not (given.troubled or self._failing):
            return
        own = ((given.epoch, given.failing_since), given.failures) if given.troubled else (None, 0)
        known, failures = self._failing.get(given.gate_id, own)
        # A call that left before the gate last closed does not show that the provider is back.
        if known is not None and known[0] == given.epoch and self._healed.get(given.gate_id) != known:
            self._failing.pop(given.gate_id, None)
            self._healed[given.gate_id] = known
            self._spawn(self._heal(given, known, failures))

    async def _heal(self, given: Pass, known: _Row, failures: int) -> None:
        try:
            await self._executor.run(self._gates.worked, given)
        except LedgerUnavailable:
            self._healed.pop(given.gate_id, None)
            self._failing[given.gate_id] = (known, failures)  # the next one tells
        self._wake()

    def over(self, given: Pass | None) -> None:
        """The call is over, or was never made: its place is free, and where it was a probe another may go."""
        if given is None:
            return
        if given.probe and self._healed.get(given.gate_id) != (given.epoch, given.failing_since):
            self._spawn(self._opened(functools.partial(self._gates.probe_over, given)))
        elif given.placed:
            if not self._left:
                self._spawn(self._tell_left())
            self._left.add(given.gate_id)

    async def _tell_left(self) -> None:
        left, self._left = self._left, set()
        await self._opened(functools.partial(self._gates.left, left))

    def charge(self, gate_id: str, costs: Costs = USUAL, *, calls: int = 0) -> None:
        """Calls were made that no place was taken for: what they cost by limit, and so many usual ones.

        Less than nothing gives back what was taken and not used. The ledger is told soon, of all of them together.
        """
        if not all(map(math.isfinite, costs.values())):
            raise BrokenFlow(f"what is charged are numbers, not {dict(costs)}")
        if gate_id not in self._owed:
            self._spawn(self._settle(gate_id))
        owed, before = self._owed.get(gate_id, ({}, 0))
        sums = {name: owed.get(name, 0.0) + costs.get(name, 0.0) for name in {*owed, *costs}}
        self._owed[gate_id] = (sums, before + calls)

    async def _settle(self, gate_id: str) -> None:
        costs, calls = self._owed.pop(gate_id)
        await self._told(functools.partial(self._gates.charge, gate_id, costs, calls=calls))

    async def learn(self, gate_id: str, name: str, *, left: float | None = None, rate: float | None = None) -> None:
        """What a response says of a limit: how much is left, how fast it refills. It may only lower ours.

        The ledger is told soon, of what the least of the responses since said.
        """
        key = (gate_id, name)
        if key not in self._lessons:
            self._spawn(self._teach(gate_id, name))
        known = self._lessons.get(key, (None, None))
        self._lessons[key] = (_least(known[0], left), _least(known[1], rate))

    async def _teach(self, gate_id: str, name: str) -> None:
        left, rate = self._lessons.pop((gate_id, name))
        await self._told(functools.partial(self._gates.learn, gate_id, name, left=left, rate=rate))

    async def close(self) -> None:
        """Wait for what was begun."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _told(self, work: Callable[[], Any]) -> Any:
        """Tell the ledger. Where it is away, it does without."""
        try:
            return await self._executor.run(work)
        except LedgerUnavailable:
            return None

    async def _opened(self, work: Callable[[], Any]) -> None:
        await self._told(work)
        self._wake()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _least(one: float | None, other: float | None) -> float | None:
    known = [x for x in (one, other) if x is not None]
    return min(known, default=None)

"""Holding claimed units and running their steps, from claim to commit."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any, NamedTuple

import structlog

from penstock.ledger.claim import Claimed
from penstock.ledger.gates.budget import HORIZON
from penstock.ledger.schema.columns import readable
from penstock.model import tenure
from penstock.model.errors import BrokenFlow, InDoubt, LedgerUnavailable
from penstock.model.outcome import Outcome
from penstock.model.siblings import shared_by
from penstock.model.unit import Unit, replace
from penstock.worker.failure import as_failure, traceback_of
from penstock.worker.flow import AnyFlow
from penstock.worker.held import Held, Parts
from penstock.worker.step import Step

log = structlog.get_logger()
_TURN_SECONDS = 0.01


class Suspect(NamedTuple):
    """A held unit under suspicion: since when it is held (the clock's `elapsed`), its level, and its step."""

    since: float
    level: int
    step: tuple[str, str]


class Holding:
    """Owns every unit the worker holds, and runs at most `concurrency` steps at once.

    `freed(seconds)` tells the worker that a unit was settled, and in how many seconds the commit made something due
    (None: nothing).
    """

    def __init__(
        self,
        parts: Parts,
        *,
        concurrency: int,
        freed: Callable[[float | None], None],
        leased: Callable[[], bool] = lambda: True,
    ) -> None:
        self._incarnation = parts.incarnation
        self._executor = parts.executor
        self._gates = parts.gates
        self._clock = parts.clock
        self._counts = parts.counts
        self._concurrency = concurrency
        self._freed = freed
        self._leased = leased
        self._flow_of: dict[type, tuple[str, AnyFlow]] = {f.machine.unit: (n, f) for n, f in parts.flows.items()}
        self.held: dict[tuple[str, str], Held] = {}
        #: Those of the held that are under suspicion.
        self.suspects: dict[tuple[str, str], Suspect] = {}
        self.suspect_settled = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        self._ready: deque[Held | list[Held]] = deque()
        self._running = 0
        self._alongside = 0
        self._spawning = False
        self._halted = False
        #: Given back when the lease is next renewed: their steps were stopped, or nothing could be written of them.
        self._interrupted: list[Held] = []
        self._gated = parts.gated()
        self._step = Step(parts, self)

    @property
    def steps(self) -> int:
        """How many steps the held units make; siblings make one together."""
        return len(self.held) - self._alongside

    def starts(self, rate: float) -> int:
        """How many calls could leave before a place in a budget is good no longer, at so many steps a second.

        They go before what waits here already; but where something does, half of what becomes free is left to it.
        """
        ahead = sum(1 for _ in itertools.takewhile(_has_place, self._ready))
        free = self._concurrency - self._running - ahead + int(rate * HORIZON / 2)
        return max(0, free if ahead == len(self._ready) else (free + 1) // 2)

    def take(self, claimed: Claimed) -> None:
        """Start work on freshly claimed units; siblings step together (see `model.siblings`)."""
        singles: list[Held] = []
        groups: dict[Any, list[Held]] = {}
        passes, at, holding, flow_of, gated = claimed.passes, claimed.at, self.held, self._flow_of, self._gated
        self._count(claimed)
        for unit in claimed.units:
            name, flow = flow_of[type(unit)]
            key = (name, unit.unit_id)
            held = Held(key, unit, flow, passes.get(unit.gate_id) if passes else None, at)
            if key in holding:
                # Taken from us and claimed anew: the older claim's step, begun or not, has lost its unit.
                self._displaced(holding[key])
                self._alongside -= holding[key].alongside is not None
            holding[key] = held
            if flow in gated and not self._at_its_gate(held):
                continue
            shared = None if flow.machine.siblings is None else shared_by(flow.machine, unit)
            if shared is None:
                singles.append(held)
            else:
                group = groups.setdefault((name, unit.gate_id, shared), [])
                if len(group) == flow.machine.siblings_at_once:  # claims whose answers were lost, taken up together
                    groups[held] = group
                    groups[name, unit.gate_id, shared] = group = []
                if group:
                    held.alongside = group[0]
                    self._alongside += 1
                group.append(held)
            if unit.suspicion:
                step = (held.alongside or held).key
                self.suspects[key] = Suspect(self._clock.elapsed(), unit.suspicion, step)
        fresh: list[Held | list[Held]] = [*singles, *groups.values()]
        if claimed.passes:
            self._gates.seen(claimed.passes.values())
            self._ready.extendleft(reversed([item for item in fresh if _has_place(item)]))
            self._ready.extend(item for item in fresh if not _has_place(item))
        elif claimed.units and claimed.units[0].suspicion:
            # Few at a time, and the sooner they are done the fewer deaths they share: they wait behind nobody.
            self._ready.extendleft(reversed(fresh))
        else:
            self._ready.extend(fresh)
        self._spawn()

    def _at_its_gate(self, held: Held) -> bool:
        """Whether the unit came through the gate that its step needs; if not, it is put there and claimed again."""
        try:
            gate = held.flow.gate(held.unit).gate_id
        except Exception as error:  # noqa: BLE001 - a handler's bug
            self._step.fail(held, error)
            return False
        if gate == held.unit.gate_id:
            return True
        after = replace(held.unit, gate_id=gate)
        self._step.submit(held, Outcome(held.unit, after, f"stands behind {gate}", keep_crashes=True))
        return False

    def _count(self, claimed: Claimed) -> None:
        for kind, count in Counter(map(type, claimed.units)).items():
            self._counts.flows[self._flow_of[kind][0]].claimed += count

    def displace(self, units: Sequence[Held]) -> None:
        """The ledger knows nothing of these claims: their steps end, and whatever they come to is not written."""
        for held in units:
            self._displaced(held)
            self._counts.lost += 1
            self._counts.flows[held.key[0]].lost += 1
            self.drop(held, None)

    def _displaced(self, held: Held) -> None:
        held.displaced = True
        if held.task is not None:
            held.task.cancel()

    def unstarted(self) -> list[Unit]:
        """Take back the units whose step has not started; the caller releases them."""
        taken = self._take_back(lambda _: True)
        for held in taken:
            self._forget(held)
        return [h.unit for h in taken]

    def _take_back(self, which: Callable[[Held], bool]) -> list[Held]:
        waiting = [h for item in self._ready for h in _listed(item)]
        taken = [h for h in waiting if which(h)]
        if taken:
            gone = set(taken)
            rest = [item if isinstance(item, Held) else [h for h in item if h not in gone] for item in self._ready]
            self._ready.clear()  # the runners hold on to it
            self._ready.extend(i for i in rest if (i not in gone if isinstance(i, Held) else i))
        return taken

    def cancel_overdue(self) -> None:
        """Cancel the steps that ran past their flow's deadline; they end in doubt."""
        now = self._clock.elapsed()
        for held in self.held.values():
            if held.task is not None and now - held.started > held.flow.deadline.total_seconds():
                held.overdue = True
                held.task.cancel()

    def halt(self) -> None:
        """The lease may be over: stop every running step and start none, until `resume`."""
        if not self._halted:
            self._halted = True
            # Only those at work. A runner that is cancelled before it has begun never says that it is over, and no
            # other would be started; what gives units back must come to its end.
            for task in {held.task for held in self.held.values() if held.task is not None}:
                task.cancel()

    def interrupted(self) -> list[tuple[Unit, bool]]:
        """What `halt` interrupted, and whether its step had started. The caller releases it, then calls `resume`."""
        return [(h.unit, not h.fresh) for h in self._interrupted]

    def resume(self) -> None:
        """The lease holds after all: go on.

        Until here the interrupted units count as held, so that nobody takes them for units that were claimed unheard.
        """
        self._halted = False
        for held in self._interrupted:
            self._forget(held)
        self._interrupted = []
        self._spawn()

    def _spawn(self) -> None:
        """Start one more runner; each runner starts the next, so quick steps never pay for a task of their own."""
        if self._ready and not self._spawning and not self._halted and self._running < self._concurrency:
            self._spawning = True
            self._running += 1
            self.spawn(self._runner())

    async def _runner(self) -> None:
        self._spawning = False
        task = asyncio.current_task()
        turn = self._clock.elapsed() + _TURN_SECONDS
        ready, step, elapsed = self._ready, self._step, self._clock.elapsed
        tenure.HOLDER.set(self.check)
        try:
            self._halt_unless_leased()
            while ready and not self._halted:
                now = elapsed()
                if now > turn:
                    await asyncio.sleep(0)
                    turn = elapsed() + _TURN_SECONDS
                    self._halt_unless_leased()
                    continue
                item = ready.popleft()
                first = item if isinstance(item, Held) else item[0]
                if first.given is not None and _late(first, now):
                    ready.appendleft(item)
                    await self._release(self._take_back(functools.partial(_late, now=now)))
                    continue
                if ready and not self._spawning:
                    self._spawn()
                try:
                    if first is item and not first.displaced:
                        first.task, first.started, first.fresh = task, now, False
                        await step.alone(first)
                    else:
                        await step.together(_undisplaced(item, task, now))
                except KeyboardInterrupt:
                    raise
                except BaseException as error:
                    if not await self._survived(_listed(item), error):
                        raise
        finally:
            self._running -= 1
            self._spawn()

    def _halt_unless_leased(self) -> None:
        """No step begins past the lease: others may have taken over what is held here."""
        if not self._leased():
            self.halt()

    def check(self) -> None:
        """A call is about to leave: past the lease its step ends here as `halt` ends it, and so do all others."""
        self._halt_unless_leased()
        if self._halted:
            raise asyncio.CancelledError("the lease is over: others may have taken over what is held here")

    async def _survived(self, group: list[Held], error: BaseException) -> bool:
        """Whatever came out of a step, its units are seen to and the runner goes on; False for what ends the runner."""
        if isinstance(error, asyncio.CancelledError):
            return self._cancelled(group)
        if isinstance(error, Exception):  # our own bug
            await self._let_go(group, error)
        else:
            await self._step.failed(self._at_work(group), as_failure(error))
        return True

    def _at_work(self, group: list[Held]) -> list[Held]:
        """Those that are still held here, and whose step has come to nothing yet."""
        return [h for h in group if self.held.get(h.key) is h and h.task is not None]

    async def _let_go(self, group: list[Held], error: Exception) -> None:
        """Whatever went wrong, a unit never stays claimed by a worker that has forgotten it."""
        units = [h.unit.unit_id for h in group]
        log.error("step.lost", units=units, error=repr(error), exception=traceback_of(error))
        group = self._at_work(group)
        if not group:
            return
        try:
            await self._executor.run(self._incarnation.crash, [h.unit for h in group], readable(repr(error)))
        except LedgerUnavailable:
            self._interrupted += group
        else:
            for held in group:
                self.drop(held, None)

    def _cancelled(self, group: list[Held]) -> bool:
        """A halt is kept for later, a deadline ends in doubt; False for a cancellation that ends the runner.

        One that nobody asked for came out of the handler itself: a bug like any other exception.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - runners are tasks
        group = [h for h in group if h.task is task]
        mine = [h for h in group if not h.displaced]
        if self._halted:
            self._interrupted += mine
        elif any(h.displaced for h in group):
            for held in mine:
                self._step.fail(held, InDoubt("a sibling's step was taken over meanwhile"))
        elif any(h.overdue for h in mine):
            for held in mine:
                limit = held.flow.deadline.total_seconds()
                self._step.fail(held, InDoubt(f"the step took longer than its deadline of {limit:g} s"))
        elif not task.cancelling():
            for held in mine:
                self._step.fail(held, BrokenFlow("the step cancelled itself"))
        else:
            return False
        while task.uncancel():
            """The runner goes on with the next unit."""
        return True

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the steps; it is waited for at the end."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def release_behind(self, gates: Collection[str]) -> None:
        """A gate has just closed: what is claimed and not begun waits behind it in the ledger, not here."""
        await self._release(self._take_back(lambda held: held.unit.gate_id in gates))

    async def _release(self, waiting: list[Held]) -> None:
        """Give units back whose step has not started."""
        if not waiting:
            return
        try:
            await self._executor.run(self._incarnation.release, [(held.unit, False) for held in waiting])
        except LedgerUnavailable:
            self._interrupted += waiting  # released when the lease is renewed
            return
        for held in waiting:
            self.drop(held, 0.0)

    def drop(self, held: Held, soon: float | None) -> None:
        """The unit is settled: forget it, and tell the worker."""
        self._forget(held)
        self._freed(soon)

    def interrupt(self, held: Held) -> None:
        """Nothing can be written of the unit now: it is given back when the lease is renewed."""
        self._interrupted.append(held)

    def _forget(self, held: Held) -> None:
        if self.held.get(held.key) is held:
            del self.held[held.key]
            self._alongside -= held.alongside is not None
            if self.suspects and self.suspects.pop(held.key, None) is not None:
                self.suspect_settled.set()
        if held.given is not None:
            self._gates.over(held.given)
            held.given = None


def _listed(item: Held | list[Held]) -> list[Held]:
    return [item] if isinstance(item, Held) else item


def _undisplaced(item: Held | list[Held], task: asyncio.Task[None] | None, now: float) -> list[Held]:
    """Siblings whose step begins now; those that were claimed anew meanwhile are left to their new claim."""
    mine = [held for held in _listed(item) if not held.displaced]
    for held in mine:
        held.task, held.started, held.fresh = task, now, False
    return mine


def _has_place(item: Held | list[Held]) -> bool:
    """Whether a place in a budget waits for the call to leave."""
    given = (item if isinstance(item, Held) else item[0]).given
    return given is not None and given.good_for is not None and given.good_for > 0


def _late(held: Held, now: float) -> bool:
    """Whether a place in a budget was kept for too long: the call might meet those that come after it."""
    return held.given is not None and held.given.good_for is not None and now - held.taken > held.given.good_for

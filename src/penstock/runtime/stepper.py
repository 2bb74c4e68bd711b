"""Stepping claimed units: decide, look, act, and hand the outcome to the committer.

The stepper owns every unit the worker holds, from its claim to its commit.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from penstock.clock import Clock
from penstock.errors import BrokenFlow, Fatal, InDoubt, LedgerUnavailable, Rejected, Throttled
from penstock.ledger.columns import readable
from penstock.ledger.commit import Lost, Refused, Result
from penstock.ledger.entries import Entry, Preparer
from penstock.ledger.session import CRASH_LIMIT, Session
from penstock.outcome import Act, Look, Outcome, Wait
from penstock.runtime.committer import GroupCommitter
from penstock.runtime.executor import Executor
from penstock.runtime.flow import Flow, Io
from penstock.runtime.steps import crashed, failed, spent, throttle, where
from penstock.unit import NO_GATE, Unit, replace

log = structlog.get_logger()
AnyFlow = Flow[Any, Any, Any]
_MAX_TURNS = 100
_ENDLESS = f"decide took more than {_MAX_TURNS} turns over one claim"
_TURN_SECONDS = 0.01
_LAST_CHANCE = CRASH_LIMIT - 1
_SUSPECT_SPACING = timedelta(seconds=1)
_FATAL_SECONDS = 10 * 365 * 86_400.0


@dataclass(slots=True)
class Counts:
    """What the worker did since it started."""

    claimed: int = 0
    committed: int = 0
    lost: int = 0
    refused: int = 0
    failed: int = 0
    reaped: int = 0


@dataclass(slots=True, eq=False)
class Held:
    """A claimed unit; `begun` once its step may have had an effect outside."""

    unit: Unit
    flow: AnyFlow
    begun: bool = False
    task: asyncio.Task[None] | None = None
    started: float = math.inf
    overdue: bool = False


class Stepper:
    """Runs at most `concurrency` steps at once.

    `freed(seconds)` tells the worker that a unit was settled, and in how many seconds the commit made something due
    (None: nothing).
    """

    def __init__(
        self,
        *,
        session: Session,
        committer: GroupCommitter,
        preparer: Preparer,
        executor: Executor,
        flows: dict[str, AnyFlow],
        io: Io,
        clock: Clock,
        counts: Counts,
        concurrency: int,
        freed: Callable[[float | None], None],
    ) -> None:
        self._session = session
        self._committer = committer
        self._preparer = preparer
        self._executor = executor
        self._flows = flows
        self._io = io
        self._clock = clock
        self.counts = counts
        self._concurrency = concurrency
        self._freed = freed
        self._names = {f.machine.unit: n for n, f in flows.items()}
        self._doors = {f for f in flows.values() if type(f).door is not Flow.door}
        self.held: dict[tuple[str, str], Held] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self._ready: deque[Held | list[Held]] = deque()
        self._interrupted: list[Held] = []
        self._running = 0
        self._spawning = False
        self._halted = False

    def take(self, units: Sequence[Unit]) -> None:
        """Start work on freshly claimed units; siblings (see `Flow.batch_by`) step together."""
        groups: dict[Any, list[Held]] = {}
        suspects: list[Held] = []
        for unit in units:
            name = self._names[type(unit)]
            flow = self._flows[name]
            held = Held(unit, flow)
            self.held[name, unit.unit_id] = held
            if unit.crashes >= _LAST_CHANCE:
                suspects.append(held)
            elif flow.batch_by is None:
                self._ready.append(held)
            else:
                groups.setdefault((name, getattr(unit, flow.batch_by)), []).append(held)
        self._ready.extend(groups.values())
        if suspects:
            self._isolate(suspects)
        self._spawn()

    def _isolate(self, suspects: list[Held]) -> None:
        """Step a unit that may kill its worker only while no other such unit is held; put the others off.

        Whatever a dying worker holds counts a crash. Were suspects held together, harmless ones would be parked with
        the one that kills.
        """
        others = any(h.unit.crashes >= _LAST_CHANCE and h not in suspects for h in self.held.values())
        if len(suspects) == 1 and not others:
            self._ready.append(suspects if suspects[0].flow.batch_by else suspects[0])
            return
        now = self._io.now()
        for turn, held in enumerate(suspects, start=int(others)):
            after = replace(held.unit, due_at=now + turn * _SUSPECT_SPACING)
            reason = f"waits to be stepped alone: it was in {held.unit.crashes} steps that did not end"
            self._submit(held, Outcome(held.unit, after, reason, uncharged=True))

    def unstarted(self) -> list[Unit]:
        """Take back the units whose step has not started; the caller releases them."""
        waiting = [h for item in self._ready for h in ([item] if isinstance(item, Held) else item)]
        self._ready.clear()
        for held in waiting:
            self._forget(held)
        return [h.unit for h in waiting]

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
            for task in self.tasks:
                task.cancel()

    def interrupted(self) -> list[Unit]:
        """What `halt` interrupted. The caller releases it, and then calls `resume`."""
        return [h.unit for h in self._interrupted]

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
            task = asyncio.create_task(self._runner())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _runner(self) -> None:
        self._spawning = False
        task = asyncio.current_task()
        turn = self._clock.elapsed() + _TURN_SECONDS
        try:
            while self._ready and not self._halted:
                item = self._ready.popleft()
                if self._ready and not self._spawning:
                    self._spawn()
                now = self._clock.elapsed()
                try:
                    if isinstance(item, Held):
                        item.task, item.started = task, now
                        await self._step(item)
                    else:
                        for held in item:
                            held.task, held.started = task, now
                        await self._step_together(item)
                except asyncio.CancelledError:
                    if not self._cancelled([item] if isinstance(item, Held) else item):
                        raise
                if self._clock.elapsed() > turn:
                    await asyncio.sleep(0)
                    turn = self._clock.elapsed() + _TURN_SECONDS
        finally:
            self._running -= 1
            self._spawn()

    def _cancelled(self, group: list[Held]) -> bool:
        """A halt is kept for later, a deadline ends in doubt; False for a cancellation that ends the runner.

        One that nobody asked for came out of the handler itself: a bug like any other exception.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - runners are tasks
        mine = [h for h in group if h.task is task]
        if self._halted:
            self._interrupted += mine
        elif any(h.overdue for h in mine):
            for held in mine:
                limit = held.flow.deadline.total_seconds()
                self._fail(held, InDoubt(f"the step took longer than its deadline of {limit:g} s"))
        elif not task.cancelling():
            for held in mine:
                self._fail(held, BrokenFlow("the step was cancelled from within"))
        else:
            return False
        while task.uncancel():
            """The runner goes on with the next unit."""
        return True

    async def _step(self, held: Held) -> None:
        """Decide, look at most once, act; and again while the flow keeps its claim."""
        flow, seen, looked = held.flow, None, False
        try:
            for _ in range(_MAX_TURNS):
                decision = flow.decide(held.unit, self._io.now(), flow.settings, seen)
                if type(decision) is Act:
                    if decision.spends and spent(flow.machine, held.unit):
                        self._give_up(held, decision)
                        return
                    held.begun = True
                    outcome = await flow.act(decision.what, held.unit, seen, self._io)
                    if type(outcome) is not Outcome or not outcome.keep_claim:
                        self._submit(held, outcome)
                        return
                    if not await self._keep(held, outcome):
                        return
                    seen, looked = None, False
                elif type(decision) is Look and not looked:
                    held.begun = looked = True
                    seen = await flow.look(held.unit, self._io)
                else:
                    self._wait(held, decision)
                    return
            self._fail(held, BrokenFlow(_ENDLESS))
        except Exception as error:  # noqa: BLE001 - classified by the connector, or a handler's bug
            await self._failed([held], error)

    async def _step_together(self, group: list[Held]) -> None:
        """The same for siblings: they are decided one by one, and looked at and acted on together."""
        flow = group[0].flow
        seen: dict[Held, Any] = {}
        for _ in range(_MAX_TURNS):
            acts, looks = self._decide(flow, group, seen)
            if looks:
                group = await self._look(flow, looks, seen) + [h for part in acts.values() for h in part]
            else:
                group, seen = await self._act(flow, acts, seen), {}
            if not group:
                return
        for held in group:
            self._fail(held, BrokenFlow(_ENDLESS))

    def _give_up(self, held: Held, decision: Act) -> None:
        """The last call was in doubt, a look has settled it, and there are no calls left."""
        self._fail(held, Rejected(f"all retries are used up, and it was decided: {decision.reason}"))

    def _wait(self, held: Held, decision: object) -> None:
        if type(decision) is Wait:
            after = replace(held.unit, due_at=decision.until)
            self._submit(held, Outcome(held.unit, after, decision.reason))
        else:
            self._fail(held, BrokenFlow(f"decide may look once and then act or wait; it returned {decision!r}"))

    def _decide(
        self, flow: AnyFlow, group: list[Held], seen: dict[Held, Any]
    ) -> tuple[dict[str, list[Held]], list[Held]]:
        acts: dict[str, list[Held]] = {}
        looks: list[Held] = []
        now = self._io.now()
        for held in group:
            try:
                decision = flow.decide(held.unit, now, flow.settings, seen.get(held))
            except Exception as error:  # noqa: BLE001 - a handler's bug must not end the worker
                self._fail(held, error)
                continue
            if type(decision) is Act and decision.spends and spent(flow.machine, held.unit):
                self._give_up(held, decision)
            elif type(decision) is Act:
                acts.setdefault(decision.what, []).append(held)
            elif type(decision) is Look and held not in seen:
                looks.append(held)
            else:
                self._wait(held, decision)
        return acts, looks

    async def _look(self, flow: AnyFlow, looks: list[Held], seen: dict[Held, Any]) -> list[Held]:
        for held in looks:
            held.begun = True
        try:
            found = await flow.look_together([h.unit for h in looks], self._io)
            seen.update(zip(looks, found, strict=True))
        except Exception as error:  # noqa: BLE001 - classified by the connector, or a bug
            await self._failed(looks, error)
            return []
        return looks

    async def _act(self, flow: AnyFlow, acts: dict[str, list[Held]], seen: dict[Held, Any]) -> list[Held]:
        kept: list[Held] = []
        for what, group in acts.items():
            for held in group:
                held.begun = True
            try:
                found = [seen.get(h) for h in group]
                outcomes = await flow.act_together(what, [h.unit for h in group], found, self._io)
                pairs = list(zip(group, outcomes, strict=True))
            except Exception as error:  # noqa: BLE001 - classified by the connector, or a bug
                await self._failed(group, error)
                continue
            for held, outcome in pairs:
                if type(outcome) is not Outcome or not outcome.keep_claim:
                    self._submit(held, outcome)
                elif await self._keep(held, outcome):
                    kept.append(held)
        return kept

    async def _keep(self, held: Held, outcome: Outcome[Any]) -> bool:
        """Commit an intent and go on with the unit as it came back."""
        entry = self._entry(held, outcome)
        if entry is None:
            return False
        # The deadline is for the handler: what the ledger takes, or its absence, is not counted.
        begun, held.started = held.started, math.inf
        asked = self._clock.elapsed()
        answer = await self._committer.commit(entry)
        held.started = begun + self._clock.elapsed() - asked
        if isinstance(answer, (Lost, Refused)):
            self._settle(held, answer, None)
            return False
        held.unit = answer
        return True

    async def _failed(self, group: list[Held], error: Exception) -> None:
        """A failed call: a throttle or a fatal error closes the door before the units go back."""
        gates = {h.unit.gate_id for h in group} - {NO_GATE}
        if gates and isinstance(error, (Throttled, Fatal)):
            fatal = isinstance(error, Fatal)
            seconds = throttle(error, self._io.rng).total_seconds() if isinstance(error, Throttled) else _FATAL_SECONDS
            for gate in sorted(gates):
                close = functools.partial(self._session.close_gate, gate, seconds, readable(str(error)), alert=fatal)
                try:
                    await self._executor.run(close)
                except LedgerUnavailable as away:
                    log.warning("ledger.away", error=str(away))
        for held in group:
            self._fail(held, error)

    def _fail(self, held: Held, error: Exception) -> None:
        self.counts.failed += 1
        machine = held.flow.machine
        log.info("step.failed", unit=f"{machine.name}:{held.unit.unit_id}", error=repr(error), at=where(error))
        self._submit(held, failed(machine, held.unit, error, self._io.now(), self._io.rng))

    def _submit(self, held: Held, outcome: Outcome[Any]) -> None:
        entry = self._entry(held, outcome)
        if entry is not None:
            held.task = None
            soon = _soon(entry, outcome, self._io.now)
            self._committer.submit(entry, lambda result: self._settle(held, result, soon))

    def _entry(self, held: Held, outcome: Outcome[Any]) -> Entry | None:
        """The outcome checked and put behind its door; one that breaks the rules counts as a crash and is None."""
        try:
            if not isinstance(outcome, Outcome) or outcome.before is not held.unit:
                raise BrokenFlow(f"a step returns the outcome of its own unit, not {outcome!r:.200}")  # noqa: TRY301
            if held.flow in self._doors:
                gate = held.flow.door(outcome.after).gate_id
                if gate != outcome.after.gate_id:
                    outcome = dataclasses.replace(outcome, after=replace(outcome.after, gate_id=gate))
            return self._preparer.entry(outcome, self._session.identity.id)
        except Exception as error:  # noqa: BLE001 - an outcome that breaks the rules is a handler's bug
            self._crash(held, error)
            return None

    def _crash(self, held: Held, error: Exception) -> None:
        machine = held.flow.machine
        log.error("step.broken", unit=f"{machine.name}:{held.unit.unit_id}", error=repr(error), at=where(error))
        outcome = crashed(machine, held.unit, error, self._io.now(), self._io.rng)
        entry = self._preparer.entry(outcome, self._session.identity.id)
        held.task = None

        def noted(result: Result) -> None:
            if isinstance(result, Refused):
                # Not even the crash can be written: the ledger is not what this program takes it for.
                raise result.error
            self._drop(held, None)

        self._committer.submit(entry, noted)

    def _settle(self, held: Held, result: Result, soon: float | None) -> None:
        if isinstance(result, Refused):
            self.counts.refused += 1
            self._crash(held, result.error)
            return
        if isinstance(result, Lost):
            self.counts.lost += 1
            soon = None
        else:
            self.counts.committed += 1
        self._drop(held, soon)

    def _drop(self, held: Held, soon: float | None) -> None:
        self._forget(held)
        self._freed(soon)

    def _forget(self, held: Held) -> None:
        self.held.pop((held.flow.machine.name, held.unit.unit_id), None)


def _soon(entry: Entry, outcome: Outcome[Any], now: Callable[[], datetime]) -> float | None:
    """In how many seconds this commit makes something due that this worker may want to claim."""
    if outcome.also or entry.tallies:
        return 0.0
    due: datetime | None = outcome.after.due_at
    if due is None or str(outcome.after.status) in entry.change.machine.terminal:
        return None
    return (due - now()).total_seconds()

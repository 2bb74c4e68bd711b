"""Stepping claimed units: decide, look, act, and hand the outcome to the committer.

The stepper owns every unit the worker holds, from its claim to its commit.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from penstock.clock import Clock
from penstock.errors import BrokenFlow, Fatal, InDoubt, LedgerError, LedgerUnavailable, Rejected, Throttled
from penstock.ledger.columns import readable
from penstock.ledger.commit import AlsoMissed, Lost, Refused, Result, Won
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
    displaced: bool = False


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
        leased: Callable[[], bool] = lambda: True,
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
        self._leased = leased
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
            displaced = self.held.get((name, unit.unit_id))
            if displaced is not None:
                # Taken from us and claimed anew: the older claim's step, begun or not, has lost its unit.
                displaced.displaced = True
                if displaced.task is not None:
                    displaced.task.cancel()
            self.held[name, unit.unit_id] = held
            if flow in self._doors and not self._at_its_door(held):
                continue
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

    def _at_its_door(self, held: Held) -> bool:
        """Whether the unit came through the gate that its step needs; if not, it is put there and claimed again."""
        try:
            gate = held.flow.door(held.unit).gate_id
        except Exception as error:  # noqa: BLE001 - a handler's bug
            self._fail(held, error)
            return False
        if gate == held.unit.gate_id:
            return True
        after = replace(held.unit, gate_id=gate)
        self._submit(held, Outcome(held.unit, after, f"stands behind {gate}", uncharged=True))
        return False

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

    def unstarted(self, gates: Collection[str] | None = None) -> list[Unit]:
        """Take back the units whose step has not started, all or those behind some gates; the caller releases them."""
        waiting = [h for item in self._ready for h in ([item] if isinstance(item, Held) else item)]
        taken = [h for h in waiting if gates is None or h.unit.gate_id in gates]
        if taken:
            gone = set(taken)
            rest = [item if isinstance(item, Held) else [h for h in item if h not in gone] for item in self._ready]
            self._ready = deque(i for i in rest if (i not in gone if isinstance(i, Held) else i))
        for held in taken:
            self._forget(held)
        return [h.unit for h in taken]

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
            self._spawn_task(self._runner())

    async def _runner(self) -> None:
        self._spawning = False
        task = asyncio.current_task()
        turn = self._clock.elapsed() + _TURN_SECONDS
        try:
            self._halt_unless_leased()
            while self._ready and not self._halted:
                now = self._clock.elapsed()
                if now > turn:
                    await asyncio.sleep(0)
                    turn = self._clock.elapsed() + _TURN_SECONDS
                    self._halt_unless_leased()
                    continue
                item = self._ready.popleft()
                if self._ready and not self._spawning:
                    self._spawn()
                await self._run(item, task, now)
        finally:
            self._running -= 1
            self._spawn()

    def _halt_unless_leased(self) -> None:
        """No step begins past the lease: others may have taken over what is held here."""
        if not self._leased():
            self.halt()

    async def _run(self, item: Held | list[Held], task: asyncio.Task[None] | None, now: float) -> None:
        """One step of one unit, or of siblings; those that were claimed anew meanwhile are left to their new claim."""
        group = [h for h in ([item] if isinstance(item, Held) else item) if not h.displaced]
        for held in group:
            held.task, held.started = task, now
        try:
            if isinstance(item, Held):
                if group:
                    await self._step(item)
            elif group:
                await self._step_together(group)
        except asyncio.CancelledError:
            if not self._cancelled(group):
                raise
        except Exception as error:  # noqa: BLE001 - our own bug: the units go back, and the worker lives
            await self._let_go(group, error)

    async def _let_go(self, group: list[Held], error: Exception) -> None:
        """Whatever went wrong, a unit never stays claimed by a worker that has forgotten it."""
        log.error("step.lost", units=[h.unit.unit_id for h in group], error=repr(error), at=where(error))
        mine = [h for h in group if self.held.get((h.flow.machine.name, h.unit.unit_id)) is h and h.task is not None]
        try:
            await self._executor.run(self._session.release, [(h.unit, True) for h in mine])
        except LedgerUnavailable as away:
            log.warning("ledger.away", error=str(away))
            self._interrupted += mine  # released when the lease is renewed
            return
        for held in mine:
            self._drop(held, 0.0)

    def _cancelled(self, group: list[Held]) -> bool:
        """A halt is kept for later, a deadline ends in doubt; False for a cancellation that ends the runner.

        One that nobody asked for came out of the handler itself: a bug like any other exception.
        """
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - runners are tasks
        mine = [h for h in group if h.task is task and not h.displaced]
        if self._halted:
            self._interrupted += mine
        elif any(h.displaced for h in group):
            for held in mine:
                self._fail(held, InDoubt("a sibling's step was taken over meanwhile"))
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
                    if not await self._keep(held, outcome, [held]):
                        return
                    seen, looked = None, False
                elif type(decision) is Look and not looked:
                    held.begun = looked = True
                    seen = await flow.look(held.unit, self._io)
                else:
                    self._wait(held, decision, looked=looked)
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

    def _wait(self, held: Held, decision: object, *, looked: bool) -> None:
        if type(decision) is Wait:
            after = replace(held.unit, due_at=decision.until)
            # A look that settled nothing leaves the doubt: the crash that asked for it is not forgiven by waiting.
            self._submit(held, Outcome(held.unit, after, decision.reason, uncharged=looked))
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
                self._wait(held, decision, looked=held in seen)
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
                elif await self._keep(held, outcome, group):
                    kept.append(held)
        return kept

    async def _keep(self, held: Held, outcome: Outcome[Any], group: Sequence[Held]) -> bool:
        """Commit an intent and go on with the unit as it came back."""
        entry = self._entry(held, outcome)
        if entry is None:
            return False
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def done(result: Result) -> None:
            if not future.done():
                future.set_result(result)
            elif isinstance(result, Won):
                # The step was cancelled while its intent was being committed: the claim it kept is given back.
                self._spawn_task(self._give_back(result.unit))

        # The deadline is for the handlers: what the ledger takes, or its absence, is not counted.
        asked, begun = self._clock.elapsed(), {h: h.started for h in group}
        for sibling in group:
            sibling.started = math.inf
        self._committer.submit(entry, done)
        result = await future
        for sibling in group:
            sibling.started = begun[sibling] + self._clock.elapsed() - asked
        if not isinstance(result, Won):
            self._settle(held, result, None)
            return False
        held.unit = result.unit
        return True

    async def _give_back(self, unit: Unit) -> None:
        try:
            await self._executor.run(self._session.release, [(unit, True)])
        except LedgerUnavailable as away:
            log.warning("ledger.away", error=str(away))

    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

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
        if gates and isinstance(error, (Throttled, Fatal)):
            await self._release_behind(gates)
        for held in group:
            self._fail(held, error)

    async def _release_behind(self, gates: Collection[str]) -> None:
        """A door has just closed: what is claimed and not begun waits behind it in the ledger, not here."""
        waiting = self.unstarted(gates)
        if waiting:
            try:
                await self._executor.run(self._session.release, [(unit, False) for unit in waiting])
            except LedgerUnavailable as away:
                log.warning("ledger.away", error=str(away))
                self.take(waiting)

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
                # Not even the crash can be written: the unit is set aside by the least of statements.
                self._aside(held, result.error)
            else:
                self._drop(held, None)

        self._committer.submit(entry, noted)

    def _aside(self, held: Held, error: Exception) -> None:
        async def park() -> None:
            try:
                await self._executor.run(self._session.park, held.unit, readable(str(error)))
            except LedgerError as refused:
                log.error("step.stuck", unit=held.unit.unit_id, error=str(refused))  # noqa: TRY400 - one line is enough
            self._drop(held, None)

        self._spawn_task(park())

    def _settle(self, held: Held, result: Result, soon: float | None) -> None:
        if isinstance(result, Refused) and isinstance(result.error, AlsoMissed):
            # Nobody's fault: another unit moved on. The step is taken again on what is there now.
            self._submit(held, Outcome(held.unit, replace(held.unit), str(result.error), uncharged=True))
            return
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
        key = (held.flow.machine.name, held.unit.unit_id)
        if self.held.get(key) is held:
            del self.held[key]


def _soon(entry: Entry, outcome: Outcome[Any], now: Callable[[], datetime]) -> float | None:
    """In how many seconds this commit makes something due that this worker may want to claim."""
    if outcome.also or entry.tallies:
        return 0.0
    due: datetime | None = outcome.after.due_at
    if due is None or str(outcome.after.status) in entry.change.machine.terminal:
        return None
    return (due - now()).total_seconds()

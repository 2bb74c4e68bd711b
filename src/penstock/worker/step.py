"""One step of a claimed unit: decide, look, act, and hand the outcome to the committer."""

from __future__ import annotations

import asyncio
import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from penstock.ledger.commit import OthersMissed, Refused, Result, Won
from penstock.ledger.gates.budget import Pass, Trouble
from penstock.ledger.prepare import DUE, PreparedOutcome, Preparer
from penstock.ledger.schema.columns import readable
from penstock.ledger.session import Session
from penstock.model import correlation
from penstock.model.clock import Clock
from penstock.model.errors import (
    BrokenFlow,
    Fatal,
    GateClosed,
    LedgerError,
    LedgerUnavailable,
    MustWait,
    Rejected,
    StepError,
    Throttled,
)
from penstock.model.outcome import Act, Look, Outcome, Wait
from penstock.model.unit import NO_GATE, Unit, replace
from penstock.worker.committer import GroupCommitter
from penstock.worker.executor import Executor
from penstock.worker.failure import crashed, failed, following_of, spared, spent, traceback_of, where
from penstock.worker.flow import AnyFlow, Flow, Io
from penstock.worker.gates import WorkerGates

log = structlog.get_logger()

#: What siblings do together, and whether that makes a call.
_What = tuple[str, bool]
_UNKNOWN_WAIT = timedelta(seconds=60)


@dataclass(slots=True)
class Counts:
    """What the worker did since it started."""

    claimed: int = 0
    committed: int = 0
    lost: int = 0
    refused: int = 0
    failed: int = 0
    reaped: int = 0


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


@dataclass(frozen=True, slots=True)
class Parts:
    """What stepping works with."""

    session: Session
    committer: GroupCommitter
    preparer: Preparer
    executor: Executor
    flows: Mapping[str, AnyFlow]
    io: Io
    doors: WorkerGates
    clock: Clock
    counts: Counts


class Stepping(ABC):
    """What happens within a step. Its subclass holds the units and runs the steps."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._session = parts.session
        self._committer = parts.committer
        self._prepare = parts.preparer.entry
        self._who = parts.session.identity.id
        self._executor = parts.executor
        self._io = parts.io
        self._doors = parts.doors
        self._clock = parts.clock
        self.counts = parts.counts
        #: Given back when the lease is next renewed: their steps were stopped, or nothing could be written of them.
        self._interrupted: list[Held] = []
        self._with_door = {f for f in parts.flows.values() if type(f).gate is not Flow.gate}

    @abstractmethod
    def _drop(self, held: Held, soon: float | None) -> None:
        """The unit is settled."""

    @abstractmethod
    async def _release_behind(self, gates: Collection[str]) -> None:
        """Give back what is claimed and not begun behind gates that have just closed."""

    @abstractmethod
    def _spawn_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something beside the steps; it is waited for at the end."""

    async def _step(self, held: Held) -> None:
        """Decide, look at most once, act; and again while the flow keeps its claim."""
        flow, io, seen, looked = held.flow, self._io, None, False
        machine = flow.machine
        correlation.STEP.set((machine.name, held.unit, 1))
        held.given = self._doors.leaving(held.given)
        try:
            for _ in range(flow.turns):
                decision = flow.decide(held.unit, io.now(), flow.settings, seen)
                if type(decision) is Act:
                    if decision.counts_attempt and spent(machine, held.unit):
                        self._give_up(held, decision)
                        return
                    held.begun = True
                    outcome = await flow.act(decision.what, held.unit, seen, io)
                    if held.given is not None and decision.counts_attempt:
                        self._answered([held], [outcome])
                    if type(outcome) is not Outcome or not outcome.keep_claim:
                        self._submit(held, outcome)
                        return
                    if not await self._keep(held, outcome, [held]):
                        return
                    seen, looked = None, False
                elif type(decision) is Look and not looked:
                    held.begun = looked = True
                    seen = await flow.look(held.unit, io)
                    if held.given is not None and decision.asks:
                        self._doors.worked(held.given)
                else:
                    self._wait(held, decision, looked=looked)
                    return
            self._fail(held, _endless(flow))
        except Exception as error:  # noqa: BLE001 - classified by the connector, or a handler's bug
            await self._failed([held], error)

    async def _step_together(self, group: list[Held]) -> None:
        """The same for siblings: they are decided one by one, and looked at and acted on together."""
        if not group:
            return
        flow = group[0].flow
        correlation.STEP.set((flow.machine.name, group[0].unit, len(group)))
        for held in group:
            held.given = self._doors.leaving(held.given)
        seen: dict[Held, Any] = {}
        for _ in range(flow.turns):
            acts, looks = self._decide(flow, group, seen)
            if looks:
                group = await self._look(flow, looks, seen) + [h for part in acts.values() for h in part]
            else:
                group, seen = await self._act(flow, acts, seen), {}
            if not group:
                return
        for held in group:
            self._fail(held, _endless(flow))

    def _give_up(self, held: Held, decision: Act) -> None:
        """The last call was in doubt, a look has settled it, and there are no calls left."""
        self._fail(held, Rejected(f"all retries are used up, and it was decided: {decision.reason}"))

    def _wait(self, held: Held, decision: object, *, looked: bool) -> None:
        if type(decision) is Wait:
            # Waiting settles no doubt and forgives no crash. The worker lives, which clears whom nothing else accuses.
            after = replace(held.unit, due_at=decision.until)
            if not held.unit.crashes:
                after = replace(after, suspicion=0)
            keep_crashes = looked or held.unit.doubts + held.unit.crashes > 0
            self._submit(held, Outcome(held.unit, after, decision.reason, keep_crashes=keep_crashes))
        else:
            self._fail(held, BrokenFlow(f"decide may look once and then act or wait; it returned {decision!r}"))

    def _decide(
        self, flow: AnyFlow, group: list[Held], seen: dict[Held, Any]
    ) -> tuple[dict[_What, list[Held]], dict[Held, Look]]:
        acts: dict[_What, list[Held]] = {}
        looks: dict[Held, Look] = {}
        now = self._io.now()
        for held in group:
            try:
                decision = flow.decide(held.unit, now, flow.settings, seen.get(held))
            except Exception as error:  # noqa: BLE001 - a handler's bug must not end the worker
                self._fail(held, error)
                continue
            if type(decision) is Act and decision.counts_attempt and spent(flow.machine, held.unit):
                self._give_up(held, decision)
            elif type(decision) is Act:
                acts.setdefault((decision.what, decision.counts_attempt), []).append(held)
            elif type(decision) is Look and held not in seen:
                looks[held] = decision
            else:
                self._wait(held, decision, looked=held in seen)
        return acts, looks

    async def _look(self, flow: AnyFlow, looks: dict[Held, Look], seen: dict[Held, Any]) -> list[Held]:
        group = list(looks)
        for held in group:
            held.begun = True
        try:
            found = await flow.look_together([h.unit for h in group], self._io)
            if any(look.asks for look in looks.values()):
                self._doors.worked(group[0].given)
            seen.update(zip(group, found, strict=True))
        except Exception as error:  # noqa: BLE001 - classified by the connector, or a bug
            await self._failed(group, error)
            return []
        return group

    async def _act(self, flow: AnyFlow, acts: dict[_What, list[Held]], seen: dict[Held, Any]) -> list[Held]:
        kept: list[Held] = []
        for (what, counts_attempt), group in acts.items():
            for held in group:
                held.begun = True
            try:
                found = [seen.get(h) for h in group]
                outcomes = await flow.act_together(what, [h.unit for h in group], found, self._io)
                pairs = list(zip(group, outcomes, strict=True))
                if counts_attempt:
                    self._answered(group, outcomes)
            except Exception as error:  # noqa: BLE001 - classified by the connector, or a bug
                await self._failed(group, error)
                continue
            for held, outcome in pairs:
                if type(outcome) is not Outcome or not outcome.keep_claim:
                    self._submit(held, outcome)
                elif await self._keep(held, outcome, group):
                    kept.append(held)
        return kept

    def _answered(self, group: Sequence[Held], outcomes: Sequence[object]) -> None:
        """The provider was asked and has answered; not so where only an intent was made."""
        if not all(isinstance(o, Outcome) and o.keep_crashes for o in outcomes):
            self._doors.worked(group[0].given)

    async def _keep(self, held: Held, outcome: Outcome[Any], group: Sequence[Held]) -> bool:
        """Commit an intent and go on with the unit as it came back."""
        entry = self._entry(held, outcome)
        if entry is None:
            return False
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def done(_held: Held, result: Result) -> None:
            if not future.done():
                future.set_result(result)
            elif isinstance(result, Won):
                # The step was cancelled while its intent was being committed: the claim it kept is given back.
                self._spawn_task(self._give_back(result.unit))

        # The deadline is for the handlers: what the ledger takes, or its absence, is not counted.
        asked, begun = self._clock.elapsed(), {h: h.started for h in group}
        for sibling in group:
            sibling.started = math.inf
        self._committer.submit(entry, done, held)
        result = await future
        for sibling in group:
            sibling.started = begun[sibling] + self._clock.elapsed() - asked
        if not isinstance(result, Won):
            self._settle(held, result)
            return False
        held.claimed = held.claimed or held.unit
        before, held.unit = held.unit, result.unit
        return held.unit.gate_id == before.gate_id or await self._change_doors(held)

    async def _change_doors(self, held: Held) -> bool:
        """The unit kept its claim and now stands behind another gate, which is asked before the step goes on."""
        self._doors.over(held.given)
        held.given = None
        try:
            if held.unit.gate_id != NO_GATE:
                held.given = await self._doors.enter(held.unit.gate_id)
        except Exception as error:  # noqa: BLE001 - it is closed, or cannot be asked
            await self._failed([held], error)
            return False
        return True

    async def _give_back(self, unit: Unit) -> None:
        with contextlib.suppress(LedgerUnavailable):
            await self._executor.run(self._session.release, [(unit, True)])

    async def _failed(self, group: list[Held], error: Exception) -> None:
        """A failed call: whatever closes the door closes it before the units go back."""
        if isinstance(error, StepError) and error.through is not None:
            # Another door than the unit's own: it was told, and if it closed, the unit waits for it to open.
            if error.until is not None or isinstance(error, (Throttled, Fatal)):
                await self._release_behind({error.through.gate_id})
            if isinstance(error, (Throttled, Fatal)):
                error = GateClosed(f"{type(error).__name__}: {error}", error.until)
        else:
            closed = await self._doors.failed({h.given for h in group if h.given is not None}, error)
            if closed:
                await self._release_behind(closed)
        for held in group:
            if isinstance(error, MustWait):
                self._put_off(held, error)
            else:
                self._fail(held, error)

    def _put_off(self, held: Held, error: MustWait) -> None:
        """What the step needs is closed or away: nobody is charged, and the step begins anew when it is there."""
        until = error.until or self._io.now() + _UNKNOWN_WAIT
        self._submit(
            held, Outcome(held.unit, replace(held.unit, due_at=until), readable(str(error)), keep_crashes=True)
        )

    def _fail(self, held: Held, error: Exception) -> None:
        self.counts.failed += 1
        outcome = self._outcome_of(held, error)
        if isinstance(error, StepError):
            log.info(
                "step.failed",
                unit=_named(held),
                job=held.flow.name,
                error=repr(error),
                at=where(error),
                next=following_of(outcome),
                correlation=_correlation(held),
            )
        else:
            _tell_bug(held, error, outcome)
        self._submit(held, outcome)

    def _outcome_of(self, held: Held, error: Exception) -> Outcome[Any]:
        """What a failed step comes to: the flow's own view of it, else what the machine declares."""
        now, rng, own, flow = self._io.now(), self._io.rng, None, held.flow
        trouble = None if flow.charges_outages else _trouble(held, error)
        if trouble is not None and trouble.failing_since == held.unit.failing_since is not None:  # type: ignore[attr-defined]
            return spared(flow.machine, held.unit, error, trouble, now=now, rng=rng)
        if isinstance(error, StepError) and not isinstance(error, (Throttled, Fatal)):
            try:
                own = flow.failed(held.unit, error, now, rng)
            except Exception as bug:  # noqa: BLE001 - a handler's bug must not end the worker
                outcome = crashed(flow.machine, held.unit, bug, now, rng)
                _tell_bug(held, bug, outcome)
                return outcome
        outcome = own or failed(flow.machine, held.unit, error, now, rng)
        if trouble is not None:
            after = replace(outcome.after, failing_since=trouble.failing_since)
            outcome = replace(outcome, after=after)
        return outcome

    def _submit(self, held: Held, outcome: Outcome[Any]) -> None:
        entry = self._entry(held, outcome)
        if entry is not None:
            held.task = None
            if entry.more or entry.change.row[DUE] is not None:
                held.soon = _soon(entry, outcome, self._io.now)
            self._committer.submit(entry, self._settle, held)

    def _entry(self, held: Held, outcome: Outcome[Any]) -> PreparedOutcome | None:
        """The outcome checked and put behind its door; one that breaks the rules counts as a crash and is None."""
        try:
            if not isinstance(outcome, Outcome) or outcome.before is not held.unit:
                raise BrokenFlow(f"a step returns the outcome of its own unit, not {outcome!r:.200}")  # noqa: TRY301
            if held.flow in self._with_door:
                gate = held.flow.gate(outcome.after).gate_id
                if gate != outcome.after.gate_id:
                    outcome = replace(outcome, after=replace(outcome.after, gate_id=gate))
            return self._prepare(outcome, self._who)
        except Exception as error:  # noqa: BLE001 - an outcome that breaks the rules is a handler's bug
            self._crash(held, error)
            return None

    def _crash(self, held: Held, error: Exception) -> None:
        outcome = crashed(held.flow.machine, held.unit, error, self._io.now(), self._io.rng)
        _tell_bug(held, error, outcome)
        entry = self._prepare(outcome, self._who)
        held.task = None

        def noted(held: Held, result: Result) -> None:
            if isinstance(result, Refused):
                # Not even the crash can be written: the unit is set aside by the least of statements.
                self._aside(held, result.error)
            else:
                self._drop(held, None)

        self._committer.submit(entry, noted, held)

    def _aside(self, held: Held, error: Exception) -> None:
        async def park() -> None:
            try:
                await self._executor.run(self._session.park, held.unit, readable(f"{type(error).__name__}: {error}"))
            except LedgerUnavailable:
                self._interrupted.append(held)
                return
            except LedgerError as refused:
                log.error("step.stuck", unit=held.unit.unit_id, error=str(refused), correlation=_correlation(held))  # noqa: TRY400 - one line is enough
            self._drop(held, None)

        self._spawn_task(park())

    def _settle(self, held: Held, result: Result) -> None:
        if type(result) is Won:
            self.counts.committed += 1
            self._drop(held, held.soon)
            return
        if isinstance(result, Refused) and isinstance(result.error, OthersMissed):
            # Nobody's fault: another unit moved on. The step is taken again on what is there now.
            self._submit(held, Outcome(held.unit, replace(held.unit), str(result.error), keep_crashes=True))
            return
        if isinstance(result, Refused):
            self.counts.refused += 1
            self._crash(held, result.error)
            return
        self.counts.lost += 1
        self._drop(held, None)


def _endless(flow: AnyFlow) -> BrokenFlow:
    """A claim that is kept for ever would never be parked, whatever it comes to."""
    return BrokenFlow(f"decide took more than {flow.turns} turns over one claim; see Flow.turns")


def _tell_bug(held: Held, error: Exception, outcome: Outcome[Any]) -> None:
    """An error in somebody's code: where it came from, and what becomes of the unit."""
    log.error(
        "step.broken",
        unit=_named(held),
        job=held.flow.name,
        error=repr(error),
        next=following_of(outcome),
        exception=traceback_of(error),
        correlation=_correlation(held),
    )


def _named(held: Held) -> str:
    return f"{held.flow.machine.name}:{held.unit.unit_id}"


def _trouble(held: Held, error: Exception) -> Trouble | None:
    """What the failed call found at the gate that it went through."""
    if not isinstance(error, StepError):
        return None
    given = error.through or held.given
    return None if given is None else error.trouble.get(given.gate_id)


def _correlation(held: Held) -> str:
    """The id of the step that runs here; outside of steps, as when a commit was refused, the unit's own."""
    return correlation.current() or correlation.of(held.flow.machine.name, held.claimed or held.unit)


def _soon(entry: PreparedOutcome, outcome: Outcome[Any], now: Callable[[], datetime]) -> float | None:
    """In how many seconds this commit makes something due that this worker may want to claim."""
    if outcome.others or entry.tallies or entry.events:
        return 0.0
    due: datetime | None = outcome.after.due_at
    if due is None or entry.change.row[DUE] is None:
        return None
    return (due - now()).total_seconds()

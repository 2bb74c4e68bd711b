"""One step of a claimed unit: decide, look, act, and hand the outcome to the committer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import structlog

from penstock.ledger.gates.budget import USUAL, Trouble
from penstock.ledger.schema.columns import readable
from penstock.model import correlation, trace
from penstock.model.errors import BrokenFlow, Fatal, GateClosed, MustWait, Rejected, StepError, Throttled
from penstock.model.outcome import Act, Look, Outcome, Wait
from penstock.model.unit import NO_GATE, replace
from penstock.worker.failure import crashed, failed, following_of, spared, spent, where
from penstock.worker.flow import AnyFlow
from penstock.worker.handover import Handover, tell_bug
from penstock.worker.held import Fate, Held, Holder, Parts, correlation_of, fate_of, named
from penstock.worker.prices import price

log = structlog.get_logger()

#: What siblings do together, and whether that makes a call.
_What = tuple[str, bool]
_UNKNOWN_WAIT = timedelta(seconds=60)


class Step:
    """What happens within a step. Its holder says when, and hears of what it came to."""

    def __init__(self, parts: Parts, holder: Holder) -> None:
        self._holder = holder
        self._io = parts.io
        self._gates = parts.gates
        self._counts = parts.counts
        self._priced = parts.priced()
        self._handover = Handover(parts, holder)
        self.submit = self._handover.submit
        if trace.on():
            self.alone, self.together = self._traced_alone, self._traced_together  # type: ignore[method-assign]

    async def alone(self, held: Held) -> None:
        """Decide, look at most once, act; and again while the flow keeps its claim."""
        flow, io, seen, looked = held.flow, self._io, None, False
        machine = flow.machine
        correlation.STEP.set((machine.name, held.unit, 1))
        held.given = self._gates.leaving(held.given)
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
                        self.submit(held, outcome)
                        return
                    if not await self._keep([(held, outcome)], [held]):
                        return
                    seen, looked = None, False
                elif type(decision) is Look and not looked:
                    held.begun = looked = True
                    seen = await flow.look(held.unit, io)
                    if held.given is not None and decision.asks:
                        self._called([held])
                else:
                    self._wait(held, decision, looked=looked)
                    return
            self.fail(held, _endless(flow))
        except Exception as error:  # noqa: BLE001 - classified by the connector, or a handler's bug
            await self.failed([held], error)

    async def _traced_alone(self, held: Held) -> None:
        with trace.span(held.flow.machine.name, unit=f"{held.flow.machine.name}:{held.unit.unit_id}"):
            await type(self).alone(self, held)

    async def _traced_together(self, group: list[Held]) -> None:
        if group:
            name = group[0].flow.machine.name
            with trace.span(name, unit=f"{name}:{group[0].unit.unit_id}", together=len(group)):
                await type(self).together(self, group)

    async def together(self, group: list[Held]) -> None:
        """The same for siblings: they are decided one by one, and looked at and acted on together."""
        if not group:
            return
        flow = group[0].flow
        correlation.STEP.set((flow.machine.name, group[0].unit, len(group)))
        for held in group:
            held.given = self._gates.leaving(held.given)
        seen: dict[Held, Any] = {}
        for _ in range(flow.turns):
            fate = Fate(self._io, group)
            for held in group:
                held.fate = fate
            acts, looks = self._decide(flow, group, seen)
            if looks:
                group = await self._look(flow, looks, seen) + [h for part in acts.values() for h in part]
            else:
                group, seen = await self._act(flow, acts, seen), {}
            if not group:
                return
        for held in group:
            self.fail(held, _endless(flow))

    def _give_up(self, held: Held, decision: Act) -> None:
        """The last call was in doubt, a look has settled it, and there are no calls left."""
        self.fail(held, Rejected(f"all retries are used up, and the last decision was: {decision.reason}"))

    def _wait(self, held: Held, decision: object, *, looked: bool) -> None:
        if type(decision) is Wait:
            # Waiting settles no doubt and forgives no crash. The worker lives, which clears whom nothing else accuses.
            after = replace(held.unit, due_at=decision.until)
            if not held.unit.crashes:
                after = replace(after, suspicion=0)
            keep_crashes = looked or held.unit.doubts + held.unit.crashes > 0
            self.submit(held, Outcome(held.unit, after, decision.reason, keep_crashes=keep_crashes))
        else:
            self.fail(held, BrokenFlow(f"decide may look once and then act or wait; it returned {decision!r}"))

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
                self.fail(held, error)
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
                self._called(group)
            seen.update(zip(group, found, strict=True))
        except Exception as error:  # noqa: BLE001 - classified by the connector, or a bug
            await self.failed(group, error)
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
                await self.failed(group, error)
                continue
            keeping = [(h, o) for h, o in pairs if type(o) is Outcome and o.keep_claim]
            for held, outcome in pairs:
                if type(outcome) is not Outcome or not outcome.keep_claim:
                    self.submit(held, outcome)
            kept += await self._keep(keeping, group)
        return kept

    def _answered(self, group: Sequence[Held], outcomes: Sequence[object]) -> None:
        """The provider was asked and has answered; not so where only an intent was made."""
        if not all(isinstance(o, Outcome) and o.keep_crashes for o in outcomes):
            self._called(group)

    def _called(self, group: Sequence[Held]) -> None:
        """A call came through."""
        self._gates.worked(group[0].given)
        self._charge(group)

    def _charge(self, group: Sequence[Held]) -> None:
        """A call was made. The first had its place; each further one is owed, unless the flow has named its costs."""
        given = group[0].given
        if given is None or given.good_for is None or group[0].flow in self._priced:
            return
        if any(held.called for held in group):
            self._gates.charge(given.gate_id, calls=1)
        for held in group:
            held.called = True

    async def _keep(self, kept: Sequence[tuple[Held, Outcome[Any]]], group: Sequence[Held]) -> list[Held]:
        """Commit intents; those whose step goes on."""
        staying: list[Held] = []
        moved: dict[str, list[Held]] = {}
        for held, outcome in kept:
            gate = held.unit.gate_id
            if await self._handover.keep(held, outcome, group):
                (staying if held.unit.gate_id == gate else moved.setdefault(held.unit.gate_id, [])).append(held)
        for gate, siblings in moved.items():
            if await self._change_gates(gate, siblings):
                staying += siblings
        return staying

    async def _change_gates(self, gate: str, group: list[Held]) -> bool:
        """Units kept their claim and now stand behind another gate, which is asked once before their step goes on."""
        flow = group[0].flow
        for held in group:
            self._gates.over(held.given)
            held.given, held.called = None, False
        try:
            if gate != NO_GATE:
                costs = price(flow, [h.unit for h in group]) if flow in self._priced else USUAL
                given = await self._gates.enter(gate, costs)
                for held in group:
                    held.given = given
        except Exception as error:  # noqa: BLE001 - it is closed, or cannot be asked
            await self.failed(group, error)
            return False
        return True

    async def failed(self, group: list[Held], error: Exception) -> None:
        """A failed call: whatever closes the gate closes it before the units go back."""
        trace.failed(error)
        if isinstance(error, StepError) and error.through is not None:
            # Another gate than the unit's own: it was told, and if it closed, the unit waits for it to open.
            if error.until is not None or isinstance(error, (Throttled, Fatal)):
                await self._holder.release_behind({error.through.gate_id})
            if isinstance(error, (Throttled, Fatal)):
                error = GateClosed(f"{type(error).__name__}: {error}", error.until)
        else:
            if isinstance(error, StepError) and not isinstance(error, MustWait):
                self._charge(group)
            closed = await self._gates.failed({h.given for h in group if h.given is not None}, error)
            if closed:
                await self._holder.release_behind(closed)
        for held in group:
            if isinstance(error, MustWait):
                self._put_off(held, error)
            else:
                self.fail(held, error)

    def _put_off(self, held: Held, error: MustWait) -> None:
        """What the step needs is closed or away: nobody is charged, and the step begins anew when it is there."""
        until = error.until or fate_of(held, self._io)[0] + _UNKNOWN_WAIT
        self.submit(held, Outcome(held.unit, replace(held.unit, due_at=until), readable(str(error)), keep_crashes=True))

    def fail(self, held: Held, error: Exception) -> None:
        """One unit's step failed: commit what becomes of it, and log why."""
        self._counts.failed += 1
        self._counts.flows[held.key[0]].failed += 1
        outcome = self._outcome_of(held, error)
        if isinstance(error, StepError):
            log.info(
                "step.failed",
                unit=named(held),
                job=held.flow.name,
                error=repr(error),
                at=where(error),
                next=following_of(outcome),
                correlation=correlation_of(held),
            )
        else:
            tell_bug(held, error, outcome)
        self.submit(held, outcome)

    def _outcome_of(self, held: Held, error: Exception) -> Outcome[Any]:
        """What a failed step comes to: the flow's own view of it, else what the machine declares."""
        own, flow = None, held.flow
        now, rng, like = fate_of(held, self._io)
        trouble = None if flow.charges_outages else _trouble(held, error)
        if trouble is not None and trouble.failing_since == held.unit.failing_since is not None:  # type: ignore[attr-defined]
            return spared(flow.machine, held.unit, error, trouble, now=now, rng=rng, like=like)
        if isinstance(error, StepError) and not isinstance(error, (Throttled, Fatal)):
            try:
                own = flow.failed(held.unit, error, now, rng)
            except Exception as bug:  # noqa: BLE001 - a handler's bug must not end the worker
                outcome = crashed(flow.machine, held.unit, bug, now, rng, like=like)
                tell_bug(held, bug, outcome)
                return outcome
        outcome = own or failed(flow.machine, held.unit, error, now, rng, like=like)
        if trouble is not None:
            after = replace(outcome.after, failing_since=trouble.failing_since)
            outcome = replace(outcome, after=after)
        return outcome


def _endless(flow: AnyFlow) -> BrokenFlow:
    """A claim that is kept for ever would never be parked, whatever it comes to."""
    return BrokenFlow(f"decide took more than {flow.turns} turns over one claim; see Flow.turns")


def _trouble(held: Held, error: Exception) -> Trouble | None:
    """What the failed call found at the gate that it went through."""
    if not isinstance(error, StepError):
        return None
    given = error.through or held.given
    return None if given is None else error.trouble.get(given.gate_id)

"""An outcome handed to the committer: checked before, and what becomes of its unit after."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import structlog

from penstock.ledger.commit import OthersMissed, Refused, Result, Won
from penstock.ledger.prepare import DUE, PreparedOutcome
from penstock.ledger.schema.columns import readable
from penstock.model.errors import BrokenFlow, LedgerError, LedgerUnavailable
from penstock.model.outcome import Outcome
from penstock.model.unit import Unit, replace
from penstock.worker.failure import crashed, following_of, traceback_of
from penstock.worker.held import Held, Holder, Parts, correlation_of, fate_of, named

log = structlog.get_logger()


class Handover:
    """Takes the outcomes of steps to the committer, and tells the holder when their units are settled."""

    def __init__(self, parts: Parts, holder: Holder) -> None:
        self._holder = holder
        self._incarnation = parts.incarnation
        self._committer = parts.committer
        self._prepare = parts.preparer.entry
        self._who = parts.incarnation.identity.id
        self._executor = parts.executor
        self._io = parts.io
        self._clock = parts.clock
        self._counts = parts.counts
        self._gated, self._telling = parts.gated(), parts.telling()

    def submit(self, held: Held, outcome: Outcome[Any]) -> None:
        """Commit what a step came to; its unit is settled by that."""
        entry = self._entry(held, outcome)
        if entry is not None:
            held.task = None
            if entry.more or entry.change.row[DUE] is not None:
                held.soon = _soon(entry, outcome, self._io.now)
            settle = functools.partial(self._settle_and_tell, outcome) if held.flow in self._telling else self._settle
            self._committer.submit(entry, settle, held)

    async def keep(self, held: Held, outcome: Outcome[Any], group: Sequence[Held]) -> bool:
        """Commit an intent whose claim is kept; whether the step goes on, with the unit as it came back."""
        entry = self._entry(held, outcome)
        if entry is None:
            return False
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()

        def done(_held: Held, result: Result) -> None:
            if not future.done():
                future.set_result(result)
            elif isinstance(result, Won):
                # The step was cancelled while its intent was being committed: the claim it kept is given back.
                self._holder.spawn(self._give_back(result.unit))

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
        held.unit = result.unit
        if held.flow in self._telling:
            held.flow.committed(outcome)
        return True

    async def _give_back(self, unit: Unit) -> None:
        with contextlib.suppress(LedgerUnavailable):
            await self._executor.run(self._incarnation.release, [(unit, True)])

    def _entry(self, held: Held, outcome: Outcome[Any]) -> PreparedOutcome | None:
        """The outcome checked and put behind its gate; one that breaks the rules counts as a crash and is None."""
        try:
            if not isinstance(outcome, Outcome) or outcome.before is not held.unit:
                raise BrokenFlow(f"a step returns the outcome of its own unit, not {outcome!r:.200}")  # noqa: TRY301
            if held.flow in self._gated:
                gate = held.flow.gate(outcome.after).gate_id
                if gate != outcome.after.gate_id:
                    outcome = replace(outcome, after=replace(outcome.after, gate_id=gate))
            return self._prepare(outcome, self._who)
        except Exception as error:  # noqa: BLE001 - an outcome that breaks the rules is a handler's bug
            self._crash(held, error)
            return None

    def _crash(self, held: Held, error: Exception) -> None:
        now, rng, like = fate_of(held, self._io)
        outcome = crashed(held.flow.machine, held.unit, error, now, rng, like=like)
        tell_bug(held, error, outcome)
        entry = self._prepare(outcome, self._who)
        held.task = None

        def noted(held: Held, result: Result) -> None:
            if isinstance(result, Refused):
                # Not even the crash can be written: the unit is set aside by the least of statements.
                self._aside(held, result.error)
            else:
                self._holder.drop(held, None)

        self._committer.submit(entry, noted, held)

    def _aside(self, held: Held, error: Exception) -> None:
        reason = readable(f"{type(error).__name__}: {error}")

        async def park() -> None:
            try:
                await self._executor.run(self._incarnation.park, held.unit, reason)
            except LedgerUnavailable:
                self._holder.interrupt(held)
                return
            except LedgerError as refused:
                log.error("step.stuck", unit=held.unit.unit_id, error=str(refused), correlation=correlation_of(held))  # noqa: TRY400 - one line is enough
            self._holder.drop(held, None)

        self._holder.spawn(park())

    def _settle_and_tell(self, outcome: Outcome[Any], held: Held, result: Result) -> None:
        self._settle(held, result)
        if type(result) is Won:
            held.flow.committed(outcome)

    def _settle(self, held: Held, result: Result) -> None:
        if type(result) is Won:
            own = self._counts.flows[held.key[0]]
            for counts in (self._counts, own):
                counts.committed += 1
                counts.steps += held.alongside is None
            self._holder.drop(held, held.soon)
            return
        if isinstance(result, Refused) and isinstance(result.error, OthersMissed):
            # Nobody's fault: another unit moved on. The step is taken again on what is there now.
            self.submit(held, Outcome(held.unit, replace(held.unit), str(result.error), keep_crashes=True))
            return
        if isinstance(result, Refused):
            self._counts.refused += 1
            self._counts.flows[held.key[0]].refused += 1
            self._crash(held, result.error)
            return
        self._counts.lost += 1
        self._counts.flows[held.key[0]].lost += 1
        self._holder.drop(held, None)


def tell_bug(held: Held, error: Exception, outcome: Outcome[Any]) -> None:
    """An error in somebody's code: where it came from, and what becomes of the unit."""
    log.error(
        "step.broken",
        unit=named(held),
        job=held.flow.name,
        error=repr(error),
        next=following_of(outcome),
        exception=traceback_of(error),
        correlation=correlation_of(held),
    )


def _soon(entry: PreparedOutcome, outcome: Outcome[Any], now: Callable[[], datetime]) -> float | None:
    """In how many seconds this commit makes something due that this worker may want to claim."""
    if outcome.others or entry.tallies or entry.events:
        return 0.0
    due: datetime | None = outcome.after.due_at
    if due is None or entry.change.row[DUE] is None:
        return None
    return (due - now()).total_seconds()

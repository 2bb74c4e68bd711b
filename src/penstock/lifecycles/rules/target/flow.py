"""The flow of targets: the variants of one product are looked at together and set by one call.

A call whose answer is lost leaves its targets in doubt, and only a look settles that: a target in doubt is never given
up. What was seen to be somebody else's price is never overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.ledger.schema.columns import readable
from penstock.lifecycles.rules.describe import money
from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.lifecycles.rules.shop import Configured
from penstock.lifecycles.rules.target.decide import Seen, decide, gate, in_doubt
from penstock.lifecycles.rules.target.machine import MAX_RETRIES, RETRIES, Cause, T, Target, rule_target
from penstock.lifecycles.rules.target.reads import Reads
from penstock.model.clock import Rng
from penstock.model.errors import Fatal, InDoubt, Rejected, StepError, Transient
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Event, Move, Outcome
from penstock.model.unit import NO_GATE, replace
from penstock.worker.flow import Flow, Gate, Io

APPLY = "automation.target.apply"
_NEVER = datetime.min.replace(tzinfo=UTC)
_LESSON_EVERY = timedelta(seconds=1)


class Unread(Transient):
    """The live prices could not be read: whatever was in doubt still is."""


class Targets(Flow[Target, RulesSettings, Seen]):
    """Applies the targets of every configured account."""

    machine = rule_target
    decide = staticmethod(decide)

    def __init__(self, settings: RulesSettings, accounts: Mapping[str, Configured]) -> None:
        super().__init__(settings)
        self.deadline = settings.step_timeout  # type: ignore[misc] # of this program
        self._accounts = accounts
        self._taught: dict[str, datetime] = {}
        self._reads = {name: Reads(own.shop.read, own.reads_at_once) for name, own in accounts.items()}

    def gate(self, unit: Target) -> Gate:
        return Gate(gate(unit, self.settings))

    def costs(self, units: Sequence[Target]) -> Mapping[str, float]:
        """One look at each of them and one call that sets them all."""
        own = self._accounts.get(units[0].account)
        return own.shop.costs(reads=len(units), writes=len(units)) if own is not None else {}

    async def look(self, unit: Target, io: Io) -> Seen:
        (found,) = await self.look_together([unit], io)
        return found

    async def look_together(self, units: Sequence[Target], io: Io) -> Sequence[Seen]:
        own = self._account(units[0])
        # A stopped target stands behind no gate. If it is in doubt, its look goes through the account's all the same.
        async with io.gate(own.gate if units[0].gate_id == NO_GATE else NO_GATE):
            try:
                found = await self._reads[own.name].read([unit.id for unit in units])
            except (Rejected, Transient, InDoubt) as error:
                # A look that fails or is refused says nothing of the target.
                unread = Unread(f"the live prices cannot be read: {error}")
                unread.answered = error.answered
                raise unread from error
        return [Seen(live) for live in found]

    async def act(self, what: str, unit: Target, seen: Seen | None, io: Io) -> Outcome[Target]:
        (outcome,) = await self.act_together(what, [unit], [seen], io)
        return outcome

    async def act_together(
        self, what: str, units: Sequence[Target], seen: Sequence[Seen | None], io: Io
    ) -> Sequence[Outcome[Target]]:
        refused: Mapping[str, str] = {}
        if what == "send":
            prices = {unit.id: Price.from_json(unit.after_json or {}) for unit in units}
            before = {unit.id: Price.from_json(unit.before_json) for unit in units}
            own = self._account(units[0])
            refused = await own.shop.write(units[0].product_id, prices, before)
            await self._learn(own, io)
        elif what == "rest":
            rested = "waits for its run"
            return [Outcome(unit, replace(unit, status=T.QUEUED, due_at=None), rested) for unit in units]
        elif what != "record":
            return [given_up(what, unit, found) for unit, found in zip(units, seen, strict=True)]
        originals = await self._originals(units, io)
        now = io.now()
        return [
            failed(unit, Cause.REFUSED, why)
            if (why := refused.get(unit.id)) is not None
            else applied(unit, "already there" if what == "record" else "set", originals.get(unit.id), now)
            for unit in units
        ]

    def failed(self, unit: Target, error: StepError, now: datetime, rng: Rng) -> Outcome[Target] | None:
        """Four calls at most; a target in doubt stays until a look settles it."""
        why = readable(f"{type(error).__name__}: {error}")
        if isinstance(error, Rejected):
            return failed(unit, Cause.REFUSED, why)
        exhausted = RETRIES.exhausted(unit.attempts)
        attempts = min(unit.attempts + 1, MAX_RETRIES)
        due = now + RETRIES.delay(unit.attempts, rng)
        lost = isinstance(error, InDoubt)
        if lost or (in_doubt(unit) and isinstance(error, Unread)):
            since, spent = unit.in_doubt_since or now, unit.spent or (lost and exhausted)
            after = replace(unit, attempts=attempts, spent=spent, in_doubt_since=since, due_at=due)
            return Outcome(unit, after, why, events=_tried(unit, error, why))
        # A call was refused or did not leave, and the look before it has settled what was in doubt until then.
        if exhausted:
            return failed(unit, Cause.RETRIES, f"{why} (after {unit.attempts} retries)")
        after = replace(unit, status=T.QUEUED, attempts=attempts, in_doubt_since=None, due_at=due)
        return Outcome(unit, after, why, events=_tried(unit, error, why))

    async def stop(self) -> None:
        for reads in self._reads.values():
            await reads.close()
        for own in self._accounts.values():
            await own.shop.close()

    def _account(self, unit: Target) -> Configured:
        if unit.account not in self._accounts:
            if unit.account in self.settings.accounts:
                raise Fatal(f"the account {unit.account!r} is paused by the configuration")
            raise Fatal(f"no account is called {unit.account!r}; add [rules.accounts.{unit.account}]")
        return self._accounts[unit.account]

    async def _learn(self, own: Configured, io: Io) -> None:
        """Go by what the provider says of its bucket, which others may share; at most once a second."""
        left, rate = own.shop.bucket
        if (left, rate) == (None, None) or io.now() - self._taught.get(own.name, _NEVER) < _LESSON_EVERY:
            return
        self._taught[own.name] = io.now()
        await io.learn(own.gate, "points", left=left, rate=rate)

    async def _originals(self, units: Sequence[Target], io: Io) -> Mapping[str, Target]:
        """The targets that these roll back, by variant."""
        ids = {f"{unit.rolls_back}/{unit.unit_id.partition('/')[2]}" for unit in units if unit.rolls_back is not None}
        if not ids:
            return {}
        found: list[Target] = await io.ledger(lambda ledger: ledger.get_many(rule_target, sorted(ids)))
        return {target.id: target for target in found}


def applied(unit: Target, how: str, original: Target | None, now: datetime) -> Outcome[Target]:
    """The price is there. Where it rolls another target back, that one is rolled back with it."""
    after = replace(unit, status=T.APPLIED, applied_at=now, in_doubt_since=None, due_at=None, held=False)
    others: list[Birth | Move] = []
    if original is not None and original.status is T.APPLIED:
        back = replace(original, status=T.ROLLED_BACK, due_at=None)
        others.append(Move(original, back, f"rolled back by run {unit.rule_run_id}", Actor.API, unit.asked_by))
    return Outcome(unit, after, how, events=[_event(unit, "applied", how)], others=others)


def failed(unit: Target, cause: Cause, why: str, live: Price | None = None) -> Outcome[Target]:
    """The target is given up: a dead letter, which says why."""
    after = replace(
        unit,
        status=T.FAILED,
        cause=cause,
        error=why,
        live_json=None if live is None else live.as_json(),
        in_doubt_since=None,
        due_at=None,
    )
    return Outcome(unit, after, f"{cause}: {why}", events=[_event(unit, "failed", f"{cause}: {why}")])


def given_up(what: str, unit: Target, seen: Seen | None) -> Outcome[Target]:
    """What becomes of a target that is not to be set."""
    live = seen.live if seen is not None else None
    if what == "halt":
        return failed(unit, Cause.HALTED, "its run was stopped before it was sent")
    if what == "gone":
        return failed(unit, Cause.DELETED, "the variant does not exist any more")
    if what == "conflict":
        before, after = Price.from_json(unit.before_json), Price.from_json(unit.after_json or {})
        why = f"the live price is {money(live)}; it was {money(before)}, and was to become {money(after)}"
        return failed(unit, Cause.CONFLICT, why, live)
    return failed(unit, Cause.RETRIES, "no call of it has arrived, and no retry is left")


def _tried(unit: Target, error: StepError, why: str) -> list[Event]:
    """That a call was made and is made again; a look is no call that sets anything."""
    return [] if isinstance(error, Unread) else [_event(unit, "tried", why)]


def event_key(unit: Target) -> str:
    """One key for each attempt, however often it is told: `run:target:apply:attempts`, and the round of retries."""
    again = f":r{unit.retry_round}" if unit.retry_round else ""
    return f"{unit.rule_run_id}:{unit.id}:apply:{unit.attempts}{again}"


def _event(unit: Target, result: str, why: str) -> Event:
    payload: dict[str, Any] = {
        "targetId": unit.id,
        "runId": str(unit.rule_run_id),
        "sku": unit.sku,
        "result": result,
        "reason": why,
    }
    return Event(event_key(unit), APPLY, payload, tenant=unit.tenant_id)

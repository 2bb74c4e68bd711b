"""What becomes of a step that failed: the error, classified by the connector, becomes an outcome."""

from __future__ import annotations

import traceback
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from penstock.ledger.gates.budget import Trouble
from penstock.ledger.schema.columns import readable
from penstock.ledger.suspicion import CRASH_LIMIT
from penstock.model.clock import Rng, instant_text
from penstock.model.errors import BrokenFlow, Fatal, InDoubt, Rejected, StepError, Throttled, Transient
from penstock.model.machine import Machine
from penstock.model.outcome import Event, Outcome
from penstock.model.retry import LONGEST_WAIT, OUTAGE_POLICY, THROTTLE_POLICY, RetryPolicy
from penstock.model.unit import NO_GATE, Unit, replace

_CRASH_POLICY = RetryPolicy(base=timedelta(seconds=2), cap=timedelta(seconds=64))


class Like(NamedTuple):
    """The most retries and crashes among siblings that failed together: all of them wait as long as that one."""

    attempts: int = 0
    crashes: int = 0


ALONE = Like()


def as_failure(error: BaseException) -> BrokenFlow:
    """What is no Exception and was raised in a step (SystemExit, a panic of an extension) is a bug like any other."""
    bug = BrokenFlow(f"the step raised {type(error).__name__}: {error}")
    bug.__cause__ = error
    return bug


def failed(
    machine: Machine, unit: Unit, error: Exception, now: datetime, rng: Rng, *, like: Like = ALONE
) -> Outcome[Any]:
    """The outcome of a failed step: retry, dead letter, park or wait, as the machine's `on_error` says."""
    rules = machine.on_error
    text = readable(f"{type(error).__name__}: {error}")
    stay = unit.status if rules is None or rules.retry is None else type(unit.status)(rules.retry)
    if isinstance(error, Fatal) and unit.gate_id == NO_GATE:
        return _park(machine, unit, text, now)
    if isinstance(error, (Throttled, Fatal)):
        # Nobody is charged: the gate is closed, the unit keeps its attempts and its schedule. Where there is no
        # gate to close, the unit itself waits.
        due = now + throttle(error, rng) if isinstance(error, Throttled) and unit.gate_id == NO_GATE else unit.due_at
        after = replace(unit, status=stay, due_at=due, suspicion=0)
        return Outcome(unit, after, text, events=_long(machine, unit, error), keep_crashes=True)
    if rules is None or not isinstance(error, StepError):
        return crashed(machine, unit, error, now, rng, like=like)
    # A call whose answer is unknown is never given up unseen: past its retries it may still look, until that works.
    doubtful = isinstance(error, InDoubt) or spent(machine, unit)
    if isinstance(error, (Transient, InDoubt)) and (doubtful or not rules.policy.exhausted(unit.attempts)):
        due = now + rules.policy.delay(max(unit.attempts, like.attempts), rng)
        attempts = min(unit.attempts, rules.policy.max_retries) + 1
        return Outcome(unit, replace(unit, status=stay, attempts=attempts, due_at=due), text)
    if rules.dead is not None:
        after = replace(unit, status=type(unit.status)(rules.dead), due_at=None)
        why = text if isinstance(error, Rejected) else f"{text} (after {unit.attempts} retries)"
        return Outcome(unit, after, why, events=[_alert(machine, unit, "unit.dead", "warning", why)])
    return _park(machine, unit, text, now)


def spared(
    machine: Machine,
    unit: Unit,
    error: Exception,
    trouble: Trouble,
    *,
    now: datetime,
    rng: Rng,
    like: Like = ALONE,
) -> Outcome[Any]:
    """A failure that is the provider's alone: the unit is tried again, later and later, and is charged nothing."""
    rules = machine.on_error
    stay = unit.status if rules is None or rules.retry is None else type(unit.status)(rules.retry)
    tries = max(unit.attempts, like.attempts, trouble.failures)
    due = max(now + OUTAGE_POLICY.delay(tries, rng), trouble.until or now)
    row = f"not charged: the provider does not answer, {trouble.failures} failures in a row"
    why = readable(f"{type(error).__name__}: {error} ({row})")
    # One attempt at least: a flow may look, before it sends again, for what a failed call left behind.
    return Outcome(unit, replace(unit, status=stay, attempts=max(1, unit.attempts), due_at=due), why)


def spent(machine: Machine, unit: Unit) -> bool:
    """Whether the unit has made all its calls: only what spends none may still be done with it."""
    return machine.on_error is not None and unit.attempts > machine.on_error.policy.max_retries


def throttle(error: Throttled, rng: Rng) -> timedelta:
    """How long a throttle makes a unit wait that has no gate."""
    if error.retry_after is None:
        return THROTTLE_POLICY.delay(0, rng)
    return timedelta(seconds=min(error.retry_after, LONGEST_WAIT.total_seconds()))


def _long(machine: Machine, unit: Unit, error: StepError) -> list[Event]:
    """An alert where a unit without a gate is asked to wait for longer than is believed; a gate tells of its own."""
    asked = error.retry_after if isinstance(error, Throttled) and unit.gate_id == NO_GATE else None
    if asked is None or asked <= LONGEST_WAIT.total_seconds():
        return []
    text = f"asked to wait {asked / 3600:,.0f} hours, waits 48: {error}"
    return [_alert(machine, unit, "unit.long_wait", "warning", readable(text))]


def crashed(
    machine: Machine, unit: Unit, error: Exception, now: datetime, rng: Rng, *, like: Like = ALONE
) -> Outcome[Any]:
    """A bug in a handler, or an outcome the database refuses: tried again a little later, parked at the third."""
    text = readable(f"{type(error).__name__}: {error}")
    crashes = unit.crashes + 1
    if crashes >= CRASH_LIMIT:
        return _park(machine, unit, f"{text} ({crashes} times in a row)", now, crashes)
    due = now + _CRASH_POLICY.delay(max(unit.crashes, like.crashes), rng)
    return Outcome(unit, replace(unit, crashes=crashes, doubts=unit.doubts + 1, due_at=due), text)


def _park(machine: Machine, unit: Unit, text: str, now: datetime, crashes: int | None = None) -> Outcome[Any]:
    count = unit.crashes if crashes is None else crashes
    doubts = unit.doubts + int(count > unit.crashes)
    after = replace(unit, parked_at=now, parked_reason=text, crashes=count, doubts=doubts, suspicion=0)
    alert = _alert(machine, unit, "unit.parked", "critical", text)
    return Outcome(unit, after, text, events=[alert], keep_crashes=True)


def _alert(machine: Machine, unit: Unit, kind: str, severity: Any, text: str) -> Event:
    key = f"{kind}:{machine.name}:{unit.unit_id}:{unit.version}"
    return Event(key, kind, {"unit": f"{machine.name}:{unit.unit_id}", "reason": text}, severity)


def following_of(outcome: Outcome[Any]) -> str:
    """What becomes of a unit whose step failed, in a few words for the log."""
    after = outcome.after
    if after.parked_at is not None:
        return "parked until somebody sees to it"
    moved = f"{after.status}, " if after.status != outcome.before.status else ""
    if after.due_at is None:
        return f"{moved}nothing more happens by itself"
    return f"{moved}tried again at {instant_text(after.due_at)}"


def traceback_of(error: BaseException) -> str:
    """The whole traceback, for the log."""
    return "".join(traceback.format_exception(error)).rstrip()


def where(error: BaseException) -> str:
    """The innermost frame of an error, for the log."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""

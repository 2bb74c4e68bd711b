"""The flow of runs: a preview, a start, a watch over the targets, an end, and what follows it.

The targets are moved by the set, and only by their run: a person who stops, pauses or retries says so to the run or
marks the targets, and the run's next step does the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from penstock.ledger.schema.columns import readable
from penstock.lifecycles.rules.catalogue import follow_run
from penstock.lifecycles.rules.lane import L, Lane
from penstock.lifecycles.rules.metrics import success_alert
from penstock.lifecycles.rules.run.decide import Seen, decide, fails_too_often, next_reconciliation
from penstock.lifecycles.rules.run.ledger import lane_of, seen_of
from penstock.lifecycles.rules.run.machine import APPLIED, Kind, Mode, R, Run, asked_by, rule_run
from penstock.lifecycles.rules.run.preview import Previews
from penstock.lifecycles.rules.run.reconcile import Reconciler
from penstock.lifecycles.rules.run.rollback import rollback_of, rolled_back
from penstock.lifecycles.rules.settings import RulesSettings, gate_of
from penstock.lifecycles.rules.shop import Configured
from penstock.lifecycles.rules.target.machine import T, rule_target
from penstock.model.clock import Rng
from penstock.model.errors import StepError
from penstock.model.machine import Actor
from penstock.model.move_set import MoveSet
from penstock.model.outcome import Birth, Event, Move, Outcome
from penstock.model.retry import OUTAGE_POLICY
from penstock.model.unit import NO_GATE, NOW, replace
from penstock.worker.flow import Flow, Io

_TOLD_AT = 6
"""So many failures in a row of one comparison are worth an alert: several minutes."""


class Runs(Flow[Run, RulesSettings, Seen]):
    """Drives the runs of every account."""

    machine = rule_run
    decide = staticmethod(decide)
    deadline = timedelta(minutes=30)
    #: A preview of two million variants, 2,500 at a time, and sets of twenty thousand after it.
    turns = 1_000

    def __init__(self, settings: RulesSettings, accounts: Mapping[str, Configured]) -> None:
        super().__init__(settings)
        self._previews = Previews(settings)
        self._reconciler = Reconciler(settings, accounts)

    async def look(self, unit: Run, io: Io) -> Seen:
        return await io.ledger(lambda ledger: seen_of(ledger, unit))

    async def act(self, what: str, unit: Run, seen: Seen | None, io: Io) -> Outcome[Run]:  # noqa: ARG002 - one shape
        if what in _SETS:
            return Outcome(unit, unit, _SAID[what], move_sets=_SETS[what](unit), keep_claim=True)
        if what in _CHANGES:
            return _CHANGES[what](unit, io.now())
        steps: dict[str, Callable[[Run, Io], Awaitable[Outcome[Run]]]] = {
            "preview": self._previews.step,
            "sum_up": self._previews.sum_up,
            "start": self._start,
            "finish": self._finish,
            "retry": self._retry,
            "end_sale": self._end_sale,
            "reconcile": self._reconciler.step,
        }
        return await steps[what](unit, io)

    def failed(self, unit: Run, error: StepError, now: datetime, rng: Rng) -> Outcome[Run] | None:
        """A comparison waits for the provider, however long that is away; whatever else fails is a person's affair."""
        if unit.status not in APPLIED:
            return None
        why = readable(f"its prices cannot be compared: {error}")
        after = replace(unit, attempts=unit.attempts + 1, due_at=now + OUTAGE_POLICY.delay(unit.attempts, rng))
        told = {"run": f"rule_run:{unit.id}", "reason": why}
        alert = Event(f"rules.not_compared:{unit.id}:{unit.version}", "rules.not_compared", told, "warning")
        return Outcome(unit, after, why, events=[alert] if after.attempts == _TOLD_AT else [])

    async def _start(self, unit: Run, io: Io) -> Outcome[Run]:
        now = io.now()
        after = replace(unit, status=R.APPLYING, started_at=_after(now, unit.queued_at), due_at=now)
        # One that is stopped before it sends anything needs no lane.
        lane = [] if unit.mode is Mode.HALTING else [await self._take_lane(unit, io)]
        return Outcome(unit, after, "started", others=lane, keep_claim=True)

    async def _retry(self, unit: Run, io: Io) -> Outcome[Run]:
        after = replace(
            unit,
            status=R.APPLYING,
            finished_at=None,
            retry_round=unit.retry_round + 1,
            mode=Mode.RUNNING,
            mode_by=None,
            mode_reason=None,
            failed_before=unit.failed_count,
            reconciled=0,
            reconcile_position=None,
            error=None,
        )
        lane = await self._take_lane(unit, io)
        why = "failed targets are tried again"
        return Outcome(unit, after, why, others=[lane], actor=Actor.API, who=asked_by(unit), keep_claim=True)

    async def _take_lane(self, unit: Run, io: Io) -> Birth | Move:
        lane = await io.ledger(lambda ledger: lane_of(ledger, unit.account))
        if lane is None:
            return Birth(Lane(status=L.TAKEN, account=unit.account, run_id=unit.id), "the account's first run")
        # One whose run ended otherwise, by somebody's SQL, is taken over.
        return Move(lane, replace(lane, status=L.TAKEN, run_id=unit.id), f"run {unit.id} starts")

    async def _finish(self, unit: Run, io: Io) -> Outcome[Run]:
        now = _after(io.now(), unit.started_at)
        await io.ledger(lambda ledger: follow_run(ledger, unit.account, unit.id))
        others: list[Birth | Move] = []
        lane = await io.ledger(lambda ledger: lane_of(ledger, unit.account))
        if lane is not None and lane.run_id == unit.id:
            others.append(Move(lane, replace(lane, status=L.FREE, run_id=None), f"run {unit.id} has ended"))
        status = ended_as(unit)
        why = f"{unit.applied_count:,} applied, {unit.failed_count:,} failed, of {unit.target_count:,}"
        after = replace(unit, status=status, finished_at=now, error=why if status is not R.APPLIED else None)
        if status is not R.APPLIED and unit.mode is Mode.HALTING:
            after = replace(after, error=f"{why}; stopped: {unit.mode_reason}")
        after = replace(after, due_at=next_reconciliation(after, self.settings))
        if unit.end_at is not None and status in (R.APPLIED, R.PARTIAL):
            after = replace(after, due_at=min(filter(None, (after.due_at, unit.end_at))))
        if unit.kind is Kind.ROLLBACK:
            others += await io.ledger(lambda ledger: rolled_back(ledger, unit, now))
        return Outcome(unit, after, why, others=others, events=_told(unit, status, now))

    async def _end_sale(self, unit: Run, io: Io) -> Outcome[Run]:
        born = rollback_of(unit, io.now(), actor="scheduler", source="schedule", reason="its end has come")
        after = replace(unit, sale_ended=True, due_at=io.now())
        why = f"the end of run {unit.id} has come"
        return Outcome(unit, after, "its end has come: it is rolled back", others=[Birth(born, why, if_absent=True)])


def queued(unit: Run, now: datetime) -> Outcome[Run]:
    """A run that was asked for as queued: its preview is complete."""
    after = replace(unit, status=R.QUEUED, queued_at=now, queue_when_ready=False, due_at=now)
    return Outcome(unit, after, "queued as it was asked for", actor=Actor.API, who=asked_by(unit), keep_claim=True)


def stopped(unit: Run, now: datetime) -> Outcome[Run]:
    """Too many targets fail: what was not sent is given up, and one alert says so."""
    why = fails_too_often(unit) or "too many targets have failed"
    after = replace(unit, mode=Mode.HALTING, mode_by="kernel", mode_reason=why, due_at=now)
    alert = Event(
        f"rules.stopped:{unit.id}:{unit.retry_round}", "rules.stopped", {"run": str(unit.id), "reason": why}, "critical"
    )
    return Outcome(unit, after, f"stopped: {why}", events=[alert], keep_claim=True)


def expired(unit: Run, now: datetime) -> Outcome[Run]:
    """The end of a sale has come before all its prices were set: the others are given up."""
    why = "its end has come"
    after = replace(unit, mode=Mode.HALTING, mode_by="kernel", mode_reason=why, due_at=now)
    return Outcome(unit, after, f"stopped: {why}", keep_claim=True)


def ended_as(unit: Run) -> R:
    """How a run ends whose targets have all ended."""
    if unit.failed_count == 0:
        return R.APPLIED
    return R.PARTIAL if unit.applied_count + unit.rolled_back_count > 0 else R.FAILED


def _include(unit: Run) -> list[MoveSet]:
    one = _set(
        unit,
        T.PREVIEW,
        T.QUEUED,
        f"included in run {unit.id}",
        where={"included": True},
        changes={"due_at": NOW, "gate_id": gate_of(unit.account)},
    )
    return [one]


def _release(unit: Run) -> list[MoveSet]:
    changes = {"held": False, "due_at": NOW, "gate_id": gate_of(unit.account)}
    return [_set(unit, T.QUEUED, None, "goes on", where={"held": True}, changes=changes)]


def _hold(unit: Run) -> list[MoveSet]:
    reason = f"paused by {unit.mode_by}: {unit.mode_reason}"
    changes = {"held": True, "due_at": None}
    return [_set(unit, T.QUEUED, None, reason, where={"held": False, "halted": False}, changes=changes)]


def _halt(unit: Run) -> list[MoveSet]:
    """What was not sent is given up by its own step, without a call and behind no gate."""
    changes = {"halted": True, "held": False, "due_at": NOW, "gate_id": NO_GATE}
    reason = f"stopped: {unit.mode_reason}"
    included = _set(unit, T.PREVIEW, T.QUEUED, reason, where={"included": True}, changes=changes)
    queued = _set(unit, T.QUEUED, None, reason, where={"halted": False}, changes=changes)
    # A call of these may have left: they keep their gate and their time, look, and are given up only then.
    unsettled = _set(unit, T.APPLYING, None, reason, where={"halted": False}, changes={"halted": True})
    return [included, queued, unsettled]


def _set(
    unit: Run, source: T, to: T | None, reason: str, *, where: Mapping[str, Any], changes: Mapping[str, Any]
) -> MoveSet:
    return MoveSet(
        machine=rule_target.name,
        sources=[source],
        to=to,
        reason=reason,
        where={"rule_run_id": unit.id, **where},
        changes=changes,
        parked=None,
        actor=Actor.API,
        who=(unit.mode_by if unit.mode is not Mode.RUNNING else None) or asked_by(unit),
    )


_SETS: dict[str, Callable[[Run], list[MoveSet]]] = {
    "include": _include,
    "hold": _hold,
    "release": _release,
    "halt": _halt,
}
_SAID = {
    "include": "its targets are queued",
    "hold": "its targets rest",
    "release": "targets that rest go on",
    "halt": "what was not sent is given up",
}
_CHANGES: dict[str, Callable[[Run, datetime], Outcome[Run]]] = {
    "queue": queued,
    "stop": stopped,
    "expire": expired,
}


def _after(now: datetime, earlier: datetime | None) -> datetime:
    """No earlier than that: the clocks of two machines differ."""
    return max(now, earlier) if earlier is not None else now


def _told(unit: Run, status: R, now: datetime) -> list[Event]:
    """That a run has ended, and an alert where too few of its targets succeeded."""
    key = f"{unit.id}:{unit.retry_round}"
    started = unit.started_at or now
    payload = {
        "runId": str(unit.id),
        "status": str(status),
        "applied": unit.applied_count,
        "failed": unit.failed_count,
        "durationMs": int((now - started).total_seconds() * 1000),
        "correlationId": unit.metadata.get("correlationId"),
    }
    events = [Event(f"automation.run.finished:{key}", "automation.run.finished", payload, tenant=unit.tenant_id)]
    alert = success_alert(unit.applied_count + unit.rolled_back_count, unit.failed_count)
    if alert is not None:
        severity, why = alert
        told = {"run": f"rule_run:{unit.id}", "reason": why}
        events.append(Event(f"rules.success_rate:{key}", "rules.success_rate", told, severity, tenant=unit.tenant_id))
    return events

"""What is to come of a run: its start, and the end of its sale, when another run puts its prices back. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from penstock.lifecycles.rules.run.machine import APPLIED, Kind, R, Run, rule_run
from penstock.lifecycles.rules.settings import RulesSettings
from penstock.lifecycles.rules.target.machine import T, Target, rule_target
from penstock.model.forecast import Expected


def expects(settings: RulesSettings, unit: Any, since: datetime) -> Sequence[Expected] | None:  # noqa: ARG001 - one shape
    """Targets follow their run; a run that nobody has queued waits for a person."""
    if isinstance(unit, Target):
        return [] if unit.status in (T.PREVIEW, T.APPLIED) else None
    if not isinstance(unit, Run):
        return None
    if unit.status is R.PREVIEW:
        return None if unit.queue_when_ready or unit.kind is Kind.ROLLBACK else []
    if unit.status is R.QUEUED:
        return list(_started(unit, max(since, unit.start_at or since)))
    if unit.status in APPLIED:
        return list(_rolled_back(unit, unit.end_at)) if unit.end_at is not None and unit.end_at > since else []
    return None


def _started(run: Run, at: datetime) -> Iterator[Expected]:
    yield Expected(machine=rule_run.name, at=at, source=str(run.status))
    yield _targets(run, at, T.PREVIEW, T.QUEUED, "include")


def _rolled_back(run: Run, at: datetime) -> Iterator[Expected]:
    """A run is born, queued and started, with as many targets as this one has; those of this one are rolled back."""
    yield Expected(machine=rule_run.name, at=at, target=R.PREVIEW, rests=True)
    yield _targets(run, at, None, T.PREVIEW, None, rests=True)
    yield Expected(machine=rule_run.name, at=at, source=R.PREVIEW, target=R.QUEUED, trigger="queue", rests=True)
    yield Expected(machine=rule_run.name, at=at, source=R.QUEUED)
    yield _targets(run, at, T.PREVIEW, T.QUEUED, "include")
    yield _targets(run, at, T.APPLIED, T.ROLLED_BACK, "roll_back", rests=True)


def _targets(
    run: Run, at: datetime, source: T | None, target: T, trigger: str | None, *, rests: bool = False
) -> Expected:
    return Expected(
        machine=rule_target.name,
        at=at,
        source=source,
        target=target,
        trigger=trigger,
        n=run.target_count,
        rests=rests,
    )

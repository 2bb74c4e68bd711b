"""What to do with a wanted partition, and what a verdict makes of a partition's state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from penstock.lifecycles.ladder import offset_name
from penstock.lifecycles.partitions.machine import Extraction, P, PartitionState, V, Validation, X, gate_of, key_of
from penstock.lifecycles.partitions.settings import PartitionSettings
from penstock.lifecycles.partitions.validate import Verdict
from penstock.model.outcome import Act, Decision, Look, Wait
from penstock.model.unit import NO_GATE, replace
from penstock.raw.paths import PartitionKey

RESTING = (X.DONE, X.FAILED)
LOOK_AGAIN = timedelta(days=1)
"""What left the configuration is looked at so often: it goes on where it was when it comes back."""


@dataclass(frozen=True, slots=True)
class Landed:
    """What a look found in the sink: the records of the run under way, and when it was begun; None: not finalised."""

    record_count: int | None
    fetched_at: datetime | None = None


def gate(unit: Extraction, settings: PartitionSettings) -> str:  # noqa: ARG001 - one shape
    """The gate of an extraction's next step: what has landed is judged without one."""
    extracted = unit.status in (X.WANTED, X.EXTRACTING)
    return gate_of(key_of(unit), backfill=unit.backfill) if extracted else NO_GATE


def decide(unit: Extraction, now: datetime, settings: PartitionSettings, seen: Landed | None) -> Decision:
    """Draw a run id, ask the source, and have what was landed judged; what rests waits for its next offset.

    After a failure the sink is looked at first: the run may be there.
    """
    if unit.status is X.LANDED:
        return Act("judge", f"run {unit.run_id} has landed and nobody has judged it", counts_attempt=False)
    if unit.status in RESTING:
        return _refresh_or_rest(unit, now, settings)
    if unit.status is not X.EXTRACTING:
        return Wait(None, f"the extraction is {unit.status}")
    if unit.run_id is None:
        return _begin_or_wait(unit, now, settings)
    if unit.attempts + unit.doubts > 0 and seen is None:
        return Look(f"run {unit.run_id} was begun before and may have been finalised", asks=False)
    if seen is not None and seen.record_count is not None:
        return Act("record", f"run {unit.run_id} is in the sink already", counts_attempt=False)
    return Act("extract", f"run {unit.run_id} is not in the sink")


def _begin_or_wait(unit: Extraction, now: datetime, settings: PartitionSettings) -> Decision:
    """Whoever wanted it, and whatever a clock said then: a day that is not over is not asked for."""
    source = settings.sources.get(unit.source)
    if source is not None and unit.customer_id in source.zones:
        ends = source.ends(unit.customer_id, unit.logical_date)
        if now < ends:
            return Wait(ends, f"{unit.logical_date} is not over in {source.zones[unit.customer_id]}")
    return Act("begin", "a run needs an id before the source is asked", counts_attempt=False)


def _refresh_or_rest(unit: Extraction, now: datetime, settings: PartitionSettings) -> Decision:
    ladder = settings.ladder(key_of(unit))
    if ladder is None:
        return Wait(now + LOOK_AGAIN, f"{key_of(unit)} is not configured, so nothing is fetched for it")
    offset = ladder.wanted(now, unit.served_at, serving(unit), given_up=True)
    if offset is not None:
        return Act("refresh", f"{named(offset)} is due and unserved", counts_attempt=False)
    coming = ladder.coming(now)
    until = "there is no later offset" if coming is None else f"the next is {named(coming)}"
    if unit.serving_offset is not None:
        return Wait(ladder.next_at(now), f"{offset_name(unit.serving_offset)} was given up; {until}")
    return Wait(ladder.next_at(now), f"every offset that is due is served; {until}")


def next_attention(unit: Extraction, now: datetime, settings: PartitionSettings) -> datetime | None:
    """When an extraction that comes to rest wants attention again: at its next offset, None after the last."""
    ladder = settings.ladder(key_of(unit))
    if ladder is None:
        return now + LOOK_AGAIN
    return ladder.attention(now, unit.served_at, serving(unit), given_up=True)


def serving(unit: Extraction) -> timedelta | None:
    """The offset that it is under way for, or that was given up."""
    return None if unit.serving_offset is None else timedelta(seconds=unit.serving_offset)


def named(offset: timedelta) -> str:
    """An offset for people: `T+3d`."""
    return offset_name(int(offset.total_seconds()))


def decide_validation(unit: Validation, now: datetime, settings: PartitionSettings, seen: None) -> Decision:  # noqa: ARG001 - one shape
    """What is wanted by hand is judged at once, and once."""
    if unit.status is not V.WANTED:
        return Wait(None, f"the validation is {unit.status}")
    then = ", and pointed at if it is good" if unit.point else ""
    return Act("judge", f"run {unit.run_id} is to be validated{then}", counts_attempt=False)


@dataclass(frozen=True, slots=True)
class Judged:
    """What a verdict comes to: the state before (None: no row) and after, and the word for the record of attempts."""

    before: PartitionState | None
    after: PartitionState
    verdict: Literal["success", "failed", "kept", "older"]
    reason: str


def judge(
    key: PartitionKey,
    before: PartitionState | None,
    verdict: Verdict,
    now: datetime,
    *,
    keep_last_good: bool = False,
    evaluated: bool = False,
    pointed_by: str | None = None,
) -> Judged:
    """What becomes of a partition when a run of it has been inspected.

    An older run never replaces a newer one, unless somebody points at it by name. With `keep_last_good` a bad run
    leaves a good partition as it was. `evaluated` says that the run was counted before.
    """
    state = before or PartitionState(
        source=key.source, customer_id=key.customer_id, query_name=key.query_name, logical_date=key.logical_date
    )
    counted = replace(state, attempt_count=state.attempt_count + (not evaluated), updated_at=now)
    current = state.current_run_id
    if pointed_by is None and current is not None and verdict.run_id < current and state.status is not P.PENDING:
        unchanged = replace(counted, updated_at=state.updated_at)
        return Judged(before, unchanged, "older", f"run {verdict.run_id} is older than {current} and replaces nothing")
    if verdict.good:
        after = replace(
            counted,
            status=P.SUCCESS,
            current_run_id=verdict.run_id,
            schema_version=verdict.schema_version,
            record_count=verdict.record_count,
            error_message=None,
        )
        how = f"pointed at by {pointed_by}" if pointed_by else "validated"
        return Judged(before, after, "success", f"run {verdict.run_id} {how}: {verdict.record_count:,} records")
    if keep_last_good and state.status is P.SUCCESS and current != verdict.run_id:
        kept = replace(counted, updated_at=state.updated_at)
        reason = f"run {verdict.run_id} was rejected, run {current} is kept: {verdict.error}"
        return Judged(before, kept, "kept", reason)
    after = replace(
        counted,
        status=P.FAILED,
        current_run_id=verdict.run_id,
        schema_version=verdict.schema_version,
        record_count=None,
        error_message=verdict.error,
    )
    # A run that was good and is not any more was evaluated before, and a failed partition has an attempt in any case.
    after = replace(after, attempt_count=max(1, after.attempt_count))
    return Judged(before, after, "failed", str(verdict.error))

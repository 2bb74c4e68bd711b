"""What to do with a run: preview it, start it, watch over its targets, end it, compare it, end its sale."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.lifecycles.rules.limits import Limits, must_stop
from penstock.lifecycles.rules.run.machine import APPLIED, Mode, R, Run
from penstock.model.outcome import Act, Decision, Look, Wait
from penstock.model.unit import replace

if TYPE_CHECKING:
    from penstock.lifecycles.rules.settings import RulesSettings

DAY = timedelta(days=1)


class Seen(Struct, frozen=True):
    """How the ledger stands around a run: who has the lane of its account, and which of its targets want something."""

    #: The run that is applying, if it is another one, and since when.
    ahead: str | None = None
    #: Targets that are included and not queued yet, that rest until they are let go, and that are free to go.
    unqueued: bool = False
    held: bool = False
    free: bool = False
    #: Targets that are claimed, or whose call may have left.
    moving: bool = False
    #: Of those the ones that nobody works on and that do not know of a stop.
    unsettled: bool = False
    parked: int = 0
    in_doubt: int = 0


def decide(run: Run, now: datetime, settings: RulesSettings, seen: Seen | None) -> Decision:
    """By its state; all but the preview ask the ledger first."""
    if run.status is R.PREVIEW:
        return _preview(run)
    if run.status is R.ROLLED_BACK:
        return Wait(None, "it is rolled back")
    if run.status is R.QUEUED and run.start_at is not None and run.start_at > now and run.mode is Mode.RUNNING:
        return Wait(run.start_at, "waits for its start")
    if seen is None:
        return Look("what its targets and its account are doing", asks=False)
    if run.status is R.QUEUED:
        return _start(run, now, settings, seen)
    if run.status is R.APPLYING:
        return _watch(run, now, settings, seen)
    return _after(run, now, settings, seen)


def _preview(run: Run) -> Decision:
    if run.laid_at is None:
        return Act("preview", "its targets are worked out", counts_attempt=False)
    if run.previewed_at is None:
        return Act("sum_up", "all its targets are there", counts_attempt=False)
    if run.queue_when_ready:
        return Act("queue", "it is to be applied", counts_attempt=False)
    return Wait(None, "waits to be queued")


def _start(run: Run, now: datetime, settings: RulesSettings, seen: Seen) -> Decision:
    if run.mode is Mode.HALTING:
        # It sends nothing: it starts to end by legal edges, and waits for nobody.
        return Act("start", f"stopped: {run.mode_reason}", counts_attempt=False)
    if run.mode is Mode.PAUSED:
        return Wait(None, f"paused by {run.mode_by}: {run.mode_reason}")
    if _is_over(run, now):
        return Act("expire", "its end has come before it began", counts_attempt=False)
    if seen.ahead is not None:
        return Wait(now + settings.look_every, f"run {seen.ahead} of {run.account} is applying; this one waits for it")
    return Act("start", "its account is free", counts_attempt=False)


def _watch(run: Run, now: datetime, settings: RulesSettings, seen: Seen) -> Decision:
    ended = run.applied_count + run.failed_count + run.rolled_back_count
    if run.mode is Mode.HALTING:
        if seen.unqueued or seen.free or seen.held or seen.unsettled:
            return Act("halt", f"stopped: {run.mode_reason}", counts_attempt=False)
    elif _is_over(run, now) and ended < run.target_count:
        return Act("expire", "its end has come", counts_attempt=False)
    elif seen.unqueued:
        return Act("include", "its targets are queued", counts_attempt=False)
    elif (why := fails_too_often(run)) is not None:
        return Act("stop", why, counts_attempt=False)
    elif run.mode is Mode.PAUSED and ended < run.target_count:
        if seen.free:
            return Act("hold", f"paused by {run.mode_by}: {run.mode_reason}", counts_attempt=False)
        paused = f"paused by {run.mode_by}: {run.mode_reason}; {_progress(run, seen)}"
        return Wait(now + settings.look_every if seen.moving else run.end_at, paused)
    elif seen.held:
        return Act("release", "targets that rest go on", counts_attempt=False)
    if ended >= run.target_count:
        return Act("finish", "every target has ended", counts_attempt=False)
    return Wait(now + settings.look_every, _progress(run, seen))


def _is_over(run: Run, now: datetime) -> bool:
    """Whether the moment has come at which its prices are put back: it sets no more."""
    return run.end_at is not None and run.end_at <= now


def fails_too_often(run: Run) -> str | None:
    """Why a run is stopped: more of its targets have failed than its rule allows. None: it goes on."""
    limits = run.summary.get("limits")
    if not limits or not run.failed_count:
        return None
    known = Limits(stop_at=Decimal(limits["stop_at"]), judged_from=limits["judged_from"])
    return must_stop(known, run.applied_count + run.rolled_back_count, max(0, run.failed_count - run.failed_before))


def _after(run: Run, now: datetime, settings: RulesSettings, seen: Seen) -> Decision:
    if run.status in (R.PARTIAL, R.FAILED) and seen.held:
        if seen.ahead is not None:
            return Wait(
                now + settings.look_every, f"run {seen.ahead} of {run.account} is applying; retries wait for it"
            )
        return Act("retry", "failed targets are to be tried again", counts_attempt=False)
    if run.status not in APPLIED:
        return Wait(None, "no target is applied")
    ends = None if run.sale_ended else run.end_at
    if ends is not None and ends <= now:
        return Act("end_sale", "its end has come: it is rolled back", counts_attempt=False)
    moment = next_reconciliation(run, settings)
    if run.reconcile_wanted or run.reconcile_position is not None or (moment is not None and moment <= now):
        return Act("reconcile", "its prices are compared with the live ones", counts_attempt=False)
    times = [one for one in (moment, ends) if one is not None]
    why = "its prices will be compared again" if moment else "nothing more to do"
    # Its reason is what people are told of a dead letter.
    return Wait(min(times, default=None), f"{run.error}; {why}" if run.status is R.PARTIAL and run.error else why)


def next_reconciliation(run: Run, settings: RulesSettings) -> datetime | None:
    """When a run that has ended is compared next: soon, after an hour, then daily; None: no more."""
    if run.finished_at is None or run.status not in APPLIED:
        return None
    first = (settings.reconcile_soon, settings.reconcile_later)
    after = first[run.reconciled] if run.reconciled < len(first) else DAY * (run.reconciled - 1)
    return run.finished_at + after if after <= settings.reconcile_for else None


def reconciliations_by(now: datetime, run: Run, settings: RulesSettings) -> int:
    """How many comparisons of a run were due by now: those that were missed are not made up for."""
    count = run.reconciled
    while (moment := next_reconciliation(replace(run, reconciled=count), settings)) is not None and moment <= now:
        count += 1
    return count


def _progress(run: Run, seen: Seen) -> str:
    said = f"{run.applied_count:,} of {run.target_count:,} applied, {run.failed_count:,} failed"
    if seen.in_doubt:
        said += f", {seen.in_doubt:,} in doubt"
    if seen.parked:
        said += f", {seen.parked:,} parked: 'penstock dead list --machine rule_target' says why"
    return said

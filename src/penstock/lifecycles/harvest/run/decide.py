"""What a run needs next, and which run a feed wants. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock.lifecycles.harvest.feed import Window
from penstock.lifecycles.harvest.run.machine import R, Run, RunType
from penstock.lifecycles.harvest.settings import HarvestSettings
from penstock.model.outcome import Act, Decision, Wait


@dataclass(frozen=True, slots=True)
class Wanted:
    """The run that a feed wants now."""

    run_type: RunType
    watermark: datetime | None
    window_from: datetime | None
    window_to: datetime
    why: str

    @property
    def window(self) -> Window:
        """What is asked for. A full run asks without bounds: what is updated while it runs must still be seen."""
        if self.run_type is RunType.FULL:
            return Window()
        return Window(self.window_from, self.window_to)


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger knows of a feed when a run is planned."""

    watermark: datetime | None = None
    #: When the last full run that completed was started.
    last_full: datetime | None = None
    #: Somebody asked for a full run.
    full_requested: bool = False


def wanted_run(known: Known, now: datetime, settings: HarvestSettings) -> Wanted:
    """Full the first time, when asked for and every so often; otherwise what was updated since the watermark.

    The window ends now, before the first call: records updated while the run is under way are the next one's.
    """
    why = None
    if known.watermark is None:
        why = "there is no watermark"
    elif known.full_requested:
        why = "a full run was asked for"
    elif known.last_full is None or now - known.last_full >= settings.full_every:
        why = "a full run is due again"
    if why is not None:
        return Wanted(RunType.FULL, known.watermark, None, now, why)
    assert known.watermark is not None  # noqa: S101 - asked above
    lower = min(known.watermark, now) - settings.overlap
    return Wanted(RunType.INCREMENTAL, known.watermark, lower, now, "it goes on from the watermark")


def decide(run: Run, now: datetime, settings: HarvestSettings, seen: None) -> Decision:  # noqa: ARG001 - one shape
    """Start the workers, wait for all of them, consolidate; or say that some have failed."""
    match run.status:
        case R.CREATED if run.expected_workers == 0:
            return Act("trigger", "nothing to fetch", counts_attempt=False)
        case R.CREATED:
            return Act("start", f"{run.expected_workers} partitions are to be fetched", counts_attempt=False)
        case R.WORKERS_RUNNING:
            return _when_all_have_ended(run)
        case R.CONSOLIDATION_SKIPPED:
            return Act("alert", f"{run.failed_workers} partitions have failed", counts_attempt=False)
        case R.CONSOLIDATION_TRIGGERED | R.CONSOLIDATING:
            return Act("consolidate", "the raw records are to be consolidated")
        case _:
            return Wait(None, f"the run is {run.status}")


def _when_all_have_ended(run: Run) -> Decision:
    ended = run.completed_workers + run.failed_workers
    if ended < run.expected_workers:
        return Wait(None, f"{ended} of {run.expected_workers} partitions have ended")
    if run.verified_workers < run.completed_workers:
        return Wait(None, f"{run.verified_workers} of {run.completed_workers} partitions are known to be complete")
    if run.failed_workers > 0:
        return Act(
            "skip", f"{run.failed_workers} of {run.expected_workers} partitions have failed", counts_attempt=False
        )
    return Act("trigger", f"all {run.expected_workers} partitions are completed", counts_attempt=False)

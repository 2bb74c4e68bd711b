"""What a run and a partition need next, and which run a feed wants. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from penstock.lifecycles.harvest.feed import UNKNOWN, Window
from penstock.lifecycles.harvest.machine import CALLS, P, Partition, R, Run, RunType
from penstock.model.outcome import Act, Decision, Look, Wait
from penstock.model.unit import replace


@dataclass(frozen=True, slots=True)
class Settings:
    """How the catalogue is fetched, and what counts as complete."""

    #: The configured feeds, and whether each is paused.
    feeds: Mapping[str, bool] = field(default_factory=dict)
    page_size: int = 30
    #: How many pages past its count a partition may have, and how often it may step back because records moved.
    extra_pages: int = 20
    #: How much of a partition may be missing (H12), and how often it is fetched again for that.
    tolerance: float = 0.005
    rescans: int = 2
    pause: timedelta = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Alive:
    """The provider has answered something else that it was asked."""


@dataclass(frozen=True, slots=True)
class Plan:
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


def plan(known: Known, now: datetime, *, overlap: timedelta, full_every: timedelta) -> Plan:
    """Full the first time, when asked for and every so often (H2); otherwise what was updated since the watermark.

    The window ends now, before the first call: records updated while the run is under way are the next one's.
    """
    why = None
    if known.watermark is None:
        why = "there is no watermark"
    elif known.full_requested:
        why = "a full run was asked for"
    elif known.last_full is None or now - known.last_full >= full_every:
        why = "a full run is due again"
    if why is not None:
        return Plan(RunType.FULL, known.watermark, None, now, why)
    assert known.watermark is not None  # noqa: S101 - asked above
    lower = min(known.watermark, now) - overlap
    return Plan(RunType.INCREMENTAL, known.watermark, lower, now, "it goes on from the watermark")


def decide_run(run: Run, now: datetime, settings: None, seen: None) -> Decision:  # noqa: ARG001 - one shape
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


def decide_partition(partition: Partition, now: datetime, settings: Settings, seen: Alive | None) -> Decision:
    """The next page while there is one; then whether all was found.

    After a call that failed something else is asked first. If that is answered, the provider is there, and what fails
    is this partition's own failure; nobody else may be asking, at the end of a run, who could show it.
    """
    paused = settings.feeds.get(partition.feed)
    if paused is not False:
        why = "is paused" if paused else "is not configured; configure it again or cancel the run"
        return Wait(now + settings.pause, f"the feed {partition.feed!r} {why}")
    needed = _needed(partition, settings)
    if isinstance(needed, Act) and needed.counts_attempt and partition.attempts > 0 and seen is None:
        return Look("its last call failed: does the provider answer at all?")
    return needed


def _needed(partition: Partition, settings: Settings) -> Decision:
    match partition.status:
        case P.IN_PROGRESS | P.FETCHING_PAGES if partition.error is not None:
            return Act("give_up", partition.error, counts_attempt=False)
        case P.IN_PROGRESS if partition.begun_at is None:
            return Act("begin", "its worker's record comes first", counts_attempt=False)
        case P.IN_PROGRESS | P.FETCHING_PAGES if wants_page(partition, settings):
            return Act("fetch", "the next page")
        case P.IN_PROGRESS | P.FETCHING_PAGES:
            return Act("complete", "there is no further page", counts_attempt=False)
        case P.COMPLETED if partition.verified_at is None:
            if CALLS.exhausted(partition.attempts):
                return Act("verify", "it cannot be counted again; the scan's count must do", counts_attempt=False)
            return Act("recount", "is everything there?")
        case P.COMPLETED:
            return Act("skip", "it is completed; whoever asked for it again is late", counts_attempt=False)
        case _:
            return Wait(None, f"the partition is {partition.status}")


def wants_page(partition: Partition, settings: Settings) -> bool:
    """Whether there is a next page: the count does not end a partition, its end does, within a bound."""
    bound = partition.expected_records + settings.extra_pages * settings.page_size
    return not partition.ended and partition.next_offset < bound


def turn_page(partition: Partition, found: Sequence[str], settings: Settings) -> Partition:
    """Where the partition stands after a page. `found` are its records: one more was asked for than the page keeps.

    That one must be on the next page: then every record that stayed where it was has been read, however many came or
    went before it. If it is not there the page before is read again, until it is found or the bound is reached.
    """
    offset, size = partition.next_offset, settings.page_size
    moved = partition.coming is not None and partition.coming not in found and offset > 0
    if moved and partition.steps_back < settings.extra_pages:
        return replace(partition, next_offset=max(0, offset - size), steps_back=partition.steps_back + 1)
    doubt = partition.doubt
    if moved:
        doubt = "its records moved while it was read, more often than they could be followed"
    elif found and partition.coming is None and offset > 0:
        doubt = "a page was short before the end"
    elif any(record.startswith(UNKNOWN) for record in found[:size]):
        doubt = "a record does not say which one it is"
    reached, more = offset + min(len(found), size), len(found) > size
    return replace(
        partition,
        next_offset=reached,
        ended=not found or (not more and reached >= partition.expected_records),
        coming=found[size] if more else None,
        doubt=doubt,
    )


def doubt_of(partition: Partition, found: int, there: int | None) -> str | None:
    """Why records that the partition did not find may be there all the same; None: it found all that there are.

    `found` are its distinct records and `there` is a count taken after the last page; None: there is none. Both the
    records and the length of what was read are compared with it: records that went after they were read would make up
    for others that no page has.
    """
    if not partition.ended:
        return f"it goes on past its count of {partition.expected_records:,} without an end"
    if partition.doubt is not None:
        return partition.doubt
    if there is None:
        return "it could not be counted again"
    reached = min(found, partition.next_offset)
    return None if reached >= there else f"{reached:,} of {there:,} records were found"


def is_short(found: int, counted: int, tolerance: float) -> bool:
    """Whether too many of the counted records were not found."""
    return counted - found > counted * tolerance

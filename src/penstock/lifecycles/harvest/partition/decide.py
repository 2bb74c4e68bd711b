"""What a partition needs next, where it stands after a page, and what shows that it is whole. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.lifecycles.harvest.feed import UNKNOWN
from penstock.lifecycles.harvest.partition.machine import CALLS, P, Partition
from penstock.lifecycles.harvest.settings import HarvestSettings, gate_of
from penstock.model.outcome import Act, Decision, Look, Wait
from penstock.model.unit import NO_GATE, replace

LIVE = (P.IN_PROGRESS, P.FETCHING_PAGES)
"""The states in which its pages are fetched."""
_LOOK_AGAIN = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Alive:
    """The provider has answered something else that it was asked."""


def gate(partition: Partition, settings: HarvestSettings) -> str:
    """The gate of a partition's next step. One that is given up needs no provider any more."""
    return NO_GATE if partition.feed not in settings.feeds or partition.error is not None else gate_of(partition.feed)


def decide(partition: Partition, now: datetime, settings: HarvestSettings, seen: Alive | None) -> Decision:
    """The next page while there is one; then whether all was found.

    After a call that failed something else is asked first. If that is answered, the provider is there, and what fails
    is this partition's own failure; nobody else may be asking, at the end of a run, who could show it.
    """
    if is_given_up(partition):
        return Act("give_up", str(partition.error), counts_attempt=False)
    feed = settings.feeds.get(partition.feed)
    if feed is None:
        why = f"the feed {partition.feed!r} is not configured; configure it again or cancel the run"
        return Wait(now + _LOOK_AGAIN, why)
    if feed.paused:
        return Wait(now + _LOOK_AGAIN, f"the feed {partition.feed!r} is paused")
    needed = _needed(partition, settings)
    if isinstance(needed, Act) and needed.counts_attempt and partition.attempts > 0 and seen is None:
        return Look("its last call failed: does the provider answer at all?")
    return needed


def is_given_up(partition: Partition) -> bool:
    """Whether its next step ends it: it failed too often, or its run was cancelled. That needs no provider."""
    return partition.status in LIVE and partition.error is not None


def _needed(partition: Partition, settings: HarvestSettings) -> Decision:
    match partition.status:
        case P.IN_PROGRESS if partition.begun_at is None:
            return Act("begin", "the worker's record is written first", counts_attempt=False)
        case P.IN_PROGRESS | P.FETCHING_PAGES if wants_page(partition, settings):
            return Act("fetch", "the next page")
        case P.IN_PROGRESS | P.FETCHING_PAGES:
            return Act("complete", "there is no further page", counts_attempt=False)
        case P.COMPLETED if partition.verified_at is None:
            if CALLS.exhausted(partition.attempts):
                return Act("verify", "it cannot be counted again; the scan's count is used", counts_attempt=False)
            return Act("recount", "is everything there?")
        case P.COMPLETED:
            return Act("skip", "it is completed already; asking again came too late", counts_attempt=False)
        case _:
            return Wait(None, f"the partition is {partition.status}")


def wants_page(partition: Partition, settings: HarvestSettings) -> bool:
    """Whether there is a next page: the count does not end a partition, its end does, within a bound."""
    bound = partition.expected_records + settings.extra_pages * settings.page_size
    return not partition.ended and partition.next_offset < bound


def turn_page(partition: Partition, found: Sequence[str], settings: HarvestSettings) -> Partition:
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
        doubt = "a record has no id of its own"
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

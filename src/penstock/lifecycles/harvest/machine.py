"""The machines of a harvest: the run, its partitions, the workers' records of them, and the chunks it consolidates.

`harvest_partition` is what workers claim; `worker_runs` is the seed's record of it, written with the partition's own
commits. A partition that ends is counted on its run by the kernel, and so is a chunk.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from penstock.model.machine import Actor, Edge, Machine, OnError, Parent
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, hold, rest, work
from penstock.model.unit import NOW, Column, GuardedUnit, Unit

_WORKER = frozenset({Actor.WORKER})
_OPERATOR = frozenset({Actor.OPERATOR})
_SCHEDULER = frozenset({Actor.SCHEDULER})
_Count = Annotated[int, Column(sql_type="Integer", server_default="0")]
_Flag = Annotated[bool, Column(server_default="false")]
_Moment = Annotated[datetime, Column(server_default=NOW)]
CALLS = RetryPolicy(max_retries=3, base=timedelta(seconds=2), cap=timedelta(seconds=64))
"""How often a page is asked for again before its partition has failed."""
CONSOLIDATIONS = RetryPolicy(max_retries=2, base=timedelta(seconds=2), cap=timedelta(seconds=64))
"""How often consolidation is tried again: three attempts, as the seed has it."""


class RunType(StrEnum):
    """Everything, or what was updated since the watermark."""

    FULL = "full"
    INCREMENTAL = "incremental"


class R(State):
    """The states of a run."""

    CREATED = rest("created", "planned; no partition has started")
    WORKERS_RUNNING = hold("workers_running", "its partitions are being fetched")
    CONSOLIDATION_TRIGGERED = rest("consolidation_triggered", "fetched; consolidation starts next")
    CONSOLIDATION_SKIPPED = fault("consolidation_skipped", "partitions failed, so nothing is consolidated")
    CONSOLIDATING = work("consolidating", "raw records become products, chunk by chunk")
    COMPLETED = done("completed", "consolidated; the watermark has moved on")
    FAILED = fault("failed", "failed or cancelled; the watermark has not moved")


class Phase(StrEnum):
    """The sub-states of consolidation, as the seed names them."""

    VALIDATING_RUN = "validating_run"
    LOADING_PRICING_RULES = "loading_pricing_rules"
    FETCHING_RAW_BATCH = "fetching_raw_batch"
    PROCESSING_BATCH = "processing_batch"
    MAPPING_DIAMONDS = "mapping_diamonds"
    APPLYING_PRICING = "applying_pricing"
    UPSERTING_BATCH = "upserting_batch"
    MARKING_CONSOLIDATED = "marking_consolidated"
    UPDATING_RUN_METADATA = "updating_run_metadata"
    ADVANCING_WATERMARK = "advancing_watermark"


class Run(Unit):
    """One pass over a catalogue. `window_to` is fixed at birth and becomes the watermark; a full run asks without one.

    `watermark_before` is the watermark that the run started from, and `window_from` lies an overlap before it.
    """

    key = ("run_id",)

    status: R = R.CREATED
    run_id: UUID
    run_type: RunType
    expected_workers: Annotated[int, Column(sql_type="Integer")]
    completed_workers: _Count = 0
    failed_workers: _Count = 0
    #: Completed partitions whose records were found to be all there.
    verified_workers: _Count = 0
    watermark_before: datetime | None = None
    watermark_after: datetime | None = None
    started_at: _Moment
    completed_at: datetime | None = None

    feed: str
    window_from: datetime | None = None
    window_to: datetime
    #: The records that the scan counted, and the calls that it took.
    expected_records: int
    scan_calls: int = 0
    phase: Phase | None = None
    expected_chunks: _Count = 0
    completed_chunks: _Count = 0
    failed_chunks: _Count = 0
    records_consolidated: int = 0
    records_rejected: int = 0
    records_deleted: int = 0
    #: Live records that a full run did not see and kept, because nothing proves that they are gone.
    unseen: int | None = None
    consolidation_started_at: datetime | None = None
    #: Who had it consolidated although partitions had failed, and why.
    forced_by: str | None = None
    forced_reason: str | None = None
    error: str | None = None


_TRIGGERED = "('consolidation_triggered', 'consolidating', 'completed')"

harvest_run = Machine(
    "harvest_run",
    Run,
    births={R.CREATED: _SCHEDULER},
    edges=[
        Edge(R.CREATED, R.WORKERS_RUNNING, "workers_started", _WORKER),
        Edge(R.CREATED, R.CONSOLIDATION_TRIGGERED, "nothing_to_fetch", _WORKER),
        Edge(R.WORKERS_RUNNING, R.CONSOLIDATION_TRIGGERED, "all_completed", _WORKER),
        Edge(R.WORKERS_RUNNING, R.CONSOLIDATION_SKIPPED, "some_failed", _WORKER),
        Edge(R.CONSOLIDATION_SKIPPED, R.FAILED, "alerted", _WORKER),
        Edge(R.CONSOLIDATION_SKIPPED, R.WORKERS_RUNNING, "retry", _OPERATOR),
        Edge(R.FAILED, R.WORKERS_RUNNING, "retry", _OPERATOR),
        Edge(R.CONSOLIDATION_SKIPPED, R.CONSOLIDATION_TRIGGERED, "force", _OPERATOR),
        Edge(R.FAILED, R.CONSOLIDATION_TRIGGERED, "force", _OPERATOR),
        Edge(R.CONSOLIDATION_TRIGGERED, R.CONSOLIDATING, "consolidation_started", _WORKER),
        Edge(R.CONSOLIDATING, R.COMPLETED, "consolidated", _WORKER),
        Edge(R.CONSOLIDATING, R.FAILED, "consolidation_failed", _WORKER),
        Edge(R.CREATED, R.FAILED, "cancel", _OPERATOR),
        Edge(R.WORKERS_RUNNING, R.FAILED, "cancel", _OPERATOR),
        Edge(R.CONSOLIDATING, R.FAILED, "cancel", _OPERATOR),
    ],
    terminal={R.COMPLETED},
    on_error=OnError(policy=CONSOLIDATIONS),
    checks={
        # The seed's "State Field Values"; a forced run is exempt where it says so.
        "run_type_known": "run_type IN ('full', 'incremental')",
        "created_is_untouched": "status <> 'created' OR (completed_workers = 0 AND failed_workers = 0)",
        "skipped_has_failures": "status <> 'consolidation_skipped' OR failed_workers > 0",
        "consolidated_is_whole": (
            f"status NOT IN {_TRIGGERED} OR forced_by IS NOT NULL"
            " OR (failed_workers = 0 AND completed_workers = expected_workers)"
        ),
        "completed_has_moment": "(status = 'completed') = (completed_at IS NOT NULL)",
        "watermark_when_completed": (
            "(status = 'completed' OR watermark_after IS NULL)"
            " AND (status <> 'completed' OR watermark_after IS NOT NULL OR forced_by IS NOT NULL)"
        ),
        "forced_keeps_watermark": (
            "forced_by IS NULL OR watermark_after IS NULL"
            " OR (watermark_before IS NOT NULL AND watermark_after = watermark_before)"
        ),
        "forced_says_why": "(forced_by IS NULL) = (forced_reason IS NULL)",
        "failed_says_why": "status <> 'failed' OR error IS NOT NULL",
        "window_of_type": "(run_type = 'full') = (window_from IS NULL)",
        "counts_from_zero": "completed_workers >= 0 AND failed_workers >= 0 AND expected_workers >= 0",
    },
    counters=(
        *("completed_workers", "failed_workers", "verified_workers", "completed_chunks", "failed_chunks"),
        *("records_consolidated", "records_rejected"),
    ),
    table="run_metadata",
    key_is_primary=True,
    indexes={"of_feed": ("feed", "started_at")},
)


class P(State):
    """The states of a partition."""

    PENDING = rest("pending", "waits to be fetched")
    IN_PROGRESS = work("in_progress", "claimed; its first page is fetched")
    FETCHING_PAGES = work("fetching_pages", "its pages are fetched one by one")
    COMPLETED = done("completed", "every page is fetched")
    FAILED = fault("failed", "given up; its error says why")


class Partition(Unit):
    """A range of the feed's axis, fetched page by page. `low` belongs to it and `high` does not; None: without end."""

    key = ("run_id", "partition_id")

    status: P = P.PENDING
    run_id: UUID
    partition_id: str
    next_offset: _Count = 0
    completed: _Flag = False
    created_at: _Moment
    updated_at: _Moment

    feed: str
    #: Its place among the run's partitions.
    ordinal: int
    low: int
    high: int | None = None
    #: The run's window, as it is asked for; both None when it is asked for without one.
    window_from: datetime | None = None
    window_to: datetime | None = None
    #: What was counted for the range.
    expected_records: int
    #: Distinct records found, once the last page is there.
    found_records: int | None = None
    records: int = 0
    pages: int = 0
    #: How often it was delivered although it was completed.
    duplicate_pages: int = 0
    rescans: int = 0
    #: Whether a page at or past the count showed that nothing follows.
    ended: _Flag = False
    #: The record that the page before saw coming: the next page has it, or records have moved.
    coming: str | None = None
    #: How often it stepped back because they had.
    steps_back: _Count = 0
    #: Why what it did not find may be there all the same; None, once it is verified: everything was found.
    doubt: str | None = None
    #: When its records were compared with a fresh count, and enough of them were there.
    verified_at: datetime | None = None
    #: When its worker's record was made, before the first call.
    begun_at: datetime | None = None
    #: Why it is to be given up, or was.
    error: str | None = None
    #: Since when the provider had not answered when its last call failed (see `Flow.charges_outages`).
    failing_since: datetime | None = None


harvest_partition = Machine(
    "harvest_partition",
    Partition,
    births={P.PENDING: _SCHEDULER},
    edges=[
        Edge(P.PENDING, P.IN_PROGRESS, "claimed", _WORKER, on_claim=True),
        Edge(P.IN_PROGRESS, P.FETCHING_PAGES, "first_page", _WORKER),
        Edge(P.IN_PROGRESS, P.COMPLETED, "last_page", _WORKER),
        Edge(P.FETCHING_PAGES, P.COMPLETED, "last_page", _WORKER),
        Edge(P.IN_PROGRESS, P.FAILED, "gave_up", _WORKER),
        Edge(P.FETCHING_PAGES, P.FAILED, "gave_up", _WORKER),
        Edge(P.IN_PROGRESS, P.FAILED, "cancel", _OPERATOR),
        Edge(P.FETCHING_PAGES, P.FAILED, "cancel", _OPERATOR),
        Edge(P.FAILED, P.PENDING, "retry", _OPERATOR),
        Edge(P.COMPLETED, P.PENDING, "rescanned", _WORKER),
    ],
    on_error=OnError(dead=P.FAILED, policy=CALLS),
    checks={
        "completed_is_status": "completed = (status = 'completed')",
        "offset_from_zero": "next_offset >= 0",
        "failed_says_why": "status <> 'failed' OR error IS NOT NULL",
        "range_is_not_empty": "high IS NULL OR high > low",
        "verified_is_completed": "verified_at IS NULL OR status = 'completed'",
    },
    table="partition_progress",
    key_is_primary=True,
    parent=Parent(
        "harvest_run",
        by=("run_id",),
        counts={"completed_workers": {P.COMPLETED}, "failed_workers": {P.FAILED}},
        expected="expected_workers",
    ),
)


class W(State):
    """The states of a worker's record."""

    RUNNING = work("running", "a worker fetches the partition")
    COMPLETED = done("completed", "the partition is fetched")
    FAILED = fault("failed", "the partition was given up")


class WorkerRun(GuardedUnit):
    """The seed's record of who fetches a partition. Its id is made of run and partition: there is one of each."""

    key = ("id",)

    status: W = W.RUNNING
    id: UUID
    run_id: UUID
    partition_id: str
    worker_id: str
    records_processed: _Count = 0
    error_message: str | None = None
    work_item_payload: dict[str, Any] | None = None
    started_at: _Moment
    completed_at: datetime | None = None


harvest_worker = Machine(
    "harvest_worker",
    WorkerRun,
    births={W.RUNNING: _WORKER},
    edges=[
        Edge(W.RUNNING, W.COMPLETED, "completed", _WORKER),
        Edge(W.RUNNING, W.FAILED, "failed", _WORKER),
        Edge(W.RUNNING, W.FAILED, "cancel", _OPERATOR),
        Edge(W.FAILED, W.RUNNING, "begun_again", _WORKER),
        Edge(W.FAILED, W.RUNNING, "retry", _OPERATOR),
        Edge(W.COMPLETED, W.RUNNING, "begun_again", _WORKER),
    ],
    checks={
        "ended_has_moment": "(status = 'running') = (completed_at IS NULL)",
        "failed_says_why": "status <> 'failed' OR error_message IS NOT NULL",
    },
    table="worker_runs",
    key_is_primary=True,
    # The id is made of both.
    unique={"of_partition": ("run_id", "partition_id")},
    references={"run_id": harvest_run},
)


class C(State):
    """The states of a chunk."""

    OPEN = rest("open", "waits to be consolidated")
    WORKING = work("working", "its records are mapped, priced and written")
    DONE = done("done", "its records are consolidated")
    FAILED = fault("failed", "given up; its error says why")


class Chunk(Unit):
    """A range of a run's raw rows, by their `position`: `first` belongs to it and `last` does not."""

    key = ("run_id", "number")

    status: C = C.OPEN
    run_id: UUID
    number: int
    feed: str
    first: Annotated[int, Column(sql_type="BigInteger")]
    last: Annotated[int, Column(sql_type="BigInteger")]
    records: int = 0
    rejected: int = 0
    error: str | None = None


harvest_chunk = Machine(
    "harvest_chunk",
    Chunk,
    births={C.OPEN: _WORKER},
    edges=[
        Edge(C.OPEN, C.WORKING, "claimed", _WORKER, on_claim=True),
        Edge(C.WORKING, C.DONE, "consolidated", _WORKER),
        Edge(C.WORKING, C.OPEN, "put_back", _WORKER),
        Edge(C.WORKING, C.FAILED, "gave_up", _WORKER),
        Edge(C.FAILED, C.OPEN, "reopen", _OPERATOR),
    ],
    terminal={C.DONE},
    on_error=OnError(retry=C.OPEN, dead=C.FAILED, policy=RetryPolicy(max_retries=2)),
    checks={"range_is_not_empty": "last > first"},
    parent=Parent(
        "harvest_run",
        by=("run_id",),
        counts={"completed_chunks": {C.DONE}, "failed_chunks": {C.FAILED}},
        expected="expected_chunks",
    ),
)

MACHINES = (harvest_run, harvest_partition, harvest_worker, harvest_chunk)

"""The machine `harvest_run`: one pass over a catalogue. The kernel counts its partitions and its chunks on it."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, hold, rest, work
from penstock.model.unit import NOW, Column, Unit

_WORKER = frozenset({Actor.WORKER})
_OPERATOR = frozenset({Actor.OPERATOR})
_SCHEDULER = frozenset({Actor.SCHEDULER})
_Count = Annotated[int, Column(sql_type="Integer", server_default="0")]
CONSOLIDATIONS = RetryPolicy(max_retries=2, base=timedelta(seconds=2), cap=timedelta(seconds=64))
"""How often consolidation is tried again: three attempts in all."""


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
    CONSOLIDATING = work("consolidating", "raw records become canonical ones, chunk by chunk")
    COMPLETED = done("completed", "consolidated; the watermark has moved on")
    FAILED = fault("failed", "failed or cancelled; the watermark has not moved")


class Phase(StrEnum):
    """How far consolidation has come."""

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
    started_at: Annotated[datetime, Column(server_default=NOW)]
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
        # What the fields of a run must be in each state; a forced run is exempt where it says so.
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
    fixed=(
        *("run_type", "feed", "started_at", "window_from", "window_to", "watermark_before"),
        *("expected_workers", "expected_records", "scan_calls"),
    ),
    table="run_metadata",
    key_is_primary=True,
    indexes={"of_feed": ("feed", "started_at")},
)

OPEN = tuple(str(state) for state in R if state not in (R.COMPLETED, R.FAILED))
"""The states of a run that is under way; a feed has one such run at most."""

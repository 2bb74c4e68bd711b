"""The machines of a partition: `harvest_partition`, which workers claim, and `harvest_worker`, the record of who did.

The record is written with the partition's own commits. A partition that ends is counted on its run by the kernel.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID, uuid5

from penstock.lifecycles.harvest.run.machine import harvest_run
from penstock.model.machine import Actor, Edge, Machine, OnError, Parent
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, rest, work
from penstock.model.unit import NOW, Column, GuardedUnit, Unit

_WORKER = frozenset({Actor.WORKER})
_OPERATOR = frozenset({Actor.OPERATOR})
_SCHEDULER = frozenset({Actor.SCHEDULER})
_Count = Annotated[int, Column(sql_type="Integer", server_default="0")]
_Flag = Annotated[bool, Column(server_default="false")]
_Moment = Annotated[datetime, Column(server_default=NOW)]
CALLS = RetryPolicy(max_retries=3, base=timedelta(seconds=2), cap=timedelta(seconds=64))
"""How often a page is asked for again before its partition has failed."""


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
    #: Why it is to be given up, or was: its next step ends it.
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
    fixed=("feed", "ordinal", "low", "high", "window_from", "window_to", "created_at"),
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
    """The record of who fetches a partition. Its id is made of run and partition: there is one of each."""

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
        Edge(W.FAILED, W.RUNNING, "retry", _OPERATOR),
        Edge(W.COMPLETED, W.RUNNING, "rescanned", _WORKER),
    ],
    checks={
        "ended_has_moment": "(status = 'running') = (completed_at IS NULL)",
        "failed_says_why": "status <> 'failed' OR error_message IS NOT NULL",
    },
    fixed=("run_id", "partition_id", "work_item_payload", "started_at"),
    table="worker_runs",
    key_is_primary=True,
    # The id is made of both.
    unique={"of_partition": ("run_id", "partition_id")},
    references={"run_id": harvest_run},
)


def worker_run_id(run_id: UUID, partition_id: str) -> UUID:
    """The id of the worker's record of a partition: there can be no second one."""
    return uuid5(run_id, partition_id)

"""Sample machines for tests, small and stable: every shape that the kernel promises to carry.

- `INVOICE`: driven, composite key, `on_claim`, `on_error`, a check (the one of DESIGN 3.9).
- `PARTITION`: guarded, composite key with a date, tracked columns, logged self-loops.
- `BATCH_RUN` and `BATCH_ITEM`: driven parent and child, the child counted by the parent and claimed with its siblings.
- `SAMPLE`: driven, a key of every type a key part can have.
- `FEED`: driven, the schedule renamed to `next_refresh_at`, a generated `refreshing`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Annotated, Any
from uuid import UUID

from penstock.model.machine import Actor, Edge, Machine, OnError, Parent
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, hold, rest, work
from penstock.model.unit import Column, GuardedUnit, Unit

WORKER = frozenset({Actor.WORKER})
OPERATOR = frozenset({Actor.OPERATOR})
VALIDATOR = frozenset({Actor.VALIDATOR})

DUE = datetime(2026, 1, 1, tzinfo=UTC)
"""The start of a `VirtualClock`: a unit made here is due from the first moment on."""


class InvoiceState(State):
    QUEUED = rest("QUEUED", "waits to be sent")
    SENDING = work("SENDING", "claimed: the call may have left")
    SENT = done("SENT", "accepted")
    FAILED = fault("FAILED", "a dead letter")


class Invoice(Unit):
    key = ("tenant", "number")

    status: InvoiceState = InvoiceState.QUEUED
    tenant: str
    number: str
    amount_minor: int = 0
    remote_id: str | None = None


INVOICE = Machine(
    "invoice",
    Invoice,
    births={InvoiceState.QUEUED},
    edges=[
        Edge(InvoiceState.QUEUED, InvoiceState.SENDING, "claim", WORKER, on_claim=True),
        Edge(InvoiceState.SENDING, InvoiceState.SENT, "accepted", WORKER),
        Edge(InvoiceState.SENDING, InvoiceState.QUEUED, "retry", WORKER),
        Edge(InvoiceState.SENDING, InvoiceState.FAILED, "give_up", WORKER),
        Edge(InvoiceState.FAILED, InvoiceState.QUEUED, "retry_by_hand", OPERATOR),
    ],
    terminal={InvoiceState.SENT},
    on_error=OnError(retry=InvoiceState.QUEUED, dead=InvoiceState.FAILED, policy=RetryPolicy(max_retries=3)),
    checks={"sent_has_id": "status <> 'SENT' OR remote_id IS NOT NULL"},
)


class PartitionState(State):
    PENDING = rest("pending", "not validated yet")
    SUCCESS = done("success", "validated")
    FAILED = fault("failed", "rejected")


class Partition(GuardedUnit):
    key = ("source", "logical_date")

    status: PartitionState = PartitionState.PENDING
    source: str
    logical_date: date
    current_run_id: str | None = None
    schema_version: int | None = None
    record_count: int | None = None
    note: str | None = None


PARTITION = Machine(
    "partition",
    Partition,
    births={
        PartitionState.PENDING: VALIDATOR | OPERATOR | {Actor.API, Actor.SCHEDULER},
        PartitionState.SUCCESS: VALIDATOR,
        PartitionState.FAILED: VALIDATOR,
    },
    edges=[
        Edge(PartitionState.PENDING, PartitionState.SUCCESS, "validated", VALIDATOR),
        Edge(PartitionState.FAILED, PartitionState.SUCCESS, "validated", VALIDATOR),
        Edge(PartitionState.PENDING, PartitionState.FAILED, "rejected", VALIDATOR),
        Edge(PartitionState.SUCCESS, PartitionState.FAILED, "rejected", VALIDATOR),
        Edge(PartitionState.SUCCESS, PartitionState.PENDING, "reset", OPERATOR),
        Edge(PartitionState.FAILED, PartitionState.PENDING, "reset", OPERATOR),
        Edge(PartitionState.SUCCESS, PartitionState.SUCCESS, "superseded", VALIDATOR),
        Edge(PartitionState.SUCCESS, PartitionState.SUCCESS, "pointed", OPERATOR),
        Edge(PartitionState.FAILED, PartitionState.FAILED, "rejected", VALIDATOR),
    ],
    tracked=("current_run_id", "schema_version", "record_count"),
    table="partitions",
)


class RunState(State):
    CREATED = rest("created", "not started")
    RUNNING = hold("running", "its items are worked on")
    COMPLETED = done("completed", "all items have ended well")
    FAILED = fault("failed", "items have failed")


class BatchRun(Unit):
    key = ("run_id",)

    status: RunState = RunState.CREATED
    run_id: str
    items_expected: int = 0
    items_done: int = 0
    items_failed: int = 0
    bytes_read: int = 0


BATCH_RUN = Machine(
    "batch_run",
    BatchRun,
    births={RunState.CREATED},
    edges=[
        Edge(RunState.CREATED, RunState.RUNNING, "started", WORKER),
        Edge(RunState.RUNNING, RunState.COMPLETED, "all_done", WORKER),
        Edge(RunState.RUNNING, RunState.FAILED, "some_failed", WORKER),
        Edge(RunState.FAILED, RunState.RUNNING, "retry", OPERATOR),
    ],
    terminal={RunState.COMPLETED},
    counters=("items_done", "items_failed", "bytes_read"),
)


class ItemState(State):
    OPEN = rest("open", "waits for its turn")
    WORKING = work("working", "a worker has it")
    DONE = done("done", "ended well")
    FAILED = fault("failed", "given up")


class BatchItem(Unit):
    key = ("run_id", "position")

    status: ItemState = ItemState.OPEN
    run_id: str
    position: int
    result: str | None = None


BATCH_ITEM = Machine(
    "batch_item",
    BatchItem,
    births={ItemState.OPEN},
    edges=[
        Edge(ItemState.OPEN, ItemState.WORKING, "claim", WORKER, on_claim=True),
        Edge(ItemState.WORKING, ItemState.DONE, "done", WORKER),
        Edge(ItemState.WORKING, ItemState.OPEN, "retry", WORKER),
        Edge(ItemState.WORKING, ItemState.FAILED, "give_up", WORKER),
        Edge(ItemState.FAILED, ItemState.OPEN, "retry_by_hand", OPERATOR),
    ],
    terminal={ItemState.DONE},
    on_error=OnError(retry=ItemState.OPEN, dead=ItemState.FAILED),
    siblings="run_id",
    parent=Parent(
        "batch_run",
        by=("run_id",),
        counts={"items_done": {ItemState.DONE}, "items_failed": {ItemState.FAILED}},
        expected="items_expected",
    ),
)


class SampleState(State):
    NEW = rest("new", "not looked at")
    OLD = done("old", "looked at")


class Sample(Unit):
    key = ("name", "number", "day", "moment", "token")

    status: SampleState = SampleState.NEW
    name: str
    number: int
    day: date
    moment: datetime
    token: UUID


SAMPLE = Machine(
    "sample",
    Sample,
    births={SampleState.NEW},
    edges=[Edge(SampleState.NEW, SampleState.OLD, "aged", WORKER)],
    terminal={SampleState.OLD},
)


class FeedState(State):
    MISSING = rest("missing", "not requested yet")
    FETCHING = hold("fetching", "the provider is making the report")
    COMPLETED = done("completed", "loaded")
    ERROR = fault("error", "given up")


class Feed(Unit):
    key = ("feed_id",)

    status: FeedState = FeedState.MISSING
    feed_id: str
    url: str = ""
    refreshing: Annotated[bool, Column(generated="claimed_by IS NOT NULL")] = False


FEED = Machine(
    "feed",
    Feed,
    births={FeedState.MISSING},
    edges=[
        Edge(FeedState.MISSING, FeedState.FETCHING, "created", WORKER),
        Edge(FeedState.COMPLETED, FeedState.FETCHING, "created", WORKER | OPERATOR),
        Edge(FeedState.ERROR, FeedState.FETCHING, "created", WORKER | OPERATOR),
        Edge(FeedState.FETCHING, FeedState.COMPLETED, "loaded", WORKER),
        Edge(FeedState.FETCHING, FeedState.ERROR, "provider_failed", WORKER),
        Edge(FeedState.ERROR, FeedState.MISSING, "reset", OPERATOR),
    ],
    table="feeds",
    due="next_refresh_at",
)

MACHINES = (INVOICE, PARTITION, BATCH_RUN, BATCH_ITEM, SAMPLE, FEED)


def invoice(number: str = "1", **fields: Any) -> Invoice:
    made: dict[str, Any] = {"tenant": "acme", "number": number, "amount_minor": 100, "due_at": DUE}
    return Invoice(**made | fields)


def partition(source: str = "sales", day: date = date(2026, 11, 15), **fields: Any) -> Partition:
    return Partition(source=source, logical_date=day, **fields)


def batch_run(run_id: str = "run", **fields: Any) -> BatchRun:
    made: dict[str, Any] = {"run_id": run_id, "due_at": DUE}
    return BatchRun(**made | fields)


def batch_item(position: int = 1, **fields: Any) -> BatchItem:
    made: dict[str, Any] = {"run_id": "run", "position": position, "due_at": DUE}
    return BatchItem(**made | fields)


def sample(name: str = "a/b%c", **fields: Any) -> Sample:
    made: dict[str, Any] = {
        "name": name,
        "number": -7,
        "day": date(2026, 11, 15),
        "moment": datetime(2026, 11, 15, 19, 31, 0, 123_000, tzinfo=UTC),
        "token": UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
        "due_at": DUE,
    }
    return Sample(**made | fields)


def feed(feed_id: str = "news", **fields: Any) -> Feed:
    made: dict[str, Any] = {"feed_id": feed_id, "due_at": DUE}
    return Feed(**made | fields)


SAMPLES: dict[str, Callable[..., GuardedUnit]] = {
    "invoice": invoice,
    "partition": partition,
    "batch_run": batch_run,
    "batch_item": batch_item,
    "sample": sample,
    "feed": feed,
}
"""Machine name to a function that makes a unit of it, ready to be born."""

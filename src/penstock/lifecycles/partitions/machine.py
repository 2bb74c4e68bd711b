"""The three machines: what is safe to consume, the work that leads there, and the runs that people want judged."""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated

from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, rest, work
from penstock.model.unit import Column, GuardedUnit, Unit, replace
from penstock.raw.paths import PARTITION_MACHINE, PARTITION_TABLE, PARTS, PartitionKey


class P(State):
    """Whether consumers may read. A key without a row is pending."""

    PENDING = rest("pending", "not validated yet; consumers wait")
    SUCCESS = done("success", "validated; consumers read the current run")
    FAILED = fault("failed", "the last run was rejected; consumers must not read it")


class X(State):
    """How far the work on one key is."""

    WANTED = rest("wanted", "waits for its turn to be fetched")
    EXTRACTING = work("extracting", "the source is being asked, or may have been")
    LANDED = work("landed", "the run is in the raw sink; it is validated next")
    DONE = done("done", "the run is validated, and the verdict recorded")
    FAILED = fault("failed", "a dead letter: the source did not deliver")


class V(State):
    """How far a wish to have a run judged is."""

    WANTED = work("wanted", "a worker validates the run next")
    DONE = done("done", "the run is validated, and the verdict recorded")
    REFUSED = fault("refused", "the partition stays as it was; the reason says why")


class PartitionState(GuardedUnit):
    """The status of one logical partition, and the run that is authoritative."""

    key = PARTS
    status: P = P.PENDING
    source: str
    customer_id: str
    query_name: str
    logical_date: date
    current_run_id: str | None = None
    schema_version: str | None = None
    record_count: int | None = None
    updated_at: datetime | None = None
    error_message: str | None = None
    attempt_count: Annotated[int, Column(sql_type="Integer", server_default="0")] = 0


class Extraction(Unit):
    """One wanted partition. `run_id` is that of the run under way, drawn before the source is asked.

    When it is done, or was given up, `due_at` is its next offset.
    """

    key = PARTS
    status: X = X.WANTED
    source: str
    customer_id: str
    query_name: str
    logical_date: date
    run_id: str | None = None
    record_count: int | None = None
    verdict: str | None = None
    #: The seconds after local midnight of the offset that a run is under way for, or that was given up; None when all
    #: is served.
    serving_offset: int | None = None
    #: When the source was asked for the last run that was found good.
    served_at: datetime | None = None
    #: Wanted by a backfill: it has a gate of its own, after the daily work.
    backfill: bool = False
    #: Since when the provider had not answered when its last call failed (see `Flow.charges_outages`).
    failing_since: datetime | None = None


class Validation(Unit):
    """A landed run that somebody wants judged by hand, or pointed at.

    `point`: the run is to be authoritative, even if it is older than the current one; it must be good. The history has
    who wants it, and why.
    """

    key = (*PARTS, "run_id")
    status: V = V.WANTED
    source: str
    customer_id: str
    query_name: str
    logical_date: date
    run_id: str
    point: bool = False
    verdict: str | None = None


def key_of(unit: PartitionState | Extraction | Validation) -> PartitionKey:
    """The logical partition that a unit is about."""
    return PartitionKey(unit.source, unit.customer_id, unit.query_name, unit.logical_date)


def gate_of(key: PartitionKey, *, backfill: bool = False) -> str:
    """The gate of a partition's extraction: its account's, or the account's own for backfills."""
    return f"{key.source}/{key.customer_id}" + ("/backfill" if backfill else "")


def wanted_unit(key: PartitionKey, due: datetime, *, backfill: bool = False) -> Extraction:
    """A partition that is wanted from that moment on."""
    return Extraction(
        source=key.source,
        customer_id=key.customer_id,
        query_name=key.query_name,
        logical_date=key.logical_date,
        backfill=backfill,
        due_at=due,
        gate_id=gate_of(key, backfill=backfill),
    )


def reset(state: PartitionState, now: datetime) -> PartitionState:
    """A partition as nobody has judged it; how often runs were evaluated stays."""
    unjudged = replace(state, status=P.PENDING, current_run_id=None, schema_version=None, record_count=None)
    return replace(unjudged, error_message=None, updated_at=now)


def wanted_again(unit: Extraction, now: datetime) -> Extraction:
    """Daily work again, and due, whoever wanted it first."""
    fresh = replace(unit, status=X.WANTED, run_id=None, verdict=None, attempts=0, backfill=False)
    return replace(fresh, due_at=now, gate_id=gate_of(key_of(unit)))


def _created(unit: Extraction, now: datetime) -> Extraction:
    return replace(unit, due_at=unit.due_at or now, gate_id=gate_of(key_of(unit), backfill=unit.backfill))


_VALIDATOR, _OPERATOR, _WORKER = {Actor.VALIDATOR}, {Actor.OPERATOR}, {Actor.WORKER}
_SCHEDULER = {Actor.SCHEDULER}

partition = Machine(
    PARTITION_MACHINE,
    PartitionState,
    births={P.PENDING: _VALIDATOR | _OPERATOR, P.SUCCESS: _VALIDATOR, P.FAILED: _VALIDATOR},
    edges=[
        Edge(P.PENDING, P.SUCCESS, "validated", _VALIDATOR),
        Edge(P.FAILED, P.SUCCESS, "validated", _VALIDATOR),
        Edge(P.PENDING, P.FAILED, "rejected", _VALIDATOR),
        Edge(P.SUCCESS, P.FAILED, "rejected", _VALIDATOR),
        Edge(P.SUCCESS, P.SUCCESS, "superseded", _VALIDATOR),
        Edge(P.FAILED, P.FAILED, "rejected", _VALIDATOR),
        Edge(P.SUCCESS, P.PENDING, "reset", _OPERATOR, by_hand=reset),
        Edge(P.FAILED, P.PENDING, "reset", _OPERATOR, by_hand=reset),
    ],
    table=PARTITION_TABLE,
    key_is_primary=True,
    tracked=("current_run_id", "schema_version", "record_count"),
    checks={
        "status_is_known": "status IN ('pending', 'success', 'failed')",
        "success_has_run": (
            "status <> 'success' OR (current_run_id IS NOT NULL AND record_count IS NOT NULL"
            " AND record_count >= 0 AND COALESCE(error_message, '') = '')"
        ),
        "failed_has_error": (
            "status <> 'failed' OR (current_run_id IS NOT NULL AND COALESCE(error_message, '') <> ''"
            " AND attempt_count >= 1)"
        ),
        "customer_is_canonical": (
            "source <> 'google_ads' OR (customer_id <> '' AND ltrim(customer_id, '0123456789') = '')"
        ),
    },
    # What a status over a range asks for lies together, so that it counts along the index alone.
    indexes={"range": (*PARTS[:3], "status", "logical_date")},
)

extraction = Machine(
    "extraction",
    Extraction,
    births={X.WANTED: _SCHEDULER | _OPERATOR},
    edges=[
        Edge(X.WANTED, X.EXTRACTING, "claimed", _WORKER, on_claim=True),
        Edge(X.EXTRACTING, X.LANDED, "landed", _WORKER),
        Edge(X.LANDED, X.DONE, "judged", _VALIDATOR),
        Edge(X.EXTRACTING, X.WANTED, "put_back", _WORKER),
        Edge(X.EXTRACTING, X.FAILED, "gave_up", _WORKER),
        Edge(X.DONE, X.WANTED, "offset_due", _SCHEDULER),
        Edge(X.FAILED, X.WANTED, "offset_due", _SCHEDULER),
        Edge(X.DONE, X.WANTED, "reprocess", _OPERATOR, by_hand=wanted_again),
        Edge(X.FAILED, X.WANTED, "reprocess", _OPERATOR, by_hand=wanted_again),
    ],
    on_error=OnError(retry=X.WANTED, dead=X.FAILED, policy=RetryPolicy(max_retries=3)),
    checks={
        "landed_has_run": "status NOT IN ('landed', 'done') OR run_id IS NOT NULL",
        "offset_from_zero": "serving_offset IS NULL OR serving_offset >= 0",
    },
    create=_created,
)

validation = Machine(
    "validation",
    Validation,
    births={V.WANTED: _OPERATOR},
    edges=[
        Edge(V.WANTED, V.DONE, "judged", _VALIDATOR),
        Edge(V.WANTED, V.REFUSED, "refused", _VALIDATOR),
        Edge(V.DONE, V.WANTED, "again", _OPERATOR),
        Edge(V.REFUSED, V.WANTED, "again", _OPERATOR),
    ],
)

MACHINES = (partition, extraction, validation)

"""The machine `report`: one dataset of one account, fetched again and again while the provider still restates it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, Any

from penstock.model.machine import Actor, Edge, Machine
from penstock.model.state import State, done, fault, hold, rest, work
from penstock.model.unit import Column, Unit

_WORKER = frozenset({Actor.WORKER})


class S(State):
    """How far a dataset is."""

    MISSING = rest("missing", "not requested yet")
    FETCHING = hold("fetching", "the provider is making the report")
    PARSING = work("parsing", "the report is ready; it is downloaded and loaded")
    COMPLETED = done("completed", "loaded; refreshed at its next offset")
    ERROR = fault("error", "given up until its next offset or until somebody retries it")


class Aggregation(StrEnum):
    """The span of one dataset."""

    DAILY = "daily"
    HOURLY = "hourly"


class EntityType(StrEnum):
    """What a dataset's rows are about."""

    TARGET = "target"
    PRODUCT = "product"


def _listed(words: type[StrEnum]) -> str:
    return ", ".join(f"'{word}'" for word in words)


class Report(Unit):
    """A dataset: whose, of when, of what kind; the report under way, the one that is loaded, and what went wrong.

    `period` is the account's local date, or the UTC hour (`2026-11-01T05Z`). `timestamp` is the instant at which the
    period begins; the offsets count from it.
    """

    key = ("account", "period", "aggregation", "entity_type")

    status: S = S.MISSING
    account: str
    period: str
    aggregation: Aggregation
    entity_type: EntityType
    timestamp: datetime
    report_date: date
    time_zone: str
    country: str
    #: Asked for by hand, outside of the daily work, and done behind it.
    backfill: bool = False

    report_id: str | None = None
    last_processed_report_id: str | None = None
    last_report_created_at: datetime | None = None
    #: The seconds after `timestamp` of the refresh that is under way or was given up; None when all is served.
    serving_offset: int | None = None
    #: A create was about to be sent, and its answer is not known yet.
    create_requested_at: datetime | None = None
    #: The provider was asked to cancel the report and would not.
    cancel_refused_at: datetime | None = None

    #: How often, for the offset that is being served, the provider has named an older report instead of making one.
    duplicates: int = 0
    create_failures: int = 0
    provider_failures: int = 0
    pending_failures: int = 0
    parse_failures: int = 0
    link_expiries: int = 0
    error: str | None = None
    #: Since when the provider had not answered when its last call failed (see `Flow.charges_outages`).
    failing_since: datetime | None = None

    #: The visible rows of `performance_row`, and where they came from.
    loaded_stage: str | None = None
    loaded_report_id: str | None = None
    loaded_at: datetime | None = None
    loaded_rows: int | None = None
    loaded_digest: str | None = None
    raw_run_id: str | None = None

    refreshing: Annotated[bool, Column(generated="claimed_by IS NOT NULL")] = False


NO_FAILURES: Mapping[str, Any] = dict.fromkeys(
    ("duplicates", "create_failures", "provider_failures", "pending_failures", "parse_failures", "link_expiries"), 0
)
"""The counters of an offset that has just begun."""
UNBORN: Mapping[str, Any] = {
    **dict.fromkeys(("serving_offset", "create_requested_at", "last_report_created_at", "last_processed_report_id")),
    **dict.fromkeys(("loaded_stage", "loaded_report_id", "loaded_at", "loaded_rows", "loaded_digest", "raw_run_id")),
    **NO_FAILURES,
    "error": None,
    "attempts": 0,
}
"""A dataset of which nothing is known yet."""


JOB = "update-report-status"
"""What its steps are called."""

machine = Machine(
    "report",
    Report,
    births={S.MISSING: {Actor.SCHEDULER, Actor.OPERATOR}},
    edges=[
        Edge(S.MISSING, S.FETCHING, "created", _WORKER),
        Edge(S.COMPLETED, S.FETCHING, "created", _WORKER),
        Edge(S.ERROR, S.FETCHING, "created", _WORKER),
        Edge(S.FETCHING, S.PARSING, "ready", _WORKER),
        Edge(S.PARSING, S.COMPLETED, "loaded", _WORKER),
        Edge(S.MISSING, S.ERROR, "create_failed", _WORKER),
        Edge(S.COMPLETED, S.ERROR, "create_failed", _WORKER),
        Edge(S.FETCHING, S.ERROR, "provider_failed", _WORKER),
        Edge(S.FETCHING, S.ERROR, "pending_too_long", _WORKER),
        Edge(S.PARSING, S.ERROR, "parse_failed", _WORKER),
        Edge(S.ERROR, S.MISSING, "reset", {Actor.OPERATOR}),
    ],
    checks={
        "aggregation_is_known": f"aggregation IN ({_listed(Aggregation)})",
        "entity_type_is_known": f"entity_type IN ({_listed(EntityType)})",
        "under_way_has_report": "(status IN ('fetching', 'parsing')) = (report_id IS NOT NULL)",
        "completed_is_loaded": "status <> 'completed' OR loaded_report_id IS NOT NULL",
        "error_says_why": "status <> 'error' OR error IS NOT NULL",
        "offset_from_zero": "serving_offset IS NULL OR serving_offset >= 0",
    },
    tracked=("report_id", "loaded_report_id"),
    fixed=("timestamp", "report_date", "time_zone", "country", "backfill"),
    table="report_dataset_metadata",
    due="next_refresh_at",
)

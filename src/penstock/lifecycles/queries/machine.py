"""The machine of a query, on `query_state`: one row per search, with the state of its last run and how far it has read.

A run holds the claim from its first page to its last, and claims pass the gate `queries/run` one at a time: that is the
run lock. It is leased and fenced as every claim is.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Annotated, Any
from uuid import UUID

from penstock.model.machine import Actor, Edge, Machine
from penstock.model.state import State, done, fault, rest, work
from penstock.model.unit import Column, Unit

_WORKER = frozenset({Actor.WORKER})
_Count = Annotated[int, Column(sql_type="Integer", server_default="0")]


class S(State):
    """The states of a query."""

    IDLE = rest("IDLE", "not running: it has never run, or its last run stopped early without an error")
    RUNNING = work("RUNNING", "a run is under way")
    SUCCESS = done("SUCCESS", "its last run finished successfully")
    ERROR = fault("ERROR", "its last run finished with an error; it is run again in its turn")


class Query(Unit):
    """A recurring search. Everything from `last_processed_date` up to `covered_through` has been read."""

    key = ("query_key",)

    status: S = S.IDLE
    query_key: str
    client: str
    #: What the configuration calls it.
    name: str
    last_run_at: datetime | None = None
    last_success_at: datetime | None = None
    last_error_at: datetime | None = None
    #: The oldest day that was read to its end; it goes backwards while history is seeded.
    last_processed_date: date | None = None
    consecutive_failures: _Count = 0
    metadata: dict[str, Any] | None = None

    #: The date of the newest record of the last reading that came to its end.
    covered_through: datetime | None = None
    #: The oldest day that is to be seeded; None until its first run.
    seed_until: date | None = None
    #: When that was reached.
    seeded_at: datetime | None = None
    #: Days before this one are beyond what the provider lists.
    unreachable_before: date | None = None
    #: Readings that were begun and have not come to their end: of what is new, and of history (see `passes.Pass`).
    reading: dict[str, Any] | None = None
    seeding: dict[str, Any] | None = None
    #: How many readings were begun; each has its number.
    readings: int = 0
    #: The last reading that found everything there was, and down to when: what it did not see may be closed.
    unseen: dict[str, Any] | None = None
    #: When everything was last listed, to find what was closed.
    census_at: datetime | None = None
    #: When it last found anything at all.
    last_found_at: datetime | None = None
    #: Runs in a row that were stopped by a limit without getting anywhere.
    stuck: _Count = 0

    run_id: UUID | None = None
    run_started_at: datetime | None = None
    #: The version that the run's last commit left. Another one: whoever ran it is gone.
    run_version: int | None = None
    #: What the run has done so far (see `runs.Run`).
    run: dict[str, Any] | None = None
    #: What went wrong in the last run.
    error: str | None = None


query = Machine(
    "query",
    Query,
    births={S.IDLE: {Actor.SCHEDULER}},
    edges=[
        Edge(S.IDLE, S.RUNNING, "began", _WORKER),
        Edge(S.SUCCESS, S.RUNNING, "began", _WORKER),
        Edge(S.ERROR, S.RUNNING, "began", _WORKER),
        Edge(S.RUNNING, S.SUCCESS, "finished", _WORKER),
        Edge(S.RUNNING, S.ERROR, "failed", _WORKER),
        Edge(S.RUNNING, S.IDLE, "stopped_early", _WORKER),
    ],
    checks={
        "running_has_a_run": "status <> 'RUNNING' OR (run_id IS NOT NULL AND run_started_at IS NOT NULL)",
        "success_has_a_moment": "status <> 'SUCCESS' OR (last_success_at IS NOT NULL AND consecutive_failures = 0)",
        "error_says_why": "status <> 'ERROR' OR (error IS NOT NULL AND last_error_at IS NOT NULL)",
        "failures_from_zero": "consecutive_failures >= 0",
    },
    #: How far it has read. It moves with a reading that comes to its end, and with each day that is seeded.
    tracked=("covered_through", "last_processed_date", "seed_until", "seeded_at", "consecutive_failures"),
    fixed=("client",),
    table="query_state",
)

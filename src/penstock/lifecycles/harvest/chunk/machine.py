"""The machine `harvest_chunk`: a range of a run's raw rows to consolidate. The kernel counts it on its run."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from penstock.model.machine import Actor, Edge, Machine, OnError, Parent
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, rest, work
from penstock.model.unit import Column, Unit

_WORKER = frozenset({Actor.WORKER})
_OPERATOR = frozenset({Actor.OPERATOR})


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
    fixed=("feed", "last"),
    parent=Parent(
        "harvest_run",
        by=("run_id",),
        counts={"completed_chunks": {C.DONE}, "failed_chunks": {C.FAILED}},
        expected="expected_chunks",
    ),
)

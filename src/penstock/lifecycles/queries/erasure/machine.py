"""The machine `erasure`: one offer, company or record that is to be erased, and how far that has come.

A unit names what it erases by what stays anyway: the id at the provider, or the digest of a company's name.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, rest, work
from penstock.model.unit import Column, Unit, replace

_WORKER = frozenset({Actor.WORKER})
_PERSON = frozenset({Actor.OPERATOR, Actor.API})
_Count = Annotated[int, Column(sql_type="BigInteger", server_default="0")]
ANY_CLIENT = "-"
"""In place of a client in the key of a company: it is one over all of them."""


class E(State):
    """The states of an erasure."""

    WANTED = rest("wanted", "waits for its turn: no query runs while something is erased")
    ERASING = work("erasing", "rows are blanked and landed pages replaced")
    DONE = done("done", "erased, and never kept again")
    FAILED = fault("failed", "given up; its reason says why, and what is not erased yet is still there")


class Kind(StrEnum):
    """What is erased."""

    OFFER = "offer"
    COMPANY = "company"
    RECORD = "record"


class Step(StrEnum):
    """What is done, in this order; each is taken again until nothing is left of it."""

    #: From now on nothing more of it is kept.
    MARK = "mark"
    #: Records that could not be used.
    SET_ASIDE = "set_aside"
    #: Rows of `offers`, or of a table of its own.
    ROWS = "rows"
    #: The company's own row; or that of the offer's company, aggregated again without it.
    COMPANIES = "companies"
    #: Landed pages.
    PAGES = "pages"
    #: What crashes left behind among the landed pages.
    LEFTOVERS = "leftovers"


STEPS = {
    Kind.OFFER: (Step.MARK, Step.SET_ASIDE, Step.ROWS, Step.COMPANIES),
    Kind.COMPANY: (Step.MARK, Step.SET_ASIDE, Step.ROWS, Step.COMPANIES),
    Kind.RECORD: (Step.MARK, Step.SET_ASIDE, Step.ROWS, Step.PAGES, Step.LEFTOVERS),
}


class Erasure(Unit):
    """Something that is to be erased. `record` is its id at the client, or the key of a company."""

    key = ("kind", "client", "record")

    status: E = E.WANTED
    kind: Kind
    client: str
    record: str
    asked_by: str
    asked_at: datetime
    #: The step that is taken next, and how far it has come.
    step: Step = Step.MARK
    place: str | None = None
    #: Landed pages that have been replaced and are to be removed: partition and run id of each.
    leaving: list[Any] | None = None
    #: How many rows were blanked, and how many landed pages were looked through and replaced.
    rows: _Count = 0
    pages_seen: _Count = 0
    pages_replaced: _Count = 0
    erased_at: datetime | None = None


def again(unit: Erasure, now: datetime) -> Erasure:
    """From its beginning, as somebody asks for it once more."""
    return replace(unit, step=Step.MARK, place=None, attempts=0, erased_at=None, due_at=now)


def _retry(unit: Erasure, now: datetime) -> Erasure:
    return replace(unit, attempts=0, due_at=now)


erasure = Machine(
    "erasure",
    Erasure,
    births={E.WANTED: _PERSON},
    edges=[
        Edge(E.WANTED, E.ERASING, "claimed", _WORKER, on_claim=True),
        Edge(E.ERASING, E.DONE, "erased", _WORKER),
        Edge(E.ERASING, E.WANTED, "put_back", _WORKER),
        Edge(E.ERASING, E.FAILED, "gave_up", _WORKER),
        Edge(E.FAILED, E.WANTED, "retry", _PERSON, by_hand=_retry),
        Edge(E.DONE, E.WANTED, "repeat", _PERSON, by_hand=again),
    ],
    on_error=OnError(retry=E.WANTED, dead=E.FAILED, policy=RetryPolicy(max_retries=5)),
    checks={"done_is_done": "status <> 'done' OR (erased_at IS NOT NULL AND leaving IS NULL)"},
)


def next_step(unit: Erasure) -> Step | None:
    """The step after the one that it is at; None: it is the last."""
    steps = STEPS[unit.kind]
    place = steps.index(unit.step) + 1
    return steps[place] if place < len(steps) else None

"""The machine `bulk_action`: one plan on its way through the ledger."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from penstock.model.errors import UsageError
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.outcome import Act, Decision, Wait
from penstock.model.state import State, done, work
from penstock.model.unit import Unit, replace


class B(State):
    """A bulk action goes on until it is done or a person stops it."""

    RUNNING = work("running", "its units are being moved, set by set")
    DONE = done("done", "every unit was moved, or skipped with its reason")
    CANCELLED = done("cancelled", "stopped by a person; what was moved stays moved")


class BulkAction(Unit):
    """So many units of one machine, in parts that get the same change each."""

    key = ("action_id",)
    status: B = B.RUNNING
    action_id: str
    operation: str
    says: str
    #: The machine whose units are moved.
    target: str
    digest: str
    requested_by: str
    requested_at: datetime
    reason: str
    #: Each `[source, target, changes, first, after]`: a span of positions, with the changes as the database keeps them.
    parts: list[Any]
    total: int
    #: The first item that was not looked at yet.
    position: int = 0
    moved: int = 0
    skipped: int = 0
    finished_at: datetime | None = None


def cancelled(action: BulkAction, now: datetime) -> BulkAction:
    """The action, stopped by hand."""
    return replace(action, finished_at=now, due_at=None)


def _not_by_hand(action: BulkAction, now: datetime) -> BulkAction:  # noqa: ARG001 - one shape
    msg = "a bulk action is started by an operation on many units; it cannot be created by hand"
    raise UsageError(msg)


bulk_action = Machine(
    "bulk_action",
    BulkAction,
    births={B.RUNNING: {Actor.OPERATOR, Actor.API}},
    edges=[
        Edge(B.RUNNING, B.DONE, "finished", {Actor.WORKER}),
        Edge(B.RUNNING, B.CANCELLED, "cancel", {Actor.OPERATOR, Actor.API}, by_hand=cancelled),
    ],
    terminal={B.DONE, B.CANCELLED},
    fixed=("operation", "says", "target", "digest", "requested_by", "requested_at", "reason", "parts", "total"),
    create=_not_by_hand,
)


def decide(action: BulkAction, now: datetime, settings: None, seen: None) -> Decision:  # noqa: ARG001 - one shape
    """Move the next units; when all were looked at, sum up."""
    if action.status is not B.RUNNING:
        return Wait(None, f"the action is {action.status}")
    if action.position < action.total:
        return Act("move", f"{action.position:,} of {action.total:,} were looked at", counts_attempt=False)
    return Act("finish", "every unit was looked at", counts_attempt=False)

"""The unit and the machine of deliveries. It imports nothing heavy: every program has this machine."""

from __future__ import annotations

from datetime import datetime, timedelta

from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.retry import RetryPolicy
from penstock.model.state import State, done, fault, work
from penstock.model.unit import Unit, replace


class D(State):
    """Pending until the subscriber took it, or did not want it; dead when it refused, or failed too often."""

    PENDING = work("pending", "on its way; the subscriber has not taken it yet")
    DELIVERED = done("delivered", "the subscriber has taken it")
    UNWANTED = done("unwanted", "the subscriber was not told: it does not want this one")
    DEAD = fault("dead", "the subscriber refused it, or failed too often")


class Delivery(Unit):
    """One event for one subscriber."""

    key = ("subscriber", "tenant_id", "event_key")
    status: D = D.PENDING
    subscriber: str
    tenant_id: str
    event_key: str


def _dismissed(delivery: Delivery, now: datetime) -> Delivery:  # noqa: ARG001 - one shape
    return replace(delivery, due_at=None)


def _retried(delivery: Delivery, now: datetime) -> Delivery:
    return replace(delivery, attempts=0, due_at=now)


machine = Machine(
    "delivery",
    Delivery,
    births={D.PENDING: {Actor.SCHEDULER}},
    edges=[
        Edge(D.PENDING, D.DELIVERED, "taken", {Actor.WORKER}),
        Edge(D.PENDING, D.UNWANTED, "left_out", {Actor.WORKER}),
        Edge(D.PENDING, D.DEAD, "gave_up", {Actor.WORKER}),
        Edge(D.PENDING, D.DEAD, "dismiss", {Actor.OPERATOR}, by_hand=_dismissed),
        Edge(D.DEAD, D.PENDING, "retry", {Actor.OPERATOR}, by_hand=_retried),
    ],
    terminal={D.DELIVERED, D.UNWANTED},
    # Two seconds, doubled to an hour: a subscriber may be away for some two hours before anything is dead.
    on_error=OnError(dead=D.DEAD, policy=RetryPolicy(max_retries=12, cap=timedelta(hours=1))),
    table="event_delivery",
)


def gate_of(subscriber: str) -> str:
    """The gate of a subscriber: one that throttles or is paused holds up nobody else."""
    return f"outbox/{subscriber}"

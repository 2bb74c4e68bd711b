"""The machine `alert`: one unit for each policy and what it is about. It imports nothing heavy."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from penstock.model.errors import UsageError
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.state import State, done, fault, hold
from penstock.model.unit import GuardedUnit, replace

SILENCE = timedelta(hours=1)
"""How long a silence lasts where nobody says."""


class A(State):
    """An alert fires until it is over; a person may take it on, or want to hear nothing of it for a time."""

    FIRING = fault("firing", "it is true, and nobody has taken it on")
    ACKNOWLEDGED = hold("acknowledged", "somebody has taken it on")
    SILENCED = hold("silenced", "it is true, and nobody is told for a time")
    RESOLVED = done("resolved", "it is over")


class Alert(GuardedUnit):
    """A policy and what it is about. It stays when it is over, and fires again."""

    key = ("policy", "subject")
    status: A = A.FIRING
    policy: str
    subject: str
    severity: str
    says: str
    facts: dict[str, Any] | None = None
    #: A unit to look at.
    example: str | None = None
    #: Since when it has been true this time, and how often it has fired.
    since: datetime
    times: int = 1
    #: Who has taken it on, silenced or resolved it by hand.
    by_whom: str | None = None
    silenced_at: datetime | None = None
    silence_seconds: int = 0
    #: What was told last: state and severity; empty: nothing since it fired.
    told: str = ""

    @property
    def silenced_until(self) -> datetime | None:
        """When its silence ends; None where there is none."""
        return None if self.silenced_at is None else self.silenced_at + timedelta(seconds=self.silence_seconds)


def silenced(alert: Alert, now: datetime, span: timedelta = SILENCE) -> Alert:
    """The alert, silent for so long."""
    return replace(alert, status=A.SILENCED, silenced_at=now, silence_seconds=int(span.total_seconds()))


def audible(alert: Alert, now: datetime) -> Alert:  # noqa: ARG001 - one shape
    """The alert without its silence: who wants it is told anew."""
    return replace(alert, status=A.FIRING, silenced_at=None, silence_seconds=0, told="")


def _acknowledged(alert: Alert, now: datetime) -> Alert:  # noqa: ARG001 - one shape
    return replace(alert, status=A.ACKNOWLEDGED)


def _resolved(alert: Alert, now: datetime) -> Alert:  # noqa: ARG001 - one shape
    return replace(alert, status=A.RESOLVED, silenced_at=None, silence_seconds=0)


def _not_by_hand(alert: Alert, now: datetime) -> Alert:  # noqa: ARG001 - one shape
    raise UsageError("an alert fires by its policy; 'penstock alerts test' makes one to try the sinks")


_WORKER, _OPERATOR = {Actor.WORKER}, {Actor.OPERATOR, Actor.API}

machine = Machine(
    "alert",
    Alert,
    births={A.FIRING: {Actor.WORKER, Actor.OPERATOR}},
    edges=[
        Edge(A.FIRING, A.ACKNOWLEDGED, "acknowledge", _OPERATOR, by_hand=_acknowledged),
        Edge(A.FIRING, A.RESOLVED, "over", _WORKER),
        Edge(A.ACKNOWLEDGED, A.RESOLVED, "over", _WORKER),
        Edge(A.RESOLVED, A.FIRING, "fired_again", _WORKER),
        Edge(A.RESOLVED, A.FIRING, "test", _OPERATOR),
        Edge(A.ACKNOWLEDGED, A.FIRING, "got_worse", _WORKER),
        Edge(A.FIRING, A.SILENCED, "silence", _OPERATOR, by_hand=silenced),
        Edge(A.ACKNOWLEDGED, A.SILENCED, "silence", _OPERATOR, by_hand=silenced),
        Edge(A.RESOLVED, A.SILENCED, "fired_in_silence", _WORKER),
        Edge(A.SILENCED, A.FIRING, "silence_ended", _WORKER),
        Edge(A.SILENCED, A.FIRING, "unsilence", _OPERATOR, by_hand=audible),
        Edge(A.SILENCED, A.RESOLVED, "over", _WORKER),
        Edge(A.FIRING, A.RESOLVED, "resolve", _OPERATOR, by_hand=_resolved),
        Edge(A.ACKNOWLEDGED, A.RESOLVED, "resolve", _OPERATOR, by_hand=_resolved),
        Edge(A.SILENCED, A.RESOLVED, "resolve", _OPERATOR, by_hand=_resolved),
    ],
    create=_not_by_hand,
)

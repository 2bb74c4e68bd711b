"""Penstock: a durable control plane for exchanging data with other people's APIs.

Everything a lifecycle needs is exported here; the rest of the package is how it works.
"""

from penstock.clock import Clock, Rng, SystemClock, VirtualClock
from penstock.errors import (
    BrokenFlow,
    Fatal,
    InDoubt,
    PenstockError,
    Rejected,
    StepError,
    Throttled,
    Transient,
    UsageError,
)
from penstock.machine import Actor, Edge, Machine, OnError, Parent
from penstock.outcome import Act, Birth, Decision, Event, Look, Move, Outcome, Wait, Write
from penstock.retry import RetryPolicy
from penstock.runtime.flow import Door, Flow, Io
from penstock.unit import GuardedUnit, Ref, Unit, column, replace

__all__ = [
    "Act",
    "Actor",
    "Birth",
    "BrokenFlow",
    "Clock",
    "Decision",
    "Door",
    "Edge",
    "Event",
    "Fatal",
    "Flow",
    "GuardedUnit",
    "InDoubt",
    "Io",
    "Look",
    "Machine",
    "Move",
    "OnError",
    "Outcome",
    "Parent",
    "PenstockError",
    "Ref",
    "Rejected",
    "RetryPolicy",
    "Rng",
    "StepError",
    "SystemClock",
    "Throttled",
    "Transient",
    "Unit",
    "UsageError",
    "VirtualClock",
    "Wait",
    "Write",
    "column",
    "replace",
]

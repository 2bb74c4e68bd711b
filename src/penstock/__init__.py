"""Penstock: a durable control plane for exchanging data with other people's APIs.

Everything a lifecycle needs is exported here; the rest of the package is how it works. A name is imported when it is
first asked for, so that the command line's help does not wait for what it does not need.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.clock import Clock, Rng, SystemClock, VirtualClock
    from penstock.errors import (
        BrokenFlow,
        ClaimLost,
        Fatal,
        InDoubt,
        PenstockError,
        Rejected,
        StepError,
        Throttled,
        Transient,
        UsageError,
    )
    from penstock.ledger.outbox import EventRow
    from penstock.ledger.stage import Staged
    from penstock.machine import Actor, Edge, Machine, OnError, Parent
    from penstock.outcome import Act, Amend, Birth, Decision, Event, Look, Move, Outcome, Rows, Wait, Write
    from penstock.raw.gate import ConsumerGate, NotReady
    from penstock.raw.paths import PartitionKey
    from penstock.raw.sink import RawSink
    from penstock.retry import RetryPolicy
    from penstock.runtime.flow import Door, Flow, Io
    from penstock.runtime.outbox import Subscriber
    from penstock.unit import GuardedUnit, Ref, Unit, column, replace

__all__ = [
    "Act",
    "Actor",
    "Amend",
    "Birth",
    "BrokenFlow",
    "ClaimLost",
    "Clock",
    "ConsumerGate",
    "Decision",
    "Door",
    "Edge",
    "Event",
    "EventRow",
    "Fatal",
    "Flow",
    "GuardedUnit",
    "InDoubt",
    "Io",
    "Look",
    "Machine",
    "Move",
    "NotReady",
    "OnError",
    "Outcome",
    "Parent",
    "PartitionKey",
    "PenstockError",
    "RawSink",
    "Ref",
    "Rejected",
    "RetryPolicy",
    "Rng",
    "Rows",
    "Staged",
    "StepError",
    "Subscriber",
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

_HOMES = {
    "penstock.clock": "Clock Rng SystemClock VirtualClock",
    "penstock.errors": (
        "BrokenFlow ClaimLost Fatal InDoubt PenstockError Rejected StepError Throttled Transient UsageError"
    ),
    "penstock.ledger.outbox": "EventRow",
    "penstock.ledger.stage": "Staged",
    "penstock.machine": "Actor Edge Machine OnError Parent",
    "penstock.outcome": "Act Amend Birth Decision Event Look Move Outcome Rows Wait Write",
    "penstock.raw.gate": "ConsumerGate NotReady",
    "penstock.raw.paths": "PartitionKey",
    "penstock.raw.sink": "RawSink",
    "penstock.retry": "RetryPolicy",
    "penstock.runtime.flow": "Door Flow Io",
    "penstock.runtime.outbox": "Subscriber",
    "penstock.unit": "GuardedUnit Ref Unit column replace",
}


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        msg = f"module 'penstock' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found

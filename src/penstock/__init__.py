"""Penstock: a durable control plane for exchanging data with other people's APIs.

Everything a lifecycle needs is exported here; the rest of the package is how it works. A name is imported when it is
first asked for, so that the command line's help does not wait for what it does not need.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.ledger.outbox import EventRow
    from penstock.ledger.stage import Staged
    from penstock.model.clock import Clock, Rng, SystemClock, VirtualClock
    from penstock.model.errors import (
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
    from penstock.model.machine import Actor, Edge, Machine, OnError, Parent
    from penstock.model.outcome import Act, Birth, Decision, Event, Look, Move, Outcome, Update, Wait, Where, Write
    from penstock.model.retry import RetryPolicy
    from penstock.model.state import Meaning, State, done, fault, hold, rest, work
    from penstock.model.unit import Column, GuardedUnit, Ref, Unit, replace
    from penstock.raw.paths import PartitionKey
    from penstock.raw.reader import NotReady, PartitionReader
    from penstock.raw.sink import RawSink
    from penstock.worker.flow import Flow, Gate, Io
    from penstock.worker.outbox import Subscriber

__all__ = [
    "Act",
    "Actor",
    "Birth",
    "BrokenFlow",
    "ClaimLost",
    "Clock",
    "Column",
    "Decision",
    "Edge",
    "Event",
    "EventRow",
    "Fatal",
    "Flow",
    "Gate",
    "GuardedUnit",
    "InDoubt",
    "Io",
    "Look",
    "Machine",
    "Meaning",
    "Move",
    "NotReady",
    "OnError",
    "Outcome",
    "Parent",
    "PartitionKey",
    "PartitionReader",
    "PenstockError",
    "RawSink",
    "Ref",
    "Rejected",
    "RetryPolicy",
    "Rng",
    "Staged",
    "State",
    "StepError",
    "Subscriber",
    "SystemClock",
    "Throttled",
    "Transient",
    "Unit",
    "Update",
    "UsageError",
    "VirtualClock",
    "Wait",
    "Where",
    "Write",
    "done",
    "fault",
    "hold",
    "replace",
    "rest",
    "work",
]

_HOMES = {
    "penstock.model.clock": "Clock Rng SystemClock VirtualClock",
    "penstock.model.errors": (
        "BrokenFlow ClaimLost Fatal InDoubt PenstockError Rejected StepError Throttled Transient UsageError"
    ),
    "penstock.ledger.outbox": "EventRow",
    "penstock.ledger.stage": "Staged",
    "penstock.model.machine": "Actor Edge Machine OnError Parent",
    "penstock.model.outcome": "Act Birth Decision Event Look Move Outcome Update Wait Where Write",
    "penstock.raw.reader": "NotReady PartitionReader",
    "penstock.raw.paths": "PartitionKey",
    "penstock.raw.sink": "RawSink",
    "penstock.model.retry": "RetryPolicy",
    "penstock.worker.flow": "Flow Gate Io",
    "penstock.worker.outbox": "Subscriber",
    "penstock.model.state": "Meaning State done fault hold rest work",
    "penstock.model.unit": "Column GuardedUnit Ref Unit replace",
}


def __getattr__(name: str) -> Any:
    home = next((module for module, names in _HOMES.items() if name in names.split()), None)
    if home is None:
        msg = f"module 'penstock' has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    found = globals()[name] = getattr(importlib.import_module(home), name)
    return found

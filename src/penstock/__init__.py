"""Penstock: a durable control plane for exchanging data with other people's APIs.

Everything a lifecycle needs is exported here; the rest of the package is how it works. A name is imported when it is
first asked for: a module that declares a machine, settings or operations loads no database driver and no client.
`penstock.testing` has what tests need.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.app.lifecycle import Data, Job, Lifecycle, NoSettings, job
    from penstock.app.ports import Ports
    from penstock.app.program import Program
    from penstock.app.running import run
    from penstock.connectors.http.client import Http
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.outbox import EventRow
    from penstock.ledger.past import since
    from penstock.ledger.stage import Staged
    from penstock.model.clock import Clock, Rng, SystemClock, VirtualClock
    from penstock.model.decider import Decider
    from penstock.model.errors import (
        BrokenFlow,
        ClaimLost,
        Fatal,
        IllegalMove,
        InDoubt,
        LedgerError,
        LedgerUnavailable,
        MachineError,
        MustWait,
        PenstockError,
        PlanChanged,
        Rejected,
        StepError,
        Throttled,
        Transient,
        UnknownUnit,
        UsageError,
    )
    from penstock.model.forecast import Expected
    from penstock.model.limits import GateLimits, Limit
    from penstock.model.machine import Actor, Edge, Machine, OnError, Parent
    from penstock.model.move_set import MoveSet
    from penstock.model.outcome import Act, Birth, Decision, Event, Look, Move, Outcome, Update, Wait, Where, Write
    from penstock.model.retry import RetryPolicy
    from penstock.model.state import Meaning, State, done, fault, hold, rest, work
    from penstock.model.unit import Column, GuardedUnit, Ref, Unit, replace
    from penstock.operations.declare import Ask, Lines, Page, Role, operation, reading
    from penstock.operations.fields import Parameters, Row, argument, column, option
    from penstock.operations.past import At, Then, lacking
    from penstock.operations.plan import NOW, Births, Each, GateChange, Moves, Park, Plan, Together, Unpark, Wake
    from penstock.raw.paths import PartitionKey
    from penstock.raw.reader import NotReady, PartitionReader
    from penstock.raw.sink import RawSink
    from penstock.settings.typed import ConfigError, Hours, Place, Secret, Settings, TimeZone, Url, says
    from penstock.worker.flow import Flow, Gate, Io
    from penstock.worker.job import JobResult
    from penstock.worker.outbox import Subscriber
    from penstock.worker.schedule_unit import Schedule
    from penstock.worker.worker import Worker, WorkerSettings

__all__ = [
    "NOW",
    "Act",
    "Actor",
    "App",
    "Ask",
    "At",
    "Birth",
    "Births",
    "BrokenFlow",
    "ClaimLost",
    "Clock",
    "Column",
    "ConfigError",
    "Data",
    "Decider",
    "Decision",
    "Each",
    "Edge",
    "Event",
    "EventRow",
    "Expected",
    "Fatal",
    "Flow",
    "Gate",
    "GateChange",
    "GateLimits",
    "GuardedUnit",
    "Hours",
    "Http",
    "IllegalMove",
    "InDoubt",
    "Io",
    "Job",
    "JobResult",
    "Ledger",
    "LedgerError",
    "LedgerUnavailable",
    "Lifecycle",
    "Limit",
    "Lines",
    "Look",
    "Machine",
    "MachineError",
    "Meaning",
    "Move",
    "MoveSet",
    "Moves",
    "MustWait",
    "NoSettings",
    "NotReady",
    "OnError",
    "Outcome",
    "Page",
    "Parameters",
    "Parent",
    "Park",
    "PartitionKey",
    "PartitionReader",
    "PenstockError",
    "Place",
    "Plan",
    "PlanChanged",
    "Ports",
    "Program",
    "RawSink",
    "Ref",
    "Rejected",
    "RetryPolicy",
    "Rng",
    "Role",
    "Row",
    "Schedule",
    "Secret",
    "Settings",
    "Staged",
    "State",
    "StepError",
    "Subscriber",
    "SystemClock",
    "Then",
    "Throttled",
    "TimeZone",
    "Together",
    "Transient",
    "Unit",
    "UnknownUnit",
    "Unpark",
    "Update",
    "Url",
    "UsageError",
    "VirtualClock",
    "Wait",
    "Wake",
    "Where",
    "Worker",
    "WorkerSettings",
    "Write",
    "argument",
    "column",
    "done",
    "fault",
    "hold",
    "job",
    "lacking",
    "operation",
    "option",
    "reading",
    "replace",
    "rest",
    "run",
    "says",
    "since",
    "work",
]

_HOMES = {
    "penstock.app.app": "App",
    "penstock.app.lifecycle": "Data Job Lifecycle NoSettings job",
    "penstock.app.ports": "Ports",
    "penstock.app.program": "Program",
    "penstock.app.running": "run",
    "penstock.connectors.http.client": "Http",
    "penstock.ledger.ledger": "Ledger",
    "penstock.ledger.outbox": "EventRow",
    "penstock.ledger.past": "since",
    "penstock.ledger.stage": "Staged",
    "penstock.model.clock": "Clock Rng SystemClock VirtualClock",
    "penstock.model.errors": (
        "BrokenFlow ClaimLost Fatal IllegalMove InDoubt LedgerError LedgerUnavailable MachineError MustWait "
        "PenstockError PlanChanged Rejected StepError Throttled Transient UnknownUnit UsageError"
    ),
    "penstock.model.forecast": "Expected",
    "penstock.model.limits": "GateLimits Limit",
    "penstock.model.machine": "Actor Edge Machine OnError Parent",
    "penstock.model.move_set": "MoveSet",
    "penstock.model.decider": "Decider",
    "penstock.model.outcome": "Act Birth Decision Event Look Move Outcome Update Wait Where Write",
    "penstock.model.retry": "RetryPolicy",
    "penstock.model.state": "Meaning State done fault hold rest work",
    "penstock.model.unit": "Column GuardedUnit Ref Unit replace",
    "penstock.operations.declare": "Ask Lines Page Role operation reading",
    "penstock.operations.fields": "Parameters Row argument column option",
    "penstock.operations.past": "At Then lacking",
    "penstock.operations.plan": "NOW Births Each GateChange Moves Park Plan Together Unpark Wake",
    "penstock.raw.paths": "PartitionKey",
    "penstock.raw.reader": "NotReady PartitionReader",
    "penstock.raw.sink": "RawSink",
    "penstock.settings.typed": "ConfigError Hours Place Secret Settings TimeZone Url says",
    "penstock.worker.flow": "Flow Gate Io",
    "penstock.worker.outbox": "Subscriber",
    "penstock.worker.job": "JobResult",
    "penstock.worker.schedule_unit": "Schedule",
    "penstock.worker.worker": "Worker WorkerSettings",
}


if not TYPE_CHECKING:  # to a type checker, a name that is not imported above is an error

    def __getattr__(name: str) -> Any:
        home = next((module for module, names in _HOMES.items() if name in names.split()), None)
        if home is None:
            msg = f"module 'penstock' has no attribute {name!r}"
            raise AttributeError(msg)
        import importlib

        found = globals()[name] = getattr(importlib.import_module(home), name)
        return found


def __dir__() -> list[str]:
    return __all__

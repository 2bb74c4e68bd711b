"""A lifecycle as a value: machines, data, settings, how its flows are built, its jobs, readings and operations.

A program is several of them: `App(reports.lifecycle, harvest.lifecycle, contacts.lifecycle)`. The module that holds a
lifecycle imports nothing heavy; what needs a database driver or a client is imported by the function that is called.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from penstock.model.errors import UsageError
from penstock.model.machine import Machine
from penstock.operations.declare import Ask, Operation, Reading
from penstock.operations.pictures import Picture
from penstock.settings.typed import Settings

if TYPE_CHECKING:
    from sqlalchemy import Table

    from penstock.app.ports import Ports
    from penstock.ledger.ledger import Ledger
    from penstock.ledger.stage import Staged
    from penstock.ledger.store.database import Database
    from penstock.model.decider import Decider
    from penstock.model.forecast import Expected
    from penstock.model.limits import GateLimits
    from penstock.observe.catalogue import Metric, Sample
    from penstock.operations.alerts.policy import Condition, Policy
    from penstock.operations.needs import Need
    from penstock.operations.reader import Reader
    from penstock.raw.collect import Held
    from penstock.raw.paths import PartitionKey
    from penstock.worker.flow import AnyFlow, Io
    from penstock.worker.job import JobResult
    from penstock.worker.outbox import Subscriber
    from penstock.worker.schedule_unit import Schedule

S = TypeVar("S", bound=Settings)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}\Z")


@dataclass(frozen=True, slots=True)
class Data:
    """What a lifecycle keeps beside its units: data tables, SQL views (name to SELECT), staged tables."""

    tables: Sequence[Table] = ()
    views: Mapping[str, str] = field(default_factory=dict)
    staged: Sequence[Staged] = ()


class NoSettings(Settings, frozen=True):
    """Nothing to configure."""


@dataclass(frozen=True, eq=False)
class Job(Generic[S]):
    """Periodic work, by the name that a schedule gives it."""

    name: str
    says: str
    run: Callable[[S, Schedule, Io, Ports], Awaitable[JobResult]]


def job(name: str, says: str) -> Callable[[Callable[[S, Schedule, Io, Ports], Awaitable[JobResult]]], Job[S]]:
    """Declare a job, an `async (settings, schedule, io, ports)`: `@job("prune", "Removes what is old.")`."""

    def declare(run: Callable[[S, Schedule, Io, Ports], Awaitable[JobResult]]) -> Job[S]:
        return Job(name, says, run)

    return declare


@dataclass(frozen=True, eq=False)
class Lifecycle(Generic[S]):
    """Everything that one lifecycle brings to a program. Raises UsageError for a name that cannot be one."""

    name: str
    says: str
    settings: type[S]
    machines: Sequence[Machine] = ()
    #: Called when a ledger is made, checked or worked on.
    data: Callable[[], Data] = Data
    #: Which rows of its tables there were at a moment, and how they stood: `ledger.past.since("loaded_at")`.
    past: Mapping[str, str] = field(default_factory=dict)
    #: Further tables, which the configuration declares.
    tables: Callable[[S], Sequence[Table]] = lambda settings: ()  # noqa: ARG005 - one shape
    #: Its own track of revisions, as package:folder.
    migrations: str | None = None
    #: Its flows under these settings.
    build: Callable[[S, Ports], Sequence[AnyFlow]] = lambda settings, ports: ()  # noqa: ARG005 - one shape
    #: How units of its machines are decided, where that is to be known without building the flows: by machine.
    decides: Callable[[], Mapping[str, Decider]] = dict
    jobs: Sequence[Job[S]] = ()
    #: Limits of its gates, where the configuration gives none.
    gates: Callable[[S], Sequence[GateLimits]] = lambda settings: ()  # noqa: ARG005 - one shape
    #: Schedules that it needs; the configuration may have others of these names instead.
    schedules: Callable[[S], Sequence[Schedule]] = lambda settings: ()  # noqa: ARG005 - one shape
    subscribers: Callable[[S, Ports], Sequence[Subscriber]] = lambda settings, ports: ()  # noqa: ARG005 - one shape
    #: For the forecast: what a unit that came into its state then will do by itself, by the settings and what never
    #: changes of it; or what a tick of a schedule brings forth. None: it does not say, and the history is asked.
    expects: Callable[[S, Any, datetime], Iterable[Expected] | None] | None = None
    #: When somebody should know, where the configuration says nothing else; and the kinds of policies that it brings.
    policies: Sequence[Policy] = ()
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    #: What is measured of it, and what the ledger says of that now.
    metrics: Sequence[Metric] = ()
    measure: Callable[[Database, datetime], Sequence[Sample]] = lambda database, now: ()  # noqa: ARG005 - one shape
    readings: Sequence[Reading[S]] = ()
    operations: Sequence[Operation[S]] = ()
    #: What it looks like; the first stands for it on the overview.
    pictures: Sequence[Picture] = ()
    #: The readings that its page begins with.
    front: Sequence[Reading[S]] = ()
    #: What waits for a person, beside what every machine has: dead letters, parked units, alerts.
    needs: Callable[[Ask[S]], Sequence[Need]] = lambda ask: ()  # noqa: ARG005 - one shape
    #: What a person should know of these settings, one line each: said when a process starts, and by the doctor.
    warnings: Callable[[S], Sequence[str]] = lambda settings: ()  # noqa: ARG005 - one shape
    #: Which landed runs it needs, of these partitions: what nobody needs is collected.
    holds: Callable[[Ledger | Reader, Collection[PartitionKey]], Mapping[PartitionKey, Held]] | None = None

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            msg = f"{self.name!r} cannot name a lifecycle; write lower-case letters, digits and _, 31 at most"
            raise UsageError(msg)
        for one in (*self.front, *(picture.reading for picture in self.pictures)):
            if one not in self.readings:
                raise UsageError(f"the lifecycle {self.name} shows {one.name!r}, which is none of its readings")


AnyLifecycle = Lifecycle[Any]

"""A program under one configuration: its flows, jobs, schedules, gates and subscribers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.app.app import App, refuse_twice
from penstock.app.lifecycle import AnyLifecycle, Job
from penstock.app.ports import Ports
from penstock.model.clock import Clock, SystemClock
from penstock.operations.declare import Ask

if TYPE_CHECKING:
    from sqlalchemy import Table

    from penstock.ledger.schema.install import Wanted
    from penstock.model.limits import GateLimits
    from penstock.operations.reader import Reader
    from penstock.settings.file import Configuration
    from penstock.worker.flow import AnyFlow
    from penstock.worker.outbox import Subscriber
    from penstock.worker.schedule import Job as ScheduledJob
    from penstock.worker.schedule_unit import Schedule


class Program:
    """An App and the configuration in force."""

    def __init__(self, app: App, configuration: Configuration, clock: Clock | None = None) -> None:
        self.app = app
        self.configuration = configuration
        self.clock = clock or SystemClock()

    @cached_property
    def ports(self) -> Ports:
        """What is lent to the lifecycles."""
        return Ports(self, self.configuration.kernel, self.clock, self.limits())

    def settings(self, lifecycle: AnyLifecycle) -> Any:
        """The settings in force of a lifecycle; the kernel's own are those outside of any section."""
        if lifecycle is self.app.lifecycles[0]:
            return self.configuration.kernel
        return self.configuration.sections[lifecycle.name]

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """Every data table: the lifecycles' own, and those that the configuration declares.

        Raises UsageError where two have one name.
        """
        declared = self.declared_tables
        if declared:
            refuse_twice("a table", [*self.app.owned_names(), *((table.name, one) for one, table in declared)])
        return (*self.app.data.tables, *(table for _, table in declared))

    @cached_property
    def declared_tables(self) -> list[tuple[AnyLifecycle, Table]]:
        """The tables that the configuration declares, and for whom."""
        return [(one, table) for one in self.app.lifecycles for table in one.tables(self.settings(one))]

    def wanted(self) -> Wanted:
        """What the ledger is to be for this program."""
        from penstock.ledger.schema.install import Wanted

        return Wanted(self.app.machines, self.tables, self.app.migrations, views=self.app.data.views)

    def flows(self) -> list[AnyFlow]:
        """The flows of all lifecycles. Raises UsageError for what cannot be configured."""
        return [flow for one in self.app.lifecycles for flow in self.flows_of(one)]

    def flows_of(self, lifecycle: AnyLifecycle) -> Sequence[AnyFlow]:
        """The flows of one lifecycle. Raises UsageError for what cannot be configured."""
        return lifecycle.build(self.settings(lifecycle), self.ports)

    def jobs(self) -> dict[str, ScheduledJob]:
        """What a schedule may name."""
        return {job.name: self._job(one, job) for one in self.app.lifecycles for job in one.jobs}

    def _job(self, lifecycle: AnyLifecycle, job: Job[Any]) -> ScheduledJob:
        settings = self.settings(lifecycle)
        return functools.partial(_run, job, settings, self)

    def schedules(self) -> list[Schedule]:
        """The schedules that are wanted: the configuration's, and those of the lifecycles that it does not replace."""
        from penstock.app.kernel_jobs import ROLL_UP_FLOW, SWEEP_STAGES
        from penstock.operations.raw import COLLECT
        from penstock.worker.schedule import wanted_by
        from penstock.worker.schedule_unit import Schedule

        usual = [schedule for one in self.app.lifecycles for schedule in one.schedules(self.settings(one))]
        if any(one.holds is not None for one in self.app.lifecycles):
            usual.append(Schedule(name=COLLECT, job=COLLECT, every="1d", jitter="1h", settings_version="usual"))
        if self.app.data.staged:
            usual.append(Schedule(name=SWEEP_STAGES, job=SWEEP_STAGES, every="10m", settings_version="usual"))
        usual.append(Schedule(name=ROLL_UP_FLOW, job=ROLL_UP_FLOW, every="1m", settings_version="usual"))
        return wanted_by(self.configuration.kernel.schedules, usual)

    def limits(self) -> tuple[GateLimits, ...]:
        """The limits of all gates: the configuration's, and those of the lifecycles where it gives none."""
        from penstock.model.limits import limits_of

        given = self.configuration.gate_limits()
        own = (limit for one in self.app.lifecycles for limit in one.gates(self.settings(one)))
        return (*given, *(limit for limit in own if limits_of(limit.name, given) is None))

    def subscribers(self) -> list[Subscriber]:
        """Who wants which events."""
        return [who for one in self.app.lifecycles for who in one.subscribers(self.settings(one), self.ports)]

    def warnings(self) -> list[str]:
        """What a person should know of these settings."""
        return [line for one in self.app.lifecycles for line in one.warnings(self.settings(one))]

    def ask(
        self,
        lifecycle: AnyLifecycle,
        reader: Reader,
        now: datetime,
        *,
        who: str = "",
        reason: str = "",
        progress: Callable[[int, int | None], None] | None = None,
        request: str | None = None,
    ) -> Ask[Any]:
        """What a reading or an operation of that lifecycle is asked with."""
        ask = Ask(reader, self.settings(lifecycle), now, who, reason, program=self)
        ask = ask if request is None else replace(ask, request=request)
        return ask if progress is None else ask.watched(progress)


async def _run(job: Job[Any], settings: Any, program: Program, schedule: Any, io: Any) -> Any:
    return await job.run(settings, schedule, io, program.ports)

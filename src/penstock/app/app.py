"""What a program brings to a ledger: its machines, its data tables, its jobs, and how to make its flows."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Table

from penstock.app import jobs
from penstock.ledger.care.prune import DEFAULT_AGES
from penstock.ledger.stage import Staged
from penstock.model.errors import UsageError
from penstock.model.limits import GateLimits
from penstock.model.machine import Machine
from penstock.settings.config import SETTINGS, Config
from penstock.settings.setting import Setting
from penstock.worker import outbox, schedule
from penstock.worker.outbox import Subscriber
from penstock.worker.schedule import Job, Schedule
from penstock.worker.step import AnyFlow


@dataclass(frozen=True, slots=True)
class App:
    """`flows()` is called when a worker starts; machines, tables, jobs and settings are known without it.

    A program with settings of its own declares them, and is given all that is in force: `configured(config)` then takes
    the place of `flows()`.
    """

    machines: Sequence[Machine]
    flows: Callable[[], Sequence[AnyFlow]] = tuple
    data_tables: Sequence[Table[Any]] = ()
    #: Name to the SELECT that it stands for, in the order of creation; made anew only when it is missing or changed.
    views: Mapping[str, str] = field(default_factory=dict)
    #: The program's own track of revisions, as package:folder.
    migrations: str | None = None
    #: The staged tables, for the job that sweeps them.
    staged: Sequence[Staged] = ()
    #: Who wants which events; with any, the program serves the outbox too.
    subscribers: Sequence[Subscriber] = ()
    #: Those of them that want the settings in force, made of them under the same names.
    configured_subscribers: Callable[[Config], Sequence[Subscriber]] | None = None
    configured: Callable[[Config], Sequence[AnyFlow]] | None = None
    settings: Sequence[Setting] = ()
    jobs: Mapping[str, Job] = field(default_factory=dict)
    #: Jobs that want the settings in force: how each is made of them.
    configured_jobs: Mapping[str, Callable[[Config], Job]] = field(default_factory=dict)

    #: Schedules that the program needs; the configuration may have others of these names instead.
    schedules: Sequence[Schedule] = ()
    #: Further ones that follow from the settings in force, and limits of providers where the configuration gives none.
    configured_schedules: Callable[[Config], Sequence[Schedule]] | None = None
    configured_providers: Callable[[Config], Sequence[GateLimits]] | None = None
    #: What a person should know of these settings, one line each: said when a process starts, and by the doctor.
    warnings: Callable[[Config], Sequence[str]] | None = None

    def usual_schedules(self, config: Config) -> list[Schedule]:
        """The schedules that the program needs under these settings. Raises UsageError for what cannot be one."""
        return [*self.schedules, *(self.configured_schedules(config) if self.configured_schedules else ())]

    def providers(self, config: Config) -> tuple[GateLimits, ...]:
        """The limits of all providers."""
        return (*config.providers(), *(self.configured_providers(config) if self.configured_providers else ()))

    def warn(self, config: Config) -> list[str]:
        """What a person should know of these settings."""
        return list(self.warnings(config)) if self.warnings else []

    def all_jobs(self, config: Config | None = None) -> dict[str, Job]:
        """What a schedule may name: the kernel's jobs and the program's."""
        wanted = self.configured_jobs.items()
        made = {name: jobs.unconfigured if config is None else make(config) for name, make in wanted}
        return {**jobs.kernel_jobs(config, self.staged), **self.jobs, **made}

    def prunable(self) -> list[str]:
        """What `[prune]` may name."""
        return [*DEFAULT_AGES, *(machine.name for machine in self.machines)]

    def make_subscribers(self, config: Config) -> list[Subscriber]:
        """The program's subscribers, those that are configured in place of their namesakes."""
        made = {s.name: s for s in (self.configured_subscribers(config) if self.configured_subscribers else ())}
        return [made.get(s.name, s) for s in self.subscribers]

    def make_flows(self, config: Config) -> list[AnyFlow]:
        """The program's flows and the one that runs its schedules. Raises UsageError for what cannot be configured."""
        own = self.flows() if self.configured is None else self.configured(config)
        deliveries = [outbox.Deliveries(self.make_subscribers(config))] if self.subscribers else []
        return [*own, *deliveries, schedule.Schedules(self.all_jobs(config))]


def load_app(path: str) -> App:
    """The App at `module:attribute`, with the kernel's own machines. Raises UsageError that says what is wrong."""
    module, colon, attribute = path.partition(":")
    if not colon or not module or not attribute:
        msg = f"{path!r} does not name an app; write module:attribute, for example penstock.examples.invoices:app"
        raise UsageError(msg)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except AttributeError:
        msg = f"module {module!r} has no {attribute!r}; --app, PENSTOCK_APP or the configuration name the program"
        raise UsageError(msg) from None
    except Exception as error:  # whatever a program's module does when it is imported
        msg = f"cannot import {module!r}: {type(error).__name__}: {error}"
        raise UsageError(msg) from error
    if not isinstance(found, App):
        msg = f"{path} is a {type(found).__name__}, not a penstock App"
        raise UsageError(msg)
    _refuse_clashes(path, found)
    return _with_kernel(found)


def kernel_app() -> App:
    """What there is without a program: the kernel's own machines and jobs."""
    return _with_kernel(App(machines=[]))


def _with_kernel(app: App) -> App:
    kernel = [schedule.machine, *([outbox.Deliveries.machine] if app.subscribers else ())]
    return dataclasses.replace(app, machines=[*app.machines, *kernel])


def _refuse_clashes(path: str, app: App) -> None:
    """A program adds to the kernel's names and never replaces them."""
    ours = {schedule.machine.name, outbox.Deliveries.machine.name}
    clashes = [
        *(f"a machine {m.name!r}" for m in app.machines if m.name in ours),
        *(f"a setting {s.key!r}" for s in app.settings if s.key in {k.key for k in SETTINGS}),
        *(f"a job {name!r}" for name in (*app.jobs, *app.configured_jobs) if name in jobs.kernel_jobs()),
    ]
    if clashes:
        msg = f"{path} brings {', '.join(clashes)} of its own; that is the kernel's, choose another name"
        raise UsageError(msg)

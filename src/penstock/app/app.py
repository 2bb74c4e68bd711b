"""A program: the lifecycles that run over one ledger, and the kernel's own beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from penstock.app.lifecycle import AnyLifecycle, Data
from penstock.model.errors import UsageError
from penstock.model.machine import Machine
from penstock.settings.typed import Settings

if TYPE_CHECKING:
    from penstock.ledger.schema.install import Wanted

COMMANDS = frozenset(
    {
        *("alerts", "api", "bulk", "completion", "db", "dead", "demo", "doctor", "events", "gates", "help", "history"),
        *(
            "init",
            "machines",
            "new",
            "raw",
            "schedules",
            "simulate",
            "simulator",
            "status",
            "token",
            "units",
            "up",
            "web",
        ),
        *("why", "worker", "workers"),
    }
)
"""Commands that are not a lifecycle's, today's and those that the design names: none is called like one of them."""


class App:
    """Lifecycles put together. Raises UsageError where two of them want one name, and names both."""

    def __init__(self, *lifecycles: AnyLifecycle) -> None:
        from penstock.app.kernel import lifecycle as kernel

        self.lifecycles = (kernel, *lifecycles)
        self.own = lifecycles
        _refuse_clashes(self)

    @cached_property
    def machines(self) -> tuple[Machine, ...]:
        """The machines of all, those of the kernel first."""
        return tuple(machine for lifecycle in self.lifecycles for machine in lifecycle.machines)

    @cached_property
    def data(self) -> Data:
        """The tables, views and staged tables of all. Raises UsageError where two of them want one name."""
        _refuse_table_clashes(self)
        parts = [lifecycle.data() for lifecycle in self.lifecycles]
        return Data(
            [table for part in parts for table in part.tables],
            {name: view for part in parts for name, view in part.views.items()},
            [staged for part in parts for staged in part.staged],
        )

    @property
    def migrations(self) -> tuple[str, ...]:
        """The tracks of revisions, of those that have one."""
        return tuple(lifecycle.migrations for lifecycle in self.lifecycles if lifecycle.migrations is not None)

    def lifecycle(self, name: str) -> AnyLifecycle:
        """The lifecycle of that name. Raises UsageError with the names that exist."""
        for lifecycle in self.lifecycles:
            if lifecycle.name == name:
                return lifecycle
        known = ", ".join(lifecycle.name for lifecycle in self.own) or "none"
        raise UsageError(f"no lifecycle is called {name!r}; this program has {known}")

    def owner(self, machine: str) -> AnyLifecycle:
        """Whose machine it is. Raises UsageError with the machines that exist."""
        for lifecycle in self.lifecycles:
            if any(one.name == machine for one in lifecycle.machines):
                return lifecycle
        known = ", ".join(sorted(one.name for one in self.machines))
        raise UsageError(f"no machine is called {machine!r}; this program has {known}")

    def kinds(self) -> dict[str, type[Settings]]:
        """The settings that each lifecycle takes, by its name."""
        return {lifecycle.name: lifecycle.settings for lifecycle in self.own}

    def wanted(self) -> Wanted:
        """What the ledger is to be for this program."""
        from penstock.ledger.schema.install import Wanted

        return Wanted(self.machines, tuple(self.data.tables), self.migrations, views=self.data.views)


def _refuse_clashes(app: App) -> None:
    for lifecycle in app.own:
        if lifecycle.name in COMMANDS or lifecycle.name == app.lifecycles[0].name:
            raise UsageError(f"a lifecycle cannot be called {lifecycle.name!r}: Penstock has a command of that name")
    for what, names in _names(app.lifecycles).items():
        seen: dict[str, str] = {}
        for name, owner in names:
            if name in seen:
                raise UsageError(f"{seen[name]} and {owner} both have {what} {name!r}; rename one of them")
            seen[name] = owner


def _names(lifecycles: Iterable[AnyLifecycle]) -> dict[str, list[tuple[str, str]]]:
    """What must be unique, with its owners. Tables and views are one kind: the database has one space of names."""
    found: dict[str, list[tuple[str, str]]] = {
        "a lifecycle": [],
        "a machine": [],
        "a table": [],
        "a job": [],
        "a command": [],
    }
    for lifecycle in lifecycles:
        found["a lifecycle"].append((lifecycle.name, "one"))
        for what, name in _names_of(lifecycle):
            found[what].append((name, lifecycle.name))
    return found


def _names_of(lifecycle: AnyLifecycle) -> Iterator[tuple[str, Any]]:
    for machine in lifecycle.machines:
        yield "a machine", machine.name
        yield "a table", machine.table
    for job in lifecycle.jobs:
        yield "a job", job.name
    for declared in (*lifecycle.readings, *lifecycle.operations):
        yield "a command", f"{lifecycle.name} {declared.name}"


def _refuse_table_clashes(app: App) -> None:
    """The kernel's tables, data tables and views are known only once they are imported."""
    from penstock.ledger.schema.tables import kernel_tables

    seen = {table.name: app.lifecycles[0].name for table in kernel_tables("sqlite")}
    for lifecycle in app.lifecycles:
        data = lifecycle.data()
        machines = (machine.table for machine in lifecycle.machines)
        for name in (*machines, *(table.name for table in data.tables), *data.views):
            if name in seen:
                raise UsageError(f"{seen[name]} and {lifecycle.name} both have a table {name!r}; rename one of them")
            seen[name] = lifecycle.name

"""A program: the lifecycles that run over one ledger, and the kernel's own beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property

from penstock.app.lifecycle import AnyLifecycle, Data
from penstock.model.errors import UsageError
from penstock.model.machine import Machine
from penstock.settings.typed import Settings

TAKEN = frozenset(
    {
        # Commands that are not a lifecycle's: today's, and those that the design names.
        *("activity", "alerts", "api", "bulk", "completion", "db", "dead", "demo", "doctor", "events", "find", "flow"),
        *("forecast", "gates", "guards"),
        *("help", "history"),
        *("init", "kernel", "machines", "needs", "new", "raw", "schedules", "simulate", "simulator", "status", "stuck"),
        *("token", "units"),
        *("up", "web", "why", "worker", "workers"),
        # Sections of `penstock.toml` that are the kernel's.
        *("ledger", "lifecycles", "log", "otlp", "prune"),
    }
)
"""Names that no lifecycle can have."""


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
    def past(self) -> dict[str, str]:
        """How the tables of all lifecycles stood at a moment."""
        return {table: sql for lifecycle in self.lifecycles for table, sql in lifecycle.past.items()}

    @cached_property
    def _parts(self) -> list[tuple[AnyLifecycle, Data]]:
        return [(lifecycle, lifecycle.data()) for lifecycle in self.lifecycles]

    @cached_property
    def data(self) -> Data:
        """The tables, views and staged tables of all.

        Raises UsageError where two of them have one name, and where a past is of no table or column of its lifecycle.
        """
        refuse_twice("a table", self.owned_names())
        self._refuse_strange_past()
        parts = [part for _, part in self._parts]
        return Data(
            [table for part in parts for table in part.tables],
            {name: view for part in parts for name, view in part.views.items()},
            [staged for part in parts for staged in part.staged],
        )

    def _refuse_strange_past(self) -> None:
        for one, part in self._parts:
            own = {table.name for table in part.tables}
            own |= {f"{machine.table}.{name}" for machine in one.machines for name in machine.columns}
            if strange := sorted(one.past.keys() - own):
                no = "which is no table of its data, nor a column of its machines"
                raise UsageError(f"{one.name} has the past of {strange[0]!r}, {no}")

    def owned_names(self) -> list[tuple[str, AnyLifecycle]]:
        """Machines' tables, data tables and views, with their owners: the database has one space of names."""
        own = (
            (name, one)
            for one, part in self._parts
            for name in (*(m.table for m in one.machines), *(table.name for table in part.tables), *part.views)
        )
        return [*_kernel_tables(self), *own]

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


def _refuse_clashes(app: App) -> None:
    for lifecycle in app.own:
        if lifecycle.name in TAKEN:
            msg = f"a lifecycle cannot be called {lifecycle.name!r}: Penstock has a command or a section of that name"
            raise UsageError(msg)
    for name, count in Counter(lifecycle.name for lifecycle in app.own).items():
        if count > 1:
            raise UsageError(f"{count} lifecycles are called {name!r}; rename all but one")
    every = app.lifecycles
    refuse_twice("a machine", ((machine.name, one) for one in every for machine in one.machines))
    refuse_twice("a table", _tables(every))
    refuse_twice("a job", ((job.name, one) for one in every for job in one.jobs))
    for one in every:
        refuse_twice("a command", ((declared.name, one) for declared in (*one.readings, *one.operations)))


def _tables(lifecycles: Iterable[AnyLifecycle]) -> Iterator[tuple[str, AnyLifecycle]]:
    return ((machine.table, one) for one in lifecycles for machine in one.machines)


def _kernel_tables(app: App) -> Iterator[tuple[str, AnyLifecycle]]:
    from penstock.ledger.schema.tables import kernel_tables

    return ((table.name, app.lifecycles[0]) for table in kernel_tables("sqlite"))


def refuse_twice(what: str, named: Iterable[tuple[str, AnyLifecycle]]) -> None:
    """Raise UsageError where two want one name, or one wants it twice."""
    seen: dict[str, str] = {}
    for name, owner in named:
        if seen.get(name) == owner.name:
            raise UsageError(f"{owner.name} has {what} {name!r} twice; rename one of them")
        if name in seen:
            raise UsageError(f"{seen[name]} and {owner.name} both have {what} {name!r}; rename one of them")
        seen[name] = owner.name

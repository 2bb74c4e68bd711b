"""Which lifecycles run: what `penstock.toml` switches on, names, or finds among installed packages.

A section switches a shipped lifecycle on (`[reports]`), and one that an installed package brings by the entry point
group `penstock.lifecycles` too. `lifecycles = ["shop.contacts:lifecycle"]` names one's own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.app.app import App
from penstock.app.lifecycle import AnyLifecycle
from penstock.app.named import import_lifecycle, look_for_modules
from penstock.app.program import Program
from penstock.app.shipped import SHIPPED, shipped
from penstock.model.clock import Clock
from penstock.model.errors import UsageError
from penstock.settings import file
from penstock.settings.kernel import KernelSettings, names_a_place
from penstock.settings.typed import ConfigError, Settings

GROUP = "penstock.lifecycles"


@dataclass(frozen=True, slots=True)
class _Found:
    """Lifecycles by name, those that run without a section, and what was wrong."""

    lifecycles: dict[str, AnyLifecycle]
    named: list[str]
    errors: list[str]
    #: Where each that the file names comes from.
    places: dict[str, str]


def load(
    path: Path | None,
    given: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    clock: Clock | None = None,
    required: bool = False,
) -> Program:
    """The program that a configuration makes. Raises ConfigError with every error at once.

    `given` are options of the command line, by the key of their setting. `required` insists on a file.
    """
    environment = os.environ if environment is None else environment
    found_at = file.find(path, environment)
    if found_at is None and required:
        msg = f"there is no {file.FILE} here; 'penstock init' writes one, --config names another"
        raise ConfigError(msg)
    raw = file.read(found_at)
    look_for_modules(found_at)
    found = _find(raw, str(found_at or "the configuration"))
    app: list[App] = []

    def program() -> App:
        # Asked once every section was looked up: entry points are found on the way.
        if not app:
            app.append(App(*found.lifecycles.values()))
        return app[0]

    def further(names: tuple[str, ...]) -> dict[str, type[Settings]]:
        made = _installed(names, found.errors)
        found.lifecycles.update(made)
        return {name: lifecycle.settings for name, lifecycle in made.items()}

    configuration = file.load(
        found_at,
        {name: lifecycle.settings for name, lifecycle in found.lifecycles.items()},
        given,
        environment,
        raw=raw,
        on=found.named,
        known=list(SHIPPED),
        unknown=further,
        jobs=lambda: [job.name for one in program().lifecycles for job in one.jobs],
        prunable=lambda: _prunable(program()),
        # The section of a lifecycle that cannot be imported is not known either.
        strangers=bool(found.errors),
        errors=found.errors,
    )
    running = [one for name, one in found.lifecycles.items() if name in configuration.sections]
    return Program(App(*running), configuration, clock)


def _find(raw: Mapping[str, Any], path_text: str) -> _Found:
    """The shipped lifecycles that have a section, and those that the file names."""
    found = _Found({}, [], [], {})
    for name in SHIPPED:
        if name in raw:
            found.lifecycles[name] = shipped(name)
    given = raw.get("lifecycles", ())
    for place in given if isinstance(given, list) else ():
        if not isinstance(place, str) or not names_a_place(place):
            continue  # told by the settings
        try:
            lifecycle = import_lifecycle(place)
        except UsageError as error:
            found.errors.append(f"{path_text}: lifecycles: {error}")
            continue
        if lifecycle.name in KernelSettings.__struct_fields__:
            why = f"[{lifecycle.name}] is a section of Penstock's own"
            found.errors.append(f"{path_text}: lifecycles: {place} cannot be called {lifecycle.name!r}: {why}")
            continue
        if lifecycle.name in SHIPPED and lifecycle is not shipped(lifecycle.name):
            why = "Penstock brings one of that name"
            found.errors.append(f"{path_text}: lifecycles: {place} cannot be called {lifecycle.name!r}: {why}")
            continue
        if lifecycle.name in found.places:
            both = f"{found.places[lifecycle.name]} and {place}"
            found.errors.append(f"{path_text}: lifecycles: {both} are both called {lifecycle.name!r}; rename one")
        found.places[lifecycle.name] = place
        found.lifecycles[lifecycle.name] = lifecycle
        found.named.append(lifecycle.name)
    return found


def _installed(names: Collection[str], errors: list[str]) -> dict[str, AnyLifecycle]:
    """Those of the names that an installed package brings: a look of some 40 ms, for names that nobody else knows."""
    from importlib.metadata import entry_points

    found: dict[str, AnyLifecycle] = {}
    for point in entry_points(group=GROUP):
        if point.name not in names:
            continue
        try:
            lifecycle = import_lifecycle(point.value)
        except UsageError as error:
            errors.append(f"the installed lifecycle {point.name!r} ({point.value}): {error}")
            continue
        if lifecycle.name != point.name:
            errors.append(
                f"the entry point {point.name!r} brings a lifecycle called {lifecycle.name!r}; give both the same name"
            )
            continue
        found[point.name] = lifecycle
    return found


def _prunable(app: App) -> list[str]:
    """What `[prune]` may name."""
    from penstock.ledger.care.prune import DEFAULT_AGES

    return [*DEFAULT_AGES, *(machine.name for machine in app.machines)]

"""`penstock.toml`: found, read, and validated whole with the command line and the environment.

What counts is, in this order: the option of the command line, the environment, the file, the default. A relative path
in the file starts at the file's own folder. A section switches its lifecycle on, `enabled = false` in it off again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from penstock.model.limits import GateLimits
from penstock.model.near import near
from penstock.settings.kernel import KernelSettings, gate_limits
from penstock.settings.reader import Key, read_section, shown, shown_key
from penstock.settings.redaction import conceal
from penstock.settings.shapes import fields_of, leaves, written
from penstock.settings.typed import ConfigError, Secret, Settings

__all__ = [
    "ENABLED",
    "FILE",
    "ConfigError",
    "Configuration",
    "KernelSettings",
    "find",
    "load",
    "read",
    "switched_on",
]

FILE = "penstock.toml"
VARIABLE = "PENSTOCK_CONFIG"
ENABLED = "enabled"
_LARGEST = 16 * 1024 * 1024
_KERNEL = KernelSettings.__struct_encode_fields__

Names = Callable[[], Collection[str]]
Finder = Callable[[tuple[str, ...]], Mapping[str, type[Settings]]]


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings in force, and the version that a worker's row carries. Lifecycles that are off have no section."""

    kernel: KernelSettings
    sections: Mapping[str, Settings] = field(default_factory=dict)
    path: Path | None = None
    version: str = ""

    @property
    def path_text(self) -> str:
        """How errors name the file."""
        return _path_text(self.path)

    def gate_limits(self) -> tuple[GateLimits, ...]:
        """Every gate of `[gates]`, and every account with limits of its own."""
        return gate_limits(self.kernel.gates)

    def ledger_url(self) -> str:
        """The ledger's address, with its password where there is one. Raises ConfigError where it cannot be read."""
        url, password = str(self.kernel.ledger.url), self.kernel.ledger.password
        # Not by `urlsplit`: an address may name several hosts.
        if given := re.match(r"\w+://[^:/@]*:([^@]+)@", url):
            conceal(unquote(given[1]))
        if password is None or url.startswith("sqlite:"):
            return url
        scheme, rest = url.split("://", 1)
        who, at, where = rest.rpartition("@")
        return f"{scheme}://{who.partition(':')[0]}:{quote(password.reveal(), safe='')}{at or '@'}{where}"

    def check_secrets(self) -> None:
        """Raise ConfigError with every secret that cannot be read, before anything relies on them."""
        errors = []
        for key, secret in _secrets({**_attributes(self.kernel), **self.sections}, ()):
            try:
                secret.reveal()
            except ConfigError as error:
                errors.append(f"{self.path_text}: {shown_key(key)}: {error}")
        if errors:
            raise ConfigError("\n".join(errors))


def find(option: Path | None, environment: Mapping[str, str] | None = None) -> Path | None:
    """The file to read: the one that was asked for, or `penstock.toml` here; None when there is none."""
    named = option or (os.environ if environment is None else environment).get(VARIABLE)
    if named:
        return Path(named)
    here = Path(FILE)
    return here if here.exists() else None


def read(path: Path | None) -> dict[str, Any]:
    """What a file says, not yet judged; nothing where there is none. Raises ConfigError."""
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise ConfigError(f"{path} is larger than {_LARGEST // 1024**2} MiB, too large for a configuration")
        found = tomllib.loads(content.decode())
        json.dumps(found, default=str)  # what cannot be shown is found here, and not where an error would show it
    except FileNotFoundError:
        msg = f"{path} does not exist; 'penstock init' writes a configuration, --config names another"
        raise ConfigError(msg) from None
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(msg) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{path} is not TOML: {error}"
        raise ConfigError(msg) from error
    except (ValueError, RecursionError) as error:
        msg = f"{path} cannot be read: a number has thousands of digits, or tables are nested without end"
        raise ConfigError(msg) from error
    return found


def switched_on(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """The sections of lifecycles that a file switches on, before anything is validated."""
    return tuple(
        name
        for name, value in raw.items()
        if name not in _KERNEL and isinstance(value, Mapping) and value.get(ENABLED) is not False
    )


def load(
    path: Path | None,
    kinds: Mapping[str, type[Settings]],
    given: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    raw: Mapping[str, Any] | None = None,
    on: Collection[str] = (),
    known: Collection[str] = (),
    unknown: Finder | None = None,
    strangers: bool = False,
    jobs: Names | None = None,
    prunable: Names | None = None,
    errors: Collection[str] = (),
) -> Configuration:
    """The settings in force. Raises ConfigError with every error at once, and with those that are handed in.

    `kinds` are the settings of lifecycles, by name; `on` are those that run without a section. `given` are options of
    the command line, by key (`ledger.url`). Sections that nobody has declared are handed to `unknown`, which returns
    what it finds for them; of the rest a section is put right by `kinds` and by `known`, names that exist but were not
    looked at. `strangers` lets them pass instead, for commands that load no lifecycle. `jobs` and `prunable` give the
    names that exist; they are asked after `unknown`. `raw` is what the file says, where it was read already.
    """
    raw = read(path) if raw is None else raw
    left = tuple(name for name, value in raw.items() if name not in {*_KERNEL, *kinds} and isinstance(value, Mapping))
    kinds = {**kinds, **(unknown(left) if unknown is not None and left else {})}
    found = list(errors)  # after `unknown`, which may have found some
    folder = None if path is None else path.absolute().parent
    reading = _Reading(raw, folder, _path_text(path), found)
    kernel = reading.kernel(_overriding(given or {}, environment or {}))
    if not strangers:
        reading.refuse_unknown(kinds, known)
    sections = reading.sections(kinds, on)
    if kernel is not None:
        reading.check_names(kernel, jobs, prunable)
    if found or kernel is None:
        raise ConfigError("\n".join(found))
    return Configuration(kernel, sections, path, _version(kernel, sections))


class _Reading:
    """One file on its way to a configuration; gathers errors."""

    def __init__(self, raw: Mapping[str, Any], folder: Path | None, path_text: str, errors: list[str]) -> None:
        self.raw = raw
        self.folder = folder
        self.path_text = path_text
        self.errors = errors

    def kernel(self, over: Mapping[tuple[str, ...], tuple[str, Any]]) -> KernelSettings | None:
        own = {name: value for name, value in self.raw.items() if name in _KERNEL}
        return read_section(
            KernelSettings, own, at=(), folder=self.folder, errors=self.errors, path_text=self.path_text, over=over
        )

    def refuse_unknown(self, kinds: Collection[str], known: Collection[str]) -> None:
        names = sorted({*_KERNEL, *kinds, *known})
        for name, value in self.raw.items():
            if name in _KERNEL or name in kinds:
                continue
            close = near(name, names)
            if isinstance(value, Mapping):
                hint = f"did you mean [{close[0]}]?" if close else f"known are {', '.join(names)}"
                self._say(f"[{shown_key((name,))}] is not a section or a lifecycle; {hint}")
            else:
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}"
                self._say(f"{shown_key((name,))} is not a setting; {hint}")

    def sections(self, kinds: Mapping[str, type[Settings]], on: Collection[str]) -> dict[str, Settings]:
        """Every lifecycle that is on, by name. Those that are off are validated all the same."""
        found = {}
        for name, kind in kinds.items():
            if any(own.key == ENABLED for own in fields_of(kind)):
                raise TypeError(f"{kind.__name__}.{ENABLED}: this key switches a lifecycle on and off")
            if name not in self.raw and name not in on:
                continue
            given = self.raw.get(name, {})
            enabled = given.get(ENABLED, True) if isinstance(given, Mapping) else True
            if not isinstance(enabled, bool):
                self._say(f"{shown_key((name, ENABLED))} = {shown(enabled)} must be true or false")
            section = read_section(
                kind,
                given,
                at=(name,),
                folder=self.folder,
                errors=self.errors,
                path_text=self.path_text,
                also=(ENABLED,),
            )
            if section is not None and enabled is True:
                found[name] = section
        return found

    def check_names(self, kernel: KernelSettings, jobs: Names | None, prunable: Names | None) -> None:
        """What no setting says alone: the job of a schedule exists, and so does what is pruned."""
        known = sorted(jobs()) if jobs is not None and kernel.schedules else None
        for name, schedule in kernel.schedules.items():
            if known is not None and schedule.job not in known:
                key = shown_key(("schedules", name, "job"))
                allowed = f"one of {', '.join(known)}" if known else "left out; there are no jobs"
                self._say(f"{key} = {shown(schedule.job)} must be {allowed}")
        machines = sorted(prunable()) if prunable is not None and kernel.prune else None
        for name in kernel.prune:
            if machines is not None and name not in machines:
                self._say(f"{shown_key(('prune', name))} is not a setting; [prune] takes {', '.join(machines)}")

    def _say(self, error: str) -> None:
        self.errors.append(f"{self.path_text}: {error}")


def _overriding(given: Mapping[str, Any], environment: Mapping[str, str]) -> dict[tuple[str, ...], tuple[str, Any]]:
    """What options and variables say, by key. An empty variable counts as none."""
    found: dict[tuple[str, ...], tuple[str, Any]] = {}
    for key, own in leaves(KernelSettings):
        if own.says.variable and (text := environment.get(own.says.variable)):
            found[key] = own.says.variable, text
        if own.says.option and (value := given.get(".".join(key))) is not None:
            found[key] = own.says.option, value
    return found


def _version(kernel: KernelSettings, sections: Mapping[str, Settings]) -> str:
    """A digest of what is in force, whichever way it was given; secrets by reference."""
    plain = [written(kernel), {name: written(section) for name, section in sections.items()}]
    text = json.dumps(plain, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _attributes(settings: Settings) -> dict[str, Any]:
    return {own.key: getattr(settings, own.name) for own in fields_of(type(settings))}


def _secrets(value: Any, at: Key) -> Iterator[tuple[Key, Secret]]:
    """Every reference in what is in force, with its key."""
    if isinstance(value, Secret):
        yield at, value
    elif isinstance(value, Settings):
        yield from _secrets(_attributes(value), at)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _secrets(item, (*at, name))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from _secrets(item, (*at, place))


def _path_text(path: Path | None) -> str:
    return str(path or "the configuration")

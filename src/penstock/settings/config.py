"""`penstock.toml`: declared setting by setting, validated whole, all errors at once.

What counts is, in this order: the option of the command line, the environment, the file, the default. A relative path
in the file starts at the file's own folder.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from penstock.model.cadence import Cadence
from penstock.model.errors import UsageError
from penstock.model.limits import GateLimits
from penstock.settings.declarations import SETTINGS
from penstock.settings.redaction import conceal
from penstock.settings.setting import REQUIRED, ConfigError, Secret, Setting, secret

__all__ = ["FILE", "SETTINGS", "Config", "ConfigError", "check_secrets", "find", "read", "validate"]

FILE = "penstock.toml"
VARIABLE = "PENSTOCK_CONFIG"
Key = tuple[str, ...]
_DIGITS = 20
_LONGEST = 300
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force, by key, and the version that a worker's row carries."""

    values: Mapping[Key, Any]
    path: Path | None = None
    version: str = ""

    def __getitem__(self, key: str) -> Any:
        return self.values[tuple(key.split("."))]

    def section(self, name: str) -> dict[str, dict[str, Any]]:
        """The settings of `[name.x]`, `[name.y]`, by x and y."""
        found: dict[str, dict[str, Any]] = {}
        for key, value in self.values.items():
            if len(key) == 3 and key[0] == name:  # noqa: PLR2004 - section, name, setting
                found.setdefault(key[1], {})[key[2]] = value
        return found

    def prune(self) -> dict[str, timedelta | None]:
        """How long things are kept, where it is not the default; None for ever."""
        return {key[1]: value for key, value in self.values.items() if key[0] == "prune"}

    def providers(self) -> tuple[GateLimits, ...]:
        """Every provider, and every account with limits of its own."""
        found = {n: GateLimits(n, tuple(v["limits"]), v["max_in_flight"]) for n, v in self.section("providers").items()}
        accounts: dict[str, dict[str, Any]] = {}
        for key, value in self.values.items():
            if key[0] == "providers" and key[2:3] == ("accounts",):
                accounts.setdefault(f"{key[1]}/{key[3]}", {})[key[4]] = value
        for name, own in accounts.items():
            provider = found[name.partition("/")[0]]
            limits = provider.limits if own["limits"] is None else tuple(own["limits"])
            in_flight = provider.max_in_flight if own["max_in_flight"] is None else own["max_in_flight"]
            found[name] = GateLimits(name, limits, in_flight)
        return tuple(found[name] for name in sorted(found))

    def ledger_url(self) -> str:
        """The ledger's address, with its password where there is one."""
        url, password = str(self["ledger.url"]), self["ledger.password"]
        # Not by `urlsplit`: an address may name several hosts.
        if given := re.match(r"\w+://[^:/@]*:([^@]+)@", url):
            conceal(unquote(given[1]))
        if password is None or url.startswith("sqlite:"):
            return url
        scheme, rest = url.split("://", 1)
        who, at, where = rest.rpartition("@")
        return f"{scheme}://{who.partition(':')[0]}:{quote(password.reveal(), safe='')}{at or '@'}{where}"


def find(option: Path | None, environment: Mapping[str, str] | None = None) -> Path | None:
    """The file to read: the one that was asked for, or `penstock.toml` here; None when there is none."""
    named = option or (os.environ if environment is None else environment).get(VARIABLE)
    if named:
        return Path(named)
    here = Path(FILE)
    return here if here.exists() else None


def read(path: Path | None) -> dict[str, Any]:
    """What a file says, not yet judged. Raises ConfigError."""
    if path is None:
        return {}
    try:
        found = tomllib.loads(path.read_text())
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


def validate(
    raw: Mapping[str, Any],
    path: Path | None = None,
    settings: Sequence[Setting] = SETTINGS,
    *,
    given: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    jobs: Collection[str] | None = None,
    prunable: Collection[str] | None = None,
    strangers: bool = False,
    errors: Sequence[str] = (),
) -> Config:
    """The settings in force. Raises ConfigError with every error at once, and with those that are handed in.

    `given` are options of the command line, by key. `jobs` and `prunable` are the names that exist, where that is
    known. `strangers` lets sections pass that nobody declares, for commands that do not load the program they are for.
    """
    reader = _Reader(path, settings, list(errors))
    values = reader.file(raw, strangers=strangers)
    for setting in settings:
        if setting.variable and (text := (environment or {}).get(setting.variable)):
            reader.take(values, setting, setting.parts, _plain(text), setting.variable)
        if setting.option and (value := (given or {}).get(setting.key)) is not None:
            reader.take(values, setting, setting.parts, value, setting.option)
    reader.schedules(values, jobs)
    reader.prune(values, prunable)
    if reader.errors:
        raise ConfigError("\n".join(sorted(reader.errors)))
    plain = json.dumps(sorted((".".join(key), str(value)) for key, value in values.items()))
    return Config(values, path, hashlib.sha256(plain.encode()).hexdigest()[:12])


class _Reader:
    """One pass over a file; gathers errors."""

    def __init__(self, path: Path | None, settings: Sequence[Setting], errors: list[str]) -> None:
        self.path = path
        self.settings = {s.parts: s for s in settings}
        self.errors = errors
        self.broken: set[Key] = set()

    def file(self, raw: Mapping[str, Any], *, strangers: bool) -> dict[Key, Any]:
        values: dict[Key, Any] = {}
        tables: list[Key] = [()]
        for key, value in self._leaves(raw, (), tables):
            setting = self._setting(key)
            if setting is not None:
                self.take(values, setting, key, value, None)
            elif not strangers or key[0] in {parts[0] for parts in self.settings}:
                self._unknown(key)
        for setting in self.settings.values():
            for key in _instances(setting.parts, tables):
                if key in values:
                    continue
                if setting.default is REQUIRED:
                    self._say(f"{_shown_key(key)} is missing; it is {setting.allowed()}")
                    self.broken.add(key)
                values[key] = setting.default if setting.anchor is None else self._anchored(setting, setting.default)
        return values

    def take(self, values: dict[Key, Any], setting: Setting, key: Key, value: Any, source: str | None) -> None:
        """Put one value into force; `source` is the option or the variable that gave it, None for the file."""
        try:
            found = setting.read(value)
            if source is None:
                _refuse_password(found)
                found = self._anchored(setting, found)
        except ValueError as allowed:
            named = _shown_key(key) if source is None else source
            error = f"{named} = {_shown(setting, value)} is not allowed; it is {allowed}"
            if source is None:
                self._say(error)
                self.broken.add(key)
                values[key] = None
            else:
                self.errors.append(error)
            return
        values[key] = found

    def schedules(self, values: Mapping[Key, Any], jobs: Collection[str] | None) -> None:
        """What no setting says alone: a cadence is of one kind, and its job exists."""
        for name, spec in Config(values).section("schedules").items():
            prefix = _shown_key(("schedules", name))
            if any(key[:2] == ("schedules", name) for key in self.broken):
                continue
            try:
                Cadence.parse(**{part: spec[part] for part in ("every", "at", "time_zone", "hours", "jitter")})
            except UsageError as error:
                self._say(f"{prefix}: {error}")
            if jobs is not None and spec["job"] not in jobs:
                known = "one of " + ", ".join(sorted(jobs)) if jobs else "none, this program has no jobs"
                self._say(f"{prefix}.job = {json.dumps(spec['job'])} is not allowed; it is {known}")

    def prune(self, values: Mapping[Key, Any], prunable: Collection[str] | None) -> None:
        """What is pruned exists."""
        for key in values:
            if key[0] == "prune" and prunable is not None and key[1] not in prunable:
                self._say(f"{_shown_key(key)} is not a setting; [prune] takes {', '.join(sorted(prunable))}")

    def _anchored(self, setting: Setting, value: Any) -> Any:
        if self.path is None or value is None:
            return value
        folder = self.path.absolute().parent
        if isinstance(value, Secret):
            return value.below(folder)
        return value if setting.anchor is None else setting.anchor(value, folder)

    def _leaves(self, raw: Mapping[str, Any], above: Key, tables: list[Key]) -> Iterator[tuple[Key, Any]]:
        for name, value in raw.items():
            key = (*above, name)
            if len(key) > _DEEPEST:
                self._say(f"{_shown_key(key)[:100]}… is deeper than any setting")
                return
            if isinstance(value, dict) and self._setting(key) is None:
                tables.append(key)
                yield from self._leaves(value, key, tables)
            else:
                yield key, value

    def _setting(self, key: Key) -> Setting | None:
        return next((s for parts, s in self.settings.items() if _matches(parts, key)), None)

    def _unknown(self, key: Key) -> None:
        # The file's own names take the place of the stars, so that only the rest can be misspelt.
        known = [
            _shown_key(tuple(own if part == "*" else part for part, own in zip(parts, key, strict=True)))
            for parts in self.settings
            if len(parts) == len(key)
        ]
        near = difflib.get_close_matches(_shown_key(key), known, 1)
        section = [s.key for parts, s in self.settings.items() if parts[0] == key[0]]
        others = ", ".join(sorted(section or {parts[0] for parts in self.settings}))
        hint = f"did you mean {near[0]}?" if near else f"known are {others}"
        self._say(f"{_shown_key(key)} is not a setting; {hint}")

    def _say(self, error: str) -> None:
        self.errors.append(f"{self.path or 'the configuration'}: {error}")


def _plain(text: str) -> str | int:
    """What a variable says: a whole number, if it is one that can be read."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else text


def _matches(pattern: Key, key: Key) -> bool:
    return len(pattern) == len(key) and all(p in ("*", k) for p, k in zip(pattern, key, strict=True))


def _instances(pattern: Key, tables: Sequence[Key]) -> list[Key]:
    """The keys that a pattern stands for, given the tables that the file opens; `prune.*` stands for none."""
    if "*" not in pattern:
        return [pattern]
    if pattern[-1] == "*":
        return []
    return [(*table, pattern[-1]) for table in tables if _matches(pattern[:-1], table)]


def _refuse_password(value: Any) -> None:
    if isinstance(value, str) and re.match(r"\w+://[^/@]*:[^/@]*@", value):
        raise ValueError("an address without a password; a password is a setting of its own, by reference")


def _shown_key(key: Key) -> str:
    return ".".join(part if re.fullmatch(r"[\w-]+", part) else json.dumps(part) for part in key)


def _shown(setting: Setting, value: Any) -> str:
    """The value as the file has it; where a reference belongs the secret itself may stand, and is not shown."""
    if setting.read is secret:
        return "(not shown)"
    shown = json.dumps(value, default=str, ensure_ascii=False)
    shown = re.sub(r"(://[^:/@\"]*):[^/@\"]*@", r"\1:…@", shown)
    shown = re.sub(r"(://[^?\"]*\?)[^\"]*", r"\1…", shown)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def check_secrets(config: Config) -> None:
    """Raise ConfigError with every secret that cannot be read, before anything relies on them."""
    errors = []
    for key, value in config.values.items():
        if isinstance(value, Secret):
            try:
                value.reveal()
            except ConfigError as error:
                errors.append(f"{config.path or 'the configuration'}: {_shown_key(key)}: {error}")
    if errors:
        raise ConfigError("\n".join(errors))

"""`penstock.toml`: declared setting by setting, validated whole, all errors at once.

Each setting is declared once, below, with its type, its default and its sentence; the file that `penstock init`
writes and the reference in the docs come from the same declarations. A secret is only ever a reference to an
environment variable or to a file: its value is read when a connector asks for it and is never kept, printed or logged.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import UsageError

FILE = "penstock.toml"


class ConfigError(UsageError):
    """The configuration is wrong; the message lists every error with its file, key, value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Secret:
    """Where a secret is to be found. It shows itself as its reference, never as its value."""

    kind: str
    name: str

    def reveal(self, environment: Mapping[str, str] | None = None) -> str:
        """The value, read now. Raises ConfigError that names the reference, not the value."""
        if self.kind == "env":
            value = (os.environ if environment is None else environment).get(self.name)
            if not value:
                msg = f"the environment variable {self.name} is not set, and a secret is expected in it"
                raise ConfigError(msg)
            return value
        try:
            value = Path(self.name).read_text().strip()
        except OSError as error:
            msg = f"the file {self.name} cannot be read, and a secret is expected in it: {error.strerror}"
            raise ConfigError(msg) from error
        if not value:
            msg = f"the file {self.name} is empty, and a secret is expected in it"
            raise ConfigError(msg)
        return value

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key: `read` turns what the file says into the value or raises ValueError with what is allowed."""

    key: str
    read: Callable[[Any], Any]
    default: Any
    help: str


@dataclass(frozen=True, slots=True)
class Config:
    """The settings in force, by key, and the version that a worker's row carries."""

    values: Mapping[str, Any]
    path: Path | None = None
    version: str = field(default="")

    def __getitem__(self, key: str) -> Any:
        return self.values[key]


def text(value: Any) -> str:
    """Any text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("text")
    return value


def whole(low: int, high: int) -> Callable[[Any], int]:
    """A whole number of a range."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            msg = f"a whole number from {low:,} to {high:,}"
            raise ValueError(msg)
        return value

    return read


def one_of(*allowed: str) -> Callable[[Any], str]:
    """One of a few words."""

    def read(value: Any) -> str:
        if value not in allowed:
            msg = "one of " + ", ".join(allowed)
            raise ValueError(msg)
        return str(value)

    return read


def texts(value: Any) -> list[str]:
    """A list of texts."""
    if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
        raise ValueError('a list of texts, for example ["a", "b"]')
    return value


def secret(value: Any) -> Secret:
    """A reference: `{ env = "NAME" }` or `{ file = "path" }`."""
    if isinstance(value, dict) and len(value) == 1:
        ((kind, name),) = value.items()
        if kind in ("env", "file") and isinstance(name, str) and name.strip():
            return Secret(kind, name)
    raise ValueError('a reference to a secret, { env = "NAME" } or { file = "path" }; never the secret itself')


SETTINGS = (
    Setting(
        "ledger.url",
        text,
        "sqlite:///penstock.db",
        "Where the ledger is: sqlite:///FILE or postgresql://USER@HOST/NAME.",
    ),
    Setting("apps", texts, ["penstock.examples.invoices:app"], "The programs to run, as module:attribute."),
    Setting("worker.concurrency", whole(1, 100_000), 1_000, "How many steps run at once in one worker process."),
    Setting(
        "log.level", one_of("debug", "info", "warning", "error"), "info", "The least severe log line that is written."
    ),
)


def load(path: Path, settings: tuple[Setting, ...] = SETTINGS) -> Config:
    """Read and validate the whole file. Raises ConfigError with every error in it."""
    try:
        raw = tomllib.loads(path.read_text())
    except FileNotFoundError:
        msg = f"{path} does not exist; 'penstock init' writes one"
        raise ConfigError(msg) from None
    except OSError as error:
        msg = f"{path} cannot be read: {error.strerror}"
        raise ConfigError(msg) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        msg = f"{path} is not TOML: {error}"
        raise ConfigError(msg) from error
    return validate(raw, path, settings)


def validate(raw: Mapping[str, Any], path: Path | None, settings: tuple[Setting, ...] = SETTINGS) -> Config:
    """The settings of a decoded file. Raises ConfigError with every error at once."""
    known = {s.key: s for s in settings}
    given = dict(_leaves(raw, set(known)))
    errors = []
    values = {}
    for key in given.keys() - known.keys():
        near = difflib.get_close_matches(key, known, 1)
        hint = f"did you mean {near[0]}?" if near else "known are " + ", ".join(sorted(known))
        errors.append(f"{key} is not a setting; {hint}")
    for key, setting in known.items():
        if key not in given:
            values[key] = setting.default
            continue
        try:
            values[key] = setting.read(given[key])
        except ValueError as allowed:
            errors.append(f"{key} = {_shown(setting, given[key])} is not allowed; it is {allowed}")
    if errors:
        name = path or "the configuration"
        raise ConfigError("\n".join(f"{name}: {error}" for error in sorted(errors)))
    plain = json.dumps({k: str(v) for k, v in values.items()}, sort_keys=True)
    return Config(values, path, hashlib.sha256(plain.encode()).hexdigest()[:12])


def _leaves(raw: Mapping[str, Any], known: set[str], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in raw.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in known:
            found += _leaves(value, known, f"{key}.")
        else:
            found.append((key, value))
    return found


def _shown(setting: Setting, value: Any) -> str:
    """The value as the file has it; where a reference belongs the secret itself may stand, and is not shown."""
    return "(not shown)" if setting.read is secret else json.dumps(value, default=str)


def sample(settings: tuple[Setting, ...] = SETTINGS) -> str:
    """A commented file that works as it is: every setting at its default."""
    lines = ["# Penstock's configuration. Every line that is commented out shows a default.", ""]
    tables: dict[str, list[Setting]] = {}
    for setting in settings:
        table, _, _ = setting.key.rpartition(".")
        tables.setdefault(table, []).append(setting)
    for table in sorted(tables):
        if table:
            lines += [f"[{table}]"]
        for setting in tables[table]:
            name = setting.key.rpartition(".")[2]
            lines += [f"# {setting.help}", f"# {name} = {json.dumps(setting.default)}"]
        lines += [""]
    return "\n".join(lines)

"""A secret is a reference to an environment variable or to a file, never the secret itself.

Its value is read when a connector asks for it, and from then on it is kept out of every text (see `redaction`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.model.errors import UsageError
from penstock.settings.redaction import SHORTEST, conceal

WANTED = 'a reference to a secret, { env = "NAME" } or { file = "path" }; never the secret itself'


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
            place = f"the environment variable {self.name}"
            value = (os.environ if environment is None else environment).get(self.name, "").strip()
            missing = f"{place} is not set, and a secret is expected in it"
        else:
            place = f"the file {self.name}"
            try:
                value = Path(self.name).read_text().strip()
            except (OSError, ValueError) as error:
                why = getattr(error, "strerror", None) or "it is not text"
                msg = f"{place} cannot be read, and a secret is expected in it: {why}"
                raise ConfigError(msg) from None
            missing = f"{place} is empty, and a secret is expected in it"
        if not value:
            raise ConfigError(missing)
        if len(value) < SHORTEST:
            msg = f"{place} holds fewer than {SHORTEST} characters; that is no secret"
            raise ConfigError(msg)
        conceal(value)
        return value

    def below(self, folder: Path) -> Secret:
        """The same reference, its file looked for in that folder."""
        return self if self.kind == "env" else Secret(self.kind, str(folder / self.name))

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def read_secret(value: Any) -> Secret:
    """`{ env = "NAME" }` or `{ file = "path" }`. Raises ValueError with what is allowed."""
    if isinstance(value, dict) and len(value) == 1:
        ((kind, name),) = value.items()
        if kind in ("env", "file") and isinstance(name, str) and name.strip():
            return Secret(kind, name)
    raise ValueError(WANTED)

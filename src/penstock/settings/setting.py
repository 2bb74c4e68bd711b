"""What one setting is: its key, the values it takes, its default, and the sentence that explains it.

A reader turns what a file says into a value, or raises ValueError with what is allowed. A secret is only ever a
reference to an environment variable or to a file: its value is read when a connector asks for it, and from then on it
is kept out of every text (see `redaction`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus
from zoneinfo import available_timezones

from penstock.model.cadence import parse_span, parse_time, parse_zone
from penstock.model.errors import UsageError
from penstock.model.limits import Limit
from penstock.settings.secret import ConfigError, Secret
from penstock.settings.secret import read_secret as secret

__all__ = [
    "NEVER",
    "REQUIRED",
    "ConfigError",
    "Secret",
    "Setting",
    "age",
    "below",
    "flag",
    "hours",
    "ledger_address",
    "limits",
    "moments",
    "number",
    "one_of",
    "secret",
    "secret_parameters",
    "span",
    "table",
    "text",
    "whole",
    "zone",
]

REQUIRED: Any = object()
"""The default of a setting that has none: whoever opens its table must give it."""
NEVER = "never"
_SECRET_PARAMETERS = {"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"}
_MOST = 1e15


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of the file. A `*` in it stands for a name that the file chooses, as in `schedules.*.every`.

    `option` and `variable` are how the command line and the environment give it; both come before the file. `examples`
    are what the sample shows for a key with a `*`, by name. `anchor` makes what stands in the file independent of the
    folder in which a program was started.
    """

    key: str
    read: Callable[[Any], Any]
    default: Any
    help: str
    option: str | None = None
    variable: str | None = None
    examples: Mapping[str, Any] = field(default_factory=dict)
    anchor: Callable[[Any, Path], Any] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(self.key.split("."))

    def allowed(self) -> str:
        """What the setting takes, in the words of its error."""
        try:
            self.read(REQUIRED)
        except ValueError as error:
            return str(error)
        raise AssertionError(self.key)


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


def number(low: float, high: float) -> Callable[[Any], float]:
    """A number of a range."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            msg = f"a number from {low:g} to {high:g}"
            raise ValueError(msg)
        return float(value)

    return read


def one_of(*allowed: str) -> Callable[[Any], str]:
    """One of a few words."""

    def read(value: Any) -> str:
        if value not in allowed:
            msg = "one of " + ", ".join(allowed)
            raise ValueError(msg)
        return str(value)

    return read


def flag(value: Any) -> bool:
    """Yes or no."""
    if not isinstance(value, bool):
        raise ValueError("true or false")  # noqa: TRY004 - readers raise ValueError
    return value


def ledger_address(value: Any) -> str:
    """`sqlite:///FILE` or `postgresql://…`."""
    if not isinstance(value, str) or not re.match(r"sqlite:///.|postgres(ql)?://.", value):
        raise ValueError("sqlite:///FILE or postgresql://USER@HOST/NAME")
    if named := secret_parameters(value):
        raise ValueError(f"an address without {' and '.join(named)}; a password is a setting of its own, by reference")
    return value


def secret_parameters(address: str) -> list[str]:
    """The parameters of a PostgreSQL address that give a secret away."""
    # A `#` ends nothing in such an address, so that what stands behind it is read as well.
    parts = [] if address.startswith("sqlite:") else re.split("[?&]", address)[1:]
    return [name for part in parts if (name := unquote_plus(part.partition("=")[0])) in _SECRET_PARAMETERS]


def below(address: str, folder: Path) -> str:
    """A SQLite file that is named without its folder lies beside the configuration."""
    path = address.removeprefix("sqlite:///")
    return address if path == address else f"sqlite:///{folder / path}"


def span(value: Any) -> str:
    """A span of time as `cadence` reads it."""
    return _as(parse_span, value, 'a span of time, for example "30s", "5m", "6h" or "7d"')


def moments(value: Any) -> list[str]:
    """Times of day."""
    wanted = 'a list of times of day, for example ["03:00", "15:30"]'
    if not isinstance(value, list) or not value:
        raise ValueError(wanted)
    return [_as(parse_time, moment, wanted) for moment in value]


def hours(value: Any) -> str:
    """A window of the day."""
    wanted = 'two different times of day, for example "03:00-06:00"'
    start, dash, end = value.partition("-") if isinstance(value, str) else ("", "", "")
    if not dash or _as(parse_time, start, wanted).strip() == _as(parse_time, end, wanted).strip():
        raise ValueError(wanted)
    return str(value)


def zone(value: Any) -> str:
    """A time zone. One that is not known is told with the name that was perhaps meant."""
    wanted = 'a time zone, for example "Europe/Madrid" or "UTC"'
    try:
        return _as(parse_zone, value, wanted)
    except ValueError:
        if not isinstance(value, str):
            raise
        names = {name.lower(): name for name in available_timezones()}
        near = difflib.get_close_matches(value.lower(), names, 1)
        raise ValueError(f'{wanted}; did you mean "{names[near[0]]}"?' if near else wanted) from None


def age(value: Any) -> timedelta | None:
    """How long something is kept; None for ever."""
    wanted = f'a span of time, for example "90d", or "{NEVER}"'
    return None if value == NEVER else parse_span(_as(parse_span, value, wanted))


def table(value: Any) -> dict[str, Any]:
    """Anything that a job wants to know, by name. It is kept in the ledger, so it holds no secrets."""
    if not isinstance(value, dict):
        raise ValueError("a table, for example { days = 3 }; it is kept in the ledger, so never a secret")  # noqa: TRY004 - readers raise ValueError
    return value


_LIMITS = (
    'a list of { name = "requests", rate = 2.0, burst = 40 }: rate per second above 0, burst from 1, names differ;'
    " a call takes cost = 1 unless given, at most the burst"
)


def limits(value: Any) -> tuple[Limit, ...]:
    """The budgets of a provider."""
    found = tuple(_limit(item) for item in value) if isinstance(value, list) else ()
    if not found or len({limit.name for limit in found}) != len(found):
        raise ValueError(_LIMITS)
    return found


def _limit(item: Any) -> Limit:
    if not isinstance(item, dict) or not {"name", "rate", "burst"} <= set(item) <= {"name", "rate", "burst", "cost"}:
        raise ValueError(_LIMITS)
    name, amounts = item["name"], [item["rate"], item["burst"], item.get("cost", 1)]
    if not isinstance(name, str) or not name.strip() or not all(_is_amount(amount) for amount in amounts):
        raise ValueError(_LIMITS)
    rate, burst, cost = map(float, amounts)
    if burst < 1 or cost > burst:
        raise ValueError(_LIMITS)
    return Limit(name, rate, burst, cost)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST


def _as(parse: Callable[[str], Any], value: Any, wanted: str) -> str:
    """The text itself, where it can be parsed."""
    try:
        parse(text(value))
    except (UsageError, ValueError, OverflowError):
        raise ValueError(wanted) from None
    return str(value)

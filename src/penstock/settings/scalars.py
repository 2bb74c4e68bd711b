"""How a single value is read from what a file says, and written back: one reader for each type."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import msgspec

from penstock.model.cadence import parse_span, parse_time, parse_zone
from penstock.model.errors import UsageError
from penstock.model.limits import Limit
from penstock.model.near import near
from penstock.settings.addresses import check_address
from penstock.settings.secret import WANTED as WANTED_SECRET
from penstock.settings.secret import Secret, read_secret
from penstock.settings.typed import Hours, LedgerAddress, Place, Says, TimeZone, Url

NEVER = "never"
_LARGEST = 2**63 - 1
_MOST = 1e15
_DIGITS = 20
_SECRET_PARAMETERS = {"password", "sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret"}
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def _same(value: Any) -> Any:
    return value


class Scalar(msgspec.Struct, frozen=True):
    """One type of value. `wanted` follows "must be"; `read` raises ValueError, whose text comes before `wanted`."""

    wanted: str
    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = _same
    example: Any = "…"
    anchor: Callable[[Any, Path], Any] | None = None
    from_text: Callable[[str], Any] = str
    private: bool = False


def scalar_of(kind: Any, says: Says) -> Scalar | None:
    """The reader of a type with its bounds; None for a type that is none of these."""
    if kind in _MAKERS:
        return _MAKERS[kind](says)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return choice([member.value for member in kind], kind, lambda member: member.value)
    return None


def choice(allowed: Iterable[Any], read: Callable[[Any], Any] = _same, write: Callable[[Any], Any] = _same) -> Scalar:
    """One of a few values."""
    values = list(allowed)
    wanted = "one of " + ", ".join(map(str, values))

    def pick(value: Any) -> Any:
        if not any(type(value) is type(known) and value == known for known in values):
            raise ValueError(wanted)
        return read(value)

    return Scalar(wanted, pick, write, values[0] if values else "…", from_text=_number_or_text)


def text(value: Any) -> str:
    """Text that is not empty and that every database can keep."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("text")
    if "\0" in value:
        raise ValueError("text without null characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("text in valid Unicode") from None
    return value


def _text(says: Says) -> Scalar:
    if says.choices is not None:
        return choice(says.choices)
    return Scalar("text", text)


def _flag(_says: Says) -> Scalar:
    wanted = "true or false"

    def read(value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError(wanted)  # noqa: TRY004 - readers raise ValueError
        return value

    return Scalar(wanted, read, example=False, from_text=lambda given: {"true": True, "false": False}.get(given, given))


def _whole(says: Says) -> Scalar:
    if says.choices is not None:
        return choice(says.choices)
    wanted = f"a whole number{_bounds(says, '{:,}'.format)}"

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _LARGEST or not _within(value, says):
            raise ValueError(wanted)
        return value

    return Scalar(wanted, read, example=1 if says.ge is None else says.ge, from_text=_number_or_text)


def _number(says: Says) -> Scalar:
    wanted = f"a number{_bounds(says, '{:g}'.format)}"

    def read(value: Any) -> float:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _LARGEST
        if not fits or not math.isfinite(value) or not _within(value, says):
            raise ValueError(wanted)
        return float(value)

    return Scalar(wanted, read, example=1.0 if says.ge is None else says.ge, from_text=_float_or_text)


def _decimal(says: Says) -> Scalar:
    wanted = f'a decimal number{_bounds(says, str)}, for example "12.50"'

    def read(value: Any) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, int | float | str) or len(str(value)) > 2 * _DIGITS:
            raise ValueError(wanted)
        try:
            found = Decimal(str(value))
        except InvalidOperation:
            raise ValueError(wanted) from None
        if not found.is_finite() or not _within(found, says):
            raise ValueError(wanted)
        return found

    return Scalar(wanted, read, str, "12.50")


def span_text(span: timedelta) -> str:
    """A span as a file has it: `5m`. Raises ValueError for one that a file cannot have."""
    seconds = span.total_seconds()
    if seconds == 0:
        return "0s"
    for unit, size in _UNITS:
        if seconds % size == 0:
            written = f"{int(seconds // size)}{unit}"
            if parse_span(written) == span:
                return written
    raise ValueError(f"{span} is not a whole number of seconds")


def _span(says: Says) -> Scalar:
    least = says.ge is not None and says.ge <= timedelta(seconds=1)
    shown = msgspec.structs.replace(says, ge=None) if least else says
    never = f', or "{NEVER}"' if says.never else ""
    wanted = f'a span of time{_bounds(shown, span_text)}, for example "5m"{never}'
    zero = says.ge is not None and not says.ge

    def read(value: Any) -> timedelta | None:
        if says.never and value == NEVER:
            return None
        try:
            span = timedelta() if zero and value == "0s" else parse_span(text(value))
        except (UsageError, ValueError, OverflowError):
            raise ValueError(wanted) from None
        if not _within(span, says):
            raise ValueError(wanted)
        return span

    example = says.ge if says.ge is not None and says.ge > timedelta(minutes=5) else timedelta(minutes=5)
    return Scalar(
        wanted,
        read,
        lambda span: NEVER if span is None else span_text(span),
        span_text(min(example, says.le) if says.le is not None else example),
    )


def _moment(_says: Says) -> Scalar:
    wanted = 'a time of day, for example "03:00"'

    def read(value: Any) -> time:
        try:
            return parse_time(value.isoformat() if isinstance(value, time) else text(value))
        except (UsageError, ValueError):
            raise ValueError(wanted) from None

    return Scalar(wanted, read, "{:%H:%M}".format, "03:00")


def _hours(_says: Says) -> Scalar:
    wanted = 'two different times of day, for example "03:00-06:00"'

    def read(value: Any) -> Hours:
        start, _, end = value.partition("-") if isinstance(value, str) else ("", "", "")
        try:
            opens, closes = parse_time(start), parse_time(end)
        except (UsageError, ValueError):
            raise ValueError(wanted) from None
        if opens == closes:
            raise ValueError(wanted)
        return Hours(f"{opens:%H:%M}-{closes:%H:%M}")

    return Scalar(wanted, read, example="03:00-06:00")


def _zone(_says: Says) -> Scalar:
    wanted = 'a time zone, for example "Europe/Madrid" or "UTC"'

    def read(value: Any) -> TimeZone:
        try:
            parse_zone(text(value))
        except (UsageError, ValueError):
            raise ValueError(_near_zone(value, wanted)) from None
        return TimeZone(value)

    return Scalar(wanted, read, example="UTC")


def _near_zone(value: Any, wanted: str) -> str:
    """What is wanted, with the name that was perhaps meant."""
    from zoneinfo import available_timezones

    names = {name.lower(): name for name in available_timezones()} if isinstance(value, str) else {}
    close = near(str(value).lower(), names)
    return f'{wanted}; did you mean "{names[close[0]]}"?' if close else wanted


def _day(says: Says) -> Scalar:
    wanted = f"a date{_bounds(says, str)}, for example 2026-01-31"

    def read(value: Any) -> date:
        try:
            found = date.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if not isinstance(found, date) or isinstance(found, datetime) or not _within(found, says):
            raise ValueError(wanted)
        return found

    return Scalar(wanted, read, example=date(2026, 1, 31))


def _instant(says: Says) -> Scalar:
    wanted = f"an instant with its offset{_bounds(says, str)}, for example 2026-01-31T03:00:00Z"

    def read(value: Any) -> datetime:
        try:
            found = datetime.fromisoformat(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if not isinstance(found, datetime) or found.utcoffset() is None or not _within(found, says):
            raise ValueError(wanted)
        return found

    return Scalar(wanted, read, example=datetime.fromisoformat("2026-01-31T03:00:00+00:00"))


def _url(_says: Says) -> Scalar:
    wanted = "the address of an API, for example https://api.example.com; plain http is only for this machine"

    def read(value: Any) -> Url:
        try:
            return Url(check_address(text(value)))
        except (UsageError, ValueError):
            raise ValueError(wanted) from None

    return Scalar(wanted, read, example="https://api.example.com")


def _ledger(_says: Says) -> Scalar:
    wanted = "sqlite:///FILE or postgresql://USER@HOST/NAME"

    def read(value: Any) -> LedgerAddress:
        if not re.match(r"sqlite:///.|postgres(ql)?://.", value if isinstance(value, str) else ""):
            raise ValueError(wanted)
        if named := secret_parameters(text(value)):
            raise ValueError(
                f"an address without {' and '.join(named)}; a password is a setting of its own, by reference"
            )
        return LedgerAddress(value)

    def below(address: str, folder: Path) -> str:
        path = address.removeprefix("sqlite:///")
        return address if path == address else f"sqlite:///{folder / path}"

    return Scalar(wanted, read, example="sqlite:///penstock.db", anchor=below)


def secret_parameters(address: str) -> list[str]:
    """The parameters of a PostgreSQL address that give a secret away."""
    # A `#` ends nothing in such an address, so that what stands behind it is read as well.
    parts = [] if address.startswith("sqlite:") else re.split("[?&]", address)[1:]
    return [name for part in parts if (name := unquote_plus(part.partition("=")[0])) in _SECRET_PARAMETERS]


def _place(_says: Says) -> Scalar:
    return Scalar(
        "a file or a folder, or an address such as s3://bucket/name",
        text,
        example="data",
        anchor=lambda value, folder: value if "://" in value else str(folder / value),
    )


def _path(_says: Says) -> Scalar:
    return Scalar(
        "a file or a folder",
        lambda value: Path(text(value)),
        str,
        "data",
        lambda value, folder: folder / value,
    )


def _secret(_says: Says) -> Scalar:
    return Scalar(
        WANTED_SECRET,
        read_secret,
        lambda reference: {reference.kind: reference.name},
        {"env": "NAME"},
        lambda value, folder: value.below(folder),
        private=True,
    )


def _text_or_secret(_says: Says) -> Scalar:
    wanted = 'text, or a reference to a secret, { env = "NAME" } or { file = "path" }'

    def read(value: Any) -> str | Secret:
        try:
            return text(value) if isinstance(value, str) else read_secret(value)
        except ValueError:
            raise ValueError(wanted) from None

    return Scalar(
        wanted,
        read,
        lambda value: {value.kind: value.name} if isinstance(value, Secret) else value,
        anchor=lambda value, folder: value.below(folder) if isinstance(value, Secret) else value,
        private=True,
    )


_LIMIT = (
    'a table such as { name = "requests", rate = 2.0, burst = 40 }: rate per second above 0, burst from 1;'
    " a call takes cost = 1 unless given, at most the burst"
)


def _limit(_says: Says) -> Scalar:
    return Scalar(_LIMIT, _read_limit, _write_limit, {"name": "requests", "rate": 2.0, "burst": 40})


def _read_limit(item: Any) -> Limit:
    if not isinstance(item, dict) or not {"name", "rate", "burst"} <= set(item) <= {"name", "rate", "burst", "cost"}:
        raise ValueError(_LIMIT)
    name, amounts = item["name"], [item["rate"], item["burst"], item.get("cost", 1)]
    if not isinstance(name, str) or not name.strip() or not all(map(_is_amount, amounts)):
        raise ValueError(_LIMIT)
    rate, burst, cost = map(float, amounts)
    if burst < 1 or cost > burst:
        raise ValueError(_LIMIT)
    return Limit(text(name), rate, burst, cost)


def _write_limit(limit: Limit) -> dict[str, Any]:
    written = {"name": limit.name, "rate": limit.rate, "burst": limit.burst}
    return written if limit.cost == 1 else written | {"cost": limit.cost}


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _MOST


ANYTHING = Scalar("a value", _same)


_MAKERS: dict[Any, Callable[[Says], Scalar]] = {
    str: _text,
    bool: _flag,
    int: _whole,
    float: _number,
    Decimal: _decimal,
    timedelta: _span,
    date: _day,
    datetime: _instant,
    time: _moment,
    Hours: _hours,
    TimeZone: _zone,
    Url: _url,
    LedgerAddress: _ledger,
    Place: _place,
    Path: _path,
    Secret: _secret,
    str | Secret: _text_or_secret,
    Limit: _limit,
    Any: lambda _says: ANYTHING,
}


def _within(value: Any, says: Says) -> bool:
    return (
        (says.ge is None or value >= says.ge)
        and (says.le is None or value <= says.le)
        and (says.gt is None or value > says.gt)
        and (says.lt is None or value < says.lt)
    )


def _bounds(says: Says, show: Callable[[Any], str]) -> str:
    """The bounds in words, as they follow the name of a type."""
    if says.ge is not None and says.le is not None:
        return f" from {show(says.ge)} to {show(says.le)}"
    told = [("of at least", says.ge), ("above", says.gt), ("of at most", says.le), ("below", says.lt)]
    shown = [f"{word} {show(bound)}" for word, bound in told if bound is not None]
    return f" {' and '.join(shown)}" if shown else ""


def _number_or_text(given: str) -> str | int:
    return int(given) if given.isdecimal() and len(given) <= _DIGITS else given


def _float_or_text(given: str) -> str | float:
    try:
        return float(given)
    except ValueError:
        return given

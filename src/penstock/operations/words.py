"""Values as a person reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Any

import msgspec

from penstock.model.spoken import duration

NOTHING = "-"
_UNKNOWN: tuple[Any, ...] = (None, "", [], {})
_REASONS = ("error", "reason", "says", "message", "why")
_NAMES = ("unit", "name", "schedule", "subscriber", "gate", "feed", "account", "machine")


def when(moment: datetime, now: datetime, *, short: bool = False) -> str:
    """Local time and how long ago: `2026-11-17 22:05 (3 min ago)`; short: `3 min ago`."""
    seconds = (now - moment).total_seconds()
    span = duration(seconds)
    relative = f"{span} ago" if seconds >= 0 else f"in {span}"
    return relative if short else f"{moment.astimezone():%Y-%m-%d %H:%M} ({relative})"


def shown(value: Any, show: str | None, now: datetime, *, short: bool = False) -> str:
    """The value of a column as text, not yet inert: see `fields.Show`."""
    if show == "share" and isinstance(value, float):
        said = f"{100 * value:.4g} %"
        return said if said != "100 %" or value >= 1 else "over 99.99 %"
    return word(value, now, short=short, exact=show == "reference")


def word(value: Any, now: datetime, *, short: bool = False, exact: bool = False) -> str:  # noqa: C901 - a line each
    """One value as text, not yet inert. `exact` leaves numbers without separators, as part of a name."""
    if value is None or value == "":
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, datetime):
        return when(value, now, short=short)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return duration(value.total_seconds())
    if isinstance(value, (int, float)):
        return str(value) if exact else _number(value)
    if isinstance(value, msgspec.Struct):
        return facts(msgspec.structs.asdict(value), now)
    if isinstance(value, Mapping):
        return facts(value, now)
    if isinstance(value, (list, tuple, set, frozenset)):
        return ", ".join(word(one, now, short=short, exact=exact) for one in value) or NOTHING
    return str(value)


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"  # noqa: PLR2004 - below it decimals say something


def facts(given: Mapping[Any, Any], now: datetime) -> str:
    """`feed demo, pages 12000`; what is not known is left out. Commas stand between facts, so numbers have none."""
    known = {name: value for name, value in given.items() if value not in _UNKNOWN}
    return ", ".join(f"{_spaced(str(name))} {word(value, now, exact=True)}" for name, value in known.items()) or NOTHING


def sentence(kind: str, payload: Any) -> str:
    """An event as a sentence: `schedule.failed` of `{"schedule": "nightly", …}` is `schedule nightly failed: …`.

    What its payload says besides follows in brackets.
    """
    if isinstance(payload, str):
        payload = _document(payload)
    subject, _, happened = kind.rpartition(".")
    if not isinstance(payload, Mapping):
        return f"{_spaced(kind)}: {payload}" if payload not in (None, "") else _spaced(kind)
    left = dict(payload)
    name = next((key for key in (subject, *_NAMES) if key in left and not isinstance(left[key], (Mapping, list))), None)
    told = [_spaced(subject)] if subject else []
    if name is not None:
        told.append(str(left.pop(name)).removeprefix(f"{subject}:"))
    told.append(_spaced(happened))
    reason = next((str(left.pop(key)) for key in _REASONS if left.get(key)), "")
    said = " ".join(filter(None, told)) + (f": {reason}" if reason else "")
    rest = _besides(left, said)
    return f"{said} ({', '.join(rest)})" if rest else said


def _besides(left: Mapping[str, Any], said: str) -> list[str]:
    """What is known and was not said yet, in these words."""
    found: list[str] = []
    for name, value in left.items():
        if isinstance(value, Mapping):
            found += _besides(value, " ".join([said, *found]))
        elif value not in _UNKNOWN and not (isinstance(value, str) and value in " ".join([said, *found])):
            found.append(f"{_spaced(name)} {_plain(value)}")
    return found


def _document(text: str) -> Any:
    import json

    try:
        return json.loads(text)
    except ValueError:
        return text


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_spaced(str(key))} {_plain(one)}" for key, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return str(value)


def _spaced(name: str) -> str:
    return re.sub(r"[._]+", " ", name)

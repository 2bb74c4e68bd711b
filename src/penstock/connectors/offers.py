"""Job offers as strangers write them, made fit to be kept: bounded texts, numbers and instants, or nothing."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from penstock.connectors.searches import Bad, Item
from penstock.model.clock import parse_instant, truncate
from penstock.model.errors import BadInstant

MOST_PAYLOAD = 1 << 18
"""How many characters of JSON a record may be."""

_LONGEST = {"description": 20_000, "url": 2_000}
_USUAL = 500
_LONGEST_ID = 200
_SHOWN = 2_000
_LARGEST_SALARY = 10**12
_HALVES = re.compile("[\ud800-\udfff]")
_NUL = r"\u0000"
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1
_AMOUNT = re.compile(r"[0-9](?:[0-9.,' \u00a0\u202f]*[0-9])?")
_GROUPED = re.compile(r"[0-9]{1,3}(?:[.,][0-9]{3})+")
_FIRST, _LAST = 1900, 9000  # years: beyond them arithmetic with days overflows


class NotJson(ValueError):
    """A text is not JSON; the message says why, in a few words."""


def decode(content: bytes) -> Any:
    """The JSON in a text, with marks for broken characters, which no database keeps. Raises NotJson."""
    try:
        return msgspec.json.decode(content)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        try:
            return _mended(json.loads(content.decode("utf-8", "replace")))
        except (ValueError, RecursionError) as error:
            raise NotJson(f"{error!s:.100}") from error


def text(value: Any, column: str) -> str | None:
    """A text as a column keeps it; None for what is empty, or no text."""
    if type(value) is int:
        value = str(value) if abs(value) < _LARGEST_SALARY else None
    if not isinstance(value, str):
        return None
    return keepable(value).strip()[: _LONGEST.get(column, _USUAL)].rstrip() or None


def number(value: Any) -> float | None:
    """A number, also from a text such as '24.000 €' or '1,250.50'; None for what is none, or no salary."""
    if isinstance(value, str):
        value = _read(value[:_USUAL])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # A whole number of hundreds of digits is no float.
    return float(value) if 0 <= value < _LARGEST_SALARY and math.isfinite(value) else None


def instant_of(value: Any) -> datetime | None:
    """An instant; None for what is none, or lies beyond reason."""
    if not isinstance(value, str):
        return None
    try:
        moment = truncate(parse_instant(value))
    except BadInstant:
        return None
    return moment if _FIRST <= moment.year <= _LAST else None


def identity(value: Any) -> str | None:
    """A record's id; None for what cannot be one."""
    if type(value) is int and 0 <= value < 1 << 64:
        value = str(value)
    usable = isinstance(value, str) and value.strip() and len(value) <= _LONGEST_ID and "\x00" not in value
    return value if usable else None


def offer(record: Mapping[str, Any], at: Any, values: tuple[Any, ...], payload: str) -> Item | Bad:
    """The offer that a record with such `values` is, or why it is none. `at` is its date as it came."""
    found, moment = identity(record.get("id")), instant_of(at)
    reason = None
    if found is None:
        reason = "it has no id" if record.get("id") in (None, "") else f"its id cannot be used: {record['id']!r:.60}"
    elif moment is None:
        reason = "it has no date" if at in (None, "") else f"its date cannot be read: {at!r:.60}"
    elif values[0] is None:
        reason = "it has no title"
    elif len(payload) > MOST_PAYLOAD:
        reason = f"it is longer than {MOST_PAYLOAD:,} characters"
    if found is None or moment is None or reason is not None:
        return Bad(keepable(reason or ""), payload[:_SHOWN], found, moment)
    return Item(found, moment, values, payload)


def bad(reason: str, record: Any) -> Bad:
    """A record that is no object at all."""
    return Bad(keepable(reason), line_of(record)[:_SHOWN])


def line_of(record: Any) -> str:
    """The record as a line of JSON that can be kept."""
    line = msgspec.json.encode(record).decode()
    return msgspec.json.encode(_mended(record)).decode() if _NUL in line else line


def keepable(value: str) -> str:
    """The text with a mark in place of each NUL, which no database keeps."""
    return value.replace("\x00", "\ufffd") if "\x00" in value else value


def _mended(value: Any) -> Any:
    """The document without what msgspec refuses to write, or a database to keep."""
    if isinstance(value, str):
        return keepable(_HALVES.sub("\ufffd", value))
    if isinstance(value, dict):
        return {_mended(key): _mended(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_mended(one) for one in value]
    if type(value) is int and not _LEAST <= value <= _MOST:
        return str(value)
    return value


@functools.lru_cache(maxsize=4_096)
def _read(value: str) -> float | None:
    """The first amount in a text: the last of two marks is the decimal one, and groups of three are thousands."""
    found = _AMOUNT.search(value)
    if found is None or value[: found.start()].rstrip().endswith("-"):
        return None
    amount = re.sub("['\\s]", "", found[0])
    comma, point = amount.rfind(","), amount.rfind(".")
    if comma >= 0 and point >= 0:
        thousands, decimal = (".", ",") if comma > point else (",", ".")
        amount = amount.replace(thousands, "").replace(decimal, ".")
    elif _GROUPED.fullmatch(amount):
        amount = amount.replace(",", "").replace(".", "")
    else:
        amount = amount.replace(",", ".")
    try:
        return float(amount)
    except ValueError:
        return None

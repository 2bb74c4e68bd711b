"""Values of a record as its columns take them.

A reader raises ValueError or OverflowError for what does not fit. What is missing, null or, where no text is wanted, an
empty text, is None. Texts have nothing in them that a database could not keep.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import tzinfo
from typing import Any

import msgspec

from penstock.connectors.rest_json.dates import instant_reader, read_date
from penstock.connectors.rest_json.settings import DateFormat, FieldType

Reader = Callable[[Any], Any]
_TEXTS = {str, type(None)}
_INT64 = 2**63
_MOST_EXACT = 2**53
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")
_FLAGS = {"true": True, "false": False}
_encode = msgspec.json.Encoder(order="deterministic").encode


def reader(kind: FieldType, form: DateFormat, zone: tzinfo) -> Reader:
    """The reader of a column.

    It makes str, int, float, bool, an instant (datetime in UTC), a date, or JSON as text with sorted names.
    """
    if kind == "instant":
        read = instant_reader(form, zone)
        return lambda value: None if value is None or value == "" else read(value)
    return _READERS[kind]


def read_all(kind: FieldType, read: Reader, values: list[Any]) -> list[Any]:
    """Many values of one column; mostly they are texts, which are as they are."""
    return values if kind == "text" and {*map(type, values)} <= _TEXTS else [*map(read, values)]


def _text(value: Any) -> str | None:
    if type(value) is str or value is None:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int or type(value) is float:
        return str(value)
    raise ValueError("not text")


def _integer(value: Any) -> int | None:
    if type(value) is float and value.is_integer() and abs(value) <= _MOST_EXACT:
        value = int(value)
    elif type(value) is str:
        if not value:
            return None
        if not _WHOLE.fullmatch(value):
            raise ValueError("not a whole number")
        value = int(value)
    if value is None or (type(value) is int and -_INT64 <= value < _INT64):
        return value
    raise ValueError("not a whole number of 64 bits")


def _number(value: Any) -> float | None:
    if value is None or value == "":
        return None
    if type(value) is str and not _NUMBER.fullmatch(value):
        raise ValueError("not a number")
    if type(value) is bool or not isinstance(value, int | float | str):
        raise ValueError("not a number")
    found = float(value)
    if not math.isfinite(found):
        raise ValueError("not a finite number")
    return found


def _boolean(value: Any) -> bool | None:
    if value is None or type(value) is bool:
        return value
    if value == "":
        return None
    if type(value) is not str or value.lower() not in _FLAGS:
        raise ValueError("not true or false")
    return _FLAGS[value.lower()]


def _date(value: Any) -> Any:
    return None if value is None or value == "" else read_date(value)


def _json(value: Any) -> str | None:
    return None if value is None else _encode(value).decode()


_READERS: Mapping[FieldType, Reader] = {
    "text": _text,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "date": _date,
    "json": _json,
}

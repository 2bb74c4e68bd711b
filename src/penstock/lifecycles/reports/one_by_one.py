"""The slow way from landed records to rows: one by one, so that what is wrong is told by record, column and value."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from penstock.connectors.records import BadReport, exact
from penstock.lifecycles.reports.shape import LARGEST, LONGEST_ID, Shape

_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=exact)


def read_row(shape: Shape, line: bytes, number: int) -> tuple[Any, ...]:
    """The row of a record, which is the report's `number`th. Raises BadReport."""
    record = _DECODER.decode(line)
    missing = [name for name in shape.needed if name not in record]
    if missing:
        has = ", ".join(sorted(record)[:20]) or "none"
        raise BadReport(f"record {number:,} has no column {', '.join(missing)}; its columns are {has}")
    when = record[shape.when]
    if when != shape.moment:
        raise BadReport(f"record {number:,} has the {shape.when} {when!r:.40}; the dataset is of {shape.moment}")
    return (
        *(_identifier(record, name, number) for name in shape.ids),
        *(_text(record, name, number) for name in shape.texts),
        _count(record, "impressions", number),
        _count(record, "clicks", number),
        _amount(record, "cost", number),
        _amount(record, "sales7d", number),
        _count(record, "purchases7d", number),
    )


def written(value: int | Decimal) -> str:
    """A number as text, the same for equal ones: 1.50 is 1.5."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _identifier(record: Mapping[str, Any], name: str, number: int) -> str:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | str) or not 0 < len(str(value)) <= LONGEST_ID:
        raise _wrong(record, name, number, "an id")
    return str(value)


def _text(record: Mapping[str, Any], name: str, number: int) -> str | None:
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(record, name, number, "text")
    return value


def _count(record: Mapping[str, Any], name: str, number: int) -> int:
    value = record[name]
    if isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < LARGEST:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= LARGEST:
        raise _wrong(record, name, number, "a whole number")
    return value


def _amount(record: Mapping[str, Any], name: str, number: int) -> str:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _wrong(record, name, number, "a number")
    return written(value) if isinstance(value, Decimal) else str(value)


def _wrong(record: Mapping[str, Any], name: str, number: int, wanted: str) -> BadReport:
    return BadReport(f"record {number:,}: {name} is {record[name]!r:.60}, not {wanted}")

"""From a landed record to a row: what a report must contain, and what a load changed.

A record that is not what was asked for ends in `BadReport`, which names the record, the column and what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import Any

import msgspec

from penstock.connectors.records import BadReport, exact
from penstock.lifecycles.refreshes import Digest
from penstock.lifecycles.reports.machine import Aggregation, EntityType, Report
from penstock.model.clock import instant_text

AT_ONCE = 500
_LARGEST = 1 << 62
_LONGEST_ID = 255  # it is part of a key, and PostgreSQL keeps no long keys
_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=exact)
_ENCODER = msgspec.json.Encoder(decimal_format="number")
_ENTITY = {EntityType.TARGET: "keywordId", EntityType.PRODUCT: "adId"}
_DESCRIBES = {
    EntityType.TARGET: {"entity": "keyword", "variant": "matchType"},
    EntityType.PRODUCT: {"entity": "advertisedAsin", "variant": "advertisedSku"},
}


def line(record: Mapping[str, Any]) -> bytes:
    """A record as it lands: one line of JSON, its decimals as they came."""
    return _ENCODER.encode(record)


@dataclass(slots=True)
class Totals:
    """What a load came to: enough to say whether another one differs, and by how much."""

    rows: int = 0
    impressions: int = 0
    clicks: int = 0
    cost: Decimal = field(default_factory=Decimal)
    sales: Decimal = field(default_factory=Decimal)
    _digest: Digest = field(default_factory=Digest)

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows += 1
        self.impressions += row["impressions"]
        self.clicks += row["clicks"]
        self.cost += row["cost"]
        self.sales += row["sales"]
        self._digest.add("\0".join(map(_canonical, row.values())))

    @property
    def digest(self) -> str:
        """The same for the same rows in any order."""
        return self._digest.text


class Loader:
    """Reads the lines of a landed report, checks them and makes rows of them, so many at a time."""

    def __init__(self, report: Report, lines: Iterator[bytes]) -> None:
        self.totals = Totals()
        self._lines = lines
        self._row = _reader(report)

    def some(self) -> list[dict[str, Any]]:
        """The next rows; none at the end. Raises BadReport. It reads a file: run it where blocking work runs."""
        rows = []
        for number, text in enumerate(islice(self._lines, AT_ONCE), self.totals.rows + 1):
            row = self._row(_DECODER.decode(text), number)
            self.totals.add(row)
            rows.append(row)
        return rows


def _reader(report: Report) -> Callable[[Mapping[str, Any], int], dict[str, Any]]:
    entity, describes = _ENTITY[report.entity_type], _DESCRIBES[report.entity_type]
    hourly = report.aggregation is Aggregation.HOURLY
    when, moment = ("hour", instant_text(report.timestamp)) if hourly else ("date", report.report_date.isoformat())
    needed = [when, "campaignId", "adGroupId", entity, "impressions", "clicks", "cost", "sales7d", "purchases7d"]
    if not hourly:  # the stream does not describe every entity
        needed += describes.values()

    def read(record: Mapping[str, Any], number: int) -> dict[str, Any]:
        missing = [name for name in needed if name not in record]
        if missing:
            has = ", ".join(sorted(record)[:20]) or "none"
            raise BadReport(f"record {number:,} has no column {', '.join(missing)}; its columns are {has}")
        if record[when] != moment:
            raise BadReport(f"record {number:,} has the {when} {record[when]!r:.40}; the dataset is of {moment}")
        return {
            "campaign_id": _identifier(record, "campaignId", number),
            "ad_group_id": _identifier(record, "adGroupId", number),
            "entity_id": _identifier(record, entity, number),
            **{name: _text(record, column, number) for name, column in describes.items()},
            "impressions": _count(record, "impressions", number),
            "clicks": _count(record, "clicks", number),
            "cost": _amount(record, "cost", number),
            "sales": _amount(record, "sales7d", number),
            "purchases": _count(record, "purchases7d", number),
        }

    return read


def _identifier(record: Mapping[str, Any], name: str, number: int) -> str:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | str) or not 0 < len(str(value)) <= _LONGEST_ID:
        raise _wrong(record, name, number, "an id")
    return str(value)


def _text(record: Mapping[str, Any], name: str, number: int) -> str | None:
    value = record.get(name)
    if value is not None and not isinstance(value, str):
        raise _wrong(record, name, number, "text")
    return value


def _count(record: Mapping[str, Any], name: str, number: int) -> int:
    value = record[name]
    if isinstance(value, Decimal) and value == value.to_integral_value() and abs(value) < _LARGEST:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= _LARGEST:
        raise _wrong(record, name, number, "a whole number")
    return value


def _amount(record: Mapping[str, Any], name: str, number: int) -> Decimal:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _wrong(record, name, number, "a number")
    return Decimal(value)


def _canonical(value: Any) -> str:
    """The same for equal values: 1.50 is 1.5."""
    return f"{value.normalize():f}" if isinstance(value, Decimal) else str(value)


def _wrong(record: Mapping[str, Any], name: str, number: int, wanted: str) -> BadReport:
    return BadReport(f"record {number:,}: {name} is {record[name]!r:.60}, not {wanted}")

"""Records of an answer as items: their id, their date, the values of their columns, and the record as a line of JSON.

Nothing that a record may hold raises: what cannot be used is `Bad`, with its reason. A reason names the place and not
the value, which may be anybody's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.connectors.rest_json.columns import Reader, read_all, reader
from penstock.connectors.rest_json.dates import place_reader
from penstock.connectors.rest_json.paths import Gatherer, Getter, gatherer, getter
from penstock.connectors.rest_json.settings import FieldType, RestSettings
from penstock.connectors.searches import OFFER_COLUMNS, Bad, Item
from penstock.model.cadence import parse_zone

LONGEST_ID = 300
MOST_BYTES = 200_000
"""How large the payload of a record may be."""
UNREADABLE = "\ufffd"
"""What stands for a character that no database can keep."""

_SHOWN = 1_000
_WIDEST = 4
"""So many bytes has a character at most."""
_OFFER_TYPES: dict[str, FieldType] = {"salary_min": "number", "salary_max": "number", "published_at": "instant"}
_WANTED: dict[FieldType, str] = {
    "text": "text",
    "integer": "a whole number of 64 bits",
    "number": "a number",
    "boolean": "true or false",
    "instant": "an instant",
    "date": "a date",
    "json": "JSON",
}
_encode = msgspec.json.Encoder().encode
_Column = tuple[str, FieldType, Getter, Reader, Gatherer]


class Mapper:
    """Makes items of one API's records."""

    def __init__(self, settings: RestSettings) -> None:
        zone = parse_zone(settings.time_zone)
        self._settings = settings
        self._id, self._date = getter(settings.id), getter(settings.date)
        self._instant = place_reader(settings.date_format, zone)
        if settings.table is not None:
            given = {name: (field.path, field.type, field.format) for name, field in settings.fields.items()}
        else:
            given = {
                name: (path, _OFFER_TYPES.get(name, "text"), settings.date_format)
                for name, path in settings.offer.items()
            }
        known: list[_Column] = [
            (path, kind, getter(path), reader(kind, form, zone), gatherer(path)) for path, kind, form in given.values()
        ]
        self._columns = known
        self._getters = [(column[2], column[3]) for column in known]
        self._order = None if settings.table is not None else _places(list(given), OFFER_COLUMNS)
        self._ids, self._dates = gatherer(settings.id), gatherer(settings.date)
        #: Columns that say the same as the date.
        self._dated = [
            kind == "instant" and (path, form) == (settings.date, settings.date_format)
            for path, kind, form in given.values()
        ]

    def items(self, records: Sequence[Any], lines: Sequence[str] | None = None) -> Sequence[Item | Bad]:
        """An item for each record, in their order; `lines` are the records as they came, if they are to be kept so."""
        return self._all_good(records, lines) or [self.item(record) for record in records]

    def _all_good(self, records: Sequence[Any], lines: Sequence[str] | None) -> Sequence[Item]:
        """The items of records of which none is bad, made column by column; none at all where one is, or may be."""
        if {*map(type, records)} != {dict}:
            return ()
        ids = self._ids(records)
        if {*map(type, ids)} != {str} or not 0 < min(map(len, ids)) <= max(map(len, ids)) <= LONGEST_ID:
            return ()
        if lines is None or len(lines) != len(records):
            lines = [_encode(record).decode() for record in records]
        if not _keepable("".join(ids)) or max(map(len, lines)) * _WIDEST > MOST_BYTES:
            return ()
        try:
            dates = [*map(self._instant, self._dates(records))]
            columns = [
                dates if dated else read_all(kind, read, gather(records))
                for (_, kind, _, read, gather), dated in zip(self._columns, self._dated, strict=True)
            ]
        except (ValueError, OverflowError):
            return ()
        if self._order is not None:
            columns.append([None] * len(records))
            columns = [columns[place] for place in self._order]
        return [*map(Item, ids, dates, zip(*columns, strict=True), lines)]

    def item(self, record: Any) -> Item | Bad:
        """One record."""
        payload = _encode(record)
        if type(record) is not dict:
            return self._bad("the record is not an object", payload)
        found = self.record_id(record)
        if found is None:
            return self._bad(self._id_fault(self._id(record)), payload, at=self.date_of(record))
        try:
            at = self._instant(self._date(record))
        except (ValueError, OverflowError):
            return self._bad(self._date_fault(record), payload, found)
        if len(payload) > MOST_BYTES:
            return self._bad(f"the record has {len(payload):,} bytes; {MOST_BYTES:,} is the most", payload, found, at)
        try:
            values = [read(get(record)) for get, read in self._getters]
        except (ValueError, OverflowError):
            return self._bad("; ".join(self._column_faults(record)), payload, found, at)
        if self._order is not None:
            values.append(None)
            values = [values[place] for place in self._order]
        return Item(found, at, tuple(values), payload.decode())

    def record_id(self, record: Any) -> str | None:
        """The id of a record; None where it has none that can be used."""
        found = self._id(record)
        if type(found) is int:
            found = str(found)
        usable = type(found) is str and 0 < len(found) <= LONGEST_ID and _keepable(found)
        return found if usable else None

    def date_of(self, record: Any) -> datetime | None:
        """The date of a record; None where it has none that can be read."""
        try:
            return self._instant(self._date(record))
        except (ValueError, OverflowError):
            return None

    def _id_fault(self, found: Any) -> str:
        place = f"the id at {self._settings.id!r}"
        if found is None or found == "":
            return f"there is no id at {self._settings.id!r}"
        if type(found) is not str:
            return f"{place} is neither text nor a whole number"
        if len(found) > LONGEST_ID:
            return f"{place} has {len(found):,} characters; {LONGEST_ID} is the most"
        return f"{place} has characters that cannot be kept"

    def _date_fault(self, record: Any) -> str:
        if self._date(record) in (None, ""):
            return f"there is no date at {self._settings.date!r}"
        return f"the date at {self._settings.date!r} cannot be read as {self._settings.date_format!r}"

    def _column_faults(self, record: Any) -> Iterator[str]:
        for path, kind, get, read, _ in self._columns:
            try:
                read(get(record))
            except (ValueError, OverflowError):
                yield f"{path!r} is not {_WANTED[kind]}"

    def _bad(self, reason: str, payload: bytes, found: Any = None, at: datetime | None = None) -> Bad:
        if len(payload) > MOST_BYTES:
            payload = _encode({"beginning": payload[:_SHOWN].decode(errors="replace"), "bytes": len(payload)})
        return Bad(reason, payload.decode(), found, at)


def _places(given: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Where each wanted column is among the given; one past them where it is not."""
    return [given.index(name) if name in given else len(given) for name in wanted]


def _keepable(text: str) -> bool:
    return text.isprintable() and UNREADABLE not in text

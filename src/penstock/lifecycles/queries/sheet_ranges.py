"""Which cells of a tab are written: pure, from what was read of it and what is wanted.

Columns are found by their headers and rows by their keys, wherever people moved them. What is not ours is not written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any, TypeAlias

from msgspec import Struct

from penstock.connectors.google_sheets.ranges import Values
from penstock.model.clock import instant_text
from penstock.model.errors import Rejected

KEY, FEEDBACK = "Penstock key", "Feedback"
"""The headers of the column that tells rows apart, and of the one that is people's."""
MOST_FEEDBACK = 2_000
MOST_ROWS = 500
MOST_BYTES = 1_000_000
"""How many rows one call writes at most, and how many bytes, about."""

_MOST_UNITS = 50_000  # of UTF-16, in which Google counts
_EXACT = 2**53
_SPACE = re.compile(r"[\t\r\n\v\f\x85\u2028\u2029]+")
_CONTROL = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

Cells: TypeAlias = Mapping[int, Any]
"""One row: what was read, by column; what is empty may be absent."""


class NoKeyColumn(Rejected):
    """A tab has content, and no column of keys: nobody can tell its rows apart."""


class Layout(Struct, frozen=True):
    """Where the columns of a tab are. `missing` are headers of ours that are to be written, by column."""

    tab: str
    key: int
    feedback: int
    columns: tuple[int, ...]
    missing: Mapping[int, str]

    @property
    def read(self) -> tuple[int, ...]:
        """The columns that are read, in the order of the sheet."""
        return tuple(sorted({self.key, self.feedback, *self.columns}))

    @property
    def width(self) -> int:
        """The last column that is ours."""
        return self.read[-1]


class Keys(Struct):
    """The keys of a tab: the first row of each, which ones are there again, and the last row that has one."""

    first: dict[str, int]
    doubled: set[str]
    last: int

    def owns(self, key: str, row: int) -> bool:
        """Whether a row is the one that counts for its key."""
        return key not in self.doubled or self.first.get(key) == row


def lay_out(tab: str, header: Sequence[Any], headers: Sequence[str], used: int) -> Layout:
    """Where columns are, and where missing ones are added: after `used`, the last column that has anything in it.

    Raises NoKeyColumn for a tab with content and without keys.
    """
    found: dict[str, int] = {}
    for column, title in enumerate(header, 1):
        found.setdefault(_title(title), column)
    if used and _title(KEY) not in found:
        raise NoKeyColumn(
            f"the tab {tab!r} has content, and no column with the header {KEY!r} in its first row: nothing was written;"
            " put the header back above the keys, or empty the tab"
        )
    end = max(used, len(header))
    missing: dict[int, str] = {}
    for name in (KEY, *headers, FEEDBACK):
        if _title(name) not in found:
            end += 1
            found[_title(name)] = end
            missing[end] = name
    columns = tuple(found[_title(name)] for name in headers)
    return Layout(tab, found[_title(KEY)], found[_title(FEEDBACK)], columns, missing)


def _title(text: Any) -> str:
    return str(text).strip().casefold()


def runs(columns: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Columns that stand side by side, as first and last."""
    first = last = None
    for column in sorted(set(columns)):
        if last is not None and first is not None and column != last + 1:
            yield first, last
            first = None
        first, last = column if first is None else first, column
    if first is not None and last is not None:
        yield first, last


def headers_of(layout: Layout) -> list[Values]:
    """The headers that are missing, to be written."""
    return [
        Values(layout.tab, 1, first, [[layout.missing[column] for column in range(first, last + 1)]])
        for first, last in runs(layout.missing)
    ]


def read_keys(rows: Sequence[Sequence[Any]], first_row: int = 2) -> Keys:
    """The keys in a column, as it was read from that row on."""
    found = Keys({}, set(), first_row - 1)
    for row, cells in enumerate(rows, first_row):
        key = key_of(cells[0]) if cells else ""
        if not key:
            continue
        found.last = row
        if key in found.first:
            found.doubled.add(key)
        else:
            found.first[key] = row
    return found


def key_of(value: Any) -> str:
    """The key in a cell; a number where somebody typed it anew."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def block(read: Sequence[Sequence[Sequence[Any]]], columns: Sequence[int], count: int) -> Sequence[Cells]:
    """Rows, from what was read of each run of the columns."""
    found: list[dict[int, Any]] = [{} for _ in range(count)]
    for (first, _), rows in zip(runs(columns), read, strict=True):
        for cells, row in zip(found, rows, strict=False):
            cells.update(enumerate(row, first))
    return found


def changes(
    layout: Layout, first_row: int, rows: Sequence[Cells], wanted: Mapping[str, Sequence[Any]], keys: Keys
) -> list[Values]:
    """What is written so that rows that are there become what is wanted: the cells that differ, never keys."""
    found = []
    for row, cells in enumerate(rows, first_row):
        key = key_of(cells.get(layout.key, ""))
        if key not in wanted or not keys.owns(key, row):
            continue
        values = dict(zip(layout.columns, wanted[key], strict=True))
        other = [column for column, value in values.items() if cells.get(column, "") != value]
        for first, last in runs(other):
            found.append(Values(layout.tab, row, first, [[values[column] for column in range(first, last + 1)]]))
    return found


def additions(layout: Layout, first_row: int, rows: Sequence[tuple[str, Sequence[Any]]]) -> list[Values]:
    """What is written so that rows are added from that row on: their keys and our columns."""
    whole = [{layout.key: key, **dict(zip(layout.columns, cells, strict=True))} for key, cells in rows]
    return [
        Values(layout.tab, first_row, first, [[row[column] for column in range(first, last + 1)] for row in whole])
        for first, last in runs({layout.key, *layout.columns})
    ]


def in_place(read: Sequence[Sequence[Any]], first_row: int, expected: Mapping[int, str]) -> bool:
    """Whether the rows that were written have the keys they were written for; the key column as it was read back."""
    found = {row: key_of(cells[0]) for row, cells in enumerate(read, first_row) if cells}
    return all(found.get(row) == key for row, key in expected.items())


def portions(rows: Sequence[tuple[str, Sequence[Any]]]) -> Iterator[list[tuple[str, Sequence[Any]]]]:
    """Rows in parts that one call can write."""
    part: list[tuple[str, Sequence[Any]]] = []
    size = 0
    for one in rows:
        own = sum(4 * len(cell) if isinstance(cell, str) else 32 for cell in one[1])
        if part and (size + own > MOST_BYTES or len(part) == MOST_ROWS):
            yield part
            part, size = [], 0
        part.append(one)
        size += own
    if part:
        yield part


def cell(value: Any) -> Any:
    """A value as it stands in a cell: numbers as numbers, instants in ISO form, texts on one line without controls."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else ""
    if isinstance(value, datetime):
        return instant_text(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | tuple):
        return plain(", ".join(str(part) for part in value))
    return plain(str(value))


def plain(text: str) -> str:
    """A text on one line, without control characters, as long as a cell may be."""
    short = _CONTROL.sub("", _SPACE.sub(" ", text)).strip()
    if len(short) * 2 <= _MOST_UNITS:
        return short
    return short.encode("utf-16-le")[: 2 * _MOST_UNITS].decode("utf-16-le", "ignore").rstrip()


def said(value: Any) -> str:
    """What people wrote, as it is kept."""
    return plain(key_of(value))[:MOST_FEEDBACK]


def spoken(rows: Sequence[Cells], layout: Layout, first_row: int, keys: Keys, known: Collection[str]) -> dict[str, str]:
    """The feedback in these rows, by key; an empty text where there is none."""
    found = {}
    for row, cells in enumerate(rows, first_row):
        key = key_of(cells.get(layout.key, ""))
        if key in known and keys.owns(key, row):
            found[key] = said(cells.get(layout.feedback, ""))
    return found

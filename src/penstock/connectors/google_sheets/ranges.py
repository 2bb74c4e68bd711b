"""Places in a spreadsheet in Google's A1 notation, and what is written there. Rows and columns count from 1."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

MOST_BYTES = 2_000_000
"""How large the body of a call may be."""
_LETTERS = 26


class Area(msgspec.Struct, frozen=True):
    """A rectangle of one tab, its ends included."""

    tab: str
    first_row: int
    first_column: int
    last_row: int
    last_column: int

    @property
    def text(self) -> str:
        """`'Offers'!B2:D9`."""
        name = self.tab.replace("'", "''")
        start, end = letters(self.first_column), letters(self.last_column)
        return f"'{name}'!{start}{self.first_row}:{end}{self.last_row}"


class Values(msgspec.Struct, frozen=True):
    """Rows of cells, and the place of the first: texts, numbers and booleans. An empty text empties a cell."""

    tab: str
    row: int
    column: int
    rows: Sequence[Sequence[Any]]

    @property
    def area(self) -> Area:
        width = max(map(len, self.rows))
        return Area(self.tab, self.row, self.column, self.row + len(self.rows) - 1, self.column + width - 1)

    def wire(self) -> dict[str, Any]:
        """As Google takes it."""
        return {"range": self.area.text, "majorDimension": "ROWS", "values": self.rows}

    @property
    def size(self) -> int:
        """How many bytes it adds to the body of a call."""
        return len(msgspec.json.encode(self.wire())) + 1


def letters(column: int) -> str:
    """The name of a column: 1 is A, 27 is AA."""
    if column < 1:
        raise ValueError(f"there is no column {column}")
    name = ""
    while column:
        column, rest = divmod(column - 1, _LETTERS)
        name = chr(ord("A") + rest) + name
    return name


def number(name: str) -> int:
    """The number of a column: A is 1, AA is 27."""
    found = 0
    for letter in name:
        found = found * _LETTERS + ord(letter) - ord("A") + 1
    return found


def split(values: Sequence[Values], most_bytes: int) -> Iterator[list[Values]]:
    """The same in parts, none of which is larger than that unless it is a single one."""
    part: list[Values] = []
    size = 0
    for one in values:
        if part and size + one.size > most_bytes:
            yield part
            part, size = [], 0
        part.append(one)
        size += one.size
    if part:
        yield part

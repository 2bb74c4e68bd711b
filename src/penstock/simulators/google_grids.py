"""Spreadsheets as Google keeps them: tabs, grids of cells, and what people do to them by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.connectors.google_sheets.ranges import letters, number

ROWS, COLUMNS = 1_000, 26
"""The size of a new tab."""
MOST_CELLS = 10_000_000
MOST_CHARACTERS = 50_000

_A1 = re.compile(r"(?:'((?:[^']|'')+)'|([^'!]+))(?:!([A-Z]{1,3})?([0-9]{1,8})?(:([A-Z]{1,3})?([0-9]{1,8})?)?)?")
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]+)?")
_Span = tuple[int, int, int, int]


class BadRequest(ValueError):
    """What Google answers with a 400."""


@dataclass(slots=True)
class Grid:
    """One tab. Cells that are empty are not kept; rows and columns count from 1."""

    title: str
    sheet_id: int
    rows: int = ROWS
    columns: int = COLUMNS
    #: By row and column.
    cells: dict[int, dict[int, Any]] = field(default_factory=dict)

    def values(self) -> list[list[Any]]:
        """Everything, as it is read: without empty ends."""
        return self.read((1, 1, self.rows, self.columns))

    def read(self, span: _Span) -> list[list[Any]]:
        """The rows of a rectangle without empty ends."""
        top, left, bottom, right = span
        found: list[list[Any]] = []
        end = 0
        for row in range(top, min(bottom, max(self.cells, default=0)) + 1):
            cells = self.cells.get(row, {})
            last = max((column for column in cells if left <= column <= right), default=0)
            found.append([cells.get(column, "") for column in range(left, last + 1)])
            end = len(found) if last else end
        return found[:end]

    def write(self, row: int, column: int, value: Any) -> None:
        """Set a cell; None leaves it as it is, and an empty text empties it."""
        if value is None:
            return
        cells = self.cells.setdefault(row, {})
        if value == "":
            cells.pop(column, None)
        else:
            cells[column] = value

    # What people do.

    def put(self, row: int, column: int, value: Any) -> None:
        """Type into a cell."""
        self.write(row, column, value)

    def column(self, header: str) -> int:
        """Where a column is."""
        return next(column for column, value in self.cells[1].items() if value == header)

    def shuffle(self, order: Callable[[list[list[Any]]], Sequence[list[Any]]]) -> None:
        """Put the rows below the header into another order, or others in their place."""
        header, *rest = self._whole()
        self._fill([header, *order(rest)])

    def sort(self, header: str, *, reverse: bool = False) -> None:
        """Sort by a column, as the menu does: the header stays, and empty cells come last."""
        place = self.column(header) - 1
        self.shuffle(
            lambda rows: (
                sorted([row for row in rows if row[place] != ""], key=lambda row: str(row[place]), reverse=reverse)
                + [row for row in rows if row[place] == ""]
            )
        )

    def move_column(self, header: str, to: int) -> None:
        """Drag a column to another place."""
        place = self.column(header) - 1
        rows = self._whole()
        for row in rows:
            row.insert(to - 1, row.pop(place))
        self._fill(rows)

    def delete_row(self, row: int) -> None:
        """Delete a row; what is below moves up."""
        rows = self._whole()
        del rows[row - 1]
        self._fill(rows)

    def _whole(self) -> list[list[Any]]:
        width = max((column for cells in self.cells.values() for column in cells), default=0)
        return [[*row, *([""] * (width - len(row)))] for row in self.values()]

    def _fill(self, rows: Sequence[Sequence[Any]]) -> None:
        self.cells = {
            row: {column: value for column, value in enumerate(listed, 1) if value != ""}
            for row, listed in enumerate(rows, 1)
        }


@dataclass(slots=True)
class Spreadsheet:
    """The tabs of a spreadsheet, and who may use it."""

    editors: set[str]
    grids: list[Grid] = field(default_factory=lambda: [Grid("Sheet1", 0)])

    def grid(self, title: str) -> Grid:
        """A tab by its name. Raises BadRequest."""
        found = next((grid for grid in self.grids if grid.title == title), None)
        if found is None:
            raise BadRequest(f"Unable to parse range: {title}")
        return found

    def span(self, text: str) -> tuple[Grid, _Span]:
        """A range in A1 notation. Raises BadRequest for one that is none, or not on the grid."""
        match = _A1.fullmatch(text)
        if match is None:
            raise BadRequest(f"Unable to parse range: {text}")
        quoted, plain, column, row, colon, last_column, last_row = match.groups()
        grid = self.grid(plain if quoted is None else quoted.replace("''", "'"))
        top, left = int(row or 1), number(column or "A")
        if colon is None and (column or row):
            last_column, last_row = column, row
        bottom = int(last_row) if last_row else grid.rows
        right = number(last_column) if last_column else grid.columns
        if not (1 <= top <= bottom <= grid.rows and 1 <= left <= right <= grid.columns):
            limits = f"Max rows: {grid.rows}, max columns: {grid.columns}"
            raise BadRequest(f"Range ({text}) exceeds grid limits. {limits}")
        return grid, (top, left, bottom, right)

    def update(self, data: Sequence[dict[str, Any]], option: str) -> int:
        """Set cells, all of them or none. Raises BadRequest."""
        found: list[tuple[Grid, int, int, Any]] = []
        for one in data:
            grid, (top, left, bottom, right) = self.span(one["range"])
            for row, listed in enumerate(one["values"], top):
                for column, value in enumerate(listed, left):
                    if row > bottom or column > right:
                        raise BadRequest(f"Requested writing within range [{one['range']}], but tried writing to more")
                    found.append((grid, row, column, _entered(value, option, row, column)))
        for grid, row, column, value in found:
            grid.write(row, column, value)
        return len(found)

    def change(self, request: dict[str, Any]) -> dict[str, Any]:
        """One of the requests of `spreadsheets.batchUpdate`. Raises BadRequest."""
        if "addSheet" in request:
            title = request["addSheet"]["properties"]["title"]
            if any(grid.title == title for grid in self.grids):
                raise BadRequest(f'A sheet with the name "{title}" already exists. Please enter another name.')
            self.grids.append(Grid(title, 1 + max(grid.sheet_id for grid in self.grids)))
            return {"addSheet": {"properties": properties(self.grids[-1])}}
        if "appendDimension" in request:
            asked = request["appendDimension"]
            grid = next((grid for grid in self.grids if grid.sheet_id == asked["sheetId"]), None)
            if grid is None:
                raise BadRequest(f"No grid with id: {asked['sheetId']}")
            more = (asked["length"], 0) if asked["dimension"] == "ROWS" else (0, asked["length"])
            rows, columns = grid.rows + more[0], grid.columns + more[1]
            if rows * columns > MOST_CELLS:
                raise BadRequest(f"This action would increase the number of cells above the limit of {MOST_CELLS}")
            grid.rows, grid.columns = rows, columns
            return {}
        raise BadRequest(f"Unknown request: {', '.join(request)}")


def properties(grid: Grid) -> dict[str, Any]:
    """What Google says of a tab."""
    size = {"rowCount": grid.rows, "columnCount": grid.columns}
    return {"sheetId": grid.sheet_id, "title": grid.title, "sheetType": "GRID", "gridProperties": size}


def _entered(value: Any, option: str, row: int, column: int) -> Any:
    """What becomes of a value: RAW keeps it, USER_ENTERED reads it as if somebody had typed it."""
    if isinstance(value, dict | list):
        raise BadRequest(f"Invalid values[{row}][{column}]: a cell is a text, a number or a boolean")
    if isinstance(value, str) and len(value) > MOST_CHARACTERS:
        place = f"{letters(column)}{row}"
        raise BadRequest(f"Your input contains more than the maximum of {MOST_CHARACTERS} characters ({place})")
    if option == "RAW" or not isinstance(value, str):
        return value
    if value.startswith("="):
        return f"computed: {value}"
    if value.startswith("'"):
        return value[1:]
    return float(value) if _NUMBER.fullmatch(value) else value

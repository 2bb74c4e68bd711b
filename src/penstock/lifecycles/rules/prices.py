"""Price lists: a CSV of sku, price, compare_at_price and, if it has one, currency. All errors at once, by line."""

from __future__ import annotations

import csv
from collections.abc import Container, Iterable, Mapping
from decimal import Decimal

from penstock.lifecycles.rules.definition import ListedPrice
from penstock.lifecycles.rules.money import BadMoney, parse
from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.model.near import near

COLUMNS = ("sku", "price", "compare_at_price", "currency")
_NEEDED = ("sku", "price")
_LONGEST_SKU = 100
_MOST_TOLD = 20
_SHOWN = 40


class BadPrices(UsageError):
    """A price list that cannot be taken; one line for each thing that is wrong, with its place in the file."""


def read_prices(
    lines: Iterable[str], currency: str, *, path_text: str = "prices", known: Container[str] | None = None
) -> dict[str, ListedPrice]:
    """Prices by SKU. `known` are the SKUs of the catalogue, where they are to be compared. Raises BadPrices."""
    reading = _Reading(currency, path_text, known)
    try:
        rows = csv.reader(lines, strict=True)
        reading.head(next(rows, []))
        for row in rows:
            if any(cell.strip() for cell in row):
                reading.row(rows.line_num, row)
    except csv.Error as error:
        reading.say(rows.line_num, f"this is not CSV: {error}")
    except UnicodeDecodeError:
        reading.say(rows.line_num + 1, "this is not text in UTF-8")
    return reading.found()


class _Reading:
    """One pass over a list; gathers errors."""

    def __init__(self, currency: str, path_text: str, known: Container[str] | None) -> None:
        self._currency = currency
        self._path_text = path_text
        self._known = known
        self._errors: list[str] = []
        self._columns: list[str] = []
        self._lines: dict[str, int] = {}
        self._prices: dict[str, ListedPrice] = {}

    def found(self) -> dict[str, ListedPrice]:
        if not self._errors and not self._lines:
            self.say(2, "the list has no prices")
        if self._errors:
            more = [f"and {len(self._errors) - _MOST_TOLD} more"] if len(self._errors) > _MOST_TOLD else []
            raise BadPrices("\n".join(self._errors[:_MOST_TOLD] + more))
        return self._prices

    def head(self, row: list[str]) -> None:
        """The first line: which columns there are. Raises BadPrices, because nothing can be read without it."""
        self._columns = [cell.strip().removeprefix("\ufeff").lower() for cell in row]
        if len(row) == 1 and (";" in row[0] or "\t" in row[0]):
            self.say(1, "the cells must be separated by commas")
            self.found()
        for name in self._columns:
            if name not in COLUMNS:
                close = near(name, COLUMNS)
                meant = f"did you mean {close[0]}?" if close else f"the columns are {', '.join(COLUMNS)}"
                self.say(1, f"{_shown(name)} is not a column; {meant}")
        for name in COLUMNS:
            if self._columns.count(name) > 1:
                self.say(1, f"the column {name} stands there twice")
            if name in _NEEDED and name not in self._columns:
                self.say(1, f"the column {name} is missing")
        if self._errors:
            self.found()

    def row(self, line: int, row: list[str]) -> None:
        if len(row) != len(self._columns):
            self.say(line, f"{len(row)} cells, and the first line has {len(self._columns)}")
            return
        cells = {name: cell.strip() for name, cell in zip(self._columns, row, strict=True)}
        sku, currency = cells["sku"], cells.get("currency", "")
        if not sku or len(sku) > _LONGEST_SKU or sku != inert(sku):
            self.say(line, f"{_shown(sku)} is not a SKU of 1 to {_LONGEST_SKU} characters")
            return
        if sku in self._lines:
            self.say(line, f"{_shown(sku)} has a price in line {self._lines[sku]:,} already")
            return
        self._lines[sku] = line
        if self._known is not None and sku not in self._known:
            self.say(line, f"{_shown(sku)} is not in the catalogue")
        if currency and currency != self._currency:
            self.say(line, f"{_shown(sku)} is in {_shown(currency)}, and the rule in {self._currency}")
            return
        self._keep(line, sku, cells)

    def _keep(self, line: int, sku: str, cells: Mapping[str, str]) -> None:
        price, compare_at = cells["price"], cells.get("compare_at_price") or None
        try:
            amount = parse(price, self._currency)
            above = None if compare_at is None else parse(compare_at, self._currency)
        except BadMoney as error:
            self.say(line, f"{_shown(sku)}: {error}")
            return
        if above is not None and above <= amount:
            self.say(line, f"{_shown(sku)}: the compare-at price {compare_at} is not above the price {price}")
            return
        self._prices[sku] = ListedPrice(
            price=Decimal(price), compare_at_price=None if compare_at is None else Decimal(compare_at)
        )

    def say(self, line: int, error: str) -> None:
        self._errors.append(f"{self._path_text}, line {line:,}: {error}")


def _shown(text: str) -> str:
    return f'"{inert(text[:_SHOWN])}{"…" if len(text) > _SHOWN else ""}"'

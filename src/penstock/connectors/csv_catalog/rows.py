"""The rows of a price list: which columns it has, what a row says, and where in the file it lies.

A row is known by its bytes, so that what is not changed is written back as it was: quotes, spaces, line ends and all.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from io import StringIO
from typing import BinaryIO

from penstock.connectors.prices import Item, is_price
from penstock.model.errors import Fatal

REQUIRED = ("sku", "price")
COLUMNS = (
    *("sku", "product_id", "variant_id", "title", "vendor", "tags", "price", "compare_at_price"),
    *("cost", "reference_price", "currency"),
)
_MOST_PROBLEMS = 20
_BOM = "\ufeff"
_TAGS = re.compile(r"[|;]")
_CURRENCY = re.compile(r"[A-Z]{3}")


class BadCatalogue(Fatal):
    """The file is no price list that can be used; `problems` says what is wrong, and in which line."""

    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Form:
    """How the file is written: what separates columns, and which column is where."""

    delimiter: str
    places: dict[str, int]
    width: int

    @classmethod
    def read(cls, header: str) -> Form:
        """From the first line. Raises BadCatalogue."""
        best: list[str] = []
        for delimiter in (",", ";"):
            try:
                names = [name.strip().lower() for name in next(csv.reader([header], delimiter=delimiter), [])]
            except csv.Error as error:
                raise bad([f"line 1: {error}"]) from error
            if all(name in names for name in REQUIRED):
                twice = [name for name in COLUMNS if names.count(name) > 1]
                if twice:
                    raise bad([f"line 1: the column {twice[0]} is there twice"])
                places = {name: place for place, name in enumerate(names) if name in COLUMNS}
                return cls(delimiter, places, len(names))
            best = max(best, names, key=len)
        missing = ", ".join(name for name in REQUIRED if name not in best)
        raise bad([f"line 1: the column {missing} is missing; there are: {', '.join(best)[:200] or 'none'}"])

    def cell(self, row: Sequence[str], name: str) -> str:
        """What a row has in a column; nothing where there is no such column."""
        place = self.places.get(name)
        return "" if place is None else row[place].strip()

    def variant_id(self, row: Sequence[str]) -> str:
        return self.cell(row, "variant_id") or self.cell(row, "sku")

    def product_id(self, row: Sequence[str]) -> str:
        return self.cell(row, "product_id") or self.cell(row, "sku")

    def item(self, row: Sequence[str]) -> Item:
        """The row as the catalogue has it."""
        return Item(
            self.variant_id(row),
            self.product_id(row),
            self.cell(row, "sku"),
            self.cell(row, "title"),
            self.cell(row, "vendor"),
            tuple(filter(None, map(str.strip, _TAGS.split(self.cell(row, "tags"))))),
            "active",
            self.cell(row, "price"),
            self.cell(row, "compare_at_price") or None,
            self.cell(row, "cost") or None,
            self.cell(row, "reference_price") or None,
        )

    def parse(self, text: str) -> list[str]:
        """The cells of one row."""
        return next(csv.reader(StringIO(text, newline="\n"), delimiter=self.delimiter, strict=True), [])

    def replace(self, text: str, cells: dict[str, str]) -> str:
        """The row with other texts in some columns; everything else stays as it is, character by character."""
        found = re.compile(rf'"(?:[^"]|"")*"|[^"{self.delimiter}\r\n][^{self.delimiter}\r\n]*|')
        parts: list[str] = []
        position = 0
        for place in range(self.width):
            one = found.match(text, position)
            raw = one[0] if one else ""
            new = next((cell for name, cell in cells.items() if self.places.get(name) == place), None)
            parts.append(raw if new is None else f'"{new}"' if raw.startswith('"') else new)
            position += len(raw)
            parts.append(text[position : position + 1] if place < self.width - 1 else text[position:])
            position += 1
        return "".join(parts)


@dataclass(slots=True)
class Index:
    """Where each row of a file lies. `order` is the same for files with the same variants in the same order."""

    form: Form
    head: int
    lengths: array[int] = field(default_factory=lambda: array("L"))
    rows: dict[str, int] = field(default_factory=dict)
    currency: str = ""
    order: str = ""

    @classmethod
    def read(cls, file: BinaryIO, currency: str | None) -> Index:
        """Read a file from its beginning, a row at a time. Raises BadCatalogue with what is wrong in which line."""
        first = file.readline()
        index = cls(Form.read(_text(first, 1).removeprefix(_BOM)), len(first))
        checks = _Checks(index, currency)
        digest = sha256()
        for line, size, row in _rows(file, index.form):
            index.lengths.append(size)
            if row:
                variant_id = checks.row(line, row)
                index.rows.setdefault(variant_id, len(index.lengths) - 1)
                digest.update(f"{variant_id}\0".encode())
        checks.close()
        index.currency, index.order = checks.currency or "", digest.hexdigest()[:16]
        return index


def bad(problems: Sequence[str], path: object = None) -> BadCatalogue:
    """The error that lists them."""
    shown = "; ".join(problems)
    error = BadCatalogue(shown if path is None else f"{path}: {shown}")
    error.problems = tuple(problems)
    return error


def _text(line: bytes, number: int) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise bad([f"line {number}: it is not UTF-8"]) from error


def _rows(file: BinaryIO, form: Form) -> Iterator[tuple[int, int, list[str]]]:
    """Each row with the line that it begins in and its size in bytes; a blank line is a row without cells."""
    taken = 0
    line = 1

    def lines() -> Iterator[str]:
        nonlocal taken, line
        for raw in file:
            taken += len(raw)
            line += 1
            yield _text(raw, line)

    reader = csv.reader(lines(), delimiter=form.delimiter, strict=True)
    while True:
        taken, begin = 0, line + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise bad([f"line {begin}: {error}"]) from error
        yield begin, taken, row


class _Checks:
    """What must hold of the rows, each and together."""

    def __init__(self, index: Index, currency: str | None) -> None:
        self._form = index.form
        self._problems: list[str] = []
        self._more = 0
        self._skus: dict[str, int] = {}
        self._ids: dict[str, int] = {}
        self._given = currency
        self._currency_line = 0
        self.currency = currency

    def row(self, line: int, row: list[str]) -> str:
        """Look at a row; the id of its variant."""
        form = self._form
        if len(row) != form.width:
            self._say(f"line {line}: {len(row)} columns, and the header has {form.width}")
            return ""
        sku, variant_id = form.cell(row, "sku"), form.variant_id(row)
        if not sku:
            self._say(f"line {line}: it has no SKU")
        elif sku in self._skus:
            self._say(f"line {line}: a second row for SKU {sku!r:.80}; the first is line {self._skus[sku]}")
        elif variant_id in self._ids:
            first = self._ids[variant_id]
            self._say(f"line {line}: a second row for variant {variant_id!r:.80}; the first is line {first}")
        self._skus.setdefault(sku, line)
        self._ids.setdefault(variant_id, line)
        for name in ("price", "compare_at_price", "cost", "reference_price"):
            text = form.cell(row, name)
            if (text or name == "price") and not is_price(text):
                self._say(f"line {line}: {name} {text!r:.80} is not a price; write it like 19.99")
        self._check_currency(line, form.cell(row, "currency"))
        return variant_id

    def close(self) -> None:
        """Raises BadCatalogue."""
        if not self._problems and self.currency is None:
            self._say("no row has a currency, and the settings name none")
        if self._more:
            self._problems.append(f"and {self._more:,} more")
        if self._problems:
            raise bad(self._problems)

    def _say(self, problem: str) -> None:
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems.append(problem)
        else:
            self._more += 1

    def _check_currency(self, line: int, currency: str) -> None:
        if not currency:
            if self._given is None and "currency" in self._form.places:
                self._say(f"line {line}: it has no currency")
        elif not _CURRENCY.fullmatch(currency):
            self._say(f"line {line}: {currency!r:.80} is not a currency; write it like EUR")
        elif self.currency is None:
            self.currency, self._currency_line = currency, line
        elif currency != self.currency:
            where = f"line {self._currency_line}" if self._currency_line else "the settings"
            self._say(f"line {line}: {currency}, and {where} has {self.currency}; a price list has one")

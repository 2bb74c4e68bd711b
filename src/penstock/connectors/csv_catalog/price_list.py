"""A price list in a file: read in parts, and rewritten as a whole by one process at a time. Everything here blocks.

The file is opened anew for each use and read through that one opening, so that somebody who replaces it meanwhile
changes nothing. Where its rows lie is remembered for as long as the file is the same.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate
from pathlib import Path
from typing import BinaryIO

from penstock.connectors.csv_catalog.rows import BadCatalogue, Form, Index, bad
from penstock.connectors.prices import FREE, Item, Refusal, Shop, Variant, VariantPrice, is_price
from penstock.model.errors import Fatal, InDoubt, Transient

Change = tuple[str, VariantPrice]
"""The product, and what a variant of it is to cost."""
Print = tuple[int, int, int, int]
"""Device, inode, size and time: what differs between two files, and between a file and itself after a change."""


CHANGED = "PRICE_CHANGED"
"""The code of a refusal: the price is not the one that was to be replaced."""


class CatalogueMoved(Transient):
    """Rows came or went while the pages were read: begin with the first page again."""


@dataclass(slots=True)
class _Opened:
    """The file at one moment; `replaced` as soon as there is another in its place."""

    file: BinaryIO
    print: Print
    index: Index
    offsets: Sequence[int]
    replaced: bool = False

    def texts(self, rows: Sequence[int]) -> dict[int, str]:
        """Rows as they are written."""
        found = {}
        for row in rows:
            self.file.seek(self.offsets[row])
            found[row] = self.file.read(self.index.lengths[row]).decode()
        return found


class PriceList:
    """The file at a path. `currency` is that of a file without such a column."""

    def __init__(self, path: Path, currency: str | None = None) -> None:
        self._path = path
        self._currency = currency
        self._known: tuple[Print, Index, list[int]] | None = None

    def shop(self) -> Shop:
        """Its currency; its name is the file's."""
        with self._opened() as opened:
            return Shop(opened.index.currency, self._path.name, FREE)

    def page(self, after: str | None, first: int) -> tuple[list[Item], str | None]:
        """Rows in the order of the file, and where the next page begins. Raises CatalogueMoved."""
        with self._opened() as opened:
            index = opened.index
            begin = self._place(after, index)
            end = min(begin + first, len(index.lengths))
            texts = opened.texts(range(begin, end))
            items = [index.form.item(index.form.parse(text)) for text in texts.values() if text.strip()]
        return items, f"{index.order}.{end}" if end < len(index.lengths) else None

    def variants(self, ids: Sequence[str]) -> dict[str, Variant]:
        """What they cost now; those that do not exist are left out."""
        with self._opened() as opened:
            index = opened.index
            rows = {index.rows[one]: one for one in ids if one in index.rows}
            found: dict[str, Variant] = {}
            for row, text in opened.texts(sorted(rows)).items():
                item = index.form.item(index.form.parse(text))
                found[rows[row]] = Variant(item.variant_id, item.price, item.compare_at_price)
        return found

    def write(self, changes: Sequence[Change]) -> list[Refusal | None]:
        """Set prices, all in one rewrite: for each change None where it was made, else why not.

        Raises Transient or Fatal where the file is as it was, and InDoubt where it may be either.
        """
        with self._alone(), self._opened() as opened:
            index = opened.index
            rows = sorted({index.rows[change.variant_id] for _, change in changes if change.variant_id in index.rows})
            before = opened.texts(rows)
            after = dict(before)
            outcome: list[Refusal | None] = []
            for product_id, change in changes:
                row = index.rows.get(change.variant_id)
                outcome.append(_refusal(index.form, before.get(-1 if row is None else row), product_id, change))
                if row is not None and outcome[-1] is None:
                    cells = {"price": change.price, "compare_at_price": change.compare_at_price or ""}
                    after[row] = index.form.replace(after[row], cells)
            changed = {row: text.encode() for row, text in after.items() if text != before[row]}
            if changed:
                self._rewrite(opened, changed)
        return outcome

    @staticmethod
    def _place(after: str | None, index: Index) -> int:
        if after is None:
            return 0
        order, _, row = after.partition(".")
        if order != index.order or not row.isdecimal():
            raise CatalogueMoved("rows came or went while the price list was read; begin again")
        return int(row)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[_Opened]:
        """The file, and where its rows lie in it. Raises Transient where somebody writes into it meanwhile."""
        with self._told(), self._path.open("rb") as file:
            before = _print(file)
            try:
                known = self._known
                if known is None or known[0] != before:
                    index = Index.read(file, self._currency)
                    known = self._known = (before, index, _offsets(index))
                found = _Opened(file, before, known[1], known[2])
                yield found
            except (BadCatalogue, ValueError, IndexError, csv.Error):
                self._check(file, before)  # what was read may be half of this and half of that
                raise
            if not found.replaced:
                self._check(file, before)

    def _check(self, file: BinaryIO, before: Print) -> None:
        if _print(file) != before:
            self._known = None
            raise Transient(f"{self._path}: somebody wrote to it while it was read")

    def _rewrite(self, opened: _Opened, texts: Mapping[int, bytes]) -> None:
        """Replace the file by one with other rows, in one step: whoever opens it finds the old one or the new."""
        target, file, index = self._path.resolve(), opened.file, opened.index
        number, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        lengths = index.lengths[:]
        try:
            with os.fdopen(number, "wb") as new:
                position = 0
                for row in sorted(texts):
                    _copy(file, new, position, opened.offsets[row])
                    new.write(texts[row])
                    position = opened.offsets[row] + index.lengths[row]
                    lengths[row] = len(texts[row])
                _copy(file, new, position, os.fstat(file.fileno()).st_size)
                new.flush()
                os.fchmod(new.fileno(), os.fstat(file.fileno()).st_mode & 0o7777)
                os.fsync(new.fileno())
                self._check_same(target, opened.print)
                Path(name).rename(target)
                opened.replaced = True
                after = _print(new)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        try:
            _sync_folder(target.parent)
        except OSError as error:
            raise InDoubt(f"{self._path}: written, but perhaps not for good: {error.strerror}") from error
        changed = Index(index.form, index.head, lengths, index.rows, index.currency, index.order)
        self._known = (after, changed, _offsets(changed))

    def _check_same(self, target: Path, before: Print) -> None:
        """Whoever edits the file by hand takes no lock."""
        if _print_of(target.stat()) != before:
            raise Transient(f"{self._path}: somebody else wrote to it; nothing was changed")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else writes meanwhile, in this process or in another."""
        target = self._path.resolve()
        with self._told():
            # The lock file stays: one that is removed could be locked by two, each by its own.
            number = os.open(target.with_name(f".{target.name}.lock"), os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            yield
        finally:
            os.close(number)

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except BadCatalogue as error:
            raise bad(error.problems, self._path) from error
        except PermissionError as error:
            raise Fatal(f"{self._path}: {error.strerror}") from error
        except OSError as error:
            raise Transient(f"{self._path}: {error.strerror or error}") from error


def _refusal(form: Form, text: str | None, product_id: str, change: VariantPrice) -> Refusal | None:
    """Why a change cannot be made, in Shopify's words where it has them."""
    for price in (change.price, change.compare_at_price):
        if price is not None and not is_price(price):
            return Refusal("INVALID_PRICE", f"{price!r:.100} is not a price; nothing was written")
    if text is None:
        return Refusal("PRODUCT_VARIANT_DOES_NOT_EXIST", f"the price list has no row for {change.variant_id!r:.100}")
    if form.product_id(form.parse(text)) != product_id:
        return Refusal("MUST_BE_FOR_THIS_PRODUCT", f"{change.variant_id!r:.100} is of another product")
    if change.was is not None and not _costs(form, text, change.was):
        return Refusal(CHANGED, f"somebody else has set the price of {change.variant_id!r:.100}")
    if change.compare_at_price is not None and "compare_at_price" not in form.places:
        return Refusal("NO_COLUMN", "the price list has no column compare_at_price")
    return None


def _costs(form: Form, text: str, was: Variant) -> bool:
    """Whether a row has those prices, however they are written."""
    item = form.item(form.parse(text))
    pairs = ((item.price, was.price), (item.compare_at_price, was.compare_at_price))
    return all((one and Decimal(one)) == (other and Decimal(other)) for one, other in pairs)


def _copy(source: BinaryIO, target: BinaryIO, begin: int, end: int) -> None:
    source.seek(begin)
    left = end - begin
    while left > 0 and (piece := source.read(min(left, 1 << 20))):
        target.write(piece)
        left -= len(piece)


def _offsets(index: Index) -> list[int]:
    return list(accumulate(index.lengths, initial=index.head))


def _print(file: BinaryIO) -> Print:
    return _print_of(os.fstat(file.fileno()))


def _print_of(found: os.stat_result) -> Print:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

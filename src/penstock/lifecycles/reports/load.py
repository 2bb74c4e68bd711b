"""From landed records to rows, thousands at a time, and what a load came to.

A block of records is decoded at once into what they should be, and what a decoder cannot know is checked column by
column. Where that fails, the block goes the slow way (`one_by_one.py`), which gives the same rows, or ends in
`BadReport` with the record, the column and what it holds.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec.structs import astuple

from penstock.lifecycles.refreshes import Digest
from penstock.lifecycles.reports.machine import Report
from penstock.lifecycles.reports.one_by_one import read_row
from penstock.lifecycles.reports.shape import LARGEST, LONGEST_ID, Shape, shape_of
from penstock.model.outcome import MAX_ROWS

Row = tuple[Any, ...]

_LONGEST_AMOUNT = 40  # as `exact` has it
_ENCODER = msgspec.json.Encoder()
# What a landed record may make a decoder raise, be it of the decoder's own or of the number's.
_DOUBTS = (msgspec.DecodeError, ValueError, ArithmeticError)


class Part(NamedTuple):
    """The rows of a block, in the order of `COLUMNS`, and their sums."""

    rows: list[Row]
    impressions: int
    clicks: int
    cost: Decimal
    sales: Decimal


@dataclass(slots=True)
class Totals:
    """What a load came to: enough to say whether another one differs, and by how much."""

    rows: int = 0
    impressions: int = 0
    clicks: int = 0
    cost: Decimal = field(default_factory=Decimal)
    sales: Decimal = field(default_factory=Decimal)
    _digest: Digest = field(default_factory=Digest)

    def add(self, part: Part) -> None:
        self.rows += len(part.rows)
        self.impressions += part.impressions
        self.clicks += part.clicks
        self.cost += part.cost
        self.sales += part.sales
        self._digest.add(_ENCODER.encode_lines(part.rows))

    @property
    def digest(self) -> str:
        """The same for the same rows in any order."""
        return self._digest.text


class Loader:
    """Reads the landed records of a report, which come as blocks of whole lines, and makes rows of them."""

    def __init__(self, report: Report, blocks: Iterator[bytes]) -> None:
        self.totals = Totals()
        self._blocks = blocks
        self._shape = shape_of(report)
        self._quick = quick_reader(self._shape)
        self._ready: list[Row] = []

    def some(self) -> list[Row]:
        """The next rows, at most as many as a stage's chunk has, in the order of `COLUMNS`; none at the end.

        Raises BadReport. It reads a file: run it where blocking work runs.
        """
        if not self._ready and (lines := next(self._blocks, None)) is not None:
            part = self._quick(lines) or self._one_by_one(lines)
            self.totals.add(part)
            self._ready = part.rows
        rows, self._ready = self._ready[:MAX_ROWS], self._ready[MAX_ROWS:]
        return rows

    def _one_by_one(self, lines: bytes) -> Part:
        first = self.totals.rows + 1
        rows = [read_row(self._shape, line, number) for number, line in enumerate(lines[:-1].split(b"\n"), first)]
        *_, impressions, clicks, cost, sales, _ = zip(*rows, strict=True)
        return Part(rows, sum(impressions), sum(clicks), _sum(map(Decimal, cost)), _sum(map(Decimal, sales)))


def _sum(amounts: Iterable[Any]) -> Decimal:
    return sum(amounts, Decimal())


@functools.lru_cache(64)
def quick_reader(shape: Shape) -> Callable[[bytes], Part | None]:
    """The quick way through records of this shape; it gives None where one is not what it should be, or may not be."""
    identifier, text = int | str, str | None
    count = Annotated[int, msgspec.Meta(gt=-LARGEST, lt=LARGEST)]
    texts = [(name, text) if shape.described else (name, text, None) for name in shape.texts]
    record = msgspec.defstruct(
        "Record",
        [
            (shape.when, Literal[shape.moment]),
            *((name, identifier) for name in shape.ids),
            *texts,
            ("impressions", count),
            ("clicks", count),
            ("cost", Any),
            ("purchases7d", count),
            ("sales7d", Any),
        ],
        kw_only=True,
        gc=False,
        forbid_unknown_fields=True,
    )
    decode = msgspec.json.Decoder(record, float_hook=Decimal).decode_lines

    def typed(lines: bytes) -> Part | None:
        try:
            found = decode(lines)
        except _DOUBTS:
            return None
        if len(found) != lines.count(b"\n"):
            return None
        _, *described, impressions, clicks, cost, purchases, sales = zip(*map(astuple, found), strict=True)
        ids = [made for values in described[:3] if (made := _identifiers(values))]
        amounts = [made for values in (cost, sales) if (made := _amounts(values))]
        if len(ids) + len(amounts) < 5:  # noqa: PLR2004 - one of them is not what it should be
            return None
        rows = [*zip(*ids, *described[3:], impressions, clicks, *amounts, purchases, strict=True)]
        return Part(rows, sum(impressions), sum(clicks), _sum(cost), _sum(sales))

    return typed


def _identifiers(values: Sequence[int | str]) -> list[str] | None:
    texts = [*map(str, values)]
    return texts if all(texts) and max(map(len, texts)) <= LONGEST_ID else None


def _amounts(values: Sequence[Any]) -> list[str] | None:
    """As `one_by_one.written` writes them; None where one is no number, or has an exponent."""
    if not {*map(type, values)} <= {int, Decimal}:
        return None
    texts = [*map(str, values)]
    if "E" in "".join(texts) or max(map(len, texts)) > _LONGEST_AMOUNT:
        return None
    return [text.rstrip("0").rstrip(".") if text[-1] == "0" and "." in text else text for text in texts]

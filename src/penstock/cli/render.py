"""Any answer as a person reads it, as CSV, or as exact JSON.

A page is a table: references are never broken or shortened, texts are shortened to fit, details are left out. A single
struct is a list of `name: value`, in which lists of structs are tables. In a pipe a row is one line, however long.
"""

from __future__ import annotations

import csv
import io
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, get_args

import msgspec

from penstock.cli.terminal import Screen, cells, shortened
from penstock.cli.words import NOTHING, sentence, word
from penstock.model.inert import inert
from penstock.operations.declare import Page
from penstock.operations.fields import FieldInfo, fields_of

_GAP = 2
_TEXT_LEAST = 16
_OTHER_LEAST = 10
_BESIDE_LEAST = 30
# What JSON leaves as it is inside a text, and a terminal would obey.
_OBEYED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")

Meaning = Callable[[str | None, str], str | None]


@dataclass(frozen=True, slots=True)
class Showing:
    """How something is shown: where, when, and what states mean (machine and state to meaning)."""

    screen: Screen
    now: datetime
    meaning: Meaning = lambda _machine, _state: None


def answer_lines(answer: Any, showing: Showing) -> Iterator[str]:
    """The lines of an answer, ready to be printed. What stands beside a page's rows comes from `notes`."""
    if isinstance(answer, Page):
        yield from _page(answer, showing)
    elif isinstance(answer, msgspec.Struct):
        yield from _record(answer, showing)
    else:
        yield from _shown(word(answer, showing.now), showing.screen)


def notes(answer: Any) -> list[str]:
    """What is said below the rows of a page."""
    if not isinstance(answer, Page):
        return []
    said = []
    if answer.counts:
        said.append(", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in answer.counts.items()))
    if answer.note:
        said.append(answer.note)
    if answer.next is not None:
        said.append(f"there are more: --after {_quoted(answer.next)}")
    return [inert(line) for line in said]


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)


# -- tables


_Cell = tuple[str, str | None]
"""A text, and what it means: its colour."""


@dataclass(slots=True)
class _Column:
    field: FieldInfo
    values: list[_Cell]
    width: int = 0

    @property
    def heading(self) -> str:
        return self.field.extra("heading") if self.field.extra("heading") is not None else _label(self.field)

    @property
    def right(self) -> bool:
        kinds = self.field.choices
        return self.field.extra("show") is None and bool(kinds) and all(kind in (int, float) for kind in kinds)

    @property
    def shrinks(self) -> bool:
        """Whether it may be shortened or wrapped: a text, or a plain word."""
        show = self.field.extra("show")
        return show == "text" or (show is None and str in self.field.choices)

    @property
    def empty(self) -> bool:
        return all(text == NOTHING for text, _ in self.values)

    def measure(self) -> None:
        self.width = max([cells(self.heading), *(cells(text) for text, _ in self.values)])


def _page(page: Page[Any], showing: Showing) -> Iterator[str]:
    if not page.rows:
        if not page.note:
            yield "none"
        return
    yield from table(page.rows, showing)


def table(rows: Sequence[Any], showing: Showing, *, whole: bool = False) -> Iterator[str]:
    """Rows of one kind, one line each; where that is too long, with texts below each row. `whole` wraps them."""
    width = showing.screen.width
    columns = _columns(rows, showing, short=False)
    if width is not None and _total(columns) > width and not _fit(columns, width):
        # Where there is no room, what says nothing of any row is left out.
        columns = [column for column in _columns(rows, showing, short=True) if not column.empty]
        if _total(columns) > width and not _fit(columns, width):
            yield from _below(rows, columns, showing, width)
            return
    yield _line([(c.heading, "heading") for c in columns], columns, showing.screen)
    for place in range(len(rows)):
        values = [c.values[place] for c in columns]
        for part in _parts(values, columns) if whole else [values]:
            yield _line(part, columns, showing.screen)


def _parts(values: Sequence[_Cell], columns: Sequence[_Column]) -> Iterator[list[_Cell]]:
    """One row over as many lines as its longest cell takes."""
    cells_of = [
        [(line, meaning) for line in _wrapped(text, column.width, 0, reference=not column.shrinks)]
        for (text, meaning), column in zip(values, columns, strict=True)
    ]
    for place in range(max(map(len, cells_of))):
        yield [lines[place] if place < len(lines) else ("", None) for lines in cells_of]


def _below(rows: Sequence[Any], columns: Sequence[_Column], showing: Showing, width: int) -> Iterator[str]:
    """Texts on a line of their own below each row; as records where the rest is too long as well."""
    texts = [c for c in columns if c.field.extra("show") == "text"]
    rest = [c for c in columns if c not in texts]
    if _total(rest) > width and not _fit(rest, width):
        yield from _records(rows, showing)
        return
    yield _line([(c.heading, "heading") for c in rest], rest, showing.screen)
    for place in range(len(rows)):
        yield _line([c.values[place] for c in rest], rest, showing.screen)
        said = "; ".join(c.values[place][0] for c in texts if c.values[place][0] != NOTHING)
        if said:
            yield shortened(f"    {said}", width)


def _columns(rows: Sequence[Any], showing: Showing, *, short: bool) -> list[_Column]:
    made = []
    for field in fields_of(type(rows[0])):
        if field.extra("show") == "detail":
            continue
        column = _Column(field, [_cell(row, field, showing, short=short) for row in rows])
        column.measure()
        made.append(column)
    return made


def _cell(row: Any, field: FieldInfo, showing: Showing, *, short: bool = False) -> _Cell:
    value, show = getattr(row, field.attribute), field.extra("show")
    if field.attribute == "payload" and isinstance(value, (dict, str)):
        text = sentence(str(getattr(row, "kind", "")), value)
    else:
        text = word(value, showing.now, short=short, exact=show == "reference")
    return inert(text), _meaning(row, value, show, showing)


def _meaning(row: Any, value: Any, show: str | None, showing: Showing) -> str | None:
    if value is None:
        return None
    if show == "state":
        own = getattr(value, "meaning", None)
        return str(own) if own is not None else showing.meaning(getattr(row, "machine", None), str(value))
    return str(value) if show == "severity" else None


def _total(columns: Sequence[_Column]) -> int:
    return sum(c.width for c in columns) + _GAP * (len(columns) - 1)


def _fit(columns: Sequence[_Column], width: int) -> bool:
    """Shorten what may be shortened, texts first; whether it fits now."""
    texts = [c for c in columns if c.field.extra("show") == "text"]
    others = [c for c in columns if c.shrinks and c not in texts]
    for group, least in ((texts, _TEXT_LEAST), (others, _OTHER_LEAST)):
        while (over := _total(columns) - width) > 0:
            widest = max(group, key=lambda c: c.width, default=None)
            if widest is None or widest.width <= max(least, cells(widest.heading)):
                break
            # Down to the next widest at most, so that several share what is missing.
            second = max((c.width for c in group if c is not widest), default=0)
            widest.width = max(widest.width - over, min(second, widest.width - 1), least, cells(widest.heading))
    return _total(columns) <= width


def _line(values: Sequence[_Cell], columns: Sequence[_Column], screen: Screen) -> str:
    made = []
    for place, ((text, meaning), column) in enumerate(zip(values, columns, strict=True)):
        short = shortened(text, column.width)
        space = " " * (column.width - cells(short))
        shown = screen.styled(short, meaning)
        last = place == len(columns) - 1
        made.append(f"{space}{shown}" if column.right else shown if last else f"{shown}{space}")
    return (" " * _GAP).join(made).rstrip()


# -- records


def _records(rows: Sequence[Any], showing: Showing) -> Iterator[str]:
    for place, row in enumerate(rows):
        if place:
            yield ""
        yield from _record(row, showing, details=False)


def _record(row: Any, showing: Showing, *, details: bool = True) -> Iterator[str]:
    fields = [f for f in fields_of(type(row)) if details or f.extra("show") != "detail"]
    plain = [field for field in fields if not _is_table(field, getattr(row, field.attribute))]
    labels = {field.attribute: _label(field) for field in fields}
    widest = max((cells(labels[field.attribute]) for field in plain), default=0)
    for field in plain:
        text, meaning = _cell_whole(row, field, showing)
        label = f"{labels[field.attribute]}:"
        pad = " " * (widest + 2 - cells(label))
        lines = _wrapped(text, showing.screen.width, widest + 2, reference=field.extra("show") == "reference")
        yield f"{showing.screen.styled(label, 'heading')}{pad}{showing.screen.styled(lines[0], meaning)}".rstrip()
        for more in lines[1:]:
            yield " " * (widest + 2) + showing.screen.styled(more, meaning)
    for field in fields:
        rows = getattr(row, field.attribute)
        if field not in plain and rows:
            yield ""
            yield showing.screen.styled(f"{labels[field.attribute]}:", "heading")
            yield from (f"  {line}" for line in _inner(rows, showing))


def _cell_whole(row: Any, field: FieldInfo, showing: Showing) -> _Cell:
    value = getattr(row, field.attribute)
    if isinstance(value, str) and "\n" in value and field.attribute != "payload":
        return inert(value, lines=True), None
    return _cell(row, field, showing)


def _inner(value: Any, showing: Showing) -> Iterator[str]:
    narrow = None if showing.screen.width is None else showing.screen.width - _GAP
    inside = Showing(Screen(narrow, showing.screen.colour), showing.now, showing.meaning)
    return _record(value, inside) if isinstance(value, msgspec.Struct) else table(list(value), inside, whole=True)


def _is_table(field: FieldInfo, value: Any) -> bool:
    """Whether it is shown below the lines: a struct, or a list of structs."""
    inner = field.many
    if inner is not None:
        first = value[0] if value else None
        kinds = (inner, *get_args(inner), type(first))
        return any(isinstance(kind, type) and issubclass(kind, msgspec.Struct) for kind in kinds)
    return isinstance(value, msgspec.Struct)


def _wrapped(text: str, width: int | None, indent: int, *, reference: bool) -> list[str]:
    """The text over several lines where it must be; a reference stays whole."""
    if width is None or reference or (cells(text) <= width - indent and "\n" not in text):
        return [text] if width is not None or "\n" not in text else text.split("\n")
    room = max(width - indent, _BESIDE_LEAST) if indent else width
    return [
        line
        for part in text.split("\n")
        for line in textwrap.wrap(part, room, break_long_words=not indent, break_on_hyphens=False) or [""]
    ] or [NOTHING]


def _shown(text: str, screen: Screen) -> list[str]:
    return _wrapped(inert(text, lines=True), screen.width, 0, reference=False)


def _label(field: FieldInfo) -> str:
    heading = field.extra("heading")
    return str(heading) if heading else field.name.replace("_", " ")


# -- for programs


def json_text(value: Any) -> str:
    """Exact JSON: what a terminal would obey is escaped inside its texts."""
    encoded = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)


def csv_lines(page: Page[Any], row_type: Any, *, safe: bool) -> Iterator[str]:
    """A line for the names and one for each row. `safe`: it goes to a terminal, and is inert."""
    fields = list(fields_of(row_type))
    yield _csv([field.name for field in fields])
    for row in page.rows:
        values = [_csv_value(getattr(row, field.attribute)) for field in fields]
        yield _csv([inert(value) for value in values] if safe else values)


def _csv(values: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(values)
    return out.getvalue()


def _csv_value(value: Any) -> str:
    if value is None:
        return ""
    plain = msgspec.to_builtins(value, enc_hook=str)
    return plain if isinstance(plain, str) else msgspec.json.encode(plain).decode()

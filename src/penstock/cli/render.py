"""Any answer as a person reads it, as CSV, or as exact JSON.

A page is a table: references are never broken or shortened, texts are shortened to fit, details are left out. Where a
row is too long for the screen, its texts and then its references have lines of their own. A single struct is a list of
`name: value`, in which lists of structs are tables. In a pipe a row is one line, however long.
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
from penstock.model.inert import inert
from penstock.operations.declare import Page
from penstock.operations.fields import FieldInfo, fields_of
from penstock.operations.words import NOTHING, sentence, shown, word

_GAP = 2
_TEXT_LEAST = 24
_OTHER_LEAST = 10
_BESIDE_LEAST = 30
_INDENT = " " * 4

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


def notes(answer: Any, width: int | None = None) -> list[str]:
    """What is said below the rows of a page; an option to copy begins on a line of its own where it would be broken."""
    if not isinstance(answer, Page):
        return []
    said = []
    if answer.counts:
        said.append(", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in answer.counts.items()))
    if answer.note:
        said += [answer.note] if width is None else _unbroken(answer.note, width)
    if answer.next is not None:
        more, option = "there are more:", f"--after {_quoted(answer.next)}"
        fits = width is None or cells(f"{more} {option}") <= width
        said += [f"{more} {option}"] if fits else [more, option]
    return [inert(line) for line in said]


def _unbroken(text: str, width: int) -> list[str]:
    """Over several lines where it must be; no word is broken."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


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
        return self.field.counts

    @property
    def shrinks(self) -> bool:
        """Whether it may be shortened or wrapped: a text, or a plain word."""
        show = self.field.extra("show")
        return show == "text" or (show is None and str in self.field.choices)

    @property
    def empty(self) -> bool:
        return all(text == NOTHING for text, _ in self.values)

    def least(self, *, whole: bool) -> int:
        """How narrow it may become; a text that is wrapped keeps its longest word whole."""
        show = self.field.extra("show")
        words = [cells(part) for text, _ in self.values for part in text.split()] if whole and show == "text" else []
        return max(cells(self.heading), _TEXT_LEAST if show == "text" else _OTHER_LEAST, *words, 0)

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
    if width is not None and not _fit(columns, _of_kind(columns, "text"), width, whole=whole):
        # Where there is no room, what says nothing of any row is left out.
        columns = [column for column in _columns(rows, showing, short=True) if not column.empty]
        if not _fit(columns, _of_kind(columns, "text"), width, whole=whole):
            yield from _below(rows, columns, showing, width, whole=whole)
            return
    yield _line([(c.heading, "heading") for c in columns], columns, showing.screen)
    for place in range(len(rows)):
        yield from _row(columns, place, showing.screen, whole=whole)


def _row(columns: Sequence[_Column], place: int, screen: Screen, *, whole: bool) -> Iterator[str]:
    values = [c.values[place] for c in columns]
    for part in _parts(values, columns) if whole else [values]:
        yield _line(part, columns, screen)


def _parts(values: Sequence[_Cell], columns: Sequence[_Column]) -> Iterator[list[_Cell]]:
    """One row over as many lines as its longest cell takes."""
    cells_of = [
        [(line, meaning) for line in _wrapped(text, column.width, 0, reference=not column.shrinks)]
        for (text, meaning), column in zip(values, columns, strict=True)
    ]
    for place in range(max(map(len, cells_of))):
        yield [lines[place] if place < len(lines) else ("", None) for lines in cells_of]


def _below(
    rows: Sequence[Any], columns: Sequence[_Column], showing: Showing, width: int, *, whole: bool
) -> Iterator[str]:
    """Texts on a line of their own below each row, and references if need be; records where the rest is too long."""
    texts = _of_kind(columns, "text")
    rest, room = [c for c in columns if c not in texts], width
    while _total(rest) > room and (references := _of_kind(rest, "reference")):
        rest.remove(max(references, key=lambda c: c.width))
        room = width if columns[0] in rest else width - len(_INDENT)
    if not rest or not _fit(rest, [c for c in rest if c.shrinks], room, whole=whole):
        yield from _records(rows, showing)
        return
    # A row that is named by a long reference begins with it.
    name, indent = (None, "") if columns[0] in rest else (columns[0], _INDENT)
    own = [c for c in columns if c not in (*rest, *texts, name)]
    if name is not None:
        yield showing.screen.styled(name.heading, "heading")
    yield indent + _line([(c.heading, "heading") for c in rest], rest, showing.screen)
    for place in range(len(rows)):
        if name is not None:
            yield name.values[place][0]
        yield from (indent + line for line in _row(rest, place, showing.screen, whole=whole))
        yield from (_INDENT + text for text in _said(own, place))
        if said := "; ".join(_said(texts, place)):
            left = width - len(_INDENT)
            lines = _wrapped(said, left, 0, reference=False) if whole else [shortened(said, left)]
            yield from (_INDENT + line for line in lines)


def _said(columns: Sequence[_Column], place: int) -> list[str]:
    return [c.values[place][0] for c in columns if c.values[place][0] != NOTHING]


def _of_kind(columns: Sequence[_Column], show: str) -> list[_Column]:
    return [c for c in columns if c.field.extra("show") == show]


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
        text = shown(value, show, showing.now, short=short)
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


def _fit(columns: Sequence[_Column], group: Sequence[_Column], width: int, *, whole: bool) -> bool:
    """Make the columns of a group narrower, the widest first, if need be; whether it fits now."""
    while (over := _total(columns) - width) > 0:
        widest = max((c for c in group if c.width > c.least(whole=whole)), key=lambda c: c.width, default=None)
        if widest is None:
            return False
        # Down to the next widest at most, so that several share what is missing.
        second = max((c.width for c in group if c is not widest), default=0)
        widest.width = max(widest.width - over, min(second, widest.width - 1), widest.least(whole=whole))
    return True


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
    if not isinstance(plain, str):
        return msgspec.json.encode(plain).decode()
    # A spreadsheet would run what begins like a formula; with an apostrophe before it, it is a text.
    return f"'{plain}" if _FORMULA.match(plain) and not _NUMBER.fullmatch(plain) else plain


_FORMULA = re.compile(r"\s*[=+\-@\t\r\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")

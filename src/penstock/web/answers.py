"""Any answer as blocks of a page: tables of rows, facts of one thing. The declarations say what each value is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from markupsafe import Markup, escape

from penstock.model.inert import inert
from penstock.operations.declare import Page
from penstock.operations.fields import FieldInfo, fields_of
from penstock.operations.words import sentence, shown, word
from penstock.web.frame import begun, breakable, ended, folded, label, moment, pill, told

if TYPE_CHECKING:
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.web.frame import Frame

_NOW = "now"
"""When an answer was made: every page says that at its top."""
_NOTHING = Markup("&ndash;")
NOTHING_YET = "Nothing yet."
_SHORT = 28
"""A value of so many characters stands in one line; a column is as wide."""
PAGE = 100
"""So many rows a table has at most; an answer may have thousands."""
_SEVERITY = {"info": "work", "warning": "hold", "critical": "fault", "error": "fault"}


@dataclass(slots=True)
class Table:
    """Rows with headings; each heading and each cell with how it looks. `lines` is text as it stands."""

    title: str
    headings: list[tuple[str, str]]
    rows: list[list[tuple[Markup, str]]]
    note: str | Markup = ""
    lines: str = ""
    #: For each row, what can be done with it; empty: nothing.
    acts: list[list[dict[str, str]]] = field(default_factory=list)


@dataclass(slots=True)
class Facts:
    """What is known of one thing: name, what it means, and the value."""

    title: str
    items: list[tuple[str, str, Markup]] = field(default_factory=list)


Block = Table | Facts
RowActs = Callable[[Any], list[dict[str, str]]]


class Answers:
    """Makes blocks of answers, as of now."""

    def __init__(
        self,
        frame: Frame,
        now: datetime,
        at: datetime | None = None,
        lifecycle: AnyLifecycle | None = None,
        *,
        within: str = "",
    ) -> None:
        """`within`: units of this machine are called by their key alone."""
        self._frame = frame
        self._within = f"{within}:" if within else ""
        self._lifecycle = lifecycle
        self._now = at or now
        self._at = at
        self._meanings = {
            (machine.name, str(state)): str(state.meaning)
            for machine in frame.desk.program.app.machines
            for state in machine.status
        }
        self._known = {state: meaning for (_, state), meaning in self._meanings.items()}

    def blocks(self, answer: Any, title: str = "", row_acts: RowActs | None = None, skip: int = 0) -> list[Block]:
        """The blocks of an answer: of a list those rows that come after `skip` others, as many as a page has.

        `row_acts` says what can be done with a row.
        """
        if isinstance(answer, Page):
            rows = answer.rows[skip : skip + PAGE]
            table = self.table(title, rows, Markup(" ").join(filter(None, self._notes(answer, skip))))
            if row_acts is not None:
                acts = [row_acts(row) for row in rows]
                table.acts = acts if any(acts) else []
            return [table]
        if isinstance(answer, msgspec.Struct):
            return list(self._record(answer, title))
        return [Facts(title, [("", "", escape(inert(word(answer, self._now))))])]

    def table(self, title: str, rows: Sequence[Any], note: str | Markup = "") -> Table:
        """Rows of one struct as a table; details are left out, and so are columns that are empty."""
        if not rows:
            return Table(title, [], [], note or NOTHING_YET)
        fields = [one for one in fields_of(type(rows[0])) if one.extra("show") != "detail"]
        fields = [one for one in fields if any(getattr(row, one.attribute) not in (None, "", [], {}) for row in rows)]
        headings = [(_heading(one), _kind(one)) for one in fields]
        return Table(title, headings, [[self._kinded(one, row) for one in fields] for row in rows], note)

    def _kinded(self, one: FieldInfo, row: msgspec.Struct) -> tuple[Markup, str]:
        cell = self._cell(one, row)
        if cell is _NOTHING:
            return cell, f"{_kind(one)} none".strip()
        if kind := _kind(one):
            return cell, kind
        short = len(cell.striptags()) <= _SHORT
        return cell, "nowrap" if short else "name" if one.extra("show") == "reference" else ""

    def _record(self, answer: msgspec.Struct, title: str) -> Iterator[Block]:
        facts, tables = Facts(title), list[Block]()
        for one in fields_of(type(answer)):
            value = getattr(answer, one.attribute)
            if isinstance(value, list | tuple) and value and isinstance(value[0], msgspec.Struct):
                note = "" if len(value) <= PAGE else f"{_of(0, len(value))}; the command below shows all of them."
                tables.append(self.table(label(one.name), value[:PAGE], note))
            elif isinstance(value, msgspec.Struct):
                tables += self._record(value, label(one.name))
            elif value not in (None, "", [], (), {}) and one.name != _NOW:
                facts.items.append((_heading(one), one.says, self._cell(one, answer)))
        if facts.items:
            yield facts
        yield from tables

    def _notes(self, page: Page[Any], skip: int) -> Iterator[str | Markup]:
        if len(page.rows) > PAGE:
            yield f"{_of(skip, len(page.rows))}."
        if page.counts:
            counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in page.counts.items() if count)
            yield counts and ended(counts)
        if page.note:
            yield told(ended(begun(page.note)))

    def _cell(self, one: FieldInfo, row: msgspec.Struct) -> Markup:
        value = getattr(row, one.attribute)
        if value is None or value == "":
            return _NOTHING
        if isinstance(value, datetime):
            return moment(value, self._now, self._at)
        show = one.extra("show")
        text = shown(value, show, self._now)
        if isinstance(value, float) and _heading(one).endswith("%"):
            return escape(f"{value:,.1f}")
        if show == "state" and isinstance(value, str):
            own = getattr(value, "meaning", None)
            return pill(text, str(own) if own is not None else self._meaning(row, str(value)))
        if show == "severity":
            return pill(text, _SEVERITY.get(str(value)))
        if show == "text" and one.name == "payload":
            return folded(sentence(getattr(row, "kind", ""), value))
        if one.extra("leads") and self._lifecycle is not None:
            link = self._frame.column_link(self._lifecycle, one, value, at=self._at)
            if link is not None:
                return Markup('<a class="mono" href="{}">{}</a>').format(link, breakable(text))
        whole = value if isinstance(value, str) else text
        return self.reference(str(whole)) if show == "reference" else folded(text)

    def _meaning(self, row: msgspec.Struct, state: str) -> str | None:
        machine = getattr(row, "machine", None) or str(getattr(row, "unit", "")).partition(":")[0]
        return self._meanings.get((str(machine), state)) or self._known.get(state)

    def known(self, values: Mapping[str, Any]) -> Facts:
        """Values by name, those that are there."""
        there = {name: value for name, value in values.items() if value not in (None, "", [], {})}
        shown = [(name.replace("_", " "), "", self.plain(word(value, self._now))) for name, value in there.items()]
        return Facts("Its own columns", shown)

    def plain(self, text: str) -> Markup:
        """Text from anywhere, inert."""
        return folded(text)

    def reference(self, text: str) -> Markup:
        """A reference; that of a unit leads to its page."""
        machine, colon, unit_id = text.partition(":")
        names = {one.name for one in self._frame.desk.program.app.machines}
        if colon and unit_id.strip() == unit_id != "" and machine in names:
            link = self._frame.unit_link(text, self._at)
            return Markup('<a class="mono" href="{}">{}</a>').format(link, breakable(text.removeprefix(self._within)))
        return Markup('<span class="mono">{}</span>').format(breakable(text))


def _of(skip: int, total: int) -> str:
    last = min(skip + PAGE, total)
    return f"Rows {skip + 1:,} to {last:,} of {total:,}" if skip < last else f"No more rows; there are {total:,}"


def _heading(one: FieldInfo) -> str:
    heading = one.extra("heading")
    return str(heading) if heading is not None else one.name.replace("_", " ")


def _kind(one: FieldInfo) -> str:
    """How its column looks: numbers to the right, long texts paler."""
    if one.extra("show") == "text":
        return "muted"
    return "num" if one.counts else ""

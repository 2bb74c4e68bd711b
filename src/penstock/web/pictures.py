"""Draws what lifecycles declare as their pictures. It knows the kinds of pictures, and no lifecycle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from markupsafe import Markup
from msgspec.structs import replace

from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.operations import pictures
from penstock.operations.declare import Page
from penstock.operations.fields import fields_of
from penstock.operations.words import when, word
from penstock.web.svg import portraits
from penstock.web.svg.charts import Bar, rows
from penstock.web.svg.marks import element, words

if TYPE_CHECKING:
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.operations.declare import Reading
    from penstock.web.frame import Frame

_FEW = {
    pictures.Calendar: 5,
    pictures.Runs: 4,
    pictures.Cycle: 4,
    pictures.Windows: 4,
    pictures.Shares: 4,
    pictures.Ladder: 1,
}
"""How many rows there is room for on a card."""
_SERIES = (pictures.Calendar, pictures.Cycle, pictures.Windows)
"""Pictures of things beside each other: those that are left out must be told of on a card too."""
_MOST, _MOST_RUNS, _GLANCE = 60, 20, 25
"""How many there is room for on the page of a reading, and among other things."""
_LED = 2_000
"""So many cells lead somewhere, each for itself: of more, the page would be too large."""
_UNKNOWN = "?"
"""What nobody knows any more, of a moment that is over."""


def parameters_at(reading: Reading[Any], at: datetime | None, most: int = 0) -> Any | None:
    """What it is asked with where nobody says anything; None: it wants to be told more, or knows no past.

    `most`: so many rows, where it takes a limit.
    """
    names = {one.name for one in fields_of(reading.parameters)}
    if any(one.required for one in fields_of(reading.parameters)):
        return None
    if at is not None and "at" not in names:
        return None
    given: dict[str, Any] = {} if at is None else {"at": at}
    return reading.parameters(**given, **({"limit": most} if most and "limit" in names else {}))


class Painter:
    """Draws at one moment."""

    def __init__(self, frame: Frame, now: datetime, at: datetime | None = None) -> None:
        self._frame = frame
        self._now = at or now
        self._at = at

    def ask(self, lifecycle: AnyLifecycle, picture: pictures.Picture, who: str, *, wide: bool = False) -> Markup | None:
        """The picture with its reading asked for what there is room for; None: there is nothing to draw."""
        most = min(_GLANCE, _room(picture, wide=wide))
        wanted = parameters_at(picture.reading, self._at, most)
        if wanted is None:
            return None
        try:
            answer = picture.reading(self._frame.desk.ask(lifecycle, who=who), wanted)
        except UsageError:
            return None
        return self._drawn(lifecycle, picture, answer, wide, most)

    def draw(self, lifecycle: AnyLifecycle, picture: pictures.Picture, answer: Any, *, wide: bool) -> Markup | None:
        """The picture of an answer, on a page that leads to the next one; None: there is nothing to draw."""
        shown = replace(answer, next=None) if isinstance(answer, Page) else answer
        return self._drawn(lifecycle, picture, shown, wide, _room(picture, wide=wide))

    def _drawn(
        self, lifecycle: AnyLifecycle, picture: pictures.Picture, answer: Any, wide: bool, most: int
    ) -> Markup | None:
        found = list(answer.rows) if isinstance(answer, Page) else [answer]
        most = most or len(found)
        drawn = self._kinds[type(picture)](self, lifecycle, picture, found[:most], wide) if found else None
        further = isinstance(answer, Page) and answer.next is not None
        if drawn is not None and (further or len(found) > most) and (wide or isinstance(picture, _SERIES)):
            drawn += element("figcaption", f"The first {most}{'' if further else f' of {len(found):,}'}.")
        return None if drawn is None else Markup(drawn)  # noqa: S704 - escaped by element

    def _ladder(self, _: AnyLifecycle, of: pictures.Ladder, found: list[Any], wide: bool) -> str | None:
        groups: dict[str, dict[str, list[float]]] = {}
        for row in found:
            step = groups.setdefault(self._word(row, of.group), {}).setdefault(self._word(row, of.step), [0.0, 0.0])
            step[0] += getattr(row, of.part) or 0
            step[1] += getattr(row, of.whole) or 0
        drawn = []
        for group, steps in list(groups.items())[: _MOST if wide else _FEW[pictures.Ladder]]:
            bars = [
                Bar(
                    part / whole if whole else 0.0,
                    f"{group} {step}: {part:,.0f} of {whole:,.0f} had changed" if whole else f"{step}: the first load",
                    None,
                    None,
                    step,
                    f"{part / whole:.0%}" if whole else "first",
                )
                for step, (part, whole) in steps.items()
            ]
            label = f"{of.says} {group}"
            drawn.append(element("figcaption", words(inert(group))) if wide and len(groups) > 1 else "")
            drawn.append(_sized(partial(portraits.ladder, bars, inert(label)), wide=wide))
        return "".join(drawn)

    def _calendar(self, lifecycle: AnyLifecycle, of: pictures.Calendar, found: list[Any], wide: bool) -> str | None:
        lines: list[portraits.Line] = []
        shown = _distinct([self._word(row, of.series) for row in found])
        told = wide and sum(len(getattr(row, of.days)) for row in found) <= _LED
        for row, name in zip(found, shown, strict=True):
            series, first = self._word(row, of.series), getattr(row, of.first)
            cells = []
            for number, state in enumerate(getattr(row, of.days)):
                day, link = first + timedelta(days=number), None
                if told and of.leads is not None:
                    link = self._lead(lifecycle, of.leads, f"{series}/{day}")
                meaning = str(getattr(state, "meaning", "rest"))
                cells.append(Bar(1.0, f"{series} {day}: {state}" if told else "", link, meaning))
            lines.append(portraits.Line(inert(name), cells))

        def draw(*, wide: bool) -> str:
            # The cells of the small one are too small to be hit.
            plain = [replace(line, cells=[Bar(1.0, "", None, one.meaning) for one in line.cells]) for line in lines]
            return portraits.calendar(lines if wide else plain, getattr(found[0], of.first), of.says, wide=wide)

        return _sized(draw, wide=wide)

    def _runs(self, lifecycle: AnyLifecycle, of: pictures.Runs, found: list[Any], wide: bool) -> str | None:
        bars = []
        for row in found:
            at, amount, note = getattr(row, of.at), getattr(row, of.amount), self._word(row, of.note)
            state, meaning = self._word(row, of.state), self._meaning(row, of.state)
            told = _told(row, of.amount)
            says = inert(f"{at:%Y-%m-%d %H:%M} UTC: {told}, {note}, {state}")
            short = note if meaning == "done" else f"{note}, {state}"
            link = self._first(lifecycle, row)
            bars.append(Bar(float(amount or 0), says, link, meaning, f"{at:%d %b}", f"{told} {inert(short)}"))
        return _sized(lambda *, wide: rows(bars, of.says, left=48, right=150, width=860 if wide else 340), wide=wide)

    def _cycle(self, lifecycle: AnyLifecycle, of: pictures.Cycle, found: list[Any], wide: bool) -> str | None:
        given = []
        for row in found:
            name, since, until = self._word(row, of.name), getattr(row, of.since), getattr(row, of.until)
            share = None
            if since is not None and until is not None and until > since:
                share = (self._now - since) / (until - since)
            state, soon = self._word(row, of.state), ""
            if until is not None:
                soon = "due now" if until <= self._now else when(until, self._now, short=True)
            says = inert(f"{name} is {state}; next {soon or self._unknown}")
            link = self._first(lifecycle, row)
            given.append(portraits.Ring(inert(name), share, self._meaning(row, of.state), says, soon, link))
        return _sized(partial(portraits.rings, given, of.says), wide=wide)

    def _windows(self, lifecycle: AnyLifecycle, of: pictures.Windows, found: list[Any], wide: bool) -> str | None:
        given = []
        for row in found:
            start, end = _moment(getattr(row, of.start)), _moment(getattr(row, of.end))
            if start is None or end is None:
                continue
            name, meaning = self._word(row, of.name), self._meaning(row, of.state)
            says = inert(f"{name}: {start:%Y-%m-%d} to {end:%Y-%m-%d %H:%M}")
            given.append(portraits.Span(inert(name), start, end, meaning, says, self._first(lifecycle, row)))
        return _sized(partial(portraits.windows, given, self._now, of.says), wide=wide) if given else None

    def _shares(self, lifecycle: AnyLifecycle, of: pictures.Shares, found: list[Any], wide: bool) -> str | None:
        given = []
        for row in found:
            name, whole = self._word(row, of.name), _number(getattr(row, of.whole))
            parts = [(part, _number(getattr(row, part)), meaning) for part, meaning in of.parts.items()]
            told = ", ".join(f"{_told(row, part)} {part}" for part in of.parts)
            unknown = any(getattr(row, part) is None for part in of.parts)
            total = _UNKNOWN if unknown else f"{sum(amount for _, amount, _ in parts):,.0f}"
            note = f"{total} of {_told(row, of.whole)}"
            note += "" if of.note is None else f" {self._word(row, of.note)}"
            says = inert(f"{name}: {told} of {_told(row, of.whole)}")
            given.append(portraits.Share(inert(name), whole, parts, inert(note), says, self._first(lifecycle, row)))
        return _sized(partial(portraits.shares, given, of.says), wide=wide)

    _kinds: Mapping[type, Callable[..., str | None]] = {
        pictures.Ladder: _ladder,
        pictures.Calendar: _calendar,
        pictures.Runs: _runs,
        pictures.Cycle: _cycle,
        pictures.Windows: _windows,
        pictures.Shares: _shares,
    }

    @property
    def _unknown(self) -> str:
        return "not known yet" if self._at is None else "not known any more"

    def _word(self, row: Any, name: str) -> str:
        return word(getattr(row, name), self._now)

    def _meaning(self, row: Any, name: str) -> str:
        return str(getattr(getattr(row, name), "meaning", "rest"))

    def _lead(self, lifecycle: AnyLifecycle, reading: Reading[Any], value: str) -> str:
        return self._frame.reading_link(lifecycle, reading, value, at=self._at)

    def _first(self, lifecycle: AnyLifecycle, row: Any) -> str | None:
        """Where the first column of a row that leads somewhere leads."""
        for one in fields_of(type(row)):
            value = getattr(row, one.attribute)
            if one.extra("leads") and value is not None:
                return self._frame.column_link(lifecycle, one, value, at=self._at)
        return None


def _room(picture: pictures.Picture, *, wide: bool) -> int:
    """How many rows there is room for; 0: all are summed."""
    if isinstance(picture, pictures.Ladder):
        return 0
    if not wide:
        return _FEW[type(picture)]
    return _MOST_RUNS if isinstance(picture, pictures.Runs) else _MOST


def _sized(draw: Callable[..., str], *, wide: bool) -> str:
    """Small for a card; for a page of its own both wide and small: the style sheet shows one of them."""
    if not wide:
        return draw(wide=False)
    return element("div", draw(wide=True), class_="broad") + element("div", draw(wide=False), class_="slim")


def _distinct(names: Sequence[str]) -> list[str]:
    """Names without the parts that all of them have in common."""
    parts = [name.split("/") for name in names]
    if len(names) < 2 or len({len(one) for one in parts}) != 1:  # noqa: PLR2004 - one has nothing in common
        return list(names)
    differs = [len(set(column)) > 1 for column in zip(*parts, strict=True)]
    return ["/".join(part for part, own in zip(one, differs, strict=True) if own) or "/".join(one) for one in parts]


def _told(row: Any, name: str) -> str:
    """A number in words."""
    value = getattr(row, name)
    return _UNKNOWN if value is None else f"{_number(value):,.0f}"


def _number(value: Any) -> float:
    """A number; that of several is their sum."""
    if isinstance(value, Mapping):
        return float(sum(value.values()))
    return float(len(value)) if isinstance(value, Sequence) and not isinstance(value, str) else float(value or 0)


def _moment(value: Any) -> datetime | None:
    """A moment, or the beginning of a day."""
    if isinstance(value, str) and value:
        value = date.fromisoformat(value)
    if value is None or value == "" or isinstance(value, datetime):
        return value or None
    return datetime(value.year, value.month, value.day, tzinfo=UTC)

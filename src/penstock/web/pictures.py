"""Draws what lifecycles declare as their pictures. It knows the kinds of pictures, and no lifecycle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

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
_MOST = 60


def parameters_at(reading: Reading[Any], at: datetime | None) -> Any | None:
    """What it is asked with where nobody says anything; None: it wants to be told more, or knows no past."""
    names = {one.name for one in fields_of(reading.parameters)}
    if any(one.required for one in fields_of(reading.parameters)):
        return None
    if at is None:
        return reading.parameters()
    past = next((name for name in ("at", "as_of") if name in names), None)
    return None if past is None else reading.parameters(**{past: at})


class Painter:
    """Draws at one moment."""

    def __init__(self, frame: Frame, now: datetime, at: datetime | None = None) -> None:
        self._frame = frame
        self._now = at or now
        self._at = at

    def ask(self, lifecycle: AnyLifecycle, picture: pictures.Picture, who: str, *, wide: bool = False) -> Markup | None:
        """The picture with its reading asked as it is; None: there is nothing to draw."""
        wanted = parameters_at(picture.reading, self._at)
        if wanted is None:
            return None
        try:
            answer = picture.reading(self._frame.desk.ask(lifecycle, who=who), wanted)
        except UsageError:
            return None
        return self.draw(lifecycle, picture, answer, wide=wide)

    def draw(self, lifecycle: AnyLifecycle, picture: pictures.Picture, answer: Any, *, wide: bool) -> Markup | None:
        """The picture of an answer; None: there is nothing to draw."""
        found = list(answer.rows) if isinstance(answer, Page) else [answer]
        drawn = self._kinds[type(picture)](self, lifecycle, picture, found, wide) if found else None
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
        for row, name in zip(found, shown, strict=True):
            if len(lines) == (_MOST if wide else _FEW[pictures.Calendar]):
                break
            series, first = self._word(row, of.series), getattr(row, of.first)
            cells = []
            for number, state in enumerate(getattr(row, of.days)):
                day, link = first + timedelta(days=number), None
                if wide and of.leads is not None:
                    link = self._lead(lifecycle, of.leads, f"{series}/{day}")
                meaning = str(getattr(state, "meaning", "rest"))
                cells.append(Bar(1.0, f"{series} {day}: {state}" if wide else "", link, meaning))
            lines.append(portraits.Line(inert(name), cells))
        return _sized(partial(portraits.calendar, lines, getattr(found[0], of.first), of.says), wide=wide)

    def _runs(self, lifecycle: AnyLifecycle, of: pictures.Runs, found: list[Any], wide: bool) -> str | None:
        bars = []
        for row in found[: 20 if wide else _FEW[pictures.Runs]]:
            at, amount, note = getattr(row, of.at), getattr(row, of.amount) or 0, self._word(row, of.note)
            state, meaning = self._word(row, of.state), self._meaning(row, of.state)
            says = inert(f"{at:%Y-%m-%d %H:%M} UTC: {amount:,}, {note}, {state}")
            short = note if meaning == "done" else f"{note}, {state}"
            link = self._first(lifecycle, row)
            bars.append(Bar(float(amount), says, link, meaning, f"{at:%d %b}", f"{amount:,} {inert(short)}"))
        return _sized(lambda *, wide: rows(bars, of.says, left=48, right=150, width=860 if wide else 340), wide=wide)

    def _cycle(self, lifecycle: AnyLifecycle, of: pictures.Cycle, found: list[Any], wide: bool) -> str | None:
        given = []
        for row in found[: _MOST if wide else _FEW[pictures.Cycle]]:
            name, since, until = self._word(row, of.name), getattr(row, of.since), getattr(row, of.until)
            share = 0.0
            if since is not None and until is not None and until > since:
                share = (self._now - since) / (until - since)
            state, soon = (
                self._word(row, of.state),
                "not known yet" if until is None else when(until, self._now, short=True),
            )
            if until is not None and until <= self._now:
                soon = "due now"
            says = inert(f"{name} is {state}; next {soon}")
            link = self._first(lifecycle, row)
            given.append(portraits.Ring(inert(name), share, self._meaning(row, of.state), says, soon, link))
        return _sized(partial(portraits.rings, given, of.says), wide=wide)

    def _windows(self, lifecycle: AnyLifecycle, of: pictures.Windows, found: list[Any], wide: bool) -> str | None:
        given = []
        for row in found[: _MOST if wide else _FEW[pictures.Windows]]:
            start, end = _moment(getattr(row, of.start)), _moment(getattr(row, of.end))
            if start is None or end is None:
                continue
            name, meaning = self._word(row, of.name), self._meaning(row, of.state)
            says = inert(f"{name}: {start:%Y-%m-%d} to {end:%Y-%m-%d %H:%M}")
            given.append(portraits.Span(inert(name), start, end, meaning, says, self._first(lifecycle, row)))
        return _sized(partial(portraits.windows, given, self._now, of.says), wide=wide) if given else None

    def _shares(self, lifecycle: AnyLifecycle, of: pictures.Shares, found: list[Any], wide: bool) -> str | None:
        given = []
        for row in found[: _MOST if wide else _FEW[pictures.Shares]]:
            name, whole = self._word(row, of.name), _number(getattr(row, of.whole))
            parts = [(part, _number(getattr(row, part)), meaning) for part, meaning in of.parts.items()]
            told = ", ".join(f"{amount:,.0f} {part}" for part, amount, _ in parts)
            note = f"{sum(amount for _, amount, _ in parts):,.0f} of {whole:,.0f}"
            note += "" if of.note is None else f" {self._word(row, of.note)}"
            says = inert(f"{name}: {told} of {whole:,.0f}")
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

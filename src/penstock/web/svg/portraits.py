"""The pictures that stand for a flow: a ladder, a calendar, runs, rings, windows and shares.

Nothing is told by colour alone: a fault has a triangle in it, what waits is striped, what rests is hollow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, datetime, timedelta

from msgspec import Struct

from penstock.web.svg.charts import Bar, chart, kind_of, linked
from penstock.web.svg.marks import element, titled, words

_NARROW, _WIDE = 340.0, 860.0
_LETTER = 6.4
_MOST_LETTERS = 34
_LEAST = 11.0
"""So wide is the smallest part of a bar: its shape can be seen."""


def ladder(bars: Sequence[Bar], label: str, *, wide: bool = False) -> str:
    """Shares from 0 to 1 as filled boxes beside each other: what each step still earns. A negative share: unknown."""
    width, high = (_WIDE, 44.0) if wide else (_NARROW, 30.0)
    each = min(width / max(len(bars), 1), 120.0)
    parts = []
    for number, bar in enumerate(bars):
        x, wide_ = number * each + 4, each - 8
        filled = min(max(bar.amount, 0.0), 1.0) * high
        box = element("rect", class_="soft", x=x, y=4, width=wide_, height=high, rx=3)
        if filled:
            box += element("rect", class_=kind_of(bar), x=x, y=4 + high - filled, width=wide_, height=filled, rx=3)
        parts.append(linked(element("g", titled(bar.says) + box), bar.link))
        middle = x + wide_ / 2
        parts.append(element("text", words(bar.label), x=middle, y=high + 15, text_anchor="middle"))
        parts.append(element("text", words(bar.note), x=middle, y=high + 27, text_anchor="middle"))
    return chart(width, high + 30, label, parts)


class Line(Struct, frozen=True):
    """A row of a calendar."""

    name: str
    cells: Sequence[Bar]
    link: str | None = None


def calendar(lines: Sequence[Line], first: date, label: str, *, wide: bool = False) -> str:
    """A row for each name, a cell for each day, coloured by what it means."""
    width = _WIDE if wide else _NARROW
    most = _MOST_LETTERS if wide else 14
    names = [_shortened(line.name, most) for line in lines]
    left = max((len(name) for name in names), default=0) * _LETTER + 8
    each, days = (20.0 if wide else 18.0), max((len(line.cells) for line in lines), default=1)
    step = (width - left) / max(days, 1)
    parts = []
    for number, (line, name) in enumerate(zip(lines, names, strict=True)):
        y = number * each
        text = element("text", titled(line.name) + words(name), x=0, y=y + 13)
        parts.append(linked(text, line.link))
        for place, cell in enumerate(line.cells):
            parts.append(linked(_cell(cell, left + place * step, y + 2, max(step - 1.6, 1.0)), cell.link))
    bottom = each * max(len(lines), 1)
    for share in (0.0, 0.5, 1.0):
        day = first + timedelta(days=round(share * (days - 1)))
        anchor = "start" if not share else "end" if share == 1.0 else "middle"
        x = left + share * (width - left)
        parts.append(element("text", f"{day:%d %b}", x=x, y=bottom + 11, text_anchor=anchor))
    return chart(width, bottom + 14, label, parts)


def _cell(cell: Bar, x: float, y: float, wide: float) -> str:
    """A day: full where it is done, hollow where it rests, with a triangle where it went wrong."""
    kind, high = kind_of(cell) if cell.meaning else "soft", 14.0
    says = titled(cell.says) if cell.says else ""
    if cell.meaning in {"rest", None}:
        return element("rect", says, class_="hollow", x=x + 0.5, y=y + 0.5, width=wide - 1, height=high - 1, rx=1.5)
    if cell.meaning == "work":
        return element("rect", says, class_=kind, x=x, y=y + high / 2, width=wide, height=high / 2, rx=1.5)
    if cell.meaning == "hold":
        stripes = [element("rect", x=x + n * wide * 2 / 3, y=y, width=wide / 3, height=high) for n in (0, 1)]
        return element("g", says + "".join(stripes), class_=kind)
    box = element("rect", says, class_=kind, x=x, y=y, width=wide, height=high, rx=1.5)
    if cell.meaning == "fault":
        middle, half = x + wide / 2, min(wide / 2, 4.0)
        points = f"{middle:.1f},{y + 3:.1f} {middle + half:.1f},{y + 11:.1f} {middle - half:.1f},{y + 11:.1f}"
        box = element("g", box + element("polygon", class_="cut", points=points))
    return box


class Ring(Struct, frozen=True):
    """Something that comes round: the share of its cycle that has passed, if that is known."""

    name: str
    share: float | None
    meaning: str
    says: str
    note: str
    link: str | None = None


def rings(given: Sequence[Ring], label: str, *, wide: bool = False) -> str:
    """A ring for each, filled clockwise."""
    width, across, radius = (_WIDE if wide else _NARROW), 8 if wide else 4, 17.0
    across = min(across, max(len(given), 1))
    each = min(width / across, 113.0)
    parts = []
    for number, ring in enumerate(given):
        x, y = number % across * each + each / 2, number // across * 72 + 22.0
        round_ = 2 * math.pi * radius
        share = min(max(ring.share or 0.0, 0.0), 1.0)
        passed = share * round_
        body = element("circle", class_="track", cx=x, cy=y, r=radius)
        if passed:
            body += element(
                "circle",
                class_=f"turn is-{ring.meaning}",
                cx=x,
                cy=y,
                r=radius,
                stroke_dasharray=f"{passed:.1f} {round_:.1f}",
                transform=f"rotate(-90 {x:.1f} {y:.1f})",
            )
        body += element("text", "?" if ring.share is None else f"{share:.0%}", x=x, y=y + 4, text_anchor="middle")
        body += element("text", words(_shortened(ring.name, 17)), class_="strong", x=x, y=y + 33, text_anchor="middle")
        body += element("text", words(ring.note), x=x, y=y + 45, text_anchor="middle")
        parts.append(linked(element("g", titled(ring.says) + body), ring.link))
    lines = -(-max(len(given), 1) // across)
    return chart(width, lines * 72.0, label, parts)


class Span(Struct, frozen=True):
    """From when to when."""

    name: str
    start: datetime
    end: datetime
    meaning: str
    says: str
    link: str | None = None


def windows(given: Sequence[Span], now: datetime, label: str, *, wide: bool = False) -> str:
    """Spans of time below each other, up to now."""
    width, each = (_WIDE if wide else _NARROW), 20.0
    names = [_shortened(one.name, 24 if wide else 14) for one in given]
    left = max((len(name) for name in names), default=0) * _LETTER + 8
    first = min((one.start for one in given), default=now)
    whole = max((now - first).total_seconds(), 1.0)

    def place(moment: datetime) -> float:
        return left + min(max((moment - first).total_seconds() / whole, 0.0), 1.0) * (width - left)

    bottom = each * max(len(given), 1)
    parts = [element("line", class_="axis", x1=left, x2=width, y1=bottom + 0.5, y2=bottom + 0.5)]
    for number, (one, name) in enumerate(zip(given, names, strict=True)):
        y, x = number * each, place(one.start)
        rect = element(
            "rect", titled(one.says), class_=f"is-{one.meaning}", x=x, y=y + 3, width=max(place(one.end) - x, 2.0),
            height=12, rx=3,
        )  # fmt: skip
        parts.append(element("text", titled(one.name) + words(name), x=0, y=y + 13))
        parts.append(linked(rect, one.link))
    for share, text in ((0.0, f"{first:%d %b}"), (1.0, "now")):
        anchor = "end" if share else "start"
        parts.append(element("text", text, x=left + share * (width - left), y=bottom + 12, text_anchor=anchor))
    return chart(width, bottom + 15, label, parts)


class Share(Struct, frozen=True):
    """A bar in parts: each with its amount and what it means."""

    name: str
    whole: float
    parts: Sequence[tuple[str, float, str]]
    note: str
    says: str
    link: str | None = None


def shares(given: Sequence[Share], label: str, *, wide: bool = False) -> str:
    """Bars of one length, each filled by its parts."""
    width, each = (_WIDE if wide else _NARROW), 20.0
    names = [_shortened(one.name, 24 if wide else 12) for one in given]
    left = max((len(name) for name in names), default=0) * _LETTER + 8
    right = max((len(one.note) for one in given), default=0) * _LETTER + 8
    long = width - left - right
    drawn = []
    for number, (one, name) in enumerate(zip(given, names, strict=True)):
        y, x = number * each, left
        body = element("rect", class_="soft", x=left, y=y + 3, width=long, height=12, rx=3)
        filled = [
            (max(min(amount / one.whole, 1.0) * long, _LEAST), meaning)
            for _, amount, meaning in one.parts
            if amount and one.whole
        ]
        over = max(sum(part for part, _ in filled) - long, 0.0)
        for part, meaning in filled:
            part -= over if part > long / 2 else 0.0  # noqa: PLW2901 - the largest makes room for the least
            body += _cell(Bar(1.0, "", meaning=meaning), x, y + 2, max(part - 1, 1.0))
            x += part
        drawn.append(element("text", titled(one.name) + words(name), x=0, y=y + 13))
        drawn.append(linked(element("g", titled(one.says) + body), one.link))
        drawn.append(element("text", words(one.note), x=left + long + 8, y=y + 13))
    return chart(width, each * max(len(given), 1), label, drawn)


def _shortened(text: str, most: int) -> str:
    """The end of a name says more than its beginning."""
    return text if len(text) <= most else f"…{text[-most + 1 :]}"

"""Charts: the time bar, bars, and spans of time on a logarithmic scale.

Colours come from the style sheet by what they mean, so that a dark page needs nothing of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from penstock.web.svg.marks import element, titled, words

_BASE, _TALL = 34.0, 26.0


class Bar(Struct, frozen=True):
    """One bar: how much, what it says when pointed at, and where it leads."""

    amount: float
    says: str
    link: str | None = None
    #: What it means: rest, work, done, hold or fault; None: an amount without a meaning.
    meaning: str | None = None
    label: str = ""
    note: str = ""


class Tick(Struct, frozen=True):
    """A word below an axis, at a share of its width."""

    share: float
    text: str


def chart(width: float, height: float, label: str, parts: Sequence[str]) -> str:
    """A picture that scales with its place."""
    return element(
        "svg", "".join(parts), class_="chart", viewBox=f"0 0 {width:g} {height:g}", role="img", aria_label=label
    )


def linked(content: str, link: str | None) -> str:
    """The same, leading somewhere."""
    return content if link is None else element("a", content, href=link)


def kind_of(bar: Bar) -> str:
    """Its class in the style sheet."""
    return "bar" if bar.meaning is None else f"is-{bar.meaning}"


def time_bar(
    bars: Sequence[Bar], ticks: Sequence[Tick], label: str, *, at: float | None = None, none: str = "nothing changed"
) -> str:
    """How much happened in each slice of time; `at` is where the handle stands, `none` is said where nothing did."""
    width = 860.0
    each = width / max(len(bars), 1)
    most = max((bar.amount for bar in bars), default=0.0)
    parts = [element("line", class_="axis", x1=0, x2=width, y1=_BASE + 0.5, y2=_BASE + 0.5)]
    for number, bar in enumerate(bars):
        if not bar.amount:
            continue
        # By its magnitude: one busy hour must not flatten all the others.
        high = 3 + (_TALL - 3) * math.log1p(bar.amount) / math.log1p(most)
        rect = element(
            "rect",
            titled(bar.says),
            class_=kind_of(bar),
            x=number * each + 1,
            y=_BASE - high,
            width=max(each - 2, 1.0),
            height=high,
            rx=1.5,
        )
        if bar.meaning == "fault":  # colour is never alone
            x, y = (number + 0.5) * each, _BASE - high - 1
            points = f"{x:.1f},{y - 6:.1f} {x + 4:.1f},{y:.1f} {x - 4:.1f},{y:.1f}"
            rect += element("polygon", class_="is-fault tip", points=points)
        parts.append(linked(rect, bar.link))
    for tick in ticks:
        anchor = "end" if tick.share == 1.0 else "start"
        parts.append(element("text", words(tick.text), x=tick.share * width, y=47, text_anchor=anchor))
    if not most:
        parts.append(element("text", words(none), x=width / 2, y=22, text_anchor="middle"))
    if at is not None:
        x = min(max(at, 0.0), 1.0) * width
        parts.append(element("line", class_="handle", x1=x, x2=x, y1=4, y2=_BASE))
    return chart(width, 50, label, parts)


def rows(bars: Sequence[Bar], label: str, *, left: float = 66.0, right: float = 64.0, width: float = 340.0) -> str:
    """Bars below each other, each with its label and its note."""
    each = 19.0
    most = max((bar.amount for bar in bars), default=0.0) or 1.0
    parts = []
    for number, bar in enumerate(bars):
        y = number * each
        long = max(bar.amount / most * (width - left - right), 3.0)
        # What is not done is hollow: colour is never alone.
        kind = kind_of(bar) + (" open" if bar.meaning not in {None, "done"} else "")
        rect = element("rect", titled(bar.says), class_=kind, x=left, y=y + 3, width=long, height=13, rx=3)
        parts.append(element("text", words(bar.label), x=0, y=y + 13))
        parts.append(linked(rect, bar.link))
        parts.append(element("text", words(bar.note), x=left + long + 6, y=y + 13))
    return chart(width, max(each * len(bars), each), label, parts)


def spans(named: Sequence[tuple[str, str, float, float]], label: str) -> str:
    """The usual and the longest time, in seconds, for each (name, meaning); the axis is logarithmic."""
    width, each = 340.0, 20.0
    left = 16 + 7.0 * max((len(name) for name, *_ in named), default=0)
    marks = [("1 s", 1.0), ("1 min", 60.0), ("1 h", 3_600.0), ("1 d", 86_400.0), ("30 d", 2_592_000.0)]
    top = math.log(marks[-1][1])
    bottom = each * max(len(named), 1)

    def place(seconds: float) -> float:
        return left + min(max(math.log(max(seconds, 1.0)) / top, 0.0), 1.0) * (width - left - 14)

    parts = [
        part
        for text, seconds in marks
        for part in (
            element("line", class_="axis", x1=place(seconds), x2=place(seconds), y1=0, y2=bottom),
            element("text", words(text), x=place(seconds), y=bottom + 12, text_anchor="middle"),
        )
    ]
    for number, (name, meaning, usual, longest) in enumerate(named):
        y = number * each + 10
        x, far = place(usual), place(max(longest, usual))
        parts.append(element("text", words(name), x=0, y=y + 4))
        parts.append(
            element("rect", class_=f"is-{meaning}", x=x, y=y - 2, width=max(far - x, 0.0), height=4, rx=2, opacity=0.35)
        )
        parts.append(element("circle", class_=f"is-{meaning}", cx=x, cy=y, r=4))
    return chart(width, bottom + 16, label, parts)


def ahead(coming: Sequence[tuple[datetime, Bar]], start: datetime, hours: float, label: str) -> str:
    """What is expected in the next hours."""
    width, base = 320.0, 30.0
    most = max((bar.amount for _, bar in coming), default=0.0) or 1.0
    parts = [element("line", class_="axis", x1=0, x2=width, y1=base, y2=base)]
    for at, bar in coming:
        share = (at - start).total_seconds() / 3_600 / hours
        high = 8 + 14 * bar.amount / most
        x = min(max(share, 0.0), 1.0) * (width - 5)
        rect = element("rect", titled(bar.says), class_=kind_of(bar), x=x, y=base - high, width=5, height=high, rx=2)
        parts.append(linked(rect, bar.link))
    for share, text in ((0.0, "now"), (0.25, "+6 h"), (0.5, "+12 h"), (0.75, "+18 h"), (1.0, "+24 h")):
        anchor = "start" if not share else "end" if share == 1.0 else "middle"
        parts.append(element("text", words(text), x=share * width, y=42, text_anchor=anchor))
    return chart(width, 44, label, parts)

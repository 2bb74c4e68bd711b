"""How a catalogue is cut into partitions of about the same size by asking for few counts. Pure.

`scan` is a generator: it yields a span and is sent the number of records in it. All its questions begin at the axis'
lowest point, so that every answer is a point of one rising curve; between the points that are known the curve is
guessed, from the shape that it had last time or from its neighbours. Each cut is wanted where the curve reaches a
multiple of the mean, and taken once a point is known that is near enough.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from penstock.lifecycles.harvest.feed import Span

NEAR = 0.24
"""How far from its place a cut may lie, in means: two cuts together make no partition larger than 1.5 means."""
_FIRST_LOOK = 10
_MOST_CALLS = 200
_GROWTH = 8

Counted = tuple[int, int | None, int]
"""A span's ends and the records in it, as the density is remembered."""


@dataclass(frozen=True, slots=True)
class Split:
    """How finely a run is cut: partitions of `target` records if possible, `most` of them, none below the `least`."""

    target: int = 5_000
    least: int = 1_000
    most: int = 30

    def partitions(self, records: int) -> int:
        """Enough that none exceeds the target, but none below the least, and no more than there are workers."""
        if records == 0:
            return 0
        wanted = max(1, min(math.ceil(records / self.target), self.most))
        return min(wanted, max(1, records // self.least))


@dataclass(frozen=True, slots=True)
class Scanned:
    """The partitions, what was learnt of the density, and how many counts it took."""

    partitions: Sequence[Counted]
    density: Sequence[Counted]
    records: int
    calls: int


Questions = Generator[Span, int, Scanned]


def scan(lowest: int, highest: int, split: Split, remembered: Sequence[Counted] = ()) -> Questions:
    """Split everything from `lowest` upwards. Returns what it came to; every partition but the last has an end."""
    total = yield Span(lowest)
    number = split.partitions(total)
    curve = _Curve(lowest, max(highest, lowest + 2), total, _Shape(lowest, remembered))
    if number > 1:
        yield from _look_around(curve, number)
        for wanted in _wanted(total, number):
            yield from _approach(curve, wanted, total / number * NEAR)
    partitions = _cut(curve, number)
    return Scanned(partitions, curve.spans() if total else list(remembered), total, curve.calls)


def _wanted(total: int, number: int) -> list[float]:
    """Where the cuts belong, the middle ones first: each answer helps those on either side of it."""
    places = [total * place / number for place in range(1, number)]
    order: list[float] = []
    todo = [(0, len(places))]
    while todo:
        first, last = todo.pop(0)
        if first < last:
            middle = (first + last) // 2
            order.append(places[middle])
            todo += [(first, middle), (middle + 1, last)]
    return order


def _look_around(curve: _Curve, number: int) -> Generator[Span, int, None]:
    """Where nothing is remembered, a few points first, spread evenly over the axis' magnitudes."""
    if curve.shape.known:
        return
    looks = min(_FIRST_LOOK, number)
    low, high = 0.0, math.log(curve.highest - curve.lowest + 1)
    for step in range(1, looks + 1):
        yield from curve.ask(curve.lowest + round(math.expm1(low + (high - low) * step / looks)))


def _approach(curve: _Curve, wanted: float, near: float) -> Generator[Span, int, None]:
    """Ask until a point is known near the wanted one, or none can be."""
    for attempt in range(_MOST_CALLS):
        if curve.calls >= _MOST_CALLS or curve.nearest(wanted) <= near:
            return
        point = curve.guess(wanted, halve=attempt >= 3)  # noqa: PLR2004 - by then the guesses are no good
        if point is None:
            return
        yield from curve.ask(point)


def _cut(curve: _Curve, number: int) -> list[Counted]:
    """The partitions: for every wanted cut the nearest known point; no empty ones."""
    if number == 0:
        return []
    chosen: list[tuple[int, int]] = [(curve.lowest, 0)]
    for place in range(1, number):
        point, below = curve.point_near(curve.total * place / number)
        if below > chosen[-1][1] and below < curve.total:
            chosen.append((point, below))
    ends = [*chosen[1:], (None, curve.total)]
    return [(low, high, above - below) for (low, below), (high, above) in zip(chosen, ends, strict=True)]


class _Shape:
    """How records lay along the axis last time, as shares below a point."""

    def __init__(self, lowest: int, remembered: Sequence[Counted]) -> None:
        total = sum(count for _, _, count in remembered)
        below, self._points, self._shares = 0, [float(lowest)], [0.0]
        for _, high, count in remembered:
            below += count
            if high is not None and high > self._points[-1] and total:
                self._points.append(float(high))
                self._shares.append(below / total)
        self.known = len(self._points) > 2  # noqa: PLR2004 - a single cut is no shape

    def below(self, point: float) -> float:
        """The share below a point."""
        at = bisect.bisect_right(self._points, point)
        if at == len(self._points):
            return 1 - (1 - self._shares[-1]) * self._points[-1] / max(point, 1.0)
        left, right = self._points[at - 1], self._points[at]
        part = (point - left) / (right - left)
        return self._shares[at - 1] + part * (self._shares[at] - self._shares[at - 1])


@dataclass(slots=True)
class _Curve:
    """Points of the axis and the records below them, as far as they are known."""

    lowest: int
    highest: int
    total: int
    shape: _Shape
    calls: int = 1
    points: list[int] = field(init=False)
    below: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.points, self.below = [self.lowest], [0]

    def ask(self, point: int) -> Generator[Span, int, None]:
        """Learn how many records lie below a point. What changes meanwhile never makes the curve fall."""
        at = bisect.bisect_left(self.points, point)
        if point <= self.lowest or (at < len(self.points) and self.points[at] == point):
            return
        answer = yield Span(self.lowest, point)
        self.calls += 1
        above = self.below[at] if at < len(self.below) else self.total
        self.points.insert(at, point)
        self.below.insert(at, min(max(answer, self.below[at - 1]), above))

    def nearest(self, wanted: float) -> float:
        """How far the nearest known point is from the wanted height, in records."""
        return abs(self.point_near(wanted)[1] - wanted)

    def point_near(self, wanted: float) -> tuple[int, int]:
        """The known point nearest to a height."""
        at = bisect.bisect_left(self.below, wanted)
        sides = [i for i in (at - 1, at) if 0 <= i < len(self.below)]
        best = min(sides, key=lambda i: abs(self.below[i] - wanted))
        return self.points[best], self.below[best]

    def guess(self, wanted: float, *, halve: bool) -> int | None:
        """Where the curve reaches a height, between the known points around it; None: there is no point between."""
        at = bisect.bisect_left(self.below, wanted)
        left, low = self.points[at - 1], self.below[at - 1]
        if at == len(self.points):
            return max(left + 1, left * _GROWTH, self.highest)
        right, high = self.points[at], self.below[at]
        if right - left <= 1:
            return None
        if halve:
            guessed = self.lowest + math.sqrt((left - self.lowest + 1) * (right - self.lowest + 1)) - 1
        elif self.shape.known:
            guessed = self._by_shape(left, right, (wanted - low) / (high - low))
        else:
            guessed = self._by_neighbours(at, wanted)
        return min(max(round(guessed), left + 1), right - 1)

    def _by_shape(self, left: int, right: int, part: float) -> float:
        first, last = self.shape.below(left), self.shape.below(right)
        goal = first + part * (last - first)
        low, high = float(left), float(right)
        while high - low > 0.5:  # noqa: PLR2004 - points are whole
            middle = (low + high) / 2
            low, high = (middle, high) if self.shape.below(middle) < goal else (low, middle)
        return (low + high) / 2

    def _by_neighbours(self, at: int, wanted: float) -> float:
        """A smooth rising curve through the known points, over the logarithm of the axis."""
        where = [math.log(p - self.lowest + 1) for p in self.points]
        left, right = where[at - 1], where[at]
        low, high = self.below[at - 1], self.below[at]
        first, last = _slope(where, self.below, at - 1), _slope(where, self.below, at)
        a, b = 0.0, 1.0
        width = right - left
        for _ in range(40):
            middle = (a + b) / 2
            if _hermite(middle, low, high, first * width, last * width) < wanted:
                a = middle
            else:
                b = middle
        return self.lowest + math.expm1(left + a * width)

    def spans(self) -> list[Counted]:
        """What is known, span by span."""
        ends = [*zip(self.points[1:], self.below[1:], strict=True), (None, self.total)]
        starts = zip(self.points, self.below, strict=True)
        return [(low, high, above - below) for (low, below), (high, above) in zip(starts, ends, strict=True)]


def _slope(where: Sequence[float], below: Sequence[int], at: int) -> float:
    """The slope at a known point: the harmonic mean of those on either side, so that the curve never falls."""
    if at == 0 or at == len(where) - 1:
        return 0.0
    left = (below[at] - below[at - 1]) / (where[at] - where[at - 1])
    right = (below[at + 1] - below[at]) / (where[at + 1] - where[at])
    return 0.0 if left <= 0 or right <= 0 else 2 * left * right / (left + right)


def _hermite(t: float, low: float, high: float, first: float, last: float) -> float:
    square, cube = t * t, t * t * t
    return (
        (2 * cube - 3 * square + 1) * low
        + (cube - 2 * square + t) * first
        + (3 * square - 2 * cube) * high
        + (cube - square) * last
    )

"""The stones that Nivoda's simulator sells: half a million in a second or two, from a seed, and always changing.

A stone is a number. What it costs and when it was updated stand in arrays; all else follows from the seed and the
number, and is written down only when it is asked for. Prices are drawn from three kinds of stone, each log-normal, and
gather at round sums, so that equal steps of price hold very unequal numbers of stones.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import NormalDist
from typing import Any

from penstock.model.clock import EPOCH, MILLISECOND, instant_text
from penstock.simulators.graphql import Field

NUMBER_BITS = 24
MOST_STONES = 1 << NUMBER_BITS

_GONE = -1
_VIEWS = 256
_NUMBERS = MOST_STONES - 1
_STEPS = 4096
_AGE = timedelta(days=90)
_CHEAPEST, _DEAREST = 3_500, 300_000_000
#: Share in sixteenths, median in dollars and spread of each kind: laboratory-grown, natural, rare.
_KINDS = ((9, 420.0, 0.75), (5, 1_900.0, 0.85), (2, 9_500.0, 1.0))
_ROUND_SUMS = (10_000, 5_000, 50_000, 100_000)


def _quoted(words: str) -> tuple[str, ...]:
    return tuple(f'"{word}"' for word in words.split())


_SHAPES = _quoted("ROUND " * 7 + "OVAL OVAL EMERALD CUSHION PEAR PRINCESS RADIANT MARQUISE HEART")
_COLORS = _quoted("D E F G H I J K D E F G H F G E")
_CLARITIES = _quoted("VS1 VS2 VVS2 SI1 VVS1 IF SI2 FL VS1 VS2 VVS2 SI1 VS1 VS2 I1 VS1")
_CUTS = _quoted("EX EX EX VG VG G EX F")
_LABS = _quoted("GIA IGI IGI GIA IGI GIA HRD GCAL")
_AVAILABLE = _quoted("AVAILABLE " * 14 + "ON_HOLD SOLD")

DEFECTS = (
    "no certificate",
    "no price",
    "no diamond",
    "no stone id",
    "negative price",
    "absurd price",
    "absurd carats",
    "unknown words",
)
"""What may be wrong with a stone's record, in turn."""

ITEM = {
    "id": None,
    "price": None,
    "discount": None,
    "updated_at": None,
    "diamond": {
        "id": None,
        "availability": None,
        "supplierStockId": None,
        "image": None,
        "video": None,
        "certificate": dict.fromkeys(("id", "lab", "certNumber", "shape", "carats", "color", "clarity", "cut")),
    },
}
"""What can be selected of an item."""


@dataclass(slots=True)
class _View:
    """The stones within bounds, kept in order: by price, or by birth. It is told of every change."""

    low: int
    high: int
    since: int | None
    until: int | None
    by_price: bool
    keys: array[int]

    def holds(self, price: int, updated: int) -> bool:
        return (
            self.low <= price <= self.high
            and (self.since is None or self.since <= updated)
            and (self.until is None or updated <= self.until)
        )

    def key(self, number: int, price: int) -> int:
        return price << NUMBER_BITS | number if self.by_price else number

    def drop(self, key: int) -> None:
        del self.keys[bisect_left(self.keys, key)]

    def put(self, key: int) -> None:
        self.keys.insert(bisect_left(self.keys, key), key)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which stones: prices in cents and instants, both ends included; None: without end."""

    low: int | None = None
    high: int | None = None
    since: datetime | None = None
    until: datetime | None = None


class _Instant(int):
    """Milliseconds that are written as an instant, when they are written."""

    def __str__(self) -> str:
        return f'"{instant_text(EPOCH + int(self) * MILLISECOND)}"'


class Catalogue:
    """So many stones, made up from a seed, none updated later than `now`. A share of their records is `bad`."""

    def __init__(self, stones: int, now: datetime, *, seed: int = 7, bad: float = 0.0) -> None:
        if not 0 <= stones <= MOST_STONES // 2:
            msg = f"{stones} stones cannot be simulated; 0 to {MOST_STONES // 2:,} can"
            raise ValueError(msg)
        self._seed = seed
        self._bad = int(bad * 65_536)
        self._traits: array[int] = array("Q")
        self._prices: array[int] = array("q")
        self._updated: array[int] = array("q")
        self._revisions: array[int] = array("H")
        self._views: dict[tuple[int, int, int | None, int | None, bool], _View] = {}
        self._batches = 0
        self._drawn = 0
        self._add(stones, _milliseconds(now), spread=_AGE // MILLISECOND)
        keys = [price << NUMBER_BITS | number for number, price in enumerate(self._prices)]
        keys.sort()
        self._all = _View(0, _DEAREST, None, None, True, array("Q", keys))

    def __len__(self) -> int:
        return len(self._all.keys)

    def count(self, wanted: Wanted) -> int:
        """How many there are."""
        _, first, last = self._by_price(wanted)
        return last - first

    def page(
        self, wanted: Wanted, offset: int, limit: int, *, by_price: bool = True, descending: bool = False
    ) -> Sequence[int]:
        """Their numbers, in order of price (then of birth), or of birth alone."""
        view, first, last = self._by_price(wanted)
        if not by_price:
            view = self._view(wanted, by_price=False)
            first, last = 0, len(view.keys)
        if descending:
            low = max(first, last - offset - limit)
            keys = view.keys[low : max(low, last - offset)][::-1]
        else:
            keys = view.keys[first + offset : min(last, first + offset + limit)]
        return [key & _NUMBERS for key in keys]

    def change(self, count: int, now: datetime) -> list[int]:
        """Other prices for some stones."""
        return [
            self._move(number, now, self._prices[number] * (80 + self._draw() % 41) // 100)
            for number in self._some(count)
        ]

    def reprice(self, number: int, price: int, now: datetime) -> None:
        """Another price for one stone, in cents."""
        self._move(number, now, price)

    def touch(self, count: int, now: datetime) -> list[int]:
        """Some stones are updated at the same price: their availability or their discount."""
        return [self._move(number, now, self._prices[number]) for number in self._some(count)]

    def insert(self, count: int, now: datetime) -> list[int]:
        """New stones."""
        first = len(self._prices)
        moment = _milliseconds(now)
        self._add(count, moment, spread=0)
        for number in range(first, first + count):
            self._tell(number, _GONE, 0, self._prices[number], moment)
        return list(range(first, first + count))

    def remove(self, count: int) -> list[int]:
        """Some stones are gone."""
        chosen = self._some(count)
        for number in chosen:
            price, updated = self._prices[number], self._updated[number]
            self._prices[number] = _GONE
            self._tell(number, price, updated, _GONE, 0)
        return chosen

    def price(self, number: int) -> int | None:
        """The price of a stone in cents; None when it is gone."""
        price = self._prices[number]
        return None if price == _GONE else price

    def updated(self, number: int) -> datetime:
        """When a stone was last updated."""
        return EPOCH + self._updated[number] * MILLISECOND

    def stone_id(self, number: int) -> str:
        """The stone's id, as the API gives it."""
        return _uuid(self._traits[number], number)

    def defect(self, number: int) -> str | None:
        """What is wrong with a stone's record."""
        traits = self._traits[number]
        return DEFECTS[number % len(DEFECTS)] if traits >> 48 < self._bad else None

    def items(self, numbers: Sequence[int], template: str, selected: Mapping[str, Field], unit: int) -> Iterator[str]:
        """Records as JSON; `template` is `template(selected)`, prices are in so many cents."""
        for number in numbers:
            if self._bad and (defect := self.defect(number)):
                values = {name: json.loads(str(value)) for name, value in self._values(number, unit).items()}
                yield json.dumps(_spoiled(_nested(values, selected), defect))
            else:
                yield template % self._values(number, unit)

    def _values(self, number: int, unit: int) -> dict[str, object]:
        """Every field, as JSON."""
        traits, price, revision = self._traits[number], self._prices[number], self._revisions[number]
        stone = _uuid(traits, number)
        carats = 30 + (traits >> 24 & 0xFF) + price // 8_000 % 400
        return {
            "id": f'"DIAMOND/{number:08x}{stone[8:]}"',
            "price": str(price if unit == 1 else price / unit),
            "discount": str((traits + revision) % 600 / -10),
            "updated_at": _Instant(self._updated[number]),
            "diamond.id": f'"{stone}"',
            "diamond.availability": _AVAILABLE[(traits >> 4) + revision & 15],
            "diamond.supplierStockId": f'"ST-{number}"',
            "diamond.image": f'"https://images.nivoda.sim/{stone}.jpg"' if traits & 64 else "null",
            "diamond.video": f'"https://video.nivoda.sim/{stone}"' if traits & 128 else "null",
            "diamond.certificate.id": f'"CERT-{number}"',
            "diamond.certificate.lab": _LABS[traits >> 8 & 7],
            "diamond.certificate.certNumber": f'"{1_000_000_000 + number * 7}"',
            "diamond.certificate.shape": _SHAPES[traits >> 12 & 15],
            "diamond.certificate.carats": str(carats / 100),
            "diamond.certificate.color": _COLORS[traits >> 16 & 15],
            "diamond.certificate.clarity": _CLARITIES[traits >> 20 & 15],
            "diamond.certificate.cut": _CUTS[traits >> 9 & 7],
        }

    def _add(self, count: int, now: int, *, spread: int) -> None:
        self._batches += 1
        drawn: array[int] = array("Q", hashlib.shake_128(f"{self._seed}/{self._batches}".encode()).digest(8 * count))
        tables = _price_tables()
        self._traits.extend(drawn)
        self._prices.extend([_price(tables[traits & 15], traits) for traits in drawn])
        self._updated.extend([now - (traits >> 20) % (spread + 1) for traits in drawn])
        self._revisions.frombytes(bytes(2 * count))

    def _draw(self) -> int:
        self._drawn += 1
        digest = hashlib.blake2b(f"{self._seed}/{self._drawn}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big")

    def _some(self, count: int) -> list[int]:
        """Stones that are there, each once."""
        keys, chosen = self._all.keys, dict[int, None]()
        while len(chosen) < min(count, len(keys)):
            chosen[keys[self._draw() % len(keys)] & _NUMBERS] = None
        return list(chosen)

    def _move(self, number: int, now: datetime, wanted: int) -> int:
        price, updated = self._prices[number], self._updated[number]
        other = price if wanted == price else min(max(wanted, _CHEAPEST), _DEAREST)
        moment = _milliseconds(now)
        self._prices[number], self._updated[number] = other, moment
        self._revisions[number] = (self._revisions[number] + 1) % 65_536
        self._tell(number, price, updated, other, moment)
        return number

    def _tell(self, number: int, price: int, updated: int, new_price: int, new_updated: int) -> None:
        for view in (self._all, *self._views.values()):
            if price != _GONE and view.holds(price, updated):
                view.drop(view.key(number, price))
            if new_price != _GONE and view.holds(new_price, new_updated):
                view.put(view.key(number, new_price))

    def _by_price(self, wanted: Wanted) -> tuple[_View, int, int]:
        """A view in order of price, and where in it the wanted ones begin and end."""
        view = self._all
        if wanted.since is not None or wanted.until is not None:
            view = self._view(Wanted(None, None, wanted.since, wanted.until), by_price=True)
        low, high = _bounds(wanted)
        first = bisect_left(view.keys, low << NUMBER_BITS)
        return view, first, max(first, bisect_left(view.keys, high + 1 << NUMBER_BITS))

    def _view(self, wanted: Wanted, *, by_price: bool) -> _View:
        low, high = _bounds(wanted)
        since = None if wanted.since is None else _milliseconds(wanted.since)
        until = None if wanted.until is None else _milliseconds(wanted.until)
        name = (low, high, since, until, by_price)
        view = self._views.pop(name, None)
        if view is None:
            view = _View(*name, array("Q"))
            view.keys = array("Q", sorted(self._matching(view)))
            if len(self._views) >= _VIEWS:
                del self._views[next(iter(self._views))]
        self._views[name] = view
        return view

    def _matching(self, view: _View) -> Iterator[int]:
        keys = self._all.keys
        first, last = bisect_left(keys, view.low << NUMBER_BITS), bisect_left(keys, view.high + 1 << NUMBER_BITS)
        for key in keys[first:last]:
            number, price = key & _NUMBERS, key >> NUMBER_BITS
            if view.holds(price, self._updated[number]):
                yield view.key(number, price)


def template(selected: Mapping[str, Field], below: str = "") -> str:
    """How an item is written, with a place for each selected field."""
    parts = []
    for name, one in selected.items():
        value = f"%({below}{name})s" if one.fields is None else template(one.fields, f"{below}{name}.")
        parts.append(f'"{name}":{value}')
    return "{" + ",".join(parts) + "}"


def _nested(values: Mapping[str, Any], selected: Mapping[str, Field], below: str = "") -> dict[str, Any]:
    return {
        name: values[below + name] if one.fields is None else _nested(values, one.fields, f"{below}{name}.")
        for name, one in selected.items()
    }


def _spoiled(item: dict[str, Any], defect: str) -> dict[str, Any]:
    """The record with something wrong in it, as far as it was selected."""
    diamond = item.get("diamond") or {}
    changes: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "no certificate": (diamond, {"certificate": None}),
        "no price": (item, {"price": None}),
        "no diamond": (item, {"diamond": None}),
        "no stone id": (diamond, {"id": None}),
        "negative price": (item, {"price": -1}),
        "absurd price": (item, {"price": 10**15}),
        "absurd carats": (diamond.get("certificate") or {}, {"carats": 1e9}),
        "unknown words": (
            diamond.get("certificate") or {},
            {"shape": "BLOB", "color": "?", "clarity": "", "cut": None},
        ),
    }
    part, change = changes[defect]
    part.update({name: value for name, value in change.items() if name in part})
    return item


@functools.cache
def _price_tables() -> list[list[float]]:
    """For each sixteenth, the prices in cents at even steps of its kind's distribution."""
    normal = [NormalDist().inv_cdf((step + 0.5) / (_STEPS + 1)) for step in range(_STEPS + 1)]
    made = []
    for share, median, spread in _KINDS:
        made += [[100 * median * math.exp(spread * z) for z in normal]] * share
    return made


def _price(table: Sequence[float], traits: int) -> int:
    """A price: one in four is a round sum, half of the others are whole dollars."""
    step, part = traits >> 36 & _STEPS - 1, (traits >> 4 & 0xFFFF) / 65_536
    cents = int(table[step] + (table[step + 1] - table[step]) * part)
    habit = traits >> 28 & 7
    if habit < 2:  # noqa: PLR2004 - two of eight
        nearest = _ROUND_SUMS[traits >> 31 & 3] if cents > 100_000 else _ROUND_SUMS[traits >> 31 & 1]  # noqa: PLR2004
        cents = max(nearest, (cents + nearest // 2) // nearest * nearest)
    elif habit < 5:  # noqa: PLR2004 - three of eight
        cents -= cents % 100
    return min(max(cents, _CHEAPEST), _DEAREST)


def _bounds(wanted: Wanted) -> tuple[int, int]:
    low = 0 if wanted.low is None else max(0, wanted.low)
    high = _DEAREST if wanted.high is None else min(_DEAREST, wanted.high)
    return low, max(high, low - 1)


def _milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MILLISECOND


def _uuid(traits: int, number: int) -> str:
    return (
        f"{traits >> 32 & 0xFFFF_FFFF:08x}-{traits >> 16 & 0xFFFF:04x}-4{traits & 0xFFF:03x}"
        f"-8{number >> 12 & 0xFFF:03x}-{number:012x}"
    )

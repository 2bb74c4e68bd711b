"""The job offers that the generic API's simulator lists: from a seed, and always changing.

An offer is a number. When it was updated stands in a sorted list, the newest first; all else follows from the seed, the
number and its version, and is written down only when it is asked for.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from penstock.model.clock import EPOCH, MILLISECOND, instant_text

AGE = timedelta(days=90)
"""How old offers are at most when the simulator is born."""
CATEGORIES = ("python", "java", "design", "sales", "nursing")

_CITIES = (("Madrid", "Madrid"), ("Getafe", "Madrid"), ("Barcelona", "Barcelona"), ("Bilbao", "Bizkaia"))
_WORDS = ("Senior", "Junior", "Lead", "Remote", "Night", "Chief", "Assistant")
_CONTRACTS = ("permanent", "fixed-term", "freelance")
_STEPS = 1 << 20
Key = tuple[int, int]
"""Minus the milliseconds of the last update, and minus the number: sorted, the newest is first."""


def _no_id(record: dict[str, Any]) -> Any:
    del record["id"]
    return record


def _with(**changes: Any) -> Any:
    return lambda record: record | changes


DEFECTS = {
    "no id": _no_id,
    "id is a list": _with(id=["1"]),
    "id is long": _with(id="x" * 301),
    "no date": _with(updated_at=None),
    "date is a word": _with(updated_at="yesterday"),
    "pay is a word": _with(pay={"min": "a lot", "max": None}),
    "title is an object": _with(title={"es": "Jefe"}),
    "not an object": lambda record: record["id"],
    "too large": _with(text="x" * 200_001),
}
"""What makes a record that cannot be used, in turn."""
ODDITIES = {
    "NUL": _with(title="Chief\0 Officer"),
    "half of a pair": _with(title="Chief \ud83d Officer"),
    "huge number": _with(views=10**40),
}
"""What a record may have in it and still be used."""


class Listing:
    """Offers in the order of their last update. `bad` is the share of records with something wrong in them."""

    def __init__(self, count: int, now: datetime, *, seed: int = 7, bad: float = 0.0) -> None:
        self.seed, self.bad = seed, bad
        self._keys: list[Key] = []
        self._updated: dict[int, int] = {}
        self._created: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self._drawn = 0
        ages = sorted((self._draw("age", number) for number in range(count)), reverse=True)
        for age in ages:
            self._put(len(self._created) + 1, _milliseconds(now) - age * int(AGE / MILLISECOND) // _STEPS)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[int]:
        """The numbers, the newest first."""
        return (-number for _, number in self._keys)

    def add(self, count: int, now: datetime) -> list[int]:
        """New offers."""
        numbers = [len(self._created) + 1 + place for place in range(count)]
        for number in numbers:
            self._put(number, _milliseconds(now))
        return numbers

    def bump(self, count: int, now: datetime) -> list[int]:
        """Some offers change, and are the newest from now on."""
        numbers = self._some(count)
        for number in numbers:
            self._drop(number)
            self._versions[number] += 1
            self._put(number, _milliseconds(now))
        return numbers

    def remove(self, count: int) -> list[int]:
        """Some offers go."""
        numbers = self._some(count)
        for number in numbers:
            self._drop(number)
        return numbers

    def listed(
        self, *, newest_first: bool = True, since: datetime | None = None, categories: Collection[str] = ()
    ) -> Sequence[Key]:
        """The keys of what a search finds, in its order: of the last update, or of birth."""
        keys: Sequence[Key] = self._keys
        if since is not None:
            keys = keys[: bisect_left(keys, (-_milliseconds(since) + 1, -_STEPS))]
        if categories:
            keys = [key for key in keys if self._category(-key[1]) in categories]
        return keys if newest_first else sorted(keys, key=lambda key: -key[1])

    def record(self, number: int) -> Any:
        """An offer as the API has it; a bad one is no offer at all."""
        updated = EPOCH + self._updated[number] * MILLISECOND
        version = self._versions[number]
        city, province = _CITIES[self._draw("city", number) % len(_CITIES)]
        least = 18_000 + self._draw("pay", number) % 40_000 + 500 * version
        company = self._draw("company", number) % 400
        record = {
            "id": number,
            "title": f"{_WORDS[self._draw('word', number) % len(_WORDS)]} {self._category(number)} {number}",
            "company": {"id": f"c{company}", "name": f"Company {company}"},
            "places": [{"city": city, "province": province}],
            "link": f"https://jobs.example.com/{number}",
            "category": self._category(number),
            "contract": _CONTRACTS[self._draw("contract", number) % len(_CONTRACTS)],
            "pay": {"min": least, "max": least * 1.25, "period": "year"},
            "text": f"We look for somebody. Version {version}.",
            "remote": number % 3 == 0,
            "tags": ["simulated", self._category(number)],
            "views": self._drawn,
            "created_at": instant_text(EPOCH + self._created[number] * MILLISECOND),
            "updated_at": instant_text(updated),
            "updated_unix": self._updated[number] // 1_000,
            "updated_ms": self._updated[number],
            "updated_day": updated.date().isoformat(),
        }
        defect = self.defect(number)
        return record if defect is None else (DEFECTS | ODDITIES)[defect](record)

    def defect(self, number: int) -> str | None:
        """What is wrong with an offer's record."""
        if self._draw("bad", number) >= self.bad * _STEPS:
            return None
        known = [*DEFECTS, *ODDITIES]
        return known[self._draw("defect", number) % len(known)]

    def _category(self, number: int) -> str:
        return CATEGORIES[self._draw("category", number) % len(CATEGORIES)]

    def _put(self, number: int, at: int) -> None:
        self._updated[number] = at
        self._created.setdefault(number, at)
        self._versions.setdefault(number, 1)
        insort(self._keys, (-at, -number))

    def _drop(self, number: int) -> None:
        del self._keys[bisect_left(self._keys, (-self._updated[number], -number))]

    def _some(self, count: int) -> list[int]:
        """As many numbers of what there is, each once."""
        found: dict[int, None] = {}
        while len(found) < min(count, len(self._keys)):
            self._drawn += 1
            found[-self._keys[self._draw("some", self._drawn) % len(self._keys)][1]] = None
        return list(found)

    def _draw(self, what: str, number: int) -> int:
        """A number below 2**20 that follows from the seed."""
        digest = hashlib.blake2b(f"{self.seed}/{what}/{number}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) % _STEPS


def _milliseconds(moment: datetime) -> int:
    return (moment.astimezone(UTC) - EPOCH) // MILLISECOND

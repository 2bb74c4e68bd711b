"""A market of job offers that changes as time passes, the same for the same seed.

What is born on a day, and all that will happen to it (bumps, removal, a repost under a new id), follows from the seed
and the day alone. `Market` only keeps what is listed now, and moves on with the time that it is asked for.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import re
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from penstock.model.clock import EPOCH, Rng, instant_text

T = TypeVar("T")

TOPICS = {"python": 12, "datos": 20, "enfermería": 8, "camarero": 40, "contable": 5}
"""What can be searched for (`q`), and how many offers of it are new on a usual day."""
DEFECTS = ("no_id", "no_date", "nonsense_date", "null_title")

_ROLES = {
    "python": "Desarrollador/a Python",
    "datos": "Analista de Datos",
    "enfermería": "Auxiliar de Enfermería",
    "camarero": "Camarero/a",
    "contable": "Técnico/a Contable",
}
_EXTRAS = ("Híbrido", "Jornada completa", "Fines de semana", "¡Incorporación inmediata!", "Turno de mañana", "I+D+i")
_CITIES = (
    *(("Madrid", 33, "Madrid"), ("Getafe", 33, "Madrid"), ("Alcalá de Henares", 33, "Madrid")),
    *(("Barcelona", 9, "Barcelona"), ("L'Hospitalet de Llobregat", 9, "Barcelona"), ("València", 46, "Valencia")),
    *(("A Coruña", 28, "A Coruña"), ("Málaga", 34, "Málaga"), ("Donostia-San Sebastián", 21, "Gipuzkoa")),
)
_COMPANIES = tuple(
    f"{first} {second}"
    for first in ("Grupo", "Talento", "Servicios", "Soluciones", "Clínica", "Hostelería", "Asesoría", "Ibérica")
    for second in ("Peñalara, S.L.", "del Sur", "& Asociados", "Núñez", "“Avanza”", "Mediterránea", "3.0", "Añil S.A.")
)
_CATEGORIES = ("Informática y telecomunicaciones", "Sanidad y salud", "Turismo y restauración", "Administración")
_CONTRACTS = ("Indefinido", "Temporal", "Autónomo", "Prácticas")
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_LAST = "\U0010ffff"


class Offer(Struct, frozen=True, gc=False):
    """An offer and its whole life, in seconds since 1970. `updates` are its dates, the first of them its birth.

    It is listed from `listed` until before `removed`.
    """

    id: str
    title: str
    words: frozenset[str]
    company: int
    city: int
    salary: int
    updates: tuple[int, ...]
    listed: int
    removed: int
    repost_of: str | None = None
    defect: str | None = None

    @property
    def born(self) -> int:
        return self.updates[0]


class Seen(Struct, frozen=True):
    """For a test: what a list showed of an offer, and when. `spans` are `(from, until, updated)`."""

    id: str
    spans: tuple[tuple[datetime, datetime, datetime], ...]
    defect: str | None
    repost_of: str | None


class Filter(Struct, frozen=True):
    """Which offers a search finds: those with all of these words, in one of these provinces, where any are named.

    A province is a number, or a name in capital or small letters.
    """

    words: frozenset[str] = frozenset()
    provinces: frozenset[str] = frozenset()

    @classmethod
    def of(cls, q: str, provinces: Sequence[str] = ()) -> Filter:
        return cls(_words(q), frozenset(map(str.casefold, provinces)))

    def finds(self, offer: Offer) -> bool:
        _, number, province = _CITIES[offer.city]
        where = not self.provinces or str(number) in self.provinces or province.casefold() in self.provinces
        return where and self.words <= offer.words


class _Nature(Struct, frozen=True):
    """What decides, with the day, what is born."""

    seed: int
    rate: float
    bad: float
    late: int


class Market:
    """What is listed at a time, newest first.

    `rate` is a factor on how many offers are born, `bad` the share of them that are malformed, and `late` how long
    after their birth they are listed at most.
    """

    def __init__(
        self,
        now: datetime,
        *,
        seed: int = 7,
        history: timedelta = timedelta(days=120),
        rate: float = 1.0,
        bad: float = 0.0,
        late: timedelta = timedelta(),
    ) -> None:
        self._nature = _Nature(seed, rate, bad, int(late.total_seconds()))
        self._first = _seconds(now - history) // _DAY
        self._reset()

    def listed(self, found: Filter, now: datetime, since: datetime | None) -> Listing:
        """What a search finds at a time; with `since`, what was updated from then on."""
        self._advance(_seconds(now))
        places = self._lists.get(found)
        if places is None:
            live = ((-one.updated, one.offer.id) for one in self._live.values() if found.finds(one.offer))
            places = self._lists[found] = sorted(live)
        count = len(places) if since is None else bisect_right(places, (-_seconds(since), _LAST))
        return Listing(places, count, self._live)

    def offers_of(self, found: Filter, start: datetime, end: datetime) -> list[Seen]:
        """Every offer of a search that was listed at any time of a span, with what was shown when. Nothing is kept."""
        first, last = _seconds(start), _seconds(end)
        seen = (_seen(one, first, last) for one in self._born(self._first, last // _DAY) if found.finds(one))
        return [one for one in seen if one.spans]

    def _reset(self) -> None:
        self._now, self._day = 0, self._first
        self._ahead: list[tuple[int, int, Offer, int | None]] = []
        self._count = 0
        self._live: dict[str, Live] = {}
        self._lists: dict[Filter, list[tuple[int, str]]] = {}

    def _advance(self, now: int) -> None:
        if now < self._now:
            self._reset()
        self._now = now
        while self._day * _DAY <= now:
            for offer in self._born(self._day, self._day):
                for update in offer.updates:
                    self._plan(max(update, offer.listed), offer, update)
                self._plan(offer.removed, offer, None)
            self._day += 1
            # Day by day, so that what lies ahead stays small.
            self._live_through(min(now, self._day * _DAY - 1))
        self._live_through(now)

    def _plan(self, at: int, offer: Offer, updated: int | None) -> None:
        self._count += 1
        heapq.heappush(self._ahead, (at, self._count, offer, updated))

    def _live_through(self, now: int) -> None:
        ahead = self._ahead
        while ahead and ahead[0][0] <= now:
            _, _, offer, updated = heapq.heappop(ahead)
            before = self._live.pop(offer.id, None)
            lists = [places for found, places in self._lists.items() if found.finds(offer)]
            if before is not None:
                for places in lists:
                    del places[bisect_left(places, (-before.updated, offer.id))]
            if updated is not None:
                self._live[offer.id] = Live(offer, updated)
                for places in lists:
                    insort(places, (-updated, offer.id))

    def _born(self, first: int, last: int) -> Iterator[Offer]:
        for day in range(first, last + 1):
            for topic in TOPICS:
                yield from _births(self._nature, topic, day)


class Live:
    """An offer as it is listed now."""

    __slots__ = ("_text", "offer", "updated")

    def __init__(self, offer: Offer, updated: int) -> None:
        self.offer = offer
        self.updated = updated
        self._text: bytes | None = None

    def text(self, now: int) -> bytes:
        """Its JSON; how many have applied is another number at every hour."""
        if self._text is None:
            self._text = msgspec.json.encode(record(self.offer, self.updated))[:-1]
        return b'%s,"applications":"%d"}' % (self._text, (now - self.offer.born) // _HOUR)


class Listing:
    """The places of a list, from the newest on, and how many of them count."""

    __slots__ = ("_live", "_places", "count")

    def __init__(self, places: list[tuple[int, str]], count: int, live: Mapping[str, Live]) -> None:
        self._places = places
        self._live = live
        self.count = count

    def page(self, start: int, size: int) -> list[Live]:
        live = self._live
        return [live[number] for _, number in self._places[start : min(start + size, self.count)]]


def record(offer: Offer, updated: int, defect: str | None = None) -> dict[str, Any]:
    """An offer as InfoJobs writes it, all but its number of applicants; with a defect, its own or another."""
    city, number, province = _CITIES[offer.city]
    low = {"id": offer.salary, "value": f"{offer.salary}.000 €"} if offer.salary else {"id": 0, "value": ""}
    found: dict[str, Any] = {
        "id": offer.id,
        "title": offer.title,
        "province": {"id": number, "value": province},
        "city": city,
        "link": f"https://www.infojobs.example/oferta/of-i{offer.id}",
        "category": {"id": 150, "value": _CATEGORIES[offer.company % len(_CATEGORIES)]},
        "contractType": {"id": 1, "value": _CONTRACTS[offer.company % len(_CONTRACTS)]},
        "salaryMin": low,
        "salaryMax": {**low, "value": f"{offer.salary + 6}.000 €"} if offer.salary else low,
        "salaryPeriod": {"id": 3, "value": "Bruto/año" if offer.salary else ""},
        "published": _text(offer.born),
        "updated": _text(updated),
        "author": {"id": f"{offer.company:08d}", "name": _COMPANIES[offer.company]},
        "requirementMin": f"Experiencia mínima de {offer.salary % 4} años.\nBuscamos: {offer.title}.",
        "bold": updated != offer.born,
    }
    wrong = defect or offer.defect
    if wrong == "no_id":
        del found["id"]
    elif wrong == "no_date":
        del found["published"], found["updated"]
    elif wrong == "nonsense_date":
        found["updated"] = "hace un rato"
    elif wrong == "null_title":
        found["title"] = None
    return found


@functools.lru_cache(maxsize=1_000)
def _births(nature: _Nature, topic: str, day: int) -> list[Offer]:
    """What is born of a topic on a day, and the reposts of it, which come later."""
    digest = hashlib.blake2b(f"{nature.seed}/{topic}/{day}".encode(), digest_size=8).digest()
    die = _Die(Rng(int.from_bytes(digest)))
    found = []
    for _ in range(max(1, round(TOPICS[topic] * nature.rate * (0.7 + die.below(61) / 100)))):
        offer = _birth(nature, die, topic, day * _DAY + die.below(_DAY))
        found.append(offer)
        again = die.below(9 * 24) * _HOUR + die.below(_HOUR) + _MINUTE
        if die.chance(0.15) and offer.removed - offer.born <= 20 * _DAY:
            found.append(_life(nature, die, offer, offer.removed + again, offer.id))
    return found


def _birth(nature: _Nature, die: _Die, topic: str, born: int) -> Offer:
    role, extra = _ROLES[topic], die.pick(_EXTRAS)
    second = die.pick(tuple(TOPICS))
    if second != topic and die.chance(0.25):
        role = f"{role} y {second}"
    title = f"{role}: {extra} (Ref. {die.below(1_000_000):06d})"
    salary = 0 if die.chance(0.4) else 14 + die.below(40)
    company, city = die.below(len(_COMPANIES)), die.below(len(_CITIES))
    draft = Offer("", title, _words(title), company, city, salary, (born,), born, born)
    return _life(nature, die, draft, born, None)


def _life(nature: _Nature, die: _Die, draft: Offer, born: int, repost_of: str | None) -> Offer:
    """The draft with an id, and all that will happen to it: some are gone in hours, some are bumped every few days."""
    life = die.below(12 * _HOUR) + _HOUR if die.chance(0.05) else (2 + die.below(38)) * _DAY + die.below(_DAY)
    updates = [born]
    if die.chance(0.35):
        pause = _DAY + die.below(6 * _DAY)
        updates.extend(range(born + pause, min(born + life, born + 8 * pause), pause))
    defect = die.pick(DEFECTS) if die.chance(nature.bad) else None
    listed = min(born + die.below(nature.late + 1), born + life - 1)
    return msgspec.structs.replace(
        draft,
        id=die.token(),
        updates=tuple(updates),
        listed=listed,
        removed=born + life,
        repost_of=repost_of,
        defect=defect,
    )


def _seen(offer: Offer, first: int, last: int) -> Seen:
    ends = [*offer.updates[1:], offer.removed]
    spans = [(max(update, offer.listed), end, update) for update, end in zip(offer.updates, ends, strict=True)]
    shown = tuple(
        (_moment(start), _moment(end), _moment(update))
        for start, end, update in spans
        if start < end and start < last and end > first
    )
    return Seen(offer.id, shown, offer.defect, offer.repost_of)


class _Die:
    """Chance in the forms that are needed here."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self.token = rng.token

    def below(self, end: int) -> int:
        return min(end - 1, int(self._rng.uniform(0, end)))

    def chance(self, share: float) -> bool:
        return self._rng.uniform(0, 1) < share

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.casefold()))


def _seconds(moment: datetime) -> int:
    return int((moment - EPOCH).total_seconds() // 1)


def _moment(seconds: int) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def _text(seconds: int) -> str:
    return instant_text(_moment(seconds))

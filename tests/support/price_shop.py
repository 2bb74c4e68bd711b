"""A shop in this process: a price for every variant, what happened in which order, and whatever trouble a test wants.

It watches over every write itself: each variant must have been read since it was last written to, and the price that is
replaced must be one that nobody else has set. `wrong` lists what was not so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.money import Price
from penstock.model.clock import Clock

CURRENCY = "EUR"
Kind = Literal["catalogue", "read", "write"]


@dataclass(frozen=True)
class After:
    """The call takes effect, and then fails with this error."""

    error: Exception


@dataclass(frozen=True)
class Hang:
    """The call takes effect if it is to, and is never answered."""

    takes_effect: bool = False


@dataclass(frozen=True)
class Refuse:
    """These variants are refused, the others are set."""

    variants: Mapping[str, str]


Answer = Exception | After | Hang | Refuse | None
Trouble = Callable[[Kind, Sequence[str]], Answer]
"""What becomes of a call, asked when it arrives; it may also change the shop."""


@dataclass(frozen=True)
class Call:
    """One call: when, what, of which variants, and of which product it was."""

    at: datetime
    kind: Kind
    variants: tuple[str, ...]
    product: str = ""


def euros(cents: int, compare_at: int | None = None) -> Price:
    return Price(cents, compare_at, CURRENCY)


class PriceShop:
    """So many products with so many variants each: product `p0` has `p0-v0` and so on."""

    def __init__(self, products: int = 1, variants: int = 2, *, price: Callable[[int], int] = lambda n: 1_000 + n):
        self.prices: dict[str, Price] = {}
        self.product_of: dict[str, str] = {}
        for number in range(products * variants):
            product = f"p{number // variants:04d}"
            one = f"{product}-v{number % variants}"
            self.prices[one] = euros(price(number))
            self.product_of[one] = product
        self.clock: Clock | None = None
        self.trouble: Trouble = lambda *_: None
        self.calls: list[Call] = []
        self.wrong: list[str] = []
        self.bulk = False
        self.bucket: tuple[float | None, float | None] = (None, None)
        self.lies: dict[str, Price] = {}
        """What a read says of a variant, whatever its price is."""
        self._read: dict[str, Price] = {}
        self._foreign: set[str] = set()

    # What others do.

    def edit(self, variant: str, price: Price) -> None:
        """Somebody else sets a price."""
        self.prices[variant] = price
        self._foreign.add(variant)

    def delete(self, variant: str) -> None:
        del self.prices[variant]

    # What happened.

    def writes(self, variant: str | None = None) -> list[Call]:
        return [c for c in self.calls if c.kind == "write" and (variant is None or variant in c.variants)]

    def reads(self) -> list[Call]:
        return [c for c in self.calls if c.kind == "read"]

    # What the lifecycle asks for.

    async def catalogue(self) -> AsyncIterator[Sequence[Item]]:
        wanted = sorted(self.prices)
        await self._arrives("catalogue", wanted)
        yield [
            Item(variant_id=one, product_id=self.product_of[one], sku=f"SKU-{one}", price=self.prices[one], cost=100)
            for one in wanted
        ]

    async def read(self, ids: Sequence[str]) -> Mapping[str, Price]:
        answer = await self._arrives("read", ids)
        if isinstance(answer, After):
            raise answer.error
        found = {one: self.lies.get(one, self.prices[one]) for one in ids if one in self.prices}
        self._read |= found
        return found

    async def write(
        self, product_id: str, prices: Mapping[str, Price], before: Mapping[str, Price]
    ) -> Mapping[str, str]:
        answer = await self._arrives("write", list(prices), product_id)
        refused = dict(answer.variants) if isinstance(answer, Refuse) else {}
        if not (isinstance(answer, Hang) and not answer.takes_effect):
            refused |= self._set(product_id, {one: p for one, p in prices.items() if one not in refused})
        if isinstance(answer, Hang):
            await asyncio.Event().wait()
        if isinstance(answer, After):
            raise answer.error
        return refused

    def stream(self) -> AsyncIterator[tuple[str, Price]] | None:
        return self._all() if self.bulk else None

    def costs(self, *, reads: int, writes: int) -> Mapping[str, float]:
        return {}

    async def close(self) -> None:
        pass

    async def _all(self) -> AsyncIterator[tuple[str, Price]]:
        await self._arrives("catalogue", [])
        for one in self.prices:
            yield one, self.prices[one]

    async def _arrives(self, kind: Kind, ids: Iterable[str], product: str = "") -> Answer:
        assert self.clock is not None
        asked = tuple(ids)
        self.calls.append(Call(self.clock.now(), kind, asked, product))
        if kind == "write":
            self._watch(asked)
        answer = self.trouble(kind, asked)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _watch(self, ids: Sequence[str]) -> None:
        for one in ids:
            seen = self._read.pop(one, None)
            if seen is None:
                self.wrong.append(f"{one} was written to and not read before")
            elif one in self.prices and seen != self.lies.get(one, self.prices[one]):
                self.wrong.append(f"{one} was {seen} when it was read, and {self.prices[one]} when it was replaced")
            if one in self._foreign:
                self.wrong.append(f"{one}: {self.prices.get(one)}, which somebody else had set, was replaced")

    def _set(self, product: str, prices: Mapping[str, Price]) -> dict[str, str]:
        refused = {}
        for one, price in prices.items():
            if self.product_of.get(one) != product or one not in self.prices:
                refused[one] = "NOT_FOUND: the product has no such variant"
                continue
            self.prices[one] = price
            self._foreign.discard(one)
        return refused


@dataclass
class Script:
    """Trouble that comes to calls of one kind, one after the other; what follows the last goes well."""

    kind: Kind
    answers: list[Answer] = field(default_factory=list)
    only: str | None = None

    def __call__(self, kind: Kind, ids: Sequence[str]) -> Answer:
        if kind != self.kind or (self.only is not None and self.only not in ids) or not self.answers:
            return None
        return self.answers.pop(0)


def always(kind: Kind, answer: Callable[[], Answer], only: str | None = None) -> Trouble:
    """The same trouble for every call of one kind."""

    def trouble(asked: Kind, ids: Sequence[str]) -> Answer:
        return answer() if asked == kind and (only is None or only in ids) else None

    return trouble

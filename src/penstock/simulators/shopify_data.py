"""The store of Shopify's simulator: products, their variants and what they cost; and its leaky bucket."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from penstock.model.clock import Clock, Rng

_FIRST_PRODUCT, _FIRST_VARIANT = 1_000, 1_000_000
_VENDORS = tuple(f"Vendor {letter}" for letter in "ABCDEFGHIJ")
_TAGS = (("sale", "summer"), ("summer",), (), ("sale",), ("clearance", "winter"))


@dataclass(slots=True, eq=False)
class Product:
    """A product, with the variants that there are of it."""

    id: str
    title: str
    vendor: str
    tags: tuple[str, ...] = ()
    status: str = "ACTIVE"
    variants: list[Variant] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Variant:
    """A variant and its prices."""

    id: str
    product: Product
    sku: str
    price: str
    compare_at: str | None
    cost: str | None
    updated: datetime

    @property
    def prices(self) -> tuple[str, str | None]:
        return self.price, self.compare_at


class Store:
    """So many products with so many variants each, made up from a seed."""

    def __init__(self, products: int, now: datetime, *, variants: int = 4, seed: int = 7) -> None:
        self.products: dict[str, Product] = {}
        self.variants: dict[str, Variant] = {}
        self._order: list[int] = []
        self._rng = Rng(seed)
        for _ in range(products):
            self.add(now, [self._made_up_price() for _ in range(variants)])

    def add(self, now: datetime, prices: list[str]) -> Product:
        """A further product, with a variant for each price."""
        number = len(self._order) and int(self.products[next(reversed(self.products))].id) + 1 - _FIRST_PRODUCT
        product = Product(
            str(_FIRST_PRODUCT + number),
            f"Product {number}",
            _VENDORS[number % len(_VENDORS)],
            _TAGS[number % len(_TAGS)],
        )
        self.products[product.id] = product
        for price in prices:
            at = self._order[-1] + 1 if self._order else _FIRST_VARIANT
            compare_at = f"{float(price) * 1.25:.2f}" if at % 10 == 0 else None
            variant = Variant(str(at), product, f"SKU-{at}", price, compare_at, f"{float(price) * 0.6:.2f}", now)
            self.variants[variant.id] = variant
            self._order.append(at)
            product.variants.append(variant)
        return product

    def page(self, after: str | None, first: int) -> tuple[list[Variant], bool]:
        """Variants in the order of their ids, and whether there are more."""
        begin = 0 if after is None else bisect_right(self._order, int(after))
        wanted = self._order[begin : begin + first]
        return [self.variants[str(one)] for one in wanted], begin + first < len(self._order)

    def __iter__(self) -> Iterator[Variant]:
        return (self.variants[str(one)] for one in self._order)

    def delete_variant(self, variant_id: str) -> None:
        """It is gone; its product stays."""
        variant = self.variants.pop(variant_id)
        variant.product.variants.remove(variant)
        self._order.remove(int(variant_id))

    def delete_product(self, product_id: str) -> None:
        """It is gone, with all its variants."""
        for variant in list(self.products[product_id].variants):
            self.delete_variant(variant.id)
        del self.products[product_id]

    def any_variant(self, rng: Rng) -> Variant:
        """One of all, by chance."""
        return self.variants[str(self._order[int(rng.uniform(0, len(self._order))) % len(self._order)])]

    def _made_up_price(self) -> str:
        return f"{int(self._rng.uniform(5, 300))}.{('00', '49', '95', '99')[int(self._rng.uniform(0, 4)) % 4]}"


@dataclass(slots=True)
class Bucket:
    """A leaky bucket of points, full at first. What a call may cost must be in it; what it did not cost comes back."""

    clock: Clock
    maximum: float = 2_000.0
    rate: float = 100.0
    charged: float = 0.0
    _level: float | None = None
    _at: float = 0.0

    @property
    def available(self) -> float:
        now = self.clock.elapsed()
        level = self.maximum if self._level is None else self._level
        self._level = min(self.maximum, level + (now - self._at) * self.rate)
        self._at = now
        return self._level

    def take(self, requested: float) -> bool:
        """Take them out; False where there are fewer."""
        if self.available < requested:
            return False
        self._level = self.available - requested
        self.charged += requested
        return True

    def give_back(self, points: float) -> None:
        """What was taken and not needed."""
        self._level = min(self.maximum, self.available + points)
        self.charged -= points

"""One variant of the canonical catalogue, as rules see it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from penstock.lifecycles.rules.money import Price


class Item(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A variant. `cost` and `reference` (a competitor's price, or a list price) are in the price's minor units."""

    variant_id: str
    product_id: str
    sku: str
    title: str = ""
    vendor: str = ""
    tags: tuple[str, ...] = ()
    price: Price
    cost: int | None = None
    reference: int | None = None
    updated_at: datetime | None = None

"""What a connector of prices gives and takes: the catalogue, some variants of it, and what they are to cost.

Prices are texts, as they came or as they are sent: plain decimals, without a sign or an exponent.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

import msgspec

_PRICE = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,8})?")


class Cost(msgspec.Struct, frozen=True, gc=False):
    """What a call cost, in points, and what is left of the provider's bucket. None: it was not said."""

    requested: float
    actual: float | None = None
    available: float | None = None
    restore_rate: float | None = None
    maximum: float | None = None


FREE: Final = Cost(0.0, 0.0)
"""What costs nothing, at a provider that counts none."""


class Shop(msgspec.Struct, frozen=True, gc=False):
    """Whose prices they are, and the one currency that they are in."""

    currency: str
    name: str
    cost: Cost


class Item(msgspec.Struct, frozen=True, gc=False):
    """One variant in the catalogue, with what rules select it by."""

    variant_id: str
    product_id: str
    sku: str
    title: str
    vendor: str
    tags: tuple[str, ...]
    status: str
    price: str
    compare_at_price: str | None = None
    cost: str | None = None
    reference_price: str | None = None
    updated_at: datetime | None = None


class CataloguePage(msgspec.Struct, frozen=True, gc=False):
    """Variants in order. `next` is where the page after this one begins; None: this is the last."""

    items: list[Item]
    next: str | None
    cost: Cost


class Variant(msgspec.Struct, frozen=True, gc=False):
    """What a variant costs now."""

    variant_id: str
    price: str
    compare_at_price: str | None = None
    updated_at: datetime | None = None


class VariantPrice(msgspec.Struct, frozen=True, gc=False):
    """What a variant is to cost: both prices are set, and None removes `compare_at_price`.

    `was` is what it costs as far as the caller knows. A connector that can leaves what has changed since as it is.
    """

    variant_id: str
    price: str
    compare_at_price: str | None = None
    was: Variant | None = None


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Why one variant was not changed: the provider's code, and its words."""

    code: str
    message: str


def is_price(text: object) -> bool:
    """Whether something is a price as it is written here: `19.99`, and neither `-1`, `1e3`, `NaN` nor a number."""
    return isinstance(text, str) and _PRICE.fullmatch(text) is not None

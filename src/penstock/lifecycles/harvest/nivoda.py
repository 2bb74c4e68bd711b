"""Nivoda's catalogue as a feed: how it is asked, which stone a record is, and what it becomes in `diamonds`.

`items[].id` is the offer, by which one orders; `diamond.id` is the stone, by which records are told apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, DecimalException
from typing import Any

import msgspec

from penstock.connectors.nivoda.client import BY_BIRTH, Item, Nivoda, Order, Query
from penstock.lifecycles.harvest.feed import UNKNOWN, UNNAMED, Feed, Span, Unmappable, Window
from penstock.lifecycles.harvest.pricing import EXACT
from penstock.lifecycles.harvest.tables import diamonds, raw_diamonds_nivoda
from penstock.model.clock import instant_text

CURRENCY = "USD"
UNITS = {"cents": Decimal("0.01"), "dollars": Decimal(1)}
"""What a price is counted in. It is cents by the programs that use the API, dollars by one description of it."""
_DEAREST = Decimal(1_000_000_000)
_HEAVIEST = Decimal(1_000)
_ZERO = Decimal(0)
_HIGHEST = 1_000_000
"""Where the search for cuts begins, in dollars: hardly a stone costs more."""


class _Certificate(msgspec.Struct, gc=False):
    lab: str | None = None
    number: str | int | None = msgspec.field(default=None, name="certNumber")
    shape: str | None = None
    carats: Decimal | None = None
    color: str | None = None
    clarity: str | None = None
    cut: str | None = None


class _Diamond(msgspec.Struct, gc=False):
    id: str | None = None
    availability: str | None = None
    certificate: _Certificate | None = None


class _Item(msgspec.Struct, gc=False):
    id: str | None = None
    price: Decimal | None = None
    updated_at: str | None = None
    diamond: _Diamond | None = None


_decode = msgspec.json.Decoder(_Item).decode


def mapping(unit: str, currency: str = CURRENCY) -> Callable[[str], dict[str, Any]]:
    """The function from a payload to the columns of `diamonds` that are the record's own. It raises Unmappable.

    `unit` is what prices are counted in: `cents` or `dollars`.
    """
    factor = UNITS[unit]

    def map_payload(payload: str) -> dict[str, Any]:
        try:
            item = _decode(payload)
        except (msgspec.MsgspecError, ArithmeticError, UnicodeError, RecursionError) as error:
            raise Unmappable(str(error)) from None
        diamond = item.diamond
        if diamond is None or not diamond.id:
            raise Unmappable("it names no stone")
        if not item.id:
            raise Unmappable("it names no offer")
        certificate = diamond.certificate
        if certificate is None:
            raise Unmappable("it has no certificate")
        price, carats = item.price, certificate.carats
        if price is None:
            raise Unmappable("it has no price")
        amount = _amount(price, factor)
        if amount is None:
            raise Unmappable(f"a price of {price!s:.40} {unit} is not possible")
        if carats is not None and not (carats.is_finite() and _ZERO < carats <= _HEAVIEST):
            raise Unmappable(f"a stone of {carats!s:.40} carats is not possible")
        number = certificate.number
        return {
            "offer_id": item.id,
            "shape": certificate.shape or None,
            "carat": carats,
            "color": certificate.color or None,
            "clarity": certificate.clarity or None,
            "cut": certificate.cut or None,
            "lab": certificate.lab or None,
            "certificate_number": None if number is None else str(number) or None,
            "availability": diamond.availability or None,
            "currency": currency,
            "supplier_price": amount,
        }

    return map_payload


def _amount(price: Decimal, factor: Decimal) -> Decimal | None:
    """The price in the currency's own unit; None for what no stone costs."""
    if not price.is_finite() or not _ZERO < price <= _DEAREST / factor:
        return None
    try:
        return EXACT.multiply(price, factor)
    except DecimalException:
        return None


def payload_hash(payload: str) -> str:
    """The digest by which a change of a record is seen."""
    return hashlib.blake2b(payload.encode(errors="surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class NivodaSource:
    """One login. `filters` are sent with every query."""

    client: Nivoda
    filters: Mapping[str, Any] = field(default_factory=dict)
    order: Order = BY_BIRTH

    async def count(self, window: Window, span: Span) -> int:
        """How many records there are."""
        return await self.client.count(self._query(window, span))

    async def page(self, window: Window, span: Span, offset: int, limit: int) -> Sequence[Item]:
        """Records in the order of their birth, in which a change of price moves none."""
        return (await self.client.page(self._query(window, span), offset, limit, self.order)).items

    async def close(self) -> None:
        """Close the connections."""
        await self.client.close()

    def _query(self, window: Window, span: Span) -> Query:
        return Query(span.low, span.high, window.lower, window.upper, self.filters)


def nivoda_feed(name: str, price_unit: str = "cents", order: Order = BY_BIRTH) -> Feed:
    """Nivoda's diamonds, split by their price in dollars."""
    return Feed(
        name=name,
        raw=raw_diamonds_nivoda,
        canonical=diamonds,
        identity="supplier_stone_id",
        raw_row=raw_row,
        map=mapping(price_unit),
        axis="price",
        lowest=0,
        highest=_HIGHEST,
        order={"type": order.type, "direction": order.direction},
        known_by="offer_id",
    )


def raw_row(item: Item) -> dict[str, Any]:
    """The columns of a raw row that are the record's own; one that names no stone is known by its content."""
    digest = payload_hash(item.payload)
    return {
        "supplier_stone_id": item.stone_id or f"{UNNAMED if item.offer_id else UNKNOWN}{digest}",
        "offer_id": item.offer_id or "",
        "payload": item.payload,
        "payload_hash": digest,
        "source_updated_at": None if item.updated_at is None else instant_text(item.updated_at),
    }

"""Nivoda as a source, and its catalogue as a feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.connectors.nivoda.client import BY_BIRTH, Item, Nivoda, Order, Query
from penstock.lifecycles.harvest.feed import UNKNOWN, UNNAMED, Feed, Span, Window
from penstock.lifecycles.harvest.nivoda import mapping, payload_hash
from penstock.lifecycles.harvest.tables import diamonds, raw_diamonds_nivoda
from penstock.model.clock import instant_text

_DEAREST = 1_000_000
"""Where the search for cuts begins, in dollars: hardly a stone costs more."""


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
        highest=_DEAREST,
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

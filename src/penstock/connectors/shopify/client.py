"""Signatures of Shopify's connector; being filled in."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from penstock.connectors.http.download import Allowed
from penstock.connectors.http.exchange import Transport
from penstock.connectors.prices import CataloguePage, Cost, Item, Refusal, Shop, Variant, VariantPrice
from penstock.model.clock import Clock
from penstock.model.errors import Throttled
from penstock.settings.secret import Secret

VERSION = "2026-10"
MOST_VARIANTS = 250
MOST_ITEMS = 200
RESULTS = Allowed(("storage.googleapis.com",))
PRICES = ""
"""A bulk query: what every variant of the store costs."""
CATALOGUE = ""
"""A bulk query: the whole catalogue."""


def read_cost(variants: int) -> float:
    return float(variants)


def page_cost(first: int) -> float:
    return 4.0 * first


def write_cost(variants: int) -> float:
    return 10 + 0.2 * variants


class BucketEmpty(Throttled):
    """Throttled; `cost` is what Shopify said of the bucket, if it did."""

    cost: Cost | None = None


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    client_id: str
    client_secret: Secret


@dataclass(frozen=True, slots=True)
class BulkStatus:
    bulk_id: str
    state: str  # pending, completed, failed
    said: str
    url: str | None = None
    objects: int = 0


class Shopify:
    """One store. `notice` says that Shopify answered in another version of its API than the one that was asked for."""

    notice: str | None = None

    def __init__(
        self,
        shop_url: str,
        credentials: Secret | ClientCredentials,
        clock: Clock,
        *,
        downloads: Allowed = RESULTS,
        transport: Transport | None = None,
    ) -> None: ...

    async def shop(self) -> Shop: ...
    async def catalogue_page(self, after: str | None, first: int) -> CataloguePage: ...
    async def variants(self, ids: Sequence[str]) -> tuple[dict[str, Variant], Cost]: ...
    async def update(
        self, product_id: str, changes: Sequence[VariantPrice]
    ) -> tuple[dict[str, Refusal | None], Cost]: ...
    async def bulk_start(self, query: str) -> str: ...
    async def bulk_status(self, bulk_id: str) -> BulkStatus: ...
    def bulk_variants(self, status: BulkStatus) -> AsyncGenerator[list[Variant]]: ...
    def bulk_items(self, status: BulkStatus) -> AsyncGenerator[list[Item]]: ...
    async def close(self) -> None: ...

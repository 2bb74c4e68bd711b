"""A store of Shopify's that is really a simulator on a socket, and the connector on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.connectors.http.download import Allowed
from penstock.connectors.prices import Item, VariantPrice
from penstock.connectors.shopify.client import ClientCredentials, Shopify
from penstock.model.clock import VirtualClock
from penstock.settings.secret import Secret
from penstock.simulators.lean import serving_lean
from penstock.simulators.server import serving
from penstock.simulators.shopify import ShopifySimulator
from penstock.simulators.shopify_data import Store, Variant

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@dataclass
class Site:
    """Both sides."""

    simulator: ShopifySimulator
    clock: VirtualClock
    shopify: Shopify
    address: str

    @property
    def store(self) -> Store:
        return self.simulator.admin.store

    def of(self, product: int) -> list[Variant]:
        """The variants of the so-many-th product."""
        return list(self.store.products.values())[product].variants

    async def everything(self, size: int = 30) -> list[Item]:
        """Every page."""
        items, after = [], None
        while True:
            page = await self.shopify.catalogue_page(after, size)
            items += page.items
            if (after := page.next) is None:
                return items


def prices(variants: list[Variant], price: str = "7.50", compare_at: str | None = None) -> list[VariantPrice]:
    return [VariantPrice(variant.id, price, compare_at) for variant in variants]


def credentials(folder: Path, simulator: ShopifySimulator, *, admin: bool) -> Secret | ClientCredentials:
    """References to the simulator's secrets, in files."""
    (folder / "secret").write_text(simulator.admin_token if admin else simulator.client_secret)
    secret = Secret("file", str(folder / "secret"))
    return secret if admin else ClientCredentials(simulator.client_id, secret)


@contextlib.asynccontextmanager
async def site(
    folder: Path, *, products: int = 20, variants: int = 4, admin: bool = False, lean: bool = True, **simulated: Any
) -> AsyncIterator[Site]:
    """A store on a loopback socket, with a clock of its own. `lean` is the quicker of two servers."""
    clock = VirtualClock(NOW)
    simulator = ShopifySimulator(clock, Store(products, NOW, variants=variants), **simulated)
    server = serving_lean(simulator.answer, latency=simulator.delay) if lean else serving(simulator)
    async with server as address:
        downloads = Allowed((), (address.removeprefix("http://"),))
        shopify = Shopify(address, credentials(folder, simulator, admin=admin), clock, downloads=downloads)
        try:
            yield Site(simulator, clock, shopify, address)
        finally:
            await shopify.close()


def on(folder: Path, test: Callable[[Site], Awaitable[None]], **options: Any) -> None:
    """Run a test on a store."""

    async def main() -> None:
        async with site(folder, **options) as made:
            await test(made)

    asyncio.run(main())

"""The accounts of a configuration: connectors wired to settings, and their texts turned into exact prices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from penstock.connectors import prices
from penstock.lifecycles.rules import money
from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.money import BadMoney, Price
from penstock.lifecycles.rules.settings import AccountSettings, RulesSettings, gate_of
from penstock.lifecycles.rules.shop import Configured
from penstock.model.errors import Transient

if TYPE_CHECKING:
    from penstock.app.ports import Ports
    from penstock.connectors.shopify.client import BulkStatus, Shopify
    from penstock.model.clock import Clock

_PAGE = 2_000
_POLL_SECONDS = 2.0
_CURRENCY_HOLDS = timedelta(minutes=1)
"""How long a shop's currency is not asked for again: that costs a point."""
_SHARED_BY = 10
"""About so many products share a call that reads."""


class Connector(Protocol):
    """What both connectors of prices offer."""

    async def shop(self) -> prices.Shop: ...
    async def catalogue_page(self, after: str | None, first: int) -> prices.CataloguePage: ...
    async def variants(self, ids: Sequence[str]) -> tuple[dict[str, prices.Variant], prices.Cost]: ...
    async def update(
        self, product_id: str, changes: Sequence[prices.VariantPrice]
    ) -> tuple[dict[str, prices.Refusal | None], prices.Cost]: ...
    async def close(self) -> None: ...


class PriceList:
    """A shop behind a connector. The currency is the shop's own, and `holds` is how long it is taken to stay that."""

    def __init__(
        self,
        connector: Connector,
        clock: Clock,
        holds: timedelta = timedelta(0),
        *,
        closes: Callable[[], None] = lambda: None,
    ) -> None:
        """`closes` ends what the connector was lent."""
        self._connector = connector
        self._clock = clock
        self._holds = holds
        self._closes = closes
        self._currency: tuple[str, datetime] | None = None
        self._asking = asyncio.Lock()
        #: What the last answer said of the bucket: how much is left, and how fast it fills.
        self.bucket: tuple[float | None, float | None] = (None, None)

    async def currency(self) -> str:
        """The currency of its prices. Raises Transient for one that is unknown."""
        async with self._asking:
            if self._currency is None or self._currency[1] <= self._clock.now():
                found = await self._connector.shop()
                self._told(found.cost)
                try:
                    money.decimals_of(found.currency)
                except BadMoney as error:
                    raise Transient(f"the shop's currency: {error}") from error
                self._currency = (found.currency, self._clock.now() + self._holds)
            return self._currency[0]

    async def catalogue(self) -> AsyncIterator[Sequence[Item]]:
        currency, after = await self.currency(), None
        while True:
            found = await self._connector.catalogue_page(after, _PAGE)
            self._told(found.cost)
            yield [_item(item, currency) for item in found.items]
            after = found.next
            if after is None:
                return

    async def read(self, ids: Sequence[str]) -> Mapping[str, Price]:
        currency = await self.currency()
        found, cost = await self._connector.variants(ids)
        self._told(cost)
        return {one: _price(variant.price, variant.compare_at_price, currency) for one, variant in found.items()}

    async def write(
        self, product_id: str, wanted: Mapping[str, Price], before: Mapping[str, Price]
    ) -> Mapping[str, str]:
        changes = [
            prices.VariantPrice(one, *_texts(price), prices.Variant(one, *_texts(before[one])))
            for one, price in wanted.items()
        ]
        answers, cost = await self._connector.update(product_id, changes)
        self._told(cost)
        return {one: f"{said.code}: {said.message}" for one, said in answers.items() if said is not None}

    def stream(self) -> AsyncIterator[tuple[str, Price]] | None:
        return None

    def costs(self, *, reads: int, writes: int) -> Mapping[str, float]:  # noqa: ARG002 - a file costs nothing
        return {}

    async def close(self) -> None:
        await self._connector.close()
        self._closes()

    def _told(self, cost: prices.Cost) -> None:
        self.bucket = (cost.available, cost.restore_rate)


class ShopifyPrices(PriceList):
    """Shopify: a bucket of points for calls, and bulk reads, which cost the same however much they bring."""

    def __init__(self, connector: Shopify, clock: Clock) -> None:
        super().__init__(connector, clock, _CURRENCY_HOLDS)
        self._shopify = connector

    async def catalogue(self) -> AsyncIterator[Sequence[Item]]:
        from penstock.connectors.shopify.client import CATALOGUE

        currency = await self.currency()
        async for items in self._shopify.bulk_items(await self._bulk(CATALOGUE)):
            yield [_item(item, currency) for item in items]

    def costs(self, *, reads: int, writes: int) -> Mapping[str, float]:
        from penstock.connectors.shopify.client import read_cost, write_cost

        points = (read_cost(reads) if reads else 0.0) + (write_cost(writes) if writes else 0.0)
        # Reads of several products are one call.
        return {"points": points, "requests": float(bool(reads)) / _SHARED_BY + float(bool(writes))}

    def stream(self) -> AsyncIterator[tuple[str, Price]]:
        return self._all()

    async def _all(self) -> AsyncIterator[tuple[str, Price]]:
        from penstock.connectors.shopify.client import PRICES

        currency = await self.currency()
        async for variants in self._shopify.bulk_variants(await self._bulk(PRICES)):
            for variant in variants:
                yield variant.variant_id, _price(variant.price, variant.compare_at_price, currency)

    async def _bulk(self, query: str) -> BulkStatus:
        """A bulk read that has come to its end. Raises Transient for one that failed."""
        bulk = await self._shopify.bulk_start(query)
        status = await self._shopify.bulk_status(bulk)
        while status.state == "pending":
            await asyncio.sleep(_POLL_SECONDS)
            status = await self._shopify.bulk_status(bulk)
        if status.state != "completed":
            raise Transient(f"the bulk read {bulk} has failed: {status.said}")
        return status


def make_account(name: str, settings: RulesSettings, ports: Ports) -> Configured:
    """An account with connections of its own. Raises UsageError for settings that cannot be used."""
    return Configured(name, _shop(settings.accounts[name], settings.private_downloads, ports), gate_of(name))


def _shop(own: AccountSettings, private_downloads: tuple[str, ...], ports: Ports) -> PriceList:
    if own.connector == "csv":
        from penstock.connectors.csv_catalog.client import CsvCatalogue
        from penstock.worker.executor import ThreadExecutor

        assert own.file is not None  # noqa: S101 - the settings see to it
        executor = ThreadExecutor(1)
        connector = CsvCatalogue(own.file, executor.run, currency=own.currency)
        return PriceList(connector, ports.clock, closes=executor.close)
    from penstock.connectors.shopify.client import RESULTS, ClientCredentials, Shopify

    assert own.shop_url is not None  # noqa: S101 - the settings see to it
    credentials: Any = own.token
    if credentials is None:
        assert own.client_id is not None and own.client_secret is not None  # noqa: S101, PT018 - the settings see to it
        credentials = ClientCredentials(own.client_id, own.client_secret)
    downloads = replace(RESULTS, private_hosts=private_downloads)
    return ShopifyPrices(Shopify(own.shop_url, credentials, ports.clock, downloads=downloads), ports.clock)


def _price(amount: str, compare_at: str | None, currency: str) -> Price:
    """A price as it came. Raises Transient for what is none: the provider lies, which says nothing of the target."""
    try:
        return Price(
            money.parse(amount, currency, zero=True, padded=True),
            None if compare_at is None else money.parse(compare_at, currency, zero=True, padded=True),
            currency,
        )
    except BadMoney as error:
        raise Transient(f"the provider's price cannot be read: {error}") from error


def _texts(price: Price) -> tuple[str, str | None]:
    """Both amounts as they are sent."""
    above = None if price.compare_at is None else money.text(price.compare_at, price.currency)
    return money.text(price.amount, price.currency), above


def _item(item: prices.Item, currency: str) -> Item:
    return Item(
        variant_id=item.variant_id,
        product_id=item.product_id,
        sku=item.sku,
        title=item.title,
        vendor=item.vendor,
        tags=item.tags,
        price=_price(item.price, item.compare_at_price, currency),
        cost=_amount(item.cost, currency),
        reference=_amount(item.reference_price, currency),
        updated_at=item.updated_at,
    )


def _amount(text: str | None, currency: str) -> int | None:
    """An amount that rules may go by; None: there is none that can be read."""
    try:
        return None if text is None else money.parse(text, currency, zero=True, padded=True)
    except BadMoney:
        return None

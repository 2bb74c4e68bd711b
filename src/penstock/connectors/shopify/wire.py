"""Shopify's side of what `prices` says: the documents that are asked, what the answers look like, and ids.

Shopify's ids are addresses, `gid://shopify/Product/1`; here they are their numbers, as texts.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from penstock.connectors.prices import Item, Variant, is_price
from penstock.model.clock import parse_instant

T = TypeVar("T")

VARIANT = "gid://shopify/ProductVariant/"
PRODUCT = "gid://shopify/Product/"
BULK = "gid://shopify/BulkOperation/"

_PRICES = "id price compareAtPrice updatedAt"
_ITEM = f"{_PRICES} sku product{{id title vendor tags status}} inventoryItem{{unitCost{{amount}}}}"
SHOP_QUERY = "query{shop{name currencyCode}}"
PAGE_QUERY = (
    "query($n:Int!,$a:String){productVariants(first:$n,after:$a,sortKey:ID)"
    f"{{nodes{{{_ITEM}}} pageInfo{{hasNextPage endCursor}}}}}}"
)
READ_QUERY = f"query($i:[ID!]!){{nodes(ids:$i){{...on ProductVariant{{{_PRICES}}}}}}}"
UPDATE = (
    "mutation($p:ID!,$v:[ProductVariantsBulkInput!]!){productVariantsBulkUpdate(productId:$p,variants:$v,"
    "allowPartialUpdates:true){productVariants{id price compareAtPrice} userErrors{field message code}}}"
)
BULK_START = (
    "mutation($q:String!){bulkOperationRunQuery(query:$q){bulkOperation{id status} userErrors{field message code}}}"
)
BULK_STATUS = "query($i:ID!){node(id:$i){...on BulkOperation{id status errorCode objectCount url}}}"
PRICES = f"{{productVariants{{edges{{node{{{_PRICES}}}}}}}}}"
"""The bulk query for what every variant of the store costs."""
CATALOGUE = f"{{productVariants{{edges{{node{{{_ITEM}}}}}}}}}"
"""The bulk query for the whole catalogue."""


class BadAnswer(ValueError):
    """An answer that says what cannot be."""


class Answer(msgspec.Struct, Generic[T], gc=False):
    data: T | None = None
    errors: Any = None
    extensions: Any = None


class Money(msgspec.Struct, gc=False):
    amount: str | None = None


class InventoryItem(msgspec.Struct, gc=False):
    unit_cost: Money | None = msgspec.field(default=None, name="unitCost")


class Product(msgspec.Struct, gc=False):
    id: str
    title: str | None = None
    vendor: str | None = None
    tags: list[str] | None = None
    status: str | None = None


class Priced(msgspec.Struct, gc=False, rename="camel"):
    """A variant with its prices."""

    id: str
    price: str
    compare_at_price: str | None = None
    updated_at: str | None = None

    def variant(self) -> Variant:
        """Raises BadAnswer."""
        return Variant(
            number(VARIANT, self.id), price(self.price), money(self.compare_at_price), instant(self.updated_at)
        )


class Listed(Priced, gc=False, rename="camel"):
    """A variant as the catalogue has it."""

    product: Product | None = None
    sku: str | None = None
    inventory_item: InventoryItem | None = None

    def item(self) -> Item:
        """Raises BadAnswer."""
        product = self.product
        if product is None:
            raise BadAnswer(f"{self.id} has no product")
        stock = self.inventory_item
        cost = None if stock is None or stock.unit_cost is None else stock.unit_cost.amount
        return Item(
            number(VARIANT, self.id),
            number(PRODUCT, product.id),
            self.sku or "",
            product.title or "",
            product.vendor or "",
            tuple(product.tags or ()),
            (product.status or "").lower(),
            price(self.price),
            money(self.compare_at_price),
            money(cost),
            None,
            instant(self.updated_at),
        )


class PageInfo(msgspec.Struct, gc=False, rename="camel"):
    has_next_page: bool
    end_cursor: str | None = None


class Listing(msgspec.Struct, gc=False, rename="camel"):
    nodes: list[Listed]
    page_info: PageInfo


class ListingData(msgspec.Struct, gc=False):
    listing: Listing | None = msgspec.field(default=None, name="productVariants")


class NodesData(msgspec.Struct, gc=False):
    nodes: list[Priced | None] | None = None


class ShopAnswer(msgspec.Struct, gc=False, rename="camel"):
    name: str
    currency_code: str


class ShopData(msgspec.Struct, gc=False):
    shop: ShopAnswer | None = None


class UserError(msgspec.Struct, gc=False):
    """What Shopify has against one variant, or against the whole call."""

    field: Any = None
    message: Any = None
    code: Any = None

    def place(self, variants: int) -> int | None:
        """Which of so many variants is meant; None: no certain one."""
        where = self.field
        if not isinstance(where, list) or len(where) < 2 or where[0] != "variants":  # noqa: PLR2004 - variants, N
            return None
        text = str(where[1])
        place = int(text) if text.isascii() and text.isdecimal() and len(text) <= 4 else variants  # noqa: PLR2004
        return place if place < variants else None


class Updated(msgspec.Struct, gc=False, rename="camel"):
    product_variants: list[Priced] | None = None
    user_errors: list[UserError] | None = None


class UpdateData(msgspec.Struct, gc=False):
    updated: Updated | None = msgspec.field(default=None, name="productVariantsBulkUpdate")


class Bulk(msgspec.Struct, gc=False, rename="camel"):
    id: str
    status: str
    error_code: str | None = None
    object_count: Any = None
    url: str | None = None


class Started(msgspec.Struct, gc=False, rename="camel"):
    bulk_operation: Bulk | None = None
    user_errors: list[UserError] | None = None


class StartedData(msgspec.Struct, gc=False):
    started: Started | None = msgspec.field(default=None, name="bulkOperationRunQuery")


class BulkData(msgspec.Struct, gc=False):
    node: Bulk | None = None


def is_number(text: str) -> bool:
    """Whether a text can be an id."""
    return text.isascii() and text.isdecimal()


def number(kind: str, gid: str) -> str:
    """The number in an address of that kind. Raises BadAnswer."""
    text = gid.removeprefix(kind)
    if text == gid or not is_number(text):
        raise BadAnswer(f"{gid!r:.100} is not the id of a {kind.split('/')[-2]}")
    return text


def price(text: str) -> str:
    """The price that came, as it is. Raises BadAnswer."""
    if not is_price(text):
        raise BadAnswer(f"{text!r:.100} is not a price")
    return text


def money(text: str | None) -> str | None:
    """A price that may be missing. Raises BadAnswer."""
    return None if text is None else price(text)


def instant(text: str | None) -> datetime | None:
    """When it was; None for what is no instant."""
    try:
        return None if text is None else parse_instant(text)
    except ValueError:
        return None


class Lines:
    """The lines of a text that comes in pieces, each with its newline or the end; none may be longer than `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that are whole now. Raises BadAnswer."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > self._most:
            raise BadAnswer(f"a line is longer than {self._most:,} bytes")
        return (line for line in whole if line.strip())

    def close(self) -> Iterator[bytes]:
        """What is left at the end."""
        return iter([self._rest] if self._rest.strip() else [])

"""What a document asks of Shopify's simulator: which operation it is, what it costs, and how a variant is written.

A document is looked at once; it has one field at its root. An object costs a point, a scalar none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.model.clock import instant_text
from penstock.simulators.graphql import BadDocument, Field, operation
from penstock.simulators.shopify_data import Variant

VARIANT, PRODUCT, BULK = (f"gid://shopify/{kind}/" for kind in ("ProductVariant", "Product", "BulkOperation"))
CURRENCY = "EUR"

_OPERATIONS = {
    "shop": ("query", "shop"),
    "productVariants": ("query", "page"),
    "nodes": ("query", "read"),
    "node": ("query", "bulk_status"),
    "productVariantsBulkUpdate": ("mutation", "update"),
    "bulkOperationRunQuery": ("mutation", "bulk"),
}
_PRODUCT_FIELDS: dict[str, Callable[[Variant], Any]] = {
    "id": lambda variant: PRODUCT + variant.product.id,
    "title": lambda variant: variant.product.title,
    "vendor": lambda variant: variant.product.vendor,
    "tags": lambda variant: variant.product.tags,
    "status": lambda variant: variant.product.status,
}
_VARIANT_FIELDS: dict[str, Callable[[Variant], Any]] = {
    "id": lambda variant: VARIANT + variant.id,
    "sku": lambda variant: variant.sku,
    "price": lambda variant: variant.price,
    "compareAtPrice": lambda variant: variant.compare_at,
    "updatedAt": lambda variant: instant_text(variant.updated),
}
_MONEY_FIELDS: dict[str, Callable[[Variant], Any]] = {
    "amount": lambda variant: variant.cost,
    "currencyCode": lambda _: CURRENCY,
}

Writer = Callable[[Variant], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Plan:
    """A document, ready to be carried out. `each` is what one variant costs, `write` what is said of it."""

    operation: str
    field: Field
    each: int = 0
    write: Writer = lambda _: {}


@functools.lru_cache(maxsize=256)
def plan(document: str) -> Plan:
    """Raises BadDocument."""
    kind, selected = operation(document)
    if len(selected) != 1:
        raise BadDocument("Syntax Error: one field at the root is all that is simulated.")
    (field,) = selected.values()
    known = _OPERATIONS.get(field.name)
    if known is None or known[0] != kind:
        raise _unknown(field.name, "Mutation" if kind == "mutation" else "QueryRoot")
    inside = field.fields or {}
    if known[1] == "page":
        return Plan(known[1], field, *_variant(_listed(inside)))
    if known[1] == "read":
        return Plan(known[1], field, *_variant(inside))
    if known[1] == "update":
        for name in inside:
            if name not in ("product", "productVariants", "userErrors"):
                raise _unknown(name, "ProductVariantsBulkUpdatePayload")
        listed = inside.get("productVariants")
        return Plan(known[1], field, *_variant((listed.fields if listed else None) or {}))
    return Plan(known[1], field)


def _listed(inside: Mapping[str, Field]) -> Mapping[str, Field]:
    """What is selected of each variant: in `nodes`, or in `edges` as bulk queries have it."""
    if "edges" in inside:
        inside = {"nodes": (inside["edges"].fields or {}).get("node") or Field("node")}
    return (inside.get("nodes") or Field("nodes")).fields or {}


def _variant(selected: Mapping[str, Field]) -> tuple[int, Writer]:
    parts: list[tuple[str, Callable[[Variant], Any]]] = []
    cost = 1
    for name, one in selected.items():
        if name == "product":
            parts.append((name, _writer(one.fields or {}, _PRODUCT_FIELDS, "Product")))
            cost += 1
        elif name == "inventoryItem":
            money = (one.fields or {}).get("unitCost")
            if money is None or len(one.fields or {}) != 1:
                raise _unknown(", ".join(one.fields or {}), "InventoryItem")
            parts.append((name, _stock(_writer(money.fields or {}, _MONEY_FIELDS, "MoneyV2"))))
            cost += 2
        elif name in _VARIANT_FIELDS:
            parts.append((name, _VARIANT_FIELDS[name]))
        else:
            raise _unknown(name, "ProductVariant")
    return cost, lambda variant: {name: read(variant) for name, read in parts}


def _writer(selected: Mapping[str, Field], known: Mapping[str, Callable[[Variant], Any]], kind: str) -> Writer:
    for name in selected:
        if name not in known:
            raise _unknown(name, kind)
    parts = [(name, known[name]) for name in selected]
    return lambda variant: {name: read(variant) for name, read in parts}


def _stock(money: Writer) -> Writer:
    return lambda variant: {"unitCost": None if variant.cost is None else money(variant)}


def _unknown(name: str, kind: str) -> BadDocument:
    return BadDocument(f"Field '{name}' doesn't exist on type '{kind}'")

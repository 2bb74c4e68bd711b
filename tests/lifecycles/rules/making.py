"""Items and rules for tests, with what a test does not care about filled in."""

from __future__ import annotations

from typing import Any

from penstock.lifecycles.rules.definition import Rule, read_rule
from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.money import Price


def item(amount: int = 2000, compare_at: int | None = None, *, currency: str = "USD", **fields: Any) -> Item:
    known = {"variant_id": "v1", "product_id": "p1", "sku": "RING-1", "title": "A ring", "vendor": "Acme"}
    return Item(**{**known, "price": Price(amount, compare_at, currency), **fields})


def rule(**fields: Any) -> Rule:
    known = {"name": "summer", "account": "shop", "currency": "USD", "selector": {"everything": True}}
    if "transform" not in fields:
        known["transform"] = {"percent": "-10"}
    if "prices" in fields.get("transform", {}):
        del known["selector"]
    return read_rule({**known, **fields})

"""The lifecycles that Penstock brings: a static table, so that help need not import them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.app.lifecycle import AnyLifecycle


class Shipped(NamedTuple):
    """Where a lifecycle is, and its sentence."""

    module: str
    says: str


SHIPPED = {
    "reports": Shipped("penstock.lifecycles.reports", "Report datasets, refreshed at their offsets."),
    "harvest": Shipped("penstock.lifecycles.harvest", "A whole catalogue, fetched in partitions and consolidated."),
    "queries": Shipped("penstock.lifecycles.queries", "Recurring searches, one at a time, seeded backwards."),
    "rules": Shipped("penstock.lifecycles.rules", "Prices changed in bulk by rules: previewed, applied, undone."),
    "partitions": Shipped("penstock.lifecycles.partitions", "Landed data, and which run of it is safe to consume."),
}


def shipped(name: str) -> AnyLifecycle:
    """One of the lifecycles that Penstock brings."""
    found: AnyLifecycle = importlib.import_module(SHIPPED[name].module).lifecycle
    return found

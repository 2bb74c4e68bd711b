"""The lifecycles that Penstock brings: a static table, so that help need not import them."""

from __future__ import annotations

from typing import NamedTuple


class Shipped(NamedTuple):
    """Where a lifecycle is, and its sentence."""

    module: str
    says: str


SHIPPED = {
    "reports": Shipped("penstock.lifecycles.reports", "Report datasets, refreshed at their offsets."),
    "harvest": Shipped("penstock.lifecycles.harvest", "A whole catalogue, fetched in partitions and consolidated."),
    "partitions": Shipped("penstock.lifecycles.partitions", "Landed data, and which run of it is safe to consume."),
}

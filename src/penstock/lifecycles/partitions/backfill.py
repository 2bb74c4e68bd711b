"""What a backfill comes to: the partitions of a range that nobody has wanted yet, and when each falls due."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta

from penstock.ledger.births import AT_ONCE, Product, Side
from penstock.ledger.store.database import Database
from penstock.lifecycles.partitions import jobs
from penstock.lifecycles.partitions.machine import Extraction, extraction, gate_of
from penstock.raw.paths import PartitionKey, Range

Lack = bytes
"""A byte for each day, newest first, and query: 1 where nobody has wanted the partition yet."""


def lacking(
    database: Database, over: Range, progress: Callable[[int, int | None], None] = lambda *_: None
) -> dict[Lack, list[str]]:
    """The customers, by what they lack; most lack the same."""
    slots = list(_slots(over))
    found: dict[Lack, list[str]] = {}
    share = max(1, jobs.AT_ONCE // len(slots))
    for start in range(0, len(over.customers), share):
        some = over.customers[start : start + share]
        keys = [PartitionKey(over.source, customer, query, day) for customer in some for day, query in slots]
        absent = {str(key) for key in jobs.missing(database, keys)}
        for place, customer in enumerate(some):
            own = keys[place * len(slots) : (place + 1) * len(slots)]
            found.setdefault(bytes(str(key) in absent for key in own), []).append(customer)
        progress(min(start + share, len(over.customers)) * len(slots), len(over))
    return found


def products(
    over: Range, groups: Mapping[Lack, Sequence[str]], now: datetime, spacing: timedelta
) -> tuple[list[Product], datetime]:
    """Their births, each customer's one after another; and when the last falls due."""
    slots = list(_slots(over))
    made: list[Product] = []
    last = now
    for lack, customers in groups.items():
        absent = [slot for slot, missing in zip(slots, lack, strict=True) if missing]
        if not absent:
            continue
        those = Side(
            [
                {"query_name": query, "logical_date": day, "due_at": now + turn * spacing}
                for turn, (day, query) in enumerate(absent)
            ]
        )
        last = max(last, now + (len(absent) - 1) * spacing)
        day, query = absent[0]
        share = max(1, AT_ONCE // len(absent))
        for start in range(0, len(customers), share):
            these = [
                {
                    "source": over.source,
                    "customer_id": customer,
                    "gate_id": gate_of(PartitionKey(over.source, customer, query, day), backfill=True),
                }
                for customer in customers[start : start + share]
            ]
            made.append(Product(extraction, _like(over.source, query, day), Side(these), those))
    return made, last


def _slots(over: Range) -> list[tuple[date, str]]:
    days = [over.end - timedelta(days=n) for n in range(over.days)]
    return [(day, query) for day in days for query in over.queries]


def _like(source: str, query: str, day: date) -> Extraction:
    return Extraction(source=source, customer_id="", query_name=query, logical_date=day, backfill=True)

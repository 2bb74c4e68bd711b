"""A list read to its end by the engine's own pass, without a ledger."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.connectors.searches import Client, Parameters
from penstock.lifecycles.queries.passes import Kind, Pass, Step, advance


async def read(client: Client, parameters: Parameters, begun: datetime) -> tuple[set[str], Step]:
    """The ids that it finds, stepping back where it loses its place; and how it ended."""
    now = Pass(kind=Kind.CENSUS, number=1, begun=begun, until=datetime.min.replace(tzinfo=UTC))
    found: set[str] = set()
    for _ in range(1_000):
        page = await client.page(parameters, now.wanted(client))
        fresh = {record.id for record in page.records if record.id is not None} - found
        found |= fresh
        step = advance(now, page, client, len(fresh))
        if step.over or step.repeating:
            return found, step
        now = step.following
    raise AssertionError("it does not end")

"""Harvests over real HTTP: a bench whose source is Nivoda's simulator on a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from penstock.connectors.nivoda.client import Api, Nivoda
from penstock.lifecycles.harvest.chunk.flow import Chunks
from penstock.lifecycles.harvest.nivoda import NivodaSource, nivoda_feed
from penstock.lifecycles.harvest.run.consolidate import Consolidator
from penstock.model.clock import VirtualClock
from penstock.simulators.nivoda import PATH, NivodaSimulator
from penstock.simulators.nivoda_data import Catalogue
from penstock.simulators.server import serving
from tests.support.harvest import FEED, SMALL, START, bench, small
from tests.support.nivoda import secrets

STONES = 700


@contextlib.asynccontextmanager
async def harvested(
    url: str,
    folder: Path,
    clock: VirtualClock | None = None,
    before: Callable[[], None] | None = None,
    settings: Mapping[str, Any] = SMALL,
    **simulated: Any,
) -> AsyncIterator[Any]:
    """A bench on the simulator, and the simulator; `before` is called before every request."""
    clock = clock or VirtualClock(START)
    simulator = NivodaSimulator(clock, Catalogue(STONES, START), tells_updated=True, **simulated)

    async def front(scope: Any, receive: Any, send: Any) -> None:
        if before is not None:
            before()
        await simulator(scope, receive, send)

    async with serving(front) as address:
        client = Nivoda(secrets(folder, simulator), clock, api=Api(f"{address}{PATH}", updated_field="updated_at"))
        feed = nivoda_feed(FEED)
        feeds = {FEED: feed}
        known = small(**{"chunk_rows": 100, **settings})
        options: dict[str, Any] = {
            "feed": feed,
            "consolidation": Consolidator(known, feeds),
            "more": [Chunks(known, feeds)],
            "clock": clock,
            "settings": known,
        }
        async with bench(url, NivodaSource(client), **options) as made:
            yield made, simulator


def over_http(url: str, folder: Path, test: Callable[..., Awaitable[None]], **simulated: Any) -> None:
    """Run a test on a bench with the simulator."""

    async def main() -> None:
        async with harvested(url, folder, **simulated) as (made, simulator):
            await test(made, simulator)

    asyncio.run(main())

"""InfoJobs that is really a simulator in the same process, and the connector on it, each with a clock of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.connectors.http.in_process import InProcess
from penstock.connectors.infojobs.client import InfoJobs
from penstock.connectors.searches import Bad, Batch, Client, Item, Wanted
from penstock.model.clock import VirtualClock
from penstock.settings.secret import Secret
from penstock.simulators.infojobs import InfoJobsSimulator
from penstock.simulators.infojobs_data import Market

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
PYTHON = {"q": "python"}


@dataclass
class Both:
    """Both sides. `clock` is the simulator's; the client has one that may be wrong."""

    simulator: InfoJobsSimulator
    clock: VirtualClock
    client_clock: VirtualClock
    client: Client

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.client_clock.advance(seconds)

    async def page(self, place: int = 0, since: datetime | None = None, q: str = "python") -> Batch:
        return await self.client.page({"q": q}, Wanted(place=place, since=since))

    async def everything(self, since: datetime | None = None, q: str = "python") -> dict[str, Item]:
        """The whole list, of a market that stands still."""
        found: dict[str, Item] = {}
        place = 0
        while True:
            batch = await self.page(place, since, q)
            found |= {item.id: item for item in batch.records if isinstance(item, Item)}
            place = batch.place + len(batch.records)
            if batch.last:
                return found

    @property
    def spans(self) -> list[str | None]:
        """Which `sinceDate` each call had."""
        return [request.one("sinceDate") for request in self.simulator.requests]


def bad(batch: Batch) -> list[Bad]:
    return [record for record in batch.records if isinstance(record, Bad)]


def on(
    folder: Path,
    test: Callable[[Both], Awaitable[None]],
    *,
    wrong_by: timedelta = timedelta(),
    page_size: int = 50,
    market: dict[str, Any] | None = None,
    **simulated: Any,
) -> None:
    """Run a test on both sides."""
    (folder / "secret").write_text("simulated-secret")
    clock = VirtualClock(NOW)
    options = {"history": timedelta(days=42), **(market or {})}
    simulator = InfoJobsSimulator(clock, Market(NOW, **options), **simulated)
    client_clock = VirtualClock(NOW + wrong_by)
    client = InfoJobs(
        "http://infojobs.sim",
        "simulated-client",
        Secret("file", str(folder / "secret")),
        client_clock,
        page_size=page_size,
        transport=InProcess(simulator),
    )

    async def main() -> None:
        try:
            await test(Both(simulator, clock, client_clock, client))
        finally:
            await client.close()

    asyncio.run(main())

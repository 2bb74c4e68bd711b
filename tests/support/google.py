"""A login of Google's that is really a simulator on a socket, and the connector on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from penstock.connectors.google_ads.client import GoogleAds
from penstock.connectors.google_ads.endpoint import Endpoint
from penstock.connectors.google_ads.stream import ROW_LIMITS, Row
from penstock.connectors.oauth import Credentials
from penstock.connectors.records import Limits
from penstock.model.clock import VirtualClock
from penstock.settings.secret import Secret
from penstock.simulators.google_ads import GoogleAdsSimulator
from penstock.simulators.server import serving

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
DAY = date(2026, 11, 14)
CUSTOMER = "1111111111"
DAILY = (
    "SELECT campaign.id, campaign.name, metrics.clicks, metrics.cost_micros, metrics.conversions, segments.date"
    " FROM campaign WHERE segments.date = '{date}'"
)
GAQL = DAILY.replace("{date}", DAY.isoformat())


@dataclass
class Login:
    """Both sides."""

    simulator: GoogleAdsSimulator
    clock: VirtualClock
    ads: GoogleAds
    address: str

    async def batches(
        self, gaql: str = GAQL, customer: str = CUSTOMER, fields: Mapping[str, str] | None = None
    ) -> list[list[Row]]:
        return [batch async for batch in self.ads.search_stream(customer, gaql, fields)]

    async def rows(self, *asked: Any, **options: Any) -> list[Row]:
        return [row for batch in await self.batches(*asked, **options) for row in batch]


def secrets(folder: Path, simulator: GoogleAdsSimulator) -> Credentials:
    """References to the simulator's credentials, in files."""
    (folder / "client").write_text(simulator.client_secret)
    (folder / "refresh").write_text(min(simulator.refresh_tokens))
    return Credentials(
        simulator.client_id, Secret("file", str(folder / "client")), Secret("file", str(folder / "refresh"))
    )


@contextlib.asynccontextmanager
async def login(
    folder: Path, *, limits: Limits = ROW_LIMITS, through: str | None = None, version: str = "v26", **simulated: Any
) -> AsyncIterator[Login]:
    """A login on a loopback socket, with a clock of its own."""
    clock = VirtualClock(NOW)
    simulator = GoogleAdsSimulator(clock, **simulated)
    async with serving(simulator) as address:
        place = Endpoint(address, f"{address}/token", version)
        credentials = secrets(folder, simulator)
        ads = GoogleAds(credentials, clock, endpoint=place, login_customer_id=through, limits=limits)
        try:
            yield Login(simulator, clock, ads, address)
        finally:
            await ads.close()


def on(folder: Path, test: Callable[[Login], Awaitable[None]], **options: Any) -> None:
    """Run a test on a login."""

    async def main() -> None:
        async with login(folder, **options) as made:
            await test(made)

    asyncio.run(main())

"""A profile of Amazon's that is really a simulator on a socket, and the connector on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from penstock.connectors.amazon_ads.client import Amazon, AmazonAds, Region
from penstock.connectors.amazon_ads.report import Created
from penstock.connectors.http.download import Allowed
from penstock.connectors.oauth import Credentials
from penstock.connectors.records import Limits, Record, exact
from penstock.model.clock import VirtualClock
from penstock.settings.secret import Secret
from penstock.simulators.amazon_ads import AmazonAdsSimulator
from penstock.simulators.server import serving

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
DAY = date(2026, 11, 14)
_DECODER = msgspec.json.Decoder(dict[str, Any], float_hook=exact)


@dataclass
class Profile:
    """Both sides of one profile."""

    simulator: AmazonAdsSimulator
    clock: VirtualClock
    amazon: Amazon
    ads: AmazonAds
    address: str

    async def ready(self, created: Created) -> str:
        """Let the report become ready; its link."""
        self.clock.advance(3_600)
        url = (await self.ads.status(created.report_id)).url
        assert url is not None
        return url

    async def read(self, url: str) -> list[Record]:
        return [record async for lines in self.ads.records(url) for record in decoded(lines)]


def decoded(lines: bytes) -> list[Record]:
    """Landed records, as whoever loads them reads them."""
    return _DECODER.decode_lines(lines)


def secrets(folder: Path, simulator: AmazonAdsSimulator) -> Credentials:
    """References to the simulator's credentials, in files."""
    (folder / "client").write_text(simulator.client_secret)
    (folder / "refresh").write_text(min(simulator.refresh_tokens))
    return Credentials(
        simulator.client_id, Secret("file", str(folder / "client")), Secret("file", str(folder / "refresh"))
    )


@contextlib.asynccontextmanager
async def profile(
    folder: Path, *, limits: Limits | None = None, max_bytes: int = 1 << 30, **simulated: Any
) -> AsyncIterator[Profile]:
    """A profile on a loopback socket, with a clock of its own."""
    clock = VirtualClock(NOW)
    simulator = AmazonAdsSimulator(clock, **simulated)
    async with serving(simulator) as address:
        allowed = Allowed((), (urlsplit(address).netloc,), max_bytes)
        amazon = Amazon(Region(address, f"{address}/auth/o2/token"), clock, downloads=allowed, limits=limits)
        try:
            ads = amazon.profile("1001", secrets(folder, simulator))
            yield Profile(simulator, clock, amazon, ads, address)
        finally:
            await amazon.close()


def on(folder: Path, test: Callable[[Profile], Awaitable[None]], **options: Any) -> None:
    """Run a test on a profile."""

    async def main() -> None:
        async with profile(folder, **options) as made:
            await test(made)

    asyncio.run(main())

"""A login of Nivoda's that is really a simulator on a socket, and the connector on it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.connectors.nivoda.client import BY_BIRTH, Api, Credentials, Item, Nivoda, Order, Query
from penstock.model.clock import VirtualClock
from penstock.settings.secret import Secret
from penstock.simulators.lean import serving_lean
from penstock.simulators.nivoda import PATH, NivodaSimulator
from penstock.simulators.nivoda_data import Catalogue
from penstock.simulators.server import serving

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


@dataclass
class Login:
    """Both sides."""

    simulator: NivodaSimulator
    clock: VirtualClock
    nivoda: Nivoda
    address: str

    @property
    def stones(self) -> Catalogue:
        return self.simulator.stones

    async def everything(self, query: Query | None = None, size: int = 30, order: Order = BY_BIRTH) -> list[Item]:
        """Every page up to the count."""
        query = query or Query()
        count = await self.nivoda.count(query)
        pages = [await self.nivoda.page(query, offset, size, order) for offset in range(0, count, size)]
        return [item for page in pages for item in page.items]


def secrets(folder: Path, simulator: NivodaSimulator) -> Credentials:
    """A reference to the simulator's password, in a file."""
    (folder / "password").write_text(simulator.password)
    return Credentials(simulator.username, Secret("file", str(folder / "password")))


@contextlib.asynccontextmanager
async def login(
    folder: Path,
    *,
    stones: int = 1_000,
    bad: float = 0.0,
    api: dict[str, Any] | None = None,
    lean: bool = True,
    **simulated: Any,
) -> AsyncIterator[Login]:
    """A login on a loopback socket, with a clock of its own. `lean` is the quicker of two servers."""
    clock = VirtualClock(NOW)
    simulator = NivodaSimulator(clock, Catalogue(stones, NOW, bad=bad), **simulated)
    server = serving_lean(simulator.answer, latency=lambda: simulator.latency) if lean else serving(simulator)
    async with server as address:
        place = Api(f"{address}{PATH}", **(api or {}))
        nivoda = Nivoda(secrets(folder, simulator), clock, api=place)
        try:
            yield Login(simulator, clock, nivoda, address)
        finally:
            await nivoda.close()


def on(folder: Path, test: Callable[[Login], Awaitable[None]], **options: Any) -> None:
    """Run a test on a login."""

    async def main() -> None:
        async with login(folder, **options) as made:
            await test(made)

    asyncio.run(main())

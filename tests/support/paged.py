"""The generic client and the generic API's simulator in one process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.connectors.http.in_process import InProcess
from penstock.connectors.rest_json.client import RestJson
from penstock.connectors.rest_json.settings import RestSettings
from penstock.connectors.searches import Bad, Batch, Item, Wanted
from penstock.lifecycles.queries.passes import Step
from penstock.model.clock import VirtualClock
from penstock.settings.reader import read_section
from penstock.settings.secret import ConfigError
from penstock.simulators.paged import PagedSimulator
from penstock.simulators.paged_data import Listing
from tests.support.reading import read

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
ADDRESS = "http://localhost"
PAGING: dict[str, dict[str, Any]] = {
    "page": {"page": {"size": 30, "size_parameter": "per_page"}},
    "page_fixed": {"page": {"size": 20}},
    "offset": {"offset": {"size": 30, "size_parameter": "limit"}},
    "cursor": {"cursor": {"next": "meta.next_cursor"}},
    "link": {"link": {}},
    "next": {"link": {"next": "meta.next"}},
    "all": {},
}
OFFER = {
    "title": "title",
    "company": "company.name",
    "company_ref": "company.id",
    "city": "places.0.city",
    "salary_min": "pay.min",
    "published_at": "created_at",
}


def rest(given: Mapping[str, Any]) -> RestSettings:
    """The settings of an API, read as a file's are. Raises ConfigError with every error."""
    errors: list[str] = []
    found = read_section(
        RestSettings, given, at=("queries", "rest_json", "api"), folder=Path("/"), errors=errors, path_text="p.toml"
    )
    if found is None:
        raise ConfigError("\n".join(errors))
    return found


def described(style: str, **changes: Any) -> dict[str, Any]:
    """The simulator's API, read in one way."""
    given = {
        "url": ADDRESS,
        "path": f"/{style.removesuffix('_fixed')}",
        "paging": PAGING[style],
        "records": "data.items",
        "order": "newest_first",
        "date": "updated_at",
        "offer": OFFER,
    }
    if style == "link":
        del given["records"]
    return {name: value for name, value in (given | changes).items() if value is not None}


@dataclass
class Api:
    """Both sides."""

    simulator: PagedSimulator
    clock: VirtualClock
    client: RestJson

    async def first(self, **parameters: Any) -> Batch:
        return await self.client.page(parameters, Wanted())

    async def walk(
        self, since: datetime | None = None, most: int = 1_000, **parameters: Any
    ) -> tuple[list[Item | Bad], list[Batch]]:
        """What a whole reading finds, each record once, and its pages."""
        found: dict[Any, Item | Bad] = {}
        pages: list[Batch] = []
        place, token = 0, None
        for number in itertools.count():
            assert number < most, "it does not end"
            page = await self.client.page(parameters, Wanted(place, token, since))
            assert page.place <= place
            assert self.client.overlaps or not self.client.by_place or page.place % 20 == 0
            begin = page.place if self.client.by_place else 1_000 * number
            found |= {record.id or begin + at: record for at, record in enumerate(page.records)}
            pages.append(page)
            if page.last or page.cut:
                assert page.after is None
                return list(found.values()), pages
            if self.client.by_place:
                assert page.place + len(page.records) > place
                place = page.place + len(page.records)
            else:
                assert page.after is not None
                token = page.after
        raise AssertionError

    async def read(self) -> tuple[set[str], Step]:
        """The ids that a pass of the engine finds, which steps back where it lost its place; and how it ended."""
        return await read(self.client, {}, NOW)


def on(
    test: Callable[[Api], Awaitable[None]],
    style: str = "page",
    *,
    records: int = 205,
    bad: float = 0.0,
    given: Mapping[str, Any] | None = None,
    **simulated: Any,
) -> None:
    """Run a test with an API of so many records; `given` changes its description."""

    async def run() -> None:
        clock = VirtualClock(NOW)
        simulator = PagedSimulator(clock, Listing(records, NOW, bad=bad), **simulated)
        client = RestJson(rest(described(style, **(given or {}))), clock, InProcess(simulator))
        try:
            await test(Api(simulator, clock, client))
        finally:
            await client.close()

    asyncio.run(run())

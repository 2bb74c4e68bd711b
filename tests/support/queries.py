"""A ledger of queries on virtual time, and clients whose lists a test writes."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from penstock.app.app import App
from penstock.connectors.searches import OFFER_COLUMNS, Batch, Item, Parameters, Wanted
from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.queries import gates, lifecycle
from penstock.lifecycles.queries.flow import Queries
from penstock.lifecycles.queries.jobs import keep_queries
from penstock.lifecycles.queries.machine import Query, query
from penstock.lifecycles.queries.offer_store import OfferStore
from penstock.lifecycles.queries.registry import Configured, registry
from penstock.lifecycles.queries.settings import FeedSettings, QueriesSettings, QuerySettings
from penstock.lifecycles.queries.sources import Source
from penstock.model.clock import Rng, VirtualClock
from penstock.settings.typed import TimeZone
from penstock.testing import work_until_idle
from penstock.worker.worker import WorkerSettings
from tests.support.copies import opened

START = datetime(2026, 6, 15, 12, tzinfo=UTC)
PAUSE = timedelta(hours=4)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
Trouble = Exception | Callable[[], None]
# After a kill another takes over soon: until then it looks every second.
_SOON = WorkerSettings(
    lease_ms=30_000,
    renew_seconds=10.0,
    watch_seconds=10.0,
    idle_seconds=None,
    unknown_seconds=1e9,
    place_seconds=None,
)


def offer(
    number: int | str,
    at: datetime,
    *,
    title: str | None = None,
    company: str | None = "Ibérica S.L.",
    city: str = "Madrid",
    more: str = "",
) -> Item:
    """An offer as a client gives it; `more` makes its payload as long as is wanted."""
    said: dict[str, Any] = {"title": title or f"Job {number}", "company": company, "city": city, "published_at": at}
    payload = json.dumps({"id": str(number), "title": said["title"], "more": more})
    return Item(str(number), at, tuple(said.get(column) for column in OFFER_COLUMNS), payload)


def ladder(count: int, newest: datetime = START, step: timedelta = HOUR, first: int = 0) -> list[Item]:
    """So many offers, newest first; the number of each is the steps that it is old."""
    return [offer(first + place, newest - place * step, company=f"Company {place % 7}") for place in range(count)]


class Lists:
    """A client with one list, newest first, in pages that overlap; `trouble` is what the next calls come to.

    None is no trouble; a function is called before the answer. `cap` is how many records it gives at most.
    """

    columns: Sequence[str] = OFFER_COLUMNS

    def __init__(
        self,
        records: Sequence[Any] = (),
        *,
        size: int = 10,
        newest_first: bool = True,
        by_place: bool = True,
        overlap: int = 2,
        cap: int | None = None,
    ) -> None:
        self.records: list[Any] = list(records)
        self.size, self.overlap, self.cap = size, overlap, cap
        self.newest_first, self.by_place = newest_first, by_place
        self.trouble: deque[Trouble | None] = deque()
        self.asked: list[Wanted] = []
        self.repeats = False
        #: Lists of their own for some queries, by the words they ask for.
        self.lists: dict[str, list[Any]] = {}
        self.closed = False

    @property
    def overlaps(self) -> bool:
        return self.by_place and self.overlap > 0

    @property
    def calls(self) -> int:
        return len(self.asked)

    async def page(self, parameters: Parameters, wanted: Wanted) -> Batch:
        self.asked.append(wanted)
        await asyncio.sleep(0.1)
        trouble = self.trouble.popleft() if self.trouble else None
        if isinstance(trouble, Exception):
            raise trouble
        if trouble is not None:
            trouble()
        return self._batch(self.lists.get(parameters.get("q", ""), self.records), wanted)

    def _batch(self, records: list[Any], wanted: Wanted) -> Batch:
        if self.repeats:
            return Batch(records[: self.size], wanted.place, after="again")
        start = max(0, wanted.place - self.overlap) if self.by_place else int(wanted.token or 0)
        given = records if self.cap is None else records[: self.cap]
        found = given[start : start + self.size]
        end = start + len(found)
        last = end >= len(given)
        cut = last and end < len(records)
        return Batch(found, start if self.by_place else 0, None if last else str(end), last, cut, len(records))

    async def close(self) -> None:
        self.closed = True

    @property
    def places(self) -> list[int]:
        """Where the calls so far began."""
        return [one.place for one in self.asked]


def open_ledger(url: str, clock: VirtualClock, tables: Sequence[sa.Table] = ()) -> Ledger:
    """The ledger, or a new one, with more tables; it may be a copy of one that was made before."""
    app = App(lifecycle)
    made = {"data_tables": (*app.data.tables, *tables), "migrations": app.migrations, "views": app.data.views}
    return opened(url, app.machines, clock=clock, rng=Rng(7), **made)


class Bench:
    """A ledger with one query of each client, or those that are given."""

    def __init__(
        self,
        url: str,
        clients: Mapping[str, Lists],
        queries: Mapping[str, QuerySettings] | None = None,
        sources: Mapping[str, Source] | None = None,
        tables: Sequence[sa.Table] = (),
        **settings: Any,
    ) -> None:
        self.clock = VirtualClock(START)
        self.ledger = open_ledger(url, self.clock, tables)
        self.clients = clients
        own = FeedSettings(folder=Path("feed"), time_zone=TimeZone("UTC"))
        self.settings = QueriesSettings(
            **{"pause": PAUSE, "horizon": 10 * DAY} | settings,
            feed_jsonl=dict.fromkeys(clients, own),
            queries=dict(queries or {name: QuerySettings(client=name, parameters={"q": name}) for name in clients}),
        )
        self._sources = sources or {}
        self.ledger.gates.providers = tuple(gates(self.settings))
        keep_queries(self.ledger, self.settings, self.clock.now(), "test")

    def flow(self) -> Queries:
        """A flow, as a fresh process has one."""
        for client in self.clients.values():
            client.closed = False
        made = {name: Source(client, OfferStore(self.settings.repost_within)) for name, client in self.clients.items()}
        return Queries(self.settings, made | dict(self._sources))

    def work(self, within: timedelta = HOUR, flow: Any = None) -> None:
        """Let a worker run until nothing falls due within that time."""
        work_until_idle(self.ledger, [flow or self.flow()], within=within, settings=_SOON)

    def later(self, time: timedelta = PAUSE, within: timedelta = HOUR) -> None:
        """The same, later."""
        self.clock.advance(time.total_seconds())
        self.work(within)

    def own(self, name: str) -> Configured:
        return next(one for one in registry(self.settings).values() if one.name == name)

    def state(self, name: str) -> Query:
        (found,) = self.ledger.get_many(query, [self.own(name).key])
        assert isinstance(found, Query)
        return found

    def rows(self, sql: str, **given: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.ledger.read(lambda cursor: cursor.rows(sql, **given))]

    def value(self, sql: str, **given: Any) -> Any:
        return self.rows(sql, **given)[0][0]

    def runs(self, name: str, columns: str) -> list[tuple[Any, ...]]:
        """Some columns of its runs, in their order."""
        key = self.own(name).key
        sql = f"SELECT {columns} FROM ingestion_runs WHERE query_key = :key ORDER BY started_at, finished_at"
        return self.rows(sql, key=key)

    def offers(self, where: str = "1 = 1") -> list[str]:
        """The ids of offers, in the order of their numbers where these are numbers."""
        found = [row[0] for row in self.rows(f"SELECT offer_id FROM offers WHERE {where}")]
        return sorted(found, key=lambda one: (int(one) if one.isdecimal() else 0, one))

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What was told, of that kind."""
        sql = "SELECT payload FROM event_log WHERE event_type = :kind ORDER BY created_at, event_key"
        return [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in self.rows(sql, kind=kind)]

    def sane(self) -> bool:
        """Whether the doctor finds no error."""
        app = App(lifecycle)
        found = examine(self.ledger.database, {one.name: one for one in app.machines}, views=app.data.views)
        return [one for one in found if one.severity == "error"] == []


@contextmanager
def bench(url: str, clients: Mapping[str, Lists] | Lists, *args: Any, **settings: Any) -> Iterator[Bench]:
    """A bench; with one client alone, that is called "jobs"."""
    made = Bench(url, {"jobs": clients} if isinstance(clients, Lists) else clients, *args, **settings)
    try:
        yield made
        assert made.sane()
    finally:
        made.ledger.close()

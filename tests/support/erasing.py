"""A ledger of queries over two lists of this process, offers and people, from which things are erased."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from penstock.app.app import App
from penstock.connectors.http.in_process import InProcess
from penstock.connectors.rest_json.client import RestJson
from penstock.connectors.rest_json.settings import FieldSettings, RestSettings
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.queries import gates, lifecycle
from penstock.lifecycles.queries.erasure import operations
from penstock.lifecycles.queries.erasure.flow import Erasures
from penstock.lifecycles.queries.erasure.machine import Erasure, erasure
from penstock.lifecycles.queries.flow import Queries
from penstock.lifecycles.queries.jobs import keep_queries
from penstock.lifecycles.queries.landing import LandedSource
from penstock.lifecycles.queries.machine import query
from penstock.lifecycles.queries.offer_store import OfferStore
from penstock.lifecycles.queries.own_store import OwnStore
from penstock.lifecycles.queries.registry import registry
from penstock.lifecycles.queries.settings import QueriesSettings, QuerySettings
from penstock.lifecycles.queries.sources import Source
from penstock.lifecycles.queries.tables import own_table, own_tables
from penstock.model.clock import Rng, VirtualClock, instant_text
from penstock.model.unit import Ref
from penstock.operations.carry import Planned, carry_out, make_plan
from penstock.operations.declare import Ask
from penstock.operations.reader import Reader
from penstock.raw.sink import RawSink
from penstock.settings.typed import Url
from penstock.testing import Fault, inject, work_until_idle
from penstock.worker.flow import AnyFlow
from tests.support.copies import opened

START = datetime(2026, 3, 2, 9, tzinfo=UTC)
_URL = Url("http://127.0.0.1:1")
_OFFER = {name: name for name in ("title", "company", "city", "description", "url")}
_FIELDS = {"full_name": "text", "born": "date", "notes": "json", "score": "number"}


def settings_of() -> QueriesSettings:
    """One list of offers, one of people with a table of their own, and two queries of each."""
    fields = {name: FieldSettings(path=name, type=kind) for name, kind in _FIELDS.items()}  # type: ignore[arg-type]
    alike: dict[str, Any] = {"url": _URL, "records": "items", "date": "updated_at", "requests_per_second": 0.0}
    return QueriesSettings(
        pause=timedelta(hours=1),
        rest_json={
            "board": RestSettings(path="/offers", offer=_OFFER, **alike),
            "staff": RestSettings(path="/people", table="people", fields=fields, **alike),
        },
        queries={
            "offers": QuerySettings(client="board"),
            "people": QuerySettings(client="staff", parameters={"q": "all"}),
            "others": QuerySettings(client="staff", parameters={"q": "others"}),
        },
    )


def open_ledger(url: str, clock: VirtualClock) -> Ledger:
    """The ledger, or a new one; it may be a copy of one that was made before."""
    app, settings = App(lifecycle), settings_of()
    tables = (*app.data.tables, *own_tables(settings))
    return opened(url, app.machines, clock=clock, rng=Rng(7), data_tables=tables, views=app.data.views)


class Api:
    """Lists by their paths; one answer has all of a list."""

    def __init__(self) -> None:
        self.lists: dict[str, dict[Any, dict[str, Any]]] = {"/offers": {}, "/people": {}}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = json.dumps({"items": list(self.lists[scope["path"]].values())}).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Site:
    """One ledger, one raw sink, and the two lists, on virtual time."""

    def __init__(self, url: str, folder: Path) -> None:
        self.time = VirtualClock(START)
        self.settings = settings_of()
        self.ledger = open_ledger(url, self.time)
        self.ledger.gates.providers = tuple(gates(self.settings))
        self.folder = folder / "raw"
        self.raw = RawSink(self.folder)
        self.api = Api()

    def offer(self, number: str, **values: Any) -> None:
        """List an offer, or what it says now; it is as new as can be."""
        self.api.lists["/offers"][number] = {"id": number, "updated_at": instant_text(self.time.now()), **values}

    def person(self, number: int, **values: Any) -> None:
        self.api.lists["/people"][number] = {"id": number, "updated_at": instant_text(self.time.now()), **values}

    def read(self, *names: str) -> None:
        """Every query runs once, or those that are named."""
        keep_queries(self.ledger, self.settings, self.time.now(), "test")
        own = [one for one in registry(self.settings).values() if not names or one.name in names]
        refs = [Ref(query.name, one.key) for one in own]
        self.time.advance(1)
        self.ledger.wake(refs, who="test", reason="again")
        work_until_idle(self.ledger, [self._queries()], within=timedelta(minutes=5))
        failed = self.rows("SELECT name, error FROM query_state WHERE status <> 'SUCCESS' AND last_run_at IS NOT NULL")
        assert failed == []

    def ask(self, reason: str = "request 17") -> Ask[QueriesSettings]:
        reader = Reader(self.ledger.database, self.ledger.machines.values(), lifecycle.past)
        return Ask(reader, self.settings, self.time.now(), "ada", reason)

    def plan(self, *keys: str, reason: str = "request 17") -> Planned:
        wanted = operations.EraseParameters(keys=keys)
        return make_plan(operations.erase, self.ask(reason), wanted, owner="queries", version="1")

    def want(self, *keys: str) -> None:
        """Ask for it; no worker is there."""
        carry_out(self.ledger, self.ask(), self.plan(*keys))

    def erase(self, *keys: str, faults: Sequence[Fault] = ()) -> list[Erasure]:
        """Ask for it, and let a worker do it; the units, those that were asked for first first."""
        self.want(*keys)
        return self.work(faults)

    def work(self, faults: Sequence[Fault] = ()) -> list[Erasure]:
        flow: AnyFlow = Erasures(self.settings, lambda: self.raw)
        faulty = inject(flow, *faults)
        parked: list[tuple[Any, ...]] = [()]
        while parked:
            # What has killed three workers in a row is parked until a person says otherwise.
            work_until_idle(self.ledger, [faulty], within=timedelta(hours=6))
            parked = self.rows("SELECT unit_id FROM erasure WHERE parked_at IS NOT NULL")
            self.ledger.unpark([Ref(erasure.name, row[0]) for row in parked], who="test", reason="again")
        assert faulty.left == {}
        ids = [str(row[0]) for row in self.rows("SELECT unit_id FROM erasure ORDER BY asked_at, unit_id")]
        found: list[Erasure] = self.ledger.get_many(erasure, ids)
        return sorted(found, key=lambda unit: ids.index(unit.unit_id))

    def rows(self, sql: str, **given: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.ledger.read(lambda cursor: cursor.rows(sql, **given))]

    def mentions(self, *texts: str) -> list[str]:
        """Where any of these texts is found: in any column of any table, or in any landed file."""
        wanted = [text.casefold() for text in texts]
        found = [place for place, value in self._values() if any(text in value.casefold() for text in wanted)]
        for path in sorted(self.folder.rglob("*")):
            said = path.read_text() if path.is_file() else ""
            if any(text in f"{path.relative_to(self.folder)} {said}".casefold() for text in wanted):
                found.append(str(path.relative_to(self.folder)))
        return found

    def _values(self) -> Iterator[tuple[str, str]]:
        tables = {
            "sqlite": "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'",
            "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()",
        }

        def read(cursor: Cursor) -> list[tuple[str, str]]:
            names = [str(row[0]) for row in cursor.rows(tables[self.ledger.database.dialect])]
            return [(name, str(row)) for name in names for row in cursor.rows(f'SELECT * FROM "{name}"')]

        yield from self.ledger.read(read)

    def _queries(self) -> Queries:
        board, staff = (
            RestJson(self.settings.rest_json[name], self.time, transport=InProcess(self.api))
            for name in ("board", "staff")
        )
        store = OwnStore(own_table("people", _FIELDS), list(_FIELDS))
        sources = {
            "board": Source(board, OfferStore(self.settings.repost_within)),
            "staff": LandedSource("staff", staff, store, self.raw),
        }
        return Queries(self.settings, sources)


@contextmanager
def site(url: str, folder: Path) -> Iterator[Site]:
    made = Site(url, folder)
    try:
        yield made
    finally:
        made.ledger.close()

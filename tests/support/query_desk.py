"""Queries on virtual time against InfoJobs in this process, and what people see of them and do to them."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.app.app import App
from penstock.cli.render import Showing, answer_lines, notes
from penstock.cli.terminal import Screen, cells
from penstock.connectors.http.in_process import InProcess
from penstock.connectors.infojobs.client import InfoJobs
from penstock.lifecycles.queries import gates, lifecycle
from penstock.lifecycles.queries.flow import Queries
from penstock.lifecycles.queries.jobs import keep_queries
from penstock.lifecycles.queries.machine import Query, query
from penstock.lifecycles.queries.offer_store import OfferStore
from penstock.lifecycles.queries.settings import InfojobsSettings, QueriesSettings, QuerySettings
from penstock.lifecycles.queries.sources import Source
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import UsageError
from penstock.model.limits import GateLimits
from penstock.model.simulation import SimulatedLoop, simulate
from penstock.model.unit import Ref, replace
from penstock.operations.carry import Done, Planned, carry_out, make_plan
from penstock.operations.declare import Ask, Declaration, Operation, Reading
from penstock.operations.reader import Reader
from penstock.operations.why import Why, explain
from penstock.settings.secret import Secret
from penstock.simulators.infojobs import InfoJobsSimulator
from penstock.simulators.infojobs_data import Market
from penstock.worker.executor import InlineExecutor
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.copies import opened

START = datetime(2026, 11, 15, 12, tzinfo=UTC)
CLIENTS = ("jobs", "other")
PAUSE = timedelta(hours=4)
WHO = "ada"
WIDTH = 80
_APP = App(lifecycle)
_EVERY: list[Declaration] = [*lifecycle.readings, *lifecycle.operations]
_NAMED = {one.name: one for one in _EVERY}
_FOREVER = 1e9
_WORKER = WorkerSettings(
    lease_ms=400 * 86_400_000,
    renew_seconds=_FOREVER,
    idle_seconds=None,
    watch_seconds=600.0,
    unknown_seconds=_FOREVER,
    place_seconds=None,
)


def settings_of(folder: Path, **changes: Any) -> QueriesSettings:
    """Three queries of two clients, both of them InfoJobs."""
    (folder / "secret").write_text("simulated-secret")
    own = InfojobsSettings(
        client_id="simulated-client", client_secret=Secret("file", str(folder / "secret")), requests_per_second=0
    )
    queries = {
        "python": QuerySettings(client="jobs", parameters={"q": "python"}),
        "java": QuerySettings(client="jobs", parameters={"q": "java"}),
        "sales": QuerySettings(client="other", parameters={"q": "ventas"}),
    }
    wanted: dict[str, Any] = {"pause": PAUSE, "horizon": timedelta(days=10), "queries": queries} | changes
    return QueriesSettings(infojobs=dict.fromkeys(CLIENTS, own), **wanted)


class Desk:
    """One ledger, a simulated provider for each client, and commands by their names."""

    def __init__(self, url: str, settings: QueriesSettings) -> None:
        self.time = VirtualClock(START)
        self.settings = settings
        data = _APP.data
        self.ledger = opened(url, _APP.machines, clock=self.time, rng=Rng(7), data_tables=data.tables, views=data.views)
        self.simulators = {
            name: InfoJobsSimulator(self.time, Market(START, history=timedelta(days=42))) for name in CLIENTS
        }
        self.keep()

    def keep(self) -> None:
        """What the schedule does every minute."""
        self.ledger.gates.providers = list[GateLimits](gates(self.settings))
        keep_queries(self.ledger, self.settings, self.time.now(), "schedule")

    def without(self, name: str) -> None:
        """This query is no longer in the configuration."""
        queries = {other: own for other, own in self.settings.queries.items() if other != name}
        self.settings = replace(self.settings, queries=queries)

    def configure(self, name: str, **own: Any) -> None:
        changed = replace(self.settings.queries[name], **own)
        self.settings = replace(self.settings, queries={**self.settings.queries, name: changed})

    def flow(self) -> Queries:
        own = self.settings.infojobs
        sources = {
            name: Source(
                InfoJobs(
                    own[name].url, own[name].client_id, own[name].client_secret, self.time,
                    transport=InProcess(simulator),
                ),
                OfferStore(self.settings.repost_within),
            )
            for name, simulator in self.simulators.items()
        }  # fmt: skip
        return Queries(self.settings, sources)

    def work(self, span: timedelta = timedelta(minutes=1), *, workers: int = 1, tends: bool = False) -> None:
        """Let workers run for so much virtual time; `tends`: they look around every minute too."""
        chosen = dataclasses.replace(_WORKER, place_seconds=60.0) if tends else _WORKER
        several = [Worker(self.ledger, [self.flow()], chosen, executor=InlineExecutor()) for _ in range(workers)]

        async def main() -> None:
            tasks = [asyncio.create_task(worker.run()) for worker in several]
            await asyncio.sleep(span.total_seconds())
            for worker in several:
                worker.stop()
            await asyncio.gather(*tasks)

        simulate(self.time, main)

    @contextmanager
    def stopped_in_a_retry(self) -> Iterator[None]:
        """Time stands still while a run waits for its next try; afterwards its calls are answered and it ends."""
        worker = Worker(self.ledger, [self.flow()], _WORKER, executor=InlineExecutor())
        loop = SimulatedLoop(self.time)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            tasks: list[asyncio.Task[None]] = []

            async def begin() -> None:
                tasks.append(asyncio.create_task(worker.run()))
                await asyncio.sleep(1)

            async def end() -> None:
                await asyncio.sleep(60)
                worker.stop()
                await tasks[0]

            runner.run(begin())
            yield
            for simulator in self.simulators.values():
                simulator.every.clear()
            runner.run(end())

    def key(self, name: str) -> str:
        (found,) = [str(row[0]) for row in self.rows("SELECT query_key FROM query_state WHERE name = :n", n=name)]
        return found

    def unit(self, name: str) -> Query:
        found = self.ledger.get(Ref(query.name, self.key(name)))
        assert isinstance(found, Query)
        return found

    def rows(self, sql: str, **given: Any) -> list[Any]:
        return self.ledger.read(lambda cursor: cursor.rows(sql, **given))

    def ask(self, reason: str = "because") -> Ask[Any]:
        reader = Reader(self.ledger.database, self.ledger.machines.values(), lifecycle.past)
        return Ask(reader, self.settings, self.time.now(), WHO, reason)

    def plan(self, name: str, /, *, reason: str = "because", **asked: Any) -> Planned:
        found = _NAMED[name]
        assert isinstance(found, Operation)
        return make_plan(found, self.ask(reason), found.parameters(**asked), owner="queries", version="v1")

    def do(self, name: str, /, **asked: Any) -> Done:
        return carry_out(self.ledger, self.ask(), self.plan(name, **asked))

    def refused(self, name: str, message: str, /, **asked: Any) -> None:
        """It is refused with one line that says so."""
        with pytest.raises(UsageError, match=message) as caught:
            self.do(name, **asked)
        assert "\n" not in str(caught.value)

    def read(self, name: str, /, **asked: Any) -> Any:
        found = _NAMED[name]
        assert isinstance(found, Reading)
        return found(self.ask(), found.parameters(**asked))

    def text(self, name: str, /, **asked: Any) -> list[str]:
        """The answer as a terminal of eighty columns shows it; no line is longer."""
        answer = self.read(name, **asked)
        lines = list(answer_lines(answer, Showing(Screen(WIDTH), self.time.now())))
        assert [line for line in lines if cells(line) > WIDTH] == []
        return lines + notes(answer, WIDTH)

    def why(self, name: str) -> Why:
        return explain(self.ask().reader, self.flow(), Ref(query.name, self.key(name)))


@contextmanager
def desk(url: str, folder: Path, **settings: Any) -> Iterator[Desk]:
    """A desk over a fresh ledger."""
    made = Desk(url, settings_of(folder, **settings))
    try:
        yield made
    finally:
        made.ledger.close()

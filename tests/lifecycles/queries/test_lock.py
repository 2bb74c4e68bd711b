"""Two worker processes on one ledger: one runs queries, the other says who does and waits. The holder is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from starlette.types import Receive, Scope, Send

from penstock.app.discover import load
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.queries import lifecycle
from penstock.lifecycles.queries.jobs import keep_queries
from penstock.model.clock import SystemClock
from penstock.simulators.infojobs import InfoJobsSimulator
from penstock.simulators.infojobs_data import Market
from penstock.simulators.server import in_thread
from tests.support.fleet import until
from tests.support.program import Program
from tests.support.query_audit import within
from tests.support.rules_worker import CONFIG

WORDS = ("python", "contable")
_CONFIG = """[ledger]
url = "{url}"

[queries]
pause = "1h"
horizon = "5d"

[queries.infojobs.infojobs]
url = "{address}"
client_id = "simulated-client"
client_secret = {{ file = "secret" }}
page_size = 10
requests_per_second = 0
"""


class _Provider:
    """A simulator that remembers which queries were asked for, one after another."""

    def __init__(self) -> None:
        clock = SystemClock()
        self.simulator = InfoJobsSimulator(clock, Market(clock.now()), latency=3.0)
        self.asked: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.asked += parse_qs(scope["query_string"].decode())["q"]
        await self.simulator(scope, receive, send)


class _Site:
    """A ledger, the provider, and workers in processes of their own."""

    def __init__(self, url: str, folder: Path, provider: _Provider, address: str) -> None:
        (folder / "secret").write_text(provider.simulator.client_secret)
        config = folder / "penstock.toml"
        words = [f'[queries.queries.{word}]\nclient = "infojobs"\nparameters = {{ q = "{word}" }}\n' for word in WORDS]
        config.write_text(_CONFIG.format(url=url, address=address) + "\n".join(words))
        made = load(config, {"ledger.url": url})
        app = made.app
        self.provider = provider
        self.ledger = Ledger.open(url, app.machines, create=True, data_tables=app.data.tables, views=app.data.views)
        keep_queries(self.ledger, made.settings(lifecycle), self.ledger.clock.now(), "test")
        self.program = Program("tests.support.rules_worker", url, folder / "workers", **{CONFIG: str(config)})

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.ledger.read(lambda cursor: cursor.rows(sql))]

    def runs(self) -> list[tuple[Any, ...]]:
        columns = "query_key, status, stopped_by, error, started_at, finished_at"
        return self.rows(f"SELECT {columns} FROM ingestion_runs ORDER BY started_at, finished_at")


@contextmanager
def _site(url: str, folder: Path) -> Iterator[_Site]:
    provider = _Provider()
    with in_thread(provider) as address:
        site = _Site(url, folder, provider, address)
        try:
            with site.program:
                yield site
        finally:
            site.ledger.close()


@pytest.mark.by_day
def test_one_runs_the_other_waits_and_takes_over_when_it_is_killed(ledger_url, tmp_path):
    with _site(ledger_url, tmp_path) as site:
        provider = site.provider
        first = site.program.start()
        until(lambda: len(provider.asked) > 2, "the first worker asks for pages")
        second = site.program.start()
        (said,) = until(lambda: second.said("queries.lock"), "the second says who holds the lock")
        assert f"(process {first.pid})" in said["held"]
        ((pid, status, query_key),) = site.rows("SELECT pid, status, query_key FROM run_lock")
        assert (pid, status) == (first.pid, "RUNNING")
        first.kill()
        until(lambda: [row for row in site.runs() if row[2] == "abandoned"], "the second closes what was left")
        provider.simulator.latency = 0.0
        until(lambda: [row[1] for row in site.runs()].count("SUCCESS") == len(WORDS), "both queries have run")
        site.program.stop()

        runs = site.runs()
        (abandoned,) = [row for row in runs if row[1] == "ERROR"]
        assert abandoned[0] == query_key
        assert str(abandoned[3]).startswith("abandoned: ")
        assert all(one[5] <= two[4] for one, two in pairwise(runs))
        assert site.rows("SELECT DISTINCT status, consecutive_failures FROM query_state") == [("SUCCESS", 0)]
        assert site.rows("SELECT * FROM run_lock") == []
        names = dict(site.rows("SELECT query_key, name FROM query_state"))
        ran = [name for name, _ in groupby(names[row[0]] for row in runs)]
        assert within([name for name, _ in groupby(provider.asked)], ran)

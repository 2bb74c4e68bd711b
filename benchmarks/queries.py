"""A hundred thousand job offers of a paged JSON API, read by `penstock up` in its own process and kept in `offers`.

The API has a process of its own and adds no latency. In the same run dlt's `rest_api` source loads the same pages into
a database of the same kind, and a bare client decodes them and keeps nothing. Then the same offers once more, of which
none has changed; as many others, beside a million that are there; and one page of twenty megabytes. What is counted is
counted in the database.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import environment, noop
from benchmarks.harvest import doctor, working
from benchmarks.offers_api import PATH, control, in_process
from benchmarks.processes import cpu_seconds, machine_seconds, peak, server_pids
from penstock.app.running import tune_interpreter
from penstock.connectors.http.client import Http
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import Cursor
from penstock.lifecycles.queries import MACHINES
from penstock.model.clock import SystemClock, instant
from penstock.model.unit import Ref

LONGEST_SECONDS = 900.0
POLL_SECONDS = 0.05
BIG_PAGE = 18_000
"""So many offers are twenty megabytes."""
PEER = ("-m", "benchmarks.peers.dlt_peer")
CONFIG = """[ledger]
url = "{url}"

[queries]
pause = "12h"
# The second reading of a list reads all of it again.
census_every = "1s"

[queries.rest_json.jobs]
url = "{api_url}"
path = "{path}"
paging.cursor.next = "meta.next"
order = "newest_first"
records = "data"
date = "published"
requests_per_second = 0

[queries.rest_json.jobs.offer]
title = "title"
company = "company.name"
company_ref = "company.id"
city = "location.city"
province = "location.province"
country = "location.country"
url = "link"
category = "category"
contract_type = "contract"
salary_min = "salary.min"
salary_max = "salary.max"
salary_period = "salary.period"
description = "description"
published_at = "published"
"""
QUERY = """
[queries.queries.list-{number}]
client = "jobs"
parameters = {{ list = {number} }}
"""
COUNTED = ("offers", "query_offers", "companies", "rejected_records")


async def bare(about: dict[str, Any], offers: int) -> dict[str, float]:
    """Read every page of a list and decode it; what it took."""
    http, cursor, found = Http(about["api_url"], SystemClock()), "", 0
    seconds, used = time.perf_counter(), time.process_time()
    try:
        while cursor is not None:
            answer = await http.send("GET", f"{PATH}?list=0{cursor and '&cursor='}{cursor}")
            page = msgspec.json.decode(answer.content)
            cursor, found = page["meta"]["next"], found + len(page["data"])
    finally:
        await http.close()
    seconds, used = time.perf_counter() - seconds, time.process_time() - used
    if found != offers:
        raise SystemExit(f"the bare client found {found:,} offers of {offers:,}")
    rate = round(offers / seconds)
    return {"offers": offers, "seconds": round(seconds, 2), "per_second": rate, "cpu_seconds": round(used, 2)}


class Reader:
    """`penstock up` with a query for each list, which have all been read once, empty."""

    def __init__(self, url: str, ledger: Ledger, process: subprocess.Popen[bytes], about: dict[str, Any]) -> None:
        self._url, self._ledger, self._about = url, ledger, about
        self.process = process

    def read(self, lists: Sequence[int], offers: int) -> dict[str, Any]:
        """Read these lists; what it took, from the beginning of the first run to the last commit."""
        pid, server = self.process.pid, server_pids(self._url)
        own, theirs, others = cpu_seconds(pid), cpu_seconds(*server), machine_seconds()
        simulator, runs, began = control(self._about)["cpu_seconds"], self._ended(), time.perf_counter()
        self._ledger.wake([self._query(number) for number in lists], who="benchmark", reason="measured").all()
        self.wait(runs + len(lists))
        others, waited = machine_seconds() - others, time.perf_counter() - began
        own, theirs = cpu_seconds(pid) - own, cpu_seconds(*server_pids(self._url)) - theirs
        simulator = control(self._about)["cpu_seconds"] - simulator
        seconds = self._seconds(len(lists))
        fetched, new, changed, errors = self._counters(len(lists))
        if fetched != offers or changed or errors:
            raise SystemExit(f"{fetched:,} of {offers:,} offers were fetched, {changed:,} changed, {errors:,} errors")
        return {
            "offers": offers,
            "new": new,
            "seconds": round(seconds, 2),
            "per_second": round(offers / seconds),
            "peak_mb": round(peak(pid), 1),
            "cpu_seconds": {"worker": round(own, 1), "server": round(theirs, 1), "api": round(simulator, 1)},
            "cores_of_others": round((others - own - theirs - simulator) / waited, 2),
        }

    def _query(self, number: int) -> Ref:
        """The query that reads a list."""
        sql = "SELECT unit_id FROM query_state WHERE name = :name"
        ((found,),) = self._ledger.read(lambda cursor: cursor.rows(sql, name=f"list-{number}"))
        return Ref("query", str(found))

    def _seconds(self, runs: int) -> float:
        """How long the last runs took, by their history."""
        sql = "SELECT at FROM transition_log WHERE machine = 'query' AND {} ORDER BY seq DESC LIMIT :runs"
        begun, over = "to_status = 'RUNNING'", "from_status = 'RUNNING' AND to_status <> 'RUNNING'"
        first, last = (self._ledger.read(lambda c, w=w: c.rows(sql.format(w), runs=runs)) for w in (begun, over))
        return float((instant(last[0][0]) - instant(first[-1][0])).total_seconds())

    def _counters(self, runs: int) -> list[int]:
        names = ("offers_fetched", "new", "changed", "errors_count")
        sql = f"SELECT {', '.join(names)} FROM ingestion_runs ORDER BY started_at DESC LIMIT :runs"
        rows = self._ledger.read(lambda cursor: cursor.rows(sql, runs=runs))
        return [sum(map(int, column)) for column in zip(*rows, strict=True)]

    def _ended(self) -> int:
        return self._count("ingestion_runs WHERE finished_at IS NOT NULL")

    def wait(self, runs: int) -> None:
        """Until so many runs have ended."""
        until = time.perf_counter() + LONGEST_SECONDS
        while self._ended() < runs:
            if self.process.poll() is not None or time.perf_counter() > until:
                raise SystemExit("the worker is gone" if self.process.poll() is not None else "the runs do not end")
            time.sleep(POLL_SECONDS)

    def counted(self) -> dict[str, int]:
        """How many rows the tables have."""
        return {table: self._count(table) for table in COUNTED}

    def _count(self, what: str) -> int:
        def work(cursor: Cursor) -> int:
            if self._ledger.database.dialect == "postgresql":
                cursor.run("SET LOCAL statement_timeout = 0")
            return int(cursor.rows(f"SELECT count(*) FROM {what}")[0][0])

        return self._ledger.read(work)


@contextlib.contextmanager
def reading(url: str, about: dict[str, Any], lists: int) -> Iterator[Reader]:
    """`penstock up`, connected and at rest: it has found every list empty."""
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        config = Path(folder) / "penstock.toml"
        queries = "".join(QUERY.format(number=number) for number in range(lists))
        config.write_text(CONFIG.format(url=url, path=PATH, **about) + queries)
        with working(config) as process, Ledger.open(url, MACHINES) as ledger:
            reader = Reader(url, ledger, process, about)
            reader.wait(lists)
            yield reader
        doctor(config)


def ours(url: str, offers: int, about: dict[str, Any], full: int) -> dict[str, Any]:
    """A list of so many offers, then the same again, then another beside `full` lists more."""
    with reading(url, about, full + 1) as reader:
        first = reader.read([0], offers)
        counted = reader.counted()
        time.sleep(1)  # a census is due a second after the seeding
        again = reader.read([0], offers)
        if reader.counted() != counted or {counted["offers"], counted["query_offers"]} != {offers}:
            raise SystemExit(f"the database has {reader.counted()} after {counted}")
        line = {"first": first, "again": again, "counted": counted}
        if full:
            line["filling"] = reader.read(range(1, full), offers * (full - 1))
            line["full"] = reader.read([full], offers)
        return line


def big_page(url: str, offers: int) -> dict[str, Any]:
    """One page of many megabytes; what it took."""
    with in_process(offers, offers) as about, reading(url, about, 1) as reader:
        return {"megabytes": round(about["kilobytes"] * offers / 1_000, 1), **reader.read([0], offers)}


def peer(url: str, about: dict[str, Any], offers: int, disposition: str) -> dict[str, Any]:
    """dlt in the peers' environment; what it says of itself."""
    pids = server_pids(url)
    theirs, simulator = cpu_seconds(*pids), control(about)["cpu_seconds"]
    given = ["--url", url, "--api-url", about["api_url"], "--offers", str(offers), "--disposition", disposition]
    done = subprocess.run(
        [str(environment.PEERS_PYTHON), *PEER, *given],
        cwd=environment.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"dlt: exit {done.returncode}\n{done.stderr[-2000:]}")
    line: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    server, simulator = cpu_seconds(*server_pids(url)) - theirs, control(about)["cpu_seconds"] - simulator
    line["offers"] = line.pop("items")
    used = {"worker": line.pop("cpu_seconds"), "server": round(server, 1), "api": round(simulator, 1)}
    return {**line, "cpu_seconds": used}


def main() -> None:
    """Run once and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queries", description=__doc__)
    parser.add_argument("--offers", type=int, default=100_000, help="offers of a list (default %(default)s)")
    parser.add_argument("--full", type=int, default=10, help="lists that are there before (default %(default)s)")
    parser.add_argument("--big-page", type=int, default=BIG_PAGE, help="offers of a page (default %(default)s)")
    parser.add_argument("--no-peer", action="store_true", help="measure ours alone")
    parser.add_argument("--url", required=True, help="as for the other programs")
    options = parser.parse_args()
    tune_interpreter()
    with contextlib.ExitStack() as stack:

        def place(name: str) -> str:
            return stack.enter_context(noop.scratch(options.url, name))

        about = stack.enter_context(in_process(options.offers, min(options.offers, 1_000)))
        line = ours(place("queries"), options.offers, about, options.full)
        alone = asyncio.run(bare(about, options.offers))
        peers = {
            kind: peer(place(f"dlt_{kind}"), about, options.offers, kind)
            for kind in (() if options.no_peer else ("merge", "append"))
        }
        big = big_page(place("queries_page"), options.big_page) if options.big_page else None
    line = {
        "database": noop.database_of(options.url),
        "kilobytes": about["kilobytes"],
        **line,
        "bare": alone,
        "peers": peers,
        "big_page": big,
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

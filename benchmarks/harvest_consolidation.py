"""Consolidation alone: raw rows that lie there become canonical ones. Ours beside one statement and the plain plan.

Run by hand: `python -m benchmarks.harvest_consolidation [--rows N] [--url URL] [--replicas N]`.

Every contender starts from a copy of the same database, with the raw rows of two runs: the first inserts every
canonical row, the second updates every one. *One statement* is `INSERT … SELECT … ON CONFLICT` of the same raw rows,
mapped and priced in SQL; *mapped beforehand*, it only copies them from a table. Neither marks anything. *The plain
plan*, written plainly: 2,000 rows fetched, mapped and priced, upserted in statements of 100, marked. *Ours* is a worker
in a process of its own, from the run being due to its being completed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
from pysqlite3 import dbapi2
from rich.console import Console

from benchmarks import environment, noop
from benchmarks.report import Table
from penstock.app.running import tune_interpreter
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest import MACHINES
from penstock.lifecycles.harvest.chunk.flow import Chunks
from penstock.lifecycles.harvest.feed import Feed
from penstock.lifecycles.harvest.nivoda import mapping, payload_hash
from penstock.lifecycles.harvest.pricing import compile_rules
from penstock.lifecycles.harvest.run.consolidate import Consolidator
from penstock.lifecycles.harvest.run.flow import Runs
from penstock.lifecycles.harvest.run.machine import R, Run, RunType
from penstock.lifecycles.harvest.settings import FeedSettings, HarvestSettings
from penstock.lifecycles.harvest.tables import DATA_TABLES, diamonds, raw_diamonds_nivoda
from penstock.model.clock import Rng, SystemClock
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.settings.typed import Secret
from penstock.worker.worker import Worker

FEED = "nivoda"
USUAL = HarvestSettings()
RUNS = (UUID(int=1, version=4), UUID(int=2, version=4))
BEGINNING = datetime(2026, 11, 1, tzinfo=UTC)
FETCHED, UPSERTED = 2_000, 100
ROUNDS = ("inserting", "updating")
ONE_STATEMENT, MAPPED, PLAIN_PLAN = "one statement", "one statement, mapped beforehand", "the plain plan"
SHAPES = ("ROUND", "OVAL", "PEAR", "EMERALD", "CUSHION")
RULES = [
    {"id": 1, "priority": 10, "shape": "ROUND", "price_from": "5000", "margin": "0.18", "rounding": "1"},
    {"id": 2, "priority": 20, "carat_from": "2", "margin": "0.22", "rounding": "5"},
    {"id": 3, "priority": 30, "shape": "OVAL", "margin": "0.27", "rounding": "0.01"},
    {"id": 9, "priority": 99, "margin": "0.25", "rounding": "0.01"},
]
STONES = Feed(
    name=FEED,
    raw=raw_diamonds_nivoda,
    canonical=diamonds,
    identity="supplier_stone_id",
    raw_row=dict,
    map=mapping("cents"),
    axis="price",
    lowest=0,
    highest=100_000,
    order={"type": "price", "direction": "ASC"},
)
COLUMNS = (
    *("feed", "supplier_stone_id", "offer_id", "shape", "carat", "color", "clarity", "cut", "lab"),
    *("certificate_number", "availability", "currency", "supplier_price", "price", "pricing_rule_id"),
    *("source_updated_at", "payload_hash", "first_seen_run_id", "last_seen_run_id", "updated_at", "deleted_at"),
)
UPDATES = ", ".join(f"{n} = excluded.{n}" for n in COLUMNS[2:] if n != "first_seen_run_id")
UPSERT = (
    f"ON CONFLICT (feed, supplier_stone_id) DO UPDATE SET {UPDATES}"
    " WHERE excluded.source_updated_at >= diamonds.source_updated_at"
)


def raw_rows(count: int, number: int) -> Iterator[tuple[Any, ...]]:
    """The raw rows of a run; the same stones in every run, at other prices."""
    rng = Rng(number + 1)
    moment = (BEGINNING + timedelta(days=number)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    for n in range(count):
        stone = str(UUID(int=n * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128), version=4))
        payload = json.dumps(
            {
                "id": f"DIAMOND/{stone[::-1]}",
                "price": int(10_000 + 5_000_000 * rng.uniform(0, 1) ** 4),
                "discount": -12.5,
                "updated_at": moment,
                "diamond": {
                    "id": stone,
                    "availability": "AVAILABLE",
                    "supplierStockId": f"S-{n}",
                    "image": f"https://images.example/{stone}.jpg",
                    "video": f"https://videos.example/{stone}",
                    "certificate": {
                        "id": stone,
                        "lab": "GIA",
                        "certNumber": str(2_000_000_000 + n),
                        "shape": SHAPES[n % 5],
                        "carats": round(0.3 + n % 400 / 100, 2),
                        "color": "DEFGHIJK"[n % 8],
                        "clarity": ("VS1", "VS2", "SI1")[n % 3],
                        "cut": "EX",
                    },
                },
            }
        )
        fixed = (str(RUNS[number]), stone, f"partition-{n // 5_000:02}", n // 5_000 * 1_000_000_000 + n % 5_000)
        yield (*fixed, f"DIAMOND/{stone[::-1]}", payload, payload_hash(payload), moment, moment)


RAW = (
    "run_id, supplier_stone_id, partition_id, position, offer_id, payload, payload_hash, source_updated_at, fetched_at"
)


def rule_rows() -> list[dict[str, Any]]:
    names = [c.name for c in DATA_TABLES[2].columns if c.name not in ("active", "rounding_mode")]
    return [{name: rule.get(name) for name in names} for rule in RULES]


def load(url: str, rows: int) -> None:
    """A ledger with the raw rows of both runs."""
    with Ledger.open(url, MACHINES, create=True, data_tables=DATA_TABLES):
        """The tables are there."""
    names = list(rule_rows()[0])
    insert = f"INSERT INTO pricing_rules ({', '.join(names)}) VALUES "
    if url.startswith("sqlite"):
        with _sqlite(url) as connection:
            marks = ", ".join("?" * 9)
            for number in (0, 1):
                connection.executemany(
                    f"INSERT INTO raw_diamonds_nivoda ({RAW}) VALUES ({marks})", raw_rows(rows, number)
                )
            connection.executemany(f"{insert}({', '.join('?' * len(names))})", [tuple(r.values()) for r in rule_rows()])
            for number, run in enumerate(RUNS):
                connection.execute(f"CREATE TABLE mapped_{number} AS {_select(postgres=False)} WHERE run_id = '{run}'")
        return
    with psycopg.connect(url) as connection, connection.cursor() as cursor:
        for number in (0, 1):
            with cursor.copy(f"COPY raw_diamonds_nivoda ({RAW}) FROM STDIN") as copy:
                for row in raw_rows(rows, number):
                    copy.write_row(row)
        marks = ", ".join(["%s"] * len(names))
        cursor.executemany(f"{insert}({marks})", [tuple(r.values()) for r in rule_rows()])
    with psycopg.connect(url, autocommit=True) as connection:
        for number, run in enumerate(RUNS):
            connection.execute(f"CREATE TABLE mapped_{number} AS {_select(postgres=True)} WHERE run_id = '{run}'")


@contextmanager
def _sqlite(url: str) -> Iterator[Any]:
    connection = dbapi2.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA journal_mode = wal")
    connection.execute("PRAGMA synchronous = full")
    connection.execute("BEGIN IMMEDIATE")
    yield connection
    connection.execute("COMMIT")
    connection.close()


# One statement.


def _priced(price: str, carat: str, shape: str) -> str:
    """The rules above, in SQL."""
    return (
        f"CASE WHEN {shape} = 'ROUND' AND {price} >= 5000 THEN round({price} * 1.18)"
        f" WHEN {carat} >= 2 THEN round({price} * 1.22 / 5) * 5"
        f" WHEN {shape} = 'OVAL' THEN round({price} * 1.27, 2) ELSE round({price} * 1.25, 2) END"
    )


def _select(postgres: bool) -> str:
    if postgres:
        inside = "payload -> 'diamond' -> 'certificate' ->> '{}'"
        carat, price = f"CAST({inside.format('carats')} AS numeric)", "CAST(payload ->> 'price' AS numeric) / 100"
        offer, availability = "payload ->> 'id'", "payload -> 'diamond' ->> 'availability'"
    else:
        inside = "payload ->> '$.diamond.certificate.{}'"
        carat, price = inside.format("carats"), "(payload ->> '$.price') / 100.0"
        offer, availability = "payload ->> '$.id'", "payload ->> '$.diamond.availability'"
    words = [inside.format(n) for n in ("shape", "color", "clarity", "cut", "lab", "certNumber")]
    shape, color, clarity, cut, lab, number = words
    picks = [
        *(f"'{FEED}'", "supplier_stone_id", offer, shape, carat, color, clarity, cut, lab, number, availability),
        *("'USD'", price, _priced(f"({price})", f"({carat})", f"({shape})"), "9", "source_updated_at", "payload_hash"),
        *("run_id", "run_id", "fetched_at", "CAST(NULL AS timestamptz)" if postgres else "NULL"),
    ]
    named = ", ".join(f"{pick} AS {name}" for pick, name in zip(picks, COLUMNS, strict=True))
    return f"SELECT {named} FROM raw_diamonds_nivoda"


def one_statement(url: str, number: int) -> None:
    _insert(url, f"{_select(postgres=not url.startswith('sqlite'))} WHERE run_id = '{RUNS[number]}'")


def mapped_beforehand(url: str, number: int) -> None:
    _insert(url, f"SELECT {', '.join(COLUMNS)} FROM mapped_{number} WHERE true")


def _insert(url: str, rows: str) -> None:
    copy = f"INSERT INTO diamonds ({', '.join(COLUMNS)}) {rows} {UPSERT}"
    if url.startswith("sqlite"):
        with _sqlite(url) as connection:
            connection.execute(copy)
        return
    with psycopg.connect(url) as connection:
        connection.execute(copy)


# The plain plan.


def _canonical(rows: list[Any], run: str, price: Callable[[dict[str, Any]], None]) -> list[tuple[Any, ...]]:
    """Mapped and priced, as tuples."""
    made = []
    for stone, payload, digest, updated in rows:
        item = json.loads(payload) if isinstance(payload, str) else payload
        diamond, certificate = item["diamond"], item["diamond"]["certificate"]
        row = {
            "shape": certificate["shape"],
            "carat": Decimal(str(certificate["carats"])),
            "color": certificate["color"],
            "clarity": certificate["clarity"],
            "lab": certificate["lab"],
            "supplier_price": Decimal(item["price"]) / 100,
        }
        price(row)
        made.append(
            (
                *(
                    FEED,
                    stone,
                    item["id"],
                    row["shape"],
                    row["carat"],
                    row["color"],
                    row["clarity"],
                    certificate["cut"],
                ),
                *(row["lab"], certificate["certNumber"], diamond["availability"], "USD", row["supplier_price"]),
                *(row["price"], row["pricing_rule_id"], updated, digest, run, run, updated, None),
            )
        )
    return made


def plain_plan(url: str, number: int) -> None:
    from penstock.lifecycles.harvest.pricing import Rule

    run, price = str(RUNS[number]), compile_rules([Rule.read(rule) for rule in RULES], FEED)
    if url.startswith("sqlite"):
        _plain_plan_sqlite(url, run, price)
        return
    types = {"carat": "numeric[]", "supplier_price": "numeric[]", "price": "numeric[]", "pricing_rule_id": "bigint[]"}
    types |= dict.fromkeys(("source_updated_at", "updated_at", "deleted_at"), "timestamptz[]")
    types |= dict.fromkeys(("first_seen_run_id", "last_seen_run_id"), "uuid[]")
    arrays = ", ".join(f"%s::{types.get(n, 'text[]')}" for n in COLUMNS)
    upsert = f"INSERT INTO diamonds ({', '.join(COLUMNS)}) SELECT * FROM UNNEST({arrays}) {UPSERT}"
    fetch = (
        "SELECT supplier_stone_id, payload, payload_hash, source_updated_at FROM raw_diamonds_nivoda"
        f" WHERE run_id = %s AND NOT consolidated ORDER BY position LIMIT {FETCHED} FOR UPDATE SKIP LOCKED"
    )
    mark = "UPDATE raw_diamonds_nivoda SET consolidated = true WHERE run_id = %s AND supplier_stone_id = ANY(%s)"
    with psycopg.connect(url) as connection:
        while rows := connection.execute(fetch, (run,)).fetchall():
            made = _canonical(rows, run, price)
            for start in range(0, len(made), UPSERTED):
                columns = zip(*made[start : start + UPSERTED], strict=True)
                connection.execute(upsert, [list(column) for column in columns])
            connection.execute(mark, (run, [row[0] for row in rows]))
            connection.commit()


def _plain_plan_sqlite(url: str, run: str, price: Callable[[dict[str, Any]], None]) -> None:
    connection = dbapi2.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("PRAGMA synchronous = full")
    one = f"({', '.join('?' * len(COLUMNS))})"
    fetch = (
        "SELECT supplier_stone_id, payload, payload_hash, source_updated_at, position FROM raw_diamonds_nivoda"
        f" WHERE run_id = ? AND position > ? AND NOT consolidated ORDER BY position LIMIT {FETCHED}"
    )
    last = -1
    while rows := connection.execute(fetch, (run, last)).fetchall():
        last = rows[-1][4]
        connection.execute("BEGIN IMMEDIATE")
        made = _canonical([row[:4] for row in rows], run, price)
        for start in range(0, len(made), UPSERTED):
            some = made[start : start + UPSERTED]
            flat = [str(v) if isinstance(v, Decimal) else v for row in some for v in row]
            connection.execute(
                f"INSERT INTO diamonds ({', '.join(COLUMNS)}) VALUES {', '.join([one] * len(some))} {UPSERT}", flat
            )
        connection.executemany(
            "UPDATE raw_diamonds_nivoda SET consolidated = 1 WHERE run_id = ? AND supplier_stone_id = ?",
            [(run, row[0]) for row in rows],
        )
        connection.execute("COMMIT")
    connection.close()


# Ours.


async def _work(url: str, rows: int, at_once: int) -> None:
    """A worker until it is told to stop by the end of its input."""
    tune_interpreter()
    with Ledger.open(url, MACHINES, data_tables=DATA_TABLES) as ledger:
        own = {FEED: FeedSettings(username="bench", password=Secret("env", "NONE"))}
        known = HarvestSettings(chunk_rows=rows, chunks_at_once=at_once, feeds=own)
        feeds = {FEED: STONES}
        flows = [Runs(known, Consolidator(known, feeds)), Chunks(known, feeds)]
        worker = Worker(ledger, flows)
        running = asyncio.create_task(worker.run())
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        worker.stop()
        await running
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"mb": used.ru_maxrss / 1024, "cpu": used.ru_utime + used.ru_stime}))


@dataclass
class Ours:
    """Workers, each in a process of its own."""

    replicas: int
    rows: int = USUAL.chunk_rows
    at_once: int = USUAL.chunks_at_once
    mb: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self, url: str, number: int) -> float:
        command = [sys.executable, "-m", "benchmarks.harvest_consolidation", "--work", url]
        command += ["--chunk", str(self.rows), "--at-once", str(self.at_once)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        workers = [subprocess.Popen(command, cwd=environment.ROOT, text=True, **pipes) for _ in range(self.replicas)]
        for worker in workers:
            worker.stdout.readline()  # type: ignore[union-attr]
        time.sleep(0.5)
        with Ledger.open(url, MACHINES, data_tables=DATA_TABLES) as ledger:
            started = time.perf_counter()
            run = self._birth(ledger, number)
            while (found := ledger.get(run)).status not in (R.COMPLETED, R.FAILED):
                time.sleep(0.05)
            seconds = time.perf_counter() - started
        for worker in workers:
            out, _ = worker.communicate("\n", timeout=60)
            used = json.loads(out.strip().splitlines()[-1])
            self.mb.append(used["mb"])
            self.cpu.append(used["cpu"])
        assert found.status is R.COMPLETED, found.error
        assert found.completed_chunks == found.expected_chunks
        return seconds

    @staticmethod
    def _birth(ledger: Ledger, number: int) -> Ref:
        now = SystemClock().now()
        moment = BEGINNING + timedelta(days=number + 1)
        run = Run(
            run_id=RUNS[number],
            feed=FEED,
            run_type=RunType.FULL,
            expected_workers=0,
            started_at=now,
            window_to=moment,
            expected_records=0,
            due_at=now,
        )
        ledger.birth([run], actor=Actor.SCHEDULER, who="benchmark")
        return Ref("harvest_run", str(run.run_id))


# The run.


@contextmanager
def copied(template: str, server: str | None) -> Iterator[str]:
    """A copy of the loaded database."""
    if server is None:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            path = Path(folder) / "penstock.db"
            shutil.copy(template.removeprefix("sqlite:///"), path)
            yield f"sqlite:///{path}"
        return
    source = urlsplit(template).path[1:]
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE consolidation TEMPLATE "{source}" STRATEGY FILE_COPY')
        admin.execute("CHECKPOINT")
        yield urlunsplit(urlsplit(server)._replace(path="/consolidation"))
        admin.execute("DROP DATABASE consolidation WITH (FORCE)")


def check(url: str, rows: int) -> None:
    """Everything is consolidated, and exactly priced."""
    sql = "SELECT count(*), count(price) FROM diamonds WHERE deleted_at IS NULL"
    if url.startswith("sqlite"):
        connection = dbapi2.connect(url.removeprefix("sqlite:///"))
        found = connection.execute(sql).fetchone()
        connection.close()
    else:
        with psycopg.connect(url) as server:
            found = server.execute(sql).fetchone()
    assert tuple(found) == (rows, rows), found


def measure(
    console: Console, database: str, template: str, server: str | None, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Contender to what it did: rows a second, and the memory of ours."""
    contenders: dict[str, Any] = {ONE_STATEMENT: one_statement, MAPPED: mapped_beforehand, PLAIN_PLAN: plain_plan}
    for replicas in range(1, options.replicas + 1):
        name = "ours" if replicas == 1 else f"ours, {replicas} replicas"
        contenders[name] = Ours(replicas, options.chunk, options.at_once)
    found: dict[str, dict[str, float]] = {}
    for name, contender in contenders.items():
        if options.contender and not name.startswith(options.contender):
            continue
        with copied(template, server) as url:
            for number, what in enumerate(ROUNDS[: options.rounds]):
                if isinstance(contender, Ours):
                    seconds = contender.measure(url, number)
                else:
                    started = time.perf_counter()
                    contender(url, number)
                    seconds = time.perf_counter() - started
                check(url, options.rows)
                found.setdefault(name, {})[what] = round(options.rows / seconds, 1)
                console.print(f"{database}, {name}, {what}: {options.rows / seconds:,.0f}/s", highlight=False)
        if isinstance(contender, Ours):
            found[name]["mb"] = round(max(contender.mb), 1)
    return found


def lines_of(database: str, found: dict[str, dict[str, float]], rounds: Sequence[str]) -> list[list[str]]:
    """The rows of a table."""
    lines = []
    for name, rates in found.items():
        line = [database, name]
        for what in rounds:
            bare, plan = (found.get(n, {}).get(what) for n in (ONE_STATEMENT, PLAIN_PLAN))
            rate = rates[what]
            line += [f"{rate:,.0f}", f"{rate / bare:.2f}" if bare else "", f"{rate / plan:.1f}" if plan else ""]
        lines.append([*line, f"{rates['mb']:.0f}" if "mb" in rates else ""])
    return lines


def columns_of(rounds: Sequence[str]) -> list[str]:
    """Their names."""
    return [
        "database",
        "contender",
        *(n for w in rounds for n in (f"{w}/s", "of one statement", "times the plan")),
        "MB",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harvest_consolidation", description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, choices=(1, 2), default=2, help="1: inserting only")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--url", action="append", help="as for the other programs; without it, both databases")
    parser.add_argument("--contender", help="measure those whose name begins so")
    parser.add_argument("--chunk", type=int, default=USUAL.chunk_rows)
    parser.add_argument("--at-once", type=int, default=USUAL.chunks_at_once)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        asyncio.run(_work(options.work, options.chunk, options.at_once))
        return
    console = Console(width=None if sys.stdout.isatty() else 140)
    if options.url:
        measured(console, options.url, options)
        return
    with environment.postgres() as server, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        measured(console, [server, f"sqlite:///{Path(folder) / 'bench.db'}"], options)


def measured(console: Console, urls: Sequence[str], options: argparse.Namespace) -> None:
    """Measure on each, print the table, and a JSON line for each."""
    rounds, rows, results = ROUNDS[: options.rounds], [], []
    for url in urls:
        server = None if noop.database_of(url) == "sqlite" else url
        with noop.scratch(url, "loaded") as template:
            load(template, options.rows)
            database = "PostgreSQL" if server else "SQLite"
            found = measure(console, database, template, server, options)
        rows += lines_of(database, found, rounds)
        results.append({"database": noop.database_of(url), "rows": options.rows, "rates": found})
    console.print(Table(columns_of(rounds), rows, text=2).rich(f"Consolidation of {options.rows:,} raw rows"))
    for line in results:
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

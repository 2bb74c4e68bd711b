"""Runs whose raw rows lie there already, and workers that consolidate them, in this process or in others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from penstock.ledger.ledger import Ledger
from penstock.lifecycles.harvest import MACHINES
from penstock.lifecycles.harvest.chunk.flow import Chunks
from penstock.lifecycles.harvest.feed import Feed, Unmappable
from penstock.lifecycles.harvest.run.consolidate import Consolidator
from penstock.lifecycles.harvest.run.flow import Runs
from penstock.lifecycles.harvest.run.machine import R, Run, RunType
from penstock.lifecycles.harvest.tables import DATA_TABLES, POSITIONS
from penstock.model.clock import Rng, SystemClock, VirtualClock, instant_text
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import AnyFlow
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.harvest import ALL, FEED, START, STONES, TABLES, small

PATIENT = 60.0
_QUICK = WorkerSettings(idle_seconds=0.02, place_seconds=None)
_WORDS = ("shape", "carat", "color", "clarity", "cut", "lab", "certificate_number", "availability")


def map_stone(payload: str) -> dict[str, Any]:
    """`{"id": …, "price": …}`; a price that is text has no price."""
    found = json.loads(payload)
    if "price" not in found:
        raise Unmappable("it has no price")
    return {
        **dict.fromkeys(_WORDS),
        "offer_id": found["id"],
        "currency": "USD",
        "shape": found.get("shape"),
        "supplier_price": Decimal(found["price"]),
    }


FEEDS = {FEED: replace(STONES, map=map_stone)}


def run_id(number: int) -> UUID:
    return UUID(int=number, version=4)


def a_run(number: int = 1, **fields: Any) -> Run:
    """A run that has nothing left to fetch."""
    made: dict[str, Any] = {
        "run_id": run_id(number),
        "feed": FEED,
        "run_type": RunType.FULL,
        "expected_workers": 0,
        "started_at": START,
        "window_to": START + timedelta(hours=number),
        "expected_records": 0,
        "due_at": START,
    }
    if fields.get("run_type") is RunType.INCREMENTAL:
        made |= {"watermark_before": START, "window_from": START - timedelta(minutes=10)}
    return Run(**made | fields)


class Site:
    """A ledger with raw rows, and what became of them."""

    def __init__(self, url: str, *, real: bool = False) -> None:
        self.url = url
        self.clock = SystemClock() if real else VirtualClock(START)
        self.ledger = Ledger.open(url, ALL, clock=self.clock, rng=Rng(5), create=True, data_tables=TABLES)

    def rows(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, **parameters)])

    def sql(self, sql: str, **parameters: Any) -> int:
        return self.ledger.database.write(lambda cursor: cursor.run(sql, **parameters))

    def raw(self, payloads: Mapping[str, Any], number: int = 1, *, updated: datetime | None = START) -> None:
        """Raw rows of a run: record to payload, or to its price."""
        documents = [
            json.dumps(
                [
                    *(str(run_id(number)), stone, "partition-0", POSITIONS + position, f"offer-{stone}"),
                    p if isinstance(p, str) else json.dumps({"id": f"offer-{stone}", "price": p}),
                    *(f"hash-{number}", updated and instant_text(updated), instant_text(START)),
                ]
            )
            for position, (stone, p) in enumerate(payloads.items())
        ]
        postgres = self.ledger.database.dialect == "postgresql"
        types = ["uuid", "text", "text", "bigint", "text", "json", "text", "timestamptz", "timestamptz"]
        picks = ", ".join(
            f"CAST(e ->> {i} AS {kind})" if postgres else f"value ->> {i}" for i, kind in enumerate(types)
        )
        source = "jsonb_array_elements(CAST(:batch AS jsonb)) AS e" if postgres else "json_each(:batch)"
        self.sql(
            "INSERT INTO raw_diamonds_nivoda (run_id, supplier_stone_id, partition_id, position, offer_id, payload,"
            f" payload_hash, source_updated_at, fetched_at) SELECT {picks} FROM {source} WHERE true",
            batch=f"[{','.join(documents)}]",
        )

    def birth(self, run: Run) -> Ref:
        self.ledger.birth([run], actor=Actor.SCHEDULER, who="test")
        return Ref("harvest_run", str(run.run_id))

    def run(self, number: int = 1) -> Any:
        return self.ledger.get(Ref("harvest_run", str(run_id(number))))

    def chunks(self, number: int = 1) -> list[Any]:
        ids = [row[0] for row in self.rows("SELECT unit_id FROM harvest_chunk")]
        found = self.ledger.get_many(self.ledger.machine("harvest_chunk"), ids) if ids else []
        return sorted((c for c in found if c.run_id == run_id(number)), key=lambda c: c.number)

    def prices(self) -> dict[str, Decimal]:
        """Live records and what they cost."""
        found = self.rows("SELECT supplier_stone_id, price FROM diamonds WHERE deleted_at IS NULL")
        return {stone: Decimal(price) for stone, price in found}

    def missed(self) -> dict[str, int]:
        """Records that a full run was the first not to see, and the number of that run."""
        found = self.rows("SELECT supplier_stone_id, missed_by_run_id FROM diamonds WHERE missed_by_run_id IS NOT NULL")
        runs = {str(run_id(number)): number for number in range(10)}
        return {stone: runs[str(missed)] for stone, missed in found}

    def rejected(self) -> dict[str, str]:
        return dict(self.rows("SELECT identity, reason FROM harvest_rejected WHERE resolved_at IS NULL"))

    def watermark(self) -> Any:
        found = self.rows("SELECT last_updated_at FROM watermark")
        return found[0][0] if found else None

    def events(self, kind: str) -> list[tuple[Any, ...]]:
        return self.rows("SELECT severity, payload FROM event_log WHERE event_type = :kind", kind=kind)

    def consolidate(
        self,
        number: int = 1,
        *,
        feeds: Mapping[str, Feed] = FEEDS,
        bounds: Mapping[str, int] | None = None,
        **settings: Any,
    ) -> Any:
        """A worker until the run rests; the run."""
        known = small(**{"chunk_rows": 10} | settings)

        async def main() -> None:
            consolidator = Consolidator(known, feeds, **bounds or {})
            flows: list[AnyFlow] = [Runs(known, consolidator), Chunks(known, feeds)]
            worker = Worker(self.ledger, flows, _QUICK, executor=InlineExecutor())
            running = asyncio.create_task(worker.run())
            try:
                async with asyncio.timeout(PATIENT):
                    while not self._rests(number):
                        await asyncio.sleep(0.005)
                        self._pass_time()
            finally:
                worker.stop()
                await running

        asyncio.run(main())
        return self.run(number)

    def _rests(self, number: int) -> bool:
        run = self.run(number)
        return run.claimed_by is None and (run.status in (R.COMPLETED, R.FAILED) or run.parked_at is not None)

    def _pass_time(self) -> None:
        if isinstance(self.clock, VirtualClock):
            self.clock.advance(1)

    def close(self) -> None:
        self.ledger.close()


@contextlib.contextmanager
def processes(url: str, count: int, rows: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Consolidators, each in a process of its own, that have started."""
    command = [sys.executable, "-m", "tests.support.consolidation", url, str(rows)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    made = [subprocess.Popen(command, **pipes) for _ in range(count)]
    try:
        for process in made:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield made
    finally:
        for process in made:
            process.kill()
            process.communicate(timeout=PATIENT)


def wait_for(site: Site, number: int = 1) -> Any:
    end = time.monotonic() + PATIENT
    while site.run(number).status not in (R.COMPLETED, R.FAILED):
        assert time.monotonic() < end, site.run(number)
        time.sleep(0.02)
    return site.run(number)


async def _work(url: str, rows: int) -> None:
    with Ledger.open(url, MACHINES, data_tables=DATA_TABLES) as ledger:
        known = small(chunk_rows=rows, chunks_at_once=2)
        flows: list[AnyFlow] = [Runs(known, Consolidator(known, FEEDS)), Chunks(known, FEEDS)]
        worker = Worker(ledger, flows, _QUICK)
        running = asyncio.create_task(worker.run())
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await running


if __name__ == "__main__":
    asyncio.run(_work(sys.argv[1], int(sys.argv[2])))

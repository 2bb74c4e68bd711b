"""pgqueuer: one process, ``PgQueuer.run`` in drain mode on PostgreSQL.

The clock starts before ``PgQueuer.run`` and stops when the last flush of pgqueuer's
own completion buffer has committed (its statement moves the jobs from the queue table
to the log table). pgqueuer sizes that buffer by ``batch_size``.

Tried, with 20 000 to 30 000 items on two cores shared with other work, one to three
runs each:

- ``batch_size`` 100, 250, 500, 1000, 1500, 2000, 5000: 500 to 1500 are level within the
  noise, with the best runs at 1000; 100 and 250 are about a quarter slower, 2000 and 5000
  about a third.
- Drivers: an asyncpg pool of 4 lets the completion of one batch overlap the dequeue of
  the next; a pool of 8 is about a tenth slower, a single asyncpg connection between level
  and a third slower, psycopg little more than half as fast.
- Event loop: uvloop (which pgqueuer's own command line uses) is about 1.4 times asyncio.
- ``max_concurrent_tasks`` 1000 and 4000 add counting to each dequeue and cost 15 % to
  35 %; unlimited is best.
- ``log_aggregation_interval`` is off: it only feeds statistics. Not tried on.

Table durability is pgqueuer's default, ``durable`` (all tables logged).
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.adapters.drivers.asyncpg import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.adapters.drivers.psycopg import PsycopgDriver
from pgqueuer.models import Job
from pgqueuer.ports.driver import Driver
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from benchmarks.peers import common

ENQUEUE_CHUNK = 5000


class TimedQueries(Queries):
    """pgqueuer's own queries, noting when the completion of each batch has committed."""

    finished = 0
    finished_at = 0.0

    async def log_jobs(self, job_status: list[Any]) -> None:
        await super().log_jobs(job_status)
        self.finished += len(job_status)
        self.finished_at = time.perf_counter()


@asynccontextmanager
async def connect(url: str, kind: str, pool_size: int) -> AsyncIterator[Driver]:
    """One of pgqueuer's three drivers over PostgreSQL."""
    if kind == "asyncpg":
        connection = await asyncpg.connect(url)
        try:
            yield AsyncpgDriver(connection)
        finally:
            await connection.close()
    elif kind == "asyncpg-pool":
        async with asyncpg.create_pool(url, min_size=pool_size, max_size=pool_size) as pool:
            yield AsyncpgPoolDriver(pool)
    else:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as async_connection:
            yield PsycopgDriver(async_connection)


async def run(url: str, options: argparse.Namespace) -> float:
    """Enqueue all items, then drain the queue; the seconds of the second part."""
    async with connect(url, options.driver, options.pool_size) as driver:
        queries = TimedQueries(driver)
        await queries.install()
        for start in range(0, options.items, ENQUEUE_CHUNK):
            size = min(ENQUEUE_CHUNK, options.items - start)
            await queries.enqueue(["noop"] * size, [None] * size, [0] * size)
        await asyncio.to_thread(common.settle, url)

        queuer = PgQueuer(driver, queries=queries)

        @queuer.entrypoint("noop")
        async def noop(_job: Job) -> None:
            """Do nothing."""

        started = time.perf_counter()
        await queuer.run(
            batch_size=options.batch_size,
            mode=QueueExecutionMode.drain,
            max_concurrent_tasks=options.max_concurrent_tasks or None,
            log_aggregation_interval=timedelta(0),
        )
        common.require(queries.finished, options.items)
        return queries.finished_at - started


def main() -> None:
    """Run once and print the result."""
    parser = common.postgres_arguments("pgqueuer", 50000)
    parser.add_argument("--batch-size", type=int, default=1000)
    parser.add_argument("--max-concurrent-tasks", type=int, default=0, help="0 is unlimited")
    parser.add_argument("--driver", choices=("asyncpg", "asyncpg-pool", "psycopg"), default="asyncpg-pool")
    parser.add_argument("--pool-size", type=int, default=4)
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    options = parser.parse_args()
    factory = uvloop.new_event_loop if options.loop == "uvloop" else None
    with common.scratch_database(options.url, "pgqueuer") as url:
        with asyncio.Runner(loop_factory=factory) as runner:
            seconds = runner.run(run(url, options))
        common.require(
            common.count(url, "select count(*) from pgqueuer_log where status = 'successful'"),
            options.items,
        )
        left = common.count(url, "select count(*) from pgqueuer")
        common.require(options.items - left, options.items)
    common.report(
        "pgqueuer",
        options.items,
        seconds,
        {
            "processes": 1,
            "batch_size": options.batch_size,
            "max_concurrent_tasks": options.max_concurrent_tasks or None,
            "driver": options.driver,
            "pool_size": options.pool_size if options.driver == "asyncpg-pool" else 1,
            "loop": options.loop,
            "durability": "durable",
        },
    )


if __name__ == "__main__":
    main()

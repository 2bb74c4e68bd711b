"""dbos: no-op workflows from one queue on PostgreSQL, one process.

All workflows are enqueued while the queue is paused (``worker_concurrency`` 0). The clock
starts before the queue is let go and stops when no workflow is left unfinished in the
database, so the launch of DBOS is not timed. By default a workflow has no step: its
start and its outcome are durable, and nothing in between. ``--steps 1`` adds one no-op
step, which costs more than half of the rate.

Tried, with 2 000 items on two cores shared with other work, where equal runs differed by
up to a third:

- ``worker_concurrency`` 20, 50, 100, 200, 500: it rises with each, as each poll claims
  only up to the limit. Unlimited, which claims all at once, is level with 500; it needs
  a bound on ``max_executor_threads``, as dbos otherwise may start a thread per workflow.
- ``max_executor_threads`` 4, 8, 16, 20: 8 is best in the median.
- ``polling_interval_sec``: with a limit of 100, 0.001 was better than 0.01 and 0.05; with
  everything claimed at once it only delays the start, so 0.1.
- Asynchronous workflows are a seventh to a third slower at these settings. They were
  faster in the one run with a limit of 100 and unbounded threads, but slower than these.
- ``pool_pre_ping`` off saves a round trip per transaction, about a tenth.
"""

from __future__ import annotations

import argparse
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
from dbos import DBOS, DBOSConfig, Queue

from benchmarks.peers import common

QUEUE = "noop_queue"
ENQUEUE_THREADS = 8
UNFINISHED = "select exists (select from dbos.workflow_status where status in ('ENQUEUED', 'PENDING'))"


class Countdown:
    """Tells when the last workflow function has been called, without asking the database."""

    def __init__(self, items: int) -> None:
        self._calls = itertools.count(1)
        self._items = items
        self.called = threading.Event()

    def tick(self) -> None:
        """Count one call."""
        if next(self._calls) == self._items:
            self.called.set()


def wait_committed(url: str, countdown: Countdown) -> float:
    """The moment at which the outcome of every workflow is committed."""
    with psycopg.connect(url, autocommit=True) as connection:
        if not countdown.called.wait(common.GIVE_UP_SECONDS):
            raise SystemExit("not all workflows were called")
        while True:
            row = connection.execute(UNFINISHED).fetchone()
            if row is not None and not row[0]:
                return time.perf_counter()
            time.sleep(0.002)


def run(
    url: str,
    items: int,
    *,
    worker_concurrency: int,
    polling_interval: float,
    pool_size: int,
    threads: int | None,
    steps: int,
    kind: str,
    pre_ping: bool,
) -> float:
    """Enqueue all workflows on a paused queue, then let it go; the seconds of the second part."""
    config: DBOSConfig = {
        "name": "noop-bench",
        "system_database_url": url,
        "sys_db_pool_size": pool_size,
        "max_executor_threads": threads,
        "db_engine_kwargs": {"pool_pre_ping": pre_ping},
        "log_level": "ERROR",
        "enable_otlp": False,
    }
    DBOS(config=config)
    countdown = Countdown(items)

    @DBOS.step()
    def step() -> None:
        """Do nothing, durably."""

    @DBOS.workflow()
    def noop() -> None:
        for _ in range(steps):
            step()
        countdown.tick()

    @DBOS.step()
    async def async_step() -> None:
        """Do nothing, durably."""

    @DBOS.workflow()
    async def async_noop() -> None:
        for _ in range(steps):
            await async_step()
        countdown.tick()

    DBOS.launch()
    try:
        queue: Queue = DBOS.register_queue(QUEUE, worker_concurrency=0, polling_interval_sec=polling_interval)
        with ThreadPoolExecutor(ENQUEUE_THREADS) as enqueuers:
            function = async_noop if kind == "async" else noop
            for _ in enqueuers.map(lambda _: queue.enqueue(function), range(items)):
                pass
        common.settle(url)

        started = time.perf_counter()
        queue.set_worker_concurrency(worker_concurrency or None)
        return wait_committed(url, countdown) - started
    finally:
        DBOS.destroy()


def main() -> None:
    """Run once and print the result."""
    parser = common.postgres_arguments("dbos", 3000)
    parser.add_argument("--worker-concurrency", type=int, default=0, help="0 is unlimited")
    parser.add_argument("--polling-interval", type=float, default=0.1)
    parser.add_argument("--pool-size", type=int, default=20)
    parser.add_argument("--threads", type=int, default=8, help="executor threads, 0 is unlimited")
    parser.add_argument("--steps", type=int, default=0, help="no-op steps inside each workflow")
    parser.add_argument("--pre-ping", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--kind", choices=("sync", "async"), default="sync")
    options = parser.parse_args()
    with common.scratch_database(options.url, "dbos") as url:
        seconds = run(
            url,
            options.items,
            worker_concurrency=options.worker_concurrency,
            polling_interval=options.polling_interval,
            pool_size=options.pool_size,
            threads=options.threads or None,
            steps=options.steps,
            kind=options.kind,
            pre_ping=options.pre_ping,
        )
        done = "select count(*) from dbos.workflow_status where status = 'SUCCESS'"
        common.require(common.count(url, done), options.items)
    common.report(
        "dbos",
        options.items,
        seconds,
        {
            "processes": 1,
            "worker_concurrency": options.worker_concurrency or None,
            "polling_interval_sec": options.polling_interval,
            "sys_db_pool_size": options.pool_size,
            "max_executor_threads": options.threads or None,
            "pool_pre_ping": options.pre_ping,
            "workflow": options.kind,
            "steps": options.steps,
        },
    )


if __name__ == "__main__":
    main()

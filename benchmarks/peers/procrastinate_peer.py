"""procrastinate: asynchronous workers in one event loop on PostgreSQL.

The clock starts before ``run_worker_async(wait=False)`` and stops when it returns, which
it does after the last job's status has committed and the worker is unregistered.

Tried, with 2 500 to 4 000 items on two cores shared with other work, where equal runs
differed by up to a factor of two:

- ``concurrency`` 16, 50, 100, 200 with one worker: a worker fetches one job per round
  trip and commit, so its fetch loop is the limit; 100 and 200 are best and level, 16 is
  about a quarter slower.
- Several workers in the same event loop, 2, 4, 8, 16: their fetches overlap; 8 workers
  of 16 are best, 1.3 to 1.4 times the best single worker
  (``--workers 1 --concurrency 100`` measures that one).
- The pool is ours, passed to ``open_async``, which procrastinate allows, with autocommit
  (each operation is one statement, so this saves only the begin and commit round trips)
  and without the check of each connection before use; in each of three rounds either one
  undone was slower, by 13 % to 43 %.
- uvloop was faster than asyncio in two of three rounds and level in the third.
- Pools of 20 and 40 connections, and ``delete_jobs`` ``always`` instead of ``never``,
  differ by less than the noise.
- ``listen_notify`` is off: nothing is enqueued meanwhile. Not tried on.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time

import psycopg_pool
import uvloop
from procrastinate import App, PsycopgConnector

from benchmarks.peers import common

ENQUEUE_CHUNK = 1000


async def run(url: str, options: argparse.Namespace) -> float:
    """Defer all jobs, then work until there are none; the seconds of the second part."""
    app = App(connector=PsycopgConnector())

    @app.task(name="noop")
    async def noop() -> None:
        """Do nothing."""

    check = psycopg_pool.AsyncConnectionPool.check_connection if options.check else None
    async with psycopg_pool.AsyncConnectionPool(
        url,
        min_size=options.pool_size,
        max_size=options.pool_size,
        kwargs={"autocommit": options.autocommit},
        check=check,
        open=False,
    ) as pool:
        await pool.wait()
        async with app.open_async(pool):
            await app.schema_manager.apply_schema_async()
            for start in range(0, options.items, ENQUEUE_CHUNK):
                size = min(ENQUEUE_CHUNK, options.items - start)
                await noop.batch_defer_async(*({} for _ in range(size)))
            await asyncio.to_thread(common.settle, url)

            started = time.perf_counter()
            await asyncio.gather(
                *(
                    app.run_worker_async(
                        concurrency=options.concurrency,
                        wait=False,
                        listen_notify=False,
                        delete_jobs=options.delete_jobs,
                        install_signal_handlers=False,
                    )
                    for _ in range(options.workers)
                )
            )
            return time.perf_counter() - started


def main() -> None:
    """Run once and print the result."""
    parser = common.postgres_arguments("procrastinate", 5000)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--workers", type=int, default=8, help="workers in the one event loop")
    parser.add_argument("--autocommit", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--pool-size", type=int, default=20)
    parser.add_argument("--delete-jobs", choices=("never", "always"), default="never")
    parser.add_argument("--check", action="store_true", help="check each connection before use")
    parser.add_argument("--loop", choices=("uvloop", "asyncio"), default="uvloop")
    options = parser.parse_args()
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    factory = uvloop.new_event_loop if options.loop == "uvloop" else None
    with common.scratch_database(options.url, "procrastinate") as url:
        with asyncio.Runner(loop_factory=factory) as runner:
            seconds = runner.run(run(url, options))
        if options.delete_jobs == "never":
            done = "select count(*) from procrastinate_jobs where status = 'succeeded'"
            common.require(common.count(url, done), options.items)
        else:
            left = common.count(url, "select count(*) from procrastinate_jobs")
            common.require(options.items - left, options.items)
    common.report(
        "procrastinate",
        options.items,
        seconds,
        {
            "processes": 1,
            "concurrency": options.concurrency,
            "workers": options.workers,
            "pool_size": options.pool_size,
            "autocommit": options.autocommit,
            "delete_jobs": options.delete_jobs,
            "connection_check": options.check,
            "loop": options.loop,
        },
    )


if __name__ == "__main__":
    main()

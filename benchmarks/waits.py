"""A step that waits 100 ms, a thousand at once: the worker's rate beside a bare asyncio loop doing the same waits."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

from benchmarks import noop
from benchmarks.peers import common
from penstock.ledger.ledger import Ledger
from penstock.worker.worker import WorkerSettings

WAIT_SECONDS = 0.1


async def _bare(items: int, tasks: int) -> float:
    left = itertools.count(1)

    async def one() -> None:
        while next(left) <= items:  # noqa: ASYNC110 - the wait is the work
            await asyncio.sleep(WAIT_SECONDS)

    started = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(tasks)))
    return time.perf_counter() - started


def ours(url: str, items: int) -> float:
    """The seconds from all due to the last commit."""
    with Ledger.open(url, [noop.MACHINE], create=True) as ledger:
        noop.fill(ledger, items)
    noop.settle(url)
    with noop.Fleet(url, 1, wait=WAIT_SECONDS) as fleet:
        seconds = fleet.run(items)
    with Ledger.open(url, [noop.MACHINE]) as ledger:
        common.require(noop.finished(ledger), items)
    return seconds


def main() -> None:
    """Run both once and print the result."""
    parser = noop.arguments("waits", 50_000)
    options = parser.parse_args()
    concurrency = WorkerSettings().concurrency
    bare = asyncio.run(_bare(options.items, concurrency))
    with noop.scratch(options.url, "waits") as url:
        seconds = ours(url, options.items)
    line = {
        "database": noop.database_of(options.url),
        "items": options.items,
        "wait_ms": round(WAIT_SECONDS * 1000),
        "concurrency": concurrency,
        "bare_per_second": round(options.items / bare, 1),
        "per_second": round(options.items / seconds, 1),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

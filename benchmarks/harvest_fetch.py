"""How long it takes to fetch every page of a catalogue and throw it away: the floor under a harvest.

Run by hand: `python -m benchmarks.harvest_fetch [STONES] [AT-ONCE] [PAGE-SIZE]`. The simulator runs in a process of its
own, and has its work counted too. `fetched` is for other benchmarks, against a simulator that already runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from typing import Any

from penstock.connectors.nivoda.client import Api, Credentials, Nivoda, Query
from penstock.model.clock import SystemClock
from penstock.settings.secret import Secret
from penstock.simulators.nivoda_process import control, in_process

LOGIN = "PENSTOCK_BENCH_NIVODA"


async def fetched(about: dict[str, Any], at_once: int = 30, page_size: int = 30) -> dict[str, float]:
    """Fetch everything, in as many ranges of price as there are calls at once; what it took."""
    os.environ[LOGIN] = about["password"]
    nivoda = Nivoda(Credentials(about["username"], Secret("env", LOGIN)), SystemClock(), api=Api(about["api_url"]))
    try:
        total = await nivoda.count(Query())
        ranges = await _ranges(nivoda, total, at_once)
        counts = [await nivoda.count(one) for one in ranges]
        seconds, used = time.perf_counter(), time.process_time()
        found = await asyncio.gather(*(_all(nivoda, *one, page_size) for one in zip(ranges, counts, strict=True)))
        seconds, used = time.perf_counter() - seconds, time.process_time() - used
    finally:
        await nivoda.close()
    records, pages = sum(number for number, _ in found), sum(number for _, number in found)
    if records != total:
        msg = f"{records:,} records came, {total:,} were counted"
        raise SystemExit(msg)
    return {
        "records": records,
        "pages": pages,
        "seconds": round(seconds, 2),
        "pages_per_second": round(pages / seconds, 1),
        "client_ms_per_page": round(1000 * used / pages, 3),
    }


async def _ranges(nivoda: Nivoda, total: int, wanted: int) -> list[Query]:
    """Ranges of about the same size, by halving: nobody counts the calls here."""
    ends, low = [0], 1
    for part in range(1, wanted):
        high = 4_000_000
        while high - low > 1:
            middle = (low + high) // 2
            enough = await nivoda.count(Query(high=middle)) >= total * part // wanted
            low, high = (low, middle) if enough else (middle, high)
        if high > ends[-1]:
            ends.append(high)
        low = ends[-1]
    return [Query(first, last) for first, last in zip(ends, [*ends[1:], None], strict=True)]


async def _all(nivoda: Nivoda, query: Query, count: int, page_size: int) -> tuple[int, int]:
    records = pages = 0
    for offset in range(0, count, page_size):
        records += len((await nivoda.page(query, offset, page_size)).items)
        pages += 1
    return records, pages


def main(stones: int = 500_000, at_once: int = 30, page_size: int = 30) -> None:
    started = time.perf_counter()
    with in_process(stones) as about:
        ready = time.perf_counter() - started
        before = control(about)
        result = asyncio.run(fetched(about, at_once, page_size))
        after = control(about)
    more = {
        "at_once": at_once,
        "simulator_ready_seconds": round(ready, 2),
        "simulator_cpu_seconds": round(after["cpu_seconds"] - before["cpu_seconds"], 2),
        "simulator_mb": round(after["peak_mb"]),
        "client_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps({**result, **more}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""The memory of a worker process that downloads, lands, checks and loads one report, and how long it takes.

The simulator that serves the report is in this process, the worker in another; the peak is the worker's, as the system
counted it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import date, timedelta
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import environment, noop
from benchmarks.processes import cpu_seconds, peak, server_pids
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports.machine import S, machine
from penstock.lifecycles.reports.settings import Account
from penstock.lifecycles.reports.tables import DATA_TABLES, VIEWS
from penstock.model.clock import SystemClock, instant
from penstock.model.machine import Actor
from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate
from penstock.simulators.server import in_thread
from tests.support.reports import dataset, ref_of
from tests.support.reports_worker import CONFIG, write_config

MEGABYTE = 1_000_000
RECORD = (
    '{"date":"%s","campaignId":%d,"adGroupId":%d,"keywordId":%d,"keyword":"%s","matchType":"%s","impressions":%d,'
    '"clicks":%d,"cost":%s,"purchases7d":%d,"sales7d":%s}'
)
WORDS = (
    *("running", "shoes", "for", "the", "trail", "wide", "blue", "red", "women", "men", "kids", "waterproof"),
    *("leather", "light", "boots", "cheap", "best", "summer", "winter", "socks", "with", "laces", "size", "extra"),
)
MATCHES = ("BROAD", "EXACT", "PHRASE", "TARGETING_EXPRESSION", "TARGETING_EXPRESSION_PREDEFINED")
AT_ONCE = 2_000
LONGEST_SECONDS = 850.0
WORKER = {"lease_ms": 30_000, "renew_seconds": 10, "idle_seconds": 0.2, "concurrency": 50}


def record(day: str, number: int, dice: Random) -> str:
    """A record whose every value differs from its neighbours', but for the day."""
    shown = dice.randrange(50_000)
    clicks = dice.randrange(shown // 20 + 1)
    return RECORD % (
        day,
        10**14 + dice.randrange(10_000) * 7_919,
        2 * 10**14 + dice.randrange(100_000) * 104_729,
        3 * 10**14 + number * 13,
        " ".join(dice.choices(WORDS, k=dice.randrange(2, 9))),
        dice.choice(MATCHES),
        shown,
        clicks,
        round(clicks * dice.uniform(0.1, 3), 2),
        dice.randrange(5),
        round(dice.uniform(0, 300), 2),
    )


class Body:
    """A report of at least so many megabytes, made while it is sent; the same each time."""

    def __init__(self, day: date, megabytes: int) -> None:
        self._day = day.isoformat()
        self._least = megabytes * MEGABYTE
        self.size = self.rows = 0

    def __call__(self) -> Iterator[bytes]:
        packer, dice = zlib.compressobj(1, wbits=31), Random(1)
        self.size = self.rows = 0
        yield packer.compress(b"[")
        while self.size < self._least:
            some = range(self.rows, self.rows + AT_ONCE)
            made = ("," * bool(self.rows) + ",".join([record(self._day, n, dice) for n in some])).encode()
            self.rows += AT_ONCE
            self.size += len(made)
            yield packer.compress(made)
        yield packer.compress(b"]") + packer.flush()


@contextmanager
def working(url: str, config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process of reports."""
    command = [sys.executable, "-m", "benchmarks.report_worker", url, json.dumps(WORKER)]
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process: subprocess.Popen[bytes] = subprocess.Popen(
        command, env=os.environ | {CONFIG: str(config)}, cwd=environment.ROOT, **quiet
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def day() -> date:
    """A day that has a report."""
    return SystemClock().now().date() - timedelta(days=2)


def run(url: str, body: Callable[[], Iterator[bytes]], folder: Path) -> dict[str, Any]:
    """Load one report; what it took. The seconds are those from its being ready to its being loaded."""
    clock = SystemClock()
    simulator = AmazonAdsSimulator(clock, fate=Fate(pending=timedelta(), processing=timedelta()))
    unit = dataset("acme", Account(profile_id="1001", country="US"), day=day())
    simulator.bodies.append(body)
    with (
        in_thread(simulator) as address,
        closing(Ledger.open(url, [machine], create=True, data_tables=DATA_TABLES, views=VIEWS)) as ledger,
    ):
        config = write_config(folder, address, simulator, url, {"acme": "1001"}, poll="1s")
        with working(url, config) as process:
            own, server = _ready(ledger, process), cpu_seconds(*server_pids(url))
            ledger.birth([unit], actor=Actor.SCHEDULER, who="benchmark")
            began, most, found = time.perf_counter(), 0.0, unit
            while found.status is not S.COMPLETED:
                time.sleep(0.2)
                (found,) = ledger.get_many(machine, [ref_of(unit).unit_id])
                if found.status is S.ERROR or process.poll() is not None:
                    raise SystemExit(f"the report was not loaded: {found.error or 'the worker is gone'}")
                if time.perf_counter() - began > LONGEST_SECONDS:
                    raise SystemExit(f"not loaded after {LONGEST_SECONDS:.0f} s")
                most = peak(process.pid)
            own, server = cpu_seconds(process.pid) - own, cpu_seconds(*server_pids(url)) - server
        seconds = _seconds(ledger)
    return {
        "database": noop.database_of(url),
        "rows": found.loaded_rows,
        "seconds": round(seconds, 2),
        "peak_mb": round(most, 1),
        "cpu_seconds": {"worker": round(own, 2), "server": round(server, 2)},
    }


def _ready(ledger: Ledger, process: subprocess.Popen[bytes]) -> float:
    """Wait until the worker is registered and idle; what it has used until then."""
    while not ledger.read(lambda cursor: cursor.rows("SELECT 1 FROM worker")):
        if process.poll() is not None:
            raise SystemExit("the worker did not start")
        time.sleep(0.1)
    time.sleep(1)
    return cpu_seconds(process.pid)


def _seconds(ledger: Ledger) -> float:
    """From the report's being ready to its being loaded, as the history has it."""
    sql = "SELECT at FROM transition_log WHERE machine = 'report' AND to_status = '{}' ORDER BY seq"
    states = ("parsing", "completed")
    ready, loaded = (ledger.read(lambda c, s=s: c.rows(sql.format(s)))[0][0] for s in states)  # type: ignore[misc]
    return (instant(loaded) - instant(ready)).total_seconds()


def main() -> None:
    """Run once and print the result; `--items` are megabytes."""
    options = noop.arguments("big_report", 1_000).parse_args()
    with noop.scratch(options.url, "big_report") as url, tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        body = Body(day(), options.items)
        line = run(url, body, Path(folder)) | {"megabytes": round(body.size / MEGABYTE, 1)}
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

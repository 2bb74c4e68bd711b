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
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from benchmarks import environment, noop
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports.machine import S, machine
from penstock.lifecycles.reports.settings import Account
from penstock.lifecycles.reports.tables import DATA_TABLES, VIEWS
from penstock.model.clock import SystemClock
from penstock.model.machine import Actor
from penstock.simulators.amazon_ads import AmazonAdsSimulator, Fate
from penstock.simulators.server import in_thread
from tests.support.reports import dataset, ref_of
from tests.support.reports_worker import CONFIG, write_config

MEGABYTE = 1_000_000
RECORD = (
    '{"date":"%s","campaignId":100000000000001,"adGroupId":200000000000002,"keywordId":%d,"keyword":"running shoes for'
    ' the trail, wide, blue %d","matchType":"BROAD","impressions":%d,"clicks":3,"cost":1.23,"purchases7d":1,'
    '"sales7d":19.99}'
)
AT_ONCE = 2_000
LONGEST_SECONDS = 850.0
WORKER = {"lease_ms": 30_000, "renew_seconds": 10, "idle_seconds": 0.2, "concurrency": 50}


class Body:
    """A report of at least so many megabytes, made while it is sent."""

    def __init__(self, day: date, megabytes: int) -> None:
        self._day = day.isoformat()
        self._least = megabytes * MEGABYTE
        self.size = 2

    def __call__(self) -> Iterator[bytes]:
        packer, number = zlib.compressobj(1, wbits=31), 0
        yield packer.compress(b"[")
        while self.size < self._least:
            some = range(number, number + AT_ONCE)
            text = ",".join(RECORD % (self._day, 3 * 10**14 + n, n, n % 977) for n in some)
            made = (("," if number else "") + text).encode()
            number += AT_ONCE
            self.size += len(made)
            yield packer.compress(made)
        yield packer.compress(b"]") + packer.flush()


def peak(pid: int) -> float:
    """The most memory that a process has had, in megabytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / MEGABYTE


@contextmanager
def working(url: str, config: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process of reports."""
    command = [sys.executable, "-m", "tests.support.reports_worker", url, json.dumps(WORKER)]
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process: subprocess.Popen[bytes] = subprocess.Popen(
        command, env=os.environ | {CONFIG: str(config)}, cwd=environment.ROOT, **quiet
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def run(url: str, megabytes: int, folder: Path) -> dict[str, Any]:
    """Load one report; what it took."""
    clock = SystemClock()
    simulator = AmazonAdsSimulator(clock, fate=Fate(pending=timedelta(), processing=timedelta()))
    unit = dataset("acme", Account(profile_id="1001", country="US"), day=clock.now().date() - timedelta(days=2))
    body = Body(unit.report_date, megabytes)
    simulator.bodies.append(body)
    with (
        in_thread(simulator) as address,
        closing(Ledger.open(url, [machine], create=True, data_tables=DATA_TABLES, views=VIEWS)) as ledger,
    ):
        config = write_config(folder, address, simulator, url, {"acme": "1001"}, poll="1s")
        ledger.birth([unit], actor=Actor.SCHEDULER, who="benchmark")
        with working(url, config) as process:
            began, most, found = time.perf_counter(), 0.0, unit
            while found.status is not S.COMPLETED:
                time.sleep(0.2)
                (found,) = ledger.get_many(machine, [ref_of(unit).unit_id])
                if found.status is S.ERROR or process.poll() is not None:
                    raise SystemExit(f"the report was not loaded: {found.error or 'the worker is gone'}")
                if time.perf_counter() - began > LONGEST_SECONDS:
                    raise SystemExit(f"not loaded after {LONGEST_SECONDS:.0f} s")
                most = peak(process.pid)
            seconds = time.perf_counter() - began
    return {
        "database": noop.database_of(url),
        "megabytes": round(body.size / MEGABYTE, 1),
        "rows": found.loaded_rows,
        "seconds": round(seconds, 1),
        "peak_mb": round(most, 1),
    }


def main() -> None:
    """Run once and print the result; `--items` are megabytes."""
    options = noop.arguments("big_report", 1_000).parse_args()
    with noop.scratch(options.url, "big_report") as url, tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        line = run(url, options.items, Path(folder))
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

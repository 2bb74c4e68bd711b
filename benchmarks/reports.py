"""How long `update-report-datasets` takes: a thousand accounts, their whole retention window, then nothing to do.

Run by hand: `python -m benchmarks.reports [LEDGER-URL] [ACCOUNTS]`. Without an address it makes a SQLite file in a
temporary folder.
"""

from __future__ import annotations

import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from penstock.clock import Rng, VirtualClock
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports.decide import Settings
from penstock.lifecycles.reports.job import update_report_datasets
from penstock.lifecycles.reports.machine import machine
from penstock.lifecycles.reports.settings import Account
from penstock.lifecycles.reports.tables import DATA_TABLES

ZONES = ("America/Los_Angeles", "Europe/Madrid", "Asia/Tokyo", "UTC")


def main(url: str, count: int) -> None:
    """Three passes: everything is missing, nothing is, one hour later."""
    clock = VirtualClock(datetime(2026, 11, 15, 12, 0, tzinfo=UTC))
    accounts = {f"account{n:04}": Account(f"account{n:04}", str(n), "US", ZONES[n % len(ZONES)]) for n in range(count)}
    settings = Settings(accounts=dict.fromkeys(accounts, False))
    with Ledger.open(url, [machine], clock=clock, rng=Rng(1), create=True, data_tables=DATA_TABLES) as ledger:
        for name in ("first pass", "second pass", "an hour later"):
            started = time.perf_counter()
            done = update_report_datasets(ledger, accounts, settings, clock.now(), who="benchmark")
            print(f"{name}: {done.born:,} rows in {time.perf_counter() - started:.2f} s")
            if name == "second pass":
                clock.advance(3_600)


if __name__ == "__main__":
    arguments = sys.argv[1:]
    number = int(arguments[1]) if len(arguments) > 1 else 1_000
    if arguments and arguments[0]:
        main(arguments[0], number)
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(f"sqlite:///{Path(folder) / 'penstock.db'}", number)

"""How long `update-report-datasets` takes: a thousand accounts, their whole retention window, then nothing to do."""

from __future__ import annotations

import json
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import noop
from penstock.connectors.amazon_ads.stream import AmazonStream
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports.datasets import update_report_datasets
from penstock.lifecycles.reports.machine import machine
from penstock.lifecycles.reports.settings import Account, ReportSettings
from penstock.lifecycles.reports.tables import DATA_TABLES
from penstock.model.clock import Rng, VirtualClock
from penstock.settings.typed import TimeZone

ZONES = ("America/Los_Angeles", "Europe/Madrid", "Asia/Tokyo", "UTC")


def run(url: str, count: int) -> dict[str, Any]:
    """Three passes: everything is missing, nothing is, one hour later."""
    clock = VirtualClock(datetime(2026, 11, 15, 12, 0, tzinfo=UTC))
    accounts = {
        f"account{n:04}": Account(profile_id=str(n), country="US", time_zone=TimeZone(ZONES[n % len(ZONES)]))
        for n in range(count)
    }
    settings = ReportSettings(accounts=accounts)
    line: dict[str, Any] = {"database": noop.database_of(url), "items": count}
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(url, [machine], clock=clock, rng=Rng(1), create=True, data_tables=DATA_TABLES) as ledger,
    ):
        streams = {name: AmazonStream(Path(folder), own.profile_id, clock) for name, own in accounts.items()}
        for stream in streams.values():
            (stream.folder / "sp-traffic" / "2026-01-01T00").mkdir(parents=True)
        for name in ("first", "second", "later"):
            started = time.perf_counter()
            done = update_report_datasets(ledger, settings, clock.now(), who="benchmark", streams=streams)
            line[name] = {"rows": done.born, "seconds": round(time.perf_counter() - started, 3)}
            if name == "second":
                clock.advance(3_600)
    return line


def main() -> None:
    """Run once and print the result; `--items` are accounts."""
    options = noop.arguments("reports", 1_000).parse_args()
    with noop.scratch(options.url, "reports") as url:
        line = run(url, options.items)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

"""The resident memory of one worker process over a million no-op units.

It is sampled from outside, every tenth of a second; the first tenth of the units is warm-up.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from benchmarks import noop
from benchmarks.peers import common
from penstock.ledger.ledger import Ledger

SAMPLE_SECONDS = 0.1
MEGABYTE = 1024 * 1024


class Sampler:
    """Reads a process's resident memory while it works."""

    def __init__(self, pid: int | None) -> None:
        self._statm = Path(f"/proc/{pid}/statm")
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._next = 0.0
        self.samples: list[tuple[int, float]] = []  # units committed, megabytes

    def __call__(self, committed: int) -> None:
        now = time.perf_counter()
        if now >= self._next:
            self._next = now + SAMPLE_SECONDS
            resident = int(self._statm.read_text().split()[1]) * self._page
            self.samples.append((committed, resident / MEGABYTE))


def run(url: str, items: int) -> tuple[float, list[tuple[int, float]]]:
    """The seconds it took, and the samples."""
    with Ledger.open(url, [noop.MACHINE], create=True) as ledger:
        noop.fill(ledger, items)
    noop.settle(url)
    with noop.Fleet(url, 1) as fleet:
        sampler = Sampler(fleet.members[0].pid)
        seconds = fleet.run(items, sampler)
    with Ledger.open(url, [noop.MACHINE]) as ledger:
        common.require(noop.finished(ledger), items)
    return seconds, sampler.samples


def main() -> None:
    """Run once and print the result."""
    parser = noop.arguments("memory", 1_000_000)
    options = parser.parse_args()
    with noop.scratch(options.url, "memory") as url:
        seconds, samples = run(url, options.items)
    warm = [megabytes for committed, megabytes in samples if committed >= options.items / 10]
    if not warm:
        raise SystemExit("too few units: no sample was taken after the warm-up")
    line = {
        "database": noop.database_of(options.url),
        "items": options.items,
        "per_second": round(options.items / seconds, 1),
        "samples": len(warm),
        "first_mb": round(warm[0], 1),
        "min_mb": round(min(warm), 1),
        "max_mb": round(max(warm), 1),
        "drift_mb": round(max(abs(megabytes - warm[0]) for megabytes in warm), 1),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

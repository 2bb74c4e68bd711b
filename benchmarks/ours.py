"""Penstock: no-op units on either database, from all due to the last commit.

Guard, history row and fence are included. The worker processes are real ones, connected before the clock starts; it
starts when they are let go and stops when the last unit is committed and settled. The settings are the defaults of a
worker.
"""

from __future__ import annotations

from benchmarks import noop
from benchmarks.peers import common
from penstock.ledger.ledger import Ledger
from penstock.worker.committer import MAX_BATCH
from penstock.worker.worker import WorkerSettings


def run(url: str, items: int, processes: int) -> float:
    """Give birth to the units, then let the workers go; the seconds of the second part."""
    with Ledger.open(url, [noop.MACHINE], create=True) as ledger:
        noop.fill(ledger, items)
    noop.settle(url)
    with noop.Fleet(url, processes) as fleet:
        seconds = fleet.run(items)
    with Ledger.open(url, [noop.MACHINE]) as ledger:
        common.require(noop.finished(ledger), items)
    return seconds


def main() -> None:
    """Run once and print the result."""
    parser = noop.arguments("ours", 50_000)
    parser.add_argument("--processes", type=int, choices=(1, 2), default=1)
    options = parser.parse_args()
    with noop.scratch(options.url, "ours") as url:
        seconds = run(url, options.items, options.processes)
    settings = WorkerSettings()
    common.report(
        "penstock",
        options.items,
        seconds,
        {
            "database": noop.database_of(options.url),
            "processes": options.processes,
            "concurrency": settings.concurrency,
            "slots": settings.slots,
            "claim_at_once": settings.claim_at_once,
            "commit_at_most": MAX_BATCH,
            "loop": "asyncio",
        },
    )


if __name__ == "__main__":
    main()

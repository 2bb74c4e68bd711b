"""The desk beside a worker: a hundred readers of a ledger of a million units, and a hundred open pages.

The desk is `penstock web` and the worker `penstock up`, each a process of its own. A hundred readers each ask once a
second, in turn for lists, units, histories, counts and pages. Their waits are measured from the moment at which each
question was due, so that a slow answer is not hidden by questions that were never asked. The worker's steps wait half a
second each, a thousand at once; it is measured alone, beside the readers, and alone again. Then a hundred pages are
held open while the worker works: each is told what changed and fetches the regions that follow it, as a browser's does.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import aiohttp

from benchmarks import noop
from benchmarks.environment import ROOT
from penstock.app.lifecycle import Lifecycle
from penstock.ledger.ledger import Ledger
from penstock.ledger.roll_up import bookmark, newest, roll_up
from penstock.ledger.store.database import Cursor
from penstock.settings.typed import Settings

READERS = 100
PAGES = 100
WAIT_SECONDS = 0.5
SETTLE_SECONDS = 3.0
READY_SECONDS = 60.0
AT_ONCE = 100_000
#: What is asked in turn; {n} is one of the units.
ASKED = (
    "/api/v1/units?machine=noop",
    "/api/v1/units?machine=noop&status=DONE&limit=50",
    "/api/v1/units/noop/{n}",
    "/api/v1/units/noop/{n}/history",
    "/api/v1/units/noop/{n}/why",
    "/api/v1/status",
    "/api/v1/flow",
    "/api/v1/activity",
    "/api/v1/gates",
    "/api/v1/events",
    "/",
    "/machines/noop",
    "/units/noop/{n}",
)


class _Nothing(Settings):
    """It has no settings."""


#: What `penstock web` serves here: the no-op of the other measurements.
lifecycle = Lifecycle(
    "noops",
    "Units that do nothing.",
    settings=_Nothing,
    machines=[noop.MACHINE],
    build=lambda _settings, _ports: [noop.Noops(WAIT_SECONDS)],
)


def fill(url: str, units: int, ended: int) -> None:
    """Units with their births in the history; the first of them have ended."""
    with Ledger.open(url, [noop.MACHINE]) as ledger:
        noop.fill(ledger, units)

        for first in range(0, ended, AT_ONCE):
            ledger.database.write(partial(_end, ledger, first, min(first + AT_ONCE, ended)))
        roll_up(ledger.database)
    noop.settle(url)


def _end(ledger: Ledger, first: int, last: int, cursor: Cursor) -> None:
    noop.unhurried(ledger, cursor)
    cursor.run(
        "UPDATE noop SET status = 'DONE', due_at = NULL, version = version + 1, changed_by = 'worker:filling'"
        " WHERE number >= :first AND number < :last",
        first=first,
        last=last,
    )


@contextmanager
def configured(url: str) -> Iterator[Path]:
    """A configuration with the ledger, whose tables are made."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "penstock.toml"
        file.write_text(f'lifecycles = ["benchmarks.desk:lifecycle"]\n[ledger]\nurl = "{url}"\n[noops]\n')
        subprocess.run(_command(file, "db", "upgrade"), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        yield file


@contextmanager
def started(file: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A process of Penstock, and what it says."""
    log = file.with_name(words[0])
    with log.open("w") as out, subprocess.Popen(_command(file, *words), cwd=ROOT, stdout=out, stderr=out) as process:
        try:
            yield process, log
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _command(file: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "penstock", *words, "--config", str(file)]


def _address(log: Path, process: subprocess.Popen[bytes]) -> str:
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end and process.poll() is None:
        for word in log.read_text().replace('"', " ").replace("=", " ").split():
            if word.startswith("http://127.0.0.1:"):
                return word.rstrip("/")
        time.sleep(0.05)
    raise SystemExit(f"the desk is not served:\n{log.read_text()}")


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _client(address: str) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=2 * max(READERS, PAGES))
    return aiohttp.ClientSession(address, connector=connector, timeout=aiohttp.ClientTimeout(READY_SECONDS))


async def read(address: str, seconds: float, units: int) -> list[float]:
    """How long each answer took, in milliseconds, from when its question was due."""
    waits: list[float] = []
    begin = time.perf_counter()
    async with _client(address) as client:

        async def reader(number: int) -> None:
            for turn in range(int(seconds)):
                due = begin + turn + number / READERS
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                asked = ASKED[(number + turn) % len(ASKED)].format(n=(number * 7_919 + turn * 104_729) % units)
                async with client.get(asked) as answer:
                    text = await answer.text()
                if answer.status != HTTPStatus.OK:
                    raise SystemExit(f"{asked}: {answer.status} {text[:300]}")
                waits.append((time.perf_counter() - due) * 1000)

        await asyncio.gather(*(reader(number) for number in range(READERS)))
    return waits


_REGION = re.compile(r'data-region="([^"]*)" data-follows="([^"]*)"')


async def hold(address: str, seconds: float) -> int:
    """Keep pages open, and fetch of each what follows the changes that it is told of; how often that was."""
    fetched = 0
    async with _client(address) as client:

        async def page(number: int) -> None:
            nonlocal fetched
            place = ("/", "/machines/noop")[number % 2]
            async with client.get(place) as answer:
                regions = _REGION.findall(await answer.text())
            async with client.get("/live") as events:
                async for line in events.content:
                    if line.startswith(b"data: "):
                        told = {*line.decode().removeprefix("data: ").split()}
                        everything = "*" in told
                        told |= {"*"}  # some regions follow everything
                        named = regions if everything else [one for one in regions if told & {*one[1].split()}]
                        wanted = [name for name, _ in named]
                        async with client.get(place, params={"regions": ",".join(wanted)}) as answer:
                            answer.raise_for_status()
                            await answer.read()
                        fetched += 1

        tasks = [asyncio.create_task(page(number)) for number in range(PAGES)]
        await asyncio.wait(tasks, timeout=seconds)
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return fetched


def moved(ledger: Ledger) -> int:
    """Transitions so far; each step of the worker is one."""
    return ledger.read(lambda cursor: newest(cursor, bookmark(cursor).seq))


def percentile(waits: Sequence[float], share: float) -> float:
    return round(sorted(waits)[min(len(waits) - 1, int(len(waits) * share))], 1)


class Span:
    """What the worker did and what the desk cost while something went on."""

    def __init__(self, ledger: Ledger, desk: int) -> None:
        self._ledger, self._desk = ledger, desk

    def __enter__(self) -> Self:
        self._before, self._begun = (moved(self._ledger), cpu_seconds(self._desk)), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        took = time.perf_counter() - self._begun
        count, cpu = self._before
        self.rate = (moved(self._ledger) - count) / took
        self.cores = (cpu_seconds(self._desk) - cpu) / took


def measure(url: str, file: Path, units: int, seconds: float) -> dict[str, object]:
    """The worker alone, beside readers, alone, beside open pages."""
    with (
        Ledger.open(url, [noop.MACHINE]) as ledger,
        started(file, "web", "--address", "127.0.0.1:0") as (process, log),
        started(file, "up", "--address", "127.0.0.1:0"),
    ):
        address, spans = _address(log, process), [Span(ledger, process.pid) for _ in range(4)]
        asyncio.run(read(address, SETTLE_SECONDS, units))
        with spans[0]:
            time.sleep(seconds)
        with spans[1]:
            waits = asyncio.run(read(address, seconds, units))
        with spans[2]:
            time.sleep(seconds)
        with spans[3]:
            fetched = asyncio.run(hold(address, seconds))
    first, reading, again, holding = spans
    return {
        "asked": len(waits),
        "p50_ms": percentile(waits, 0.5),
        "p99_ms": percentile(waits, 0.99),
        "desk_cores": round(reading.cores, 3),
        "worker_alone": round((first.rate + again.rate) / 2, 1),
        "worker_beside": round(reading.rate, 1),
        "pages_fetched": fetched,
        "pages_cores": round(holding.cores, 3),
    }


def main() -> None:
    """Fill, measure and print the result."""
    parser = noop.arguments("desk", 1_000_000)
    parser.add_argument("--seconds", type=float, default=30, help="of each measurement (default %(default)s)")
    options = parser.parse_args()
    due = int(options.seconds * 6 / WAIT_SECONDS) * 1_100
    with noop.scratch(options.url, "desk") as url, configured(url) as file:
        fill(url, options.items, max(0, options.items - due))
        line = {
            "database": noop.database_of(options.url),
            "units": options.items,
            "readers": READERS,
            "pages": PAGES,
            **measure(url, file, options.items, options.seconds),
        }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

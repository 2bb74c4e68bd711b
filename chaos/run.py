"""`make chaos`: make every fault, print what it cost, and keep docs/reliability.md and the figures beside it.

A target that is missed is shown and is no error of the run, except with `--strict`; a scenario that does not come to
its end is one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from pysqlite3 import dbapi2

from chaos import page, rows, server
from chaos.parts import POSTGRES, ROOT, SQLITE
from chaos.rows import Row
from chaos.scenarios import SCENARIOS, chosen

DOCUMENT = ROOT / "docs" / "reliability.md"
LONGEST_SECONDS = 900.0
_QUICK_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Wish:
    """One scenario on one database."""

    scenario: str
    database: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.scenario} on {self.database}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos.run", description="Make faults, and see what they cost.")
    parser.add_argument(
        "--only", default="", help="scenarios, separated by commas, by name or by how it begins (kills,poison); or all"
    )
    parser.add_argument("--database", choices=("sqlite", "postgresql"), help="on this database alone")
    parser.add_argument("--quick", action="store_true", help="small sizes; unless --only says more, a few scenarios")
    parser.add_argument("--jobs", type=int, help="scenarios at once (default 1, with --quick 4)")
    parser.add_argument(
        "--seed", type=int, help="the chance behind it, as a row names it (default: another every time)"
    )
    parser.add_argument("--strict", action="store_true", help="exit code 1 where a target is missed")
    parser.add_argument("--keep", type=Path, help="leave the logs and ledgers of every scenario in this new folder")
    parser.add_argument(
        "--output",
        type=Path,
        help="where to write (default, unless --quick: docs/reliability.md); the figures lie beside it",
    )
    options = parser.parse_args()
    if options.output is None and not options.quick:
        options.output = DOCUMENT
    try:
        options.names = chosen([word for word in options.only.split(",") if word])
    except ValueError as error:
        parser.error(str(error))
    options.jobs = options.jobs or (_QUICK_AT_ONCE if options.quick else 1)
    return options


def _wishes(options: argparse.Namespace) -> list[Wish]:
    dice = random.Random()
    found = []
    for name in options.names:
        scenario = SCENARIOS[name]
        databases = scenario.databases
        if options.quick and not options.only:
            databases = (scenario.by_day,) if scenario.by_day else ()
        for database in databases:
            seed = dice.randrange(1_000_000) if options.seed is None else options.seed
            if options.database in (None, database.lower()):
                found.append(Wish(name, database, seed))
    return found


class Crew:
    """Runs scenarios, each in a process group of its own that is ended with it."""

    def __init__(self, folder: Path, made: Path, *, quick: bool) -> None:
        self._folder = folder
        self._made = made
        self._quick = quick
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self.failures: list[str] = []

    def run(self, wish: Wish) -> list[Row]:
        """The rows of a scenario; none, and a failure, when it did not come to its end."""
        place = self._folder / f"{wish.scenario}-{wish.database.lower()}"
        place.mkdir(mode=0o755)
        command = [sys.executable, "-m", "chaos.row", wish.scenario, wish.database, str(place), str(self._made)]
        command += ["--seed", str(wish.seed), *(["--quick"] if self._quick else [])]
        began = time.monotonic()
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        ) as process:  # fmt: skip
            with self._lock:
                self._running.add(process.pid)
            try:
                out, err = process.communicate(timeout=LONGEST_SECONDS)
            except subprocess.TimeoutExpired:
                out, err = "", f"not finished after {LONGEST_SECONDS:.0f} seconds"
            finally:
                self._end(process.pid)
        _unmount(place)
        if process.returncode != 0:
            lines = err.strip().splitlines() or [f"exit code {process.returncode}"]
            self.failures.append(f"{wish.name} (seed {wish.seed}): {lines[-1]}")
            sys.stderr.write("\n".join(lines[-12:]) + "\n")
        found = [rows.read(json.loads(line)) for line in out.splitlines()]
        for row in found:
            row.quick, row.seed = self._quick, wish.seed
            row.seconds = row.seconds or round(time.monotonic() - began, 1)
        return found

    def _end(self, group: int) -> None:
        with self._lock:
            if group in self._running:
                self._running.discard(group)
                try:
                    os.killpg(group, signal.SIGKILL)
                except ProcessLookupError:
                    return

    def end_all(self) -> None:
        for group in list(self._running):
            self._end(group)


def _unmount(place: Path) -> None:
    """A disk of a scenario that was ended before it could put it away."""
    if (place / "disk").is_mount():
        subprocess.run(["umount", "--lazy", str(place / "disk")], check=False)


@contextmanager
def _folders(keep: Path | None) -> Iterator[tuple[Path, Path]]:
    """Where scenarios run, and what their servers begin with; open to the account that runs PostgreSQL."""
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as temporary:
        base = Path(temporary)
        base.chmod(0o755)
        if keep is not None:
            keep.mkdir(parents=True)
        server.prepare(base / "made")
        yield keep or base, base / "made"


def versions() -> str:
    """What a row's figures depend on, in a few words; nothing that names the machine."""
    commit = subprocess.run(
        ["git", "-c", "safe.directory=*", "rev-parse", "--short", "HEAD"],
        cwd=ROOT, check=False, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    ours = f"Penstock {version('penstock')}{f' at {commit}' if commit else ''}"
    database = f"SQLite {dbapi2.sqlite_version}"
    return f"{ours}, Python {platform.python_version()}, {database}, PostgreSQL {server.VERSION}"


def main() -> None:
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    wishes = _wishes(options)
    found: list[Row] = []
    stamp, when = versions(), str(datetime.now(UTC).date())
    with _folders(options.keep) as (folder, made):
        crew = Crew(folder, made, quick=options.quick)
        pool = ThreadPoolExecutor(options.jobs)
        try:
            for wish, done in [(wish, pool.submit(crew.run, wish)) for wish in wishes]:
                for row in done.result():
                    row.when, row.versions = when, stamp
                    print(f"{row.key}, seed {row.seed}: {row.verdict} ({row.seconds:.0f} s)", flush=True)
                    found.append(row)
                    if options.output:
                        page.keep(options.output, [row])  # at once: what comes later may be interrupted
                if not options.keep:
                    shutil.rmtree(folder / f"{wish.scenario}-{wish.database.lower()}", ignore_errors=True)
        finally:
            crew.end_all()
            pool.shutdown(cancel_futures=True)
    print()
    print(page.table(found))
    for failure in crew.failures:
        print(f"failed: {failure}")
    missed = [row for row in found if row.missed()]
    passed = len([row for row in found if not row.not_run]) - len(missed)
    print(f"{passed} of {len(wishes)} reach their targets, {len(missed)} do not, {len(crew.failures)} failed to run")
    sys.exit(1 if crew.failures or (options.strict and missed) else 0)


__all__ = ["DOCUMENT", "POSTGRES", "SQLITE", "main"]

if __name__ == "__main__":
    main()

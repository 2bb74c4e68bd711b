"""`make bench`: Penstock beside its peers, one after the other, and docs/benchmarks.md from what came out.

Nothing else should run on the machine meanwhile. A floor that is missed is shown, and is no error of the run; a program
that fails is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import environment, kept, report
from benchmarks.contenders import CONTENDERS, POSTGRES, SQLITE, Places, own_command
from benchmarks.results import Line, Results

#: What is measured once, by a program of that name: long, and not a matter of rounds.
ONCE = (
    *("pickup", "claims", "gates", "memory", "reports", "big_report", "report_load", "partitions"),
    *("harvest", "harvest_consolidation", "rules", "queries", "commands", "desk", "prune"),
)
PARTS = ("rates", "waits", *ONCE)
DOCUMENT = environment.ROOT / "docs" / "benchmarks.md"
LONGEST_SECONDS = 1_800.0
QUICK = {
    "waits": ("--items", "5000"),
    "pickup": ("--items", "20"),
    "claims": ("--items", "50000", "--small", "5000", "--closed", "20000", "--times", "20"),
    "gates": ("--closed", "20000", "--times", "10"),
    "memory": ("--items", "40000"),
    "reports": ("--items", "20"),
    "big_report": ("--items", "5"),
    "report_load": ("--items", "5"),
    "partitions": ("--items", "20"),
    "harvest": ("--stones", "5000"),
    "harvest_consolidation": ("--rows", "5000"),
    "rules": ("--products", "200", "--metered", "160"),
    "queries": ("--offers", "5000", "--full", "2", "--big-page", "2000"),
    "commands": ("--times", "2"),
    "desk": ("--items", "50000", "--seconds", "3"),
    "prune": ("--items", "20000"),
}


class Failed(Exception):
    """A program did not come to its end."""


@dataclass(slots=True)
class Bench:
    """One run of the suite."""

    console: Console
    places: Places
    quick: bool
    results: Results

    def rates(self, turn: str) -> None:
        for contender in CONTENDERS:
            name = f"{contender.name} on {contender.database}"
            line = self._measure(f"{turn} {name}", contender.command(self.places, quick=self.quick))
            if line is not None:
                self.results.rates.setdefault(contender, []).append(line)

    def waits(self, turn: str) -> None:
        for database in (POSTGRES, SQLITE):
            line = self._own("waits", database, turn)
            if line is not None:
                self.results.waits.setdefault(database, []).append(line)

    def once(self, part: str) -> None:
        """A part, on both databases."""
        for database in (POSTGRES, SQLITE):
            line = self._own(part, database, "once")
            if line is not None:
                getattr(self.results, part)[database] = line

    def _own(self, part: str, database: str, turn: str) -> Line | None:
        arguments = QUICK[part] if self.quick else ()
        return self._measure(f"{turn} {part} on {database}", own_command(part, self.places, database, *arguments))

    def _measure(self, what: str, command: Sequence[str]) -> Line | None:
        started = time.monotonic()
        try:
            line = _run(command)
        except Failed as error:
            self.console.print(f"{what}: [red]failed[/]\n{error}", highlight=False)
            self.results.failures.append(f"{what}: {str(error).splitlines()[-1] if str(error) else 'no message'}")
            return None
        shown = f"{line['per_second']:,.0f}/s" if "per_second" in line else "measured"
        self.console.print(f"{what}: {shown} ({time.monotonic() - started:.0f} s in all)", highlight=False)
        return line


def _run(command: Sequence[str]) -> Line:
    """The JSON line that a program prints last. The program and all it started are gone afterwards."""
    pipe: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(
        command, cwd=environment.ROOT, stdin=subprocess.DEVNULL, text=True, start_new_session=True, **pipe
    ) as process:
        try:
            out, err = process.communicate(timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"not finished after {LONGEST_SECONDS:.0f} seconds") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0 or not out.strip():
        raise Failed("\n".join(err.strip().splitlines()[-8:]) or f"exit code {process.returncode}")
    line: Line = json.loads(out.strip().splitlines()[-1])
    return line


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Measure Penstock beside its peers.")
    parser.add_argument("--rounds", type=int, help="rounds of what is repeated (default 3, with --quick 1)")
    parser.add_argument("--quick", action="store_true", help="small counts: shows that all works, no more")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part; may be repeated")
    parser.add_argument(
        "--output",
        type=Path,
        help="where to write (default, unless --quick: docs/benchmarks.md); the figures lie beside it",
    )
    options = parser.parse_args()
    if options.output is None and not options.quick:
        options.output = DOCUMENT
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.only = options.only or list(PARTS)
    return options


def _when(part: str, options: argparse.Namespace) -> str:
    """When a part was measured, and how."""
    rounds = "once" if part in ONCE else "one round" if options.rounds == 1 else f"{options.rounds} rounds"
    return f"{datetime.now(UTC).date()}, {rounds}" + (", with small counts that say little" if options.quick else "")


def main() -> None:
    """Run all that was asked for."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the server is stopped
    console = Console(width=None if sys.stdout.isatty() else 120)
    if {"rates", "pickup", "queries", "report_load"} & {*options.only} and not environment.peers_are_installed():
        console.print("installing the peers into .venv-bench")
        environment.install_peers()
    if environment.filesystem() in environment.UNSYNCED:
        console.print("[red]The temporary directory is in memory: nothing waits for a disk. Set TMPDIR.[/]")
    console.print("starting PostgreSQL")
    with environment.postgres() as url, tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        bench = Bench(console, Places(url, Path(folder)), options.quick, Results())
        for number in range(1, options.rounds + 1):
            for part in (bench.rates, bench.waits):
                if part.__name__ in options.only:
                    part(f"round {number}/{options.rounds}")
        for name in ONCE:
            if name in options.only:
                bench.once(name)
        facts = environment.facts(url)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        parts = {part: _when(part, options) for part in options.only}
        results, measured = kept.merged(options.output.with_suffix(".json"), bench.results, parts)
        options.output.write_text(report.markdown(results, facts, measured))
        console.print(f"written to {options.output.name}")
    console.print()
    report.show(console, bench.results)
    sys.exit(1 if bench.results.failures else 0)


if __name__ == "__main__":
    main()

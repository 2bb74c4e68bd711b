"""The processor time of help and of every reading, from the start of its process to its end, beside `python -c pass`.

They are asked in the folder of a demonstration that has run to its end: of units, runs and partitions that its
ledger has. Each is the least of several runs, system time included: how busy the machine is otherwise says little then.
What Python compiles is kept from a run that is not counted.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import noop
from tests.support import readings

BARE = "python -c pass"
HELP = ("--help", "reports --help", "units --help")
UNIT_OF = "report"


class Folder:
    """Where commands are typed."""

    def __init__(self, place: Path, url: str) -> None:
        self.place = place
        self._environment = {**os.environ, "PENSTOCK_LEDGER": url}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(self, *arguments: str) -> None:
        """Run Python. Raises SystemExit where it fails."""
        self.processor_ms([sys.executable, *arguments], {0})

    def ask(self, given: list[str]) -> Any:
        """The answer to a reading, read from JSON; None where it is refused."""
        command = [sys.executable, "-m", "penstock", *given]
        done = subprocess.run(
            command, cwd=self.place, env=self._environment, capture_output=True, text=True, check=False
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def processor_ms(self, command: list[str], fine: set[int]) -> float:
        """Milliseconds of one run. Raises SystemExit where it ends with another exit code than these."""
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            command, cwd=self.place, env=self._environment, stdin=quiet, stdout=quiet, stderr=quiet
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in fine:
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
        return (used.ru_utime + used.ru_stime) * 1000


def measure(folder: Folder, times: int) -> dict[str, float]:
    """The least of each command, by its name."""
    units = [one for one in readings.units_of(folder.ask) if one.startswith(f"{UNIT_OF}:")]
    asked = [given.split() for given in HELP] + list(readings.asked(folder.ask, units))
    commands = {f"penstock {readings.name_of(given)}": ["-m", "penstock", *given] for given in asked}
    found = {}
    for name, command in {BARE: ["-c", "pass"], **commands}.items():
        # The doctor fails where it finds anything; what is not there is refused.
        fine = {0} if readings.NOTHING not in command and "doctor" not in command else {0, 1, 2}
        runs = [folder.processor_ms([sys.executable, *command], fine) for _ in range(times + 1)]
        found[name] = min(runs[1:])
    return found


def main() -> None:
    """Run each and print the result."""
    parser = noop.arguments("commands", 1)
    parser.add_argument("--times", type=int, default=5, help="runs of each (default %(default)s)")
    options = parser.parse_args()
    with noop.scratch(options.url, "commands") as url, tempfile.TemporaryDirectory() as place:
        folder = Folder(Path(place), url)
        folder.run("-m", "penstock", "demo", "--once", "--dir", place, "--ledger", url)
        with contextlib.chdir(place):  # the lifecycles that its configuration names have readings too
            found = measure(folder, options.times)
    line = {
        "database": noop.database_of(options.url),
        "times": options.times,
        "milliseconds": {name: round(milliseconds, 1) for name, milliseconds in found.items()},
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

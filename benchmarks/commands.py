"""The processor time of help and of every reading, from the start of its process to its end, beside `python -c pass`.

Each is the least of several runs, system time included: how busy the machine is otherwise says little then. What Python
compiles is kept from a run that is not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import noop
from penstock.app.kernel import lifecycle as kernel
from penstock.app.shipped import SHIPPED, shipped
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.operations.fields import fields_of
from penstock.worker.schedule_unit import Schedule

BARE = "python -c pass"
HELP = ("--help", "reports --help", "units --help")
UNIT = "schedule:nightly"


def readings() -> list[str]:
    """Every reading of the kernel and of the shipped lifecycles that needs nothing, or a unit alone."""
    found = []
    for lifecycle in (kernel, *map(shipped, SHIPPED)):
        for one in lifecycle.readings:
            needed = [field.name for field in fields_of(one.parameters) if field.required]
            words = [*([] if lifecycle is kernel else [lifecycle.name]), *one.path]
            if needed in ([], ["unit"]):
                found.append(" ".join([*words, *([UNIT] if needed else [])]))
    return found


def processor_ms(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Milliseconds of one run. Raises SystemExit where it fails."""
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return (used.ru_utime + used.ru_stime) * 1000


def measure(folder: Path, url: str, times: int) -> dict[str, float]:
    """The least of each command, on a ledger with one unit."""
    (folder / "penstock.toml").write_text("".join(f"[{name}]\n" for name in SHIPPED))
    environment = {**os.environ, "PENSTOCK_LEDGER": url}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    python = [sys.executable]
    processor_ms([*python, "-m", "penstock", "db", "upgrade"], folder, environment)
    with Ledger.open(url, kernel.machines) as ledger:
        nightly = Schedule(name="nightly", job="prune", every="1d", settings_version="1")
        ledger.birth([nightly], actor=Actor.SCHEDULER, who="scheduler:benchmark")
    commands = {f"penstock {given}": [*python, "-m", "penstock", *given.split()] for given in (*HELP, *readings())}
    found = {}
    for name, command in {BARE: [*python, "-c", "pass"], **commands}.items():
        processor_ms(command, folder, environment)
        found[name] = min(processor_ms(command, folder, environment) for _ in range(times))
    return found


def main() -> None:
    """Run each and print the result."""
    parser = noop.arguments("commands", 1)
    parser.add_argument("--times", type=int, default=5, help="runs of each (default %(default)s)")
    options = parser.parse_args()
    with noop.scratch(options.url, "commands") as url, tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), url, options.times)
    line = {
        "database": noop.database_of(options.url),
        "times": options.times,
        "milliseconds": {name: round(milliseconds, 1) for name, milliseconds in found.items()},
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

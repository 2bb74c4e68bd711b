"""`python -m chaos.row SCENARIO DATABASE …`: one scenario in a process of its own, its rows as JSON lines."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from pathlib import Path

from chaos.parts import Case
from chaos.scenarios import SCENARIOS


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.row")
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("database")
    parser.add_argument("folder", type=Path)
    parser.add_argument("made", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    case = Case(
        options.scenario,
        options.database,
        options.quick,
        options.seed,
        options.folder.resolve(),
        options.made.resolve(),
    )
    for row in SCENARIOS[options.scenario].run(case):
        sys.stdout.write(json.dumps(row.plain()) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

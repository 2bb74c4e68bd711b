"""What a run is made of: what was asked for, the faults that were made, and the processes they were made to."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SQLITE, POSTGRES = "SQLite", "PostgreSQL"
STOP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Case:
    """What a scenario is asked for: on which database, how large, from which seed, in which folder."""

    scenario: str
    database: str
    quick: bool
    seed: int
    folder: Path
    made: Path

    def pick(self, full: Any, quick: Any) -> Any:
        return quick if self.quick else full

    @property
    def sqlite(self) -> bool:
        return self.database == SQLITE


@dataclass(slots=True)
class Fault:
    """When something was done, by both clocks, and which parcels were held by whom it was done to."""

    wall: float
    mono: float
    units: set[str] = field(default_factory=set)


class Worker:
    """One process; its log is a file of JSON lines."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self.launched = time.time()
        self.replaced = False
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def said(self, event: str) -> list[dict[str, Any]]:
        """The log lines of that event."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if f'"{event}"' in line]
        found = []
        for line in lines:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if line.get("event") == event]

    def end(self) -> None:
        if self.alive:
            self.process.kill()
            self.process.wait(STOP_SECONDS)

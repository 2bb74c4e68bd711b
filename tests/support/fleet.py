"""Real worker processes over one ledger: started, killed, stopped, and asked what they said."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from penstock.app.app import App
from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor, Machine
from tests.support.crash_app import FOLDER, JOB, SETTINGS, Effects, Job, Kind, S, lifecycle

ROOT = Path(__file__).resolve().parent.parent.parent
COMMAND = (sys.executable, "-c", "from penstock.cli.main import main; main()")
LIFECYCLE = "tests.support.crash_app:lifecycle"
PATIENCE = 60.0
"""Seconds that anything may take before a test calls it stuck."""


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """Wait for a condition and return what it gave; fails with `what` when patience ends."""
    deadline = time.monotonic() + patience
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {patience:g} s in vain: {what}"
        time.sleep(0.05)


def _legal(machine: Machine) -> set[tuple[str, str | None, str]]:
    """Every change that a history may show."""
    return {(machine.name, None, state) for state in machine.births} | {(machine.name, *pair) for pair in machine.pairs}


class Member:
    """One worker process; its log is a file of JSON lines."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path, **options: Any) -> None:
        self.log = log
        with log.open("wb") as out:
            quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, "cwd": ROOT}
            self.process = subprocess.Popen(command, env=environment, **quiet | options)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone; a stopped process too."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def wait(self, patience: float = PATIENCE) -> int:
        """The exit code."""
        return self.process.wait(patience)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def said(self, event: str) -> list[dict[str, Any]]:
        """The log lines of that event."""
        lines = [line for line in self.text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [said for said in map(json.loads, lines) if said.get("event") == event]


class Fleet:
    """Workers of `crash_app` over one ledger. Leaving it ends every process it started."""

    def __init__(self, url: str, folder: Path, **settings: Any) -> None:
        self.url = url
        self.folder = folder
        self.members: list[Member] = []
        self.settings = {"lease_ms": 2_000, "renew_seconds": 0.5, "watch_seconds": 0.2, "idle_seconds": 0.2} | settings
        folder.mkdir(parents=True, exist_ok=True)
        self.effects = Effects(folder)
        self._ledger: Ledger | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if member.alive:
                member.kill()
        if self._ledger is not None:
            self._ledger.close()

    @property
    def ledger(self) -> Ledger:
        """The test's own view of the ledger, created when it is first asked for."""
        if self._ledger is None:
            app = App(lifecycle)
            self._ledger = Ledger.open(self.url, app.machines, create=True, data_tables=app.data.tables)
        return self._ledger

    def upgrade(self) -> None:
        """Make the ledger as the command line does, for `plain` workers."""
        subprocess.run([*COMMAND, "db", "upgrade", *self._plain(self.url)], cwd=ROOT, check=True)

    def _plain(self, url: str) -> list[str]:
        """Options of a command: a configuration that names the lifecycle, and the ledger."""
        file = self.folder / "plain.toml"
        file.write_text(f'lifecycles = ["{LIFECYCLE}"]\n')
        return ["--config", str(file), "--ledger", url]

    def create(self) -> None:
        """Make the ledger, before any worker looks for it."""
        assert self.ledger

    def start(
        self,
        count: int = 1,
        url: str | None = None,
        *,
        plain: bool = False,
        config: Path | None = None,
        **options: Any,
    ) -> list[Member]:
        """Start workers; `plain` ones are those of the command line, with the settings of production or of a file."""
        command = [sys.executable, "-m", "tests.support.crash_worker", url or self.url]
        if plain and config is not None:
            command = [*COMMAND, "worker", "--config", str(config)]
        elif plain:
            command = [*COMMAND, "worker", *self._plain(url or self.url)]
        environment = os.environ | {FOLDER: str(self.folder), SETTINGS: json.dumps(self.settings)}
        started = []
        for _ in range(count):
            log = self.folder / f"worker-{len(self.members)}.log"
            member = Member(command, environment, log, **options)
            self.members.append(member)
            started.append(member)
        return started

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members if member.alive]

    def born(self, *names: str, **columns: Any) -> None:
        now = self.ledger.clock.now()
        self.ledger.birth((Job(name=n, due_at=now, **columns) for n in names), actor=Actor.API, who="test")

    def value(self, sql: str, **parameters: Any) -> Any:
        return self.ledger.read(lambda c: c.rows(sql, **parameters)[0][0])

    def job(self, name: str) -> Job:
        (found,) = self.ledger.get_many(JOB, [name])
        assert isinstance(found, Job)
        return found

    def unfinished(self) -> int:
        return int(self.value("SELECT count(*) FROM job WHERE status NOT IN ('done', 'failed') AND parked_at IS NULL"))

    def claimed(self) -> int:
        return int(self.value("SELECT count(*) FROM job WHERE claimed_by IS NOT NULL"))

    def history(self, name: str) -> list[tuple[Any, ...]]:
        sql = "SELECT from_status, to_status, actor FROM transition_log WHERE unit_id = :name ORDER BY seq"
        return [tuple(r) for r in self.ledger.read(lambda c: c.rows(sql, name=name))]

    def tells_of_parked(self, name: str) -> None:
        """Every event there is: one for the unit that was parked, and then one for its alert; every alert there is."""
        events = "SELECT event_type, severity, unit_id FROM event_log ORDER BY event_type DESC"
        told = until(lambda: self._rows(events)[1:] and self._rows(events), "its alert fires")
        assert told == [("unit.parked", "critical", name), ("alert.firing", None, "parked_units/job")], told
        alerts = self._rows("SELECT unit_id, severity, status, example FROM alert")
        assert alerts == [("parked_units/job", "critical", "firing", f"job:{name}")], alerts

    def _rows(self, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.ledger.read(lambda c: c.rows(sql))]

    def finish(self, patience: float = PATIENCE) -> None:
        """Wait until every job has ended."""

        def over() -> bool:
            assert self.living, "every worker has gone: " + self.members[-1].text()[-2_000:]
            return self.unfinished() == 0

        until(over, "units reach their end", patience)

    def stop(self, patience: float = PATIENCE) -> None:
        """SIGTERM to all; each must go in peace."""
        going = self.living
        for member in going:
            # Before that it has no handler yet, and would simply die.
            until(functools.partial(member.said, "worker.started"), "the worker has started")
            member.signal(signal.SIGTERM)
        for member in going:
            assert member.wait(patience) == 0, member.text()

    def audit(self, names: Sequence[str], *, twice: bool = False) -> None:
        """Nothing lost, nothing done twice, every history legal and whole, nothing claimed, nothing odd."""
        ended = self._rows(f"SELECT machine, unit_id FROM transition_log WHERE to_status = '{S.DONE}'")
        assert sorted(ended) == [("job", name) for name in sorted(names)], "each unit ended once"
        pairs = set(self._rows("SELECT DISTINCT machine, from_status, to_status FROM transition_log"))
        assert pairs <= {change for machine in self.ledger.machines.values() for change in _legal(machine)}
        assert self.effects.made() >= set(names)
        if not twice:
            assert self.effects.twice() == set()
        assert self.claimed() == 0
        assert [f for f in examine(self.ledger.database, self.ledger.machines) if f.severity == "error"] == []


__all__ = ["PATIENCE", "ROOT", "Fleet", "Kind", "Member", "S", "until"]

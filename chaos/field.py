"""One run of a scenario: a ledger, a provider, supervised workers, what was done to them, and what became of it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from urllib.request import Request, urlopen

from chaos import parcels
from chaos.books import AWAY, Books
from chaos.parts import ROOT, STOP_SECONDS, Case, Fault, Worker
from chaos.rows import Row
from chaos.server import Server
from penstock.app.app import App
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor

DATABASE = "chaos"
SILENT = "no answer"
_POLL = 0.05
_START_SECONDS = 120.0
_COMMAND_SECONDS = 60.0
Span = tuple[int, int]


class Field:
    """Everything of one run, below one folder; leaving it ends every process and leaves the files to the caller."""

    def __init__(
        self,
        case: Case,
        *,
        lease: int,
        concurrency: int | None = None,
        stop_seconds: float = 8.0,
        command: str = "worker",
        config: str = "",
        environment: Mapping[str, str] | None = None,
        server: Server | None = None,
        file: Path | None = None,
        name: str = "field",
    ) -> None:
        self.case = case
        self.lease = lease
        self.folder = case.folder / name
        self.folder.mkdir(parents=True)
        self.workers: list[Worker] = []
        self.faults: list[Fault] = []
        self.born: set[str] = set()
        self.guilty: set[str] = set()
        self.supervised = True
        self.dice = random.Random(case.seed)
        self.file = file or self.folder / "penstock.db"
        self.server = server
        self.url = ""
        self.config_file = self.folder / "penstock.toml"
        self.notes = self.folder / "notes"
        self.provider_log = self.folder / "provider.log"
        self._command = command
        self._seconds = time.monotonic()
        self._helpers: list[subprocess.Popen[Any]] = []
        self._environment = {**os.environ, parcels.NOTES: str(self.notes), **(environment or {})}
        self._settings = (concurrency, stop_seconds, config)
        self.books = Books(self.file)

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        port_file = self.folder / "provider.port"
        arguments = [str(self.provider_log), str(port_file), str(self.case.seed)]
        self.helper("chaos.provider", *arguments)
        port = self.until(lambda: port_file.exists() and port_file.read_text(), 60, "the provider starts")
        self._environment[parcels.PROVIDER] = f"http://127.0.0.1:{port}"
        if self.case.sqlite:
            self.url = f"sqlite:///{self.file}"
        else:
            if self.server is None:
                self.server = Server(self.case.made, self.folder / "server")
                self.server.create()
            if not self.server.alive:
                self.server.start()
            self.server.make_database(DATABASE)
            self.url = self.server.url(DATABASE)
            self.books = Books(self.server.admin(DATABASE))
        self.configure(self.url)
        self.must("db", "upgrade")

    def configure(self, url: str) -> None:
        """Write the workers' configuration; those that run go on with theirs."""
        concurrency, stop_seconds, more = self._settings
        lines = [
            'lifecycles = ["chaos.parcels:lifecycle"]',
            f'[ledger]\nurl = "{url}"',
            f'[worker]\nlease = "{self.lease}s"\nrenew = "{max(1, self.lease // 3)}s"\nstop_seconds = {stop_seconds}',
            *([f"concurrency = {concurrency}"] if concurrency else []),
            '[log]\nformat = "json"',
            more,
        ]
        self.config_file.write_text("\n".join(lines) + "\n")

    def follow(self, server: Server) -> None:
        """From now on the ledger is on another server, as far as the harness is concerned."""
        self.books.close()
        self.books = Books(server.admin(DATABASE))

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        for helper in self._helpers:
            if helper.poll() is None:
                helper.kill()
                helper.wait(STOP_SECONDS)
        self.books.close()
        if self.server is not None:
            self.server.stop()

    # What stands around the workers

    def helper(self, module: str, *arguments: str, **options: Any) -> subprocess.Popen[Any]:
        """A process of the harness's own, which goes when the run is over."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL} | options
        process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=ROOT, **streams)
        self._helpers.append(process)
        return process

    def mode(self, **shares: Any) -> None:
        """Tell the provider how to behave."""
        address = self._environment[parcels.PROVIDER] + "/mode"
        with urlopen(Request(address, json.dumps(shares).encode()), timeout=10):
            pass

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of Penstock's, as a person would type it."""
        command = [sys.executable, "-m", "chaos.launch", *words, "--config", str(self.config_file)]
        try:
            return subprocess.run(
                command,
                env=self._environment,
                cwd=ROOT,
                check=False,
                capture_output=True,
                text=True,
                timeout=_COMMAND_SECONDS,
            )
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 124, "", f"no answer within {_COMMAND_SECONDS:.0f} s")

    def must(self, *words: str) -> None:
        done = self.command(*words)
        if done.returncode != 0:
            raise RuntimeError(f"penstock {' '.join(words)}: {done.stderr.strip()[-500:]}")

    def birth(
        self,
        count: int,
        *,
        before: Span = (0, 0),
        answer: Span = (0, 0),
        poison: str | None = None,
        off: float = 0.0,
    ) -> None:
        """Make parcels that are due now; with poison, one in their middle is poisonous.

        `off` is how far the workers' clock is from ours, where it is theirs that counts.
        """
        app = App(parcels.lifecycle)
        url = self.url if self.server is None else self.server.admin(DATABASE)
        with Ledger.open(url, app.machines) as ledger:
            now, offset = ledger.clock.now() + timedelta(seconds=off), len(self.born)
            made = [
                parcels.Parcel(
                    number=f"{offset + n:06}",
                    before_ms=self.dice.randint(*before),
                    answer_ms=self.dice.randint(*answer),
                    poison=poison if n == count // 2 else None,
                    due_at=now,
                )
                for n in range(count)
            ]
            ledger.birth(made, actor=Actor.API, who="chaos")
        self.born |= {parcel.number for parcel in made}
        self.guilty |= {parcel.number for parcel in made if parcel.poison}

    # Workers and their supervisor

    def start(self, count: int = 1, environment: Mapping[str, str] | None = None) -> list[Worker]:
        """Launch workers, without waiting for them."""
        command = [sys.executable, "-m", "chaos.launch", self._command, "--config", str(self.config_file)]
        started = []
        for _ in range(count):
            log = self.folder / f"worker-{len(self.workers):03}.log"
            worker = Worker(command, self._environment | dict(environment or {}), log)
            self.workers.append(worker)
            started.append(worker)
        return started

    def start_and_wait(self, count: int) -> list[Worker]:
        started = self.start(count)
        self.until(lambda: all(w.said("worker.started") for w in started), _START_SECONDS, "the workers start")
        return started

    @property
    def living(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.alive]

    def supervise(self) -> list[Worker]:
        """Start another worker for each that has gone, at once; returns those that have."""
        if not self.supervised:
            return []
        gone = [worker for worker in self.workers if not worker.replaced and not worker.alive]
        for worker in gone:
            worker.replaced = True
            self.start()
        return gone

    def strike(self, workers: Iterable[Worker], number: signal.Signals) -> Fault:
        """Send a signal, and note what was held when it came."""
        struck = list(workers)
        pids = [worker.pid for worker in struck]
        held = self.held_by(pids)
        fault = Fault(time.time(), time.monotonic(), held)
        for worker in struck:
            worker.process.send_signal(number)
        if number is signal.SIGKILL:
            for worker in struck:
                worker.process.wait(STOP_SECONDS)
            fault.units = self.held_by(pids)  # exactly: nothing of it moves until the lease is over
        self.faults.append(fault)
        return fault

    def held_by(self, pids: Iterable[int]) -> set[str]:
        try:
            return self.books.held_by(pids)
        except AWAY:
            return set()

    # Waiting and measuring

    def until(self, condition: Callable[[], Any], patience: float, what: str) -> Any:
        """What the condition gave, once it gave something; raises TimeoutError."""
        found = self.wait(condition, patience)
        if not found:
            raise TimeoutError(f"waited {patience:g} s in vain: {what}")
        return found

    def wait(self, condition: Callable[[], Any], patience: float) -> Any:
        """What the condition gave, or None when patience ended; the supervisor goes on meanwhile."""
        deadline = time.monotonic() + patience
        while True:
            self.supervise()
            try:
                found = condition()
            except AWAY:
                found = None
            if found or time.monotonic() >= deadline:
                return found or None
            time.sleep(_POLL)

    def pause(self, seconds: float) -> None:
        """Let time pass; the supervisor goes on."""
        self.wait(lambda: False, seconds)

    def drain(self, patience: float) -> float | None:
        """Seconds until nothing is left to do but what is parked; None when patience ended first."""
        began = time.monotonic()
        return time.monotonic() - began if self.wait(lambda: self.books.open() == 0, patience) else None

    def provider_lines(self) -> list[dict[str, Any]]:
        if not self.provider_log.exists():
            return []
        return [json.loads(line) for line in self.provider_log.read_text().splitlines() if line.endswith("}")]

    def since_faults(self) -> list[float]:
        """For each parcel that was held by somebody who was struck: seconds from the last such fault to its end."""
        struck: dict[str, float] = {}
        for fault in self.faults:
            struck |= dict.fromkeys(fault.units, fault.wall)
        ends = self.books.ends()
        return [ends[unit] - wall for unit, wall in struck.items() if unit in ends and ends[unit] >= wall]

    def doctor(self) -> str:
        done = self.command("doctor", "--json")
        try:
            findings = json.loads(done.stdout)["findings"]
        except (ValueError, KeyError):
            return SILENT
        errors = [finding for finding in findings if finding["severity"] == "error"]
        if not errors:
            return "clean" if not findings else f"clean, {len(findings)} warnings"
        return f"{len(errors)} findings: {errors[0]['check']}"

    def row(self, workers: int, faults: str, samples: Sequence[float] = (), **more: Any) -> Row:
        """The figures of this run. The workers are asked to stop; those that do not are counted against it."""
        case = self.case
        row = Row(scenario=case.scenario, database=case.database, units=len(self.born), workers=workers)
        row.lease, row.faults, row.seed, row.quick = self.lease, faults, case.seed, case.quick
        row.doctor = self.doctor()
        self.supervised = False
        deaf = self.stop()
        self.count(row)
        row.measure(samples)
        for name, value in more.items():
            setattr(row, name, value)
        if row.doctor == SILENT:
            row.misses = [*row.misses, "the doctor did not answer"]
        if deaf:
            row.misses = [*row.misses, f"{deaf} of the workers ignored SIGTERM"]
        row.seconds = round(time.monotonic() - self._seconds, 1)
        return row

    def count(self, row: Row) -> None:
        """Compare the provider's log with the ledger."""
        effects: dict[str, int] = defaultdict(int)
        for line in self.provider_lines():
            if line["what"] == "effect":
                effects[line["key"]] += 1
        statuses, parked = self.books.statuses(), self.books.parked()
        sent = {unit for unit, status in statuses.items() if status == "SENT"}
        failed = {unit for unit, status in statuses.items() if status == "FAILED"}
        row.lost = len(self.born - set(statuses)) + len([unit for unit in sent if not effects[unit]])
        row.twice = len([key for key, count in effects.items() if count > 1])
        row.stuck = self.books.open()
        row.parked_wrongly = len((set(parked) | failed) - self.guilty)
        row.broken = len(self.books.broken_histories(self.born))

    def stop(self) -> int:
        """SIGTERM to all; how many did not go, and were killed."""
        going = self.living
        for worker in going:
            worker.process.send_signal(signal.SIGCONT)
            worker.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and any(worker.alive for worker in going):
            time.sleep(_POLL)
        deaf = [worker for worker in going if worker.alive]
        for worker in deaf:
            worker.end()
        return len(deaf)

    def logged(self, event: str) -> list[dict[str, Any]]:
        return [line for worker in self.workers for line in worker.said(event)]

"""What is around: clocks that jump, and more workers than a stock server has connections for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from chaos import launch
from chaos.field import Field
from chaos.parts import Case, Worker
from chaos.rows import Row
from chaos.server import Server

DAY = 86_400.0
_JUMPS = {"a day ahead": DAY, "back to now": 0.0, "a day behind": -DAY, "to now again": 0.0}
_TICK = '[schedules.tick]\njob = "tick"\nevery = "1s"'


def clocks(case: Case) -> Iterator[Row]:
    """Move the workers' clocks by a day, ahead and back; a schedule ticks every second, and first calls fail.

    On PostgreSQL the server's clock decides, and a worker's is only wrong. On SQLite the machine's clock is the
    ledger's: whatever is due is done before it is set back, since what was planned a day ahead waits for its day.
    """
    units, lease, patience, at_once = case.pick((2_000, 10, 60, 20), (160, 3, 12, 4))
    dial = case.folder / "clock"
    launch.set_clock(dial, 0.0)
    environment = {launch.CLOCK: str(dial)}
    spans = {"before": (100, 500), "answer": (0, 300)}
    with Field(case, lease=lease, concurrency=at_once, command="up", config=_TICK, environment=environment) as field:
        field.mode(first_fails=True)
        field.start_and_wait(2)
        samples: list[float] = []
        misses = []
        now = 0.0
        for name, then in _JUMPS.items():
            field.until(lambda: _ticks(field), 30, "the schedule ticks")
            field.birth(units // 8, off=now if case.sqlite else 0.0, **spans)  # type: ignore[arg-type]
            if case.sqlite and field.drain(patience) is None:
                misses.append(f"units still waited when the clocks were set {name}")
            jumped, now = time.monotonic(), then
            launch.set_clock(dial, now)
            field.birth(units // 8, off=now if case.sqlite else 0.0, **spans)  # type: ignore[arg-type]
            tick = field.wait(lambda jumped=jumped: [at for at in _ticks(field) if at > jumped], patience)  # type: ignore[misc]
            if tick:
                samples.append(tick[0] - jumped)
            else:
                misses.append(f"no tick for {patience} s after the clocks were set {name}")
        field.drain(patience)
        row = field.row(2, f"{len(_JUMPS)} jumps of a day", samples)
        row.misses += misses
        row.stuck += bool(misses)  # the schedule
        yield row


def _ticks(field: Field) -> list[float]:
    return [line["at"] for line in field.provider_lines() if line["what"] == "tick"]


def crowd(case: Case) -> Iterator[Row]:
    """Start fifty workers at once on a server with its stock hundred connections, and let all of them work."""
    workers, units, lease = case.pick((50, 5_000, 30), (8, 200, 5))
    settings = case.pick([], ["max_connections=19"])
    server = Server(case.made, case.folder / "server", settings)
    server.create()
    with Field(case, lease=lease, concurrency=20, server=server) as field:
        field.birth(units, before=(100, 2_000), answer=(100, 1_000))
        started = field.start(workers)
        field.wait(lambda: all(w.said("worker.started") for w in started), case.pick(180, 30))
        field.birth(units, before=(100, 2_000), answer=(100, 1_000))
        field.pause(case.pick(10, 2))
        asked = time.monotonic()
        status = field.command("status")
        answered = time.monotonic() - asked
        field.drain(case.pick(240, 20))
        waits = [_seconds(worker.said("worker.started")[0]) - worker.launched for worker in _begun(started)]
        idle = len(started) - len(_begun(started))
        lost = len(field.logged("worker.lease_lost"))
        row = field.row(workers, f"{workers} workers, {server_connections(server)} connections", waits)
        row.note = f"status answered in {answered:.1f} s" if status.returncode == 0 else ""
        row.misses += [f"{idle} workers never started"] if idle else []
        row.misses += [f"{lost} leases lost"] if lost else []
        row.misses += ["status did not answer"] if status.returncode else []
        yield row


def _begun(workers: list[Worker]) -> list[Worker]:
    return [worker for worker in workers if worker.said("worker.started")]


def server_connections(server: Server) -> str:
    given = [setting.partition("=")[2] for setting in server.settings if setting.startswith("max_connections")]
    return given[0] if given else "100"


def _seconds(line: dict[str, str]) -> float:
    return datetime.fromisoformat(line["timestamp"]).timestamp()

"""The whole program on virtual time: the same seed gives the same history, and no invoice arrives twice."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from penstock.connectors.http.client import Http
from penstock.connectors.http.in_process import InProcess
from penstock.examples import invoices
from penstock.examples.invoice_server import InvoiceServer
from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import Transient
from penstock.model.machine import Actor
from penstock.model.simulation import SimulationStalled, simulate
from penstock.simulators.server import in_thread
from penstock.worker.executor import InlineExecutor
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.fleet import ROOT

DAY = 86_400.0
REFUSED = 17
"""Every so many invoices one is negative, and the API refuses it."""
SETTINGS = WorkerSettings(
    lease_ms=int(DAY * 1000),
    renew_seconds=DAY / 4,
    watch_seconds=3_600,
    idle_seconds=None,
    place_seconds=None,
    unknown_seconds=1e12,
)


@dataclass(frozen=True)
class Told:
    digest: str
    rows: int
    states: dict[str, int]
    duplicates: int
    stored: int


def month(path: Path, seed: int, days: int = 30, each_day: int = 20) -> Told:
    """Invoices of three tenants, every day some, sent to an API that breaks nearly every third call."""
    clock, rng = VirtualClock(), Rng(seed)
    server = InvoiceServer(rng.child())
    with Ledger.open(f"sqlite:///{path}", [invoices.machine], clock=clock, rng=rng.child(), create=True) as ledger:

        async def main() -> None:
            http = Http("http://invoices.test", clock, transport=InProcess(server))
            flow = invoices.Invoices(invoices.InvoiceSettings(), http)
            worker = Worker(ledger, [flow], SETTINGS, executor=InlineExecutor(), rng=rng.child())
            running = asyncio.create_task(worker.run())
            for day in range(days):
                born = [
                    invoices.Invoice(
                        tenant=f"t{n % 3}",
                        number=f"{day}-{n}",
                        amount_minor=100 if n % REFUSED else -1,
                        due_at=clock.now(),
                        gate_id=f"accounting/t{n % 3}",
                    )
                    for n in range(each_day)
                ]
                ledger.birth(born, actor=Actor.API, who="simulation")
                await asyncio.sleep(DAY)
            worker.stop()
            await running

        simulate(clock, main)
        rows = ledger.read(
            lambda c: c.rows(
                "SELECT seq, machine, unit_id, from_status, to_status, actor, reason, version, at"
                " FROM transition_log ORDER BY seq"
            )
        )
        states = ledger.read(lambda c: c.rows("SELECT status, count(*) FROM invoice GROUP BY status"))
        assert examine(ledger.database, ledger.machines) == []
    digest = hashlib.sha256(repr([tuple(r) for r in rows]).encode()).hexdigest()
    return Told(digest, len(rows), {str(s): int(n) for s, n in states}, server.duplicates, len(server.stored))


def test_thirty_days_are_the_same_whenever_the_seed_is(tmp_path):
    first, second = month(tmp_path / "1.db", 7), month(tmp_path / "2.db", 7)
    assert first == second
    other = month(tmp_path / "3.db", 8)
    assert other.digest != first.digest
    for told in (first, other):
        assert told.duplicates == 0, "no invoice arrives twice"
        assert set(told.states) == {"SENT", "FAILED"}
        assert sum(told.states.values()) == 600
        assert told.states["SENT"] <= told.stored <= 600 - 60
        assert told.states["FAILED"] >= 60
        assert told.rows > 3 * 600, "some were retried"


def test_nothing_depends_on_the_order_of_a_set(tmp_path):
    """Python shuffles its sets anew for every process; two processes must tell the same story."""

    def told(hash_seed: str) -> str:
        path = str(tmp_path / f"{hash_seed}.db")
        script = f"from tests.worker.test_simulation import *; print(month(Path({path!r}), 7, days=4))"
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PENSTOCK_LOG": "error"}
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=ROOT, env=environment, check=True, capture_output=True, text=True
        )
        return done.stdout.splitlines()[-1]

    assert told("1") == told("2")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100))
def test_every_seed_gives_the_same_month_twice(tmp_path, seed):
    first, second = month(tmp_path / "1.db", seed), month(tmp_path / "2.db", seed)
    assert first == second
    assert first.duplicates == 0


def test_a_simulation_that_waits_for_what_never_happens_says_so():
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SimulationStalled):
        simulate(VirtualClock(), main)


class Slow:
    """Answers after a moment of real time."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.2)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"at last"})


def test_time_stands_still_while_an_answer_is_under_way():
    clock, asking = VirtualClock(), set[bool]()

    async def main() -> bytes:
        http = Http(address, clock)
        try:
            await asyncio.sleep(DAY)
            asking.add(True)
            answer = await http.call("GET", "/")
            assert clock.elapsed() == DAY
            asking.clear()
            await asyncio.sleep(DAY)
            return answer.content
        finally:
            await http.close()

    with in_thread(Slow()) as address:
        assert simulate(clock, main, busy=lambda: bool(asking)) == b"at last"
        assert clock.elapsed() == 2 * DAY
        with pytest.raises(
            Transient, match="nothing came for 30 s"
        ):  # nobody says that an answer is under way: its time is up
            simulate(VirtualClock(), main)


def test_a_pause_of_a_step_ends_while_an_answer_may_be_under_way():
    """What a step waits for by itself, such as others to join its call, is over after as long as it takes."""
    clock = VirtualClock()
    before = time.monotonic()
    simulate(clock, lambda: asyncio.sleep(0.2), busy=lambda: True)
    assert clock.elapsed() == pytest.approx(0.2)
    assert time.monotonic() - before >= 0.19


def test_virtual_time_passes_in_order_and_at_once():
    clock, order = VirtualClock(), []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        order.append((seconds, clock.elapsed()))

    async def main() -> None:
        await asyncio.gather(*(sleep(s) for s in (3 * DAY, 5, 400 * DAY, 0.001)))

    simulate(clock, main)
    assert order == [(0.001, 0.001), (5, 5), (3 * DAY, 3 * DAY), (400 * DAY, 400 * DAY)]

"""What the ledger says a worker holds, and what it holds, agree again after whatever set them apart."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from structlog.testing import capture_logs

from penstock.ledger.ledger import Ledger
from penstock.model.clock import SystemClock
from penstock.model.errors import Transient
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.worker.flow import Io
from penstock.worker.reconcile import Reconciliation
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.machines import INVOICE, InvoiceState, invoice
from tests.support.probe import Probe, sent, work


def test_a_difference_counts_when_it_is_seen_twice():
    found, a, b = Reconciliation(), object(), object()
    assert found.compare({("m", "1"): 7}, {("m", "2"): a}) == ({}, [])
    assert found.compare({("m", "1"): 7}, {("m", "2"): a}) == ({("m", "1"): 7}, [a])
    assert found.compare({("m", "1"): 8}, {("m", "2"): b}) == ({}, []), "another claim, and another holding"
    assert found.compare({("m", "1"): 8, ("m", "2"): 1}, {("m", "1"): a, ("m", "2"): b}) == ({}, [])


def test_a_claim_that_nobody_holds_is_given_back(world):
    """As after a failover: the new server has the claim, and the commit that ended it is lost."""
    (ref, other) = world.born(invoice("1"), invoice("2", due_at=None))
    calls: list[str] = []

    async def act(unit: Any, io: Io) -> Any:
        calls.append(unit.number)
        if unit.number == "1":
            # While this one is stepped, the ledger says that the worker holds the other too.
            world.sql(
                "UPDATE invoice SET claimed_by = :me, version = version + 1,"
                " due_at = (SELECT due_at FROM invoice WHERE unit_id = :mine) WHERE unit_id = :other",
                me=unit.claimed_by,
                mine=unit.unit_id,
                other=other.unit_id,
            )
            await asyncio.sleep(35)
        return sent(unit)

    work(world, Probe(act), seconds=60)
    assert calls == ["1", "2"]
    found = world.unit(other)
    assert (found.status, found.claimed_by) == (InvoiceState.SENT, None)
    assert world.unit(ref).status is InvoiceState.SENT


def test_a_step_whose_claim_the_ledger_does_not_know_is_ended(world):
    (ref,) = world.born(invoice("1"))
    other = world.worker("invoice")
    ended: list[str] = []

    async def act(unit: Any, io: Io) -> Any:
        world.sql("UPDATE invoice SET claimed_by = :other, version = version + 1", other=other.identity.id)
        try:
            await asyncio.sleep(3_000)
        except asyncio.CancelledError:
            ended.append(unit.number)
            raise
        return sent(unit)

    with capture_logs() as said:
        work(world, Probe(act), seconds=25)
    assert ended == ["1"]
    assert [line["units"] for line in said if line["event"] == "worker.unclaimed"] == [1]
    assert world.unit(ref).claimed_by == other.identity.id, "what another holds is left alone"


def test_a_worker_learns_the_ledgers_time_when_it_registers_and_when_it_renews(postgres_url):
    """A clock that is a day ahead: a retry must not be due tomorrow."""
    clock = Ahead(timedelta(days=1))
    with Ledger.open(postgres_url, [INVOICE], clock=clock, create=True) as ledger:
        ledger.birth([invoice("1", due_at=datetime.now(UTC))], actor=Actor.API, who="test")
        seen: list[datetime] = []
        acted = asyncio.Event()

        async def act(unit: Any, io: Io) -> Any:
            seen.append(io.now())
            acted.set()
            raise Transient("503")

        async def main() -> None:
            worker = Worker(ledger, [Probe(act)], WorkerSettings(place_seconds=None, renew_seconds=0.2))
            running = asyncio.create_task(worker.run())
            await acted.wait()
            clock.ahead = timedelta(days=-1)
            await asyncio.sleep(0.5)
            assert abs(worker.now() - datetime.now(UTC)) < timedelta(seconds=5)
            worker.stop()
            await running

        asyncio.run(main())
        due = ledger.get(Ref("invoice", "acme/1")).due_at  # type: ignore[attr-defined]
    now = datetime.now(UTC)
    assert abs(seen[0] - now) < timedelta(minutes=1)
    assert abs(due - now) < timedelta(minutes=1)


def test_a_comparison_that_waits_for_a_lock_holds_no_renewal_up(postgres_url):
    with Ledger.open(postgres_url, [INVOICE], create=True) as ledger:
        left = "SELECT EXTRACT(EPOCH FROM lease_until - clock_timestamp()) FROM worker"

        async def main() -> list[float]:
            settings = WorkerSettings(place_seconds=None, lease_ms=2_000, renew_seconds=0.3)
            worker = Worker(ledger, [Probe()], settings)
            running = asyncio.create_task(worker.run())
            await asyncio.sleep(1)
            seen: list[float] = []
            with psycopg.connect(postgres_url) as stranger:
                stranger.execute("LOCK TABLE invoice IN ACCESS EXCLUSIVE MODE")
                for _ in range(35):
                    await asyncio.sleep(0.1)
                    seen += [float(row[0]) for row in stranger.execute(left).fetchall()]
            await asyncio.sleep(1)  # what waited for the lock comes back
            worker.stop()
            await running
            return seen

        seen = asyncio.run(main())
    assert len(seen) == 35
    assert min(seen) > 0


class Ahead(SystemClock):
    """A machine whose clock is wrong."""

    def __init__(self, ahead: timedelta) -> None:
        super().__init__()
        self.ahead = ahead

    def now(self) -> datetime:
        return super().now() + self.ahead

"""A worker on real time and real threads: slow reads and other people's locks hold up nothing but themselves."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.ledger.ledger import Ledger
from penstock.model.clock import Rng
from penstock.model.outcome import Outcome
from penstock.model.unit import replace
from penstock.worker.flow import Flow, Io
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.fleet import PATIENCE
from tests.support.hand import Hand
from tests.support.machines import FeedState, InvoiceState, feed, invoice
from tests.support.probe import FeedProbe, Probe, reached, sent
from tests.support.world import World

LEASE = 3.0


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition, asked on a thread of its own."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while not await asyncio.to_thread(condition):
        assert loop.time() < deadline, f"waited {PATIENCE:g} s in vain: {what}"
        await asyncio.sleep(0.02)


def worker_on(ledger: Ledger, *flows: Flow[Any, Any, Any], **settings: Any) -> Worker:
    chosen = {"lease_ms": LEASE * 1_000, "renew_seconds": LEASE / 5, "watch_seconds": 0.1, "idle_seconds": 0.1}
    return Worker(ledger, list(flows), WorkerSettings(**chosen | settings), rng=Rng(3))


@pytest.mark.parametrize("snapshot", [True, False], ids=["inside a snapshot", "outside"])
def test_slow_reads_of_steps_delay_neither_claims_nor_commits_nor_the_lease(real_world: World, snapshot):
    world = real_world
    over, reading = threading.Event(), threading.Semaphore(0)

    def slow(_: Any) -> None:
        reading.release()
        assert over.wait(PATIENCE)

    async def read_long(unit: Any, io: Io) -> Any:
        await io.ledger(lambda ledger: ledger.read(slow) if snapshot else slow(ledger))
        return sent(unit)

    async def load(unit: Any, io: Io) -> Any:
        return Outcome(unit, replace(unit, status=FeedState.FETCHING, due_at=None), "created")

    others = world.another()

    def reaped() -> int:
        return others.incarnation().reap()

    def loaded(name: str) -> bool:
        sql = "SELECT status FROM feeds WHERE feed_id = :name"
        return others.read(lambda c: c.rows(sql, name=name)[0][0]) == FeedState.FETCHING

    async def main() -> Worker:
        world.born(*(invoice(str(n)) for n in range(40)))
        worker = worker_on(world.ledger, Probe(read_long), FeedProbe(load))
        running = asyncio.create_task(worker.run())
        try:
            await until(lambda: reading.acquire(blocking=False), "the reads are under way")
            began = asyncio.get_running_loop().time()
            rounds = 0
            while rounds < 3 or asyncio.get_running_loop().time() < began + 2 * LEASE:
                name = f"f{rounds}"
                await asyncio.to_thread(world.born, feed(name, due_at=world.clock.now()))
                await until(functools.partial(loaded, name), "another unit goes through")
                assert await asyncio.to_thread(reaped) == 0, "the lease was renewed"
                rounds += 1
                await asyncio.sleep(0.1)
            assert worker.counts.lost == 0
            over.set()
            await until(lambda: worker.counts.committed == 40 + rounds, "the readers finish")
        finally:
            over.set()
            worker.stop()
            await running
        return worker

    worker = asyncio.run(main())
    assert (worker.counts.lost, worker.counts.failed) == (0, 0)
    assert world.one("SELECT count(*) FROM invoice WHERE status = 'SENT'") == 40


@pytest.mark.parametrize("world_url", ["postgres"], indirect=True)
def test_a_locked_unit_commits_once_its_lock_is_gone_and_the_others_before(real_world: World):
    world = real_world
    world.born(*(invoice(f"{n:02}") for n in range(20)))
    calls: list[str] = []

    async def main() -> Worker:
        locked = asyncio.Event()
        ledger = reached(world, 100)

        async def act(unit: Any, io: Io) -> Any:
            calls.append(unit.number)
            await locked.wait()  # claimed before anybody locks anything
            return sent(unit)

        worker = worker_on(ledger, Probe(act), lease_ms=30_000)
        running = asyncio.create_task(worker.run())
        try:
            await until(lambda: len(calls) == 20, "every step begins")
            with Hand(world.url) as somebody:
                with somebody.together():
                    somebody.type("SELECT 1 FROM invoice WHERE number = '07' FOR UPDATE")
                    locked.set()
                    await until(lambda: worker.counts.committed == 19, "the others commit")
                    await asyncio.sleep(1.5)  # it was tried again meanwhile
                    assert world.rows("SELECT number FROM invoice WHERE status <> 'SENT'") == [("07",)]
                await until(lambda: worker.counts.committed == 20, "the last commits")
        finally:
            worker.stop()
            await running
        return worker

    worker = asyncio.run(main())
    assert sorted(calls) == [f"{n:02}" for n in range(20)], "no step was taken twice"
    assert (worker.counts.lost, worker.counts.refused, worker.counts.failed) == (0, 0, 0)
    found = world.rows("SELECT status, crashes, attempts, claimed_by FROM invoice")
    assert found == [(InvoiceState.SENT, 0, 0, None)] * 20


def test_a_renewal_waits_for_no_thread(real_world: World):
    """Every thread that claims and commits is busy for longer than the lease."""
    world = real_world
    over = threading.Event()
    others = world.another()

    async def main() -> None:
        worker = worker_on(world.ledger, Probe())
        running = asyncio.create_task(worker.run())
        leases = "SELECT DISTINCT lease_until FROM worker"
        # Its row is there before it has begun, and what is left to begin needs a thread too.
        await until(lambda: others.read(lambda c: c.rows(leases)), "it has a lease")
        first = others.read(lambda c: c.rows(leases))[0][0]
        await until(lambda: others.read(lambda c: c.rows(leases))[0][0] != first, "it renews its lease")
        busy = [asyncio.create_task(worker._executor.run(over.wait, PATIENCE)) for _ in range(8)]
        try:
            await asyncio.sleep(2 * LEASE)
            assert await asyncio.to_thread(lambda: others.incarnation().reap()) == 0
            sql = "SELECT count(*) FROM worker WHERE reaped_at IS NULL"
            assert others.read(lambda c: c.rows(sql))[0][0] == 1, "nobody could take its lease"
            assert not any(task.done() for task in busy)
        finally:
            over.set()
            await asyncio.gather(*busy)
            worker.stop()
            await running

    asyncio.run(main())

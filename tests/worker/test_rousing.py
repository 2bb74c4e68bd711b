"""A worker that would sleep for an hour is told of what becomes due: in its process, by the file, by the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import pytest

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.sqlite import listener as sqlite_listener
from penstock.model.clock import Rng, SystemClock, VirtualClock
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.testing import simulate
from penstock.worker.ear import Ear
from penstock.worker.executor import InlineExecutor
from penstock.worker.flow import Io
from penstock.worker.rest import Rest
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.fleet import PATIENCE
from tests.support.hand import Hand
from tests.support.machines import InvoiceState, invoice
from tests.support.pgbouncer import Bouncer, program
from tests.support.probe import Probe, sent, work
from tests.support.world import World, after

HOUR = 3_600.0
INVOICE = Ref("invoice", "acme/1")
LISTENING = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"


def seen_at(world: World, *acts: tuple[float, Callable[[], Any]], **settings: Any) -> list[datetime]:
    """When an idle worker took its steps, with these acts in its process meanwhile."""
    seen: list[datetime] = []

    async def act(unit: Any, io: Io) -> Any:
        seen.append(io.now())
        return sent(unit)

    class Beside(Probe):
        async def start(self) -> None:
            self.others = asyncio.create_task(self.do())

        async def do(self) -> None:
            for moment, call in acts:
                await asyncio.sleep((after(moment) - world.clock.now()).total_seconds())
                call()

    work(world, Beside(act), seconds=100, idle_seconds=HOUR, **settings)
    return seen


def test_what_its_own_process_brings_is_taken_up_at_once(world):
    assert seen_at(world, (50.5, lambda: world.born(invoice()))) == [after(50.5)]


def test_what_its_own_process_brings_for_later_is_taken_up_at_its_moment(world):
    assert seen_at(world, (50.5, lambda: world.born(invoice(due_at=after(70.5))))) == [after(70.5)]


def test_a_unit_that_is_woken_is_taken_up_at_once(world):
    world.born(invoice(due_at=after(10_000)))
    wake = lambda: world.ledger.wake([INVOICE], who="me", reason="now")  # noqa: E731 - one of several acts
    assert seen_at(world, (50.5, wake)) == [after(50.5)]


def test_what_waits_behind_a_gate_goes_on_when_it_is_resumed(world):
    world.born(invoice(gate_id="shop/acme"))
    world.ledger.gates.pause("shop/acme", "me", "not now")
    assert seen_at(world, (50.5, lambda: world.ledger.gates.resume("shop/acme", "me"))) == [after(50.5)]


async def until(condition: Callable[[], Any], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE
    while not condition():
        assert loop.time() < deadline, f"waited {PATIENCE:g} s in vain: {what}"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def sleeper(ledger: Ledger, **settings: Any) -> AsyncIterator[Worker]:
    """A worker that sleeps, and would for an hour."""
    chosen = WorkerSettings(**{"idle_seconds": HOUR, "place_seconds": None, **settings})
    worker = Worker(ledger, [Probe()], chosen, rng=Rng(3))
    running = asyncio.create_task(worker.run())
    try:
        await until(worker._rest.asleep.is_set, "it sleeps")
        yield worker
    finally:
        worker.stop()
        await running


async def taken_up(ledger: Ledger, ref: Ref) -> None:
    def over() -> bool:
        return ledger.get(ref).status is InvoiceState.SENT

    await until(over, f"{ref} is taken up")


def brought_by(others: Ledger, number: str) -> Ref:
    others.birth([invoice(number, due_at=others.clock.now())], actor=Actor.API, who="test")
    return Ref("invoice", f"acme/{number}")


def test_what_another_process_brings_is_heard(real_world: World):
    others = real_world.another()

    async def main() -> None:
        async with sleeper(real_world.ledger) as worker:
            for number in "123":  # the second and the third find it asleep after work
                await taken_up(others, brought_by(others, number))
                await until(worker._rest.asleep.is_set, "it sleeps again")

    asyncio.run(main())


def test_a_gate_that_another_process_resumes_is_heard(real_world: World):
    others = real_world.another()
    others.gates.pause("shop/acme", "me", "not now")
    others.birth([invoice(gate_id="shop/acme")], actor=Actor.API, who="test")

    async def main() -> None:
        async with sleeper(real_world.ledger):
            others.gates.resume("shop/acme", "me")
            await taken_up(others, INVOICE)

    asyncio.run(main())


@pytest.mark.parametrize("watched", [True, False], ids=["told by the system", "asked again and again"])
def test_what_somebody_types_into_a_file_is_heard(tmp_path, monkeypatch, watched):
    if not watched:
        monkeypatch.setattr(sqlite_listener, "_watched", lambda _: None)
    world = World(f"sqlite:///{tmp_path / 'penstock.db'}", SystemClock())
    world.born(invoice(due_at=None))

    async def main() -> None:
        async with sleeper(world.ledger):
            with Hand(world.url) as hand:
                hand.type("UPDATE invoice SET due_at = '2026-01-01T00:00:00.000Z'")
            await taken_up(world.ledger, INVOICE)

    asyncio.run(main())
    world.close()


def listening(hand: Hand) -> list[int]:
    return [pid for (pid,) in hand.type(LISTENING)]


def test_a_connection_that_listens_and_is_dropped_comes_back(postgres_url):
    world = World(postgres_url, SystemClock())
    others = world.another()

    async def main() -> None:
        with Hand(world.url) as hand:
            async with sleeper(world.ledger):
                await until(lambda: listening(hand), "it listens")
                (first,) = listening(hand)
                hand.type(f"SELECT pg_terminate_backend({first})")
                await until(lambda: set(listening(hand)) - {first}, "it listens again")
                await taken_up(others, brought_by(others, "1"))

    asyncio.run(main())
    world.close()


def test_behind_a_pooler_nobody_listens_and_asking_does(postgres_url):
    program()
    world = World(postgres_url, SystemClock())

    async def main() -> None:
        with (
            Bouncer(postgres_url) as bouncer,
            Hand(postgres_url) as hand,
            Ledger.open(bouncer.url, world.machines) as pooled,
        ):
            async with sleeper(pooled, idle_seconds=0.1):
                await taken_up(world.ledger, brought_by(world.ledger, "1"))
                assert listening(hand) == []

    asyncio.run(main())
    world.close()


class Neighbours:
    """They write without end."""

    again = 0.001

    def fileno(self) -> None:
        return None

    def heard(self) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(("worthwhile", "looks"), [(False, range(40, 50)), (True, range(800, 1_000))])
def test_who_hears_much_that_is_not_for_him_listens_less(worthwhile, looks):
    clock = VirtualClock()

    class Looking(Rest):
        looks = 0

        def hear(self) -> None:
            self.looks += 1
            self.worthwhile = worthwhile

    class File:
        def listen(self) -> Neighbours:
            return Neighbours()

    async def main() -> int:
        rest, file = Looking(clock, 1.0), File()
        rest.asleep.set()
        database: Any = file
        listening = asyncio.create_task(Ear(database, InlineExecutor(), clock, Rng(1), rest).run())
        await asyncio.sleep(10)
        listening.cancel()
        return rest.looks

    assert simulate(clock, main) in looks

"""Worker processes killed with SIGKILL: nothing lost, nothing done twice, nobody waits longer than a lease."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.crash_app import Kind
from tests.support.fleet import Fleet, until

LEASE_SECONDS = 2.0


def kill_repeatedly(fleet: Fleet, names: list[str], kills: int, seed: int) -> None:
    """Kill one of four workers again and again while units keep coming; a new one takes its place each time."""
    chance = random.Random(seed)
    share = len(names) // kills
    for kill in range(kills):
        fleet.born(*names[kill * share : (kill + 1) * share if kill < kills - 1 else None], before_ms=20, after_ms=20)
        ready = until(lambda: [m for m in fleet.living if m.said("worker.started")][2:], "three workers are at work")
        time.sleep(chance.uniform(0.05, 0.3))
        chance.choice(ready).kill()
        fleet.start()


def flow_through_kills(url: str, folder: Path, units: int, kills: int, seed: int) -> None:
    names = [f"{n:06}" for n in range(units)]
    with Fleet(url, folder, concurrency=10, slots=40, claim_at_once=20) as fleet:
        fleet.create()
        fleet.start(4)
        kill_repeatedly(fleet, names, kills, seed)
        fleet.finish(patience=max(60, units / 20))
        fleet.stop()
        fleet.audit(names)
        reaped = sum(said["units"] for m in fleet.members for said in m.said("worker.reaped"))
        assert reaped > 0, "some of the killed held units"


def test_nothing_is_lost_and_nothing_is_done_twice_when_workers_are_killed(ledger_url, tmp_path):
    flow_through_kills(ledger_url, tmp_path / "fleet", units=3_000, kills=8, seed=1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_nothing_is_lost_when_workers_are_killed_for_long(ledger_url, tmp_path, seed):
    flow_through_kills(ledger_url, tmp_path / "fleet", units=30_000, kills=120, seed=seed)


def test_the_units_of_a_killed_worker_are_free_soon_after_its_lease(ledger_url, tmp_path):
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.born("long", before_ms=60_000)
        (first,) = fleet.start()
        until(lambda: fleet.effects.begun("long"), "the step begins")
        (second,) = fleet.start()
        until(lambda: second.said("worker.started"), "the other worker is there")
        first.kill()
        killed = time.monotonic()
        until(lambda: fleet.effects.begun("long") == {first.pid, second.pid}, "the other worker takes over")
        assert time.monotonic() - killed < LEASE_SECONDS + 10
        assert fleet.job("long").doubts == 1


def test_a_unit_that_kills_its_worker_is_parked_and_the_others_live(ledger_url, tmp_path):
    names = [f"{n:03}" for n in range(60)]
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.born("poison", kind=Kind.POISON, before_ms=500)
        fleet.born(*names, before_ms=50)
        fleet.start(2)

        def parked() -> bool:
            fleet.start(2 - len(fleet.living))  # as a supervisor would
            return fleet.job("poison").parked_at is not None

        until(parked, "the poison is parked")
        fleet.finish()
        poison = fleet.job("poison")
        assert (poison.crashes, poison.claimed_by) == (3, None)
        assert poison.parked_reason == "its step killed 3 workers in a row"
        fleet.tells_of_parked("poison")
        assert len(fleet.effects.begun("poison")) == 3
        died = [m for m in fleet.members if not m.alive]
        assert [m.wait() for m in died] == [-signal.SIGKILL] * 3
        fleet.born("later")
        until(lambda: fleet.job("later").status == "done", "workers go on")
        fleet.stop()
        fleet.audit([*names, "later"])


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_bystanders_of_a_poisonous_unit_are_not_parked_with_it(ledger_url, tmp_path):
    """Units held by the same worker, whose own steps are slow and harmless, must outlive it."""
    names = [f"{n:03}" for n in range(4)]
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.born("poison", kind=Kind.POISON, before_ms=300)
        fleet.born(*names, before_ms=1_000)
        fleet.start()

        def parked() -> bool:
            fleet.start(1 - len(fleet.living))
            return fleet.job("poison").parked_at is not None

        until(parked, "the poison is parked")
        fleet.finish()
        fleet.stop()
        fleet.audit(names)

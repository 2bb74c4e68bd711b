"""A step that blocks the event loop ends its worker's process, which says who it was; nobody else is to blame."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from penstock.worker.watchdog import EXIT_CODE
from tests.support.crash_app import Kind, S
from tests.support.fleet import Fleet, Member, until
from tests.support.machines import batch_item, batch_run

ON_SQLITE = pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
PARKED = "SELECT unit_id FROM job WHERE parked_at IS NOT NULL"
RETIRED = "SELECT count(*) FROM worker WHERE stopped_at IS NOT NULL AND reaped_at IS NOT NULL"


def rows(fleet: Fleet, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in fleet.ledger.read(lambda c: c.rows(sql))]


def ended(worker: Member) -> dict[str, Any]:
    """What the watchdog's last words were."""
    assert worker.wait() == EXIT_CODE, worker.text()
    (said,) = worker.said("worker.ended")
    return said


@ON_SQLITE
@pytest.mark.parametrize(
    ("kind", "at", "event"),
    [
        (Kind.SPIN, "in spin", "step.slow"),
        (Kind.SLEEP, "in doze", "step.slow"),
        (Kind.CHILD, "in spin_later", "step.slow"),
        (Kind.PONDER, "in decide", "decide.slow"),
    ],
)
def test_a_blocked_event_loop_ends_the_process_and_names_the_unit(ledger_url, tmp_path, kind, at, event):
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.born("bystander", before_ms=60_000)
        (worker,) = fleet.start()
        until(lambda: fleet.effects.begun("bystander"), "the step of another begins")
        fleet.born("bad", kind=kind)
        said = ended(worker)
        assert (said["level"], said["units"], said["held"]) == ("critical", ["job:bad"], "given back")
        assert 0.9 <= said["seconds"] < 30, "half of the lease at least"
        (blocked,) = worker.said("worker.blocked")
        assert blocked["units"] == ["job:bad"]
        assert at in blocked["stack"]
        (slow,) = worker.said(event)
        assert slow["units"] == ["job:bad"]
        assert "misbehave.py:" in slow["at"]
        assert {(fleet.job(n).claimed_by, fleet.job(n).parked_at) for n in ("bad", "bystander")} == {(None, None)}
        bad = fleet.job("bad")
        assert bad.crashes == 1
        later = rows(fleet, "SELECT b.due_at > w.stopped_at FROM job b, worker w WHERE b.unit_id = 'bad'")
        assert later == [(1,)], "due again, and not at once"
        assert rows(fleet, RETIRED) == [(1,)], "nobody waits for its lease"


def test_a_unit_that_blocks_three_workers_is_parked_alone(ledger_url, tmp_path):
    names = [f"{n:02}" for n in range(30)]
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.born("bad", kind=Kind.SPIN, before_ms=300)
        fleet.born(*names, before_ms=50)

        def parked() -> bool:
            fleet.start(1 - len(fleet.living))  # as a supervisor would
            return fleet.job("bad").parked_at is not None

        until(parked, "the unit that blocks is parked")
        until(lambda: len(fleet.members) - len(fleet.living) == 3, "the last that it blocked has ended")
        fleet.start(1 - len(fleet.living))
        fleet.finish()
        bad = fleet.job("bad")
        assert (bad.status, bad.crashes, bad.claimed_by) == (S.WORKING, 3, None)
        assert bad.parked_reason is not None
        assert bad.parked_reason.startswith("its step blocked the event loop for ")
        assert bad.parked_reason.endswith(" (3 times in a row)")
        assert rows(fleet, PARKED) == [("bad",)]
        fleet.tells_of_parked("bad")
        fleet.stop()
        gone = [member.wait() for member in fleet.members]
        assert gone == [EXIT_CODE] * 3 + [0]
        fleet.audit(names)


@ON_SQLITE
def test_sigterm_while_the_loop_is_blocked_is_not_for_ever(ledger_url, tmp_path):
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.born("bad", kind=Kind.SLEEP)
        (worker,) = fleet.start()
        until(lambda: fleet.effects.begun("bad"), "the step begins")
        worker.signal(signal.SIGTERM)
        assert ended(worker)["units"] == ["job:bad"]
        assert fleet.claimed() == 0


@ON_SQLITE
def test_the_process_ends_also_when_the_ledger_cannot_be_told(ledger_url, tmp_path):
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.born("bad", kind=Kind.SLEEP)
        (worker,) = fleet.start()
        until(lambda: fleet.effects.begun("bad"), "the step begins")

        def hold(_cursor: object) -> dict[str, Any]:
            return ended(worker)  # nobody else writes while this lasts

        assert fleet.ledger.database.write(hold)["held"].startswith("kept until the lease is over: ")
        assert fleet.claimed() == 1


@ON_SQLITE
@pytest.mark.parametrize("kind", [Kind.HOG, Kind.CLING])
def test_a_step_that_keeps_the_whole_interpreter_ends_it_with_the_stacks_on_standard_error(ledger_url, tmp_path, kind):
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.born("bystander", before_ms=60_000)
        fleet.born("bad", kind=kind)
        (worker,) = fleet.start()
        assert worker.wait() == -signal.SIGABRT, worker.text()
        assert f"in {kind}" in worker.text()
        (other,) = fleet.start()  # of two suspects it tries that first which was due first
        until(lambda: fleet.effects.begun("bystander") >= {other.pid}, "another worker takes over what it held")


@ON_SQLITE
def test_a_process_that_was_stopped_is_not_taken_for_a_blocked_one(ledger_url, tmp_path):
    """Stopped for longer than the lease, once while a step blocks the loop, and once while it does not."""
    with Fleet(ledger_url, tmp_path / "fleet", lease_ms=4_000) as fleet:
        fleet.born("nap", kind=Kind.NAP)
        (worker,) = fleet.start()
        for _ in range(2):
            until(lambda: fleet.effects.begun("nap"), "the step blocks the loop")
            worker.signal(signal.SIGSTOP)
            time.sleep(5)
            worker.signal(signal.SIGCONT)
            until(lambda: fleet.job("nap").status is S.DONE, "it goes on")
        assert worker.alive
        assert not worker.said("worker.blocked")
        fleet.born("next")
        until(lambda: fleet.job("next").status is S.DONE, "it works")
        fleet.stop()
        fleet.audit(["nap", "next"], twice=True)


@ON_SQLITE
def test_many_steps_that_are_a_little_slow_are_not_taken_for_one_that_blocks(ledger_url, tmp_path):
    names = [f"{n}" for n in range(5)]
    with Fleet(ledger_url, tmp_path / "fleet", lease_ms=5_000) as fleet:
        fleet.born(*names, kind=Kind.NAP)  # in one go they take longer than the lease
        (worker,) = fleet.start()
        fleet.finish()
        assert worker.alive
        assert {said["units"][0] for said in worker.said("step.slow")} == {f"job:{name}" for name in names}
        assert not worker.said("worker.blocked")
        fleet.stop()
        fleet.audit(names)


SIBLINGS = """
import asyncio, sys, time
from penstock.ledger.ledger import Ledger
from penstock.model.outcome import Act
from penstock.worker.flow import Flow
from penstock.worker.worker import Worker, WorkerSettings
from tests.support.machines import BATCH_ITEM, MACHINES

class Blocks(Flow):
    machine = BATCH_ITEM
    decide = staticmethod(lambda *_: Act("all", "due"))
    async def act(self, *_): ...
    async def act_together(self, *_): time.sleep(120)

async def main():
    settings = WorkerSettings(lease_ms=2_000, renew_seconds=0.5, place_seconds=None)
    await Worker(Ledger.open(sys.argv[1], MACHINES), [Blocks(None)], settings, watchdog=True).run()

asyncio.run(main())
"""


@pytest.mark.parametrize("real_world", ["sqlite"], indirect=True)
def test_siblings_that_were_stepped_together_are_suspects_and_none_is_charged(real_world):
    real_world.born(batch_run("run", items_expected=3, due_at=None), *(batch_item(n) for n in range(3)))
    done = subprocess.run([sys.executable, "-c", SIBLINGS, real_world.url], check=False, timeout=120)
    assert done.returncode == EXIT_CODE
    time.sleep(2.1)  # the lease
    reaper = real_world.worker()
    reaper.reap()
    seen = real_world.rows("SELECT crashes, suspicion, doubts, claimed_by FROM batch_item")
    assert seen == [(0, 1, 1, None)] * 3

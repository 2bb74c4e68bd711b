"""Real processes that die or are restarted: innocents go on, and the one that kills is found among them."""

from __future__ import annotations

import functools
import signal
import time

import pytest

from tests.support.crash_app import Kind
from tests.support.fleet import LIFECYCLE, Fleet, Member, until

LEFT = "SELECT count(*) FROM job WHERE status <> 'done' AND kind <> 'poison'"
AT_WORK = "SELECT DISTINCT w.pid FROM worker w JOIN job j ON j.claimed_by = w.id"
HELD_AGAINST = "SELECT count(*) FROM job WHERE suspicion > 0 OR crashes > 0 OR parked_at IS NOT NULL"


def all_begun(fleet: Fleet, worker: Member, names: list[str]) -> bool:
    return all(worker.pid in fleet.effects.begun(name) for name in names)


def test_two_restarts_leave_doubt_and_nothing_else(ledger_url, tmp_path):
    names = [f"{n:03}" for n in range(60)]
    with Fleet(ledger_url, tmp_path / "fleet", stop_seconds=0.2) as fleet:
        fleet.born(*names, before_ms=2_000)
        for _ in range(2):
            (worker,) = fleet.start()
            until(functools.partial(all_begun, fleet, worker, names), "all steps are under way")
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
            assert fleet.value(HELD_AGAINST) == 0
        assert fleet.value("SELECT min(doubts) FROM job") == 2
        (last,) = fleet.start()
        until(lambda: all_begun(fleet, last, names), "all steps are under way at once again")
        fleet.finish()
        fleet.stop()
        fleet.audit(names)


@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_a_worker_that_reads_its_configuration_again_leaves_doubt_and_nothing_else(ledger_url, tmp_path):
    names = [f"{n:02}" for n in range(20)]
    folder = tmp_path / "fleet"
    with Fleet(ledger_url, folder) as fleet:
        fleet.upgrade()
        fleet.born(*names, before_ms=60_000)
        config = folder / "penstock.toml"
        config.write_text(f'lifecycles = ["{LIFECYCLE}"]\n[ledger]\nurl = "{ledger_url}"\n[worker]\nstop_seconds = 1\n')
        (worker,) = fleet.start(plain=True, config=config)
        until(lambda: all_begun(fleet, worker, names), "all steps are under way")
        worker.signal(signal.SIGHUP)
        until(lambda: len(worker.said("worker.started")) == 2, "it goes on under a fresh id")
        until(lambda: fleet.value("SELECT min(doubts) FROM job") == 1, "all are in doubt")
        assert fleet.value(HELD_AGAINST) == 0


def test_what_a_killed_process_held_is_free_before_its_lease_is_over(ledger_url, tmp_path):
    with Fleet(ledger_url, tmp_path / "fleet", lease_ms=60_000, renew_seconds=20) as fleet:
        fleet.born("long", before_ms=60_000)
        (first,) = fleet.start()
        until(lambda: fleet.effects.begun("long"), "the step begins")
        first.kill()
        killed = fleet.ledger.clock.elapsed()
        (second,) = fleet.start()
        until(lambda: fleet.effects.begun("long") == {first.pid, second.pid}, "another worker takes over", 40)
        assert fleet.ledger.clock.elapsed() - killed >= 5, "a call that was under way had time to arrive"
        assert (fleet.job("long").doubts, fleet.job("long").suspicion) == (1, 1)


def test_one_poison_unit_among_many_is_the_only_one_parked(ledger_url, tmp_path):
    names = [f"{n:04}" for n in range(800)]
    with Fleet(ledger_url, tmp_path / "fleet", concurrency=1_000, slots=4_000) as fleet:
        fleet.born(*names[:400])
        fleet.born("poison", kind=Kind.POISON)
        fleet.born(*names[400:])
        fleet.start(2)

        def parked() -> bool:
            fleet.start(2 - len(fleet.living))  # as a supervisor would
            return fleet.job("poison").parked_at is not None

        def others_are_done() -> bool:
            parked()
            return fleet.value(LEFT) == 0

        until(others_are_done, "the others are done")
        assert fleet.job("poison").parked_at is None, "nobody waited for the verdict"
        until(parked, "the poison is parked")
        fleet.finish()
        assert fleet.job("poison").parked_reason == "its step killed 3 workers in a row"
        assert fleet.value("SELECT count(*) FROM job WHERE parked_at IS NOT NULL OR suspicion > 0") == 1
        fleet.stop()
        fleet.audit(names)


def at_work(fleet: Fleet) -> list[Member]:
    """The living workers that hold something."""
    pids = {pid for (pid,) in fleet.ledger.read(lambda c: c.rows(AT_WORK))}
    return [member for member in fleet.living if member.pid in pids]


def with_siblings(fleet: Fleet, families: int, **columns: object) -> list[str]:
    """So many families of four, and the names of all."""
    names = []
    for family in range(families):
        members = [f"{family:04}-{n}" for n in range(4)]
        fleet.born(*members, family=f"{family:04}", **columns)
        names += members
    return names


def test_families_whose_workers_are_killed_again_and_again_are_done_soon_after(ledger_url, tmp_path):
    with Fleet(ledger_url, tmp_path / "fleet", concurrency=40, slots=400) as fleet:
        names = with_siblings(fleet, 400, before_ms=1_000)
        for _ in range(8):
            fleet.start(3 - len(fleet.living))
            until(lambda: at_work(fleet), "somebody is at work")[0].kill()
        killed = time.monotonic()
        fleet.start(3 - len(fleet.living))
        until(lambda: fleet.value(HELD_AGAINST) >= 100, "many are suspects")
        fleet.finish()
        assert time.monotonic() - killed < 40
        assert fleet.value("SELECT count(*) FROM job WHERE parked_at IS NOT NULL") == 0
        fleet.stop()
        fleet.audit(names)


def test_one_poison_sibling_is_the_only_one_parked(ledger_url, tmp_path):
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        names = with_siblings(fleet, 50)
        fleet.born("poison", kind=Kind.POISON, family="0025")
        fleet.start(2)

        def parked() -> bool:
            fleet.start(2 - len(fleet.living))  # as a supervisor would
            return fleet.job("poison").parked_at is not None

        until(parked, "the poison is parked")
        fleet.finish()
        assert fleet.job("poison").parked_reason == "its step killed 3 workers in a row"
        assert fleet.value("SELECT count(*) FROM job WHERE parked_at IS NOT NULL OR suspicion > 0") == 1
        fleet.stop()
        fleet.audit(names)


@pytest.mark.timeout(300)
def test_a_worker_that_was_stopped_for_longer_than_its_lease_clears_what_it_held(ledger_url, tmp_path):
    names = [f"{n:02}" for n in range(20)]
    with Fleet(ledger_url, tmp_path / "fleet", concurrency=20) as fleet:
        fleet.born(*names, before_ms=60_000)
        (first,) = fleet.start()
        until(lambda: all_begun(fleet, first, names), "all steps are under way")
        first.signal(signal.SIGSTOP)
        # Nobody serves jobs meanwhile: what the stopped one held waits under suspicion.
        other = fleet.ledger.incarnation(served=[])
        until(lambda: other.reap() or fleet.value(HELD_AGAINST) == 20, "it is taken for dead")
        first.signal(signal.SIGCONT)
        until(lambda: first.said("worker.lease_lost"), "it finds out")
        # Of one that is claimed again meanwhile the commit of its step decides, which takes a minute.
        until(lambda: fleet.value(HELD_AGAINST) == 0, "it lives, and says so", patience=150)
        assert fleet.value("SELECT min(doubts) FROM job") >= 1

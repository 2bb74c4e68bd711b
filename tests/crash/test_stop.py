"""SIGSTOP past the lease, and SIGTERM: what a worker holds is taken from it, finished or given back."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.support.crash_app import Job, S
from tests.support.fleet import Fleet, until


def test_a_worker_stopped_past_its_lease_cannot_commit_and_goes_on_under_a_fresh_id(ledger_url, tmp_path):
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.born("slow", before_ms=1_000)
        (sleeper,) = fleet.start()
        until(lambda: fleet.effects.begun("slow"), "the step begins")
        sleeper.signal(signal.SIGSTOP)
        (other,) = fleet.start()
        until(lambda: fleet.job("slow").status is S.DONE, "the other worker finishes the unit")
        done = fleet.job("slow")
        assert done.done_by == other.pid
        sleeper.signal(signal.SIGCONT)
        until(lambda: len(sleeper.said("worker.started")) == 2, "the sleeper goes on")
        first, second = (said["worker"] for said in sleeper.said("worker.started"))
        assert first != second
        other.signal(signal.SIGTERM)
        assert other.wait() == 0
        fleet.born("next")
        until(lambda: fleet.job("next").status is S.DONE, "the sleeper works again")
        assert fleet.job("next").done_by == sleeper.pid
        fleet.stop()
        assert sleeper.said("worker.stopped")[-1]["lost"] == 1
        assert fleet.job("slow") == done, "the late commit changed nothing"
        fleet.audit(["slow", "next"], twice=True)


def test_sigterm_finishes_what_is_short_and_gives_the_rest_back(ledger_url, tmp_path):
    short = [f"short-{n}" for n in range(4)]
    waiting = [f"waiting-{n}" for n in range(5)]
    patience = {} if ledger_url.startswith("sqlite") else {"stop_seconds": 4}  # once as in production, once quicker
    with Fleet(ledger_url, tmp_path / "fleet", concurrency=5, lease_ms=30_000, **patience) as fleet:
        fleet.born("long", before_ms=120_000)
        fleet.born(*short, before_ms=3_000)
        fleet.born(*waiting)  # claimed with the rest, and more than run at once
        (worker,) = fleet.start()
        until(lambda: all(fleet.effects.begun(n) for n in ["long", *short]), "the steps begin")
        assert fleet.claimed() == 10
        worker.signal(signal.SIGTERM)
        asked = time.monotonic()
        assert worker.wait(30) == 0, worker.text()
        assert time.monotonic() - asked < 15
        assert fleet.claimed() == 0
        jobs: dict[str, Job] = {name: fleet.job(name) for name in ["long", *short, *waiting]}
        assert (jobs["long"].status, jobs["long"].doubts) == (S.WORKING, 1), "the next worker looks first"
        assert {jobs[n].status for n in short} == {S.DONE}
        assert {(jobs[n].status, jobs[n].doubts) for n in waiting} == {(S.WORKING, 0)}
        assert fleet.value("SELECT count(*) FROM worker WHERE stopped_at IS NULL") == 0
        fleet.start()
        until(lambda: {fleet.job(n).status for n in waiting} == {S.DONE}, "another worker takes them up")


def test_sigterm_of_an_idle_worker_is_quick(ledger_url, tmp_path):
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.create()
        (worker,) = fleet.start()
        until(lambda: worker.said("worker.started"), "it starts")
        worker.signal(signal.SIGTERM)
        assert worker.wait(10) == 0, worker.text()
        fleet.audit([])


HOLDER = """
import fcntl, sys, time
from pysqlite3 import dbapi2 as driver
how, path = sys.argv[1:]
if how == "flock":
    file = open(f"{path}-writer", "r+")
    fcntl.flock(file, fcntl.LOCK_EX)
else:
    connection = driver.connect(path, isolation_level=None)
    connection.execute("PRAGMA busy_timeout = 30000")
    connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(600)
"""


@contextmanager
def holding(fleet: Fleet, how: str) -> Iterator[None]:
    """Another process holds the ledger's lock and is frozen over it: it answers nothing, and lets nothing go."""
    if fleet.url.startswith("postgresql"):
        with psycopg.connect(fleet.url) as somebody:
            _lock(somebody, how)
            yield
            somebody.rollback()
        return
    command = [sys.executable, "-c", HOLDER, how, fleet.url.removeprefix("sqlite:///")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            holder.send_signal(signal.SIGSTOP)
            yield
        finally:
            holder.kill()


def _lock(somebody: psycopg.Connection[Any], how: str) -> None:
    """All tables or none: to wait for a worker that holds one would take as long as the steps do."""
    for _ in range(500):
        try:
            somebody.execute(f"{how} NOWAIT".encode())
        except psycopg.errors.LockNotAvailable:
            somebody.rollback()
            time.sleep(0.005)
        else:
            return
    raise AssertionError("the tables could not be locked")


LOCKS = [
    ("sqlite", "flock"),
    ("sqlite", "begin immediate"),
    ("postgres", "LOCK TABLE job, worker IN ACCESS EXCLUSIVE MODE"),
]


@pytest.mark.parametrize(("ledger_url", "how"), LOCKS, indirect=["ledger_url"])
def test_sigterm_ends_a_worker_whoever_holds_the_ledger(ledger_url, tmp_path, how):
    """It cannot give back what it holds: its lease ends that, and nothing is lost."""
    plain = how == "flock"  # once as in production, otherwise quicker
    with Fleet(ledger_url, tmp_path / "fleet", stop_seconds=2) as fleet:
        names = [f"{n}" for n in range(5)]
        fleet.upgrade()
        fleet.born(*names, before_ms=1_000)
        (worker,) = fleet.start(plain=plain)
        until(lambda: all(fleet.effects.begun(n) for n in names), "the steps begin")
        with holding(fleet, how):
            until(lambda: fleet.effects.made() == set(names), "the steps end, and cannot be committed")
            worker.signal(signal.SIGTERM)
            asked = time.monotonic()
            assert worker.wait(30) == 0, worker.text()
            assert time.monotonic() - asked < 15, "ten seconds are promised, on a machine that has nothing else to do"
        assert {fleet.job(n).status for n in names} == {S.WORKING}
        past = "0" if ledger_url.startswith("sqlite") else "started_at"
        fleet.ledger.database.write(lambda c: c.run(f"UPDATE worker SET lease_until = {past}"))
        fleet.start()
        fleet.finish()
        fleet.stop()
        fleet.audit(names)


@pytest.mark.nightly
@pytest.mark.parametrize(("ledger_url", "how"), LOCKS, indirect=["ledger_url"])
def test_sigterm_ends_a_worker_that_has_not_yet_begun(ledger_url, tmp_path, how):
    with Fleet(ledger_url, tmp_path / "fleet") as fleet:
        fleet.born("one")
        with holding(fleet, how):
            (worker,) = fleet.start()
            time.sleep(3)  # it has its handler, and waits for its turn to write
            worker.signal(signal.SIGTERM)
            assert worker.wait(20) in (0, -signal.SIGTERM), worker.text()
        assert fleet.job("one").status is S.QUEUED

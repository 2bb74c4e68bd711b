"""SIGSTOP past the lease, and SIGTERM: what a worker holds is taken from it, finished or given back."""

from __future__ import annotations

import signal
import time

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
        assert (jobs["long"].status, jobs["long"].crashes) == (S.WORKING, 1), "the next worker looks first"
        assert {jobs[n].status for n in short} == {S.DONE}
        assert {(jobs[n].status, jobs[n].crashes) for n in waiting} == {(S.WORKING, 0)}
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

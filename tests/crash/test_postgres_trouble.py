"""PostgreSQL in trouble: restarted, gone at the start, gone at the end, tired of an idle transaction."""

from __future__ import annotations

import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ledger.store.postgres.database import PostgresDatabase
from penstock.model.clock import SystemClock
from penstock.model.errors import CommitUnknown, LedgerUnavailable
from tests.support.fleet import Fleet, until
from tests.support.postgres import Cluster

LEASE_SECONDS = 2.0  # of a fleet


@pytest.fixture(scope="module")
def own_server() -> Iterator[Cluster]:
    """A server that these tests may stop and start as they like."""
    home = Path(tempfile.gettempdir()) / f"penstock-postgres-{os.getpid()}-{random.getrandbits(32):08x}"
    cluster = Cluster(home)
    cluster.ensure_started(os.getpid())
    yield cluster
    cluster.stop()


def restart_repeatedly(cluster: Cluster, fleet: Fleet, names: list[str], modes: list[str], seed: int) -> None:
    chance = random.Random(seed)
    share = len(names) // len(modes)
    for turn, mode in enumerate(modes):
        last = turn == len(modes) - 1
        fleet.born(*names[turn * share : None if last else (turn + 1) * share], before_ms=20)
        time.sleep(chance.uniform(0.2, 0.6))
        cluster.halt(mode)
        time.sleep(chance.uniform(0, 3))
        cluster.launch()


def flow_through_restarts(cluster: Cluster, folder: Path, units: int, modes: list[str], seed: int) -> None:
    names = [f"{seed}-{n:05}" for n in range(units)]
    with Fleet(cluster.fresh_database(), folder, concurrency=10, slots=40, claim_at_once=20) as fleet:
        fleet.create()
        workers = fleet.start(2)
        until(lambda: all(w.said("worker.started") for w in workers), "the workers start")
        restart_repeatedly(cluster, fleet, names, modes, seed)
        fleet.finish()
        assert fleet.living == workers, "no process went"
        fleet.stop()
        assert sum(len(w.said("ledger.away")) for w in workers) > 0
        fleet.audit(names)


def test_workers_outlive_restarts_of_the_server(own_server, tmp_path):
    flow_through_restarts(own_server, tmp_path / "fleet", 1_000, ["fast", "immediate", "immediate"], seed=1)


def test_an_outage_longer_than_the_lease_is_held_against_nobody(own_server, tmp_path):
    names = [f"{n:02}" for n in range(20)]
    with Fleet(own_server.fresh_database(), tmp_path / "fleet") as fleet:
        fleet.born(*names, before_ms=60_000)
        workers = fleet.start(2)
        until(lambda: all(fleet.effects.begun(name) for name in names), "all steps are under way")
        own_server.halt("immediate")
        time.sleep(2.5 * LEASE_SECONDS)
        own_server.launch()
        until(lambda: fleet.value("SELECT min(doubts) FROM job") >= 1, "all were interrupted")
        against = "SELECT count(*) FROM job WHERE suspicion > 0 OR crashes > 0 OR parked_at IS NOT NULL"
        until(lambda: fleet.value(against) == 0, "nothing is held against them")
        time.sleep(LEASE_SECONDS)
        assert fleet.value(against) == 0
        assert fleet.living == workers


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(2, 5))
def test_workers_outlive_many_restarts_of_the_server(own_server, tmp_path, seed):
    flow_through_restarts(own_server, tmp_path / "fleet", 20_000, ["fast", "immediate"] * 15, seed)


def test_a_server_that_is_away_is_waited_for_from_start_to_end(own_server, tmp_path):
    with Fleet(own_server.fresh_database(), tmp_path / "fleet") as fleet:
        fleet.born("one")
        own_server.halt("fast")
        try:
            (worker, hopeless) = fleet.start(2)
            until(lambda: worker.said("ledger.away") and hopeless.said("ledger.away"), "they notice")
            assert worker.alive
            hopeless.signal(signal.SIGTERM)
            assert hopeless.wait() == 0, hopeless.text()
        finally:
            own_server.launch()
        fleet.finish()
        own_server.halt("fast")
        try:
            until(lambda: len(worker.said("ledger.away")) == 2, "it notices again")
            assert len(worker.said("ledger.back")) == 1, "each outage is told once, and its end"
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0, worker.text()
        finally:
            own_server.launch()
        fleet.start()
        until(lambda: fleet.claimed() == 0, "its lease ends")
        fleet.stop()
        fleet.audit(["one"])


def test_a_transaction_that_stood_still_too_long_is_lost_and_may_be_tried_again(postgres_url):
    """As after SIGSTOP in the middle of a transaction: the server has given it up."""
    database = PostgresDatabase(postgres_url, SystemClock())

    def stand_still(cursor) -> None:
        cursor.run("CREATE TABLE half_done (id int)")
        cursor.run("SET LOCAL idle_in_transaction_session_timeout = 100")
        time.sleep(0.5)

    def and_go_on(cursor) -> None:
        stand_still(cursor)
        cursor.run("SELECT 1")

    try:
        with pytest.raises(LedgerUnavailable) as caught:
            database.write(and_go_on)
        assert not isinstance(caught.value, CommitUnknown)
        with pytest.raises(LedgerUnavailable):
            database.write(stand_still)
        found = database.write(lambda c: c.rows("SELECT to_regclass('half_done')"))
        assert found[0][0] is None
    finally:
        database.close()

"""Many workers on a small server, a line that is up and silent, and a pooler in between."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from penstock.model.errors import LedgerUnavailable
from tests.support.fleet import COMMAND, PATIENCE, ROOT, Fleet, Member, until
from tests.support.pgbouncer import Bouncer, program
from tests.support.postgres import Cluster
from tests.support.proxy import Proxy

ROLE = "worker_role"


@contextmanager
def server(settings: str = "") -> Iterator[Cluster]:
    """A server of the test's own."""
    home = Path(tempfile.gettempdir()) / f"penstock-postgres-{os.getpid()}-{random.getrandbits(32):08x}"
    cluster = Cluster(home, settings)
    cluster.ensure_started(os.getpid())
    try:
        yield cluster
    finally:
        cluster.stop()


def owned_database(cluster: Cluster) -> str:
    """A database of an ordinary role: the last places of a server are not for it."""
    url = urlsplit(cluster.fresh_database())
    cluster.execute(f"CREATE ROLE {ROLE} LOGIN", f"ALTER DATABASE {url.path[1:]} OWNER TO {ROLE}")
    return urlunsplit(url._replace(netloc=url.netloc.replace("postgres@", f"{ROLE}@")))


def test_a_line_that_is_up_and_silent_is_noticed_told_once_and_left(postgres_url, postgres_tcp, tmp_path):
    names = [f"{n:03}" for n in range(200)]
    address = urlsplit(postgres_url)
    with Proxy(postgres_tcp) as proxy, Fleet(postgres_url, tmp_path / "fleet", concurrency=5, slots=20) as fleet:
        proxied = urlunsplit(address._replace(netloc=f"{address.username}@127.0.0.1:{proxy.port}"))
        fleet.create()
        (worker,) = fleet.start(url=f"{proxied}?connect_timeout=2")
        fleet.born(*names, before_ms=50)
        until(fleet.effects.made, "it works")
        proxy.frozen = True
        until(lambda: worker.said("ledger.away"), "it says that the ledger is away")
        time.sleep(3)  # further tries fail as well
        assert len(worker.said("ledger.away")) == 1
        assert worker.said("ledger.back") == []
        proxy.frozen = False
        until(lambda: worker.said("ledger.back"), "it says that the ledger is back")
        fleet.finish(2 * PATIENCE)
        fleet.stop()
        fleet.audit(names)


def all_started(workers: list[Member]) -> bool:
    return all(worker.said("worker.started") for worker in workers)


def workers_at_work(fleet: Fleet) -> int:
    return int(fleet.value("SELECT count(DISTINCT done_by) FROM job"))


def crowd(tmp_path: Path, workers: int, settings: str, units: int, lease_ms: int) -> None:
    """Start so many workers, let all of them work, and see that none loses its lease."""
    names = [f"{n:05}" for n in range(units)]
    with server(settings) as cluster:
        lease = {"lease_ms": lease_ms, "renew_seconds": lease_ms / 3_000}
        options = {"concurrency": 4, "slots": 8, "claim_at_once": 4, "idle_seconds": 1.0, "watch_seconds": 1.0}
        with Fleet(owned_database(cluster), tmp_path / "fleet", **lease | options) as fleet:
            fleet.create()
            fleet.ledger.close()  # opened again when it is used: it stands for somebody who looks now and then
            patience = 60.0 + 5.0 * workers
            for start in range(0, workers, 4):  # that many interpreters at once is what the machine can start
                started = fleet.start(min(4, workers - start))
                until(functools.partial(all_started, started), "workers start", patience)
            made: list[str] = []
            # On a slow machine some are done before the last has looked: then there is more to do.
            while not made or (workers_at_work(fleet) < workers and len(made) < 5 * units):
                more = [f"{len(made)}-{name}" for name in names]
                fleet.born(*more, before_ms=200)
                fleet.finish(patience)
                made += more
            time.sleep(lease_ms / 1_000)  # idle for a lease
            shown = subprocess.run(
                [*COMMAND, "status", "--ledger", fleet.url], cwd=ROOT, capture_output=True, text=True, check=False
            )
            assert shown.returncode == 0, shown.stderr
            assert len(fleet.living) == workers
            assert [w.said("worker.lease_lost") for w in fleet.members if w.said("worker.lease_lost")] == []
            assert workers_at_work(fleet) == workers, "each of them works"
            fleet.stop(patience)
            fleet.audit(made)


def test_more_workers_than_half_the_places_of_a_server_all_work(tmp_path):
    crowd(tmp_path, workers=12, settings="-c max_connections=20", units=600, lease_ms=10_000)


@pytest.mark.nightly
def test_fifty_workers_at_stock_settings_all_work(tmp_path):
    crowd(tmp_path, workers=50, settings="", units=10_000, lease_ms=30_000)


def test_a_worker_waits_for_a_place_on_a_full_server_and_says_why(tmp_path):
    with server("-c max_connections=10") as cluster:
        url = owned_database(cluster)
        with Fleet(url, tmp_path / "fleet") as fleet:
            fleet.born("one")
            fleet.ledger.close()
            taken = [psycopg.connect(url) for _ in range(7)]
            (worker,) = fleet.start()
            (said,) = until(lambda: worker.said("ledger.away"), "it says why it waits")
            assert "no free place" in said["error"]
            assert worker.alive
            for connection in taken:
                connection.close()
            until(lambda: worker.said("worker.started"), "it starts")
            fleet.finish()
            assert len(worker.said("ledger.away")) == len(worker.said("ledger.back")) == 1
            fleet.stop()
            fleet.audit(["one"])


def test_workers_behind_a_pooler_in_transaction_mode_lose_nothing(postgres_url, tmp_path):
    program()
    names = [f"{n:04}" for n in range(400)]
    with (
        Bouncer(postgres_url, default_pool_size=4) as bouncer,
        Fleet(bouncer.url, tmp_path / "fleet", concurrency=10, slots=20, claim_at_once=10) as fleet,
    ):
        fleet.upgrade()
        fleet.born(*names, before_ms=20)
        workers = fleet.start(4)
        until(lambda: len(fleet.effects.made()) > 50, "they work")
        workers[0].kill()
        fleet.finish()
        assert fleet.living == workers[1:]
        fleet.stop()
        fleet.audit(names)
        limits = "SELECT current_setting('statement_timeout'), current_setting('enable_seqscan')"
        assert fleet.ledger.database.write(lambda c: c.rows(limits)) == [("30s", "off")]
        assert fleet.ledger.database.read(lambda c: c.rows(limits)) == [("15s", "on")]
        with pytest.raises(LedgerUnavailable, match="read-only"):
            fleet.ledger.read(lambda c: c.run("DELETE FROM worker"))


STOPPED_WRITER = """
import os, signal, sys
from penstock.model.clock import SystemClock
from penstock.ledger.store.database import open_database
database = open_database(sys.argv[1], SystemClock())
def work(cursor):
    cursor.run("UPDATE worker SET host = host")
    os.kill(os.getpid(), signal.SIGSTOP)
database.write(work)
"""


def test_a_writer_that_is_stopped_is_named_by_those_who_wait(tmp_path):
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    with Fleet(url, tmp_path / "fleet") as fleet:
        fleet.create()
        workers = fleet.start(2)
        until(lambda: all(w.said("worker.started") for w in workers), "the workers start")
        with subprocess.Popen([sys.executable, "-c", STOPPED_WRITER, url], cwd=ROOT) as writer:
            state = Path(f"/proc/{writer.pid}/stat")
            until(lambda: state.read_text().rpartition(")")[2].split()[0] == "T", "the writer has stopped")
            for worker in workers:
                (said,) = until(functools.partial(worker.said, "ledger.away"), "it says that nobody can write")
                assert f"process {writer.pid} " in said["error"]
            writer.send_signal(signal.SIGCONT)
            assert writer.wait(PATIENCE) == 0
        until(lambda: all(w.said("ledger.back") for w in workers), "they say that it is over")
        fleet.born("one")
        fleet.finish()
        assert [len(w.said("ledger.away")) for w in workers] == [1, 1]
        fleet.stop()
        fleet.audit(["one"])

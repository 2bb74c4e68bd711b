"""The connections to PostgreSQL: no wait without end, no more of them than allowed, and one for the lease alone."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest

from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.database import CONNECTIONS, Cursor
from penstock.ledger.store.postgres import connection, pool
from penstock.ledger.store.postgres.database import PostgresDatabase
from penstock.ledger.store.postgres.share import Places, too_many
from penstock.ledger.store.presence import Presence
from penstock.model.clock import SystemClock
from penstock.model.errors import CommitUnknown, LedgerBusy, LedgerError, LedgerUnavailable
from tests.support.machines import INVOICE


@contextlib.contextmanager
def opened(url: str, connections: int = CONNECTIONS) -> Iterator[PostgresDatabase]:
    database = PostgresDatabase(url, SystemClock(), connections=connections)
    try:
        yield database
    finally:
        database.close()


def one(cursor: Cursor) -> int:
    return int(cursor.rows("SELECT 1")[0][0])


def open_to(url: str) -> int:
    """How many connections of ours the server has to the database."""
    with psycopg.connect(url, application_name="counting") as count:
        row = count.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'penstock'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def together(*work: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=each, daemon=True) for each in work]
    for thread in threads:
        thread.start()
    return threads


def limit(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for name in ("BEGIN_SECONDS", "WRITE_SECONDS", "READ_SECONDS", "PATIENT_SECONDS"):
        monkeypatch.setattr(connection, name, seconds)


def test_a_call_over_a_line_that_is_up_and_silent_ends(proxied_url, proxy, monkeypatch):
    limit(monkeypatch, 1.0)

    def stalled(cursor: Cursor) -> None:
        proxy.frozen = True
        one(cursor)

    with opened(f"{proxied_url}?connect_timeout=2") as database:
        for call in (database.write, database.read):
            with pytest.raises(LedgerUnavailable, match="did not answer") as caught:
                call(stalled)
            assert not isinstance(caught.value, CommitUnknown)
            with pytest.raises(LedgerUnavailable, match="connection timeout expired"):
                call(one)
            proxy.frozen = False
            assert call(one) == 1


def test_a_commit_over_such_a_line_is_unknown(proxied_url, proxy, monkeypatch):
    limit(monkeypatch, 1.0)
    with opened(proxied_url) as database:
        database.write(lambda c: c.run("CREATE TABLE half_done (id int)"))
        proxy.freeze_at_commit = True
        with pytest.raises(CommitUnknown, match="did not answer"):
            database.write(lambda c: c.run("INSERT INTO half_done VALUES (1)"))
        proxy.freeze_at_commit = proxy.frozen = False


def test_a_connection_that_fell_silent_unused_is_replaced_before_anything_is_asked_of_it(
    proxied_url, proxy, monkeypatch
):
    limit(monkeypatch, 1.0)
    with opened(proxied_url) as database:
        database.read(one)
        proxy.frozen = True
        threading.Timer(1.5, lambda: setattr(proxy, "frozen", False)).start()
        assert database.read(one) == 1


def test_a_long_statement_goes_on_as_long_as_the_server_answers(proxied_url, proxy, monkeypatch):
    monkeypatch.setattr(connection, "PATIENT_SECONDS", 0.2)
    with opened(f"{proxied_url}?connect_timeout=2") as database:
        slow = "SELECT 7 FROM (SELECT pg_sleep(1.5)) AS slept"
        assert database.alter(lambda c: c.rows(slow)) == [(7,)]
        assert database.read(lambda c: c.rows(slow), patient=True) == [(7,)]

        def stalled(cursor: Cursor) -> None:
            proxy.frozen = True
            cursor.rows(slow)

        with pytest.raises(LedgerUnavailable, match="did not answer"):
            database.read(stalled, patient=True)
        proxy.frozen = False


def test_a_session_that_can_no_longer_be_written_to_is_replaced(postgres_url):
    """As after a failover that left connections to a server that is now a standby."""
    with opened(postgres_url) as database:
        database.write(lambda c: c.run("SET default_transaction_read_only = on"))
        with pytest.raises(LedgerUnavailable, match="read-only"):
            database.write(lambda c: c.run("CREATE TABLE made (id int)"))
        database.write(lambda c: c.run("CREATE TABLE made (id int)"))


@pytest.mark.parametrize("mode", ["disable", "require"])
def test_a_server_that_accepts_and_says_nothing_is_given_up(mode):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/x?connect_timeout=2&sslmode={mode}"
        with opened(url) as database, pytest.raises(LedgerUnavailable, match="connection timeout expired"):
            database.read(one)


def test_an_outage_is_told_once_and_so_is_its_end():
    told: list[str] = []
    presence = Presence()
    presence.tell(
        lambda error: told.append(str(error)), lambda: told.append("back"), lambda error: told.append(f"busy: {error}")
    )
    presence.failed("write", LedgerBusy("a lock"))
    presence.failed("write", LedgerBusy("another"))
    assert told.pop() == "busy: a lock", "once a minute"
    presence.failed("read", LedgerUnavailable("first"))
    presence.failed("write", LedgerUnavailable("second"))
    presence.worked("read")
    assert told == ["first"], "what can be read may still refuse to be written to"
    presence.worked("write")
    presence.worked("write")
    assert told == ["first", "back"]
    assert not presence.away


def test_no_more_connections_are_opened_than_allowed_and_idle_ones_are_given_back(postgres_url, monkeypatch):
    with opened(postgres_url, connections=4) as database:
        most: list[int] = []

        def slow(cursor: Cursor) -> None:
            cursor.rows("SELECT pg_sleep(0.2)")
            most.append(open_to(postgres_url))

        work = [lambda: database.read(slow), lambda: database.write(slow)] * 5
        for thread in together(*work):
            thread.join(60)
        assert len(most) == 10
        assert max(most) == 3, "all but the lease's"
        monkeypatch.setattr(pool, "IDLE_SECONDS", 0.5)
        deadline = time.monotonic() + 60
        while open_to(postgres_url) > 1:
            assert time.monotonic() < deadline, "idle connections stay"
            time.sleep(0.2)
            database.read(one)


def test_a_write_finds_a_place_however_many_reads_are_under_way(postgres_url):
    with opened(postgres_url, connections=4) as database:
        over = threading.Event()

        def long(cursor: Cursor) -> None:
            while not over.is_set():
                cursor.rows("SELECT pg_sleep(0.05)")

        readers = together(*[lambda: database.read(long)] * 4)
        assert database.write(one) == 1
        over.set()
        for reader in readers:
            reader.join(60)


def test_a_renewal_waits_for_no_other_work_of_its_process(postgres_url):
    with Ledger.open(postgres_url, [INVOICE], create=True) as ledger:
        session = ledger.incarnation()
        session.register()
        over = threading.Event()

        def long(cursor: Cursor) -> None:
            while not over.is_set():
                cursor.rows("SELECT pg_sleep(0.05)")

        def call() -> None:
            with contextlib.suppress(LedgerError):
                ledger.database.write(long)

        busy = together(*[call] * 20)
        time.sleep(1.0)  # every place is taken, whatever their number
        assert session.renew() is not None
        assert all(thread.is_alive() for thread in busy)
        over.set()
        for thread in busy:
            thread.join(60)


@pytest.mark.parametrize(
    ("workers", "shares"),
    [(1, [87]), (10, [9] * 7 + [8] * 3), (50, [2] * 37 + [1] * 13), (200, [1] * 200)],
)
def test_workers_share_the_places_of_the_server(workers, shares):
    assert [Places(97, 0, workers, rank).share() for rank in range(workers)] == shares


def test_the_doctor_compares_what_workers_may_open_with_what_the_server_takes(postgres_url):
    assert list(too_many(Places(97, 0, 14), 6)) == []
    (crowded,) = too_many(Places(97, 0, 50), 6)
    assert crowded.severity == "warning"
    assert "50 workers may open 6 connections each, 300 together" in crowded.message
    (full,) = too_many(Places(97, 20, 80), 6)
    assert full.severity == "error"
    with Ledger.open(postgres_url, [INVOICE], create=True, connections=1_000) as ledger:
        assert [f for f in examine(ledger.database, ledger.machines) if f.check == "connections"] == []
        ledger.incarnation().register()
        (found,) = [f for f in examine(ledger.database, ledger.machines) if f.check == "connections"]
        assert "1 worker may open 1,000 connections, 1,000 together" in found.message


def test_a_worker_more_than_the_server_has_places_for_is_not_let_in(postgres_url):
    with (
        Ledger.open(postgres_url, [INVOICE], create=True) as ledger,
        psycopg.connect(postgres_url) as crowd,
    ):
        crowd.execute(
            "INSERT INTO worker (id, host, pid, started_at, lease_until, machines)"
            " SELECT 'w' || n, 'there', n, now(), now() + interval '1 hour', '[]' FROM generate_series(1, 500) AS n"
        )
        crowd.commit()
        with pytest.raises(LedgerUnavailable, match=r"500 workers use all \d+ connections left for them"):
            ledger.incarnation().register()
        assert crowd.execute("SELECT count(*) FROM worker").fetchone() == (500,)

"""The primary dies under load and its synchronous standby takes over: nothing is lost, nothing happens twice."""

from __future__ import annotations

import psycopg
import pytest

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.postgres.address import Address
from penstock.model.errors import UsageError
from tests.support.fleet import PATIENCE, Fleet, until
from tests.support.machines import INVOICE
from tests.support.postgres import HOST, free_port
from tests.support.replication import Pair


def test_a_synchronous_standby_takes_over_under_load(tmp_path):
    names = [f"{n:04}" for n in range(800)]
    with Pair() as pair:
        pair.primary.execute("CREATE DATABASE ledger")
        options = {"concurrency": 10, "slots": 40, "claim_at_once": 20, "lease_ms": 5_000, "renew_seconds": 1.0}
        with Fleet(pair.url("ledger"), tmp_path / "fleet", **options) as fleet:
            fleet.born(*names, before_ms=50)
            workers = fleet.start(2)
            until(lambda: len(fleet.effects.made()) > 150, "they work")
            pair.kill_primary()
            until(lambda: all(w.said("ledger.away") for w in workers), "they notice")
            done_before = len(fleet.effects.made())
            assert done_before < len(names), "it happened under load"
            pair.promote()
            until(lambda: all(w.said("ledger.back") for w in workers), "they find the other server")
            fleet.finish(2 * PATIENCE)
            assert fleet.living == workers
            fleet.stop()
            fleet.audit(names)


def test_of_several_hosts_the_one_that_can_be_written_to_is_found(postgres_url, tmp_path):
    """The first host is not there; nothing says which kind of session is wanted."""
    server = Address.parse(postgres_url)
    url = f"postgresql://{server.user}@{HOST}:{free_port()},{server.hosts}/{server.database}"
    with Ledger.open(url, [INVOICE], create=True) as ledger:
        assert ledger.read(lambda c: c.rows("SELECT 1")) == [(1,)]
        assert ledger.read(lambda c: c.rows("SHOW transaction_read_only")) == [("on",)]
        assert ledger.database.url == url
    with psycopg.connect(Address.parse(url).bare) as plain:  # as pg_dump and psql read it
        assert plain.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me@a:1,b:2/x", {"host": "a,b", "port": "1,2", "target_session_attrs": "read-write"}),
        ("postgresql://me@a,b/x?target_session_attrs=any", {"host": "a,b", "target_session_attrs": "any"}),
        ("postgres://me:p%40ss@a/x", {"user": "me", "password": "p@ss", "host": "a", "dbname": "x"}),
        ("postgresql://me@[::1]:5433,[::2]/x", {"host": "::1,::2", "port": "5433,"}),
        ("postgresql:///x?host=/run/postgresql", {"host": "/run/postgresql", "dbname": "x"}),
        ("postgresql://me@/x?host=a:1&host=b:2", {"host": "a,b", "port": "1,2"}),
        ("postgresql://me@h/x?options=-c%20search_path%3Dours", {"options": "-c search_path=ours"}),
        ("postgresql://me@h/x?application_name=mine", {"application_name": "mine"}),
    ],
)
def test_an_address_is_read_as_libpq_reads_it(url, expected):
    found = Address.parse(url).parameters()
    assert {name: found.get(name) for name in expected} == expected
    if "target_session_attrs" not in expected and "," not in found.get("host", ""):
        assert "target_session_attrs" not in found


def test_a_password_is_never_shown(tmp_path):
    address = Address.parse("postgresql://me:hush-hush@a:1,b:2/x?sslmode=require")
    assert address.shown == "postgresql://me:***@a:1,b:2/x?sslmode=require"
    assert address.bare == "postgresql://me@a:1,b:2/x?sslmode=require"
    for wrong in ("postgresql://me:hush-hush@h:port/x", "postgresql://me:hush-hush@a:1,b:x/x",
                  "postgresql://me:hush-hush@h/x?no_such_option=1"):  # fmt: skip
        with pytest.raises(UsageError, match="is not a PostgreSQL address") as caught:
            Address.parse(wrong)
        assert "hush" not in str(caught.value)

from __future__ import annotations

import socket

import psycopg
import pytest
from sqlalchemy import create_engine, make_url, text


@pytest.mark.parametrize("turn", [1, 2])
def test_every_test_gets_an_empty_database(postgres_url, turn):
    with psycopg.connect(postgres_url) as connection:
        tables = connection.execute(
            "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        ).fetchall()
        assert tables == []
        connection.execute("CREATE TABLE left_behind (turn int)")


def test_the_server_is_recent_and_durable(postgres_url):
    with psycopg.connect(postgres_url) as connection:
        assert connection.info.server_version >= 140000
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_the_server_is_reachable_over_tcp(postgres_tcp):
    with socket.create_connection(postgres_tcp, timeout=5):
        pass


def test_sqlalchemy_takes_the_url(postgres_url):
    engine = create_engine(postgres_url)
    assert engine.driver == "psycopg"
    with engine.connect() as connection:
        assert connection.execute(text("SELECT 1")).scalar_one() == 1
    engine.dispose()


def test_a_ledger_url_names_an_empty_database(ledger_url, tmp_path):
    url = make_url(ledger_url)
    assert url.get_backend_name() in {"sqlite", "postgresql"}
    if url.get_backend_name() == "sqlite":
        assert url.database == str(tmp_path / "penstock.db")
        assert not (tmp_path / "penstock.db").exists()

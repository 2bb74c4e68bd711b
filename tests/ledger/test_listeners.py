"""Hearing of what others write: one's own does not count, and a place on the server is not kept from work."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest

from penstock.ledger.store.bell import Listener
from penstock.ledger.store.database import Database, open_database
from penstock.ledger.store.postgres.database import PostgresDatabase
from penstock.model.clock import SystemClock
from penstock.model.errors import LedgerUnavailable
from tests.support.fleet import PATIENCE


def opened(url: str, **options: Any) -> Any:
    return closing(open_database(url, SystemClock(), **options))


def hears(listener: Listener) -> bool:
    """It may take a moment to come through; what never comes is not heard after a minute."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if listener.heard():
            return True
        time.sleep(0.01)
    return False


def written_by(database: Database) -> None:
    database.write(lambda cursor: cursor.run("INSERT INTO penstock_meta VALUES (1)"))
    database.rouse()


@pytest.fixture
def made(ledger_url: str) -> str:
    with opened(ledger_url) as database:
        database.write(lambda cursor: cursor.run("CREATE TABLE penstock_meta (id int)"))
    return ledger_url


def test_others_are_heard_and_oneself_is_not(made):
    with opened(made) as ours, opened(made) as theirs:
        listener = ours.listen()
        assert listener is not None
        written_by(ours)
        written_by(theirs)
        assert hears(listener)
        written_by(ours)
        assert not listener.heard()
        written_by(theirs)
        assert hears(listener)
        listener.close()


def test_a_ledger_listens_where_work_has_a_place_besides(postgres_url):
    with opened(postgres_url, connections=2) as small:
        assert small.listen() is None
    with opened(postgres_url, connections=3) as database:
        assert isinstance(database, PostgresDatabase)
        listener = database.listen()
        assert listener is not None
        assert database.listen() is None, "one for a process"
        assert not listener.heard()
        database._pool.size = 2  # as when more workers came
        with pytest.raises(LedgerUnavailable, match="wanted for work"):
            listener.heard()
        listener.close()
        database._pool.size = 3
        assert database.listen() is not None

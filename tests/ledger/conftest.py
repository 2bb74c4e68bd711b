"""A ledger with every sample machine, and a person at its SQL prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ledger.ledger import Ledger
from tests.support.copies import copied, copied_file, made_file, made_template
from tests.support.hand import Hand
from tests.support.machines import MACHINES


def make(url: str) -> Ledger:
    """A ledger with every sample machine."""
    return Ledger.open(url, MACHINES, create=True)


@pytest.fixture(scope="session")
def sqlite_machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_file(tmp_path_factory, make)


@pytest.fixture(scope="session")
def postgres_machines(postgres_server: str) -> Iterator[str]:
    with made_template(postgres_server, make) as name:
        yield name


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """As elsewhere; beside `hand` it is the address of the ledger that `hand` is connected to."""
    if "hand" in request.fixturenames:
        with copied(request, tmp_path, "sqlite_machines", "postgres_machines") as url:
            yield url
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'penstock.db'}"
    else:
        yield request.getfixturevalue("postgres_url")


@pytest.fixture
def hand(ledger_url: str) -> Iterator[Hand]:
    """A raw connection to an empty ledger; a test that takes it runs once on each engine."""
    with Hand(ledger_url) as hand:
        yield hand


@pytest.fixture
def sqlite_hand(sqlite_machines: Path, tmp_path: Path) -> Iterator[Hand]:
    """As `hand`, for statements that only SQLite has."""
    with Hand(copied_file(sqlite_machines, tmp_path)) as hand:
        yield hand


@pytest.fixture
def postgres_hand(postgres_url: str) -> Iterator[Hand]:
    """As `hand`, for statements that only PostgreSQL has."""
    make(postgres_url).close()
    with Hand(postgres_url) as hand:
        yield hand

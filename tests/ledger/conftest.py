"""A ledger with every sample machine, and a person at its SQL prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ledger.ledger import Ledger
from tests.support.hand import Hand
from tests.support.machines import MACHINES


def made(url: str) -> str:
    """Make a ledger with every sample machine there, and leave it."""
    Ledger.open(url, MACHINES, create=True).close()
    return url


@pytest.fixture
def hand(ledger_url: str) -> Iterator[Hand]:
    """A raw connection to an empty ledger; a test that takes it runs once on each engine."""
    with Hand(made(ledger_url)) as hand:
        yield hand


@pytest.fixture
def sqlite_hand(tmp_path: Path) -> Iterator[Hand]:
    """As `hand`, for statements that only SQLite has."""
    with Hand(made(f"sqlite:///{tmp_path / 'penstock.db'}")) as hand:
        yield hand


@pytest.fixture
def postgres_hand(postgres_url: str) -> Iterator[Hand]:
    """As `hand`, for statements that only PostgreSQL has."""
    with Hand(made(postgres_url)) as hand:
        yield hand

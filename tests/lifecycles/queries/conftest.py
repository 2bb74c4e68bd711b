"""Ledgers of queries on both databases: copies of one that is made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ledger.ledger import Ledger
from penstock.model.clock import VirtualClock
from tests.support.copies import copied, copied_file, made_file, made_template
from tests.support.queries import START, open_ledger
from tests.support.sheets import Sheets, sheets


def _make(url: str) -> Ledger:
    return open_ledger(url, VirtualClock(START))


@pytest.fixture(scope="session")
def queries_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger in a file, to be copied."""
    return made_file(tmp_path_factory, _make)


@pytest.fixture(scope="session")
def queries_template(postgres_server: str) -> Iterator[str]:
    """Name of a ledger on the server, to be copied."""
    with made_template(postgres_server, _make) as name:
        yield name


@pytest.fixture(params=["sqlite", "postgres"])
def queries_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a ledger of queries; a test that takes it runs once on each database."""
    with copied(request, tmp_path, "queries_file", "queries_template") as url:
        yield url


@pytest.fixture
def world(queries_url: str, tmp_path: Path) -> Iterator[Sheets]:
    """A ledger and an empty spreadsheet, at half past three in Madrid."""
    with sheets(queries_url, tmp_path) as made:
        yield made


@pytest.fixture
def local(queries_file: Path, tmp_path: Path) -> Iterator[Sheets]:
    """The same on SQLite alone: where only the sheet matters."""
    with sheets(copied_file(queries_file, tmp_path), tmp_path) as made:
        yield made

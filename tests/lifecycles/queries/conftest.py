"""Ledgers of queries on both databases: copies of one that is made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.model.clock import VirtualClock
from tests.support.databases import temporary_database
from tests.support.queries import START, open_ledger
from tests.support.sheets import Sheets, sheets


@pytest.fixture(scope="session")
def queries_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger in a file, to be copied."""
    path = tmp_path_factory.mktemp("queries") / "penstock.db"
    open_ledger(f"sqlite:///{path}", VirtualClock(START)).close()
    return path


@pytest.fixture(scope="session")
def queries_template(postgres_server: str) -> Iterator[str]:
    """Name of a ledger on the server, to be copied."""
    with temporary_database(postgres_server) as url:
        open_ledger(url, VirtualClock(START)).close()
        yield urlsplit(url).path[1:]


@pytest.fixture(params=["sqlite", "postgres"])
def queries_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a ledger of queries; a test that takes it runs once on each database."""
    if request.param == "sqlite":
        path = tmp_path / "penstock.db"
        shutil.copy(request.getfixturevalue("queries_file"), path)
        yield f"sqlite:///{path}"
        return
    server, template = request.getfixturevalue("postgres_server"), request.getfixturevalue("queries_template")
    with temporary_database(server, template=template) as url:
        yield url


@pytest.fixture
def world(queries_url: str, tmp_path: Path) -> Iterator[Sheets]:
    """A ledger and an empty spreadsheet, at half past three in Madrid."""
    with sheets(queries_url, tmp_path) as made:
        yield made


@pytest.fixture
def local(queries_file: Path, tmp_path: Path) -> Iterator[Sheets]:
    """The same on SQLite alone: where only the sheet matters."""
    path = tmp_path / "penstock.db"
    shutil.copy(queries_file, path)
    with sheets(f"sqlite:///{path}", tmp_path) as made:
        yield made

"""Ledgers from which things are erased, on both databases: copies of one that is made once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from penstock.model.clock import VirtualClock
from tests.support.databases import temporary_database
from tests.support.erasing import START, Site, open_ledger, site


@pytest.fixture(scope="session")
def erasing_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger in a file, to be copied."""
    path = tmp_path_factory.mktemp("template") / "penstock.db"
    open_ledger(f"sqlite:///{path}", VirtualClock(START)).close()
    return path


@pytest.fixture(scope="session")
def erasing_template(postgres_server: str) -> Iterator[str]:
    """Name of a ledger on the server, to be copied."""
    with temporary_database(postgres_server) as url:
        open_ledger(url, VirtualClock(START)).close()
        yield urlsplit(url).path[1:]


@pytest.fixture(params=["sqlite", "postgres"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A site with nothing read yet; a test that takes it runs once on each database."""
    if request.param == "sqlite":
        path = tmp_path / "penstock.db"
        shutil.copy(request.getfixturevalue("erasing_file"), path)
        with site(f"sqlite:///{path}", tmp_path) as made:
            yield made
        return
    server, template = request.getfixturevalue("postgres_server"), request.getfixturevalue("erasing_template")
    with temporary_database(server, template=template) as url, site(url, tmp_path) as made:
        yield made


@pytest.fixture
def local(erasing_file: Path, tmp_path: Path) -> Iterator[Site]:
    """The same on SQLite alone."""
    path = tmp_path / "penstock.db"
    shutil.copy(erasing_file, path)
    with site(f"sqlite:///{path}", tmp_path) as made:
        yield made

"""Ledgers from which things are erased, on both databases: copies of one that is made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ledger.ledger import Ledger
from penstock.model.clock import VirtualClock
from tests.support.copies import copied, copied_file, made_file, made_template
from tests.support.erasing import START, Site, open_ledger, site


def _make(url: str) -> Ledger:
    return open_ledger(url, VirtualClock(START))


@pytest.fixture(scope="session")
def erasing_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger in a file, to be copied."""
    return made_file(tmp_path_factory, _make)


@pytest.fixture(scope="session")
def erasing_template(postgres_server: str) -> Iterator[str]:
    """Name of a ledger on the server, to be copied."""
    with made_template(postgres_server, _make) as name:
        yield name


@pytest.fixture(params=["sqlite", "postgres"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """A site with nothing read yet; a test that takes it runs once on each database."""
    with copied(request, tmp_path, "erasing_file", "erasing_template") as url, site(url, tmp_path) as made:
        yield made


@pytest.fixture
def local(erasing_file: Path, tmp_path: Path) -> Iterator[Site]:
    """The same on SQLite alone."""
    with site(copied_file(erasing_file, tmp_path), tmp_path) as made:
        yield made

"""Partitions on both databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.console import Console, console
from tests.support.databases import temporary_database
from tests.support.partitions import Partitions


@pytest.fixture(scope="session")
def partitions_template(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Name of a database with the machines of partitions, to be copied: much faster than making another."""
    with temporary_database(postgres_server) as url:
        Partitions(url, tmp_path_factory.mktemp("template")).close()
        yield urlsplit(url).path[1:]


@pytest.fixture(params=["sqlite", "postgres"])
def partitions_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database for partitions; a test that takes it runs once on each engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'penstock.db'}"
        return
    server = request.getfixturevalue("postgres_server")
    with temporary_database(server, template=request.getfixturevalue("partitions_template")) as url:
        yield url


@pytest.fixture
def world(partitions_url: str, tmp_path: Path) -> Iterator[Partitions]:
    """A ledger and a sink on a clock of the test's own."""
    made = Partitions(partitions_url, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def penstock() -> Iterator[Console]:
    """Call a command: `penstock("status", cwd=folder)`."""
    with console() as made:
        yield made

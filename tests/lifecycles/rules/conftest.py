"""Ledgers of price rules on both databases: copies of one that is made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ledger.ledger import Ledger
from penstock.model.clock import VirtualClock
from tests.support.copies import copied, made_file, made_template
from tests.support.databases import temporary_database
from tests.support.prices import START, open_ledger


def _make(url: str) -> Ledger:
    return open_ledger(url, VirtualClock(START))


@pytest.fixture(scope="session")
def rules_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger in a file, to be copied."""
    return made_file(tmp_path_factory, _make)


@pytest.fixture(scope="session")
def rules_template(postgres_server: str) -> Iterator[str]:
    """Name of a ledger on the server, to be copied."""
    with made_template(postgres_server, _make) as name:
        yield name


@pytest.fixture(params=["sqlite", "postgres"])
def rules_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a ledger of price rules; a test that takes it runs once on each database."""
    with copied(request, tmp_path, "rules_file", "rules_template") as url:
        yield url


@pytest.fixture
def postgres_rules_url(postgres_server: str, rules_template: str) -> Iterator[str]:
    """URL of a ledger of price rules on the server."""
    with temporary_database(postgres_server, template=rules_template) as url:
        yield url

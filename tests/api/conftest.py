"""Sites on either database, and one in which nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.databases import temporary_database
from tests.support.web import Client, Site, site


@pytest.fixture(scope="session")
def postgres_site(postgres_server: str) -> Iterator[str]:
    """Name of a database with a shop, to be copied: much faster than making another."""
    with temporary_database(postgres_server) as url:
        Site(url).close()
        yield urlsplit(url).path[1:]


@pytest.fixture(params=["sqlite", "postgres"])
def site_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database for a shop; a test that takes it runs once on each engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'penstock.db'}"
        return
    server = request.getfixturevalue("postgres_server")
    with temporary_database(server, template=request.getfixturevalue("postgres_site")) as url:
        yield url


@pytest.fixture
def shop_site(site_url: str) -> Iterator[Site]:
    with site(site_url) as made:
        yield made


@pytest.fixture
def client(shop_site: Site) -> Client:
    """A person at this machine."""
    return shop_site.client()


@pytest.fixture(scope="session")
def still_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site in which nothing is changed, for what has nothing to do with the database."""
    with site(f"sqlite:///{tmp_path_factory.mktemp('still') / 'penstock.db'}") as made:
        yield made


@pytest.fixture(scope="session")
def still_client(still_site: Site) -> Client:
    return still_site.client()

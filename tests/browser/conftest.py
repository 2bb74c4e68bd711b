"""One browser and one staged ledger on each database for all tests here; they run in one process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.chromium import Person, launched
from tests.support.databases import temporary_database
from tests.support.staged import serving, stage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Opens = Callable[..., Person]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with launched() as made:
        yield made


@pytest.fixture(scope="package")
def still_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On SQLite; nothing is changed in it."""
    folder = tmp_path_factory.mktemp("still")
    stage(folder, f"sqlite:///{folder / 'penstock.db'}")
    return folder


@pytest.fixture(scope="package")
def acting_folder(tmp_path_factory: pytest.TempPathFactory, postgres_server: str) -> Iterator[Path]:
    """On PostgreSQL; tests act on it."""
    folder = tmp_path_factory.mktemp("acting")
    with temporary_database(postgres_server) as url:
        stage(folder, url)
        yield folder


@pytest.fixture(scope="package")
def still(still_folder: Path) -> Iterator[str]:
    with serving(still_folder) as address:
        yield address


@pytest.fixture(scope="package")
def prefixed(still_folder: Path) -> Iterator[str]:
    """Below a path, where everybody signs in."""
    more = 'root_path = "/below/here"\nrequire_token = true'
    with serving(still_folder, web=more, name="prefixed") as address:
        yield address


@pytest.fixture(scope="package")
def acting(acting_folder: Path) -> Iterator[str]:
    with serving(acting_folder) as address:
        yield address


@pytest.fixture
def opens(browser: Browser) -> Iterator[Opens]:
    """Opens browsers of people; errors that their pages told, and requests to other hosts, fail the test."""
    people: list[Person] = []

    def person(home: str, *, width: int = 1280, token: str | None = None, **wishes: Any) -> Person:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        size: Any = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, extra_http_headers=headers, **wishes)
        people.append(Person(context, home))
        return people[-1]

    yield person
    for one in people:
        one.close()


@pytest.fixture(scope="package")
def tokens(still_folder: Path) -> Mapping[str, str]:
    """A token for each role."""
    return {role: token_of(still_folder, role) for role in ("viewer", "operator")}


def token_of(folder: Path, role: str) -> str:
    """A new token for somebody of that role."""
    run = [sys.executable, "-c", "from penstock.cli.main import main; main()", "token", "create", role]
    done = subprocess.run([*run, "--role", role], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[1]

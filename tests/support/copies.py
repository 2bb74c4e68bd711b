"""Ledgers for tests on both databases: one is made once, and each test has a copy of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.ledger.ledger import Ledger
from penstock.model.clock import Clock, Rng
from penstock.model.errors import LedgerMismatch
from penstock.model.machine import Machine
from tests.support.databases import temporary_database

Make = Callable[[str], Any]
"""Makes a ledger at an address, and returns it to be closed."""


def opened(url: str, machines: Iterable[Machine], *, clock: Clock, rng: Rng, **made: Any) -> Ledger:
    """The ledger at an address, which may be a copy of one that was made before; else a new one, `made` of more."""
    try:
        return Ledger.open(url, machines, clock=clock, rng=rng)
    except LedgerMismatch:
        return Ledger.open(url, machines, clock=clock, rng=rng, create=True, **made)


def made_file(factory: pytest.TempPathFactory, make: Make) -> Path:
    """A ledger in a file, to be copied."""
    path = factory.mktemp("template") / "penstock.db"
    make(f"sqlite:///{path}").close()
    return path


@contextmanager
def made_template(server: str, make: Make) -> Iterator[str]:
    """Name of a ledger on the server, to be copied."""
    with temporary_database(server) as url:
        make(url).close()
        yield urlsplit(url).path[1:]


def copied_file(file: Path, folder: Path) -> str:
    """URL of a copy in a folder."""
    path = folder / "penstock.db"
    shutil.copy(file, path)
    return f"sqlite:///{path}"


@contextmanager
def copied(request: pytest.FixtureRequest, folder: Path, file: str, template: str) -> Iterator[str]:
    """URL of a copy, on the database that is the fixture's parameter; `file` and `template` are names of fixtures."""
    if request.param == "sqlite":
        yield copied_file(request.getfixturevalue(file), folder)
        return
    server, name = request.getfixturevalue("postgres_server"), request.getfixturevalue(template)
    with temporary_database(server, template=name) as url:
        yield url

"""Fixtures shared by all tests: fresh databases on both engines."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import hypothesis
import pytest

from penstock.model.clock import SystemClock
from penstock.settings import redaction
from tests.support.copies import copied, made_file, made_template
from tests.support.databases import temporary_database
from tests.support.postgres import Cluster, in_memory
from tests.support.proxy import Proxy
from tests.support.world import World

TOGETHER = (
    "tests/ledger/test_plans.py",
    "tests/lifecycles/queries/test_plans.py",
    "tests/cli/test_bad_input.py",
    "tests/cli/test_secrets.py",
    "tests/test_wheel.py",
)
"""Modules that take long to set up: the tests of each run in one process, so that it is done once."""
BROWSER = "tests/browser/"
"""A folder likewise: one browser and one staged ledger for all of it."""
LONG = ("tests/cli/test_demo.py", "tests/lifecycles/queries/test_year.py", "tests/test_tutorial.py")
"""Modules whose tests take longest: they begin early, so that no worker is left alone with one at the end."""
WAITING = (
    *("tests/crash/", "tests/test_chaos.py"),
    *("tests/cli/test_up.py", "tests/cli/test_web.py", "tests/cli/test_simulator.py"),
)
"""Where tests mostly wait, for leases and processes: half of the workers begin with them, the others have the cores."""
# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
HOME = pytest.StashKey[Path]()
LEADER = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    shared = getattr(config, "workerinput", None)  # set in the workers of pytest-xdist
    if shared is None:
        config.stash[HOME] = in_memory() / f"penstock-postgres-{uuid.uuid4().hex[:12]}"
        config.stash[LEADER] = os.getpid()
    else:
        config.stash[HOME] = Path(shared["postgres_home"])
        config.stash[LEADER] = shared["postgres_leader"]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    node.workerinput["postgres_home"] = str(node.config.stash[HOME])
    node.workerinput["postgres_leader"] = node.config.stash[LEADER]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # Its mark `xdist_group` does nothing: pytest-xdist 3.8 writes it where pytest 9.2 no longer looks.
    from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            if module.startswith(BROWSER):
                return BROWSER
            return module if module in TOGETHER else nodeid

        def _assign_work_unit(self, node: Any) -> None:
            if self.nodes.index(node) % 2 == 0:  # from the end, where those are that wait
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    return Scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.startswith(WAITING) - item.nodeid.startswith(LONG))


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the collector need not look at a million objects again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    if config.stash.get(LEADER, None) == os.getpid() and config.stash[HOME].exists():
        Cluster(config.stash[HOME]).stop()


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    """What a test conceals is nobody's secret after it: elsewhere it may be a text like any other."""
    before = dict(redaction._values)
    yield
    for value, times in list(redaction._values.items()):
        for _ in range(times - before.get(value, 0)):
            redaction.release(value)


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> str:
    """URL of the maintenance database of a running server, as a role that may create databases."""
    given = os.environ.get("PENSTOCK_TEST_POSTGRES")
    if given:
        return given
    cluster = Cluster(request.config.stash[HOME])
    cluster.ensure_started(request.config.stash[LEADER])
    return cluster.url


@pytest.fixture(scope="session")
def postgres_tcp(postgres_server: str) -> tuple[str, int]:
    """Host and port of the server, for tests that put something in between."""
    address = urlsplit(postgres_server)
    return address.hostname or "127.0.0.1", address.port or 5432


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """URL of an empty database that exists for this test alone."""
    with temporary_database(postgres_server) as url:
        yield url


@pytest.fixture
def proxy(postgres_tcp: tuple[str, int]) -> Iterator[Proxy]:
    """Between the tests and the server: it loses, delays and freezes."""
    with Proxy(postgres_tcp) as made:
        yield made


@pytest.fixture
def proxied_url(proxy: Proxy, postgres_url: str) -> str:
    """`postgres_url`, over the proxy."""
    address = urlsplit(postgres_url)
    return urlunsplit(address._replace(netloc=f"{address.username}@127.0.0.1:{proxy.port}"))


@pytest.fixture(scope="session")
def sqlite_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the sample machines, to be copied: much faster than making another."""
    return made_file(tmp_path_factory, World)


@pytest.fixture(scope="session")
def postgres_world(postgres_server: str) -> Iterator[str]:
    """Name of a database likewise."""
    with made_template(postgres_server, World) as name:
        yield name


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database; a test that takes it runs once on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'penstock.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["sqlite", "postgres"])
def world_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database with the sample machines; a test that takes it runs once on each engine."""
    with copied(request, tmp_path, "sqlite_world", "postgres_world") as url:
        yield url


@pytest.fixture
def world(world_url: str) -> Iterator[World]:
    """A ledger with the sample machines on a clock of the test's own; runs on both databases."""
    made = World(world_url)
    yield made
    made.close()


@pytest.fixture
def real_world(world_url: str) -> Iterator[World]:
    """The same on the machine's clock, for threads."""
    made = World(world_url, SystemClock())
    yield made
    made.close()

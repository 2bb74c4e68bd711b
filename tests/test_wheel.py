"""Penstock as others get it: a wheel in a fresh environment, with a package beside it that brings a lifecycle.

Nothing is fetched. The environment sees the packages that this one has by a `.pth` file, which comes after its own; so
Penstock and the small package are the ones that were installed from their wheels.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(sys.executable).parent
# A `.pth` file runs nothing of the folder that it names: the link to this source tree stays unseen.
PACKAGES = sysconfig.get_path("purelib")

PACKAGE = '''\
"""A lifecycle that comes with an installed package."""

from penstock import Lifecycle, NoSettings

from greetings.machine import machine


def build(settings, ports):
    from greetings.flow import Greetings

    return [Greetings(settings)]


lifecycle = Lifecycle("greetings", "Names that are greeted.", settings=NoSettings, machines=[machine], build=build)
'''
MACHINE = """\
from penstock import Actor, Edge, Machine, State, Unit, done, rest


class S(State):
    NEW = rest("new", "not greeted yet")
    DONE = done("done", "greeted")


class Greeting(Unit):
    key = ("name",)
    status: S = S.NEW
    name: str
    text: str | None = None


machine = Machine(
    "greeting",
    Greeting,
    births={S.NEW: {Actor.OPERATOR}},
    edges=[Edge(S.NEW, S.DONE, "greeted", {Actor.WORKER})],
    terminal={S.DONE},
)
"""
FLOW = """\
from penstock import Act, Flow, Outcome, replace

from greetings.machine import S, machine


class Greetings(Flow):
    machine = machine

    @staticmethod
    def decide(unit, now, settings, seen):
        return Act("greet", "a name without a greeting")

    async def act(self, what, unit, seen, io):
        return Outcome(unit, replace(unit, status=S.DONE, text=f"hello, {unit.name}"), "greeted")
"""
PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "greetings"
version = "1.0"
dependencies = ["penstock"]

[project.entry-points."penstock.lifecycles"]
greetings = "greetings:lifecycle"
broken = "greetings.nowhere:lifecycle"
"""
TYPED = '''\
"""A user's file, as a type checker sees it against the installed wheel."""

from datetime import datetime, timedelta
from typing import Annotated

from penstock import (
    Act, Actor, App, Decision, Edge, Flow, Io, Ledger, Lifecycle, Machine, Outcome, Ports, Settings, State, Unit, done,
    replace, rest, run, says,
)
from penstock.testing import temporary_ledger, work_until_idle


class S(State):
    NEW = rest("new", "not greeted yet")
    DONE = done("done", "greeted")


class Greeting(Unit):
    key = ("name",)
    status: S = S.NEW
    name: str


class GreetingSettings(Settings):
    pause: Annotated[timedelta, says("How long to wait.")] = timedelta(minutes=1)


machine = Machine("greeting", Greeting, births={S.NEW}, edges=[Edge(S.NEW, S.DONE, "greeted", {Actor.WORKER})],
                  terminal={S.DONE})


def decide(unit: Greeting, now: datetime, settings: GreetingSettings, seen: None) -> Decision:
    return Act("greet", "a name without a greeting")


class Greetings(Flow[Greeting, GreetingSettings, None]):
    machine = machine
    decide = staticmethod(decide)

    async def act(self, what: str, unit: Greeting, seen: None, io: Io) -> Outcome[Greeting]:
        return Outcome(unit, replace(unit, status=S.DONE), "greeted")


def build(settings: GreetingSettings, ports: Ports) -> list[Greetings]:
    return [Greetings(settings)]


lifecycle = Lifecycle("greetings", "Greets.", settings=GreetingSettings, machines=[machine], build=build)


def check() -> None:
    with temporary_ledger(lifecycle) as ledger:
        reveal_type(ledger)
        work_until_idle(ledger, [Greetings(GreetingSettings())])


async def main() -> None:
    await run(App(lifecycle))


reveal_type(Ledger.open)
'''
WRONG = """\
from penstock import Lifecycle, Machnie, Settings
from penstock import Ports


class Mine(Settings):
    pass


class Other(Settings):
    pass


def build(settings: Other, ports: Ports) -> list[None]:
    return []


lifecycle = Lifecycle("mine", "Mine.", settings=Mine, build=build)
"""


def wheel(project: Path, into: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]
    build = ["wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(into), str(project)]
    ended = subprocess.run([*pip, *build], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (made,) = into.glob(f"{project.name if project != ROOT else 'penstock'}-*.whl")
    return made


def clean() -> dict[str, str]:
    """Without what would let this source tree through."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MYPY", "PENSTOCK"))}


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    package = folder / "greetings"
    (package / "greetings").mkdir(parents=True)
    (package / "pyproject.toml").write_text(PROJECT)
    for name, text in (("__init__", PACKAGE), ("machine", MACHINE), ("flow", FLOW)):
        (package / "greetings" / f"{name}.py").write_text(text)
    wheels = [wheel(ROOT, folder), wheel(package, folder)]
    fresh = folder / "environment"
    venv.create(fresh, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(fresh), "platbase": str(fresh)}))
    pip = [sys.executable, "-m", "pip", "--python", str(fresh / "bin" / "python"), "--disable-pip-version-check"]
    install = [*pip, "install", "-q", "--no-index", "--no-deps", *map(str, wheels)]
    subprocess.run(install, check=True, capture_output=True, env=clean())
    (site / "packages.pth").write_text(f"{PACKAGES}\n")
    return fresh


def run(environment: Path, folder: Path, *command: str, code: int = 0) -> str:
    ended = subprocess.run(
        [str(environment / "bin" / command[0]), *command[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=clean(),
        timeout=100,
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_what_is_in_the_wheel(environment):
    (made,) = environment.parent.glob("penstock-*.whl")
    names = zipfile.ZipFile(made).namelist()
    assert "penstock/py.typed" in names
    assert "penstock/cli/templates/outgoing/penstock.toml" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if not name.startswith(("penstock/", "penstock-"))]
    (metadata,) = (name for name in names if name.endswith("/METADATA"))
    text = zipfile.ZipFile(made).read(metadata).decode()
    assert "Classifier: Typing :: Typed" in text
    assert "Description-Content-Type: text/markdown" in text


def test_it_is_the_installed_one(environment, tmp_path):
    told = run(environment, tmp_path, "python", "-c", "import penstock, greetings; print(penstock.__file__)")
    assert told.startswith(str(environment))
    assert run(environment, tmp_path, "penstock", "--version").startswith("penstock 0.")
    assert run(environment, tmp_path, "python", "-m", "penstock", "--version").startswith("penstock 0.")


def test_what_a_user_writes_is_checked_against_the_wheel(environment, tmp_path):
    """A file of their own, and the project that `penstock new` writes, in one look: it reads all of the wheel."""
    run(environment, tmp_path, "penstock", "new", "contacts")
    project = tmp_path / "contacts"
    (project / "typed.py").write_text(TYPED)
    (project / "wrong.py").write_text(WRONG)
    mypy = "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache")
    told = run(environment, project, "python", *mypy, "typed.py", "contacts", "tests")
    assert 'Revealed type is "penstock.ledger.ledger.Ledger"' in told
    assert "Success: no issues found in 9 source files" in told
    told = run(environment, project, "python", *mypy, "wrong.py", code=1)
    assert 'Module "penstock" has no attribute "Machnie"' in told
    assert "Lifecycle" in told
    assert "Found 2 errors" in told


def test_the_lifecycle_of_an_installed_package_runs(environment, tmp_path):
    (tmp_path / "penstock.toml").write_text("[greetings]\n")
    assert "greetings" in run(environment, tmp_path, "penstock", "--help")
    run(environment, tmp_path, "penstock", "db", "upgrade")
    create = "units", "create", "greeting", "--set", "name=ann", "--yes", "--reason", "a test"
    run(environment, tmp_path, "penstock", *create)
    assert "greeting" in run(environment, tmp_path, "penstock", "status")
    with (tmp_path / "log").open("wb") as log:
        command = [str(environment / "bin" / "penstock"), "up"]
        process = subprocess.Popen(command, cwd=tmp_path, env=clean(), stdout=log, stderr=log)
    try:
        end = time.monotonic() + 60
        while "done" not in run(environment, tmp_path, "penstock", "units", "list", "--machine", "greeting"):
            assert time.monotonic() < end, (tmp_path / "log").read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def test_an_entry_point_that_does_not_import_is_one_clear_line(environment, tmp_path):
    (tmp_path / "penstock.toml").write_text("[broken]\n")
    said = run(environment, tmp_path, "penstock", "up", code=2)
    assert "the installed lifecycle 'broken' (greetings.nowhere:lifecycle)" in said
    assert "greetings.nowhere" in said
    assert [path.name for path in tmp_path.iterdir()] == ["penstock.toml"]

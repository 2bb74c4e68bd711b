"""`penstock new`: the project that it writes runs, passes its tests and checks, survives a kill, and can be changed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.app.shipped import SHIPPED

PYTHON, NAME = sys.executable, "contacts"
BIN = Path(sys.executable).parent


def run(folder: Path, *command: str, code: int = 0, **environment: str) -> str:
    ended = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=os.environ | environment, timeout=100
    )
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def penstock(folder: Path, *arguments: str, code: int = 0) -> str:
    return run(folder, PYTHON, "-m", "penstock", *arguments, code=code)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    said = penstock(tmp_path, "new", NAME)
    assert "cd contacts" in said
    return tmp_path / NAME


def test_its_tests_pass(project):
    assert "14 passed" in run(project, PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider")


def test_its_code_is_clean(project):
    # Its types are checked in tests/test_wheel.py, against the wheel.
    run(
        project, str(BIN / "ruff"), "check", "--isolated", "--select", "E,F,I,B,UP,SIM,RUF", "--line-length", "120", "."
    )
    run(project, str(BIN / "ruff"), "format", "--isolated", "--check", "--line-length", "120", ".")


def test_nothing_is_left_of_the_template(project):
    names = {path.relative_to(project).as_posix() for path in project.rglob("*") if path.is_file()}
    parts = ("__init__", "machine", "decide", "flow", "settings", "operations", "fake")
    package = {f"{NAME}/{part}.py" for part in parts}
    assert names == {*package, f"tests/test_{NAME}.py", "penstock.toml", "pyproject.toml", "README.md"}
    for path in project.rglob("*"):
        if path.is_file():
            assert "outgoing" not in path.read_text().lower()


def test_its_declarations_are_light(project):
    heavy = "sqlalchemy", "psycopg", "pysqlite3", "aiohttp", "starlette", "uvicorn", "click"
    code = f"import sys, {NAME}; print([n for n in {heavy!r} if n in sys.modules])"
    assert run(project, PYTHON, "-c", code).strip() == "[]"


@contextmanager
def started(folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"log-{time.monotonic_ns()}").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def until(true: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def items(folder: Path) -> dict[str, Any]:
    told = json.loads(penstock(folder, NAME, "items", "--json"))
    rows = told["rows"] if isinstance(told, dict) else told
    return {row["item_id"]: row["status"] for row in rows}


def create(folder: Path, *numbers: int, text: str = "hello") -> None:
    lines = "\n".join(json.dumps({"item_id": str(number), "text": text}) for number in numbers)
    ended = subprocess.run(
        [PYTHON, "-m", "penstock", "units", "create", NAME, "--yes", "--reason", "a test"],
        cwd=folder,
        input=lines,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.timeout(300)
def test_it_runs_is_killed_and_is_changed(project):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    configuration = project / "penstock.toml"
    quick = '\n[worker]\nlease = "2s"\nrenew = "1s"\n'
    configuration.write_text(configuration.read_text().replace("8099", str(port)) + quick)
    up = PYTHON, "-m", "penstock", "up"
    with ExitStack() as stack:
        fake = stack.enter_context(started(project, PYTHON, "-m", f"{NAME}.fake", "--port", str(port)))
        until(lambda: _answers(port), "the fake is served")
        first = stack.enter_context(started(project, *up))
        until(lambda: (project / "penstock.db").exists() and "worker.started" in logs(project), "it is up")
        create(project, 1, 2, 3)
        until(lambda: set(items(project).values()) == {"sent"}, "the first are sent")

        fake.send_signal(signal.SIGSTOP)  # calls leave, and no answer comes
        create(project, *range(4, 20))
        until(lambda: "sending" in items(project).values(), "calls are under way")
        first.kill()
        first.wait()
        fake.send_signal(signal.SIGCONT)
        second = stack.enter_context(started(project, *up))
        until(lambda: set(items(project).values()) == {"sent"}, "the second has sent the rest")
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 0, logs(project)

        machine = project / NAME / "machine.py"
        changed = machine.read_text().replace(
            "    remote_id: str | None = None\n", "    remote_id: str | None = None\n    note: str | None = None\n"
        )
        edge = '        Edge(S.NEW, S.FAILED, "cancel", {Actor.OPERATOR}, by_hand=given_up),\n'
        changed = changed.replace("    ],\n    terminal", f"{edge}    ],\n    terminal", 1)
        hand = "def given_up(item: Item, now: datetime) -> Item:\n    return replace(item, due_at=None, note='no')"
        machine.write_text(changed.replace("machine = Machine(", f"{hand}\n\n\nmachine = Machine(", 1))
        assert "db upgrade" in run(project, *up, code=2)
        penstock(project, "db", "upgrade")
        create(project, 20)
        penstock(project, "units", "move", f"{NAME}:20", "--to", "failed", "--yes", "--reason", "not wanted")
        assert items(project)["20"] == "failed"
        assert json.loads(penstock(project, "units", "show", f"{NAME}:20", "--json"))["columns"]["note"] == "no"
        third = stack.enter_context(started(project, *up))
        penstock(project, NAME, "resend", "--yes", "--reason", "wanted after all")
        until(lambda: set(items(project).values()) == {"sent"}, "all are sent")
        third.send_signal(signal.SIGTERM)
        assert third.wait(30) == 0, logs(project)
    penstock(project, "doctor")


def _answers(port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/items/none", timeout=5)
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("log-*")))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Contacts", "'Contacts' cannot name a lifecycle; write lower-case letters, digits and _, 31 at most"),
        ("my-app", "'my-app' cannot name a lifecycle"),
        ("../up", "'../up' cannot name a lifecycle"),
        ("a" * 32, "cannot name a lifecycle"),
        ("class", "'class' is a Python keyword"),
        ("units", "'units' is Penstock's own word"),
        ("kernel", "'kernel' is Penstock's own word"),
        ("json", "Python has a module 'json' already"),
        ("msgspec", "Python has a module 'msgspec' already"),
        *((name, f"{name!r} is a lifecycle that Penstock brings") for name in SHIPPED),
    ],
)
def test_a_name_that_cannot_be_is_refused_and_nothing_is_written(tmp_path, name, says):
    said = penstock(tmp_path, "new", name, code=2)
    assert says in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(tmp_path):
    (tmp_path / NAME).mkdir()
    assert f"{NAME} exists already; choose another name" in penstock(tmp_path, "new", NAME, code=2)
    assert "nowhere is not a folder; make it first" in penstock(tmp_path, "new", "other", "--dir", "nowhere", code=2)
    assert [path.name for path in tmp_path.rglob("*")] == [NAME]

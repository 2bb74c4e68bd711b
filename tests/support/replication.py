"""A primary with a synchronous standby, of which the primary can be killed and the standby promoted."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Self

import psycopg

from tests.support.fleet import until
from tests.support.postgres import HOST, USER, Cluster, free_port


class Pair:
    """Two servers; what the first acknowledges is durable on the second. Leaving it removes both."""

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir()) / f"penstock-pair-{os.getpid()}-{random.getrandbits(32):08x}"
        self.primary = Cluster(base.with_suffix(".first"))
        self.standby = Cluster(base.with_suffix(".second"))

    def __enter__(self) -> Self:
        self.primary.ensure_started(os.getpid())
        self.standby.copy_of(self.primary, free_port())
        self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        until(self._synchronous, "the standby is synchronous")
        return self

    def __exit__(self, *_: object) -> None:
        self.primary.stop()
        self.standby.stop()
        for cluster in (self.primary, self.standby):
            shutil.rmtree(cluster.home, ignore_errors=True)

    def _synchronous(self) -> bool:
        with psycopg.connect(self.primary.url) as asking:
            return asking.execute("SELECT sync_state FROM pg_stat_replication").fetchall() == [("sync",)]

    def url(self, name: str) -> str:
        """One address for both, whichever can be written to."""
        hosts = f"{HOST}:{self.primary.port},{HOST}:{self.standby.port}"
        return f"postgresql://{USER}@{hosts}/{name}?target_session_attrs=read-write"

    def kill_primary(self) -> None:
        """SIGKILL to the server and to every process of it, at once."""
        server = int((self.primary.data / "postmaster.pid").read_text().splitlines()[0])
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        for pid in (server, *map(int, children)):
            os.kill(pid, signal.SIGKILL)

    def promote(self) -> None:
        """The standby takes over, and waits for nobody."""
        self.standby.promote()

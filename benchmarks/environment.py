"""What a run of the benchmarks stands on: the peers' virtual environment, a PostgreSQL, and facts of the machine."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from pysqlite3 import dbapi2

from tests.support.postgres import Cluster

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-bench"
PEERS_PYTHON = PEERS / "bin" / "python"
REQUIREMENTS = ROOT / "benchmarks" / "requirements.txt"
INSTALL_SECONDS = 600
UNSYNCED = {"tmpfs", "ramfs"}


def peers_are_installed() -> bool:
    stamp = PEERS / "stamp"
    return stamp.exists() and stamp.read_text() == _digest()


def install_peers() -> None:
    """Make the peers' environment anew; the packages come from wherever this machine's pip gets them."""
    shutil.rmtree(PEERS, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--python", str(PEERS_PYTHON), "--disable-pip-version-check", "--no-input"]
    for command in (
        [sys.executable, "-m", "venv", "--without-pip", str(PEERS)],
        [*pip, "install", "--quiet", "-r", str(REQUIREMENTS)],
    ):
        subprocess.run(command, check=True, timeout=INSTALL_SECONDS, stdin=subprocess.DEVNULL)
    (PEERS / "stamp").write_text(_digest())


def _digest() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


@contextmanager
def postgres() -> Iterator[str]:
    """The address of a server that lives as long as the context. Its settings are PostgreSQL's defaults."""
    cluster = Cluster(Path(tempfile.gettempdir()) / f"penstock-bench-{uuid.uuid4().hex[:12]}")
    cluster.ensure_started(os.getpid())
    try:
        yield cluster.url
    finally:
        cluster.stop()


def filesystem() -> str:
    """The type of the filesystem that both databases' files are on."""
    place = Path(tempfile.gettempdir()).resolve()
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, point, found = line.split()[:3]
        if (place == Path(point) or Path(point) in place.parents) and len(point) >= len(best):
            best, kind = point, found
    return kind


def facts(url: str) -> dict[str, str]:
    """What the figures depend on; nothing that names the machine."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SHOW server_version").fetchone()
    processor = _first("/proc/cpuinfo", "model name") or platform.machine()
    return {
        "Processor": f"{len(os.sched_getaffinity(0))} cores, {processor}",
        "Memory": f"{int(_first('/proc/meminfo', 'MemTotal').split()[0]) / 1024**2:.0f} GB",
        "Filesystem": filesystem(),
        "System": f"{platform.system()} {platform.release().split('-')[0]}",
        "Python": platform.python_version(),
        "SQLite": f"{dbapi2.sqlite_version} (Penstock), {sqlite3.sqlite_version} (huey)",
        "PostgreSQL": f"{row[0] if row else '?'}, default settings",
    }


def _first(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""

"""What processes have used: processor time and memory, as the system counted them."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg

from benchmarks import noop

TICK = os.sysconf("SC_CLK_TCK")
MEGABYTE = 1_000_000


def peak(pid: int) -> float:
    """The most memory that a process has had, in megabytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024 / MEGABYTE


def cpu_seconds(*pids: int) -> float:
    """What these processes have used, and those of their children that are gone."""
    found = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += sum(map(int, fields[11:15]))
    return found / TICK


def machine_seconds() -> float:
    """What all cores together have worked since they started."""
    user, nice, system, _, _, interrupts, soft, *_ = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + interrupts + soft) / TICK


def server_pids(url: str) -> list[int]:
    """The server's processes, where it runs on this machine."""
    if noop.database_of(url) == "sqlite":
        return []
    with psycopg.connect(url) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
    assert row is not None
    first = int((Path(row[0]) / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return [first, *map(int, children)]

"""A worker as its supervisor starts it: `python -m chaos.launch worker --config FILE`, the command line itself.

It goes with its parent, may have less memory than it wants (CHAOS_MEMORY, bytes), and may live by a clock that somebody
sets (CHAOS_CLOCK, a file with the seconds to add, eight bytes).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import struct
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

MEMORY = "CHAOS_MEMORY"
CLOCK = "CHAOS_CLOCK"
_PR_SET_PDEATHSIG = 1


def set_clock(file: Path, seconds: float) -> None:
    """Move the clock of every process that lives by this file."""
    if not file.exists():
        file.write_bytes(struct.pack("d", seconds))
        return
    with file.open("r+b") as out:
        out.write(struct.pack("d", seconds))


def _live_by(file: Path) -> None:
    """Every `now` of this process's system clock is that many seconds off; elapsed time and uptime stay as they are."""
    from penstock.model.clock import SystemClock

    with file.open("rb") as opened:
        shared = mmap.mmap(opened.fileno(), 8, access=mmap.ACCESS_READ)

    def now(_self: SystemClock) -> datetime:
        (seconds,) = struct.unpack("d", shared[:8])
        return datetime.fromtimestamp(int((time.time() + seconds) * 1000) / 1000, UTC)

    SystemClock.now = now  # type: ignore[assignment, method-assign]


def main() -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if MEMORY in os.environ:
        most = int(os.environ[MEMORY])
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if CLOCK in os.environ:
        _live_by(Path(os.environ[CLOCK]))
    from penstock.cli.main import main as command

    sys.argv[0] = "penstock"
    command()


if __name__ == "__main__":
    main()

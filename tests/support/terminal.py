"""The command line in a terminal of a given width, with somebody who types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
_SECONDS = 60
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Seen:
    """What was on the screen, and how it ended."""

    code: int
    text: str

    @property
    def plain(self) -> str:
        return _COLOURS.sub("", self.text)


def in_terminal(
    *arguments: str, cwd: Path, columns: int = 80, typed: str = "", env: dict[str, str] | None = None
) -> Seen:
    """Run a command in a terminal. `typed` is there from the beginning, as if somebody were quick."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    clean = {n: v for n, v in os.environ.items() if not n.startswith("PENSTOCK_") and n not in {"COLUMNS", "NO_COLOR"}}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock", *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": path, "TERM": "xterm", **(env or {})},
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    os.write(leader, typed.encode())
    said = b""
    while select.select([leader], [], [], _SECONDS)[0]:
        try:
            part = os.read(leader, 65_536)
        except OSError:  # the other side is closed
            break
        if not part:
            break
        said += part
    os.close(leader)
    return Seen(process.wait(_SECONDS), said.decode().replace("\r\n", "\n"))

"""Whether a process of this machine has ended, so that nobody waits for the lease of one that has."""

from __future__ import annotations

import os
from pathlib import Path

_ENDED = "ZX"


def this_process(boot_id: str) -> str | None:
    """How others of its machine can recognise this process; None where that cannot be told (not Linux)."""
    try:
        place = f"{boot_id} {Path('/proc/self/ns/pid').readlink()} {os.getuid()}"
        return f"{place} {os.getpid()} {_stat(os.getpid())[1]}"
    except (OSError, ValueError, IndexError):
        return None


def has_ended(process: str, me: str | None) -> bool:
    """Whether a process has ended; False for one of another boot, pid namespace or user, which cannot be seen."""
    *place, number, started = process.split(" ")
    if me is None or place != me.split(" ")[:-2] or not number.isdigit():
        return False
    try:
        os.kill(int(number), 0)
        state, since = _stat(int(number))
    except ProcessLookupError:
        return True
    except (OSError, ValueError, IndexError):  # it may be there and not be ours to look at
        return False
    return state in _ENDED or since != started


def _stat(number: int) -> tuple[str, str]:
    """Its state, and when it was started, in ticks since boot: so it is told from the next of its number."""
    text = Path(f"/proc/{number}/stat").read_text(errors="replace")
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], fields[19]

"""`python guardian.py PID SECONDS`: ends a worker that has stopped breathing and cannot end itself.

Code that keeps the interpreter's lock stops every thread of a process, the watchdog's too. So each worker has this
small child beside it, which needs nothing of the worker's: the watchdog breathes into its standard input. After SECONDS
without a breath it ends the worker by SIGABRT, so that the stacks are written, and then by SIGKILL. It counts its own
seconds, and none in which the worker was stopped. It ends when the worker does.
"""

import os
import select
import signal
import sys
from pathlib import Path

_BREATH = 65536
_LAST_WORDS = 5.0


def guard(number: int, seconds: float) -> None:
    """Watch the parent, whose number it is, until it ends."""
    tick = min(1.0, seconds / 10)
    silent = 0.0
    while os.getppid() == number:
        if select.select([0], [], [], tick)[0]:
            silent = 0.0
            if not os.read(0, _BREATH):
                return
        elif not _stopped(number):
            silent += tick
        if silent >= seconds:
            _end(number)
            return


def _stopped(number: int) -> bool:
    try:
        text = Path(f"/proc/{number}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text[text.rindex(")") + 2] in "Tt"


def _end(number: int) -> None:
    for last in (signal.SIGABRT, signal.SIGKILL):
        if os.getppid() == number:
            os.kill(number, last)
            select.select([0], [], [], _LAST_WORDS)  # its end closes the pipe


if __name__ == "__main__":
    guard(int(sys.argv[1]), float(sys.argv[2]))

"""Hearing of what other processes write to a SQLite ledger.

`PRAGMA data_version`, asked on the writer's own connection, tells whether any other has committed: what this process
writes does not count. Asking it a hundred times a second would cost an idle worker one per cent of a core, so it is
asked when the system has seen a write to the log beside the file (inotify). The write is seen first, the commit follows
when the disk has it: so it is asked a few times. Where there is no inotify, it is asked fifty times a second.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from penstock.model.clock import Clock

_MODIFIED = 0x2  # IN_MODIFY
_BUFFER = 4_096
_ASKED_SECONDS = 0.02
_FIRST, _MOST, _SELDOM = 0.002, 0.064, 10.0
_COMMIT_SECONDS = 0.25
"""How long after a write its commit is waited for."""
_BURST_SECONDS = 0.02


class SqliteListener:
    """Asks `version` whether others have committed; it answers None when it cannot be asked just now."""

    def __init__(self, log: Path, version: Callable[[], int | None], clock: Clock) -> None:
        self._file = _watched(log)
        self._version = version
        self._clock = clock
        self._seen = version()
        self._written_at = clock.elapsed()
        self.again = _FIRST

    def fileno(self) -> int | None:
        return self._file

    def heard(self) -> bool:
        now = self._clock.elapsed()
        before = now - self._written_at
        if self._file is None:
            self.again = _ASKED_SECONDS
        elif self._written(self._file):
            self._written_at = now
            # While writes go on it is asked more seldom; one after a while is waited for from the first.
            self.again = _FIRST if before > _BURST_SECONDS else min(_MOST, 2 * self.again)
        else:
            self.again = min(_MOST, 2 * self.again) if before < _COMMIT_SECONDS else _SELDOM
        found = self._version()
        if found is None or found == self._seen:
            return False
        changed, self._seen = self._seen is not None, found
        return changed

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @staticmethod
    def _written(file: int) -> bool:
        try:
            return bool(os.read(file, _BUFFER))
        except BlockingIOError:
            return False


def _watched(path: Path) -> int | None:
    """A file that can be read from when somebody has written to `path`; None where the system has no such thing."""
    system = ctypes.CDLL(None)
    if not hasattr(system, "inotify_init1"):
        return None
    file: int = system.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if file < 0:
        return None
    if system.inotify_add_watch(file, os.fsencode(path), _MODIFIED) < 0:
        os.close(file)
        return None
    return file

"""The queue of a SQLite ledger's writers: `flock` on a file beside it, which nobody waits for without end.

Waiting in the system's own queue is fair and costs nothing, but cannot be given a time limit. Whoever finds the lock
taken therefore lets a thread wait, and the thread keeps the file that it waits on: when nobody wants the lock any more,
it gives it back the moment it gets it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

from penstock.model.errors import LedgerUnavailable, UsageError

SECONDS = 30.0
_SLOW_SECONDS = 10.0
_LOCKS = Path("/proc/locks")
_LONGEST_COMMAND = 80


class WriterLock:
    """One process's place in the queue. Not for two threads at once."""

    def __init__(
        self, path: Path, seconds: float = SECONDS, slow: Callable[[LedgerUnavailable], None] = lambda _: None
    ) -> None:
        """`slow` hears of a wait that has become long, while it goes on."""
        self._path = path
        self._seconds = seconds
        self._slow = slow
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock. Raises LedgerUnavailable, naming the holder, when somebody keeps it too long."""
        if self._file is None:
            self._file = _opened(self._path)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait(self._file)

    def release(self) -> None:
        """Let the next writer in."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file; a lock that is held falls with it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _wait(self, file: int) -> None:
        waiter = _Waiter(file)
        waiter.start()
        first = min(_SLOW_SECONDS, self._seconds)
        if not waiter.had.wait(first):
            self._slow(self._locked(file, first))
        if not waiter.had.wait(self._seconds - first) and waiter.give_up():
            self._file = None  # the thread closes it
            raise self._locked(file, self._seconds)
        if waiter.error is not None:
            raise LedgerUnavailable(f"{self._path}: {waiter.error.strerror}") from waiter.error

    def _locked(self, file: int, seconds: float) -> LedgerUnavailable:
        return LedgerUnavailable(
            f"{self._path} has been locked for {seconds:g} s by {_holder(file)}, so nobody can write to the"
            " ledger; stop that process, or wait for it"
        )


class _Waiter(threading.Thread):
    """Waits in the queue for somebody who may lose patience."""

    def __init__(self, file: int) -> None:
        super().__init__(name="penstock-writer-lock", daemon=True)
        self.had = threading.Event()
        self.error: OSError | None = None
        self._file = file
        self._decision = threading.Lock()
        self._given_up = False

    def run(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        except OSError as error:
            self.error = error
        with self._decision:
            if self._given_up:
                os.close(self._file)
            self.had.set()

    def give_up(self) -> bool:
        """Leave the lock to this thread; False when it has just been had."""
        with self._decision:
            self._given_up = not self.had.is_set()
            return self._given_up


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (PermissionError, IsADirectoryError) as error:  # waiting would not help
        msg = f"{path} cannot be opened ({error.strerror}), and every writer needs it; make this user its owner"
        raise UsageError(msg) from error
    except OSError as error:
        raise LedgerUnavailable(f"{path}: {error.strerror}") from error


def _holder(file: int) -> str:
    """Who holds the lock, as far as the system tells."""
    status = os.fstat(file)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError):
        for line in _LOCKS.read_text().splitlines():
            fields = line.split()
            if "->" not in fields and "FLOCK" in fields and place in fields:
                return _described(fields[fields.index(place) - 1])
    return "a process that the system does not name"


def _described(pid: str) -> str:
    with contextlib.suppress(OSError):
        command = Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        return f"process {pid} ({command[:_LONGEST_COMMAND]})"
    return f"process {pid}"

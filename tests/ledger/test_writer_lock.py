"""The lock that puts SQLite's writers in a queue: fair, for its owner alone, and never a silent standstill."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.ledger.ledger import Ledger
from penstock.ledger.store.sqlite import database as sqlite_database
from penstock.ledger.store.sqlite.writer_lock import WriterLock
from penstock.model.clock import SystemClock
from penstock.model.errors import LedgerUnavailable, UsageError
from penstock.model.machine import Actor
from tests.support.machines import INVOICE, invoice

HOLD = """import fcntl, sys, time
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print(flush=True)
time.sleep(60)
"""


@contextlib.contextmanager
def stranger(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another program that has locked the file."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def test_whoever_keeps_it_is_named(tmp_path):
    path = tmp_path / "lock"
    path.touch()
    lock = WriterLock(path, seconds=0.2)
    with stranger(path) as holder, pytest.raises(LedgerUnavailable) as raised:
        lock.acquire()
    assert f"process {holder.pid} (" in str(raised.value)
    assert str(path) in str(raised.value)
    lock.acquire()  # the stranger has gone
    lock.close()


def test_who_gave_up_leaves_no_lock_behind(tmp_path):
    path = tmp_path / "lock"
    path.touch()
    impatient = WriterLock(path, seconds=0.05)
    with stranger(path):
        for _ in range(3):
            with pytest.raises(LedgerUnavailable):
                impatient.acquire()
    other = WriterLock(path, seconds=10)
    other.acquire()
    other.release()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_one_at_a_time(tmp_path):
    path, inside, most = tmp_path / "lock", [], []

    def work() -> None:
        lock = WriterLock(path)
        for _ in range(50):
            lock.acquire()
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.0001)
            inside.pop()
            lock.release()
        lock.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(most), set(most)) == (200, {1})


def test_a_ledger_says_who_stops_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_database, "WriterLock", lambda path, **options: WriterLock(path, seconds=0.2))
    path = tmp_path / "penstock.db"
    with Ledger.open(f"sqlite:///{path}", [INVOICE], create=True) as ledger:
        with (
            stranger(Path(f"{path}-writer")) as holder,
            pytest.raises(LedgerUnavailable, match=f"process {holder.pid} "),
        ):
            ledger.birth([invoice()], actor=Actor.API, who="test")
        assert ledger.birth([invoice()], actor=Actor.API, who="test") == 1


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_the_files_of_a_ledger_are_for_their_owner_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        path = tmp_path / "penstock.db"
        with Ledger.open(f"sqlite:///{path}", [INVOICE], create=True, clock=SystemClock()):
            modes = {place.name: stat.S_IMODE(place.stat().st_mode) for place in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert set(modes) >= {"penstock.db", "penstock.db-writer", "penstock.db-wal", "penstock.db-shm"}
    assert {name: mode & ~(0o600 & ~umask) for name, mode in modes.items() if mode & ~(0o600 & ~umask)} == {}


def test_a_ledger_behind_a_link_to_nothing_yet_is_for_its_owner_alone(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "penstock.db").symlink_to(tmp_path / "there" / "real.db")
    before = os.umask(0o022)
    try:
        with Ledger.open(f"sqlite:///{tmp_path / 'penstock.db'}", [INVOICE], create=True):
            modes = {stat.S_IMODE(place.stat().st_mode) for place in (tmp_path / "there").iterdir()}
    finally:
        os.umask(before)
    assert modes == {0o600}


def test_a_lock_that_cannot_be_opened_is_told(tmp_path):
    (tmp_path / "penstock.db-writer").mkdir()
    with pytest.raises(UsageError, match=r"penstock\.db-writer cannot be opened"):
        WriterLock(tmp_path / "penstock.db-writer").acquire()
    (tmp_path / "round").symlink_to(tmp_path / "round")
    with pytest.raises(LedgerUnavailable, match="round: Too many levels of symbolic links"):
        WriterLock(tmp_path / "round").acquire()

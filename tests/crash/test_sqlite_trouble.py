"""SQLite in trouble: locked, full, read-only, corrupt. Workers wait for what can pass and stop at what cannot."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from pysqlite3 import dbapi2 as driver

from penstock.ledger.store.sqlite.database import SqliteDatabase
from penstock.model.clock import SystemClock
from tests.support.disks import disk, fill, remount
from tests.support.fleet import Fleet, until

NAMES = [f"{n:03}" for n in range(200)]
PAGE = 4_096


def ledger_path(fleet: Fleet) -> Path:
    return Path(fleet.url.removeprefix("sqlite:///"))


def done(fleet: Fleet) -> int:
    return int(fleet.value("SELECT count(*) FROM job WHERE status = 'done'"))


def test_a_locked_file_is_waited_for(tmp_path):
    with Fleet(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path / "fleet", concurrency=5, slots=20) as fleet:
        fleet.born(*NAMES, before_ms=50)
        fleet.start(2)
        until(lambda: done(fleet) > 0, "units flow")
        with closing(driver.connect(str(ledger_path(fleet)), isolation_level=None)) as stranger:
            stranger.execute("PRAGMA busy_timeout = 30000")
            stranger.execute("BEGIN IMMEDIATE")
            stood = done(fleet)
            time.sleep(4)  # twice the lease
            assert done(fleet) == stood < len(NAMES)
            stranger.execute("ROLLBACK")
        fleet.finish()
        assert len(fleet.living) == 2
        fleet.stop()
        fleet.audit(NAMES)


def test_a_full_disk_is_waited_for(tmp_path):
    with (
        disk(tmp_path / "disk", "8m") as small,
        Fleet(f"sqlite:///{small / 'penstock.db'}", tmp_path / "fleet", concurrency=5, slots=20) as fleet,
    ):
        fleet.born(*NAMES, before_ms=50)
        fleet.start(2)
        until(lambda: done(fleet) > 0, "units flow")
        filler = fill(small)
        until(lambda: all("disk is full" in m.text() for m in fleet.members), "the workers notice")
        assert len(fleet.living) == 2
        filler.unlink()
        fleet.finish()
        assert len(fleet.living) == 2
        fleet.stop()
        fleet.audit(NAMES)


def test_a_file_that_may_not_grow_is_waited_for(tmp_path):
    """Another way to run out of room: the limit on the size of a process's files."""
    with Fleet(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path / "fleet", concurrency=5, slots=20) as fleet:
        fleet.born(*NAMES, before_ms=20)
        grown = max(p.stat().st_size for p in tmp_path.glob("penstock.db*"))
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (grown + 8 * PAGE, hard))

        (worker,) = fleet.start(preexec_fn=limit)
        until(lambda: worker.said("ledger.away"), "the worker notices")
        assert worker.alive
        resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (hard, hard))
        fleet.finish()
        fleet.stop()
        fleet.audit(NAMES)


def refused(fleet: Fleet) -> str:
    """What a worker says that stops by itself with exit code 2."""
    (worker,) = fleet.start()
    assert worker.wait() == 2, worker.text()
    assert "Traceback" not in worker.text()
    return worker.text()


def created(fleet: Fleet) -> Path:
    """A ledger with some units in it, closed again."""
    fleet.born(*NAMES)
    fleet.ledger.close()
    return ledger_path(fleet)


@pytest.mark.parametrize("how", ["renamed", "removed", "replaced"])
def test_a_ledger_that_loses_its_name_stops_the_worker(tmp_path, how):
    """It would go on into a file that nobody finds again."""
    with Fleet(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path / "fleet", concurrency=5, slots=20) as fleet:
        fleet.born(*NAMES, before_ms=50)
        (worker,) = fleet.start()
        until(lambda: done(fleet) > 0, "units flow")
        path = ledger_path(fleet)
        fleet.ledger.close()
        if how == "renamed":
            path.rename(tmp_path / "elsewhere.db")
        elif how == "removed":
            path.unlink()
        else:
            (tmp_path / "other.db").write_bytes(b"")
            (tmp_path / "other.db").replace(path)
        assert worker.wait() == 2, worker.text()
        assert "was renamed, removed or replaced while it was in use" in worker.text()
        assert "Traceback" not in worker.text()


def test_a_file_that_is_misread_once_is_read_again(tmp_path):
    path = tmp_path / "penstock.db"
    with Fleet(f"sqlite:///{path}", tmp_path / "fleet") as fleet:
        created(fleet)
        good = path.read_bytes()[:16]
        overwrite(path, 0, 16)

        def mend() -> None:
            time.sleep(0.2)
            with path.open("r+b") as file:
                file.write(good)

        mending = threading.Thread(target=mend)
        mending.start()
        database = SqliteDatabase(str(path), SystemClock())
        try:
            assert database.read(lambda cursor: cursor.rows("SELECT count(*) FROM job")) == [(len(NAMES),)]
        finally:
            mending.join()
            database.close()


def test_a_read_only_disk_is_a_clear_error(tmp_path):
    with disk(tmp_path / "disk", "8m") as small, Fleet(f"sqlite:///{small / 'l.db'}", tmp_path / "fleet") as fleet:
        path = created(fleet)
        remount(small, "ro")
        before = path.read_bytes()
        assert f"{path} cannot be written" in refused(fleet)
        remount(small, "rw")
        assert path.read_bytes() == before


def test_a_read_only_file_is_a_clear_error(tmp_path):
    with Fleet(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path / "fleet") as fleet:
        path = created(fleet)
        before = path.read_bytes()
        locked = subprocess.run(["chattr", "+i", str(path)], check=False, capture_output=True).returncode == 0
        if not locked and os.geteuid() == 0:
            pytest.skip("root writes to every file here, and chattr is not supported")
        path.chmod(0o444) if not locked else None
        try:
            assert f"{path} cannot be written" in refused(fleet)
        finally:
            if locked:
                subprocess.run(["chattr", "-i", str(path)], check=True)
        assert path.read_bytes() == before


def test_a_missing_folder_and_a_missing_file_are_clear_errors(tmp_path):
    with Fleet(f"sqlite:///{tmp_path / 'none' / 'penstock.db'}", tmp_path / "fleet") as fleet:
        assert "does not exist" in refused(fleet)
    with Fleet(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path / "fleet") as fleet:
        assert "penstock db upgrade" in refused(fleet)
    assert not (tmp_path / "penstock.db").exists()


def root_page(path: Path, name: str) -> int:
    with closing(driver.connect(str(path))) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [name]).fetchall()
        assert connection.execute("PRAGMA page_size").fetchone() == (PAGE,)
        return int(page)


def overwrite(path: Path, start: int, length: int) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(b"\xaa" * length)


DAMAGE: dict[str, Callable[[Path], None]] = {
    "garbage in the header": lambda p: overwrite(p, 0, 100),
    "a garbage first page": lambda p: overwrite(p, 0, PAGE),
    "garbage after the first page": lambda p: overwrite(p, PAGE, p.stat().st_size - PAGE),
    "only the first page left": lambda p: os.truncate(p, PAGE),
    "half the file left": lambda p: os.truncate(p, p.stat().st_size // 2),
    "not a database at all": lambda p: p.write_text("dear diary\n" * 1_000),  # type: ignore[dict-item]
    "a damaged machine table": lambda p: overwrite(p, (root_page(p, "job") - 1) * PAGE, PAGE),
    "a damaged index of what is due": lambda p: overwrite(p, (root_page(p, "job_due") - 1) * PAGE, PAGE),
    "a damaged table of workers": lambda p: overwrite(p, (root_page(p, "worker") - 1) * PAGE, PAGE),
    "a damaged history": lambda p: overwrite(p, (root_page(p, "transition_log") - 1) * PAGE, PAGE),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_corrupt_file_stops_the_worker_and_is_left_as_it_is(tmp_path, damage):
    with Fleet(f"sqlite:///{tmp_path / 'penstock.db'}", tmp_path / "fleet") as fleet:
        path = created(fleet)
        DAMAGE[damage](path)
        before = hashlib.sha256(path.read_bytes()).hexdigest()
        said = refused(fleet)
        assert f"penstock: {path}" in said
        assert "restore it from a backup" in said
        assert hashlib.sha256(path.read_bytes()).hexdigest() == before

"""Backups: equal when restored, whole or absent, and never over something else."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.ledger.care.backup import Backup, backup
from penstock.ledger.care.doctor import examine
from penstock.ledger.care.doubt import Doubter
from penstock.ledger.ledger import Ledger
from penstock.ledger.store.postgres import client
from penstock.model.clock import Rng, SystemClock, VirtualClock
from penstock.model.errors import LedgerError, LedgerMismatch, LedgerUnavailable, UsageError
from penstock.model.machine import Actor
from tests.support.databases import temporary_database
from tests.support.fleet import Member, until
from tests.support.machines import INVOICE, invoice
from tests.support.postgres import VERSION, _package, free_port

PROGRAMS = _package() / f"pginstall{VERSION}" / "bin"


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """The client programs of the server that the tests run on come first."""
    monkeypatch.setenv("PATH", f"{PROGRAMS}:{os.environ['PATH']}")


def copy(url: str, place: Path, **options: object) -> Backup:
    return backup(url, place, clock=SystemClock(), rng=Rng(), **options)  # type: ignore[arg-type]


def made(url: str, units: int = 3) -> str:
    with Ledger.open(url, [INVOICE], create=True) as ledger:
        ledger.birth([invoice(str(n)) for n in range(units)], actor=Actor.API, who="test")
    return url


@contextmanager
def restored(path: Path, server: str | None, folder: Path) -> Iterator[Ledger]:
    """A ledger made from the backup, by the database's own means."""
    if server is None:
        file = folder / "restored.db"
        file.write_bytes(path.read_bytes())
        with Ledger.open(f"sqlite:///{file}", [INVOICE]) as ledger:
            yield ledger
        return
    with temporary_database(server) as url:
        command = ["pg_restore", "--exit-on-error", "--no-owner", f"--dbname={url}", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        with Ledger.open(url, [INVOICE]) as ledger:
            yield ledger


def server_of(request: pytest.FixtureRequest, url: str) -> str | None:
    return None if url.startswith("sqlite") else str(request.getfixturevalue("postgres_server"))


def test_a_backup_under_load_restores_equal(request, ledger_url, tmp_path):
    made(ledger_url, 0)
    told = tmp_path / "told"

    def confirmed() -> int:
        return int(told.read_text()) if told.exists() else 0

    command = [sys.executable, "-m", "tests.support.scribe", ledger_url, str(told)]
    scribe = Member(command, dict(os.environ), tmp_path / "scribe.log")
    try:
        until(lambda: confirmed() >= 50 or not scribe.alive, "something is in the ledger")
        before = confirmed()
        done = copy(ledger_url, tmp_path / "copy")
        after = confirmed()
        until(lambda: confirmed() > after + 5 or not scribe.alive, "the writer goes on")
        assert scribe.alive, scribe.text()
    finally:
        scribe.kill()
    assert done.size == done.path.stat().st_size > 0
    with restored(done.path, server_of(request, ledger_url), tmp_path) as ledger:
        # Of a file it is known by its mark, of a dump only once a worker knew where its ledger was at home.
        asks = [f.check for f in examine(ledger.database, ledger.machines)]
        assert asks == (["place"] if ledger.database.dialect == "sqlite" else []), "nobody has put it in doubt yet"
        Doubter(ledger.database).doubt("operator:ana")
        assert examine(ledger.database, ledger.machines) == []

        def one(sql: str) -> int:
            return int(ledger.read(lambda c: c.rows(sql))[0][0])

        units = one("SELECT count(*) FROM invoice")
        assert before <= units
        names = f"SELECT count(*) FROM invoice WHERE number <= '{before:07}' AND status = 'SENDING'"
        assert one(names) == before, "every commit confirmed before the backup began is in it"
        births = one("SELECT count(*) FROM transition_log WHERE from_status IS NULL")
        moves = one("SELECT count(*) FROM transition_log WHERE from_status = 'QUEUED'")
        assert births == units
        assert moves == one("SELECT count(*) FROM invoice WHERE status = 'SENDING'")
        assert ledger.birth([invoice("again")], actor=Actor.API, who="test") == 1


def test_a_folder_gets_a_name_with_the_moment(ledger_url, tmp_path):
    made(ledger_url)
    folder = tmp_path / "backups"
    folder.mkdir()
    done = backup(ledger_url, folder, clock=SystemClock(), rng=Rng(1))
    assert done.path.parent == folder
    suffix = "db" if ledger_url.startswith("sqlite") else "dump"
    assert done.path.match(f"penstock-*T*Z.{suffix}")
    assert list(folder.iterdir()) == [done.path]
    assert stat.S_IMODE(done.path.stat().st_mode) == 0o600


def test_a_file_that_is_there_stays_unless_forced(ledger_url, tmp_path):
    made(ledger_url)
    (tmp_path / "copy").write_text("precious")
    with pytest.raises(UsageError, match="copy exists already; choose another name, or replace it with --force"):
        copy(ledger_url, tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "precious"
    copy(ledger_url, tmp_path / "copy", force=True)
    assert (tmp_path / "copy").read_bytes() != b"precious"


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe"])
def test_force_replaces_regular_files_only(tmp_path, kind):
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    made(url)
    target, place = tmp_path / "precious", tmp_path / "copy"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to(target)
        if kind == "link":
            target.write_text("precious")
    with pytest.raises(UsageError, match="is not a regular file, and --force replaces nothing else"):
        copy(url, place, force=True)
    assert not target.exists() or target.read_text() == "precious"
    assert place.is_symlink() or place.is_fifo()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["penstock.db", "penstock.db-wal", "penstock.db-writer", "real.db", "real.db-shm"])
def test_no_backup_takes_the_place_of_the_ledger(tmp_path, name, force):
    (tmp_path / "penstock.db").symlink_to(tmp_path / "real.db")
    url = f"sqlite:///{tmp_path / 'penstock.db'}"
    made(url)
    before = {path: path.lstat().st_ino for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=r"belongs to it|exists already|not a regular file"):
        copy(url, tmp_path / name, force=force)
    assert {path: path.lstat().st_ino for path in tmp_path.iterdir()} == before


def test_an_interrupted_backup_leaves_no_file(ledger_url, tmp_path):
    made(ledger_url)
    folder = tmp_path / "backups"
    folder.mkdir()

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy(ledger_url, folder / "copy", progress=interrupt)
    assert list(folder.iterdir()) == []


def test_progress_reaches_the_end(tmp_path):
    url = made(f"sqlite:///{tmp_path / 'penstock.db'}")
    steps: list[tuple[int, int]] = []
    copy(url, tmp_path / "copy", progress=lambda done, total: steps.append((done, total)))
    assert steps[-1][0] == steps[-1][1] > 0


def test_a_missing_folder_is_told(ledger_url, tmp_path):
    made(ledger_url)
    with pytest.raises(UsageError, match="nowhere does not exist; create it or choose another place"):
        copy(ledger_url, tmp_path / "nowhere" / "copy")


def test_what_is_no_ledger_is_not_backed_up(ledger_url, tmp_path):
    folder = tmp_path / "backups"
    folder.mkdir()
    with pytest.raises(LedgerMismatch, match="not a Penstock ledger"):
        copy(ledger_url, folder)
    assert list(folder.iterdir()) == []


def test_pg_dump_that_is_missing_or_old_is_told(postgres_url, tmp_path, monkeypatch):
    made(postgres_url)
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.setenv("PATH", str(empty))
    with pytest.raises(
        UsageError, match="pg_dump is not on the PATH, and a backup needs it; install the client programs"
    ):
        copy(postgres_url, tmp_path / "copy")
    old = empty / "pg_dump"
    old.write_text("#!/bin/sh\necho 'pg_dump (PostgreSQL) 9.6.1'\n")
    old.chmod(0o755)
    with pytest.raises(
        UsageError, match=rf"pg_dump is 9 and the server is {VERSION}; .* PostgreSQL {VERSION} or newer"
    ):
        copy(postgres_url, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_pg_dump_that_fails_says_why_and_leaves_nothing(postgres_url, tmp_path, monkeypatch):
    made(postgres_url)
    folder = tmp_path / "backups"
    folder.mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    version = f'[ "$1" = --version ] && echo "pg_dump {VERSION}.0" && exit 0'
    failing = f"#!/bin/sh\n{version}\necho 'error: no' >&2\nexit 1\n"
    (programs / "pg_dump").write_text(failing)
    (programs / "pg_dump").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{PROGRAMS}:{os.environ['PATH']}")
    with pytest.raises(LedgerError, match="pg_dump failed: error: no"):
        copy(postgres_url, folder / "copy")
    assert list(folder.iterdir()) == []


def test_a_ledger_on_several_hosts_is_backed_up_from_the_one_that_is_there(postgres_url, tmp_path):
    made(postgres_url)
    several = postgres_url.replace("@", f"@127.0.0.1:{free_port()},")
    assert copy(several, tmp_path / "copy").size > 0


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ana:se%40cret@host:5433/name?sslmode=require",
        "postgres://ana:se%40cret@host:5433/name?sslmode=require",
    ],
)
def test_a_password_goes_by_the_environment_alone(url):
    url = url.replace("postgres://", "postgresql://", 1)
    address, environment = client.address(url)
    assert address == "postgresql://ana@host:5433/name?sslmode=require"
    assert environment["PGPASSWORD"] == "se@cret"


def test_without_a_password_the_environments_own_stays(monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "from outside")
    address, environment = client.address("postgresql://ana@host/name")
    assert (address, environment["PGPASSWORD"]) == ("postgresql://ana@host/name", "from outside")


def test_a_server_that_is_away_is_told(tmp_path):
    with pytest.raises(LedgerUnavailable):
        backup("postgresql://u:secret@127.0.0.1:1/name", tmp_path / "copy", clock=VirtualClock(), rng=Rng())
    assert list(tmp_path.iterdir()) == []

"""What is done to the ledger: outages, frozen and cut connections, a full disk, a standby that takes over.

Progress is the first commit after the ledger is back, one figure for each fault.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO

from chaos.field import DATABASE, Field
from chaos.parts import Case
from chaos.rows import Row
from chaos.server import HOST, ROLE, Server

_COMMIT_SECONDS = 60.0
_MEGABYTE = 1 << 20


def outages(case: Case) -> Iterator[Row]:
    """Take the database away for longer than the lease, twice; with SQLite, keep its writers' lock instead."""
    units, lease = case.pick((531, 10), (100, 3))
    with Field(case, lease=lease) as field:
        field.birth(units, before=(1_000, 6_000), answer=(500, 3_000))
        field.start_and_wait(2)
        returns = Returns(field)
        for _ in range(2):
            field.pause(2.0)
            with _away(field):
                field.pause(lease * 1.5 + 2)
            returns.note()
        field.drain(case.pick(180, 15))
        yield returns.told(field.row(2, "2 outages longer than the lease"))


@contextlib.contextmanager
def _away(field: Field) -> Iterator[None]:
    server = field.server
    if server is not None:
        server.stop(signal.SIGQUIT)
        yield
        server.start()
        return
    file = os.open(f"{field.file}-writer", os.O_RDWR)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


class Returns:
    """How long after each fault the first commit came; a fault after which nothing was left to do says nothing."""

    def __init__(self, field: Field) -> None:
        self._field = field
        self.samples: list[float] = []
        self.silent = 0

    def note(self, struck: float | None = None) -> None:
        """The ledger is back this moment: wait for the next parcel's end. Counted from `struck`, where it is given."""
        books, since = self._field.books, time.time()
        if self._field.wait(lambda: books.open() == 0 or books.last_end()[1] >= since, _COMMIT_SECONDS) is None:
            self.silent += 1
        elif books.last_end()[1] >= since:
            self.samples.append(books.last_end()[1] - (struck or since))

    def told(self, row: Row) -> Row:
        """A fault after which nothing moved is a miss, however the figures of the others look."""
        row.measure(self.samples)
        if self.silent:
            row.misses.append(f"no commit within {_COMMIT_SECONDS:.0f} s after {self.silent} of the faults")
        return row


class Proxied:
    """A proxy between the workers and the server."""

    def __init__(self, field: Field) -> None:
        assert field.server is not None
        port_file = field.folder / "proxy.port"
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = field.helper("chaos.proxy", str(field.server.port), str(port_file), **pipes)
        port = field.until(lambda: port_file.exists() and port_file.read_text(), 60, "the proxy starts")
        field.configure(field.server.url(DATABASE, int(port)))

    def order(self, words: str) -> None:
        orders: IO[bytes] | None = self._process.stdin
        answers: IO[bytes] | None = self._process.stdout
        assert orders is not None
        assert answers is not None
        orders.write(words.encode() + b"\n")
        orders.flush()
        answers.readline()


def stalls(case: Case) -> Iterator[Row]:
    """Freeze every connection for a minute: it is accepted and acknowledged, and nothing comes through.

    The first time it goes on where it was; the second time the proxy has forgotten every connection.
    """
    units, lease, seconds = case.pick((2_000, 10, 60), (150, 3, 8))
    with Field(case, lease=lease, concurrency=case.pick(20, 5)) as field:
        proxy = Proxied(field)
        field.birth(units, before=(200, 2_000), answer=(200, 1_000))
        field.start_and_wait(2)
        returns, heard = Returns(field), []
        for end in ("go", "cut"):
            field.pause(2.0)
            began = time.time()
            proxy.order("freeze")
            field.pause(seconds)
            heard.append(_said_away(field, began))
            proxy.order(end)
            returns.note()
        field.drain(case.pick(180, 20))
        row = field.row(2, f"2 stalls of {seconds} s")
        told = [second for second in heard if second is not None]
        row.note = f"ledger.away said after {max(told):.0f} s" if told else "ledger.away was not said"
        if len(told) < len(heard):
            row.misses.append(f"{len(heard) - len(told)} of {len(heard)} stalls passed without a line in the log")
        yield returns.told(row)


def _said_away(field: Field, began: float) -> float | None:
    """How long after that moment some worker first said that the ledger is away."""
    times = [datetime.fromisoformat(line["timestamp"]).timestamp() for line in field.logged("ledger.away")]
    later = [at - began for at in times if at >= began]
    return min(later) if later else None


def drops(case: Case) -> Iterator[Row]:
    """Break all connections every few seconds."""
    units, lease, times = case.pick((3_000, 5, 20), (300, 3, 3))
    with Field(case, lease=lease, concurrency=case.pick(40, 10)) as field:
        proxy = Proxied(field)
        field.birth(units, before=(100, 1_000), answer=(100, 1_000))
        field.start_and_wait(2)
        returns = Returns(field)
        for _ in range(times):
            field.pause(field.dice.uniform(0.5, 3.0))
            proxy.order("cut")
            returns.note()
        field.drain(case.pick(180, 20))
        yield returns.told(field.row(2, f"{times} cuts of all connections"))


def disk(case: Case) -> Iterator[Row]:
    """Fill the ledger's disk, keep it full for longer than the lease, and free it."""
    units, lease = case.pick((2_000, 5), (150, 3))
    size = case.pick(600, 400) if not case.sqlite else 48
    place = case.folder / "disk"
    place.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}m,mode=0755", "tmpfs", str(place)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode != 0:
        yield Row(case.scenario, case.database, not_run="mounting a small disk takes root", seed=case.seed)
        return
    try:
        yield from _on_small_disk(case, place, units, lease)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=False)


def _on_small_disk(case: Case, place: Path, units: int, lease: int) -> Iterator[Row]:
    server = None
    if not case.sqlite:
        server = Server(case.made, place / "server", ["max_wal_size=64MB", "min_wal_size=32MB"])
        server.create()
    with Field(case, lease=lease, concurrency=case.pick(100, 20), server=server, file=place / "penstock.db") as field:
        field.birth(units, before=(100, 2_000), answer=(100, 1_000))
        field.start_and_wait(2)
        returns = Returns(field)
        for _ in range(2):
            field.pause(1.5)
            filler = place / "filler"
            _fill(filler)
            field.pause(lease * 1.5 + 1)
            _fill(filler)
            filler.unlink()
            if server is not None and not server.alive:
                server.start()  # PostgreSQL itself gives up where its own log cannot be written
            returns.note()
        field.drain(case.pick(180, 20))
        yield returns.told(field.row(2, "2 times full for longer than the lease"))


def _fill(filler: Path) -> None:
    """Let a file take all the room there is."""
    with filler.open("ab", buffering=0) as out:
        for block in (_MEGABYTE, 4_096):
            with contextlib.suppress(OSError):
                while True:
                    out.write(b"x" * block)


def promotion(case: Case) -> Iterator[Row]:
    """End the primary under load and make its synchronous standby the primary; workers know both addresses."""
    units, lease = case.pick((3_000, 10), (150, 3))
    primary = Server(case.made, case.folder / "primary", ["synchronous_standby_names=*"])
    primary.create()
    primary.settings, waits = [], primary.settings
    standby = Server(case.made, case.folder / "standby")
    with Field(case, lease=lease, concurrency=case.pick(100, 20), server=primary) as field:
        try:
            standby.follow(primary)
            standby.start()
            primary.stop(signal.SIGINT)
            primary.settings = waits
            primary.start()
            both = f"postgresql://{ROLE}@{HOST}:{primary.port},{HOST}:{standby.port}/{DATABASE}"
            field.configure(f"{both}?target_session_attrs=read-write")
            asked = field.command("status")
            if asked.returncode != 0:
                field.folder.joinpath("refused").write_text(asked.stderr)
                yield Row(case.scenario, case.database, not_run="an address with two hosts is refused")
                return
            field.birth(units, before=(100, 2_000), answer=(100, 1_000))
            field.start_and_wait(2)
            field.pause(2.0)
            ended = time.time()
            primary.stop(signal.SIGQUIT)
            standby.promote()
            field.follow(standby)
            returns = Returns(field)
            returns.note(ended)
            field.drain(case.pick(180, 20))
            yield returns.told(field.row(2, "1 promotion"))
        finally:
            standby.stop()

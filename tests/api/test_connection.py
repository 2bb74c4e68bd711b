"""Connections over real sockets: silent ones, trickling ones, and those that do not read their answer."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.api.connection import MOST, Connection, most_connections
from penstock.api.serve import bind, serving
from tests.support.fleet import ROOT, Member, until

LARGE = 50_000_000


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Answers with a word, or with very much; it reads no body."""
    if scope["type"] != "http":
        return
    body = b"x" * LARGE if scope["path"] == "/large" else b"hello"
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Patient(Connection):
    """Waits longer than any test."""

    request_seconds = stall_seconds = 600.0


class Impatient(Connection):
    request_seconds = stall_seconds = 0.05


@contextlib.contextmanager
def served(kind: type[Connection]) -> Iterator[int]:
    with bind("127.0.0.1:0") as listening, serving(application, listening, kind):
        yield listening.getsockname()[1]


@contextlib.contextmanager
def connected(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as made:
        yield made


def asked(one: socket.socket) -> bytes:
    one.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    found = b""
    while not found.endswith(b"hello"):
        found += one.recv(1_000)
    return found


def ended(one: socket.socket) -> bool:
    """Whether the server ends it, however long that takes; what it still sends is thrown away."""
    try:
        while one.recv(1_000_000):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.timeout(60)
@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost: here\r\n", b"GET"])
def test_who_sends_no_whole_request_is_let_go(said: bytes):
    with served(Impatient) as port, connected(port) as one:
        one.sendall(said)
        assert ended(one)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET / HTTP/1.1\r\nHost: here\r\n", b"X: x\r\n"),
        (b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000000\r\n\r\n", b"x"),
    ],
)
def test_a_trickle_of_headers_or_of_a_body_that_nobody_reads_buys_no_time(start: bytes, more: bytes):
    def trickle() -> None:
        with connected(port) as one:
            one.sendall(start)
            while True:
                one.sendall(more)
                time.sleep(0.001)  # as slow as somebody who wants to stay

    with served(Impatient) as port, pytest.raises(OSError, match=r"reset|Broken pipe"):
        trickle()


@pytest.mark.timeout(60)
def test_who_does_not_read_an_answer_is_let_go():
    with served(Impatient) as port, connected(port) as one:
        one.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
        for _ in range(5):  # each is silent and begins later: what was due before it ends has come to pass
            with connected(port) as other:
                assert ended(other)
        read = 0
        with contextlib.suppress(ConnectionResetError):
            while found := one.recv(1_000_000):
                read += len(found)
        assert read < LARGE


@pytest.mark.timeout(60)
def test_who_reads_slowly_and_steadily_gets_all_of_it():
    class Watchful(Connection):
        stall_seconds = 0.5
        request_seconds = 0.1  # begins when the answer is in the buffers: closing waits until it is read

    with served(Watchful) as port, connected(port) as one:
        one.sendall(b"GET /large HTTP/1.1\r\nHost: here\r\n\r\n")
        read = 0
        while found := one.recv(LARGE // 50, socket.MSG_WAITALL):
            read += len(found)
            time.sleep(0.05)
        assert read > LARGE


@pytest.mark.timeout(60)
def test_one_that_asks_again_and_again_stays():
    with served(Patient) as port, connected(port) as one:
        for _ in range(3):
            assert asked(one).startswith(b"HTTP/1.1 200")


@pytest.mark.timeout(60)
def test_where_all_are_taken_the_longest_idle_makes_room():
    class Three(Patient):
        most = 3

    with served(Three) as port, contextlib.ExitStack() as stack:
        silent, second, third = [stack.enter_context(connected(port)) for _ in range(3)]
        for one in (second, third):
            assert asked(one).startswith(b"HTTP/1.1 200")  # and so began to be idle after the first
        assert asked(stack.enter_context(connected(port))).startswith(b"HTTP/1.1 200")
        assert ended(silent)
        assert asked(third).startswith(b"HTTP/1.1 200")


def test_there_are_a_thousand_or_half_of_the_files(monkeypatch: pytest.MonkeyPatch):
    import resource

    for files, most in ((256, 64), (1_024, 448), (100, 1), (1_000_000, MOST), (resource.RLIM_INFINITY, MOST)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert most_connections() == most


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ledger_url", ["sqlite"], indirect=True)
def test_more_connections_than_files_take_nothing_from_the_work(ledger_url: str, tmp_path: Path):
    """A process with few files and a crowd before its desk: it answers, it works, and it never runs out of files."""
    (tmp_path / "penstock.toml").write_text(
        f'lifecycles = ["tests.support.shop:lifecycle"]\n[shop]\n[ledger]\nurl = "{ledger_url}"\n'
    )
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256));"
        " from penstock.cli.main import main; main()"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))}
    command = [sys.executable, "-c", limited, "up", "--address", "127.0.0.1:0"]
    member = Member(command, environment, tmp_path / "log", cwd=tmp_path)
    try:
        until(lambda: member.said("worker.started") and member.said("web.serving"), "it works")
        port = int(str(member.said("web.serving")[0]["address"]).rstrip("/").rpartition(":")[2])
        with contextlib.ExitStack() as stack:
            for _ in range(600):
                stack.enter_context(connected(port))
            for path in ("healthz", "readyz", "api/v1/workers"):
                one = stack.enter_context(connected(port))
                one.sendall(f"GET /{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
                assert one.recv(100).startswith(b"HTTP/1.1 200")
        assert "out of system resource" not in member.text()
    finally:
        member.kill()

"""Servers that answer twice, unasked, late or not at all: no answer reaches another call, no call is sent twice."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from penstock.connectors.amazon_ads.client import Amazon, Region
from penstock.connectors.http.client import Http, Response
from penstock.connectors.oauth import Credentials
from penstock.model.clock import VirtualClock
from penstock.model.errors import InDoubt, StepError, Transient
from penstock.settings.secret import Secret
from tests.support.sockets import read_request
from tests.support.sockets import server as bare

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("GET", {}),
    ("HEAD", {}),
    ("OPTIONS", {}),
    ("POST", {"repeatable": True, "content": b"{}"}),
    ("POST", {"content": b"{}"}),
    ("PUT", {"content": b"{}"}),
    ("PATCH", {"content": b"{}"}),
    ("DELETE", {}),
]
SAFE = ("GET", "HEAD", "OPTIONS")
each_call = pytest.mark.parametrize(("method", "options"), CALLS, ids=[f"{m}{len(o)}" for m, o in CALLS])


def in_doubt(method: str, options: dict[str, Any]) -> bool:
    return method not in SAFE and "repeatable" not in options


class Server:
    """Answers each request with its own path, in a thread of its own; what else it does is told by `script`."""

    def __init__(self) -> None:
        self.paths: Counter[str] = Counter()
        self.connections = 0
        self.said = threading.Event()
        self.said.set()
        self.script = lambda connection, path, answer: connection.sendall(answer)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), connection, connection.makefile("rb") as arriving:
            while line := arriving.readline():
                method, path, _ = line.decode().split(" ")
                length = 0
                while (header := arriving.readline()) not in (b"\r\n", b""):
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                arriving.read(length)
                self.paths[path] += 1
                self.script(connection, path, answer(path, method))

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)


def answer(path: str, method: str = "GET", status: str = "200 OK", more: str = "") -> bytes:
    body = "" if method == "HEAD" else path
    head = f"HTTP/1.1 {status}\r\nX-Answers: {path}\r\n{more}Content-Length: {len(path)}\r\n\r\n"
    return (head + body).encode()


def close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_RDWR)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(connection.detach())


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@contextlib.asynccontextmanager
async def client(server: Server) -> AsyncIterator[Http]:
    made = Http(server.address, VirtualClock())
    try:
        yield made
    finally:
        await made.close()


async def ask(h: Http, method: str, path: str, options: dict[str, Any]) -> Response | None:
    """The answer, which is that of this very call; None where there was none."""
    wanted: type[StepError] = InDoubt if in_doubt(method, options) else Transient
    try:
        found = await h.call(method, path, **options)
    except wanted:
        return None
    assert found.headers["x-answers"] == path
    assert found.content == (b"" if method == "HEAD" else path.encode())
    return found


def idle(server: Server, method: str, options: dict[str, Any], *, reads: bool = True) -> list[bool]:
    """Three calls, a moment apart, in which what came is `read` by the loop or not: which were answered."""

    async def main() -> list[bool]:
        async with client(server) as h:
            found = []
            for number in range(3):
                found.append(await ask(h, method, f"/{number}", options) is not None)
                if reads:
                    await asyncio.sleep(0.02)
                server.said.wait(5)
                await asyncio.sleep(0.01) if reads else time.sleep(0.01)  # noqa: ASYNC251 - what comes stays unread
            return found

    found = asyncio.run(main())
    assert set(server.paths) == {"/0", "/1", "/2"}
    assert set(server.paths.values()) == {1}, "each call was sent once"
    return found


UNASKED = {
    "a stray answer": answer("/stray"),
    "a stray answer of another profile": answer("/stray", more="Set-Cookie: a=b\r\n"),
    "two of them": answer("/stray") * 2,
    "half a head": b"HTTP/1.1 200 OK\r\nX-Answers: /st",
    "an idle 408": answer("/stray", status="408 Request Timeout", more="Connection: close\r\n"),
    "an announcement": b"HTTP/1.1 100 Continue\r\n\r\n",
    "line ends": b"\r\n\r\n",
    "nonsense": b"\x15\x03\x01",
}


@each_call
@pytest.mark.parametrize("reads", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("unasked", UNASKED.values(), ids=UNASKED)
def test_what_comes_unasked_reaches_no_call(server, method, options, unasked, reads):
    def script(connection: socket.socket, path: str, own: bytes) -> None:
        connection.sendall(own)
        if path == "/0":
            time.sleep(0.01)
            with contextlib.suppress(OSError):  # it may have been closed already
                connection.sendall(unasked)
            server.said.set()

    server.script = script
    server.said.clear()
    assert idle(server, method, options, reads=reads) == [True] * 3


@each_call
def test_a_late_duplicate_reaches_no_call(server, method, options):
    def script(connection: socket.socket, path: str, own: bytes) -> None:
        connection.sendall(own)
        time.sleep(0.005)
        with contextlib.suppress(OSError):
            connection.sendall(own)

    server.script = script
    assert idle(server, method, options) == [True] * 3


@each_call
def test_an_answer_with_another_beside_it_is_not_believed(server, method, options):
    """Which of the two is ours cannot be known: the first may be the late one of the call before."""

    def script(connection: socket.socket, path: str, own: bytes) -> None:
        connection.sendall(own if path != "/1" else answer("/0", method) + own)

    server.script = script
    assert idle(server, method, options) == [True, False, True]


@each_call
@pytest.mark.parametrize("way", [close, reset], ids=["closed", "reset"])
@pytest.mark.parametrize("part", [0, 20, -1], ids=["before", "in the head", "in the body"])
def test_a_call_that_is_cut_off_is_sent_once_and_in_doubt_where_it_changes_something(
    server, method, options, way, part
):
    def script(connection: socket.socket, path: str, own: bytes) -> None:
        if path != "/1":
            connection.sendall(own)
            return
        connection.sendall(own[:part])
        way(connection)

    server.script = script
    assert idle(server, method, options) == [True, False, True] or (method == "HEAD" and part == -1)


@each_call
@pytest.mark.parametrize("way", [close, reset], ids=["closed", "reset"])
def test_a_connection_that_is_cut_after_the_answer_costs_nothing(server, method, options, way):
    def script(connection: socket.socket, path: str, own: bytes) -> None:
        connection.sendall(own)
        time.sleep(0.005)
        way(connection)

    server.script = script
    assert idle(server, method, options) == [True] * 3


def test_only_calls_that_read_share_a_connection(server):
    async def main() -> int:
        async with client(server) as h:
            for number in range(5):
                await h.call("GET", f"/get{number}")
            before = server.connections
            for number in range(5):
                await h.call("POST", f"/post{number}")
        return before

    assert asyncio.run(main()) == 1
    assert server.connections == 1 + 5


def test_many_calls_at_once_through_a_server_that_duplicates_at_random(server):
    """Every seventh answer comes twice, now or a little later, while others use the connections."""
    lock = threading.Lock()
    count = iter(range(10_000))

    def script(connection: socket.socket, path: str, own: bytes) -> None:
        with lock:
            number = next(count)
        if number % 14 == 7:
            connection.sendall(own + own)
            return
        connection.sendall(own)
        if number % 14 == 0:
            time.sleep(0.003)
            with contextlib.suppress(OSError):
                connection.sendall(own)

    server.script = script

    async def caller(h: Http, name: int) -> int:
        answered = 0
        for number in range(30):
            answered += await ask(h, "POST", f"/{name}-{number}", {}) is not None
            answered += await ask(h, "PUT", f"/{name}-{number}-", {}) is not None
        return answered

    async def main() -> int:
        async with client(server) as h:
            return sum(await asyncio.gather(*(caller(h, name) for name in range(8))))

    assert asyncio.run(main()) > 400
    assert set(server.paths.values()) == {1}


def test_no_two_profiles_share_a_connection():
    """Whatever a server sends too late on a connection then belongs to the profile that it was opened for."""
    seen: list[tuple[int, bytes]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await read_request(reader):
            scope = next((line for line in request.split(b"\r\n") if b"-Scope:" in line), b"token")
            seen.append((writer.get_extra_info("peername")[1], scope))
            body = b'{"access_token": "a-token-of-ours", "status": "PENDING"}'
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    async def main(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("A_SECRET", "a-secret-of-ours")
        secret = Secret("env", "A_SECRET")
        async with bare(serve) as (address, _):
            amazon = Amazon(Region(address, f"{address}/token"), VirtualClock())
            profiles = [amazon.profile(name, Credentials("client", secret, secret)) for name in ("1", "2", "3")]
            for _ in range(3):
                for profile in profiles:
                    await profile.status("a-report")
            await amazon.close()

    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(main(monkeypatch))
    users = {connection: {scope for one, scope in seen if one == connection} for connection, _ in seen}
    assert len(users) == 4
    assert all(len(scopes) == 1 for scopes in users.values())

"""HTTP/1.1 as servers really speak it: every way to end a body, and every way to fail."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx2
import pytest

from penstock.clock import VirtualClock
from penstock.connectors import wire
from penstock.connectors.http import Http
from penstock.connectors.wire import Wire
from penstock.errors import InDoubt, StepError, Transient
from tests.connectors.test_amazon_ads_download import certificate

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            head += await reader.readexactly(int(line.partition(b":")[2]))
    return head


@contextlib.asynccontextmanager
async def server(serve: Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, list[None]]]:
    """Its address, and one entry for each connection that was made. It ends when all of them have."""
    made: list[None] = []
    left = asyncio.Semaphore(0)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.append(None)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        left.release()

    async with await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls) as one:
        port = one.sockets[0].getsockname()[1]
        yield f"{'https' if tls else 'http'}://{'localhost' if tls else '127.0.0.1'}:{port}", made
        async with asyncio.timeout(20):
            for _ in made:
                await left.acquire()


def answering(*answers: bytes, requests: list[bytes] | None = None) -> Serve:
    """On one connection, one answer after the other; then it is closed."""
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while left:
            request = await read_request(reader)
            if requests is not None:
                requests.append(request)
            writer.write(left.pop(0))
            await writer.drain()

    return serve


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextlib.asynccontextmanager
async def http(address: str, verify: ssl.SSLContext | bool = True) -> AsyncIterator[Http]:
    client = Http(address, VirtualClock(), verify=verify)
    assert isinstance(client._transport, Wire)
    try:
        yield client
    finally:
        await client.close()


PACKED = gzip.compress(b"packed", mtime=0)
WHOLE = {
    "length": (OK, b"ok"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nch\r\n3\r\nunk\r\n0\r\n\r\n", b"chunk"),
    "announced": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + OK, b"ok"),
    "nothing": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "packed": (
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s" % (len(PACKED), PACKED),
        b"packed",
    ),
    "large": (b"HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n" + b"x" * 300_000, b"x" * 300_000),
}


@pytest.mark.parametrize(("answer", "body"), WHOLE.values(), ids=WHOLE)
def test_a_connection_serves_one_call_after_the_other(answer, body):
    async def main() -> None:
        requests: list[bytes] = []
        async with server(answering(answer, OK, OK, requests=requests)) as (address, made), http(f"{address}/v1") as h:
            first = await h.call("GET", "/things?x=%C3%A9")
            assert first.content == body
            assert (await h.call("POST", "/more", json={"a": "ü"}, repeatable=True)).content == b"ok"
            assert (await h.post("/more", b"{}", {"X-Own": "1"})).content == b"ok"
            assert len(made) == 1
        assert requests[0].startswith(b"GET /v1/things?x=%C3%A9 HTTP/1.1\r\n")
        assert requests[1].endswith('{"a":"ü"}'.encode())
        assert requests[2].startswith(b"POST /v1/more HTTP/1.1\r\n")
        assert b"x-own: 1\r\n" in requests[2].lower()
        assert requests[2].lower().count(b"\r\nhost: 127.0.0.1:") == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"something more",
    ],
    ids=["close", "until the end", "old", "too much"],
)
def test_a_connection_that_cannot_be_used_again_is_not(answer):
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(answer)
            await writer.drain()

        async with server(serve) as (address, made), http(address) as h:
            for _ in range(3):
                assert (await h.call("GET", "/")).content == b"ok"
            assert len(made) == 3

    asyncio.run(main())


def test_a_connection_that_the_server_closed_meanwhile_is_not_used():
    async def main() -> None:
        closed = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(OK)
            await writer.drain()
            writer.close()
            await writer.wait_closed()
            closed.set()

        async with server(serve) as (address, made), http(address) as h:
            await h.call("GET", "/")
            await closed.wait()
            (resting,) = h._transport._resting.values()  # type: ignore[union-attr]
            async with asyncio.timeout(10):
                while not resting[0]._reader.at_eof():  # noqa: ASYNC110 - it is told by nobody
                    await asyncio.sleep(0.01)
            await h.call("GET", "/")
            assert len(made) == 2

    asyncio.run(main())


def test_a_connection_that_rested_for_long_is_not_used(monkeypatch):
    async def main() -> None:
        async with server(answering(OK, OK)) as (address, made), http(address) as h:
            await h.call("GET", "/")
            monkeypatch.setattr(wire, "_RESTS", 0.0)
            await h.call("GET", "/")
            assert len(made) == 2

    asyncio.run(main())


def test_calls_at_once_have_connections_of_their_own_and_few_rest(monkeypatch):
    async def main() -> None:
        together = asyncio.Barrier(6)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await read_request(reader)
                await together.wait()
                writer.write(OK)

        async with server(serve) as (address, made), http(address) as h:
            for _ in range(2):
                await asyncio.gather(*(h.post("/", b"", {}) for _ in range(6)))
            assert len(made) == 6 + 2
            (resting,) = h._transport._resting.values()  # type: ignore[union-attr]
            assert len(resting) == 4

    monkeypatch.setattr(wire, "_MOST_RESTING", 4)
    asyncio.run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000,
    ],
    ids=["nothing", "half a head", "too short", "half a chunk", "nonsense", "an endless head"],
)
@pytest.mark.parametrize("way", ["post", "call", "stream"])
def test_an_answer_that_breaks_off_was_sent_all_the_same(answer, way):
    async def streamed(h: Http) -> None:
        async with h.stream("/x", method="POST", shown="/x") as response:
            async for _ in response.aiter_raw():
                pass

    async def main() -> None:
        async with server(answering(answer)) as (address, _), http(address) as h:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "post": lambda: h.post("/x", b"{}", {}),
                "call": lambda: h.call("POST", "/x", content=b"{}"),
                "stream": lambda: streamed(h),
            }
            with pytest.raises(StepError, match="POST /x: ") as caught:
                await calls[way]()
            assert type(caught.value) is (InDoubt if way == "call" else Transient)

    asyncio.run(main())


def test_silence_is_a_timeout(monkeypatch):
    async def main() -> None:
        gone = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            await gone.wait()

        async with server(serve) as (address, _), http(address) as h:
            with pytest.raises(Transient, match="ReadTimeout"):
                await h.call("GET", "/", timeout=0.05)
            with pytest.raises(InDoubt, match="ReadTimeout"):
                await h.call("POST", "/", content=b"x", timeout=0.05)
            gone.set()

    asyncio.run(main())


def test_a_call_that_is_given_up_leaves_no_connection_behind():
    async def main() -> None:
        arrived, gone = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            arrived.set()
            assert await reader.read() == b""
            gone.set()

        async with server(serve) as (address, _), http(address) as h:
            call = asyncio.create_task(h.post("/", b"{}", {}))
            await arrived.wait()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            async with asyncio.timeout(10):
                await gone.wait()

    asyncio.run(main())


def test_a_body_of_many_parts_is_sent_whole():
    async def main() -> None:
        received: list[int] = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            received.append(len(await read_request(reader)))
            writer.write(OK)

        async with server(serve) as (address, _), http(address) as h:
            await h.call("POST", "/", content=b"x" * 3_000_000)
            assert received[0] > 3_000_000

    asyncio.run(main())


def test_headers_cannot_be_smuggled():
    async def main() -> None:
        async with server(answering(OK)) as (address, _), http(address) as h:
            with pytest.raises((InDoubt, Transient), match="LocalProtocolError"):
                await h.post("/", b"", {"X-Own": "a\r\nX-Other: b"})

    asyncio.run(main())


def test_tls_is_checked_against_the_name(tmp_path):
    served, trusting = certificate(tmp_path, "localhost")
    other, _ = certificate(tmp_path, "other.test")

    async def main() -> None:
        async with server(answering(OK, OK), served) as (address, made):
            async with http(address, trusting) as h:
                assert (await h.call("GET", "/")).content == b"ok"
                assert (await h.post("/", b"", {})).content == b"ok"
            assert len(made) == 1
            async with http(address) as h:
                with pytest.raises(Transient, match=r"could not connect.*CERTIFICATE_VERIFY_FAILED"):
                    await h.call("GET", "/")
        async with server(answering(OK), other) as (address, _), http(address, trusting) as h:
            with pytest.raises(Transient, match=r"could not connect.*CERTIFICATE_VERIFY_FAILED"):
                await h.call("GET", "/")

    asyncio.run(main())


def test_with_a_proxy_or_for_a_stranger_it_is_not_used(monkeypatch):
    assert Http("http://a.test", VirtualClock(), stranger=True)._transport is None
    given = httpx2.MockTransport(lambda _: httpx2.Response(200))
    assert Http("http://a.test", VirtualClock(), transport=given)._transport is given
    monkeypatch.setenv("NO_PROXY", "localhost")
    assert isinstance(Http("http://a.test", VirtualClock())._transport, Wire)
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert Http("http://a.test", VirtualClock())._transport is None

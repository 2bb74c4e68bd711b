"""HTTP/1.1 as servers really speak it: every way to end a body, and every way to fail."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.connectors.http import network
from penstock.connectors.http.client import Http
from penstock.connectors.http.exchange import Patience
from penstock.model.errors import InDoubt, Rejected, StepError, Transient
from tests.connectors.test_amazon_ads_download import certificate
from tests.support.sockets import OK, answering, http, read_request, server

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
            assert (
                await h.call("POST", "/more", content=b"{}", headers={"X-Own": "1"}, repeatable=True)
            ).content == b"ok"
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
    ],
    ids=["close", "until the end", "old"],
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
            await h.call("GET", "/")
            assert len(made) == 2

    asyncio.run(main())


def test_a_connection_that_rested_for_long_is_not_used(monkeypatch):
    async def main() -> None:
        async with server(answering(OK, OK)) as (address, made), http(address) as h:
            await h.call("GET", "/")
            await asyncio.sleep(0.05)
            await h.call("GET", "/")
            assert len(made) == 2

    monkeypatch.setattr(network, "_RESTS", 0.02)
    asyncio.run(main())


def test_calls_at_once_have_connections_of_their_own():
    async def main() -> None:
        together = asyncio.Barrier(6)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while True:
                await read_request(reader)
                await together.wait()
                writer.write(OK)

        async with server(serve) as (address, made), http(address) as h:
            for _ in range(2):
                await asyncio.gather(*(h.call("GET", "/") for _ in range(6)))
            assert len(made) == 6

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
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
        OK + b"something more",
        OK.replace(b": 2", b": 2\r\nContent-Length: 3"),
        OK.replace(b": 2", b": 2\r\nTransfer-Encoding: chunked"),
        OK.replace(b": 2", b": 18446744073709551615"),
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: xchunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
    ids=[
        *("nothing", "half a head", "too short", "half a chunk", "nonsense", "an endless head", "endless headers"),
        *("another protocol", "more than the answer", "two lengths", "a length and chunks"),
        *("the largest length", "two codings", "an unknown coding"),
    ],
)
@pytest.mark.parametrize("way", ["repeatable", "call", "stream"])
def test_an_answer_that_breaks_off_was_sent_all_the_same(answer, way):
    async def streamed(h: Http) -> None:
        async with h.stream("/x", method="POST") as response:
            async for _ in response.pieces():
                pass

    async def main() -> None:
        async with server(answering(answer)) as (address, _), http(address) as h:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "repeatable": lambda: h.call("POST", "/x", content=b"{}", repeatable=True),
                "call": lambda: h.call("POST", "/x", content=b"{}"),
                "stream": lambda: streamed(h),
            }
            with pytest.raises(StepError, match="POST /x: ") as caught:
                await calls[way]()
            assert type(caught.value) is (InDoubt if way == "call" else Transient)
            assert "\n" not in str(caught.value)

    asyncio.run(main())


def test_silence_is_a_timeout():
    async def main() -> None:
        gone = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            await gone.wait()

        async with server(serve) as (address, _), http(address) as h:
            with pytest.raises(Transient, match=r"nothing came for 0\.05 s"):
                await h.call("GET", "/", patience=Patience(silence=0.05))
            with pytest.raises(InDoubt, match=r"nothing came for 0\.05 s"):
                await h.call("POST", "/", content=b"x", patience=Patience(silence=0.05))
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
            call = asyncio.create_task(h.call("POST", "/", content=b"{}", repeatable=True))
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"headers": {"X-Own": "a\r\nX-Other: b"}},
        {"headers": {"X-Own": "a\nb"}},
        {"headers": {"X-Own": "\u00fc"}},
    ],
)
def test_nothing_is_smuggled_into_a_request(wrong):
    async def main() -> None:
        async with server(answering(OK)) as (address, made), http(address) as h:
            with pytest.raises(Rejected, match="cannot be sent"):
                await h.call("POST", "/", **wrong)
            assert made == []

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/a b?c=\u00fc%20", b"/a%20b?c=%C3%BC%20"),
        ("/a HTTP/1.1\r\nX-Other: b\r\n\r\n", b"/a%20HTTP/1.1%0D%0AX-Other:%20b%0D%0A%0D%0A"),
    ],
)
def test_what_is_no_part_of_an_address_is_encoded(path, sent):
    async def main() -> None:
        requests: list[bytes] = []
        async with server(answering(OK, requests=requests)) as (address, _), http(address) as h:
            await h.call("GET", path)
        assert requests[0].startswith(b"GET " + sent + b" HTTP/1.1\r\n")

    asyncio.run(main())


def test_tls_is_checked_against_the_name(tmp_path):
    served, trusting = certificate(tmp_path, "localhost")
    other, _ = certificate(tmp_path, "other.test")

    async def main() -> None:
        async with server(answering(OK, OK), served) as (address, made):
            async with http(address, context=trusting) as h:
                assert (await h.call("GET", "/")).content == b"ok"
                assert (await h.call("GET", "/")).content == b"ok"
            assert len(made) == 1
            async with http(address) as h:
                with pytest.raises(Transient, match=r"could not connect.*CERTIFICATE_VERIFY_FAILED"):
                    await h.call("GET", "/")
        async with server(answering(OK), other) as (address, _), http(address, context=trusting) as h:
            with pytest.raises(Transient, match=r"could not connect.*CERTIFICATE_VERIFY_FAILED"):
                await h.call("GET", "/")

    asyncio.run(main())


def test_nothing_of_the_environment_is_used(tmp_path, monkeypatch):
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password secret-of-netrc\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def main() -> None:
        requests: list[bytes] = []
        async with server(answering(OK, requests=requests)) as (address, _), http(address) as h:
            assert (await h.call("GET", "/")).content == b"ok"
        assert b"authorization" not in requests[0].lower()

    asyncio.run(main())


def test_cookies_and_redirects_are_off():
    async def main() -> None:
        requests: list[bytes] = []
        moved = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n"
        marked = OK.replace(b"\r\n", b"\r\nSet-Cookie: account=1; Path=/\r\n", 1)
        async with server(answering(marked, moved, requests=requests)) as (address, _), http(address) as h:
            await h.call("GET", "/")
            with pytest.raises(Transient, match="302"):
                await h.call("GET", "/again")
        assert [request.split(b" ")[1] for request in requests] == [b"/", b"/again"]
        assert b"cookie" not in requests[1].lower()

    asyncio.run(main())


@pytest.mark.parametrize("begun", [b"H", b"HTTP/1.1 204 ", b"HTTP/1.1 200 OK\r\nX: "])
def test_a_connection_on_which_another_answer_has_begun_is_not_used(begun):
    async def main() -> None:
        async with server(answering(OK + begun, OK)) as (address, made), http(address) as h:
            assert (await h.call("GET", "/")).content == b"ok"
            with contextlib.suppress(Transient):
                await h.call("GET", "/")
            assert len(made) == 2

    asyncio.run(main())


def test_a_connection_that_changed_its_protocol_is_not_used():
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if (await read_request(reader)).startswith(b"GET /first "):
                writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
                await read_request(reader)  # another one here would get the answer to the first
            writer.write(OK)
            await writer.drain()

        async with server(serve) as (address, made), http(address) as h:
            with pytest.raises(Transient, match="another protocol"):
                await h.call("GET", "/first")
            await h.call("GET", "/second")
            assert len(made) == 2

    asyncio.run(main())


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_a_call_that_is_given_up_leaves_nothing_open():
    async def main() -> None:
        done = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await done.wait()

        async with server(serve) as (address, _), http(address) as h:
            before = open_files()
            with pytest.raises(InDoubt, match="not finished"):
                await h.call("POST", "/", content=bytes(20 << 20), patience=Patience(total=0.3))
            await asyncio.sleep(0.05)
            assert open_files() == before + 1, "the server's end, and not ours"
            done.set()

    asyncio.run(main())

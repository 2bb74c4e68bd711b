"""No answer takes all the memory or all the time: bodies, what they are decompressed to, and how they trickle in."""

from __future__ import annotations

import asyncio
import gzip
import time
import tracemalloc
import zlib

import pytest

from penstock.connectors.http.client import Http
from penstock.connectors.http.exchange import Patience
from penstock.connectors.http.in_process import InProcess
from penstock.model.clock import VirtualClock
from penstock.model.errors import Fatal, InDoubt, Rejected, StepError, Throttled, Transient, UsageError
from penstock.settings.addresses import check_address
from tests.support.sockets import answering, http, read_request, server

MIB = 1 << 20
HASTY = Patience(total=0.3)


def packed(body: bytes, encoding: str = "gzip", status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(size // MIB)), packer.flush()])


def failing(answer: bytes, error: type[StepError], words: str, method: str = "GET", **options) -> None:
    async def main() -> None:
        async with server(answering(answer)) as (address, _), http(address) as h:
            with pytest.raises(error, match=words) as caught:
                await h.call(method, "/", **options)
            assert type(caught.value) is error

    asyncio.run(main())


@pytest.mark.parametrize(
    "encoding", ["gzip, gzip", "gzip,gzip", "gzip\r\nContent-Encoding: gzip", "br", "deflate", "identity, gzip", "zstd"]
)
def test_one_layer_of_gzip_is_all_that_is_unpacked(encoding):
    twice = gzip.compress(bomb(100 * MIB))
    assert len(twice) < 2_000
    tracemalloc.start()
    failing(packed(twice, encoding), Transient, "one layer of gzip")
    failing(packed(twice, encoding), InDoubt, "one layer of gzip", "POST")
    assert tracemalloc.get_traced_memory()[1] < 20 * MIB
    tracemalloc.stop()


def test_a_body_has_a_limit_decompressed_too():
    tracemalloc.start()
    failing(packed(bomb(100 * MIB)), Rejected, "larger than 33,554,432 bytes")
    failing(packed(bomb(100 * MIB)), InDoubt, "larger than 33,554,432 bytes", "POST")
    assert tracemalloc.get_traced_memory()[1] < 80 * MIB
    tracemalloc.stop()
    long = b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + bytes(3000)
    failing(long, Rejected, "larger than 2,999 bytes", most_bytes=2_999)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"3e8\r\n" + bytes(1000) + b"\r\n"
    failing(chunked * 1 + b"3e8\r\n" + bytes(1000) + b"\r\n", Rejected, "larger than 1,999 bytes", most_bytes=1_999)


def test_an_error_is_judged_by_its_status_whatever_its_body():
    failing(packed(bomb(100 * MIB), status="503 Service Unavailable"), Transient, "503", "POST")
    failing(packed(bomb(100 * MIB), status="400 Bad Request"), Rejected, "400")
    failing(packed(b"not gzip", status="403 Forbidden"), Fatal, "403")
    failing(packed(b"x", "br", status="429 Too Many Requests"), Throttled, "429")


@pytest.mark.parametrize("body", [b"", gzip.compress(b"whole")], ids=["empty", "whole"])
def test_a_compressed_body_may_be_empty_or_whole(body):
    async def main() -> None:
        async with server(answering(packed(body, "GZIP"))) as (address, _), http(address) as h:
            assert (await h.call("GET", "/")).content == (b"whole" if body else b"")

    asyncio.run(main())


def test_a_compressed_body_ends_where_it_should():
    failing(packed(gzip.compress(b"whole")[:-1]), Transient, "breaks off")
    failing(packed(gzip.compress(b"whole") + b"more"), Transient, "something follows")
    failing(packed(b"whole"), Transient, "damaged")


DRIPS = {
    "the head": (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
    "the body": (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n", b"y"),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\ny\r\n"),
    "a chunk's extension": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"y"),
    "announcements": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "early hints": (b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
}


@pytest.mark.parametrize("pause", [0.05, 0.0], ids=["slowly", "at once"])
@pytest.mark.parametrize("streamed", [False, True], ids=["call", "stream"])
@pytest.mark.parametrize(("begin", "drip"), DRIPS.values(), ids=DRIPS)
def test_whatever_drips_without_end_is_ended(begin, drip, pause, streamed):
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            writer.write(begin)
            while not writer.is_closing():
                writer.write(drip if pause else drip * 1000)
                await writer.drain()
                await asyncio.sleep(pause)

        async def read(h: Http) -> None:
            async with h.stream("/", patience=HASTY) as response:
                async for _ in response.pieces():
                    pass

        async with server(serve) as (address, _), http(address) as h:
            with pytest.raises((Transient, Rejected)):
                await (read(h) if streamed else h.call("GET", "/", patience=HASTY))

    started = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - started < 20


def test_endless_announcements_are_ended_by_their_number():
    async def main() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read_request(reader)
            while not writer.is_closing():
                writer.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)
                await writer.drain()

        async with server(serve) as (address, _), http(address) as h:
            with pytest.raises(Transient, match="announces its answer again and again"):
                await h.call("GET", "/")
            with pytest.raises(InDoubt, match="announces its answer again and again"):
                await h.call("POST", "/")

    asyncio.run(main())


def test_a_server_that_takes_in_nothing_is_given_up():
    async def main() -> None:
        done = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await done.wait()

        async with server(serve) as (address, _), http(address) as h:
            with pytest.raises(InDoubt, match=r"not finished after 0\.3 s"):
                await h.call("POST", "/", content=bytes(20 * MIB), patience=HASTY)
            done.set()

    asyncio.run(main())


def test_nobody_there_is_transient_for_a_call_that_changes_something_too():
    async def main(address: str) -> None:
        async with http(address) as h:
            for method in ("GET", "POST", "PUT", "DELETE"):
                with pytest.raises(Transient, match=f"{method} /: could not connect"):
                    await h.call(method, "/")

    async def free() -> str:
        async with server(answering()) as (address, _):
            return address

    asyncio.run(main(asyncio.run(free())))


@pytest.mark.parametrize(
    "url",
    [
        "http://api.example.com",
        "http://10.0.0.1",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://0.0.0.0",
        "http://2130706433",
        "ftp://127.0.0.1",
        "https://",
        "https://a:0",
        "https://a:99999",
        "https://user@a",
        "https://a b",
        "//a",
        "https://[::1",
    ],
)
def test_plain_http_is_for_this_machine_alone(url):
    with pytest.raises(UsageError):
        Http(url, VirtualClock())


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:80", "http://127.8.9.1", "http://[::1]:8080", "http://localhost/v1", "https://a.example"]
)
def test_these_addresses_are_fine(url):
    assert check_address(url) == url


def test_in_process_a_call_takes_no_longer_than_it_may():
    async def never(scope, receive, send) -> None:
        await asyncio.sleep(3_600)

    async def half(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"half", "more_body": False})

    async def main() -> None:
        for app, words in ((never, r"not finished after 0\.3 s"), (half, "without a whole answer")):
            h = Http("http://sim.test", VirtualClock(), transport=InProcess(app))
            with pytest.raises(InDoubt, match=words):
                await h.call("POST", "/", patience=HASTY)
            with pytest.raises(Transient, match=words):
                await h.call("GET", "/", patience=HASTY)

    asyncio.run(main())

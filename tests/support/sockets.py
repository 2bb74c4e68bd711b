"""Little HTTP servers made of bare sockets, which can say anything at any time."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from penstock.connectors.http.client import Http
from penstock.model.clock import VirtualClock

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


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


@contextlib.asynccontextmanager
async def http(address: str, **options: object) -> AsyncIterator[Http]:
    client = Http(address, VirtualClock(), **options)  # type: ignore[arg-type]
    try:
        yield client
    finally:
        await client.close()

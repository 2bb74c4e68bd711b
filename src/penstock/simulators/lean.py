"""A server for simulators that answer without waiting: a twentieth of a millisecond for each request.

It is for measuring: beside a usual server's work that of the program under test would be hard to see. It takes requests
with a `Content-Length` and without pipelining, which is what our own connectors send, and drops everybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

Headers = tuple[tuple[bytes, bytes], ...]
Answer = Callable[[str, str, dict[str, str], bytes], tuple[int, Headers, bytes]]

_REQUEST = re.compile(rb"([A-Z]+) ([!-~]+) HTTP/1\.1\r\n((?:[!-9;-~]+:[^\r\n]*\r\n)*)\r\n")
_LARGEST = 1 << 20


class _Connection(asyncio.Protocol):
    def __init__(self, answer: Answer, latency: Callable[[], float]) -> None:
        self._answer = answer
        self._latency = latency
        self._arrived = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a socket's is
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        end = self._arrived.find(b"\r\n\r\n")
        if end < 0 and len(self._arrived) <= _LARGEST:
            return
        found = _REQUEST.match(self._arrived)
        if found is None:
            self._drop()
            return
        lines = found[3].decode("latin-1").splitlines()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = headers.get("content-length", "0")
        if not size.isdigit() or int(size) > _LARGEST or "transfer-encoding" in headers:
            self._drop()
            return
        if len(self._arrived) < found.end() + int(size):
            return
        body = self._arrived[found.end() : found.end() + int(size)]
        self._arrived = b""
        try:
            status, sent, content = self._answer(found[1].decode(), found[2].decode(), headers, body)
        except ConnectionAbortedError:
            self._drop()
            return
        lines_sent = b"".join(b"%s: %s\r\n" % header for header in sent)
        reply = b"HTTP/1.1 %d %s\r\n%s\r\n%s" % (status, HTTPStatus(status).phrase.encode(), lines_sent, content)
        latency = self._latency()
        if latency:
            asyncio.get_running_loop().call_later(latency, self._reply, reply)
        else:
            self._reply(reply)

    def _reply(self, reply: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(reply)

    def _drop(self) -> None:
        if self._transport is not None:
            self._transport.abort()


@contextlib.asynccontextmanager
async def serving_lean(
    answer: Answer, *, port: int = 0, latency: Callable[[], float] = lambda: 0.0
) -> AsyncIterator[str]:
    """Serve in the running loop, on loopback; gives the address. `latency` is asked for each answer, in seconds."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(answer, latency), "127.0.0.1", port)
    async with server:
        host, number = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{number}"

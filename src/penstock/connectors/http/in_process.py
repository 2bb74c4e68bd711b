"""HTTP to an ASGI application of the same program, without sockets: for simulators, on virtual time too.

Time passes only as the application lets it. One that breaks off breaks the connection: it ends without ending its
answer, promises more than it sends, or raises ConnectionError. What else it raises reaches the caller, as a bug should.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp, Message

from penstock.connectors.http.exchange import Request, Unanswered, lowered
from penstock.model import tenure

_BROKEN = "the server closed the connection without a whole answer"


class InProcess:
    """A transport to one application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def send(self, request: Request) -> _Answer:
        tenure.check()
        exchange = _Exchange(request)
        try:
            async with asyncio.timeout(request.patience.total):
                await self._app(exchange.scope(), exchange.receive, exchange.send)
        except TimeoutError as error:
            raise Unanswered(f"not finished after {request.patience.total:g} s") from error
        except ConnectionError:
            exchange.broken = True
        if exchange.status is None:
            raise Unanswered(_BROKEN)
        return _Answer(exchange)

    async def close(self) -> None:
        """Nothing is open."""


class _Exchange:
    """What the application is told of a request, and what it says."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._received = False
        self._ended = asyncio.Event()
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.broken = False

    def scope(self) -> dict[str, Any]:
        request, parts = self._request, urlsplit(self._request.url)
        sent = {"Host": parts.netloc, **request.headers}
        if request.body:
            sent["Content-Length"] = str(len(request.body))
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": request.method,
            "scheme": parts.scheme,
            "path": unquote(parts.path),
            "raw_path": parts.path.encode("ascii"),
            "query_string": parts.query.encode("ascii"),
            "root_path": "",
            "headers": [(name.lower().encode("ascii"), value.encode("ascii")) for name, value in sent.items()],
            "client": ("127.0.0.1", 0),
            "server": (parts.hostname, parts.port),
        }

    async def receive(self) -> Message:
        if self._received:
            await self._ended.wait()
            return {"type": "http.disconnect"}
        self._received = True
        return {"type": "http.request", "body": self._request.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            raw = message.get("headers", [])
            self.headers = lowered((name.decode("latin-1"), value.decode("latin-1")) for name, value in raw)
        elif message["type"] == "http.response.body":
            if self._request.method != "HEAD":
                self.body.append(bytes(message.get("body", b"")))
            if not message.get("more_body", False):
                self._ended.set()

    @property
    def whole(self) -> bool:
        promised = self.headers.get("content-length", "")
        enough = not promised.isdecimal() or int(promised) <= sum(map(len, self.body))
        return self._ended.is_set() and not self.broken and (enough or self._request.method == "HEAD")


class _Answer:
    def __init__(self, exchange: _Exchange) -> None:
        assert exchange.status is not None  # noqa: S101 - it began to answer
        self.status = exchange.status
        self.headers: Mapping[str, str] = exchange.headers
        self._whole = exchange.whole
        self._left = [piece for piece in reversed(exchange.body) if piece]

    async def piece(self) -> bytes:
        if self._left:
            return self._left.pop()
        if not self._whole:
            raise Unanswered(_BROKEN)
        return b""

    def close(self) -> None:
        self._left.clear()

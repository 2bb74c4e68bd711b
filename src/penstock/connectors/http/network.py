"""HTTP over sockets, by aiohttp; the only module that imports it, and it is imported with the first client.

HTTP/1.1 does not number its answers: on a connection that is used again, whatever comes next counts as the answer to
whatever was asked last. So a connection is used again only when nothing was said on it unasked, an answer that came
with more than itself is not believed, and a request that must not be confused with another goes alone. Nothing is
sent twice: aiohttp would repeat idempotent requests by itself, and is kept from it. See docs/decisions/0042.

Nothing is sent past the lease: it is looked at when the connection is there, resolved, connected and encrypted, and
again where the first bytes are written. See docs/decisions/0045.
"""

from __future__ import annotations

import asyncio
import functools
import io
import select
import socket
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from aiohttp import (
    ClientConnectionError,
    ClientConnectorError,
    ClientError,
    ClientHandlerType,
    ClientOSError,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientTimeout,
    ConnectionTimeoutError,
    DummyCookieJar,
    ServerDisconnectedError,
    SocketTimeoutError,
    TCPConnector,
    ThreadedResolver,
)
from aiohttp.abc import AbstractStreamWriter, ResolveResult
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.tracing import Trace
from yarl import URL

from penstock.connectors.http.exchange import NotSent, Patience, Request, Unanswered, lowered
from penstock.model import tenure
from penstock.model.simulation import SimulatedLoop

_RESTS = 4.0
"""Many servers close a connection that rests for five seconds; to use it just then would be a failed call."""
_MOST_HERALDS = 20
_SWITCHING = 101
_FIELD_BYTES = 1 << 15
_LARGE_BODY = 1 << 18
_LONGEST_LENGTH = 18
"""In digits. With the largest number of 64 bits the parser takes an answer for one without a length."""
_PROBE = b"HTTP/1.1 204 probe\r\n\r\n"
_AUTOMATIC = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Network:
    """Connections for one event loop. `context` is whom TLS trusts, where it is not whom the system trusts."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self._sessions: dict[bool, ClientSession] = {}

    async def send(self, request: Request) -> _Answer:
        session = self._sessions.get(request.alone) or self._session(alone=request.alone)
        deadline = asyncio.get_running_loop().time() + request.patience.total
        _line.set(None)
        _address.set(request.address)
        body = request.body
        try:
            async with asyncio.timeout_at(deadline):
                response = await session.request(
                    request.method,
                    URL(request.url, encoded=True),
                    headers=request.headers,
                    # A large one in one piece would hold up the loop.
                    data=(io.BytesIO(body) if len(body) > _LARGE_BODY else body) or None,
                    allow_redirects=False,
                    timeout=_timeout(request.patience),
                )
        except (ClientError, OSError) as error:  # a timeout is an OSError
            line, words = _line.get(), _words(error, request.patience)
            raise NotSent(words) if line is None else Unanswered(line.complaint or words) from error
        if wrong := _unasked(response):
            response.close()
            raise Unanswered(wrong)
        line = _line.get()
        assert line is not None  # noqa: S101 - an answer came over it
        return _Answer(response, line, deadline, request.patience)

    async def close(self) -> None:
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            await session.close()

    def _session(self, *, alone: bool) -> ClientSession:
        session = self._sessions[alone] = ClientSession(
            connector=_Connector(self._context, alone=alone),
            cookie_jar=DummyCookieJar(),
            skip_auto_headers=_AUTOMATIC,
            auto_decompress=False,
            trust_env=False,
            max_field_size=_FIELD_BYTES,
            middlewares=(_once,),
            request_class=_Request,
        )
        return session


class _Answer:
    """An answer over the network."""

    def __init__(self, response: ClientResponse, line: _Line, deadline: float, patience: Patience) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = lowered(response.headers.items())
        self._response = response
        self._line = line
        self._deadline = deadline
        self._patience = patience

    async def piece(self) -> bytes:
        try:
            async with asyncio.timeout_at(self._deadline):
                found = await self._response.content.readany()
        except (ClientError, OSError) as error:
            raise Unanswered(_words(error, self._patience)) from error
        if not found and self._line.complaint:
            raise Unanswered(self._line.complaint)
        return found

    def close(self) -> None:
        self._response.close()


class _Line(ResponseHandler):
    """One connection. It owes one answer for each time it was taken; `complaint` says what it said besides."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.complaint = ""
        self.taken = 0
        self._owes = False
        self._body: Any = None
        self._heralds = 0

    def take(self) -> bool:
        """Make ready for one request; False where something came that nobody asked for, read by us or not yet."""
        if self.should_close or not self.is_connected() or (self.taken and (self._begun() or self._readable())):
            return False
        self.taken += 1
        self._owes, self._body, self._heralds = True, None, 0
        return True

    def data_received(self, data: bytes) -> None:
        if data and not self._owes and (self._body is None or self._body.is_eof()):
            self._complain("the server sent something without a request")
            return
        super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take in the head of an answer, and its body to come."""
        message, body = data
        if not self._owes:
            self._complain("the server sent more than one answer to a request")
            return
        if message.code == _SWITCHING or not 100 <= message.code < 200:  # noqa: PLR2004 - the others announce it
            self._owes, self._body = False, body
            if message.code == _SWITCHING:
                self.force_close()  # whatever follows, it is no answer to another request
        else:
            self._heralds += 1
            if self._heralds > _MOST_HERALDS:
                self._complain("the server announces its answer again and again")
                return
        super().feed_data(data, size)

    def close(self) -> None:
        """At once, not when the other side has taken in what is left or said farewell: it may never do so."""
        self.abort()

    def _complain(self, complaint: str) -> None:
        self.complaint = complaint
        self.force_close()
        if self.transport is not None:
            self.transport.abort()

    def _begun(self) -> bool:
        """Whether the parser has read the beginning of a further answer: then a whole one is not what it hears next."""
        if self._parser is None:
            return True
        try:
            messages, _, _ = self._parser.feed_data(_PROBE)
        except HttpProcessingError:
            return True
        return [(message.code, message.reason, len(message.headers)) for message, _ in messages] != [(204, "probe", 0)]

    def _readable(self) -> bool:
        # Not for a new connection: there TLS may still have something of its own to say, and no call went before.
        assert self.transport is not None  # noqa: S101 - it is connected
        waiting = select.poll()
        waiting.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(waiting.poll(0))


_line: ContextVar[_Line | None] = ContextVar("line", default=None)
_address: ContextVar[str | None] = ContextVar("address", default=None)


class _Connector(TCPConnector):
    """Connections to any number of servers; as many as there are calls at once: how many that may be is said elsewhere.

    Where each goes `alone`, none is used again, and none is looked up from memory.
    """

    def __init__(self, context: ssl.SSLContext | None, *, alone: bool) -> None:
        # aiohttp measures a rest by the machine's clock and looks again by the loop's: on virtual time, for ever.
        never = alone or isinstance(asyncio.get_running_loop(), SimulatedLoop)
        rests: dict[str, Any] = {"force_close": True} if never else {"keepalive_timeout": _RESTS}
        super().__init__(ssl=context or True, resolver=_Resolver(), use_dns_cache=not alone, limit=0, **rests)
        self._factory = functools.partial(_Line, loop=self._loop)  # type: ignore[assignment]

    async def connect(self, req: ClientRequest, traces: list[Trace], timeout: ClientTimeout) -> Connection:  # noqa: ASYNC109 - aiohttp's
        while True:
            connection = await super().connect(req, traces, timeout)
            line = connection.protocol
            if not isinstance(line, _Line):
                connection.close()
                msg = "this version of aiohttp is not supported; install the one in the lock file"
                raise RuntimeError(msg)  # noqa: TRY004 - it is nobody's argument
            if line.take():
                _line.set(line)
                try:
                    tenure.check()
                except BaseException:
                    connection.close()
                    raise
                return connection
            connection.close()
            if not line.taken:
                raise ClientConnectionError("the server sent something before the request, or closed at once")


class _Request(ClientRequest):
    """A request that looks once more when its first bytes leave: on Python 3.11 a task of its own writes a body."""

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        try:
            tenure.check()
        except BaseException:
            conn.close()
            raise
        await super().write_bytes(writer, conn, content_length)


class _Resolver(ThreadedResolver):
    """Where a host is: at the address that came with the request, else wherever the system says."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AddressFamily.AF_INET
    ) -> list[ResolveResult]:
        address = _address.get()
        if address is None:
            return await super().resolve(host, port, family)
        kind = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=0)]


class _Gone(ClientError):
    """The connection broke after the request was sent; unlike aiohttp's own, nothing takes it for leave to repeat."""


async def _once(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    try:
        return await handler(request)
    except ClientConnectorError:
        raise
    except (ClientOSError, ServerDisconnectedError) as error:
        raise _Gone(_words(error, Patience())) from error


def _unasked(response: ClientResponse) -> str:
    """What is wrong with the head of an answer whose body cannot be what the server meant."""
    if response.status == _SWITCHING:
        return "the server switched to another protocol without being asked"
    codings = response.headers.getall("Transfer-Encoding", ())
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        return "the answer has a transfer encoding that is not supported; only chunked is"
    if len(response.headers.get("Content-Length", "")) > _LONGEST_LENGTH:
        return "the answer claims an impossible length"
    return ""


@functools.lru_cache(maxsize=16)
def _timeout(patience: Patience) -> ClientTimeout:
    return ClientTimeout(total=None, connect=patience.connect, sock_read=patience.silence)


def _words(error: BaseException, patience: Patience) -> str:
    """What went wrong, without the address: a signature in it may open something."""
    if isinstance(error, ConnectionTimeoutError):
        return f"no connection within {patience.connect:g} s"
    if isinstance(error, SocketTimeoutError):
        return f"nothing came for {patience.silence:g} s"
    if isinstance(error, TimeoutError):
        return f"not finished after {patience.total:g} s"
    if isinstance(error, ClientConnectorError):
        return str(error.os_error)
    if isinstance(error, ServerDisconnectedError):
        return "the server closed the connection without a whole answer"
    if isinstance(error, ClientResponseError):
        return f"the answer is not HTTP: {' '.join(error.message.split())[:200]}"
    if isinstance(error, ClientPayloadError):
        return "the answer breaks off"
    if isinstance(error, OSError):
        return f"the connection broke: {error.strerror or type(error).__name__}"
    return str(error)

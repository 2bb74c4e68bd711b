"""HTTP/1.1 over asyncio's own streams: what httpx2 sends and receives through, instead of its pool.

That pool looks at every connection for each request, and takes a millisecond (decision 0028). Here the connections that
rest are a pile for each server, of which the last one laid down is taken up. There are as many as there are calls at
once: how many that may be is said elsewhere. h11 keeps the protocol's rules, httpx2's exceptions say what went wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from typing import Any

import h11
import httpx2

Origin = tuple[str, str, int]
_RESTS = 5.0
"""Many servers close a connection that rests for five seconds; to use it just then would be a failed call."""
_MOST_RESTING = 100
_PARTING = 1.0
_CHUNK = 1 << 16
_HEAD_BYTES = 100 * 1024
_PORTS = {"http": 80, "https": 443}


class Wire(httpx2.AsyncBaseTransport):
    """A transport for one event loop."""

    def __init__(self, verify: ssl.SSLContext | bool) -> None:
        self._verify = verify
        self._context: ssl.SSLContext | None = verify if isinstance(verify, ssl.SSLContext) else None
        self._resting: dict[Origin, list[_Connection]] = defaultdict(list)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        limits: dict[str, float | None] = request.extensions.get("timeout", {})
        url = request.url
        origin = (url.scheme, url.raw_host.decode("ascii"), url.port or _PORTS[url.scheme])
        connection = self._rested(origin) or await self._connect(origin, limits.get("connect"))
        try:
            await connection.send(request, limits.get("write"))
            head = await connection.head(limits.get("read"))
        except BaseException:
            connection.close()
            raise
        body = _Body(self, origin, connection, limits.get("read"))
        return httpx2.Response(head.status_code, headers=head.headers.raw_items(), stream=body)

    def lay_down(self, origin: Origin, connection: _Connection) -> None:
        """Keep a connection whose answer was read to its end, if it may be used again."""
        resting = self._resting[origin]
        if len(resting) < _MOST_RESTING and connection.again():
            resting.append(connection)
        else:
            connection.close()

    async def aclose(self) -> None:
        closing = [connection.closed() for resting in self._resting.values() for connection in resting]
        self._resting.clear()
        await asyncio.gather(*closing)

    def _rested(self, origin: Origin) -> _Connection | None:
        resting = self._resting[origin]
        now = asyncio.get_running_loop().time()
        while resting:
            connection = resting.pop()
            if connection.usable(now):
                return connection
            connection.close()
        return None

    async def _connect(self, origin: Origin, limit: float | None) -> _Connection:
        scheme, host, port = origin
        context = None
        if scheme == "https":
            context = self._context = self._context or httpx2.create_ssl_context(verify=self._verify)
        try:
            async with asyncio.timeout(limit):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=context, happy_eyeballs_delay=0.25, limit=4 * _CHUNK
                )
        except TimeoutError as error:
            raise httpx2.ConnectTimeout(f"no connection within {limit:g} s") from error
        except OSError as error:  # an SSLError is one
            raise httpx2.ConnectError(str(error)) from error
        return _Connection(reader, writer)


class _Connection:
    """One connection: a request, then its answer, again and again."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._state = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
        self._since = 0.0

    async def send(self, request: httpx2.Request, limit: float | None) -> None:
        """Send all of a request, its head together with the first part of its body."""
        state, write = self._state, self._writer.write
        method, target = request.method.encode("ascii"), request.url.raw_path
        try:
            waiting = state.send(h11.Request(method=method, target=target, headers=request.headers.raw)) or b""
            stream = request.stream
            assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101 - of an asynchronous client
            async for part in stream:
                if len(waiting) > _CHUNK:
                    write(waiting)
                    waiting = b""
                    await self._drained(limit)
                waiting += state.send(h11.Data(data=part)) or b""
            waiting += state.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise httpx2.LocalProtocolError(str(error)) from error
        write(waiting)
        if len(waiting) > _CHUNK:
            await self._drained(limit)

    async def head(self, limit: float | None) -> h11.Response:
        """The head of the answer; those that only announce it are passed over."""
        while True:
            event = await self._event(limit)
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse):
                raise httpx2.RemoteProtocolError("the server closed the connection without an answer")

    async def body(self, limit: float | None) -> AsyncIterator[bytes]:
        """The parts of the body."""
        while True:
            event = await self._event(limit)
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            else:
                return

    def again(self) -> bool:
        """Make ready for another request; False where that cannot be."""
        state = self._state
        if state.our_state is not h11.DONE or state.their_state is not h11.DONE or state.trailing_data[0]:
            return False
        state.start_next_cycle()
        self._since = asyncio.get_running_loop().time()
        return True

    def usable(self, now: float) -> bool:
        """Whether it may be taken up again: not for long at rest, and still open as far as is known."""
        return now - self._since < _RESTS and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        """Close it at once; whatever is under way on it is lost."""
        with contextlib.suppress(RuntimeError):  # the loop may have ended before us
            self._writer.close()

    async def closed(self) -> None:
        """Close it in good order; a server that does not join in is not waited for."""
        self.close()
        try:
            async with asyncio.timeout(_PARTING):
                await self._writer.wait_closed()
        except OSError:  # a timeout is one
            self._writer.transport.abort()

    async def _event(self, limit: float | None) -> Any:
        state = self._state
        try:
            while (event := state.next_event()) is h11.NEED_DATA:
                with _named(httpx2.ReadTimeout, httpx2.ReadError, limit):
                    async with asyncio.timeout(limit):
                        state.receive_data(await self._reader.read(_CHUNK))
        except h11.RemoteProtocolError as error:
            raise httpx2.RemoteProtocolError(str(error)) from error
        return event

    async def _drained(self, limit: float | None) -> None:
        with _named(httpx2.WriteTimeout, httpx2.WriteError, limit):
            async with asyncio.timeout(limit):
                await self._writer.drain()


class _Body(httpx2.AsyncByteStream):
    """The body of an answer; its connection is laid down when it was read to its end, and closed otherwise."""

    def __init__(self, wire: Wire, origin: Origin, connection: _Connection, limit: float | None) -> None:
        self._wire = wire
        self._origin = origin
        self._connection: _Connection | None = connection
        self._limit = limit
        self._whole = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._connection is not None:
            async for part in self._connection.body(self._limit):
                yield part
            self._whole = True

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._whole:
            self._wire.lay_down(self._origin, connection)
        else:
            connection.close()


@contextlib.contextmanager
def _named(late: type[httpx2.RequestError], broken: type[httpx2.RequestError], limit: float | None) -> Iterator[None]:
    """The failures of a socket in httpx2's words."""
    try:
        yield
    except TimeoutError as error:
        raise late(f"nothing for {limit:g} s") from error
    except OSError as error:
        raise broken(str(error) or type(error).__name__) from error

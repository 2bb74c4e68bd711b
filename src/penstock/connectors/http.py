"""The one place that makes HTTP calls and says what a failed one means."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote
from urllib.request import getproxies

import httpx2

from penstock import correlation
from penstock.clock import Clock
from penstock.connectors.wire import Wire
from penstock.errors import Fatal, InDoubt, Rejected, StepError, Throttled, Transient
from penstock.redaction import redact
from penstock.retry import parse_retry_after

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# As many connections as a worker takes steps at once: a step that waits for one would count as a failed call.
_LIMITS = httpx2.Limits(max_connections=1_000, max_keepalive_connections=100)
_STRANGER_LIMITS = httpx2.Limits(max_connections=1_000, max_keepalive_connections=0)
_TIMEOUT = httpx2.Timeout(30.0, connect=10.0)
_TIMEOUTS = _TIMEOUT.as_dict()
Response = httpx2.Response
Transport = httpx2.AsyncBaseTransport
CORRELATION = "X-Correlation-Id"


class Http:
    """A client of one base address. `transport` replaces the network, for a simulator in the same process.

    A `stranger` is a server that somebody else named: nothing of the environment reaches it (a proxy, a password in
    `.netrc`), and no connection to it is used twice, since the same address may answer for other names.
    """

    def __init__(
        self,
        base_url: str,
        clock: Clock,
        *,
        headers: Mapping[str, str] | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        stranger: bool = False,
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        self._clock = clock
        self._stranger = stranger
        if transport is None and not stranger and not getproxies().keys() - {"no"}:
            transport = Wire(verify)  # httpx2's own knows proxies, and takes three times as long
        self._transport = transport
        self._urls: dict[str, httpx2.URL] = {}
        self._client = httpx2.AsyncClient(
            base_url=base_url,
            headers=dict(headers or {}),
            timeout=_TIMEOUT,
            limits=_STRANGER_LIMITS if stranger else _LIMITS,
            transport=transport,
            trust_env=not stranger,
            verify=verify,
            follow_redirects=False,
        )

    async def send(self, method: str, path: str, *, missing_ok: bool = False, **request: Any) -> Response | None:
        """The response of a call that succeeded; with `missing_ok`, None for a 404. Raises a StepError otherwise.

        A call made by a step carries the step's correlation id, percent-encoded.
        """
        answers = (httpx2.codes.NOT_FOUND,) if missing_ok else ()
        response = await self.call(method, path, answers=answers, **request)
        return response if response.is_success else None

    async def call(
        self, method: str, path: str, *, answers: Collection[int] = (), repeatable: bool = False, **request: Any
    ) -> Response:
        """The response of a call that succeeded or has a status among `answers`. Raises a StepError otherwise.

        A `repeatable` call is never in doubt: made twice it does what it does once.
        """
        _correlate(request)
        repeatable = repeatable or method in _SAFE
        with _meaning(f"{method} {path}", repeatable=repeatable):
            response = await self._client.request(method, path, **request)
        if response.is_success or response.status_code in answers:
            return response
        raise self.classify(f"{method} {path}", response, repeatable=repeatable)

    async def post(
        self, path: str, content: bytes, headers: Mapping[str, str], *, answers: Collection[int] = ()
    ) -> Response:
        """`call` for what is asked thousands of times: a POST that only reads, in three quarters of the time."""
        request: dict[str, Any] = {"headers": headers}
        if self._transport is None:
            return await self.call("POST", path, answers=answers, repeatable=True, content=content, **request)
        _correlate(request)
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = self._client.build_request("POST", path).url
        sent = httpx2.Request(
            "POST",
            url,
            headers=[*self._client.headers.raw, *_raw(request["headers"])],
            content=content,
            extensions={"timeout": _TIMEOUTS},
        )
        call = f"POST {path}"
        with _meaning(call, repeatable=True):
            response = await self._transport.handle_async_request(sent)
            response.request = sent
            try:
                await response.aread()
            finally:
                await response.aclose()
        if response.is_success or response.status_code in answers:
            return response
        raise self.classify(call, response, repeatable=True)

    @contextlib.asynccontextmanager
    async def stream(self, url: str, *, shown: str, method: str = "GET", **request: Any) -> AsyncIterator[Response]:
        """The answer to a call that only reads, whatever its status, with its body still to be read: `aiter_raw()`.

        `shown` stands for the address in errors. A body that breaks off is Transient. A stranger gets no
        correlation id.
        """
        if not self._stranger:
            _correlate(request)
        with _meaning(f"{method} {shown}", repeatable=True):
            async with self._client.stream(method, url, **request) as response:
                yield response

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def classify(self, call: str, response: Response, *, repeatable: bool) -> StepError:
        """What an answer that is no success means."""
        status = response.status_code
        text = f"{call}: {status} {redact(response.text)[:200]}".rstrip()
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            asked = response.headers.get("retry-after")
            return Throttled(text, None if asked is None else parse_retry_after(asked, self._clock.now()))
        if status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
            return Fatal(text)
        if status == httpx2.codes.SERVICE_UNAVAILABLE:
            return Transient(text)
        if status >= httpx2.codes.INTERNAL_SERVER_ERROR or status == httpx2.codes.REQUEST_TIMEOUT:
            return _unanswered(text, repeatable=repeatable)
        return Rejected(text)


def _raw(headers: Mapping[str, str]) -> Iterator[tuple[bytes, bytes]]:
    for name, value in headers.items():
        yield name.encode("ascii"), value.encode("ascii")


def _correlate(request: dict[str, Any]) -> None:
    """Send the step's correlation id along, if a step makes the call."""
    step = correlation.current()
    if step is not None:
        request["headers"] = {CORRELATION: quote(step, safe="/:@+"), **(request.get("headers") or {})}


@contextlib.contextmanager
def _meaning(call: str, *, repeatable: bool) -> Iterator[None]:
    """Say what it means that a call had no answer."""
    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
        raise Transient(f"{call}: could not connect: {error}") from error
    except httpx2.RequestError as error:
        raise _unanswered(f"{call}: {type(error).__name__} {error}".rstrip(), repeatable=repeatable) from error


def _unanswered(text: str, *, repeatable: bool) -> StepError:
    """A read may simply be repeated; a write may have arrived."""
    return Transient(text) if repeatable else InDoubt(text)

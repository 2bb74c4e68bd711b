"""The one place that makes HTTP calls and says what a failed one means.

Calls that only read use connections again; every other call has one of its own. An `Http` is for one account: what
speaks for several has one for each, so that no answer can reach another account, whatever the server does.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload
from urllib.parse import quote, urlencode

import msgspec

from penstock.connectors.http.exchange import Answer, NotSent, Patience, Request, Transport, Unanswered
from penstock.connectors.http.unpacking import BadBody, TooLarge, Unpacker
from penstock.model import correlation, trace
from penstock.model.clock import Clock
from penstock.model.errors import Fatal, InDoubt, Rejected, StepError, Throttled, Transient
from penstock.model.retry import parse_retry_after
from penstock.settings.addresses import PLAIN_URL, check_address
from penstock.settings.redaction import redact

if TYPE_CHECKING:
    import ssl

MOST_BYTES = 32 << 20
"""How large an answer may be, decompressed, where a call says nothing else."""
CORRELATION = "X-Correlation-Id"

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_ERROR_BYTES = 1 << 16
_USUAL_HEADERS = {"User-Agent": "penstock", "Accept": "*/*", "Accept-Encoding": "gzip"}
_PATIENCE = Patience()
_STREAM_PATIENCE = Patience(total=3_600.0)
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TIMEOUT, _THROTTLED, _UNAVAILABLE = 401, 403, 404, 408, 429, 503
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_PLAIN_TEXT = re.compile(r"[\t -~]*")


class NotJson(ValueError):
    """The body of an answer is not JSON, or too deep to be read."""


class Head:
    """The status and the headers of an answer; their names are in lower case."""

    def __init__(self, status_code: int, headers: Mapping[str, str]) -> None:
        self.status_code = status_code
        self.headers = headers

    @property
    def is_success(self) -> bool:
        return 200 <= self.status_code < 300  # noqa: PLR2004 - HTTP's own

    @property
    def is_redirect(self) -> bool:
        return 300 <= self.status_code < 400  # noqa: PLR2004 - HTTP's own

    @property
    def is_server_error(self) -> bool:
        return self.status_code >= 500  # noqa: PLR2004 - HTTP's own


class Response(Head):
    """A whole answer, its body decompressed."""

    def __init__(self, status_code: int, headers: Mapping[str, str], content: bytes) -> None:
        super().__init__(status_code, headers)
        self.content = content

    @property
    def text(self) -> str:
        return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """The document in it. Raises NotJson."""
        try:
            return msgspec.json.decode(self.content)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise NotJson(f"the answer is not JSON: {error}") from error


class Streamed(Head):
    """An answer whose body is still to be read."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status, answer.headers)
        self._answer = answer

    async def pieces(self) -> AsyncIterator[bytes]:
        """The body as it is sent, compressed if it is."""
        while piece := await self._answer.piece():
            yield piece


class Http:
    """A client of one base address. `transport` replaces the network, for a simulator in the same process.

    Plain `http` is spoken to this machine alone. Cookies, redirects, proxies and `.netrc` are not known.
    """

    def __init__(
        self,
        base_url: str,
        clock: Clock,
        *,
        headers: Mapping[str, str] | None = None,
        transport: Transport | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        if transport is None and base_url:
            check_address(base_url)
        self._base = base_url.rstrip("/")
        self._clock = clock
        self._headers = _merged(_USUAL_HEADERS, headers or {})
        self._transport = transport or _network(context)
        #: How many calls were made so far.
        self.calls = 0

    @overload
    async def send(self, method: str, path: str, *, missing_ok: Literal[False] = False, **request: Any) -> Response: ...
    @overload
    async def send(self, method: str, path: str, *, missing_ok: bool, **request: Any) -> Response | None: ...
    async def send(self, method: str, path: str, *, missing_ok: bool = False, **request: Any) -> Response | None:
        """The response of a call that succeeded; with `missing_ok`, None for a 404. Raises a StepError otherwise.

        A call made by a step carries the step's correlation id, percent-encoded.
        """
        answers = (_NOT_FOUND,) if missing_ok else ()
        response = await self.call(method, path, answers=answers, **request)
        return response if response.is_success else None

    async def call(
        self,
        method: str,
        path: str,
        *,
        answers: Collection[int] = (),
        repeatable: bool = False,
        alone: bool | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        form: Mapping[str, str] | None = None,
        content: bytes = b"",
        most_bytes: int = MOST_BYTES,
        patience: Patience = _PATIENCE,
        shown: str | None = None,
    ) -> Response:
        """The response of a call that succeeded or has a status among `answers`. Raises a StepError otherwise.

        A `repeatable` call is never in doubt: made twice it does what it does once. It goes `alone`, over a connection
        of its own, unless it is repeatable. `shown` stands for the path in errors.
        """
        call = f"{method} {shown or path}"
        repeatable = repeatable or method in _SAFE
        given = _merged(self._headers, _correlation())
        if json is not None:
            given, content = _merged(given, {"Content-Type": "application/json"}), msgspec.json.encode(json)
        elif form is not None:
            given = _merged(given, {"Content-Type": "application/x-www-form-urlencoded"})
            content = urlencode(form).encode("ascii")
        own = not repeatable if alone is None else alone
        given = _merged(given, headers or {})
        _check(call, given)
        request = Request(method, _plain(f"{self._base}{path}"), given, content, patience, own)
        with trace.span("call", method=method, path=_traced(path)) as span, _meaning(call, repeatable=repeatable):
            self.calls += 1
            answer = await self._transport.send(request)
            if span is not None:
                span.set_attribute("status", answer.status)
            try:
                wanted = 200 <= answer.status < 300 or answer.status in answers  # noqa: PLR2004 - HTTP's own
                body = await (_whole(answer, most_bytes) if wanted else _begin(answer))
            finally:
                answer.close()
        response = Response(answer.status, answer.headers, body)
        if wanted:
            return response
        raise self.classify(call, response, repeatable=repeatable)

    @contextlib.asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        method: str = "GET",
        shown: str | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        address: str | None = None,
        patience: Patience = _STREAM_PATIENCE,
    ) -> AsyncIterator[Streamed]:
        """The answer to a call that only reads, whatever its status, with its body still to be read: `pieces()`.

        It goes alone, and to `address`, where one is given. `shown` stands for the path in errors: then it is a
        stranger's, who gets no correlation id. A body that breaks off is Transient.
        """
        call = f"{method} {shown or path}"
        given = _merged(self._headers, _correlation() if shown is None else {})
        content = b""
        if json is not None:
            given, content = _merged(given, {"Content-Type": "application/json"}), msgspec.json.encode(json)
        given = _merged(given, headers or {})
        _check(call, given)
        url = _plain(f"{self._base}{path}")
        request = Request(method, url, given, content, patience, alone=True, address=address)
        where = _traced(path) if shown is None else shown
        with trace.span("call", method=method, path=where), _meaning(call, repeatable=True):
            self.calls += 1
            answer = await self._transport.send(request)
            try:
                yield Streamed(answer)
            finally:
                answer.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    def classify(self, call: str, response: Response, *, repeatable: bool) -> StepError:
        """What an answer that is no success means."""
        status = response.status_code
        text = f"{call}: {status} {redact(response.text)[:200]}".rstrip()
        if status == _THROTTLED:
            return Throttled(text, self.retry_after(response))
        if status in (_UNAUTHORIZED, _FORBIDDEN):
            return Fatal(text)
        if status == _UNAVAILABLE:
            return Transient(text)
        # Who is sent elsewhere, to a page about maintenance for one, has heard nothing of what was asked.
        if response.is_server_error or response.is_redirect or status == _TIMEOUT:
            return _unanswered(text, repeatable=repeatable)
        return Rejected(text)

    def retry_after(self, response: Head) -> float | None:
        """For how many seconds an answer asks for quiet, if it does."""
        asked = response.headers.get("retry-after")
        return None if asked is None else parse_retry_after(asked, self._clock.now())


def _traced(path: str) -> str:
    """The path as a span has it: what is asked for, and not with which words."""
    return redact(path.partition("?")[0]) if trace.on() else path


def _network(context: ssl.SSLContext | None) -> Transport:
    # aiohttp takes a fifth of a second to load: only who makes calls waits for it, and before the loop runs.
    from penstock.connectors.http.network import Network

    return Network(context)


def _check(call: str, headers: Mapping[str, str]) -> None:
    """What cannot be written on one line without meaning something else is refused before anything leaves."""
    for name, value in headers.items():
        if not _PLAIN_TEXT.fullmatch(value):
            raise Rejected(f"{call}: the header {name} has characters that cannot be sent")


def _plain(url: str) -> str:
    """An address as it can be sent: what is no part of addresses is percent-encoded."""
    return url if PLAIN_URL.fullmatch(url) else quote(url, safe=_PRINTABLE)


def _merged(usual: Mapping[str, str], given: Mapping[str, str]) -> Mapping[str, str]:
    """Both; what is given counts, however its name is written."""
    if not given:
        return usual
    names = {name.lower() for name in given}
    return {**{name: value for name, value in usual.items() if name.lower() not in names}, **given}


def _correlation() -> dict[str, str]:
    """The step's correlation id, if a step makes the call."""
    step = correlation.current()
    return {} if step is None else {CORRELATION: quote(step, safe="/:@+")}


async def _whole(answer: Answer, most: int) -> bytes:
    unpacker = Unpacker(answer.headers.get("content-encoding", ""), most)
    texts: list[bytes] = []
    while piece := await answer.piece():
        texts.extend(unpacker.feed(piece))
    unpacker.close()
    return texts[0] if len(texts) == 1 else b"".join(texts)


async def _begin(answer: Answer) -> bytes:
    """The beginning of a body that only says why; where it cannot be read, the status says enough."""
    text = b""
    with contextlib.suppress(BadBody, TooLarge):
        unpacker = Unpacker(answer.headers.get("content-encoding", ""), _ERROR_BYTES)
        while piece := await answer.piece():
            for part in unpacker.feed(piece):
                text += part
    return text


@contextlib.contextmanager
def _meaning(call: str, *, repeatable: bool) -> Iterator[None]:
    """Say what it means that a call had no answer, or none that can be read."""
    try:
        yield
    except NotSent as error:
        raise Transient(f"{call}: could not connect: {error}") from error
    except (Unanswered, BadBody) as error:
        raise _unanswered(f"{call}: {error}", repeatable=repeatable) from error
    except TooLarge as error:
        raise (Rejected if repeatable else InDoubt)(f"{call}: {error}") from error


def _unanswered(text: str, *, repeatable: bool) -> StepError:
    """A read may simply be repeated; a write may have arrived."""
    return Transient(text) if repeatable else InDoubt(text)

"""Google's side of `connectors.google_ads`: tokens, `searchStream` and `search`, in one ASGI application.

Time is the clock's: tokens expire, quotas are of a day, and conversions become known as the clock moves. Trouble is
asked for: `faults` for the next call of an operation, `every` for every Nth call, `bodies` for the next answer to
a query. Every request is kept in `requests`. On a socket use `server.serving`, in process an ASGI transport.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from itertools import islice
from typing import Any
from urllib.parse import parse_qs

from starlette.requests import Request as Arriving
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.model.clock import Clock
from penstock.simulators.faults import Troubles
from penstock.simulators.google_data import BadQuery, Campaigns, Gaql

PAGE_ROWS = 10_000

_QUERY = re.compile(r"/(v[0-9]+)/customers/([0-9]+)/googleAds:(searchStream|search)")
_OPERATIONS = {"searchStream": "search_stream", "search": "search"}
_GZIP = 31
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
_SAID = {400: "Request contains an invalid argument.", 429: "Resource has been exhausted (e.g. check quota)."}

Body = bytes | Callable[[], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call instead of its answer.

    `cut` lets so many bytes of the answer through and then breaks the connection, which only works on a socket; with
    `quiet` the answer ends there as if it were whole. A `late` body is the last batch, after a good one.
    """

    status: int = 200
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    cut: int | None = None
    quiet: bool = False
    late: bool = False


def failure(status: int, kind: str, name: str, message: str, **details: Any) -> dict[str, Any]:
    """The document of an error of the API."""
    error: dict[str, Any] = {"errorCode": {kind: name}, "message": message}
    if details:
        error["details"] = details
    detail = {
        "@type": "type.googleapis.com/google.ads.googleads.v26.errors.GoogleAdsFailure",
        "errors": [error],
        "requestId": "simulated-request",
    }
    said = _SAID.get(status, message)
    return {"error": {"code": status, "message": said, "status": _STATUSES.get(status, ""), "details": [detail]}}


def quota(
    seconds: int | None, *, name: str = "RESOURCE_EXHAUSTED", told_in_text: bool = False, scope: str = "DEVELOPER"
) -> Fault:
    """A 429: a quota is spent, for so many seconds; told in the details, in the text alone, or not at all.

    Its `scope` is DEVELOPER, all customers together, or ACCOUNT, this one.
    """
    if seconds is None:
        return Fault(429, failure(429, "quotaError", name, "Too many requests. Retry later."))
    text = f"Too many requests. Retry in {seconds} seconds."
    if told_in_text:
        return Fault(429, failure(429, "quotaError", name, text))
    rate = {"rateScope": scope, "rateName": "Number of operations", "retryDelay": f"{seconds}s"}
    return Fault(429, failure(429, "quotaError", name, text, quotaErrorDetails=rate))


@dataclass(frozen=True, slots=True)
class Request:
    """One call as it arrived; names of headers are in small letters."""

    operation: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class GoogleAdsSimulator(Troubles[Fault]):
    """An ASGI application with a memory."""

    clock: Clock
    campaigns: Campaigns = field(default_factory=Campaigns)
    customers: set[str] = field(default_factory=lambda: {"1111111111", "2222222222"})
    manager: str | None = None
    client_id: str = "simulated.apps.googleusercontent.com"
    client_secret: str = "simulated-client-secret"  # noqa: S105 - opens nothing
    refresh_tokens: set[str] = field(default_factory=lambda: {"1//simulated-refresh-token"})
    token_life: timedelta = timedelta(seconds=3_599)
    versions: set[str] = field(default_factory=lambda: {"v25", "v26"})
    batch_rows: int = 1_000
    daily_operations: int | None = None
    errors_in_array: bool = False
    compress: bool = True
    requests: list[Request] = field(default_factory=list)
    bodies: deque[Body] = field(default_factory=deque)
    _tokens: dict[str, datetime] = field(default_factory=dict)
    _issued: int = 0
    _spent: Counter[date] = field(default_factory=Counter)

    def expire_tokens(self) -> None:
        """Every access token is refused from now on."""
        self._tokens.clear()

    def calls(self, operation: str) -> list[Request]:
        """The calls of one operation: token, search_stream or search."""
        return [request for request in self.requests if request.operation == operation]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        arriving = Arriving(scope, receive)
        found = _QUERY.fullmatch(arriving.url.path)
        operation = _OPERATIONS[found[3]] if found else "token"
        request = Request(operation, arriving.url.path, dict(arriving.headers), await arriving.body())
        self.requests.append(request)
        fault = self.trouble(operation) or Fault()
        status, pieces = self._answer(request, found, fault)
        headers = {"content-type": "application/json; charset=UTF-8", **dict(fault.headers)}
        if self.compress and "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            pieces = _compressed(pieces)
        await StreamingResponse(_sent(pieces, fault), status, headers)(scope, receive, send)

    def _answer(self, request: Request, found: re.Match[str] | None, fault: Fault) -> tuple[int, Iterable[bytes]]:
        if fault.status != 200 or (fault.body is not None and not fault.late):  # noqa: PLR2004 - a success
            status, body = fault.status, fault.body
        elif found is None:
            status, body = self._token(request)
        else:
            version, customer, _ = found.groups()
            status, body = self._refused(request, version, customer) or self._asked(request, customer, fault)
        if status != 200 and self.errors_in_array and request.operation == "search_stream":  # noqa: PLR2004
            body = [body]
        if isinstance(body, bytes):
            return status, (body,)
        if isinstance(body, dict | list | str) or body is None:
            return status, (b"" if body is None else json.dumps(body, indent=2).encode(),)
        return status, body

    def _token(self, request: Request) -> tuple[int, Any]:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if request.path != "/token" or form.get("grant_type") != "refresh_token":
            return 400, {"error": "unsupported_grant_type", "error_description": "Invalid grant_type"}
        if (form.get("client_id"), form.get("client_secret")) != (self.client_id, self.client_secret):
            return 401, {"error": "invalid_client", "error_description": "The OAuth client was not found."}
        if form.get("refresh_token") not in self.refresh_tokens:
            return 400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
        self._issued += 1
        token = f"ya29.simulated-{self._issued:06}"
        self._tokens[token] = self.clock.now() + self.token_life
        scope = "https://www.googleapis.com/auth/adwords"
        life = int(self.token_life.total_seconds())
        return 200, {"access_token": token, "expires_in": life, "scope": scope, "token_type": "Bearer"}

    def _refused(self, request: Request, version: str, customer: str) -> tuple[int, Any] | None:
        if version not in self.versions:
            return 404, b"<!DOCTYPE html><title>Error 404 (Not Found)</title>"
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._tokens.get(token, self.clock.now()) <= self.clock.now():
            text = "Request had invalid authentication credentials."
            return 401, {"error": {"code": 401, "message": text, "status": "UNAUTHENTICATED"}}
        if customer not in self.customers or request.headers.get("login-customer-id") != self.manager:
            text = "User doesn't have permission to access customer."
            return 403, failure(403, "authorizationError", "USER_PERMISSION_DENIED", text)
        now = self.clock.now()
        if self.daily_operations is not None and self._spent[now.date()] >= self.daily_operations:
            midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
            spent = quota(-int((now - midnight).total_seconds() // 1))
            return spent.status, spent.body
        return None

    def _asked(self, request: Request, customer: str, fault: Fault) -> tuple[int, Any]:
        now = self.clock.now()
        self._spent[now.date()] += 1
        try:
            asked = json.loads(request.body)
            query = Gaql.parse(asked["query"])
        except BadQuery as error:
            return 400, failure(400, "queryError", error.name, str(error))
        except (ValueError, KeyError, TypeError):
            return 400, failure(400, "requestError", "REQUIRED_FIELD_MISSING", "The required field was not present.")
        if self.bodies:
            body = self.bodies.popleft()
            return 200, body if isinstance(body, bytes) else body()
        rows = self.campaigns.rows(customer, query, now)
        if request.operation == "search":
            return self._page(query, rows, asked)
        return 200, self._batches(query, rows, fault)

    def _page(self, query: Gaql, rows: Iterator[dict[str, Any]], asked: dict[str, Any]) -> tuple[int, Any]:
        if "pageSize" in asked:
            text = "Setting the page size is not supported."
            return 400, failure(400, "requestError", "PAGE_SIZE_NOT_SUPPORTED", text)
        token = str(asked.get("pageToken", "page-0"))
        if not re.fullmatch(r"page-[0-9]{1,6}", token):
            return 400, failure(400, "requestError", "INVALID_PAGE_TOKEN", "The page token is invalid.")
        page = int(token.removeprefix("page-"))
        found = list(islice(rows, page * PAGE_ROWS, (page + 1) * PAGE_ROWS + 1))
        more = {"nextPageToken": f"page-{page + 1}"} if len(found) > PAGE_ROWS else {}
        return 200, {"results": found[:PAGE_ROWS], **more, "fieldMask": query.mask}

    def _batches(self, query: Gaql, rows: Iterator[dict[str, Any]], fault: Fault) -> Iterator[bytes]:
        """The array, batch by batch; a query without rows has one batch without results."""
        about = {"fieldMask": query.mask, "requestId": "simulated-request", "queryResourceConsumption": "137"}
        before = "["
        while (batch := list(islice(rows, self.batch_rows))) or before == "[":
            yield (before + json.dumps({"results": batch, **about} if batch else about, indent=2)).encode()
            before = "\n,\r\n"
            if fault.late:
                yield (before + json.dumps(fault.body)).encode()
                break
        yield b"]\n"


async def _sent(pieces: Iterable[bytes], fault: Fault) -> AsyncIterator[bytes]:
    left = fault.cut
    for piece in pieces:
        await asyncio.sleep(0)  # who reads it may be in the same loop, and may have gone
        if left is None:
            yield piece
            continue
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            break
    if left is not None and not fault.quiet:
        raise ConnectionAbortedError("asked for by a fault")


def _compressed(pieces: Iterable[bytes]) -> Iterator[bytes]:
    packer = zlib.compressobj(wbits=_GZIP)
    for piece in pieces:
        yield packer.compress(piece)
    yield packer.flush()

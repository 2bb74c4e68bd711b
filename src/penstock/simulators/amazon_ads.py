"""Amazon's side of `connectors.amazon_ads`: login, reports and their storage, in one ASGI application.

Time is the clock's: tokens and links expire, reports become ready, data is restated as the clock moves. Trouble is
asked for: `faults` for the next call of an operation, `every` for every Nth call, `fates` for the next report,
`fate_every` for every Nth report, `bodies` for the next download. Every request is kept in `requests`. On a
socket use `server.serving`, in process an ASGI transport.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from starlette.types import Message, Receive, Scope, Send

from penstock.connectors.amazon_ads.client import COLUMNS
from penstock.model.clock import Clock, instant_text, parse_instant
from penstock.simulators.amazon_data import Performance
from penstock.simulators.faults import Troubles

MEDIA = "application/vnd.createasyncreportrequest.v3+json"
RANGE_DAYS, RETENTION_DAYS = 31, 95

_STORAGE, _TOKEN = "/storage/", "/auth/o2/token"
_GROUPS = {"spTargeting": ("targeting", "target"), "spAdvertisedProduct": ("advertiser", "product")}
_EXPIRED = "<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
_LIVE = ("PENDING", "PROCESSING")
_GZIP = 31
_LINES = 500

Body = bytes | Callable[[], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call instead of its answer. With `accept` it takes effect all the same.

    `cut` breaks the connection instead of answering, which only works on a socket.
    """

    status: int = 500
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    accept: bool = False
    cut: bool = False


def throttle(retry_after: str | None = None, *, accept: bool = False) -> Fault:
    """A 429, with or without a time to come back."""
    headers = () if retry_after is None else (("retry-after", retry_after),)
    return Fault(429, {"code": "429", "detail": "Too Many Requests"}, headers, accept)


@dataclass(frozen=True, slots=True)
class Fate:
    """How a report will go: how long it waits and works, and how it ends. `linkless` GETs show it without its link."""

    pending: timedelta = timedelta(minutes=2)
    processing: timedelta = timedelta(minutes=6)
    ends: str = "COMPLETED"
    reason: str | None = None
    linkless: int = 0


@dataclass(slots=True)
class Report:
    """A report that was asked for."""

    report_id: str
    profile: str
    request: dict[str, Any]
    created: datetime
    fate: Fate
    cancelled: datetime | None = None
    linkless: int = 0

    def status(self, now: datetime) -> str:
        if self.cancelled is not None:
            return "CANCELLED"
        if now < self.created + self.fate.pending:
            return "PENDING"
        return "PROCESSING" if now < self.ends else self.fate.ends

    @property
    def ends(self) -> datetime:
        return self.created + self.fate.pending + self.fate.processing


@dataclass(frozen=True, slots=True)
class Request:
    """One call as it arrived; names of headers are in small letters."""

    operation: str
    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Answer:
    """What goes back."""

    status: int
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    pieces: Iterable[bytes] | None = None


@dataclass(slots=True)
class AmazonAdsSimulator(Troubles[Fault]):
    """An ASGI application with a memory."""

    clock: Clock
    performance: Performance = field(default_factory=Performance)
    profiles: set[str] = field(default_factory=lambda: {"1001", "1002"})
    client_id: str = "amzn1.application-oa2-client.simulated"
    client_secret: str = "simulated-client-secret"  # noqa: S105 - opens nothing
    refresh_tokens: set[str] = field(default_factory=lambda: {"Atzr|simulated-refresh-token"})
    token_life: timedelta = timedelta(hours=1)
    link_life: timedelta = timedelta(hours=1)
    fate: Fate = Fate()
    collide_time_units: bool = False
    #: How long after its end a report that is done is still called the original of a duplicate.
    remembers: timedelta = timedelta()
    storage_url: str | None = None
    requests: list[Request] = field(default_factory=list)
    reports: dict[str, Report] = field(default_factory=dict)
    fates: deque[Fate] = field(default_factory=deque)
    fate_every: dict[int, Fate] = field(default_factory=dict)
    bodies: deque[Body] = field(default_factory=deque)
    _tokens: dict[str, datetime] = field(default_factory=dict)
    _issued: int = 0

    def expire_tokens(self) -> None:
        """Every access token is refused from now on."""
        self._tokens.clear()

    def calls(self, operation: str) -> list[Request]:
        """The calls of one operation: token, create, status, cancel or download."""
        return [request for request in self.requests if request.operation == operation]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = await _read(scope, receive)
        # It ends when the caller goes away, and is cancelled when the answer is out.
        gone = asyncio.ensure_future(receive())
        try:
            await self._serve(request, send, gone)
        finally:
            gone.cancel()

    async def _serve(self, request: Request, send: Send, gone: asyncio.Future[Message]) -> None:
        self.requests.append(request)
        fault = self.trouble(request.operation)
        answer = self._answer(request) if fault is None or fault.accept else Answer(fault.status)
        if fault is not None:
            if fault.cut:
                await _cut(send)
                return
            answer = Answer(fault.status, fault.body, fault.headers)
        await _write(send, answer, gone)

    def _fate(self) -> Fate:
        if self.fates:
            return self.fates.popleft()
        number = len(self.reports) + 1
        return next((fate for every, fate in self.fate_every.items() if number % every == 0), self.fate)

    def _answer(self, request: Request) -> Answer:
        if request.operation == "token":
            return self._token(request)
        if request.operation == "download":
            return self._download(request)
        if (refused := self._unauthorized(request)) is not None:
            return refused
        if request.operation == "create":
            return self._create(request)
        report = self.reports.get(request.path.rpartition("/")[2])
        if report is None or report.profile != request.headers["amazon-advertising-api-scope"]:
            return _error(404, "Report not found")
        if request.operation == "cancel":
            return self._cancel(report)
        return Answer(200, self._shown(report, request))

    def _token(self, request: Request) -> Answer:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if form.get("grant_type") != "refresh_token":
            return Answer(400, {"error": "unsupported_grant_type"})
        if (form.get("client_id"), form.get("client_secret")) != (self.client_id, self.client_secret):
            return Answer(401, {"error": "invalid_client", "error_description": "Client authentication failed"})
        if form.get("refresh_token") not in self.refresh_tokens:
            return Answer(400, {"error": "invalid_grant", "error_description": "The request has an invalid grant"})
        self._issued += 1
        token = f"Atza|simulated-{self._issued:06}"
        self._tokens[token] = self.clock.now() + self.token_life
        life = int(self.token_life.total_seconds())
        return Answer(
            200,
            {
                "access_token": token,
                "token_type": "bearer",
                "expires_in": life,
                "refresh_token": form["refresh_token"],
            },
        )

    def _unauthorized(self, request: Request) -> Answer | None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self._tokens.get(token, self.clock.now()) <= self.clock.now():
            return _error(401, "Not authorized to access: the token is invalid or has expired")
        if request.headers.get("amazon-advertising-api-clientid") != self.client_id:
            return _error(401, "Not authorized to access: unknown client")
        if request.headers.get("amazon-advertising-api-scope") not in self.profiles:
            return _error(401, "Not authorized to access scope")
        return None

    def _create(self, request: Request) -> Answer:
        if request.headers.get("content-type") != MEDIA:
            return _error(415, f"Cannot consume content type; use {MEDIA}")
        try:
            asked = json.loads(request.body)
            wrong = _invalid(asked, self.clock.now().date())
        except (ValueError, KeyError, TypeError) as error:
            wrong = f"Malformed request: {error!r}"
        if wrong:
            return _error(400, wrong)
        profile = request.headers["amazon-advertising-api-scope"]
        now = self.clock.now()
        wanted = self._identity(asked)
        for report in self.reports.values():
            alike = report.profile == profile and self._identity(report.request) == wanted
            if alike and (report.status(now) in _LIVE or self._remembered(report, now)):
                return _error(425, f"The Request is a duplicate of : {report.report_id}")
        digest = hashlib.blake2b(f"{self.performance.seed}/{len(self.reports)}".encode(), digest_size=16).digest()
        fate = self._fate()
        report = Report(str(UUID(bytes=digest, version=4)), profile, asked, now, fate, linkless=fate.linkless)
        self.reports[report.report_id] = report
        return Answer(200, self._shown(report, request))

    def _remembered(self, report: Report, now: datetime) -> bool:
        return report.status(now) == "COMPLETED" and now < report.ends + self.remembers

    def _identity(self, asked: dict[str, Any]) -> str:
        """What makes two requests the same to Amazon, who has been seen to overlook the time unit."""
        configuration = {name: value for name, value in asked["configuration"].items() if value}
        if self.collide_time_units:
            configuration = {"reportTypeId": configuration["reportTypeId"]}
        return json.dumps([asked["startDate"], asked["endDate"], configuration], sort_keys=True)

    def _shown(self, report: Report, request: Request) -> dict[str, Any]:
        now = self.clock.now()
        status = report.status(now)
        done = status == "COMPLETED"
        expires = now + self.link_life
        link = self._link(report, request, expires) if done else None
        if done and report.linkless:
            report.linkless -= 1
            link = None
        asked = report.request
        return {
            "reportId": report.report_id,
            "name": asked.get("name"),
            "startDate": asked["startDate"],
            "endDate": asked["endDate"],
            "status": status,
            "createdAt": instant_text(report.created),
            "updatedAt": instant_text(now),
            "generatedAt": instant_text(report.ends) if done else None,
            "fileSize": self._size(report) if done else None,
            "failureReason": report.fate.reason if status == "FAILED" else None,
            "url": link,
            "urlExpiresAt": instant_text(expires) if link else None,
            "configuration": {"filters": None, **asked["configuration"]},
        }

    def _link(self, report: Report, request: Request, expires: datetime) -> str:
        base = self.storage_url or f"http://{request.headers['host']}"
        until = instant_text(expires)
        return f"{base}{_STORAGE}{report.report_id}.json.gz?until={until}&signature={_signature(report, until)}"

    def _cancel(self, report: Report) -> Answer:
        if report.status(self.clock.now()) != "PENDING":
            return _error(400, "Only a pending report can be cancelled")
        report.cancelled = self.clock.now()
        return Answer(200, {"reportId": report.report_id})

    def _download(self, request: Request) -> Answer:
        if "authorization" in request.headers:
            return Answer(
                400, "<Error><Code>InvalidArgument</Code><Message>Only one auth mechanism allowed</Message></Error>"
            )
        report = self.reports.get(request.path.removeprefix(_STORAGE).removesuffix(".json.gz"))
        query = {name: values[0] for name, values in parse_qs(request.query).items()}
        if report is None or query.get("signature") != _signature(report, query.get("until", "")):
            return Answer(403, "<Error><Code>SignatureDoesNotMatch</Code></Error>")
        if parse_instant(query["until"]) <= self.clock.now():
            return Answer(403, _EXPIRED)
        if self.bodies:
            body = self.bodies.popleft()
            return Answer(200, pieces=(body,) if isinstance(body, bytes) else body())
        return Answer(200, pieces=compressed(self._rows(report)))

    def _rows(self, report: Report) -> Iterator[dict[str, Any]]:
        asked, configuration = report.request, report.request["configuration"]
        start, end = date.fromisoformat(asked["startDate"]), date.fromisoformat(asked["endDate"])
        days = [start + timedelta(days=n) for n in range((end - start).days + 1)]
        if configuration["timeUnit"] == "SUMMARY":
            days = days[:1]  # the first day stands for the sum: nobody looks at it but to see that it is another report
        span = {"startDate": asked["startDate"], "endDate": asked["endDate"]}
        for row in self.performance.report(report.profile, configuration["reportTypeId"], days, report.ends):
            yield {column: (row | span)[column] for column in configuration["columns"]}

    def _size(self, report: Report) -> int | None:
        """Only where it is quickly counted."""
        return sum(map(len, compressed(self._rows(report)))) if self.performance.rows <= _LINES else None


def compressed(rows: Iterable[dict[str, Any]]) -> Iterator[bytes]:
    """A report's file: one JSON array, with gzip, piece by piece."""
    packer = zlib.compressobj(wbits=_GZIP)
    before = "["
    gathered: list[str] = []
    for row in rows:
        gathered.append(before + json.dumps(row, separators=(",", ":"), ensure_ascii=False))
        before = ","
        if len(gathered) == _LINES:
            yield packer.compress("".join(gathered).encode())
            gathered.clear()
    end = "]" if before == "," else "[]"
    yield packer.compress(("".join(gathered) + end).encode())
    yield packer.flush()


def _invalid(asked: dict[str, Any], today: date) -> str | None:
    """What Amazon would refuse in a request; raises KeyError for what is missing."""
    start, end = date.fromisoformat(asked["startDate"]), date.fromisoformat(asked["endDate"])
    configuration = asked["configuration"]
    report_type, unit, columns = configuration["reportTypeId"], configuration["timeUnit"], set(configuration["columns"])
    days = (end - start).days + 1
    if days < 1:
        return "endDate must not be before startDate"
    if days > RANGE_DAYS:
        return f"startDate to endDate range ({days} days) must not exceed maximum range ({RANGE_DAYS} days)"
    if (today - start).days > RETENTION_DAYS:
        return f"startDate must be within the last {RETENTION_DAYS} days"
    if report_type not in _GROUPS or configuration["adProduct"] != "SPONSORED_PRODUCTS":
        return f"reportTypeId {report_type} is not supported"
    group, entity = _GROUPS[report_type]
    if configuration["groupBy"] != [group] or configuration["format"] != "GZIP_JSON":
        return f"groupBy and format of {report_type} must be [{group}] and GZIP_JSON"
    dates = {"date"} if unit == "DAILY" else {"startDate", "endDate"}
    unknown = columns - set(COLUMNS[entity]) - {"startDate", "endDate"} | columns & (
        {"date", "startDate", "endDate"} - dates
    )
    return f"columns {sorted(unknown)} are not valid for {report_type} {unit}" if unknown or not columns else None


def _signature(report: Report, until: str) -> str:
    return hashlib.blake2b(f"{report.report_id}/{until}".encode(), digest_size=16).hexdigest()


def _error(status: int, detail: str) -> Answer:
    return Answer(status, {"code": str(status), "detail": detail})


async def _read(scope: Scope, receive: Receive) -> Request:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = {name.decode().lower(): value.decode("latin-1") for name, value in scope["headers"]}
    method, path = scope["method"], scope["path"]
    return Request(_operation(method, path), method, path, scope["query_string"].decode(), headers, body)


def _operation(method: str, path: str) -> str:
    if path == _TOKEN:
        return "token"
    if path.startswith(_STORAGE):
        return "download"
    if method == "POST":
        return "create"
    return "cancel" if method == "DELETE" else "status"


async def _write(send: Send, answer: Answer, gone: asyncio.Future[Message]) -> None:
    text = isinstance(answer.body, str)
    kind = "application/xml" if text else "application/json" if answer.pieces is None else "application/octet-stream"
    headers = (("content-type", kind), *answer.headers)
    raw = [(name.encode(), value.encode()) for name, value in headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    whole = answer.body.encode() if text else b"" if answer.body is None else json.dumps(answer.body).encode()
    for piece in (whole,) if answer.pieces is None else answer.pieces:
        await send(_piece(piece, more=True))
        await asyncio.sleep(0)
        if gone.done():
            return
    await send(_piece(b"", more=False))


def _piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def _cut(send: Send) -> None:
    """Promise more than is sent: the server then closes the connection."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"1000")]})
    await send(_piece(b"{", more=True))

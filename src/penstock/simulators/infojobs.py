"""InfoJobs' side of `connectors.infojobs`: lists of offers in one ASGI application.

Time is the clock's: offers are born, bumped and removed with it, and spans (`sinceDate`) are counted back from it.
Trouble is asked for: `faults` for the next calls, `every` for every Nth. The latest requests are in `requests`.
"""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.model.clock import EPOCH, Clock, instant_text
from penstock.simulators.asgi import respond
from penstock.simulators.faults import Refused, Troubles
from penstock.simulators.infojobs_data import Filter, Live, Market, Seen, record

PATHS = ("/api/9/offer", "/api/7/offer")
OPERATION = "offers"
SPANS = {"_24_HOURS": timedelta(hours=24), "_7_DAYS": timedelta(days=7), "_15_DAYS": timedelta(days=15), "ANY": None}

_KEPT = 10_000
_USUAL_SIZE = 20
_ORDER = "updated-desc"
_HTML = b"<!DOCTYPE html><html><body><h1>Estamos de mantenimiento</h1></body></html>"
_JSON = (b"content-type", b"application/json;charset=UTF-8")
Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call. `cut` breaks the connection, which only works on a socket or in process.

    With `spoils`, one of `infojobs_data.DEFECTS`, the call is answered, and every third offer is malformed. With
    `repeats` it is answered as if the first page had been asked for.
    """

    status: int = 500
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    cut: bool = False
    spoils: str | None = None
    repeats: bool = False


def throttle(retry_after: str | None = None) -> Fault:
    """A 429, with or without a time to come back."""
    headers = () if retry_after is None else (("retry-after", retry_after),)
    return Fault(429, {"error_description": "Too many requests"}, headers)


HTML = Fault(200, _HTML, (("content-type", "text/html"),))


@dataclass(frozen=True, slots=True)
class Request:
    """One call as it arrived; names of headers are in small letters."""

    at: datetime
    headers: Mapping[str, str]
    parameters: Sequence[tuple[str, str]]

    def one(self, name: str) -> str | None:
        """The first value of a parameter."""
        return next((value for key, value in self.parameters if key == name), None)


@dataclass(slots=True)
class InfoJobsSimulator(Troubles[Fault]):
    """An ASGI application with a memory. `market` is what there is to be found.

    `list_key` is where offers stand in an answer. `most_pages` is how many pages are told and given at most, and
    `most_offers` how many offers. A page has `largest_page` offers at most; with `rigid` always as many as usual.
    Beyond the last page comes an empty one, or with `repeats_last` the last. `tells_date` and `tells_totals` may be
    left out of answers; the date may be one that something between wrote, `date_off` by so much. With `repeats`
    every page is the first one, and there is always one more.
    """

    clock: Clock
    market: Market | None = None
    client_id: str = "simulated-client"
    client_secret: str = "simulated-secret"  # noqa: S105 - opens nothing
    list_key: str = "items"
    most_pages: int | None = 114
    most_offers: int | None = None
    largest_page: int = 50
    rigid: bool = False
    repeats_last: bool = False
    repeats: bool = False
    tells_date: bool = True
    tells_totals: bool = True
    date_off: timedelta = timedelta()
    latency: float = 0.0
    requests: deque[Request] = field(default_factory=lambda: deque(maxlen=_KEPT))

    def __post_init__(self) -> None:
        if self.market is None:
            self.market = Market(self.clock.now())

    def offers_of(self, parameters: Mapping[str, Any], start: datetime, end: datetime) -> list[Seen]:
        """Every offer of a query that was listed at any time of a span: what a reader may have to show."""
        pairs = [(name, str(one)) for name, value in parameters.items() for one in _each(value)]
        return self._market.offers_of(_filter(pairs), start, end)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self.answer, lambda: self.latency, scope, receive, send)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Headers, bytes]:  # noqa: ARG002 - one shape
        """Status, headers and body. Raises ConnectionAbortedError where a fault asks for it."""
        now = self.clock.now()
        sent: Headers = (_JSON,)
        try:
            status, content = 200, self._asked(method, path, headers, now)
        except Refused as refused:
            fault = refused.answered()
            status = fault.status
            content = fault.body if isinstance(fault.body, bytes) else msgspec.json.encode(fault.body)
            extra = tuple((name.encode(), value.encode()) for name, value in fault.headers)
            sent = extra if any(name == b"content-type" for name, _ in extra) else (_JSON, *extra)
        if self.tells_date:
            sent = (*sent, (b"date", format_datetime(now + self.date_off, usegmt=True).encode()))
        return status, (*sent, (b"content-length", b"%d" % len(content))), content

    @property
    def _market(self) -> Market:
        assert self.market is not None  # noqa: S101 - made after birth where none was given
        return self.market

    def _asked(self, method: str, path: str, headers: dict[str, str], now: datetime) -> bytes:
        address = urlsplit(path)
        if method != "GET" or address.path not in PATHS:
            raise Refused(_error(404, "1", "Unknown operation", now))
        parameters = parse_qsl(address.query, keep_blank_values=True)
        self.requests.append(Request(now, headers, parameters))
        fault = self.trouble(OPERATION)
        if fault is not None and fault.spoils is None and not fault.repeats:
            raise Refused(fault)
        login = f"{self.client_id}:{self.client_secret}".encode()
        if headers.get("authorization") != f"Basic {base64.b64encode(login).decode()}":
            refusal = _error(401, "101", "The user has not been authenticated", now)
            raise Refused(_with(refusal, "www-authenticate", 'Basic realm="InfoJobs-API"'))
        return self._list(parameters, now, fault)

    def _list(self, parameters: Sequence[tuple[str, str]], now: datetime, fault: Fault | None) -> bytes:
        given = dict(parameters)
        span, order = given.get("sinceDate", "ANY"), given.get("order", _ORDER)
        if span not in SPANS or order != _ORDER:
            raise Refused(_error(400, "301", f"Invalid value: {span if span not in SPANS else order}", now))
        page = _whole(given.get("page", "1"), now)
        size = min(_whole(given.get("maxResults", str(_USUAL_SIZE)), now), self.largest_page)
        size = min(_USUAL_SIZE, self.largest_page) if self.rigid else size
        reach = SPANS[span]
        listing = self._market.listed(_filter(parameters), now, None if reach is None else now - reach)
        count = listing.count if self.most_offers is None else min(listing.count, self.most_offers)
        pages = -(-count // size)
        pages = pages if self.most_pages is None else min(pages, self.most_pages)
        if self.repeats:
            shown, pages = 1, page + 1
        elif fault is not None and fault.repeats:
            shown = 1
        elif page > pages and self.repeats_last:
            shown = page = max(1, pages)
        else:
            shown = page
        offers = listing.page((shown - 1) * size, size) if shown <= pages else []
        offers = offers[: max(0, count - (shown - 1) * size)]
        texts = _texts(offers, int((now - EPOCH).total_seconds()), fault.spoils if fault is not None else None)
        totals = {"currentPage": page, "pageSize": size, "currentResults": len(offers)}
        if self.tells_totals:
            totals |= {"totalResults": listing.count, "totalPages": pages}
        told = msgspec.json.encode({**totals, "sortBy": _ORDER, "sinceDate": span})
        return b'%s,"%s":[%s]}' % (told[:-1], self.list_key.encode(), b",".join(texts))


def _texts(offers: Sequence[Live], now: int, defect: str | None) -> list[bytes]:
    texts = [one.text(now) for one in offers]
    if defect is not None:
        for place in range(0, len(texts), 3):
            texts[place] = msgspec.json.encode(record(offers[place].offer, offers[place].updated, defect))
    return texts


def _filter(parameters: Sequence[tuple[str, str]]) -> Filter:
    q = " ".join(value for name, value in parameters if name == "q")
    return Filter.of(q, [value for name, value in parameters if name == "province"])


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _whole(text: str, now: datetime) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:18]) > 0):
        raise Refused(_error(400, "301", f"Invalid value: {text}", now))
    return int(text[:18])


def _error(status: int, code: str, description: str, now: datetime) -> Fault:
    when = instant_text(now).replace("Z", "+0000")
    return Fault(status, {"error": code, "error_description": description, "timestamp": when})


def _with(fault: Fault, name: str, value: str) -> Fault:
    return Fault(fault.status, fault.body, (*fault.headers, (name, value)))

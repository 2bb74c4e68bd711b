"""A generic JSON API that lists job offers: one list, read in every way of paging, in one ASGI application.

The ways are paths: `/page`, `/offset`, `/cursor`, `/link` (a Link header, and the body is the list), `/next` (the next
address in the body) and `/all`. Each takes `category`, `since` and `order`. Time is the clock's. Trouble is asked for:
`faults` for the next calls of an operation (`list` or `token`), `every` for every Nth call, `churn` for a list that
changes between pages. The latest requests are in `requests`.
"""

from __future__ import annotations

import json
from base64 import b64encode
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.model.clock import Clock
from penstock.simulators.asgi import respond
from penstock.simulators.faults import Refused, Troubles
from penstock.simulators.lean import Headers
from penstock.simulators.paged_data import Key, Listing

STYLES = ("page", "offset", "cursor", "link", "next", "all")
FOREIGN = "https://elsewhere.example.com/steal"
"""Where a link leads that leads away."""
_KEPT = 10_000
_DEFAULT_SIZE = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call instead of its answer, or to its answer.

    `cut` breaks the connection. `twist` changes the answer: `repeat` gives the first page, with itself as the next;
    `foreign` leads to another host; `nothing` has no records and no next; `broken` is JSON that breaks off.
    """

    status: int = 500
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    cut: bool = False
    twist: str | None = None


def throttle(retry_after: str | None = None, status: int = 429) -> Fault:
    """A 429, or another status that means it, with or without a time to come back."""
    headers = () if retry_after is None else (("retry-after", retry_after),)
    return Fault(status, {"message": "Too many requests"}, headers)


@dataclass(frozen=True, slots=True)
class Churn:
    """What happens to the list after every Nth page."""

    pages: int = 1
    added: int = 1
    bumped: int = 1
    removed: int = 1


@dataclass(frozen=True, slots=True)
class Request:
    """One call as it arrived; names of headers are in small letters."""

    operation: str
    style: str
    parameters: dict[str, list[str]]
    headers: dict[str, str]
    form: dict[str, str]


def _refuse(status: int, message: str) -> Refused:
    return Refused(Fault(status, {"message": message}))


@dataclass(slots=True)
class PagedSimulator(Troubles[Fault]):
    """An ASGI application with a memory. `listing` may be any number of offers; a thousand by default.

    `auth` says who may ask: `none`, `header` (X-Api-Key), `bearer`, `basic` or `oauth`, with tokens of `/token`.
    Larger pages than `largest` are clamped to it. Pages after `last_page` are refused; past the end of the list they
    are empty, or missing (404) with `ends_missing`. `relative` writes links without a host.
    """

    clock: Clock
    listing: Listing | None = None
    auth: str = "none"
    key: str = "simulated-api-key"
    user: str = "simulated-user"
    client_id: str = "simulated-client"
    token_life: timedelta = timedelta(hours=1)
    largest: int = 100
    first_page: int = 1
    first_offset: int = 0
    last_page: int | None = None
    ends_missing: bool = False
    relative: bool = False
    latency: float = 0.0
    churn: Churn | None = None
    requests: deque[Request] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _tokens: dict[str, datetime] = field(default_factory=dict)
    _issued: int = 0

    def __post_init__(self) -> None:
        if self.listing is None:
            self.listing = Listing(1_000, self.clock.now())

    @property
    def offers(self) -> Listing:
        """The list."""
        assert self.listing is not None  # noqa: S101 - made after birth where none was given
        return self.listing

    def expire_tokens(self) -> None:
        """Every token is refused from now on."""
        self._tokens.clear()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self.answer, lambda: self.latency, scope, receive, send)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Headers, bytes]:
        """Status, headers and body. Raises ConnectionAbortedError where a fault asks for it."""
        extra: Sequence[tuple[str, str]] = ()
        status = 200
        try:
            content, extra = self._asked(method, path, headers, body)
        except Refused as refused:
            fault = refused.answered()
            content = fault.body if isinstance(fault.body, bytes) else json.dumps(fault.body).encode()
            status, extra = fault.status, fault.headers
        told = {"content-type": "application/json", "content-length": str(len(content)), **dict(extra)}
        return status, tuple((name.encode(), value.encode()) for name, value in told.items()), content

    def _asked(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[bytes, list[Any]]:
        parts = urlsplit(path)
        style, parameters = parts.path.removeprefix("/"), parse_qs(parts.query, keep_blank_values=True)
        operation = {("POST", "token"): "token"} | {("GET", name): "list" for name in STYLES}
        if (method, style) not in operation:
            raise _refuse(404, "Not found")
        kind, form = operation[method, style], dict(parse_qsl(body.decode("latin-1")))
        self.requests.append(Request(kind, style, parameters, headers, form))
        twist = self._twist(kind)
        if kind == "token":
            return json.dumps(self._token(form)).encode(), []
        self._admit(headers)
        found = _Page(self, style, {name: values[-1] for name, values in parameters.items()}, parameters, twist)
        answer = found.answer("" if self.relative else f"http://{headers.get('host', 'localhost')}")
        if self.churn is not None and self.counted["list"] % self.churn.pages == 0:
            self._stir(self.churn)
        return answer

    def _twist(self, operation: str) -> str | None:
        """Refuses the call where that was asked for, or says how its answer is twisted."""
        found = self.trouble(operation)
        if found is not None and found.twist is None:
            raise Refused(found)
        return None if found is None else found.twist

    def _token(self, form: Mapping[str, str]) -> dict[str, Any]:
        if form.get("grant_type") != "client_credentials":
            raise _refuse(400, "unsupported_grant_type")
        if (form.get("client_id"), form.get("client_secret")) != (self.client_id, self.key):
            raise _refuse(401, "invalid_client")
        self._issued += 1
        token = f"simulated-token-{self._issued:06}"
        self._tokens[token] = self.clock.now() + self.token_life
        return {"access_token": token, "token_type": "bearer", "expires_in": int(self.token_life.total_seconds())}

    def _admit(self, headers: Mapping[str, str]) -> None:
        given = headers.get("authorization", "")
        basic = b64encode(f"{self.user}:{self.key}".encode()).decode()
        token = given.removeprefix("Bearer ")
        fits = {
            "none": True,
            "header": headers.get("x-api-key") == self.key,
            "bearer": given == f"Bearer {self.key}",
            "basic": given == f"Basic {basic}",
            "oauth": given.startswith("Bearer ") and self._tokens.get(token, self.clock.now()) > self.clock.now(),
        }
        if not fits[self.auth]:
            raise _refuse(401, "Who are you?")

    def _stir(self, churn: Churn) -> None:
        now = self.clock.now()
        self.offers.bump(churn.bumped, now)
        self.offers.add(churn.added, now)
        self.offers.remove(churn.removed)


class _Page:
    """One answer. `given` has the last value of each parameter, `parameters` all of them."""

    def __init__(
        self,
        simulator: PagedSimulator,
        style: str,
        given: Mapping[str, str],
        parameters: Mapping[str, list[str]],
        twist: str | None,
    ) -> None:
        self._simulator, self._style, self._given, self._twist = simulator, style, given, twist
        self._parameters = parameters
        self._newest = given.get("order", "newest") == "newest"
        categories = [name for text in parameters.get("category", []) for name in text.split(",")]
        self._keys = simulator.offers.listed(newest_first=self._newest, since=self._since(), categories=categories)
        self._size = min(self._number("per_page" if style == "page" else "limit", _DEFAULT_SIZE, 1), simulator.largest)

    def answer(self, host: str) -> tuple[bytes, list[tuple[str, str]]]:
        """The body, and further headers."""
        start = 0 if self._twist == "repeat" else self._start()
        size = len(self._keys) if self._style == "all" else self._size
        if self._simulator.ends_missing and start and start >= len(self._keys):
            raise _refuse(404, "Invalid page")
        keys = [] if self._twist == "nothing" else self._keys[start : start + size]
        more = self._twist != "nothing" and start + size < len(self._keys)
        items = [self._simulator.offers.record(-number) for _, number in keys]
        cursor = self._cursor(keys[-1]) if more and self._style in ("cursor", "link", "next") else None
        link = self._link(host, cursor)
        body: Any = items
        if self._style != "link":
            meta = {"total": len(self._keys), "next_cursor": cursor, "next": link, "has_more": more}
            body = {"data": {"items": items}, "meta": meta}
        text = _written(body)
        headers = [("link", f'<{host}/link?limit={size}>; rel="first", <{link}>; rel="next"')] if link else []
        return text[: len(text) // 2] if self._twist == "broken" else text, headers

    def _start(self) -> int:
        if self._style == "page":
            number = self._number("page", self._simulator.first_page, self._simulator.first_page)
            if self._simulator.last_page is not None and number > self._simulator.last_page:
                raise _refuse(400, f"page must not be above {self._simulator.last_page}")
            return (number - self._simulator.first_page) * self._size
        if self._style == "offset":
            first = self._simulator.first_offset
            return self._number("offset", first, first) - first
        cursor = self._given.get("cursor")
        return 0 if cursor is None else self._after(cursor)

    def _after(self, cursor: str) -> int:
        updated, _, number = cursor.partition("-")
        if not updated.isdecimal() or not number.isdecimal():
            raise _refuse(400, "not a cursor")
        if self._newest:
            return bisect_right(self._keys, (-int(updated), -int(number)))
        return bisect_right(self._keys, int(number), key=lambda key: -key[1])

    def _cursor(self, key: Key) -> str:
        if self._twist == "repeat" and "cursor" in self._given:
            return self._given["cursor"]
        return f"{-key[0]}-{-key[1]}"

    def _link(self, host: str, cursor: str | None) -> str | None:
        if self._twist == "foreign":
            return FOREIGN
        if cursor is None:
            return None
        pairs = [(name, value) for name, values in self._parameters.items() for value in values if name != "cursor"]
        if self._twist != "repeat" or "cursor" in self._given:
            pairs.append(("cursor", cursor))
        return f"{host}/{self._style}?{urlencode(pairs)}"

    def _since(self) -> datetime | None:
        text = self._given.get("since")
        if text is None:
            return None
        try:
            moment = datetime.fromtimestamp(int(text), UTC) if text.isdecimal() else datetime.fromisoformat(text)
        except (ValueError, OverflowError):
            raise _refuse(400, "since is not a date") from None
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)

    def _number(self, name: str, default: int, least: int) -> int:
        text = self._given.get(name, str(default))
        if not text.isdecimal() or len(text) > 9 or int(text) < least:  # noqa: PLR2004 - long enough
            raise _refuse(400, f"{name} must be a whole number from {least} on")
        return int(text)


def _written(body: Any) -> bytes:
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return json.dumps(body).encode()

"""Nivoda's side of `connectors.nivoda`: login, counts and pages of a catalogue, in one ASGI application.

Time is the clock's: tokens expire and stones are updated with it. Trouble is asked for: `faults` for the next calls of
an operation, `every` for every Nth call, `churn` for a catalogue that changes between pages. The latest requests
are in `requests`. On a socket use `server.serving`, in process an ASGI transport, and for a process of its own see
`nivoda_process`.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from starlette.types import Receive, Scope, Send

from penstock.model.clock import Clock, instant_text, parse_instant
from penstock.simulators.asgi import respond
from penstock.simulators.faults import Refused, Troubles
from penstock.simulators.graphql import BadDocument, Field, parse
from penstock.simulators.nivoda_data import ITEM, MOST_STONES, Catalogue, Wanted, template

PATH = "/api/diamonds"
CAP = 50
ORDERS = ("price", "createdAt", "none")
"""The orders of Nivoda's that are simulated; the last two are the order of birth."""

_OPERATIONS = {"diamonds_by_query": "page", "diamonds_by_query_count": "count", "authenticate": "authenticate"}
_KEPT = 10_000
_FILTERS = {"dollar_value", "updated"}
_IGNORED = {"labgrown", "shapes", "sizes", "availability", "has_image", "has_v360", "hide_memo", "color"}
_JSON = ((b"content-type", b"application/json; charset=utf-8"),)
Headers = tuple[tuple[bytes, bytes], ...]
_NONE: Headers = ()


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call instead of its answer. `cut` breaks the connection, which only works on a socket."""

    status: int = 500
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()
    cut: bool = False


def throttle(retry_after: str | None = None) -> Fault:
    """A 429, with or without a time to come back."""
    headers = () if retry_after is None else (("retry-after", retry_after),)
    return Fault(429, {"message": "Too many requests"}, headers)


def errors(message: str, code: str | None = None, *, status: int = 200, **extensions: Any) -> Fault:
    """An error of GraphQL, by default under HTTP 200."""
    if code is not None:
        extensions["code"] = code
    error = {"message": message, **({"extensions": extensions} if extensions else {})}
    return Fault(status, {"data": None, "errors": [error]})


@dataclass(frozen=True, slots=True)
class Churn:
    """What happens to the catalogue after every Nth page."""

    pages: int = 1
    changed: int = 1
    inserted: int = 1
    removed: int = 1


@dataclass(frozen=True, slots=True)
class Request:
    """One call as it arrived; names of headers are in small letters."""

    operation: str
    headers: dict[str, str]
    query: str
    variables: dict[str, Any]


@dataclass(slots=True)
class NivodaSimulator(Troubles[Fault]):
    """An ASGI application with a memory. `catalogue` may be any number of stones; a thousand by default.

    `unit` is how many cents a price of 1 is: 1 or 100. `total_count_factor` is how far `total_count` is off. With
    `rows_past_count` so many rows (None: no end of them) follow after the last that was counted. `over_limit` says
    what a limit above 50 leads to: `clamp` or `error`. `tells_updated` gives items a field `updated_at`, and
    `tells_expiry` gives tokens a field `expires`; without them to ask for it is an error. `refuses` says how a bad
    token is refused: under HTTP 200 (`graphql`) or with a 401 (`http`). With `per_second` further calls in a second
    of the clock are throttled. `hidden` are stones that are counted and on no page. With `whole_dollars` the filter
    takes whole numbers alone, and looks at the whole dollars of a price.
    """

    clock: Clock
    catalogue: Catalogue | None = None
    username: str = "buyer@example.com"
    password: str = "simulated-password"  # noqa: S105 - opens nothing
    token_life: timedelta = timedelta(hours=6)
    styles: frozenset[str] = frozenset({"bearer", "as"})
    unit: int = 1
    total_count_factor: float = 1.07
    rows_past_count: int | None = 0
    over_limit: str = "clamp"
    tells_updated: bool = False
    tells_expiry: bool = True
    refuses: str = "graphql"
    latency: float = 0.0
    whole_dollars: bool = False
    per_second: int | None = None
    retry_after: str | None = "1"
    churn: Churn | None = None
    hidden: set[int] = field(default_factory=set)
    requests: deque[Request] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _tokens: dict[str, datetime] = field(default_factory=dict)
    _issued: int = 0
    _second: int = 0
    _in_second: int = 0
    _templates: dict[int, tuple[Mapping[str, Field], str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.catalogue is None:
            self.catalogue = Catalogue(1_000, self.clock.now())

    @property
    def stones(self) -> Catalogue:
        """The catalogue."""
        assert self.catalogue is not None  # noqa: S101 - made after birth where none was given
        return self.catalogue

    def expire_tokens(self) -> None:
        """Every token is refused from now on."""
        self._tokens.clear()

    def calls(self, operation: str) -> list[Request]:
        """The latest calls of one operation: authenticate, count or page."""
        return [request for request in self.requests if request.operation == operation]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self.answer, lambda: self.latency, scope, receive, send)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Headers, bytes]:
        """Status, headers and body. Raises ConnectionAbortedError where a fault asks for it."""
        try:
            if (method, path) != ("POST", PATH):
                raise Refused(Fault(404, b"Cannot POST " + path.encode()))  # noqa: TRY301
            content = self._asked(headers, body)
            status, extra = 200, _NONE
        except Refused as refused:
            fault = refused.answered()
            content = fault.body if isinstance(fault.body, bytes) else json.dumps(fault.body).encode()
            status, extra = fault.status, tuple((name.encode(), value.encode()) for name, value in fault.headers)
        return status, (*_JSON, (b"content-length", b"%d" % len(content)), *extra), content

    def _asked(self, headers: dict[str, str], body: bytes) -> bytes:
        try:
            asked = json.loads(body)
            query, variables = asked["query"], asked.get("variables") or {}
            selected = parse(query)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refused(errors("POST body missing or invalid.", "BAD_REQUEST", status=400)) from None
        except BadDocument as error:
            raise Refused(errors(str(error), "GRAPHQL_PARSE_FAILED", status=400)) from None
        wrapped = selected.get("as")
        inner = wrapped.fields or {} if wrapped is not None else selected
        operation = next((_OPERATIONS[name] for name in inner if name in _OPERATIONS), "unknown")
        self.requests.append(Request(operation, headers, query, variables))
        self._limit(operation)
        if (fault := self.trouble(operation)) is not None:
            raise Refused(fault)
        if operation == "authenticate":
            return _data({"authenticate": self._authenticate(inner["authenticate"], variables)})
        self._admit(headers, wrapped, variables)
        parts = [f'"{name}":{self._field(one, variables)}' for name, one in inner.items()]
        answer = "{" + ",".join(parts) + "}"
        if self.churn is not None and operation == "page" and self.counted["page"] % self.churn.pages == 0:
            self._stir(self.churn)
        return ('{"data":{"as":%s}}' if wrapped is not None else '{"data":%s}').__mod__(answer).encode()

    def _limit(self, operation: str) -> None:
        """Throttle calls beyond those that a second has."""
        if self.per_second is None:
            return
        second = math.floor(self.clock.elapsed())
        self._in_second = self._in_second + 1 if second == self._second else 1
        self._second = second
        if self._in_second > self.per_second:
            self.counted[operation] += 1
            raise Refused(throttle(self.retry_after))

    def _authenticate(self, asked: Field, variables: Mapping[str, Any]) -> dict[str, Any]:
        login = (asked.fields or {}).get("username_and_password")
        if login is None:
            raise Refused(_unknown(", ".join(asked.fields or ()), "Authenticate"))
        given = (login.argument("username", variables), login.argument("password", variables))
        for name in login.fields or {}:
            if name not in ({"token", "expires"} if self.tells_expiry else {"token"}):
                raise Refused(_unknown(name, "Token"))
        if given != (self.username, self.password):
            raise Refused(errors("Invalid username or password", "UNAUTHENTICATED"))
        self._issued += 1
        token = f"simulated-token-{self._issued:06}"
        self._tokens[token] = self.clock.now() + self.token_life
        told = {"token": token, "expires": instant_text(self._tokens[token])}
        return {"username_and_password": {name: told[name] for name in login.fields or {}}}

    def _admit(self, headers: Mapping[str, str], wrapped: Field | None, variables: Mapping[str, Any]) -> None:
        token = headers.get("authorization", "").removeprefix("Bearer ") if "bearer" in self.styles else ""
        if wrapped is not None and "as" in self.styles:
            token = wrapped.argument("token", variables) or ""
        if self._tokens.get(token, self.clock.now()) <= self.clock.now():
            if self.refuses == "http":
                raise Refused(errors("Unauthorized", status=401))
            raise Refused(errors("Not authenticated: the token is invalid or has expired", "UNAUTHENTICATED"))

    def _field(self, asked: Field, variables: Mapping[str, Any]) -> str:
        """The JSON of one field of a query."""
        if asked.name not in ("diamonds_by_query", "diamonds_by_query_count"):
            raise Refused(_unknown(asked.name, "Query"))
        wanted = _wanted(asked.argument("query", variables) or {}, whole=self.whole_dollars)
        count = self.stones.count(wanted)
        if asked.name == "diamonds_by_query_count":
            return str(count)
        parts = []
        for name, one in (asked.fields or {}).items():
            if name == "total_count":
                parts.append(f'"total_count":{int(count * self.total_count_factor)}')
            elif name == "items":
                parts.append(f'"items":[{self._items(asked, one, wanted, count, variables)}]')
            else:
                raise Refused(_unknown(name, "DiamondSearchResults"))
        return "{" + ",".join(parts) + "}"

    def _items(self, asked: Field, one: Field, wanted: Wanted, count: int, variables: Mapping[str, Any]) -> str:
        offset, limit = asked.argument("offset", variables) or 0, asked.argument("limit", variables)
        limit = CAP if limit is None else limit
        if not isinstance(offset, int) or not isinstance(limit, int) or offset < 0 or limit < 0:
            raise Refused(errors("offset and limit must be whole numbers", "BAD_USER_INPUT"))
        if limit > CAP and self.over_limit == "error":
            raise Refused(errors(f"limit must not be greater than {CAP}", "BAD_USER_INPUT"))
        limit = min(limit, CAP)
        order = asked.argument("order", variables) or {}
        kind, direction = order.get("type", "none"), order.get("direction", "ASC")
        if kind not in ORDERS or direction not in ("ASC", "DESC"):
            raise Refused(errors(f'Value "{kind}" does not exist in "DiamondOrderType" enum.', "BAD_USER_INPUT"))
        way = {"by_price": kind == "price", "descending": direction == "DESC"}
        numbers = self._listed(wanted, offset, limit, way)
        more = math.inf if self.rows_past_count is None else self.rows_past_count
        if len(numbers) < limit and more and count:
            # Somebody else's rows, or the same ones again: what follows after the end is nobody's promise.
            first = max(offset, count)
            past = range(first, int(min(offset + limit, count + more)))
            numbers += [number for place in past for number in self.stones.page(wanted, place % count, 1, **way)]
        selected, form = self._template(one)
        return ",".join(self.stones.items(numbers, form, selected, self.unit))

    def _listed(self, wanted: Wanted, offset: int, limit: int, way: Mapping[str, bool]) -> list[int]:
        if not self.hidden:
            return list(self.stones.page(wanted, offset, limit, **way))
        listed = self.stones.page(wanted, 0, MOST_STONES, **way)
        return [number for number in listed if number not in self.hidden][offset : offset + limit]

    def _template(self, items: Field) -> tuple[Mapping[str, Field], str]:
        """What is selected of an item and how it is written; worked out once for each document."""
        known = self._templates.get(id(items))
        if known is None or known[0] is not items.fields:
            selected = items.fields or {}
            _check(selected, ITEM if self.tells_updated else {n: v for n, v in ITEM.items() if n != "updated_at"})
            known = self._templates[id(items)] = (selected, template(selected))
        return known

    def _stir(self, churn: Churn) -> None:
        now = self.clock.now()
        self.stones.change(churn.changed, now)
        self.stones.insert(churn.inserted, now)
        self.stones.remove(churn.removed)


def _data(answer: Mapping[str, Any]) -> bytes:
    return json.dumps({"data": answer}).encode()


def _unknown(name: str, kind: str) -> Fault:
    return errors(f'Cannot query field "{name}" on type "{kind}".', "GRAPHQL_VALIDATION_FAILED", status=400)


def _check(selected: Mapping[str, Field], known: Mapping[str, Any], kind: str = "Item") -> None:
    for name, one in selected.items():
        if name not in known or (known[name] is None) != (one.fields is None):
            raise Refused(_unknown(name, kind))
        if one.fields is not None:
            _check(one.fields, known[name], name.capitalize())


def _wanted(query: Mapping[str, Any], *, whole: bool) -> Wanted:
    """The filter: `dollar_value` and `updated`, both ends included. Other filters change nothing."""
    for name in query:
        if name not in _FILTERS | _IGNORED:
            text = f'Field "{name}" is not defined by type "DiamondQuery".'
            raise Refused(errors(text, "GRAPHQL_VALIDATION_FAILED", status=400))
    price, updated = query.get("dollar_value") or {}, query.get("updated") or {}
    try:
        low, high = (_cents(price.get(name), whole=whole) for name in ("from", "to"))
        since, until = (None if updated.get(n) is None else parse_instant(updated[n]) for n in ("from", "to"))
    except (TypeError, ValueError) as error:
        raise Refused(errors(f"Variable got an invalid value: {error}", "BAD_USER_INPUT", status=400)) from None
    return Wanted(low, high + 99 if whole and high is not None else high, since, until)


def _cents(dollars: Any, *, whole: bool) -> int | None:
    if dollars is None:
        return None
    if isinstance(dollars, bool) or not isinstance(dollars, int if whole else int | float):
        msg = f"{'Int' if whole else 'Float'} cannot represent value: {dollars!r}"
        raise TypeError(msg)
    return round(dollars * 100)


if __name__ == "__main__":
    from penstock.simulators.nivoda_process import main

    main()

"""Nivoda: how many diamonds a query finds, and which, page by page, over its GraphQL API.

A `Nivoda` speaks for one login. It knows nothing of the ledger, and retries nothing, but for one renewal of a token
that Nivoda refuses. Records are kept as the text that came; only what tells them apart is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from penstock.connectors.graphql import Unauthenticated, meaning
from penstock.connectors.http.client import Http, Response
from penstock.connectors.http.exchange import Transport
from penstock.connectors.tokens import Tokens
from penstock.model.clock import EPOCH, Clock, instant_text, parse_instant
from penstock.model.errors import Fatal, Transient, UsageError
from penstock.settings.secret import ConfigError, Secret

PRODUCTION = "https://integrations.nivoda.net/api/diamonds"
STAGING = "https://intg-customer-staging.nivodaapi.net/api/diamonds"
LIMIT = 50
"""The largest page."""
ORDERS = ("createdAt", "price", "none", "discount", "size", "color", "clarity", "cut", "insert", "price_per_carat")

_LOGIN = "query($u:String!,$p:String!){authenticate{username_and_password(username:$u,password:$p){%s}}}"
_CERTIFICATE = "id lab certNumber shape carats color clarity cut"
_DIAMOND = "id availability supplierStockId image video"
_ITEM = "id price discount"
_UPDATED = re.compile(r"(diamond\.)?(?!(?:id|diamond)$)[_A-Za-z][_0-9A-Za-z]{0,63}")
_ANSWERED = (400, 401, 403)
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json"}
_MILLISECONDS, _SECONDS = 10**11, 10**8
"""A number above the first is milliseconds of an era, above the second its seconds, and below it a span of seconds."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What opens an account; the secret is read anew for every login."""

    username: str
    password: Secret


@dataclass(frozen=True, slots=True)
class Api:
    """Where the API is served, and what its description leaves open. All of it is to be tried on staging first.

    - `authentication`: the token as a `bearer` header, or every query wrapped in `as(token:)`.
    - `token_life`: how long a token is taken to be good where the login does not say.
    - `price_bounds`: `exact` asks for prices below 150 dollars as `to: 149.99`, `whole` as `to: 149`, for filters that
      take or compare whole dollars alone.
    - `updated_field`: the field of an item, or of its diamond (`diamond.NAME`), that says when it was last updated;
      none is documented.
    """

    url: str = PRODUCTION
    authentication: Literal["bearer", "as"] = "bearer"
    token_life: timedelta = timedelta(hours=6)
    price_bounds: Literal["exact", "whole"] = "exact"
    updated_field: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"{self.url!r} is not an address of Nivoda's API; write it like {PRODUCTION}")
        if self.updated_field is not None and not _UPDATED.fullmatch(self.updated_field):
            raise UsageError(
                f"{self.updated_field!r} is not a field of an item; write it like updated_at or diamond.updated_at"
            )
        if self.token_life <= timedelta():
            raise UsageError("token_life must be above zero")


@dataclass(frozen=True, slots=True)
class Query:
    """Which diamonds. Prices are whole dollars: `low` belongs to them and `high` does not. None: without end.

    `filters` are other filters of Nivoda's, as they are sent: `{"labgrown": False}`.
    """

    low: int | None = None
    high: int | None = None
    updated_from: datetime | None = None
    updated_to: datetime | None = None
    filters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Order:
    """The order of pages. By birth a stone keeps its place whatever happens to its price; new ones come last."""

    type: str = "createdAt"
    direction: str = "ASC"

    def __post_init__(self) -> None:
        if self.type not in ORDERS or self.direction not in ("ASC", "DESC"):
            raise UsageError(
                f"{self.type} {self.direction} is not an order; use one of {', '.join(ORDERS)}, with ASC or DESC"
            )


BY_BIRTH: Final = Order()


class Item(msgspec.Struct, frozen=True, gc=False):
    """One record: the text that came, and what tells it apart. A part that cannot be read is None."""

    payload: str
    offer_id: str | None
    stone_id: str | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class Page:
    """Records in order. What they say is not older than `asked_at`; `total_count` is Nivoda's word, and often wrong."""

    items: list[Item]
    asked_at: datetime
    total_count: int | None


class _Found(msgspec.Struct, gc=False):
    items: list[msgspec.Raw] | None = None
    total_count: Any = None


class _Data(msgspec.Struct, gc=False):
    inner: _Data | None = msgspec.field(default=None, name="as")
    page: _Found | None = msgspec.field(default=None, name="diamonds_by_query")
    count: Any = msgspec.field(default=None, name="diamonds_by_query_count")
    authenticate: Any = None


class _Answer(msgspec.Struct, gc=False):
    data: _Data | None = None
    errors: Any = None


_decode = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode


class Nivoda:
    """The diamonds that a login sees. `transport` replaces the network."""

    def __init__(
        self, credentials: Credentials, clock: Clock, *, api: Api | None = None, transport: Transport | None = None
    ) -> None:
        self.api = api or Api()
        self.credentials = credentials
        parts = urlsplit(self.api.url)
        self._clock = clock
        self._path = parts.path or "/"
        self._http = Http(f"{parts.scheme}://{parts.netloc}", clock, transport=transport)
        self._tokens = Tokens(self._login, clock)
        self._wraps = self.api.authentication == "as"
        self._says_expiry = True
        self._count_query = self._document("$q:DiamondQuery!", "diamonds_by_query_count(query:$q)")
        selection = _selection(self.api.updated_field)
        self._page_query = self._document(
            "$q:DiamondQuery!,$o:Int,$l:Int,$ord:DiamondOrder",
            f"diamonds_by_query(query:$q,offset:$o,limit:$l,order:$ord){{total_count items{{{selection}}}}}",
        )
        self._identify = _identity(self.api.updated_field)

    async def count(self, query: Query) -> int:
        """How many diamonds there are, by `diamonds_by_query_count`. Raises Throttled, Fatal or Transient."""
        data, _ = await self._ask(self._count_query, {"q": self._filter(query)})
        if type(data.count) is not int or data.count < 0:
            raise Transient(f"POST {self._path}: the answer has no count: {data.count!r:.100}")
        return data.count

    async def page(self, query: Query, offset: int, limit: int, order: Order = BY_BIRTH) -> Page:
        """The diamonds from `offset` on, `limit` of them at most. Raises Throttled, Fatal or Transient."""
        if not 1 <= limit <= LIMIT or offset < 0:
            raise UsageError(f"a page of {limit} from offset {offset} is not possible; a page has 1 to {LIMIT} records")
        variables = {
            "q": self._filter(query),
            "o": offset,
            "l": limit,
            "ord": {"type": order.type, "direction": order.direction},
        }
        data, asked_at = await self._ask(self._page_query, variables)
        found = data.page
        if found is None or found.items is None:
            raise Transient(f"POST {self._path}: the answer has no items")
        try:
            items = list(map(self._identify, found.items))
        except UnicodeDecodeError as error:
            raise Transient(f"POST {self._path}: the answer is not UTF-8: {error.reason}") from error
        total = found.total_count
        return Page(items, asked_at, total if type(total) is int else None)

    async def close(self) -> None:
        """Close the connections."""
        self._tokens.close()
        await self._http.close()

    def _document(self, variables: str, field_text: str) -> str:
        if self._wraps:
            return f"query($t:String!,{variables}){{as(token:$t){{{field_text}}}}}"
        return f"query({variables}){{{field_text}}}"

    def _filter(self, query: Query) -> dict[str, Any]:
        """The query as Nivoda takes it; both ends of its ranges belong to them."""
        wanted = dict(query.filters)
        if query.low is not None or query.high is not None:
            price: dict[str, int | float] = {} if query.low is None else {"from": query.low}
            if query.high is not None:
                price["to"] = query.high - 1 if self.api.price_bounds == "whole" else (query.high * 100 - 1) / 100
            wanted["dollar_value"] = price
        if query.updated_from is not None or query.updated_to is not None:
            ends = {"from": query.updated_from, "to": query.updated_to}
            wanted["updated"] = {name: instant_text(end) for name, end in ends.items() if end is not None}
        return wanted

    async def _ask(self, document: str, variables: dict[str, Any]) -> tuple[_Data, datetime]:
        """The answer's data, and when it was asked for; a token that is refused is renewed once."""
        token = await self._tokens.token()
        try:
            return await self._send(document, variables, token)
        except Unauthenticated:
            token = await self._tokens.token(instead_of=token)
            return await self._send(document, variables, token)

    async def _send(self, document: str, variables: dict[str, Any], token: str) -> tuple[_Data, datetime]:
        headers = _HEADERS
        if self._wraps:
            variables["t"] = token
        else:
            headers = {**_HEADERS, "Authorization": f"Bearer {token}"}
        asked_at = self._clock.now()
        data = await self._exchange(document, variables, headers)
        if self._wraps:
            if data.inner is None:
                raise Transient(f"POST {self._path}: the answer has no data")
            data = data.inner
        return data, asked_at

    async def _exchange(self, document: str, variables: Mapping[str, Any], headers: Mapping[str, str]) -> _Data:
        """One call. Raises Unauthenticated where the token is refused."""
        call = f"POST {self._path}"
        body = _encode({"query": document, "variables": variables})
        response = await self._http.call(
            "POST", self._path, content=body, headers=headers, answers=_ANSWERED, repeatable=True
        )
        try:
            answer = _decode(response.content)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            if not response.is_success:
                raise self._refusal(call, response) from error
            raise Transient(f"{call}: the answer cannot be read: {error}") from error
        if answer.errors:
            raise meaning(call, answer.errors, self._http.retry_after(response))
        if not response.is_success:
            raise self._refusal(call, response)
        if answer.data is None:
            raise Transient(f"{call}: the answer has no data")
        return answer.data

    def _refusal(self, call: str, response: Response) -> Exception:
        error = self._http.classify(call, response, repeatable=True)
        return Unauthenticated(str(error)) if isinstance(error, Fatal) else error

    async def _login(self) -> tuple[str, float]:
        """A token and for how long it is good. Not every server knows `expires`: then it is asked for once."""
        try:
            variables = {"u": self.credentials.username, "p": self.credentials.password.reveal()}
        except ConfigError as error:
            raise Fatal(str(error)) from error
        selection = "token expires" if self._says_expiry else "token"
        try:
            data = await self._exchange(_LOGIN % selection, variables, _HEADERS)
        except Unauthenticated as error:
            raise Fatal(f"{error}; check the user name and the password of {self.credentials.username}") from error
        except Fatal as error:
            if not self._says_expiry or "expires" not in str(error):
                raise
            self._says_expiry = False
            return await self._login()
        return self._token(data.authenticate)

    def _token(self, answer: Any) -> tuple[str, float]:
        found = answer.get("username_and_password") if isinstance(answer, dict) else None
        login = found if isinstance(found, dict) else {}
        token = login.get("token")
        if not isinstance(token, str) or not token or not token.isprintable() or not token.isascii():
            raise Transient(f"POST {self._path}: the login gave no token that can be used")
        life = self.api.token_life.total_seconds()
        end = _moment(login.get("expires"), self._clock.now())
        if end is not None:
            told = (end - self._clock.now()).total_seconds()
            life = told if told > 0 else life
        return token, life


def _selection(updated_field: str | None) -> str:
    """What is asked for of an item."""
    item, diamond = _ITEM, _DIAMOND
    if updated_field is not None:
        below, _, name = updated_field.rpartition(".")
        item, diamond = (item, f"{diamond} {name}") if below else (f"{item} {name}", diamond)
    return f"{item} diamond{{{diamond} certificate{{{_CERTIFICATE}}}}}"


def _identity(updated_field: str | None) -> Callable[[msgspec.Raw], Item]:
    """The function from an item's JSON to an Item. Of the document only these fields are read."""
    below, _, name = (updated_field or "").rpartition(".")
    plain: list[Any] = [("id", Any, None)]
    timed = [*plain, ("time", Any, None)] if name else plain
    rename = {"time": name}
    stone = msgspec.defstruct("Stone", timed if below else plain, rename=rename if below else None, gc=False)
    fields = [*(plain if below else timed), ("diamond", stone | None, None)]
    item_type = msgspec.defstruct("Identity", fields, rename=rename if name and not below else None, gc=False)
    decode: Callable[[str], Any] = msgspec.json.Decoder(item_type).decode

    def identify(raw: msgspec.Raw) -> Item:
        payload = str(raw, "utf-8")
        try:
            item = decode(payload)
        except msgspec.MsgspecError:
            return Item(payload, None, None, None)
        diamond = item.diamond
        offer, stone_id = item.id, None if diamond is None else diamond.id
        source = diamond if below else item
        return Item(
            payload,
            offer if type(offer) is str and offer else None,
            stone_id if type(stone_id) is str and stone_id else None,
            _moment(source.time) if name and source is not None else None,
        )

    return identify


def _moment(value: Any, now: datetime | None = None) -> datetime | None:
    """An instant, in whatever form; a small number counts from `now`. None for what is none."""
    try:
        if isinstance(value, str):
            return parse_instant(value)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        if value > _MILLISECONDS:
            return EPOCH + timedelta(milliseconds=value)
        if value > _SECONDS:
            return EPOCH + timedelta(seconds=value)
        return None if now is None else now + timedelta(seconds=value)
    except (ValueError, OverflowError):
        return None

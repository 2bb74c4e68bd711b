"""Shopify's side of `connectors.shopify`: tokens, reads, mutations and bulk queries, in one ASGI application.

Time is the clock's: tokens expire and the bucket fills with it. Trouble is asked for: `faults` for the next calls of an
operation, `every` for each so-many-th, `chances` for a share of them. What happened is in `admin.journal`. On a socket
use `server.serving`, in process an ASGI transport, and for a process of its own see `shopify_process`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.model.clock import Clock, Rng
from penstock.simulators.asgi import respond
from penstock.simulators.faults import Refused, Troubles
from penstock.simulators.graphql import BadDocument
from penstock.simulators.lean import Headers
from penstock.simulators.shopify_admin import RESULT_PATH, Admin, Call
from penstock.simulators.shopify_data import Bucket, Store
from penstock.simulators.shopify_documents import plan
from penstock.simulators.shopify_faults import LOST, Fault, errors
from penstock.simulators.shopify_journal import Entry, Throttle

TOKEN_PATH = "/admin/oauth/access_token"  # noqa: S105 - a path
MOST_POINTS = 1_000
OPERATIONS = ("token", "shop", "page", "read", "update", "bulk", "bulk_status", "download")

_PATH = re.compile(r"/admin/api/([0-9]{4}-[0-9]{2})/graphql\.json")
_JSON = (b"content-type", b"application/json; charset=utf-8")
_REST_CALLS = 40
_INVALID_LOGIN = "[API] Invalid API key or access token (unrecognized login or wrong password)"
_TOO_OFTEN = "Exceeded 2 calls per second for api client. Reduce request rates to resume uninterrupted service."
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


@dataclass(slots=True)
class ShopifySimulator(Troubles[Fault]):
    """An ASGI application with a memory. `store` may be any; a hundred products of four variants by default.

    `throttle_status` is under which status it throttles, 200 or 429, and `retry_after` the header of a 429. With
    `calls_per_second` the limit of the REST API holds too, a burst of 40 and so many a second, and its header is sent.
    `served_version` is the version that answers name; None: the one that was asked for. `edits` is the share of calls
    after which somebody else changes a price.
    """

    clock: Clock
    store: Store | None = None
    bucket: Bucket | None = None
    seed: int = 7
    client_id: str = "simulated-client"
    client_secret: str = "simulated-client-secret"  # noqa: S105 - opens nothing
    admin_token: str = "shpat_simulated_admin_token"  # noqa: S105 - opens nothing
    token_life: timedelta = timedelta(hours=24)
    throttle_status: int = 200
    retry_after: str | None = "1.0"
    calls_per_second: float | None = None
    served_version: str | None = None
    latency: float = 0.0
    edits: float = 0.0
    chances: dict[str, tuple[float, Fault]] = field(default_factory=dict)
    admin: Admin = field(init=False)
    points: Bucket = field(init=False)
    _rng: Rng = field(init=False)
    _tokens: dict[str, datetime | None] = field(default_factory=dict)
    _issued: int = 0
    _rest: Bucket | None = None
    _delay: float = 0.0

    def __post_init__(self) -> None:
        self._rng = Rng(self.seed)
        self.admin = Admin(self.clock, self.store or Store(100, self.clock.now(), seed=self.seed), self._rng.child())
        self.points = self.bucket or Bucket(self.clock)
        self._tokens[self.admin_token] = None

    @property
    def journal(self) -> list[Entry]:
        """What happened, in order."""
        return self.admin.journal

    def expire_tokens(self) -> None:
        """Every token that was given in exchange is refused from now on."""
        self._tokens = {token: ends for token, ends in self._tokens.items() if ends is None}

    def revoke_admin_token(self) -> None:
        """The admin token is refused from now on."""
        del self._tokens[self.admin_token]

    def delay(self) -> float:
        """After how many seconds the latest answer is to be sent."""
        return self.latency + self._delay

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await respond(self.answer, self.delay, scope, receive, send)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Headers, bytes]:
        """Status, headers and body. Raises ConnectionAbortedError where a fault asks for it."""
        self._delay, status = 0.0, 200
        extra: Headers = ()
        try:
            known = _PATH.fullmatch(path) if method == "POST" else None
            if known is not None:
                extra = ((b"x-shopify-api-version", (self.served_version or known[1]).encode()),)
                if self.calls_per_second is not None:
                    extra = (*extra, (b"x-shopify-shop-api-call-limit", self._count_call(self.calls_per_second)))
                content = _encode(self._graphql(headers, body))
            elif (method, path) == ("POST", TOKEN_PATH):
                content = _encode(self._token(headers, body))
            elif method == "GET" and path.startswith(RESULT_PATH):
                content = self._result(path)
            else:
                raise Refused(Fault(404, {"errors": "Not Found"}))  # noqa: TRY301
        except Refused as refused:
            fault = refused.answered()
            content = fault.body if isinstance(fault.body, bytes) else _encode(fault.body)
            status = fault.status or 200
            extra = (*extra, *((name.encode(), value.encode()) for name, value in fault.headers))
        return status, (_JSON, (b"content-length", b"%d" % len(content)), *extra), content

    def _graphql(self, headers: Mapping[str, str], body: bytes) -> Any:
        who = headers.get("x-shopify-access-token", "")
        ends = self._tokens.get(who, self.clock.now())
        if ends is not None and ends <= self.clock.now():
            raise Refused(Fault(401, {"errors": _INVALID_LOGIN}))
        try:
            asked = _decode(body)
            wanted, variables = plan(asked["query"]), asked.get("variables") or {}
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError):
            raise Refused(Fault(400, {"errors": {"query": "Required parameter missing or invalid"}})) from None
        except BadDocument as error:
            raise Refused(errors(str(error), "undefinedField")) from None
        fault = self._trouble(wanted.operation)
        self._fail(fault, carried_out=False)
        requested = self.admin.price_of(wanted, variables)
        self._charge(who, requested)
        lost = fault is not None and fault.carried_out
        host = headers.get("host", "shopify.sim")
        data, actual = self.admin.carry_out(Call(wanted, variables, who, requested, host, lost))
        self.points.give_back(requested - actual)
        if self.edits and self._rng.uniform(0, 1) < self.edits:
            self.admin.edit_any()
        self._fail(fault, carried_out=True)
        return {"data": {wanted.field.name: data}, "extensions": {"cost": self._cost(requested, actual)}}

    def _trouble(self, operation: str) -> Fault | None:
        """The fault that was asked for, if this call is to have one."""
        asked = self.trouble(operation)
        if asked is not None:
            return asked
        share, fault = self.chances.get(operation, (0.0, LOST))
        return fault if share and self._rng.uniform(0, 1) < share else None

    def _fail(self, fault: Fault | None, *, carried_out: bool) -> None:
        """Raise the fault, where its moment has come."""
        if fault is None or fault.carried_out != carried_out:
            return
        self._delay = fault.seconds
        if fault.status is not None or fault.cut:
            raise Refused(fault)

    def _charge(self, who: str, requested: float) -> None:
        if requested > MOST_POINTS:
            text = f"Query cost is {requested:g}, which exceeds the single query max cost limit ({MOST_POINTS})."
            raise Refused(errors(text, "MAX_COST_EXCEEDED"))
        if self.points.take(requested):
            return
        available = round(self.points.available, 2)
        self.counted["throttled"] += 1
        self.journal.append(Throttle(len(self.journal), self.clock.elapsed(), who, requested, available))
        body = {
            "errors": [{"message": "Throttled", "extensions": {"code": "THROTTLED"}}],
            "extensions": {"cost": self._cost(requested, None)},
        }
        told = self.throttle_status != 200 and self.retry_after is not None  # noqa: PLR2004 - HTTP's own
        raise Refused(Fault(self.throttle_status, body, (("retry-after", str(self.retry_after)),) if told else ()))

    def _cost(self, requested: float, actual: float | None) -> dict[str, Any]:
        status = {
            "maximumAvailable": self.points.maximum,
            "currentlyAvailable": round(self.points.available, 2),
            "restoreRate": self.points.rate,
        }
        return {"requestedQueryCost": requested, "actualQueryCost": actual, "throttleStatus": status}

    def _count_call(self, rate: float) -> bytes:
        """The header of the REST API's limit."""
        if self._rest is None:
            self._rest = Bucket(self.clock, _REST_CALLS, rate)
        if not self._rest.take(1):
            self.counted["throttled"] += 1
            headers = (("retry-after", "2.0"), ("x-shopify-shop-api-call-limit", f"{_REST_CALLS}/{_REST_CALLS}"))
            raise Refused(Fault(429, {"errors": _TOO_OFTEN}, headers))
        return b"%d/%d" % (math.ceil(_REST_CALLS - self._rest.available), _REST_CALLS)

    def _token(self, headers: Mapping[str, str], body: bytes) -> Any:
        self._fail(self._trouble("token"), carried_out=False)
        try:
            form = {name: values[0] for name, values in parse_qs(body.decode()).items()}
            given = _decode(body) if "json" in headers.get("content-type", "") else form
            asked = tuple(given.get(name) for name in ("grant_type", "client_id", "client_secret"))
        except (ValueError, AttributeError):
            asked = ()
        if asked[:1] != ("client_credentials",):
            raise Refused(Fault(400, {"error": "invalid_request"}))
        if asked[1:] != (self.client_id, self.client_secret):
            raise Refused(Fault(401, {"error": "invalid_client"}))
        self._issued += 1
        token = f"shpat_simulated_{self._issued:06}"
        self._tokens[token] = self.clock.now() + self.token_life
        life = max(1, int(self.token_life.total_seconds()) - 1)
        return {"access_token": token, "scope": "read_products,write_products", "expires_in": life}

    def _result(self, path: str) -> bytes:
        self._fail(self._trouble("download"), carried_out=False)
        found = self.admin.result(path)
        if found is None:
            raise Refused(Fault(403, b"<Error><Code>AccessDenied</Code></Error>"))
        return found


if __name__ == "__main__":
    from penstock.simulators.shopify_process import main

    main()

"""Any JSON API that the configuration describes, as a client of recurring searches.

A `RestJson` speaks for one account. It retries nothing, but for one renewal of a login that the API refuses. What an
answer says leads nowhere but to the API itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from penstock.connectors.http.client import Http, Response
from penstock.connectors.http.exchange import Transport
from penstock.connectors.rest_json.answers import document, records_of
from penstock.connectors.rest_json.asking import Asking
from penstock.connectors.rest_json.login import Headers, login_of
from penstock.connectors.rest_json.mapping import Mapper
from penstock.connectors.rest_json.paging import Reply, style_of
from penstock.connectors.rest_json.paths import getter
from penstock.connectors.rest_json.settings import RestSettings
from penstock.connectors.rest_json.slices import slicer
from penstock.connectors.searches import PAGE_PATIENCE, Batch, Parameters, Wanted
from penstock.model.clock import EPOCH, Clock
from penstock.model.errors import Rejected, StepError, Throttled

_EMPTY, _UNAUTHORIZED, _FORBIDDEN, _MISSING = 204, 401, 403, 404
_ERA = 10**9
"""A smaller number is no instant of our days, but a span of seconds."""


class RestJson:
    """One API. `transport` replaces the network."""

    def __init__(self, settings: RestSettings, clock: Clock, transport: Transport | None = None) -> None:
        parts = urlsplit(settings.url)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        self.columns = settings.columns
        self.newest_first = settings.order == "newest_first"
        self._style = style_of(settings.paging)
        self.by_place, self.overlaps = self._style.by_place, self._style.overlaps
        self._settings = settings
        self._clock = clock
        self._asking = Asking(settings, parts.path)
        self._mapper = Mapper(settings)
        self._records, self._total = getter(settings.records), getter(settings.total)
        self._slices = slicer(settings.records)
        self._login = login_of(settings.auth, clock, transport)
        headers = {"Accept": "application/json"} | settings.headers
        self._http = Http(self.origin, clock, headers=_distinct(headers), transport=transport)

    @property
    def calls(self) -> int:
        return self._http.calls + self._login.calls

    async def page(self, parameters: Parameters, wanted: Wanted) -> Batch:
        """One page. Raises Throttled, Transient, Rejected or Fatal."""
        return await self._style.page(self, parameters, wanted)

    async def close(self) -> None:
        """Close the connections."""
        await self._login.close()
        await self._http.close()

    def since(self, wanted: Wanted) -> str | None:
        """What the API is told of the date from which on records are wanted."""
        return self._asking.since(wanted.since)

    async def ask(self, parameters: Parameters, since: str | None, paging: Mapping[str, str], *, end_ok: bool) -> Reply:
        """One page. With `end_ok` a 404 is an empty one: the list has ended before it."""
        target = self._asking.target(parameters, since, paging)
        return await self._reply(target, target, end_ok=end_ok)

    async def follow(self, target: str) -> Reply:
        """One page by its path and parameters; errors show the path alone, for a link may hold a key."""
        if not target.startswith("/"):
            raise Rejected(
                "the token of the next page is not one of this client's; the list is read from its beginning"
            )
        return await self._reply(target, target.partition("?")[0], end_ok=False)

    async def _reply(self, target: str, shown: str, *, end_ok: bool) -> Reply:
        call = f"GET {target.partition('?')[0]}"
        response = await self._response(target, shown)
        if response.status_code == _EMPTY or (end_ok and response.status_code == _MISSING):
            return Reply((), None, None, response, target, call)
        if not response.is_success:
            raise self._refusal(f"GET {shown}", response)
        whole = document(call, response)
        found = records_of(call, self._records(whole), self._settings.records, whole)
        total = _count(self._total(whole)) if self._settings.total is not None else None
        items = self._mapper.items(found, self._slices(response.content))
        return Reply(items, total, whole, response, target, call)

    async def _response(self, target: str, shown: str) -> Response:
        """The answer; a login that is refused is renewed once."""
        headers = await self._login.headers()
        response = await self._get(target, shown, headers)
        if response.status_code == _UNAUTHORIZED:
            renewed = await self._login.headers(instead_of=headers)
            if renewed is not None:
                response = await self._get(target, shown, renewed)
        return response

    async def _get(self, target: str, shown: str, headers: Headers | None) -> Response:
        answers = (_UNAUTHORIZED, _FORBIDDEN, _MISSING)
        return await self._http.call(
            "GET", target, headers=headers, answers=answers, patience=PAGE_PATIENCE, shown=shown
        )

    def _refusal(self, call: str, response: Response) -> StepError:
        """What it means. Some say by a 403 that too much was asked, and in a header when to ask again."""
        error = self._http.classify(call, response, repeatable=True)
        wait = self._http.retry_after(response)
        spent = response.headers.get("x-ratelimit-remaining", "").strip() == "0"
        if response.status_code != _FORBIDDEN or (wait is None and not spent):
            return error
        if wait is None:
            reset = response.headers.get("x-ratelimit-reset", "").strip()
            if reset.isascii() and reset.isdecimal() and _ERA <= int(reset[:12]) < 10 * _ERA:
                wait = max(0.0, int(reset) - (self._clock.now() - EPOCH).total_seconds())
        return Throttled(str(error), wait)


def _count(value: Any) -> int | None:
    if type(value) is str and value.isascii() and value.isdecimal() and len(value) < 19:  # noqa: PLR2004 - 64 bits
        value = int(value)
    return value if type(value) is int and value >= 0 else None


def _distinct(headers: Mapping[str, str]) -> dict[str, str]:
    """The last of those that differ in case alone."""
    return dict({name.lower(): (name, value) for name, value in headers.items()}.values())

"""Google Ads: queries in GAQL, answered in one stream (`searchStream`), over REST.

A `GoogleAds` speaks for one login, and so for every customer that the login reaches. It knows nothing of the ledger,
and retries nothing, but for one renewal of a token that Google refuses.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from urllib.parse import urlsplit

from penstock.connectors.google_ads.customer import customer_digits
from penstock.connectors.google_ads.endpoint import Endpoint
from penstock.connectors.google_ads.errors import Failure, meaning, read_body, read_error
from penstock.connectors.google_ads.stream import (
    ROW_LIMITS,
    BadAnswer,
    BrokenStream,
    Row,
    Splitter,
    inflated,
    rows,
)
from penstock.connectors.http.client import Http, Response, Streamed
from penstock.connectors.http.exchange import Patience, Transport
from penstock.connectors.oauth import Credentials, Login
from penstock.connectors.records import Limits
from penstock.model.clock import Clock
from penstock.model.errors import StepError, Transient, UsageError

DATE = "{date}"

_UNAUTHORIZED, _NOT_FOUND = 401, 404
_ERROR_BYTES = 1 << 16
_PATIENCE = Patience(silence=300.0, total=3_600.0)  # a large query is silent for minutes at first
_SELECT = re.compile(r"\s*SELECT\s+([a-z0-9_.,\s]+?)\s+FROM\s+[a-z_]+\b", re.IGNORECASE)
_FIELD = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)+")
_WHOLE = re.compile(r"-?[0-9]{1,19}")
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True, slots=True)
class Query:
    """A query of the configuration. `{date}` in it stands for a day; `fields` are the fields of a row and their types.

    Fields have the names that they have in a row, `metrics.costMicros`; one whose type is `whole` becomes a number.
    """

    name: str
    gaql: str
    schema_version: str
    fields: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not selected(self.gaql):
            raise UsageError(
                f"query {self.name} is not GAQL; write it like SELECT campaign.id FROM campaign WHERE segments.date ="
                f" '{DATE}'"
            )
        if re.search(r"[{}]", self.gaql.replace(DATE, "")):
            raise UsageError(f"query {self.name} has a brace; {DATE} is the only one that can be filled in")

    def text(self, day: date) -> str:
        """The query for one day."""
        if type(day) is not date:  # a datetime is a date too, and would be written with its time
            raise UsageError(f"query {self.name} needs a date without a time, not {day!r}")
        return self.gaql.replace(DATE, day.isoformat())


class GoogleAds:
    """The customers that a login reaches. `transport` replaces the network.

    `login_customer_id` is the manager through which they are reached, where there is one.
    """

    def __init__(
        self,
        credentials: Credentials,
        clock: Clock,
        *,
        endpoint: Endpoint | None = None,
        login_customer_id: str | None = None,
        limits: Limits = ROW_LIMITS,
        transport: Transport | None = None,
    ) -> None:
        self.endpoint = endpoint or Endpoint()
        self.client_id = credentials.client_id
        token = urlsplit(self.endpoint.token_url)
        self._limits = limits
        self._http = Http(self.endpoint.api_url, clock, transport=transport)
        self._token_http = Http(f"{token.scheme}://{token.netloc}", clock, transport=transport)
        self._login = Login(credentials, self._token_http, clock, token.path)
        self._headers = {"Accept-Encoding": "gzip"}
        if login_customer_id is not None:
            self._headers["login-customer-id"] = customer_digits(login_customer_id)

    async def search_stream(
        self, customer_id: str, query: str, fields: Mapping[str, str] | None = None
    ) -> AsyncGenerator[list[Row]]:
        """The rows of a query, some hundreds at a time: nested, in Google's names, fields that are not set left out.

        Numbers of 64 bits, which come as texts, become whole numbers where a selected field is known to be one, or
        where `fields` says that it is `whole`. Raises BrokenStream, BadAnswer, Throttled, Rejected, Fatal or Transient.
        """
        path = f"/{self.endpoint.version}/customers/{customer_digits(customer_id)}/googleAds:searchStream"
        wholes = whole_paths(query, fields or {})
        begun = False
        refused: str | None = None
        try:
            while True:
                token = await self._login.token(instead_of=refused)
                headers = self._headers | {"Authorization": f"Bearer {token}"}
                async with self._http.stream(
                    path, method="POST", json={"query": query}, headers=headers, patience=_PATIENCE
                ) as response:
                    if response.status_code == _UNAUTHORIZED and refused is None:
                        refused = token
                        continue
                    if not response.is_success:
                        raise await self._failure(f"POST {path}", response)
                    begun = True
                    async with contextlib.aclosing(self._rows(f"POST {path}", response)) as batches:
                        async for batch in batches:
                            yield _with_numbers(batch, wholes)
                return
        except (BrokenStream, BadAnswer) as error:
            raise type(error)(f"POST {path}: {error}") from error
        except Transient as error:
            if begun:
                raise BrokenStream(str(error)) from error
            raise

    async def close(self) -> None:
        """Close the connections."""
        self._login.close()
        await self._http.close()
        await self._token_http.close()

    async def _rows(self, call: str, response: Streamed) -> AsyncGenerator[list[Row]]:
        encoding = response.headers.get("content-encoding", "")
        splitter = Splitter(self._limits)
        async with (
            contextlib.aclosing(inflated(response.pieces(), encoding, self._limits)) as pieces,
            contextlib.aclosing(rows(pieces, splitter)) as batches,
        ):
            async for batch in batches:
                _check(call, splitter)
                yield batch
        _check(call, splitter)

    async def _failure(self, call: str, response: Streamed) -> StepError:
        """What an answer means that is no success; no more of it is read than an error takes."""
        encoding = response.headers.get("content-encoding", "")
        body = b""
        async with contextlib.aclosing(inflated(response.pieces(), encoding, self._limits)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) > _ERROR_BYTES:
                    break
        failure = read_body(body, response.status_code)
        if failure is not None or response.status_code == _NOT_FOUND:
            return meaning(call, failure or Failure(response.status_code), self._http.retry_after(response))
        short = Response(response.status_code, response.headers, body[:_ERROR_BYTES])
        return self._http.classify(call, short, repeatable=True)


def _check(call: str, splitter: Splitter) -> None:
    """Google may find out in the middle of an answer that it cannot go on, and says so in the last batch."""
    if "error" in splitter.told:
        raise meaning(call, read_error(splitter.told["error"], 500))


def selected(gaql: str) -> list[str]:
    """The fields that a query selects; none where it is not GAQL."""
    found = _SELECT.match(gaql)
    names = [name.strip().lower() for name in found[1].split(",")] if found else []
    return names if all(map(_FIELD.fullmatch, names)) else []


def wire_name(name: str) -> str:
    """A field of GAQL as it is called in a row: `metrics.cost_micros` is `metrics.costMicros`."""
    return re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)


def whole_paths(gaql: str, fields: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Where a row has numbers of 64 bits: what is selected and known to be one, and what `fields` calls whole."""
    known = [wire_name(name) for name in selected(gaql) if _is_int64(name)]
    said = [name for name, kind in fields.items() if kind.removesuffix("?") == "whole"]
    return [tuple(name.split(".")) for name in dict.fromkeys([*known, *said])]


def _is_int64(name: str) -> bool:
    """Ids, amounts in millionths, and whatever metric comes as a text of digits: the others are numbers already."""
    last = name.rpartition(".")[2]
    return name.startswith("metrics.") or last in ("id", "criterion_id") or last.endswith("_micros")


def _with_numbers(batch: list[Row], wholes: list[tuple[str, ...]]) -> list[Row]:
    """The same rows, their numbers numbers. A text that is none stays as it is, for a validator to see."""
    for row in batch:
        for path in wholes:
            place: Any = row
            for part in path[:-1]:
                place = place.get(part) if isinstance(place, dict) else None
            value = place.get(path[-1]) if isinstance(place, dict) else None
            if isinstance(value, str) and _WHOLE.fullmatch(value) and (number := int(value)) in _INT64:
                place[path[-1]] = number
    return batch

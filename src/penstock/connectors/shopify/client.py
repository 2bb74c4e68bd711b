"""Shopify: the prices of one store, over version 2026-10 of its GraphQL Admin API.

A `Shopify` speaks for one store. It knows nothing of the ledger, and retries nothing, but for one renewal of a token
that Shopify refuses. Each answer says what it cost, so that the caller can keep below the store's limit.

Written are the base price and `compareAtPrice`; prices of markets and of price lists are not touched.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeVar

import msgspec

from penstock.connectors.graphql import Unauthenticated
from penstock.connectors.http.client import Http, Response
from penstock.connectors.http.download import Allowed, Downloads
from penstock.connectors.http.exchange import Transport
from penstock.connectors.prices import FREE, CataloguePage, Cost, Item, Refusal, Shop, Variant, VariantPrice, is_price
from penstock.connectors.shopify import errors, wire
from penstock.connectors.shopify.login import AdminToken, AppLogin, ClientCredentials, Login
from penstock.connectors.shopify.wire import CATALOGUE, PRICES, Answer, BadAnswer
from penstock.model.clock import Clock
from penstock.model.errors import InDoubt, Rejected, Transient, UsageError
from penstock.settings.redaction import redact
from penstock.settings.secret import Secret

__all__ = ["CATALOGUE", "PRICES", "BulkStatus", "ClientCredentials", "Shopify", "page_cost", "read_cost", "write_cost"]

VERSION = "2026-10"
MOST_VARIANTS = 250
"""How many variants one call reads or changes."""
MOST_ITEMS = 200
"""The largest page of the catalogue: one query may cost 1,000 points."""
RESULTS = Allowed(("storage.googleapis.com",))
"""Where the results of bulk queries may come from."""
BULK_COST = 10.0

_ALL = range(300, 600)
"""Statuses that are judged here: what they mean depends on whether something was written."""
_REFUSALS = (400, 422)
"""Statuses under which errors say why a call was not carried out, if they are errors of GraphQL."""
_SENT = {"Content-Type": "application/json", "Accept": "application/json"}
_PRODUCT_GONE = frozenset({"PRODUCT_DOES_NOT_EXIST", "PRODUCT_SUSPENDED"})
_BUSY = frozenset({"OPERATION_IN_PROGRESS", "LIMIT_REACHED"})
_FAILED = frozenset({"FAILED", "CANCELED", "CANCELLED", "EXPIRED"})
_LONGEST_LINE = 1 << 20
_MOST_ROWS = 500

T = TypeVar("T")
R = TypeVar("R")
Decode = Callable[[bytes], Answer[T]]

_encode = msgspec.json.Encoder().encode
_shop: Decode[wire.ShopData] = msgspec.json.Decoder(Answer[wire.ShopData]).decode
_listing: Decode[wire.ListingData] = msgspec.json.Decoder(Answer[wire.ListingData]).decode
_nodes: Decode[wire.NodesData] = msgspec.json.Decoder(Answer[wire.NodesData]).decode
_updated: Decode[wire.UpdateData] = msgspec.json.Decoder(Answer[wire.UpdateData]).decode
_started: Decode[wire.StartedData] = msgspec.json.Decoder(Answer[wire.StartedData]).decode
_bulk: Decode[wire.BulkData] = msgspec.json.Decoder(Answer[wire.BulkData]).decode
_priced = msgspec.json.Decoder(wire.Priced).decode
_listed = msgspec.json.Decoder(wire.Listed).decode


def read_cost(variants: int) -> float:
    """What `variants` costs for so many ids, in points: one for each object."""
    return float(variants)


def page_cost(first: int) -> float:
    """What a page of the catalogue costs at most: a variant, its product, its stock item and its cost are objects."""
    return 4.0 * first


def write_cost(variants: int) -> float:
    """What `update` costs for so many variants."""
    return 10 + 0.2 * variants


@dataclass(frozen=True, slots=True)
class BulkStatus:
    """How far a bulk query is. `said` is Shopify's own word; a completed one without `url` found nothing."""

    bulk_id: str
    state: Literal["pending", "completed", "failed"]
    said: str
    url: str | None = None
    objects: int | None = None


class Shopify:
    """The prices of one store. `transport` replaces the network.

    `notice` says so when Shopify answers in another version of its API than the one that is asked for.
    """

    def __init__(
        self,
        shop_url: str,
        credentials: Secret | ClientCredentials,
        clock: Clock,
        *,
        downloads: Allowed = RESULTS,
        transport: Transport | None = None,
    ) -> None:
        self._path = f"/admin/api/{VERSION}/graphql.json"
        self._call = f"POST {self._path}"
        self._http = Http(shop_url, clock, transport=transport)
        self._downloads = Downloads(downloads, clock, transport=transport)
        self._login: Login = (
            AdminToken(credentials) if isinstance(credentials, Secret) else AppLogin(credentials, self._http, clock)
        )
        self.notice: str | None = None

    async def shop(self) -> Shop:
        """Whose store it is, and its currency. Raises Throttled, Fatal or Transient."""
        data, cost = await self._ask(_shop, wire.SHOP_QUERY, {}, 1.0)
        if data.shop is None or not data.shop.currency_code:
            raise Transient(f"{self._call}: the answer names no store")
        return Shop(data.shop.currency_code, data.shop.name, cost)

    async def catalogue_page(self, after: str | None, first: int) -> CataloguePage:
        """The variants after that place, `first` of them at most, in the order of their ids.

        Raises Throttled, Fatal or Transient.
        """
        if not 1 <= first <= MOST_ITEMS:
            raise UsageError(f"a page of {first} variants cannot be asked for; it has 1 to {MOST_ITEMS}")
        data, cost = await self._ask(_listing, wire.PAGE_QUERY, {"n": first, "a": after}, page_cost(first))
        found = data.listing
        if found is None:
            raise Transient(f"{self._call}: the answer has no variants")
        items = self._read(lambda: [one.item() for one in found.nodes])
        if not found.page_info.has_next_page:
            return CataloguePage(items, None, cost)
        end = found.page_info.end_cursor
        if not end or end == after:
            raise Transient(f"{self._call}: the answer does not say where the next page begins")
        return CataloguePage(items, end, cost)

    async def variants(self, ids: Sequence[str]) -> tuple[dict[str, Variant], Cost]:
        """What those variants cost now; those that do not exist are left out. Raises Throttled, Fatal or Transient."""
        if not 1 <= len(ids) <= MOST_VARIANTS:
            raise UsageError(f"{len(ids)} variants cannot be read at once; 1 to {MOST_VARIANTS} can")
        asked = [one for one in dict.fromkeys(ids) if wire.is_number(one)]
        if not asked:
            return {}, FREE
        variables = {"i": [wire.VARIANT + one for one in asked]}
        data, cost = await self._ask(_nodes, wire.READ_QUERY, variables, read_cost(len(asked)))
        nodes = data.nodes
        if nodes is None or len(nodes) != len(asked):
            raise Transient(f"{self._call}: the answer does not have a place for each variant")
        found = self._read(lambda: [None if node is None else node.variant() for node in nodes])
        if any(one is not None and one.variant_id != wanted for wanted, one in zip(asked, found, strict=True)):
            raise Transient(f"{self._call}: the answer is about other variants than those that were asked for")
        return {one.variant_id: one for one in found if one is not None}, cost

    async def update(self, product_id: str, changes: Sequence[VariantPrice]) -> tuple[dict[str, Refusal | None], Cost]:
        """Set the prices of variants of one product, in one call: for each None where it was set, else why not.

        What Shopify would never take is refused here, and not sent. Raises Rejected where the product is gone, InDoubt
        where it is not known what was set, Throttled or Fatal where nothing was, and Transient where nothing was sent.
        """
        if not 1 <= len({change.variant_id for change in changes}) == len(changes) <= MOST_VARIANTS:
            raise UsageError(f"1 to {MOST_VARIANTS} different variants can be changed at once, not {len(changes)}")
        if not wire.is_number(product_id):
            raise Rejected(f"{product_id!r:.100} is not the id of a product; nothing was sent")
        outcome: dict[str, Refusal | None] = {change.variant_id: _unsendable(change) for change in changes}
        sent = [change for change in changes if outcome[change.variant_id] is None]
        if not sent:
            return outcome, FREE
        variables = {"p": wire.PRODUCT + product_id, "v": [_input(change) for change in sent]}
        data, cost = await self._ask(_updated, wire.UPDATE, variables, write_cost(len(sent)), writes=True)
        if data.updated is None:
            raise InDoubt(f"{self._call}: the answer does not say what was set")
        refused = self._refusals(data.updated, sent)
        self._check_set(data.updated, sent, refused)
        return outcome | refused, cost

    async def bulk_start(self, query: str) -> str:
        """Ask for a whole reading of the store, `PRICES` or `CATALOGUE`: its id.

        After Transient ask again: one that was started and not heard of ends by itself. Raises Throttled, Fatal,
        Rejected or Transient; also Transient while as many are under way as Shopify allows.
        """
        data, _ = await self._ask(_started, wire.BULK_START, {"q": query}, BULK_COST)
        started = data.started
        complaints = [] if started is None else started.user_errors or []
        if complaints:
            busy = any(str(one.code) in _BUSY for one in complaints)
            words = "; ".join(f"{one.code} {one.message}" for one in complaints)
            raise (Transient if busy else Rejected)(redact(f"{self._call}: bulk query: {words}")[:500])
        if started is None or (found := started.bulk_operation) is None:
            raise Transient(f"{self._call}: the answer names no bulk query")
        return self._read(lambda: wire.number(wire.BULK, found.id))

    async def bulk_status(self, bulk_id: str) -> BulkStatus:
        """How far it is. A word that is not known means: not done. Raises Throttled, Fatal or Transient."""
        data, _ = await self._ask(_bulk, wire.BULK_STATUS, {"i": wire.BULK + bulk_id}, 1.0)
        found = data.node
        if found is None:
            return BulkStatus(bulk_id, "failed", "Shopify does not know this bulk query")
        said = " ".join(filter(None, [found.status, found.error_code]))
        if found.status in _FAILED:
            return BulkStatus(bulk_id, "failed", said)
        if found.status != "COMPLETED":
            return BulkStatus(bulk_id, "pending", said)
        count = str(found.object_count)
        return BulkStatus(bulk_id, "completed", said, found.url, int(count) if wire.is_number(count) else None)

    def bulk_variants(self, status: BulkStatus) -> AsyncGenerator[list[Variant]]:
        """The result of `PRICES`, some hundreds at a time.

        Raises LinkExpired (ask for the status again), RefusedLink, TooLarge, or Transient where it breaks off.
        """
        return self._rows(status, lambda line: _priced(line).variant())

    def bulk_items(self, status: BulkStatus) -> AsyncGenerator[list[Item]]:
        """The result of `CATALOGUE`, in the same way."""
        return self._rows(status, lambda line: _listed(line).item())

    async def close(self) -> None:
        """Close the connections."""
        self._login.close()
        await self._http.close()
        await self._downloads.close()

    async def _ask(
        self, decode: Decode[T], document: str, variables: dict[str, Any], points: float, *, writes: bool = False
    ) -> tuple[T, Cost]:
        """The answer's data and what it cost; a token that is refused is renewed once."""
        body = _encode({"query": document, "variables": variables})
        token = await self._login.token()
        try:
            return await self._send(decode, body, token, points, writes=writes)
        except Unauthenticated:
            token = await self._login.token(instead_of=token)
            return await self._send(decode, body, token, points, writes=writes)

    async def _send(self, decode: Decode[T], body: bytes, token: str, points: float, *, writes: bool) -> tuple[T, Cost]:
        headers = {**_SENT, "X-Shopify-Access-Token": token}
        response = await self._http.call(
            "POST", self._path, content=body, headers=headers, answers=_ALL, repeatable=not writes
        )
        asked = self._http.retry_after(response)
        try:
            answer = decode(response.content)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            if not response.is_success:
                raise errors.of_status(self._call, response, Cost(points), asked, writes=writes) from error
            raise errors.unanswered(f"{self._call}: the answer cannot be read: {error}", writes=writes) from error
        cost = errors.read(answer.extensions, points)
        if response.is_success:
            self._look_at_version(response)
        elif response.status_code not in _REFUSALS or not answer.errors:
            raise errors.of_status(self._call, response, cost, asked, writes=writes)
        if answer.errors:
            fate = _fate(answer.data, refused=not response.is_success)
            raise errors.of_errors(self._call, answer.errors, cost, asked, fate, writes=writes)
        if answer.data is None:
            raise errors.unanswered(f"{self._call}: the answer has no data", writes=writes)
        return answer.data, cost

    def _look_at_version(self, response: Response) -> None:
        served = response.headers.get("x-shopify-api-version", VERSION)
        if served == VERSION:
            self.notice = None
        else:
            self.notice = f"Shopify answers in version {served[:20]} of its API, and {VERSION} was asked for"

    def _refusals(self, updated: wire.Updated, sent: Sequence[VariantPrice]) -> dict[str, Refusal]:
        """What Shopify has against which variant; what is against no certain one is against all."""
        refused: dict[str, Refusal] = {}
        for complaint in updated.user_errors or ():
            code, message = str(complaint.code or "UNKNOWN")[:100], redact(str(complaint.message))[:300]
            if code in _PRODUCT_GONE:
                raise Rejected(f"{self._call}: {code} {message}")
            place = complaint.place(len(sent))
            for change in sent if place is None else (sent[place],):
                refused.setdefault(change.variant_id, Refusal(code, message))
        return refused

    def _check_set(self, updated: wire.Updated, sent: Sequence[VariantPrice], refused: dict[str, Refusal]) -> None:
        """Each variant was refused or has what was wanted. Raises InDoubt where the answer leaves it open."""
        try:
            now = {one.variant_id: one for one in map(wire.Priced.variant, updated.product_variants or ())}
        except BadAnswer as error:
            raise InDoubt(f"{self._call}: the answer cannot be read: {error}") from error
        for change in sent:
            # Refused, and yet it has what was wanted: one of the two is not true.
            if _has(now.get(change.variant_id), change) == (change.variant_id in refused):
                raise InDoubt(f"{self._call}: the answer leaves open whether {change.variant_id} was changed")

    def _read(self, work: Callable[[], R]) -> R:
        try:
            return work()
        except BadAnswer as error:
            raise Transient(f"{self._call}: the answer cannot be read: {error}") from error

    async def _rows(self, status: BulkStatus, row: Callable[[bytes], R]) -> AsyncGenerator[list[R]]:
        if status.state != "completed":
            raise UsageError(f"bulk query {status.bulk_id} has no result: it is {status.said}")
        if status.url is None:
            return
        lines, batch, count = wire.Lines(_LONGEST_LINE), list[R](), 0
        try:
            async with aclosing(self._downloads.get(status.url)) as pieces:
                async for piece in pieces:
                    batch.extend(map(row, lines.feed(piece)))
                    if len(batch) >= _MOST_ROWS:
                        count += len(batch)
                        yield batch
                        batch = []
            batch.extend(map(row, lines.close()))
        except (BadAnswer, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Transient(f"bulk query {status.bulk_id}: line {count + len(batch) + 1} cannot be read") from error
        count += len(batch)
        if batch:
            yield batch
        if status.objects is not None and status.objects != count:
            raise Transient(f"bulk query {status.bulk_id}: {count:,} lines of {status.objects:,}")


def _fate(data: Any, *, refused: bool) -> errors.Fate:
    """What the rest of an answer with errors says of the call: a field with something in it was carried out."""
    if data is not None and data != type(data)():
        return "carried out"
    return "refused" if refused else "unknown"


def _unsendable(change: VariantPrice) -> Refusal | None:
    if not wire.is_number(change.variant_id):
        return Refusal("INVALID_ID", f"{change.variant_id!r:.100} is not the id of a variant; nothing was sent")
    for text in (change.price, change.compare_at_price):
        if text is not None and not is_price(text):
            return Refusal("INVALID_PRICE", f"{text!r:.100} is not a price; nothing was sent")
    return None


def _input(change: VariantPrice) -> dict[str, str | None]:
    return {
        "id": wire.VARIANT + change.variant_id,
        "price": change.price,
        "compareAtPrice": change.compare_at_price,
    }


def _has(found: Variant | None, wanted: VariantPrice) -> bool:
    if found is None or not _same(found.price, wanted.price):
        return False
    return _same(found.compare_at_price, wanted.compare_at_price)


def _same(one: str | None, other: str | None) -> bool:
    return one == other or (one is not None and other is not None and Decimal(one) == Decimal(other))

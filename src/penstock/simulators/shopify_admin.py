"""What Shopify's simulator does when a call is let in: reads, mutations, bulk queries, and edits by somebody else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import msgspec

from penstock.model.clock import Clock, Rng
from penstock.simulators.faults import Refused
from penstock.simulators.graphql import BadDocument
from penstock.simulators.shopify_data import Store, Variant
from penstock.simulators.shopify_documents import BULK, CURRENCY, PRODUCT, VARIANT, Plan, plan
from penstock.simulators.shopify_faults import errors
from penstock.simulators.shopify_journal import ALL, OTHER, Entry, Mutation, Prices, Read, Write

MOST_INPUT = 250
RESULT_PATH = "/bulk/"

_PRICE = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?")
_TWO_PLACES = re.compile(r"[0-9]{1,20}\.[0-9]{2}")
_SIGNATURE = ".jsonl?Signature=simulated"
_encode = msgspec.json.Encoder().encode

Complaint = tuple[list[str], str, str]
"""What is wrong with one variant of a mutation: where, the code, and the words."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that was let in. `lost` says that its answer will be; `host` is how the simulator is called."""

    plan: Plan
    variables: Mapping[str, Any]
    who: str
    requested: float
    host: str
    lost: bool

    def argument(self, name: str) -> Any:
        return self.plan.field.argument(name, self.variables)


@dataclass(slots=True)
class _Bulk:
    plan: Plan
    ready_at: float
    fails: bool
    lines: list[bytes] | None = None


@dataclass(slots=True)
class Admin:
    """The store behind the API, and the journal of what happened to it.

    `refusals` are variants that are never changed, with the code and the words of the error; `refuses` is the share of
    changes that are refused by chance. A bulk query takes `bulk_seconds`, the next `bulk_failures` of them fail, and
    `bulk_limit` may be under way at once.
    """

    clock: Clock
    store: Store
    rng: Rng
    refusals: dict[str, tuple[str, str]] = field(default_factory=dict)
    refuses: float = 0.0
    bulk_seconds: float = 0.0
    bulk_failures: int = 0
    bulk_limit: int = 5
    journal: list[Entry] = field(default_factory=list)
    _bulks: dict[str, _Bulk] = field(default_factory=dict)

    def edit(self, variant_id: str, price: str, compare_at: str | None = None) -> None:
        """Somebody else changes a price."""
        self._write(self.store.variants[variant_id], (price, compare_at), OTHER)

    def edit_any(self, number: int = 1) -> None:
        """Somebody else changes so many prices, by chance."""
        for _ in range(number):
            variant = self.store.any_variant(self.rng)
            self.edit(variant.id, f"{int(self.rng.uniform(301, 999))}.17", variant.compare_at)

    def price_of(self, asked: Plan, variables: Mapping[str, Any]) -> float:
        """What a call may cost at most, in points."""
        if asked.operation == "update":
            return 10 + 0.2 * _size(asked, "variants", variables)
        if asked.operation == "read":
            return float(asked.each * _size(asked, "ids", variables))
        if asked.operation == "page":
            return float(asked.each * (asked.field.argument("first", variables) or 0))
        return 10.0 if asked.operation == "bulk" else 1.0

    def carry_out(self, call: Call) -> tuple[Any, float]:
        """The data of the answer, and what the call cost."""
        data, actual = getattr(self, f"_{call.plan.operation}")(call)
        return data, actual

    def result(self, path: str) -> bytes | None:
        """The file of a bulk query; None where the link opens nothing."""
        bulk = self._bulks.get(path.removeprefix(RESULT_PATH).partition(_SIGNATURE)[0])
        return None if bulk is None or bulk.lines is None else b"".join(bulk.lines)

    def _shop(self, _: Call) -> tuple[Any, float]:
        return {"name": "Simulated store", "currencyCode": CURRENCY}, 1.0

    def _read(self, call: Call) -> tuple[Any, float]:
        ids = tuple(_number(VARIANT, gid) for gid in call.argument("ids"))
        nodes = [self.store.variants.get(one) for one in ids]
        actual = call.requested - call.plan.each * nodes.count(None)
        self.journal.append(Read(len(self.journal), self.clock.elapsed(), call.who, ids, actual))
        return [None if node is None else call.plan.write(node) for node in nodes], actual

    def _page(self, call: Call) -> tuple[Any, float]:
        variants, more = self.store.page(call.argument("after"), call.argument("first"))
        actual = float(call.plan.each * len(variants))
        ids = tuple(variant.id for variant in variants)
        self.journal.append(Read(len(self.journal), self.clock.elapsed(), call.who, ids, actual))
        info = {"hasNextPage": more, "endCursor": ids[-1] if ids else None}
        return {"nodes": [call.plan.write(variant) for variant in variants], "pageInfo": info}, actual

    def _update(self, call: Call) -> tuple[Any, float]:
        product_id = _number(PRODUCT, call.argument("productId"))
        changes = call.argument("variants")
        ids = tuple(_number(VARIANT, change.get("id")) for change in changes)
        wanted = [_wanted(change) for change in changes]  # a value that is no price refuses all of it
        answer: Any = "lost" if call.lost else "given"
        self.journal.append(
            Mutation(len(self.journal), self.clock.elapsed(), call.who, product_id, ids, call.requested, answer)
        )
        if product_id not in self.store.products:
            gone = _error(["productId"], "Product does not exist", "PRODUCT_DOES_NOT_EXIST")
            return {"product": None, "productVariants": None, "userErrors": [gone]}, call.requested
        complaints = [self._complaint(product_id, one, change) for one, change in zip(ids, changes, strict=True)]
        said = [
            _error(["variants", str(place), *complaint[0]], complaint[2], complaint[1])
            for place, complaint in enumerate(complaints)
            if complaint is not None
        ]
        shown = []
        if not said or call.argument("allowPartialUpdates"):
            for one, prices, complaint in zip(ids, wanted, complaints, strict=True):
                if complaint is None:
                    variant = self.store.variants[one]
                    after = prices.get("price", variant.price), prices.get("compareAtPrice", variant.compare_at)
                    self._write(variant, after, call.who)
                    shown.append(call.plan.write(variant))
        product = {"id": PRODUCT + product_id}
        return {"product": product, "productVariants": shown, "userErrors": said}, call.requested

    def _complaint(self, product_id: str, variant_id: str, change: Mapping[str, Any]) -> Complaint | None:
        variant = self.store.variants.get(variant_id)
        if variant is None:
            return ["id"], "PRODUCT_VARIANT_DOES_NOT_EXIST", "Product variant does not exist"
        if variant.product.id != product_id:
            return ["id"], "MUST_BE_FOR_THIS_PRODUCT", "Product variant must be for this product"
        for name in ("price", "compareAtPrice"):
            if str(change.get(name)).startswith("-"):
                return [name], "NEGATIVE_PRICE_VALUE", "Price must be greater than or equal to 0"
        if variant_id in self.refusals:
            return ["price"], *self.refusals[variant_id]
        if self.refuses and self.rng.uniform(0, 1) < self.refuses:
            return ["price"], "INVALID_INPUT", "Price is invalid"
        return None

    def _write(self, variant: Variant, after: Prices, who: str) -> None:
        number, at = len(self.journal), self.clock.elapsed()
        self.journal.append(Write(number, at, who, variant.product.id, variant.id, variant.prices, after))
        variant.price, variant.compare_at = after
        variant.updated = self.clock.now()

    def _bulk(self, call: Call) -> tuple[Any, float]:
        now = self.clock.elapsed()
        try:
            asked = plan(call.argument("query") or "")
        except BadDocument as error:
            return {"bulkOperation": None, "userErrors": [_error(["query"], str(error), "INVALID")]}, 10.0
        if sum(bulk.ready_at > now for bulk in self._bulks.values()) >= self.bulk_limit:
            words = "A bulk query operation for this app and shop is already in progress"
            return {"bulkOperation": None, "userErrors": [_error(None, words, "OPERATION_IN_PROGRESS")]}, 10.0
        bulk_id = str(len(self._bulks) + 1)
        self._bulks[bulk_id] = _Bulk(asked, now + self.bulk_seconds, self.bulk_failures > 0)
        self.bulk_failures = max(0, self.bulk_failures - 1)
        return {"bulkOperation": {"id": BULK + bulk_id, "status": "CREATED"}, "userErrors": []}, 10.0

    def _bulk_status(self, call: Call) -> tuple[Any, float]:
        gid = call.argument("id")
        bulk_id = _number(BULK, gid)
        bulk = self._bulks.get(bulk_id)
        if bulk is None:
            return None, 1.0
        told: dict[str, Any] = {"id": gid, "status": "RUNNING", "errorCode": None, "objectCount": "0", "url": None}
        if bulk.ready_at > self.clock.elapsed():
            return told, 1.0
        if bulk.fails:
            return {**told, "status": "FAILED", "errorCode": "INTERNAL_SERVER_ERROR"}, 1.0
        if bulk.lines is None:
            bulk.lines = [_encode(bulk.plan.write(variant)) + b"\n" for variant in self.store]
            self.journal.append(Read(len(self.journal), self.clock.elapsed(), call.who, (ALL,), 0.0))
        size = len(bulk.lines)
        url = f"http://{call.host}{RESULT_PATH}{bulk_id}{_SIGNATURE}" if size else None
        return {**told, "status": "COMPLETED", "objectCount": str(size), "url": url}, 1.0


def _number(kind: str, gid: Any) -> str:
    """The number in an address; what is none is found nowhere."""
    return gid.removeprefix(kind) if isinstance(gid, str) else ""


def _size(asked: Plan, name: str, variables: Mapping[str, Any]) -> int:
    given = asked.field.argument(name, variables)
    if not isinstance(given, list):
        raise Refused(errors(f"Variable of type [ID!]! was provided invalid value for {name}", "INVALID_VARIABLE"))
    if len(given) > MOST_INPUT:
        text = f"The input array size of {len(given)} is greater than the maximum allowed of {MOST_INPUT}."
        raise Refused(errors(text, "MAX_INPUT_SIZE_EXCEEDED"))
    return len(given)


def _wanted(change: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _money(name, change[name]) for name in ("price", "compareAtPrice") if name in change}


def _money(name: str, value: Any) -> str | None:
    """As Shopify writes it: with two decimals."""
    if value is None and name == "compareAtPrice":
        return None
    text = str(value)
    if _TWO_PLACES.fullmatch(text):
        return text
    if isinstance(value, bool) or not _PRICE.fullmatch(text):
        words = f"Variable $v was provided invalid value for 0.{name} (Could not coerce value {text[:40]!r} to Money)"
        raise Refused(errors(words, "INVALID_VARIABLE"))
    return str(Decimal(text).quantize(Decimal("0.01"), ROUND_HALF_UP))


def _error(where: list[str] | None, message: str, code: str) -> dict[str, Any]:
    return {"field": where, "message": message, "code": code}

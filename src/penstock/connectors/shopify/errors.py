"""What an answer of Shopify's that is no success means, and what it cost.

A read may be made again; a write whose answer is lost may have been carried out, and is in doubt. Only what Shopify
says it did not do is taken for not done: a throttle, a login that it refuses, a document or a value it does not take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from penstock.connectors.graphql import Unauthenticated
from penstock.connectors.http.client import Response
from penstock.connectors.prices import Cost
from penstock.model.errors import Fatal, InDoubt, Rejected, StepError, Throttled, Transient
from penstock.settings.redaction import redact

_UNAUTHORIZED, _THROTTLED = 401, 429
_REFUSED = (402, 403, 404, 423)
"""The store is frozen, the app may not, there is no such store, the store is locked."""
_NOT_ALLOWED = frozenset({"ACCESS_DENIED", "SHOP_INACTIVE", "UNAUTHORIZED", "FORBIDDEN"})
_NEVER = frozenset({"MAX_COST_EXCEEDED", "MAX_INPUT_SIZE_EXCEEDED", "INVALID_VARIABLE", "BAD_USER_INPUT"})
_BAD_DOCUMENT = frozenset(
    {"undefinedField", "undefinedType", "selectionMismatch", "argumentNotAccepted", "missingRequiredArguments"}
    | {"argumentLiteralsIncompatible", "variableMismatch", "missingRequiredInputObjectAttribute"}
    | {"GRAPHQL_PARSE_FAILED", "GRAPHQL_VALIDATION_FAILED"}
)
_MOST_POINTS = 1e12

Fate = Literal["unknown", "refused", "carried out"]
"""What an answer says of its call, whatever its errors say: not carried out, or carried out at least in part."""


class BucketEmpty(Throttled):
    """Throttled; `cost` is what Shopify said of the bucket."""

    cost: Cost | None = None


def read(extensions: Any, requested: float) -> Cost:
    """What a call cost; `requested` is what it was thought to cost, where Shopify does not say."""
    cost = _table(_table(extensions).get("cost"))
    status = _table(cost.get("throttleStatus"))
    said = _points(cost.get("requestedQueryCost"))
    return Cost(
        requested if said is None else said,
        _points(cost.get("actualQueryCost")),
        _points(status.get("currentlyAvailable")),
        _points(status.get("restoreRate")),
        _points(status.get("maximumAvailable")),
    )


def of_status(call: str, response: Response, cost: Cost, asked: float | None, *, writes: bool) -> StepError:
    """What an answer means that is no success by its status; `asked` is what `Retry-After` says."""
    status = response.status_code
    text = f"{call}: {status} {redact(response.text)[:200]}".rstrip()
    if status == _THROTTLED:
        return _throttled(text, cost, asked)
    if status == _UNAUTHORIZED:
        return Unauthenticated(text)
    if status in _REFUSED:
        return Fatal(f"{text}; check the store's address, and what its app may do")
    return unanswered(text, writes=writes)


def of_errors(call: str, errors: Any, cost: Cost, asked: float | None, fate: Fate, *, writes: bool) -> StepError:
    """What the `errors` of an answer mean."""
    found = [one if isinstance(one, Mapping) else {"message": one} for one in _listed(errors)]
    codes = {str(_table(one.get("extensions")).get("code", "")) for one in found} - {""}
    words = "; ".join(dict.fromkeys(str(one.get("message", "")) for one in found))
    shown = " ".join(filter(None, [", ".join(sorted(codes)), words]))
    text = redact(f"{call}: {shown or 'an error without words'}")[:500]
    if writes and fate == "carried out":
        return InDoubt(text)
    if "THROTTLED" in codes:
        return _throttled(text, cost, asked)
    if codes & _NOT_ALLOWED or codes & _BAD_DOCUMENT:
        return Fatal(text)
    if codes & _NEVER or fate == "refused":
        return Rejected(text)
    return unanswered(text, writes=writes)


def unanswered(text: str, *, writes: bool) -> StepError:
    """No answer, or none that says what became of the call."""
    return InDoubt(text) if writes else Transient(text)


def _throttled(text: str, cost: Cost, asked: float | None) -> BucketEmpty:
    wait = None
    if cost.available is not None and cost.restore_rate:
        wait = (cost.requested - cost.available) / cost.restore_rate
    # A bucket that holds enough is not what is short: then the header knows better, or nobody does.
    error = BucketEmpty(text, wait if wait is not None and wait > 0 else asked)
    error.cost = cost
    return error


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(errors: Any) -> list[Any]:
    return errors if isinstance(errors, list) else [errors]


def _points(value: Any) -> float | None:
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MOST_POINTS
    return float(value) if good else None

"""What InfoJobs is asked and what it answers: parameters, offers, totals, errors and its clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, urlencode

from msgspec import Struct

from penstock.connectors.http.client import Response
from penstock.connectors.offers import NotJson, bad, decode, instant_of, line_of, number, offer, text
from penstock.connectors.searches import Bad, Item, Parameters
from penstock.model.errors import Fatal, Rejected, StepError, Throttled, Transient
from penstock.model.inert import inert
from penstock.settings.redaction import redact

BUCKETS = {"_24_HOURS": timedelta(hours=24), "_7_DAYS": timedelta(days=7), "_15_DAYS": timedelta(days=15)}
"""What `sinceDate` can be, beside ANY: how far back a list goes."""
ANY = "ANY"
ORDER = "updated-desc"

_NOT_AUTHENTICATED = "101"
_UNAUTHORIZED, _FORBIDDEN, _TIMEOUT, _THROTTLED, _SERVER = 401, 403, 408, 429, 500
_SAID = 200


class Listed(Struct, frozen=True):
    """An answer: its offers, and its totals where they can be believed. `page` is counted from 1."""

    offers: list[Any]
    page: int | None = None
    size: int | None = None
    pages: int | None = None
    total: int | None = None


def query_text(parameters: Parameters, ours: Mapping[str, str]) -> str:
    """The part of the address after the question mark: values are sent as they are, lists as repeated parameters."""
    pairs = [(name, _sent(one)) for name, value in parameters.items() for one in _each(value)]
    return urlencode([*pairs, *ours.items()], quote_via=quote)


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _sent(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def bucket(age: timedelta) -> str:
    """The smallest that reaches back so far."""
    return next((name for name, reach in BUCKETS.items() if age <= reach), ANY)


def server_time(headers: Mapping[str, str]) -> datetime | None:
    """What the server's clock says, if it says so."""
    try:
        moment = parsedate_to_datetime(headers["date"])
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError):  # all that the parser raises
        return None


def read(call: str, response: Response, retry_after: float | None) -> Listed:
    """What an answer says. Raises a StepError for one that is an error, or cannot be read."""
    try:
        document = decode(response.content)
    except NotJson:
        document = None
    said = _error(document)
    if not response.is_success or said is not None:
        raise _meaning(call, response, document, said, retry_after)
    if isinstance(document, dict):
        for key in ("items", "offers"):
            if isinstance(document.get(key), list):
                return _listed(document, document[key])
    what = "is not JSON" if document is None else "has neither 'items' nor 'offers'"
    raise Transient(f"{call}: the answer {what}: {_short(response.text)}")


def _listed(document: Mapping[str, Any], offers: list[Any]) -> Listed:
    told = [document.get(name) for name in ("currentPage", "pageSize", "totalPages", "totalResults")]
    page, size, pages, total = (one if type(one) is int and one >= 0 else None for one in told)
    if total is not None and total < len(offers):
        pages = total = None  # nonsense
    return Listed(offers, page or None, size or None, pages if pages or not offers else None, total)


def _error(document: Any) -> str | None:
    """What an error says of itself; None where there is none."""
    if not isinstance(document, dict) or not (document.keys() & {"error", "error_description"}):
        return None
    if not document.get("error") and not document.get("error_description"):
        return None
    code, words = document.get("error"), document.get("error_description")
    return _short(" ".join(str(part) for part in (code, words) if part))


def _meaning(call: str, response: Response, document: Any, said: str | None, retry_after: float | None) -> StepError:
    status = response.status_code
    message = f"{call}: {status} {said if said is not None else _short(response.text)}".rstrip()
    code = str(document.get("error", "")) if isinstance(document, dict) else ""
    if response.is_success and isinstance(document, dict) and type(document.get("status")) is int:
        status = document["status"]
    if status == _THROTTLED:
        return Throttled(message, retry_after)
    if status in (_UNAUTHORIZED, _FORBIDDEN) or code == _NOT_AUTHENTICATED:
        return Fatal(message)
    if status >= _SERVER or response.is_redirect or status == _TIMEOUT or (response.is_success and not code):
        return Transient(message)
    return Rejected(message)


def _short(words: str) -> str:
    return inert(redact(words))[:_SAID]


def read_offer(record: Any) -> Item | Bad:
    """One offer of a list. What changes with every look at it (applicants, promotion) is in its payload alone."""
    if not isinstance(record, dict):
        return bad("it is not an object", record)
    author = record.get("author")
    author = author if isinstance(author, dict) else {}
    updated, published = record.get("updated"), record.get("published")
    values = (
        text(record.get("title"), "title"),
        text(author.get("name"), "company"),
        text(author.get("id"), "company_ref"),
        text(record.get("city"), "city"),
        text(_value(record.get("province")), "province"),
        text(_value(record.get("country")), "country"),
        text(record.get("link"), "url"),
        text(_value(record.get("category")), "category"),
        text(_value(record.get("contractType")), "contract_type"),
        number(_value(record.get("salaryMin"))),
        number(_value(record.get("salaryMax"))),
        text(_value(record.get("salaryPeriod")), "salary_period"),
        text(record.get("requirementMin"), "description"),
        instant_of(published),
    )
    # A date that cannot be read says nothing of the offer's place in the list, and no other date stands in for it.
    return offer(record, published if updated in (None, "") else updated, values, line_of(record))


def _value(field: Any) -> Any:
    """InfoJobs writes most fields as `{"id": 28, "value": "Madrid"}`."""
    return field.get("value") if isinstance(field, dict) else field

"""What a failed call to Google Ads means.

Google says it in a document: a status, and for each cause a kind and a name (`quotaError`, `RESOURCE_EXHAUSTED`), with
the time to wait where a quota is spent. The document is an object, or an array of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.model.errors import Fatal, Rejected, StepError, Throttled, Transient
from penstock.settings.redaction import redact

_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TIMEOUT, _THROTTLED, _SERVER = 401, 403, 404, 408, 429, 500
_SECONDS = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)s")
_RETRY_IN = re.compile(r"\b[Rr]etry in ([0-9]{1,12}) ?s")
_LATER = frozenset({"ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN"})
_PROHIBITED = frozenset({"ACCESS_PROHIBITED"})
_VERSION = frozenset({"UNSUPPORTED_VERSION"})
_ACCOUNT = "ACCOUNT"
#: What is wrong with the project or the token itself, whichever customer was asked for.
_OF_ALL = frozenset({"CLOUD_PROJECT_NOT_APPROVED_FOR_PRODUCTION", "ACTION_NOT_PERMITTED", "PROJECT_DISABLED"})
_OF_ONE = frozenset({"CUSTOMER_NOT_FOUND"})


class CustomerThrottled(Throttled):
    """A quota of this customer's own is spent; that of the others is not."""


class CustomerRefused(Fatal):
    """The login works, and this customer is not to be had with it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What Google says of a failed call, as far as it can be read."""

    code: int
    status: str = ""
    messages: tuple[str, ...] = ()
    #: Kind and name of each cause.
    causes: tuple[tuple[str, str], ...] = ()
    retry_after: float | None = None
    #: Whose quotas are spent: DEVELOPER is everybody's of the project, ACCOUNT is the customer's.
    scopes: tuple[str, ...] = ()
    request_id: str | None = None

    def __str__(self) -> str:
        causes = ", ".join(f"{kind} {name}" for kind, name in self.causes)
        named = f" (request {self.request_id})" if self.request_id else ""
        return " ".join(filter(None, [str(self.code), self.status, causes])) + ": " + "; ".join(self.messages) + named


def read_body(body: bytes, code: int) -> Failure | None:
    """The failure that an answer's body tells of; None when there is none in it."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if isinstance(document, list) and len(document) == 1:
        document = document[0]
    error = _table(document).get("error")
    return read_error(error, code) if isinstance(error, dict) else None


def read_error(error: Any, code: int) -> Failure:
    """The failure that an `error` tells of, whatever is missing in it. `code` stands where it has none of its own."""
    error = _table(error)
    own = error.get("code")
    details = [_table(part) for part in _list(error.get("details"))]
    errors = [_table(part) for detail in details for part in _list(detail.get("errors"))]
    causes = [(kind, str(name)) for one in errors for kind, name in _table(one.get("errorCode")).items()]
    found = [_text(one.get("message")) for one in errors] or [_text(error.get("message"))]
    messages = tuple(dict.fromkeys(filter(None, found)))
    waits = list(_waits(details, errors, [*messages, _text(error.get("message"))]))
    return Failure(
        own if isinstance(own, int) and not isinstance(own, bool) else code,
        _text(error.get("status")),
        messages,
        tuple(dict.fromkeys(causes)),
        max(waits) if waits else None,
        tuple(dict.fromkeys(filter(None, (_text(quota.get("rateScope")) for quota in _quotas(errors))))),
        next((_text(detail.get("requestId")) for detail in details if detail.get("requestId")), None),
    )


def meaning(call: str, failure: Failure, retry_after: float | None = None) -> StepError:
    """The error of a failed call; `retry_after` is what a header asked for.

    What concerns one customer is a CustomerThrottled or a CustomerRefused; everything else stands between the login and
    all of its customers.
    """
    kinds, names = {kind for kind, _ in failure.causes}, {name for _, name in failure.causes}
    code = failure.code
    text = redact(f"{call}: {failure}")[:500]
    if code == _UNAUTHORIZED or "authenticationError" in kinds or names & _PROHIBITED:
        return CustomerRefused(text) if names & _OF_ONE else Fatal(text)
    if code == _THROTTLED or failure.status == "RESOURCE_EXHAUSTED" or "quotaError" in kinds:
        asked = [wait for wait in (failure.retry_after, retry_after) if wait is not None]
        mine = set(failure.scopes) == {_ACCOUNT}
        return (CustomerThrottled if mine else Throttled)(text, max(asked) if asked else None)
    if code == _FORBIDDEN or "authorizationError" in kinds:
        return Fatal(text) if names & _OF_ALL else CustomerRefused(text)
    if code == _NOT_FOUND or names & _VERSION:
        return Fatal(f"{text}; this version of the API may no longer be served: it is the setting 'version'")
    if code >= _SERVER or code == _TIMEOUT or failure.status in _LATER or "internalError" in kinds:
        return Transient(text)
    return Rejected(text)


def _waits(details: list[dict[str, Any]], errors: list[dict[str, Any]], texts: list[str]) -> Iterator[float]:
    for said in (part.get("retryDelay") for part in (*details, *_quotas(errors))):
        if isinstance(said, str) and (delay := _SECONDS.fullmatch(said)):
            yield float(delay[1])
    for text in texts:
        if delay := _RETRY_IN.search(text):
            yield float(delay[1])


def _quotas(errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_table(_table(one.get("details")).get("quotaErrorDetails")) for one in errors]


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""

"""What the errors of a GraphQL answer mean, which mostly come under HTTP 200.

A server names the kind in `extensions.code`, if at all, and otherwise only in words. One error is enough: data that
came beside errors may be a part of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.model.errors import Fatal, InDoubt, StepError, Throttled, Transient
from penstock.settings.redaction import redact

_ENDLESS = 1e12  # no float holds every number that JSON does
_LOGIN_CODES = frozenset(
    {"UNAUTHENTICATED", "UNAUTHORIZED", "FORBIDDEN", "ACCESS_DENIED", "AUTHENTICATION_ERROR", "INVALID_TOKEN"}
    | {"TOKEN_EXPIRED", "401", "403"}
)
_LOGIN_WORDS = re.compile(
    r"unauthenticated|not authenticated|unauthori[sz]ed|not authori[sz]ed|invalid credentials|access denied|forbidden"
    r"|authentication (?:failed|required)|(?<!unexpected )(?:token|jwt|session)\b.{0,40}\b(?:expired|invalid|malformed)"
    r"|(?:expired|invalid|malformed)\b.{0,20}\b(?:token|jwt|session)|must be logged in|please log ?in",
    re.IGNORECASE,
)
_THROTTLE_CODES = frozenset({"THROTTLED", "RATE_LIMITED", "RATE_LIMIT_EXCEEDED", "TOO_MANY_REQUESTS", "429"})
_THROTTLE_WORDS = re.compile(r"too many requests|rate.?limit|throttl|quota (?:is )?exceeded", re.IGNORECASE)
_WRONG_CODES = frozenset(
    {"GRAPHQL_VALIDATION_FAILED", "GRAPHQL_PARSE_FAILED", "BAD_USER_INPUT", "BAD_REQUEST"}
    | {"PERSISTED_QUERY_NOT_SUPPORTED", "OPERATION_RESOLUTION_FAILURE"}
)
_WRONG_WORDS = re.compile(
    r"cannot query field|syntax error|unknown (?:argument|type|field|operation)|is not defined by type"
    r"|variable \"?\$|does not exist in .{0,60} enum|cannot represent|got an? invalid value",
    re.IGNORECASE,
)


class Unauthenticated(Fatal):
    """The token was refused. A fresh one may be accepted; if not, the credentials are wrong."""


def meaning(call: str, errors: Any, retry_after: float | None = None, *, repeatable: bool = True) -> StepError:
    """What the `errors` of an answer mean; `retry_after` is what a header asked for.

    Not `repeatable`, a mutation: after an error of no known kind nobody knows whether it was carried out.
    """
    found = [one if isinstance(one, Mapping) else {"message": str(one)} for one in _list(errors)]
    extensions = [part if isinstance(part := one.get("extensions"), Mapping) else {} for one in found]
    codes = {str(part.get("code", "")).upper() for part in extensions}
    words = "; ".join(dict.fromkeys(str(one.get("message", "")) for one in found))
    shown = " ".join(filter(None, [", ".join(sorted(filter(None, codes))), words]))
    text = redact(f"{call}: {shown or 'an error without words'}")[:500]
    if codes & _LOGIN_CODES or _LOGIN_WORDS.search(words):
        return Unauthenticated(text)
    if codes & _THROTTLE_CODES or _THROTTLE_WORDS.search(words):
        waits = [wait for wait in (retry_after, *map(_wait, extensions)) if wait is not None]
        return Throttled(text, max(waits) if waits else None)
    if codes & _WRONG_CODES or _WRONG_WORDS.search(words):
        return Fatal(text)
    return Transient(text) if repeatable else InDoubt(text)


def _list(errors: Any) -> Sequence[Any]:
    return errors if isinstance(errors, list) else [errors]


def _wait(extensions: Mapping[str, Any]) -> float | None:
    said = extensions.get("retryAfter", extensions.get("retry_after"))
    good = isinstance(said, int | float) and not isinstance(said, bool) and said >= 0
    return float(min(said, _ENDLESS)) if good else None

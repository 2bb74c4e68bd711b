"""What the errors of a GraphQL answer mean, by their codes and by their words."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.connectors.graphql import Unauthenticated, meaning
from penstock.model.errors import Fatal, InDoubt, StepError, Throttled, Transient
from penstock.settings.redaction import MARK, conceal, release

LOGIN, THROTTLE, QUERY, OTHER = Unauthenticated, Throttled, Fatal, Transient


def error(message: Any = "", code: Any = None, **extensions: Any) -> dict[str, Any]:
    return {"message": message, "extensions": {"code": code, **extensions} if code is not None else extensions}


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([error(code="UNAUTHENTICATED")], LOGIN),
        ([error(code="unauthenticated")], LOGIN),
        ([error(code=401)], LOGIN),
        ([error("jwt expired")], LOGIN),
        ([error("Token is invalid")], LOGIN),
        ([error("The token that was given has expired")], LOGIN),
        ([error("Invalid token")], LOGIN),
        ([error("You must be logged in")], LOGIN),
        ([error("Not authorised to see this")], LOGIN),
        ([error(code="THROTTLED")], THROTTLE),
        ([error("Rate-limit exceeded")], THROTTLE),
        ([error("Too Many Requests")], THROTTLE),
        ([error("Request was throttled")], THROTTLE),
        ([error(code="GRAPHQL_VALIDATION_FAILED")], QUERY),
        ([error('Cannot query field "x" on type "Y".')], QUERY),
        ([error('Variable "$q" got invalid value 1.5; Int cannot represent non-integer value: 1.5')], QUERY),
        ([error("Syntax Error: Unexpected }")], QUERY),
        ([error("Internal server error", "INTERNAL_SERVER_ERROR")], OTHER),
        ([error("Unexpected token < in JSON at position 0: invalid")], OTHER),
        ([error("the diamond has an expired certificate")], OTHER),
        ([error()], OTHER),
        ([{}], OTHER),
        ([], OTHER),
        ("broken", OTHER),
        ([None], OTHER),
        ([{"message": None, "extensions": "odd"}], OTHER),
        # What a fresh token may cure comes first, then what waiting may, then what nothing does.
        ([error("other"), error(code="THROTTLED"), error(code="UNAUTHENTICATED")], LOGIN),
        ([error(code="BAD_USER_INPUT"), error(code="THROTTLED")], THROTTLE),
        ([error("other"), error(code="BAD_USER_INPUT")], QUERY),
    ],
)
def test_the_kind_of_an_error(errors, kind):
    found = meaning("POST /x", errors)
    assert type(found) is kind
    assert str(found).startswith("POST /x: ")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("INTERNAL_SERVER_ERROR", InDoubt),
        ("UNAUTHENTICATED", LOGIN),
        ("THROTTLED", THROTTLE),
        ("BAD_USER_INPUT", QUERY),
    ],
)
def test_a_mutation_that_may_have_been_carried_out_is_in_doubt(code, kind):
    assert type(meaning("POST /x", [error("oh", code)], repeatable=False)) is kind


@pytest.mark.parametrize(
    ("header", "extension", "seconds"),
    [
        (None, None, None),
        (3.0, None, 3.0),
        (3.0, 5, 5.0),
        (9.0, 5, 9.0),
        (None, 0, 0.0),
        (None, 1e9, 1e9),
        (None, 10**400, 1e12),
        (None, -1, None),
        (None, True, None),
        (None, "7", None),
        (None, float("nan"), None),
    ],
)
def test_how_long_to_wait(header, extension, seconds):
    found = meaning("POST /x", [error("slow", "THROTTLED", retryAfter=extension)], header)
    assert isinstance(found, Throttled)
    assert found.retry_after == seconds


def test_a_text_is_short_and_without_secrets():
    conceal("a-very-secret-token")
    try:
        found: StepError = meaning("POST /x", [error("a-very-secret-token " + "y" * 9_999)] * 3)
    finally:
        release("a-very-secret-token")
    assert str(found).startswith(f"POST /x: {MARK} yyy")
    assert len(str(found)) == 500

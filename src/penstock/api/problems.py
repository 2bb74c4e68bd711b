"""Errors as problem documents (RFC 9457): a status, a title, and a detail that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from penstock.model.errors import (
    BadInstant,
    BadReference,
    CommitUnknown,
    IllegalMove,
    LedgerBroken,
    LedgerBusy,
    LedgerMismatch,
    LedgerRefused,
    LedgerUnavailable,
    MustWait,
    PenstockError,
    PlanChanged,
    StepError,
    TooLarge,
    UnknownMachine,
    UnknownUnit,
    UsageError,
)
from penstock.operations.conversion import BadParameters
from penstock.raw.reader import NotReady
from penstock.settings.redaction import redact

MEDIA_TYPE = "application/problem+json"
_RETRY_SECONDS = "5"
_STATUS: dict[type[Exception], HTTPStatus] = {
    BadParameters: HTTPStatus.BAD_REQUEST,
    UnknownMachine: HTTPStatus.NOT_FOUND,
    UnknownUnit: HTTPStatus.NOT_FOUND,
    BadReference: HTTPStatus.UNPROCESSABLE_ENTITY,
    BadInstant: HTTPStatus.UNPROCESSABLE_ENTITY,
    PlanChanged: HTTPStatus.CONFLICT,
    IllegalMove: HTTPStatus.CONFLICT,
    TooLarge: HTTPStatus.UNPROCESSABLE_ENTITY,
    UsageError: HTTPStatus.UNPROCESSABLE_ENTITY,
    CommitUnknown: HTTPStatus.SERVICE_UNAVAILABLE,
    LedgerBusy: HTTPStatus.SERVICE_UNAVAILABLE,
    LedgerUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    LedgerMismatch: HTTPStatus.SERVICE_UNAVAILABLE,
    LedgerBroken: HTTPStatus.SERVICE_UNAVAILABLE,
    LedgerRefused: HTTPStatus.CONFLICT,
    MustWait: HTTPStatus.SERVICE_UNAVAILABLE,
    NotReady: HTTPStatus.CONFLICT,
    StepError: HTTPStatus.BAD_GATEWAY,
    PenstockError: HTTPStatus.INTERNAL_SERVER_ERROR,
}
"""What an error comes to: the nearest of its bases that is here."""


class ProblemDetails(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong, to what, and what to do."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    #: Each parameter that is wrong, with what it must be.
    parameters: dict[str, str] | None = None


class Problem(Exception):
    """An answer that is an error. `detail` says what to do."""

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = redact(detail)
        self.headers = dict(headers or {})
        self.parameters = None if parameters is None else {name: redact(what) for name, what in parameters.items()}

    def details(self) -> ProblemDetails:
        """The document."""
        return ProblemDetails(
            title=self.status.phrase, status=self.status.value, detail=self.detail, parameters=self.parameters
        )

    def response(self) -> Response:
        """The document as an answer."""
        body = msgspec.json.encode(self.details())
        return Response(body, self.status.value, headers=self.headers, media_type=MEDIA_TYPE)


def problem_of(error: Exception) -> Problem:
    """What is answered to an error, whoever raised it."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        status = HTTPStatus(error.status_code)
        return Problem(status, _of_routing(status), headers=dict(error.headers or {}))
    if not isinstance(error, PenstockError):
        return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log says where, and nothing was told")
    status = next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)
    headers = {"Retry-After": _RETRY_SECONDS} if isinstance(error, (LedgerUnavailable, MustWait)) else {}
    wrong: Mapping[str, Any] | None = error.wrong if isinstance(error, BadParameters) else None
    return Problem(status, _said(error), headers=headers, parameters=wrong)


def _said(error: PenstockError) -> str:
    """What the error says; where it does not say what to do, that too."""
    if isinstance(error, CommitUnknown):
        return f"{error}; nobody knows whether it was done: look at the history before trying again"
    if isinstance(error, LedgerBusy):
        return f"{error}; ask for less at a time, or try again"
    if isinstance(error, LedgerUnavailable):
        return f"{error}; nothing was changed: try again"
    if isinstance(error, PlanChanged):
        return f"{error}; nothing was changed: ask for a new preview"
    return str(error)


def _of_routing(status: HTTPStatus) -> str:
    if status is HTTPStatus.NOT_FOUND:
        return "there is nothing at this address; /api/v1/openapi.json lists what there is"
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        return "this address does not take that method; the header Allow says which it takes"
    return status.phrase

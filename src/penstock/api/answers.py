"""What every request is bound by and every answer carries: sizes, and headers that keep a browser in its place."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.api.problems import Problem

if TYPE_CHECKING:
    from penstock.api.desk import Desk

MOST_BYTES = 1_000_000
BODY_SECONDS = 30.0
_FORM = "application/x-www-form-urlencoded"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self';"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


def secure(headers: MutableHeaders, scheme: str) -> None:
    """Add what every answer carries. What an endpoint says of its cache stays."""
    for name, value in HEADERS.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")
    if scheme == "https":
        headers["Strict-Transport-Security"] = "max-age=31536000"


class Secure:
    """Adds the headers to every answer."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self.app = app
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                secure(MutableHeaders(scope=message), scope.get("scheme", "http"))
            await send(message)

        await self.app(scope, receive, sending)


class Bounded:
    """Refuses a body that is too large or comes too slowly."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self.app = app
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        length = Headers(scope=scope).get("content-length", "0")
        if not (length.isascii() and length.isdigit()) or int(length) > MOST_BYTES:
            return await _too_large().response()(scope, receive, send)
        seen, whole, ends = 0, False, self._desk.clock.elapsed() + BODY_SECONDS

        async def receiving() -> Message:
            nonlocal seen, whole
            if whole:
                return await receive()  # only the end of the connection is left, and it may come any time
            try:
                message = await asyncio.wait_for(receive(), ends - self._desk.clock.elapsed())
            except TimeoutError:
                detail = f"the body did not come within {BODY_SECONDS:g} s; send it again"
                raise Problem(HTTPStatus.REQUEST_TIMEOUT, detail) from None
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                whole = not message.get("more_body", False)
            if seen > MOST_BYTES:
                raise _too_large()
            return message

        return await self.app(scope, receiving, send)


def _too_large() -> Problem:
    detail = f"a request may have {MOST_BYTES:,} bytes at most; send less at a time"
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)


def sent_as(request: Request) -> str:
    """The media type of a request's body."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_form(request: Request) -> bool:
    """Whether a page's form was sent."""
    return sent_as(request) == _FORM


async def form_of(request: Request, most: int) -> dict[str, list[str]]:
    """What a form sent: values by name. Raises Problem where there are more than so many."""
    body = (await request.body()).decode(errors="replace")
    found: dict[str, list[str]] = {}
    try:
        for name, value in parse_qsl(body, keep_blank_values=True, max_num_fields=most):
            found.setdefault(name, []).append(value)
    except ValueError:
        raise Problem(HTTPStatus.BAD_REQUEST, f"a form may have {most:,} fields at most; send fewer") from None
    return found

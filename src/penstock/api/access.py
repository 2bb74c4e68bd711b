"""Who asks, and what they may do: one check for the API and for pages.

A script sends a token (`Authorization: Bearer`). A browser signs in with one and has a cookie. On loopback, where
nobody stands between, a person at this machine needs neither, unless the settings say so.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Literal

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.problems import Problem
from penstock.app.person import by_token, user
from penstock.model.secrets import SESSION, TOKEN, masked, parts, same, unmasked
from penstock.operations.declare import Role
from penstock.operations.tokens import Token, session_token, valid_token

if TYPE_CHECKING:
    from penstock.api.desk import Desk

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_HEADER = "X-CSRF-Token"
_ORDER = tuple(Role)
_CHALLENGE = 'Bearer realm="penstock"'
UNKNOWN = "this needs a token; send 'Authorization: Bearer TOKEN', or sign in with a browser"
_SAME = ("same-origin", "none")


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who asks. `csrf` is what their forms must carry, masked (`Access.csrf`)."""

    name: str
    role: Role
    way: Literal["local", "token", "session"]
    csrf: str = ""

    @property
    def who(self) -> str:
        """How the history names them."""
        return self.name if self.way == "local" else by_token(self.name)

    def may(self, role: Role) -> bool:
        """Whether they may do what that role may."""
        return _ORDER.index(self.role) >= _ORDER.index(role)


class Access:
    """Knows people by their requests."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._local = Person(user(), Role.ADMIN, "local", csrf_of(desk.rng.secret()))

    async def allow(self, request: Request, role: Role, *, form: str | None = None) -> Person:
        """Who asks, if they may. Raises Problem: 401 for nobody we know, 403 for somebody who may not.

        What acts in a browser's name must carry its CSRF token: in the header, or as `form`, a field of the form.
        """
        person = await self.person(request)
        if person is None:
            if _bearer(request) is not None:
                raise invalid_token()
            raise Problem(HTTPStatus.UNAUTHORIZED, UNKNOWN, headers={"WWW-Authenticate": _CHALLENGE})
        if not person.may(role):
            detail = f"{person.name} is {person.role} here, and this needs {role}; use a token of that role"
            raise Problem(HTTPStatus.FORBIDDEN, detail)
        if request.method not in SAFE and (person.way == "session" or (person.way == "local" and form is not None)):
            _check_csrf(person, form if form is not None else request.headers.get(CSRF_HEADER, ""))
        return person

    async def person(self, request: Request) -> Person | None:
        """Who asks; None for nobody we know. Asked once for each request."""
        if not hasattr(request.state, "person"):
            request.state.person = await self._person(request)
        found: Person | None = request.state.person
        return found

    async def still(self, request: Request) -> bool:
        """Whether who began this request, and is still being answered, would be let in now."""
        return await self._person(request) is not None

    async def _person(self, request: Request) -> Person | None:
        if "authorization" in request.headers:
            given = _bearer(request)
            token = None if given is None else await self.token(given)
            return None if token is None else Person(token.name, token.role, "token")
        cookie = request.cookies.get(cookie_name(request), "")
        found = parts(cookie, SESSION)
        if found is not None:
            token = await self._desk.glance(self._session, *found)
            return None if token is None else Person(token.name, token.role, "session", csrf_of(cookie))
        if self.is_open and request.state.direct:
            return self._local
        return None

    def csrf(self, person: Person | None) -> str:
        """What a page of theirs carries: another text in each, because pages are compressed."""
        return masked(self._desk.rng, person.csrf) if person is not None and person.csrf else ""

    @property
    def is_open(self) -> bool:
        """Whether a person at this machine needs no token. Behind a proxy, loopback may be anybody."""
        settings = self._desk.settings
        behind = settings.hosts or settings.trusted_proxies or settings.require_token
        return self._desk.bound.loopback and not behind

    async def token(self, text: str) -> Token | None:
        """The valid token that this text is."""
        found = parts(text, TOKEN)
        return None if found is None else await self._desk.glance(self._token, *found)

    def _token(self, token_id: str, hashed: str) -> Token | None:
        return valid_token(self._desk.ledger().database, token_id, hashed, self._desk.clock.now())

    def _session(self, session_id: str, hashed: str) -> Token | None:
        return session_token(self._desk.ledger().database, session_id, hashed, self._desk.clock.now())


def _bearer(request: Request) -> str | None:
    """The token that a script sends; None: none."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else None


def invalid_token() -> Problem:
    """What is told to whoever gave a token that does not let them in."""
    detail = "this token is not valid here (ended, revoked or mistyped); 'penstock token list' shows those that are"
    challenge = {"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'}
    return Problem(HTTPStatus.UNAUTHORIZED, detail, headers=challenge)


def cookie_name(request: Request) -> str:
    """Over https no other host and no plain page can set it; on loopback there is no https."""
    return "__Host-penstock" if request.url.scheme == "https" else "penstock"


def csrf_of(secret: str) -> str:
    """Follows from what only that browser has; says nothing of it."""
    return hmac.digest(secret.encode(), b"csrf", hashlib.sha256).hex()


def _check_csrf(person: Person, given: str) -> None:
    if not person.csrf or not same(person.csrf, unmasked(given)):
        detail = f"the CSRF token is missing or old; load the page again, or send it as {CSRF_HEADER}"
        raise Problem(HTTPStatus.FORBIDDEN, detail)


class Origins:
    """Refuses what a page of somebody else's makes a browser send. Scripts send neither header."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self.app = app
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in SAFE and not _own(Request(scope)):
            detail = "the request comes from a page of another origin; act on the desk's own pages, or with a token"
            return await Problem(HTTPStatus.FORBIDDEN, detail).response()(scope, receive, send)
        return await self.app(scope, receive, send)


def _own(request: Request) -> bool:
    if request.headers.get("sec-fetch-site", "none") not in _SAME:
        return False
    origin = request.headers.get("origin")
    return origin is None or origin.lower() == f"{request.url.scheme}://{request.state.host}"

"""Signing in and out with a browser: a token is given once, a cookie stands for it."""

from __future__ import annotations

import threading
from collections import deque
from http import HTTPStatus
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from penstock.api.access import Access, cookie_name, csrf_of, invalid_token
from penstock.api.answers import form_of, is_form
from penstock.api.desk import is_loopback
from penstock.api.problems import Problem
from penstock.model.clock import Clock
from penstock.model.secrets import SESSION, draw, masked, parts
from penstock.operations.declare import Role
from penstock.operations.tokens import begin_session, end_session

if TYPE_CHECKING:
    from penstock.api.desk import Desk

_SPAN_SECONDS = 300.0
_MOST_OF_ONE = 10
_MOST = 10_000
_LONGEST_ADDRESS = 100
_NETWORK_BITS = 64
_MOST_FIELDS = 20
IN_THE_CLEAR = (
    "signing in needs https, because the cookie would be sent in the clear; call this desk by https, or as localhost"
    " through a tunnel (ssh -L)"
)


class SignedIn(msgspec.Struct, frozen=True, kw_only=True):
    """Who signed in, and what their actions must carry as X-CSRF-Token."""

    name: str
    role: str
    csrf: str


class Attempts:
    """Failed attempts of the last minutes, by address. Kept in memory: a restart forgives.

    Others are not refused for them, however many there are: a token cannot be guessed, and whoever fails on purpose
    from many addresses would keep everybody out.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failed: deque[tuple[float, str]] = deque(maxlen=_MOST)
        self._lock = threading.Lock()

    def check(self, address: str) -> None:
        """Raises Problem where there were too many."""
        now = self._clock.elapsed()
        with self._lock:
            while self._failed and self._failed[0][0] < now - _SPAN_SECONDS:
                self._failed.popleft()
            place = _place(address)
            own = [when for when, one in self._failed if one == place]
            if len(own) >= _MOST_OF_ONE:
                wait = str(int(own[-_MOST_OF_ONE] + _SPAN_SECONDS - now) + 1)
                detail = f"too many attempts to sign in; try again in {wait} s"
                raise Problem(HTTPStatus.TOO_MANY_REQUESTS, detail, headers={"Retry-After": wait})

    def failed(self, address: str) -> None:
        """One more."""
        with self._lock:
            self._failed.append((self._clock.elapsed(), _place(address)))


def _place(address: str) -> str:
    """The address; of IPv6 the network, which one machine has whole."""
    try:
        found = ip_address(address)
    except ValueError:
        return address[:_LONGEST_ADDRESS]
    if isinstance(found, IPv6Address):
        mapped = found.ipv4_mapped
        return str(IPv6Network((int(found), _NETWORK_BITS), strict=False) if mapped is None else mapped)
    return str(found)


class Signing:
    """The endpoints POST /sign-in and POST /sign-out."""

    def __init__(self, desk: Desk, access: Access) -> None:
        self._desk = desk
        self._access = access
        self._attempts = Attempts(desk.clock)

    async def sign_in(self, request: Request) -> Response:
        """`{"token": …}`, or a form with `token`, which is led to `next` afterwards."""
        if in_the_clear(request):
            raise Problem(HTTPStatus.FORBIDDEN, IN_THE_CLEAR)
        given, is_form = await _fields(request)
        self._attempts.check(request.state.client)
        token = await self._access.token(given.get("token", "").strip())
        if token is None:
            self._attempts.failed(request.state.client)
            raise invalid_token()
        drawn, now = draw(self._desk.rng, SESSION), self._desk.clock.now()
        life = self._desk.settings.session_life
        ends = min(now + life, token.expires_at)
        await self._desk.act(self._begin, token, drawn, ends, now)
        answer: Response
        if is_form:
            answer = RedirectResponse(request.state.next, HTTPStatus.SEE_OTHER)
        else:
            told = SignedIn(name=token.name, role=str(token.role), csrf=masked(self._desk.rng, csrf_of(drawn.text)))
            answer = Response(msgspec.json.encode(told), media_type="application/json")
        _set(request, answer, drawn.text, int((ends - now).total_seconds()))
        return answer

    async def sign_out(self, request: Request) -> Response:
        """Ends the session. A form carries `csrf`."""
        given, is_form = await _fields(request)
        person = await self._access.allow(request, Role.VIEWER, form=given.get("csrf", "") if is_form else None)
        found = parts(request.cookies.get(cookie_name(request), ""), SESSION)
        if person.way == "session" and found is not None:
            await self._desk.act(self._end, found[0])
        answer: Response
        if is_form:
            answer = RedirectResponse(f"{request.scope['root_path']}/", HTTPStatus.SEE_OTHER)
        else:
            answer = Response(status_code=HTTPStatus.NO_CONTENT)
        _set(request, answer, "", 0)
        return answer

    def _begin(self, token: Any, drawn: Any, ends: Any, now: Any) -> None:
        begin_session(self._desk.ledger().database, token, drawn, ends=ends, now=now)

    def _end(self, session_id: str) -> None:
        end_session(self._desk.ledger().database, session_id)


def _set(request: Request, answer: Response, value: str, seconds: int) -> None:
    secure = request.url.scheme == "https"
    answer.set_cookie(
        cookie_name(request), value, max_age=seconds, path="/", secure=secure, httponly=True, samesite="strict"
    )


def in_the_clear(request: Request) -> bool:
    """Whether a cookie would be read by whoever listens on the way."""
    return request.url.scheme != "https" and not is_loopback(request.url.hostname or "")


async def _fields(request: Request) -> tuple[dict[str, str], bool]:
    """The fields of a form or of a JSON object, and whether it is a form."""
    if is_form(request):
        found = {name: values[0] for name, values in (await form_of(request, _MOST_FIELDS)).items()}
        request.state.next = _local(request, found.get("next", ""))  # a page that asks again leads there too
        return found, True
    body = await request.body()
    try:
        return (msgspec.json.decode(body, type=dict[str, str]) if body else {}), False
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Problem(HTTPStatus.BAD_REQUEST, 'send {"token": "…"} as JSON, or a form with token') from None


def _local(request: Request, path: str) -> str:
    """Where the form leads: a path of this server, and nowhere else."""
    plain = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() and "\\" not in path
    return path if plain else f"{request.scope['root_path']}/"

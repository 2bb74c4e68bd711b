"""The addresses of the API, made of the declarations.

A reading is a GET at the words of its command (`/api/v1/reports/datasets`; a last word `list` is left out), an
operation a POST at the same with `/preview` and `/apply`. Those of the kernel have no segment of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from penstock.api.answers import sent_as
from penstock.api.idempotency import HEADER, Key
from penstock.api.problems import Problem
from penstock.api.shared import share
from penstock.model.errors import (
    CommitUnknown,
    LedgerError,
    LedgerRefused,
    LedgerUnavailable,
    PenstockError,
    UsageError,
)
from penstock.model.unit import Ref
from penstock.operations.answers import json_text
from penstock.operations.carry import KERNEL, Done, Planned, Preview, carry_out, check_digest, make_plan
from penstock.operations.conversion import BadParameters, from_json, from_texts
from penstock.operations.declare import Lines, Operation, Page, Reading

if TYPE_CHECKING:
    from penstock.api.access import Access, Person
    from penstock.api.desk import Desk
    from penstock.app.app import App
    from penstock.app.lifecycle import AnyLifecycle
    from penstock.operations.declare import Declaration

PREFIX = "/api/v1"
JSON = "application/json"
LINES = "text/plain"
_DRY = "dry run"  # a preview writes nothing into the history, so it needs no reason of its own
_CHUNK = 1_000
_LONGEST_REASON = 10_000
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Place:
    """A declaration and its address below the prefix."""

    lifecycle: AnyLifecycle
    declared: Declaration
    path: str

    @property
    def name(self) -> str:
        """Its name over all lifecycles, as its command is called."""
        own = self.lifecycle.name == KERNEL
        return self.declared.name if own else f"{self.lifecycle.name} {self.declared.name}"


UNIT_PATHS = {
    "units show": "/units/{machine}/{unit_id:path}",
    "units history": "/units/{machine}/{unit_id:path}/history",
    "units why": "/units/{machine}/{unit_id:path}/why",
}
"""A unit has an address of its own, too."""


def places(app: App) -> Iterator[Place]:
    """Every declaration that can be asked from afar."""
    for lifecycle in app.lifecycles:
        every: list[Declaration] = [*lifecycle.readings, *lifecycle.operations]
        for declared in every:
            if not declared.stays:
                yield Place(lifecycle, declared, _path(lifecycle, declared))


def _path(lifecycle: AnyLifecycle, declared: Declaration) -> str:
    return "".join(f"/{word}" for word in words_of(lifecycle, declared))


def words_of(lifecycle: AnyLifecycle, declared: Declaration) -> tuple[str, ...]:
    """The segments of its address."""
    words = declared.path if lifecycle.name == KERNEL else (lifecycle.name, *declared.path)
    if isinstance(declared, Reading) and len(words) > 1 and words[-1] == "list":
        words = words[:-1]
    return words


def routes(desk: Desk, access: Access) -> list[Route]:
    """The routes of the API, those of units last: they match the most."""
    found: list[Route] = []
    last: list[Route] = []
    for place in places(desk.program.app):
        if isinstance(place.declared, Reading):
            asking = Asking(desk, access, place)
            get, get_unit = share(desk, access, asking.get), share(desk, access, asking.get_unit)
            found.append(Route(f"{PREFIX}{place.path}", get, methods=["GET"], name=place.name))
            if place.lifecycle.name == KERNEL and place.name in UNIT_PATHS:
                last.append(Route(f"{PREFIX}{UNIT_PATHS[place.name]}", get_unit, methods=["GET"]))
        else:
            acting = Acting(desk, access, place)
            for verb, endpoint in (("preview", acting.preview), ("apply", acting.apply)):
                found.append(Route(f"{PREFIX}{place.path}/{verb}", endpoint, methods=["POST"]))
    return [*found, *sorted(last, key=lambda route: -len(route.path))]


class Asking:
    """A reading over GET."""

    def __init__(self, desk: Desk, access: Access, place: Place) -> None:
        self._desk = desk
        self._access = access
        self._place = place
        assert isinstance(place.declared, Reading)  # noqa: S101 - the caller's choice
        self._reading: Reading[Any] = place.declared

    async def get(self, request: Request) -> Response:
        """With the query string as parameters."""
        return await self._answer(request, request.query_params.multi_items())

    async def get_unit(self, request: Request) -> Response:
        """With the unit in the path."""
        ref = Ref(request.path_params["machine"], request.path_params["unit_id"])
        given = request.query_params.multi_items()
        if any(name == "unit" for name, _ in given):
            raise BadParameters({"unit": "is part of the address; leave it out"})
        return await self._answer(request, [("unit", str(ref)), *given])

    async def _answer(self, request: Request, given: list[tuple[str, str]]) -> Response:
        person = await self._access.allow(request, self._reading.role)
        if self._reading.no_past and any(name == "at" for name, _ in given):
            raise BadParameters({"at": self._reading.no_past})
        parameters = from_texts(self._reading.parameters, given)
        answer = await self._desk.read(self._read, person, parameters)
        if isinstance(answer, Lines):
            return await self._lines(answer)
        text = await self._desk.read(json_text, answer)
        headers = {}
        if isinstance(answer, Page) and answer.next is not None:
            headers = _next(request, answer.next)
        return Response(f"{text}\n", media_type=JSON, headers=headers)

    def _read(self, person: Person, parameters: Any) -> Any:
        return self._reading(self._desk.ask(self._place.lifecycle, who=person.who), parameters)

    async def _lines(self, answer: Lines) -> Response:
        """A stream, a thousand lines at a time. What goes wrong before the first of them is a problem as any other."""
        lines = iter(answer.lines)
        first = await self._desk.read(_some, lines)

        async def chunks() -> AsyncIterator[bytes]:
            chunk = first
            while chunk:
                yield chunk
                chunk = await self._desk.read(_some, lines)

        return StreamingResponse(chunks(), media_type=LINES)


def _some(lines: Iterator[str]) -> bytes:
    return "".join(f"{line}\n" for line in islice(lines, _CHUNK)).encode(errors="replace")


def _next(request: Request, cursor: str) -> dict[str, str]:
    """The next page, as a link relative to this address: a proxy may call this server by another."""
    given = [(name, value) for name, value in request.query_params.multi_items() if name != "after"]
    address = f"{quote(request.scope['path'])}?{urlencode([*given, ('after', cursor)])}"
    return {"Link": f'<{address}>; rel="next"'}


class Acting:
    """An operation over POST: what it would do, and doing it."""

    def __init__(self, desk: Desk, access: Access, place: Place) -> None:
        self._desk = desk
        self._access = access
        self._place = place
        assert isinstance(place.declared, Operation)  # noqa: S101 - the caller's choice
        self._operation: Operation[Any] = place.declared

    async def preview(self, request: Request) -> Response:
        """Count, sample, what is skipped and why, warnings and the digest. Nothing is changed."""
        person = await self._allowed(request)
        given, _ = await body_of(request)
        reason = _text(given, "reason")
        parameters = from_json(self._operation.parameters, given)
        preview = await self._desk.act(self._preview, person, parameters, reason)
        return Response(f"{json_text(preview)}\n", media_type=JSON)

    async def _allowed(self, request: Request) -> Person:
        """Who asks, if they may; and not of a moment, which only readings know."""
        person = await self._access.allow(request, self._operation.role)
        if "at" in request.query_params:
            raise BadParameters({"at": "is for readings alone: nothing can be done in the past"})
        return person

    def _preview(self, person: Person, parameters: Any, reason: str) -> Preview:
        return self.planned(person, parameters, reason or _DRY)[1].preview

    async def apply(self, request: Request) -> Response:
        """Do what was shown with this digest, and nothing else."""
        person = await self._allowed(request)
        given, raw = await body_of(request)
        reason, digest = _text(given, "reason"), _text(given, "digest")
        if not digest:
            raise BadParameters({"digest": "is missing: it comes from /preview, and stands for what was seen"})
        if self._operation.wants_reason and not reason.strip():
            raise BadParameters({"reason": "is missing: the history keeps why something was done by hand"})
        parameters = from_json(self._operation.parameters, given)
        named = request.headers.get(HEADER)
        key = None if named is None else Key.of(named, person.who, self._place.name, raw)
        done = await self._desk.act(self._apply, person, parameters, reason, (digest, key))
        return self._done(request, done)

    def _apply(self, person: Person, parameters: Any, reason: str, seen: tuple[str, Key | None]) -> Done:
        digest, key = seen
        if key is None:
            return self.carried(*self.agreed(person, parameters, reason, digest))
        database = self._desk.ledger().database
        before = key.begin(database, self._desk.clock.now())
        if before is not None:
            return before
        try:
            agreed = self.agreed(person, parameters, reason, digest)
        except PenstockError:
            with contextlib.suppress(LedgerError):
                key.forget(database)
            raise
        try:
            done = self.carried(*agreed)
        except CommitUnknown:
            raise  # it may be done: the key stays without an answer
        except (UsageError, LedgerRefused, LedgerUnavailable):
            with contextlib.suppress(LedgerError):
                key.forget(database)
            raise
        key.end(database, done)
        return done

    def agreed(self, person: Person, parameters: Any, reason: str, digest: str) -> tuple[Any, Planned]:
        """The plan, if it is the one that was seen."""
        ask, planned = self.planned(person, parameters, reason)
        check_digest(planned, digest)
        return ask, planned

    def carried(self, ask: Any, planned: Planned) -> Done:
        """Carry a plan out."""
        preview = planned.preview
        if preview.count:
            return carry_out(self._desk.ledger(), ask, planned)
        names = ("operation", "says", "count", "skipped", "skipped_sample")
        return Done(**{name: getattr(preview, name) for name in names})

    def planned(self, person: Person, parameters: Any, reason: str) -> tuple[Any, Planned]:
        """What would be done."""
        ask = self._desk.ask(self._place.lifecycle, who=person.who, reason=reason)
        version = self._desk.program.configuration.version
        planned = make_plan(self._operation, ask, parameters, owner=self._place.lifecycle.name, version=version)
        return ask, planned

    def _done(self, request: Request, done: Done) -> Response:
        """202 where something goes on, with the unit to follow."""
        unit = done.action or done.follows
        headers = {}
        if unit is not None:
            machine, _, unit_id = unit.partition(":")
            headers = {"Location": f"{request.scope['root_path']}{PREFIX}/units/{machine}/{quote(unit_id)}"}
        status = HTTPStatus.OK if unit is None else HTTPStatus.ACCEPTED
        return Response(f"{json_text(done)}\n", status, media_type=JSON, headers=headers)


async def body_of(request: Request) -> tuple[dict[str, Any], bytes]:
    """The JSON object of a request, and its bytes. Raises Problem."""
    if sent_as(request) != JSON:
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"send the parameters as a JSON object, as {JSON}")
    raw = await request.body()
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error!s:.100}") from None
    if not isinstance(found, dict):
        raise Problem(HTTPStatus.BAD_REQUEST, "the body is no JSON object; send the parameters by their names")
    return found, raw


def _text(given: dict[str, Any], name: str) -> str:
    """Take a text that belongs to the act itself out of the parameters."""
    found = given.pop(name, "")
    if not isinstance(found, str) or "\0" in found or len(found) > _LONGEST_REASON:
        raise BadParameters({name: f"must be a text of {_LONGEST_REASON:,} characters at most"})
    return found

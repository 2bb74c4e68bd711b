"""The desk's pages, as routes of the application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from penstock.api import shared
from penstock.api.access import UNKNOWN, Access
from penstock.api.app import make_application
from penstock.api.compressed import compressed
from penstock.api.problems import Problem
from penstock.api.signing import IN_THE_CLEAR, in_the_clear
from penstock.model.errors import UsageError
from penstock.model.inert import inert
from penstock.operations.find import Sought, find
from penstock.web.declared import Declared
from penstock.web.forecast import ForecastPage
from penstock.web.frame import Frame, begun
from penstock.web.lifecycle import LifecyclePage
from penstock.web.live import OF_THE_SCRIPT, Broadcaster
from penstock.web.machine import MachinePage
from penstock.web.overview import Overview
from penstock.web.unit import UnitPage

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from penstock.api.desk import Desk

_TITLES = {
    HTTPStatus.BAD_REQUEST: "That cannot be shown",
    HTTPStatus.UNAUTHORIZED: "Sign in",
    HTTPStatus.FORBIDDEN: "You may not do that",
    HTTPStatus.NOT_FOUND: "There is no such page",
    HTTPStatus.CONFLICT: "Things have changed meanwhile",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many attempts",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Something went wrong",
    HTTPStatus.SERVICE_UNAVAILABLE: "The ledger cannot be read now",
}
"""What errors are called above their page."""
_WHO = "This desk is for people with a token."
_YEAR = "public, max-age=31536000, immutable"


def make_desk(desk: Desk) -> Starlette:
    """The application with its pages."""
    access = Access(desk)
    pages = Pages(Frame(desk, access))
    return make_application(desk, pages.routes(), access=access, shows=pages.problem)


class Pages:
    """What is served beside the API."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._declared = Declared(frame)
        self._forecast = ForecastPage(frame)
        self._overview = Overview(frame, self._declared, self._forecast)
        self._live = Broadcaster(frame)

    def routes(self) -> Sequence[BaseRoute]:
        """The routes, those that match the most last."""
        machine = MachinePage(self._frame, self._declared)
        lifecycle = LifecyclePage(self._frame, self._overview, self._declared)
        unit = UnitPage(self._frame, self._declared)

        def share(page: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
            return shared.share(self._frame.desk, self._frame.access, self._frame.marked(page))

        return [
            Route("/", share(self._overview.show)),
            Route("/forecast", share(self._forecast.show)),
            Route("/live", self._live.stream),
            Route("/find", self.find),
            Route("/units", _leads("read/units", self._frame)),
            Route("/dead", _leads("read/dead", self._frame)),
            Route("/static/{name}", compressed(self.static)),
            Route("/lifecycles/{name}", share(lifecycle.show)),
            Route("/machines/{machine}", share(machine.show)),
            Route("/read/{path:path}", share(self._declared.read)),
            Route("/do/{path:path}", compressed(self._frame.marked(self._declared.ask)), methods=["GET"]),
            Route("/do/{path:path}", self._declared.act, methods=["POST"]),
            Route("/units/{machine}/{unit_id:path}", share(unit.show)),
        ]

    async def static(self, request: Request) -> Response:
        """Style, script and icon: their addresses change with them, so that they can be kept for ever."""
        found = self._frame.static.get(request.path_params["name"])
        if found is None:
            raise Problem(HTTPStatus.NOT_FOUND, "there is no such file")
        content, kind, _ = found
        return Response(content, media_type=kind, headers={"Cache-Control": _YEAR})

    async def find(self, request: Request) -> Response:
        """What there is of one name leads there; what there is more of is listed."""
        person, at = await self._frame.allow(request), self._frame.at(request)
        text = request.query_params.get("q", "").strip()
        machine, colon, unit_id = text.partition(":")
        names = {one.name for one in self._frame.desk.program.app.machines}
        if colon and unit_id and machine in names:
            return RedirectResponse(self._frame.unit_link(text, at), HTTPStatus.SEE_OTHER)
        if text in names:
            return RedirectResponse(self._frame.link("machines", text, at=at), HTTPStatus.SEE_OTHER)
        found = await self._frame.desk.read(self._found, person.name, text, at) if text else []
        if len(found) == 1:
            return RedirectResponse(self._frame.found_link(found[0], at), HTTPStatus.SEE_OTHER)
        if not found and "/" in text:
            return RedirectResponse(self._frame.link("read", "gates", gate=text, at=at), HTTPStatus.SEE_OTHER)
        if found:
            return RedirectResponse(self._frame.link("read", "find", text=text, at=at), HTTPStatus.SEE_OTHER)
        return RedirectResponse(self._frame.link("read", "units", because=text or None, at=at), HTTPStatus.SEE_OTHER)

    def _found(self, who: str, text: str, at: datetime | None) -> list[Any]:
        ask = self._frame.desk.ask(self._frame.desk.program.app.lifecycles[0], who=who)
        try:
            return list(find(ask, Sought(text=text, at=at)).rows)
        except UsageError:
            return []

    def problem(self, request: Request, problem: Problem) -> Response:
        """An error as a page. It asks the ledger nothing: that may be what went wrong."""
        first = problem.detail == UNKNOWN
        said = IN_THE_CLEAR if first and in_the_clear(request) else _WHO if first else problem.detail
        unknown = problem.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.TOO_MANY_REQUESTS}
        view: dict[str, Any] = {
            "meaning": "hold" if first else "fault",
            "title": _TITLES.get(problem.status, problem.status.phrase),
            "detail": begun(inert(said)),
            "known": not unknown,
            "leads": _address(request) if unknown and not in_the_clear(request) else "",
        }
        return self._frame.bare(request, "problem", view, problem.status, problem.headers)


def _address(request: Request) -> str:
    """The page that was asked for, with its filters; where somebody tried to sign in, the one that they came from."""
    wanted: str | None = getattr(request.state, "next", None)
    if wanted is not None:
        return wanted
    given = [(name, value) for name, value in request.query_params.multi_items() if name not in OF_THE_SCRIPT]
    return quote(request.scope["path"]) + (f"?{urlencode(given)}" if given else "")


def _leads(path: str, frame: Frame) -> Callable[[Request], Response]:
    def redirect(request: Request) -> Response:
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(frame.link(*path.split("/")) + query, HTTPStatus.SEE_OTHER)

    return redirect

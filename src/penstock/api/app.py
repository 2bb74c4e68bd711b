"""The application: the API, signing in and out, health, and the pages that somebody adds to it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec
import structlog
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from penstock.api.access import Access, Origins
from penstock.api.answers import Bounded, Secure, is_form, secure
from penstock.api.compressed import compressed
from penstock.api.hosts import Hosts
from penstock.api.openapi import document
from penstock.api.problems import Problem, problem_of
from penstock.api.routes import JSON, PREFIX, routes
from penstock.api.signing import Signing
from penstock.model.errors import PenstockError
from penstock.operations.declare import Role

if TYPE_CHECKING:
    from penstock.api.desk import Desk

log = structlog.get_logger()
Shows = Callable[[Request, Problem], Response]
"""How an error looks to people: a page."""
_PROBES = ("/healthz", "/readyz", "/metrics")
_SIGNING = ("/sign-in", "/sign-out")


def make_application(
    desk: Desk, pages: Sequence[BaseRoute] = (), *, access: Access | None = None, shows: Shows | None = None
) -> Starlette:
    """The application over a desk. `pages` are served beside the API, with `access` to know people by.

    Errors are problem documents; where people ask with a browser they are shown by `shows`.
    """
    access = access or Access(desk)
    signing, general = Signing(desk, access), _General(desk, access)

    def answered(request: Request, error: Exception) -> Response:
        problem = problem_of(error)
        answer = problem.response() if shows is None or _by_program(request) else shows(request, problem)
        if problem.status is HTTPStatus.INTERNAL_SERVER_ERROR:
            log.error("web.failed", path=request.url.path[:200], error=f"{type(error).__name__}: {error}"[:500])
            secure(MutableHeaders(raw=answer.raw_headers), request.url.scheme)  # it passes no middleware
        return answer

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        desk.close()

    application = Starlette(
        routes=[
            Route("/healthz", general.alive),
            Route("/readyz", general.ready),
            Route("/metrics", compressed(general.measured)),
            Route("/sign-in", signing.sign_in, methods=["POST"]),
            Route("/sign-out", signing.sign_out, methods=["POST"]),
            Route(f"{PREFIX}/openapi.json", compressed(general.described)),
            *routes(desk, access),
            *pages,
        ],
        middleware=[
            Middleware(Secure, desk=desk),
            Middleware(Hosts, desk=desk),
            Middleware(Origins, desk=desk),
            Middleware(Bounded, desk=desk),
        ],
        exception_handlers=dict.fromkeys([Problem, PenstockError, HTTPException, Exception], answered),
        lifespan=lifespan,
    )
    application.router.redirect_slashes = False
    application.state.desk, application.state.access = desk, access
    return application


def _by_program(request: Request) -> bool:
    """Whether a program asks, so that a page is no answer."""
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    if path in _SIGNING:
        return not is_form(request)
    return path in _PROBES or path.startswith("/api/")


class _General:
    """What is asked of the process itself."""

    def __init__(self, desk: Desk, access: Access) -> None:
        self._desk = desk
        self._access = access

    async def alive(self, _: Request) -> Response:
        """The process answers. Nothing else is looked at."""
        return Response("alive\n", media_type="text/plain")

    async def ready(self, _: Request) -> Response:
        """The ledger answers, and its schema fits this program. Raises what it does not."""
        await self._desk.glance(self._look)
        return Response("ready\n", media_type="text/plain")

    def _look(self) -> None:
        self._desk.ledger().database.read(lambda cursor: cursor.rows("SELECT 1"), within=5.0)

    async def measured(self, request: Request) -> Response:
        """What Prometheus scrapes."""
        await self._access.allow(request, Role.VIEWER)
        text, kind = await self._desk.read(self._desk.metrics)
        return Response(text, media_type=kind)

    async def described(self, request: Request) -> Response:
        """The OpenAPI document."""
        await self._access.allow(request, Role.VIEWER)
        return Response(await self._desk.read(self._document), media_type=JSON)

    def _document(self) -> bytes:
        whole = document(self._desk.program.app, self._desk.root_path, is_open=self._access.is_open)
        return msgspec.json.encode(whole)

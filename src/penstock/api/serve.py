"""Serving an application on a socket: alone, or on a thread beside a worker, whose loop never waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import uvicorn

from penstock.api.connection import AT_ONCE, Connection
from penstock.api.desk import Bound
from penstock.model.errors import UsageError
from penstock.operations.tokens import any_valid

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from penstock.api.desk import Desk

_IDLE_SECONDS = 15
_STOP_SECONDS = 3
_WAITING = 2_048
_AGAIN_SECONDS = 2.0


def bind(address: str) -> socket.socket:
    """A listening socket. Raises UsageError for an address that cannot be had."""
    try:
        wanted = Bound.parse(address)
    except ValueError:
        raise UsageError(f"{address!r:.100} is no address to serve on; write HOST:PORT") from None
    family = socket.AF_INET6 if ":" in wanted.host else socket.AF_INET
    try:
        return socket.create_server((wanted.host, wanted.port), family=family, backlog=_WAITING)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        msg = f"{address} cannot be served on: {why}; give another with --address or in [web]"
        raise UsageError(msg) from error


def bound_to(listening: socket.socket, address: str) -> Bound:
    """Where it listens; a port of 0 has become one."""
    return Bound(Bound.parse(address).host, int(listening.getsockname()[1]))


def require_token(desk: Desk) -> None:
    """Raises UsageError where others than this machine could ask, and nobody has a token."""
    if not desk.bound.loopback and not any_valid(desk.ledger().database, desk.clock.now()):
        msg = (
            f"{desk.bound} can be reached from elsewhere, and there is no valid token; make one with"
            " 'penstock token create NAME --role admin', or serve on 127.0.0.1"
        )
        raise UsageError(msg)


@contextlib.contextmanager
def until_done(work: Callable[[], bool]) -> Iterator[None]:
    """Work, and where it is not done, again and again on a thread while the block runs."""
    ends = threading.Event()

    def again() -> None:
        while not ends.wait(_AGAIN_SECONDS) and not work():
            pass

    if work():
        yield
        return
    thread = threading.Thread(target=again, name="penstock-web-later", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join(_STOP_SECONDS + 2)


def _config(application: ASGIApp, connection: type[Connection] = Connection) -> uvicorn.Config:
    return uvicorn.Config(
        application,
        http=connection,
        ws="none",
        backlog=AT_ONCE,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # believed from configured addresses alone, by the application
        server_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )


class _Quiet(uvicorn.Server):
    """Signals are its caller's business. Few are accepted at once, and many may wait for it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(_WAITING)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(application: ASGIApp, listening: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, which end it in good order; a second one does not wait for anybody."""
    server = _Quiet(_config(application))

    def stop(*_: object) -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    asyncio.run(server.serve([listening]))


@contextlib.contextmanager
def serving(
    application: ASGIApp, listening: socket.socket, connection: type[Connection] = Connection
) -> Iterator[None]:
    """Serve on a thread with a loop of its own while the block runs."""
    server = _Quiet(_config(application, connection))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listening])), name="penstock-web", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.should_exit = True
        thread.join(_STOP_SECONDS + 2)

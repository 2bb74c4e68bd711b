"""Serving a simulator on a loopback socket: in the caller's event loop, or in a thread with a loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator

import uvicorn
from starlette.types import ASGIApp


class _Server(uvicorn.Server):
    """A server inside somebody else's program: signals are not its business, and it tells when it can be reached."""

    def __init__(self, application: ASGIApp) -> None:
        # A simulator that breaks an answer off on purpose is an error to the server, and nobody wants to read of it.
        # What time it is says the simulator, by its own clock, or nobody.
        config = uvicorn.Config(application, log_level="critical", lifespan="off", date_header=False)
        # A client on virtual time may be busy for long between two calls, and still counts on its connection.
        config.timeout_keep_alive = 60
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(application: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """Serve in the running loop, on loopback; gives the address. 0 is any free port. Raises OSError for one in use."""
    bound = socket.create_server(("127.0.0.1", port), backlog=2048)
    server = _Server(application)
    task = asyncio.create_task(server.serve([bound]))
    while not server.started and not task.done():  # noqa: ASYNC110 - the server sets a plain flag
        await asyncio.sleep(0.01)
    try:
        yield "http://{}:{}".format(*bound.getsockname())
    finally:
        server.should_exit = True
        await task


@contextlib.contextmanager
def in_thread(application: ASGIApp) -> Iterator[str]:
    """The same for a caller without a loop, or whose loop runs on virtual time."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="simulator", daemon=True)  # noqa: TID251 - for tests and demonstrations
    thread.start()
    context = serving(application)
    try:
        address = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
        try:
            yield address
        finally:
            asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

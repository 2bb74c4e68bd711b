"""A simulator's answers as an ASGI application: for a usual server, and for a transport in the same process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from penstock.simulators.lean import Answer


async def respond(answer: Answer, latency: Callable[[], float], scope: Scope, receive: Receive, send: Send) -> None:
    """Hear one request out, and answer it after so many seconds."""
    if scope["type"] != "http":
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    query = scope["query_string"].decode("latin-1")
    path = f"{scope['path']}?{query}" if query else scope["path"]
    try:
        status, sent, content = answer(scope["method"], path, headers, body)
    except ConnectionAbortedError:
        # Only an answer that has begun can break off; one that has not would become a 500.
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})
        raise
    if delay := latency():
        await asyncio.sleep(delay)
    await send({"type": "http.response.start", "status": status, "headers": list(sent)})
    await send({"type": "http.response.body", "body": content})

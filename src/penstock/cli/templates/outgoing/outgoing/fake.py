"""A fake of the API, to try things out and for tests: `python -m outgoing.fake` serves it until Ctrl-C.

It stores an item once, refuses one without a text, and fails as it is told to: each `fail_every`-th POST is answered
with 503; each `lose_every`-th is stored, and its answer is lost.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

Message = MutableMapping[str, Any]


@dataclass
class Fake:
    """An ASGI application with a memory: `stored` are its items, `posts` counts what was sent to it."""

    fail_every: int = 0
    lose_every: int = 0
    stored: dict[str, str] = field(default_factory=dict)
    posts: int = 0

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        """Answer one request."""
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, answer = self.answer(scope["method"], scope["path"], body)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str]]:
        """The status and the document of an answer."""
        if method == "GET" and path.startswith("/items/"):
            found = self.stored.get(unquote(path.removeprefix("/items/")))
            return (200, {"id": found}) if found else (404, {"error": "no such item"})
        if (method, path) != ("POST", "/items"):
            return 404, {"error": "unknown path"}
        self.posts += 1
        if self.fail_every and self.posts % self.fail_every == 0:
            return 503, {"error": "down for a moment"}
        item = json.loads(body)
        if not item["text"]:
            return 422, {"error": "an item needs a text"}
        remote_id = self.stored.setdefault(item["item_id"], f"r-{len(self.stored) + 1}")
        if self.lose_every and self.posts % self.lose_every == 0:
            return 504, {"error": "gateway timeout"}
        return 201, {"id": remote_id}


def main() -> None:
    """Serve until Ctrl-C."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m outgoing.fake", description="A fake of the API.")
    parser.add_argument("--port", type=int, default=8099)
    parser.add_argument("--fail-every", type=int, default=0, help="answer every Nth POST with 503")
    parser.add_argument("--lose-every", type=int, default=0, help="lose the answer to every Nth POST")
    given = parser.parse_args()
    fake = Fake(given.fail_every, given.lose_every)
    uvicorn.run(fake, host="127.0.0.1", port=given.port, log_level="warning", lifespan="off")


if __name__ == "__main__":
    main()

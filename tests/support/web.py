"""A small client of an ASGI application of the same process, and a desk over a ledger for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from starlette.applications import Starlette

from penstock.api.access import Access
from penstock.api.app import make_application
from penstock.api.desk import Bound, Desk
from penstock.app.app import App
from penstock.app.program import Program
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Clock, SystemClock
from penstock.model.machine import Actor
from penstock.settings.file import Configuration
from penstock.settings.kernel import KernelSettings, WebSettings
from penstock.web.frame import Frame
from penstock.web.pages import make_desk
from tests.support import shop

HOME = "127.0.0.1:8642"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


@dataclass
class Client:
    """Calls an application as a server would."""

    app: Any
    client: str = "127.0.0.1"
    scheme: str = "http"
    headers: dict[str, str] = field(default_factory=lambda: {"Host": HOME})

    def get(self, path: str, **headers: str) -> Answer:
        return self.call("GET", path, headers=headers)

    def post(self, path: str, given: Any = None, **headers: str) -> Answer:
        body = b"" if given is None else json.dumps(given).encode()
        return self.call("POST", path, body, {"Content-Type": "application/json", **headers})

    def send(self, path: str, **fields: str) -> Answer:
        """Send a form."""
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.call("POST", path, urlencode(fields).encode(), kind)

    def call(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        return asyncio.run(self.ask(method, path, body, {**self.headers, **named(headers or {})}))

    async def ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        parts = urlsplit(path)
        sent = {**headers, **({"Content-Length": str(len(body))} if body else {})}
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": self.scheme,
            "path": unquote(parts.path),
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode()) for name, value in sent.items()],
            "client": (self.client, 40_000),
            "server": ("127.0.0.1", 8642),
        }
        waiting = [{"type": "http.request", "body": body, "more_body": False}]
        answer = Answer(0, {}, b"")

        async def receive() -> Any:
            if not waiting:
                await asyncio.Event().wait()  # a client that stays
            return waiting.pop()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            else:
                answer.body += message.get("body", b"")

        await self.app(scope, receive, send)
        return answer


def named(headers: Mapping[str, str]) -> dict[str, str]:
    """`idempotency_key` as `idempotency-key`."""
    return {name.replace("_", "-"): value for name, value in headers.items()}


def program(app: App, web: WebSettings | None = None, clock: Clock | None = None) -> Program:
    kernel = KernelSettings(web=web or WebSettings())
    return Program(app, Configuration(kernel, {one.name: one.settings() for one in app.own}, version="v1"), clock)


@dataclass
class Site:
    """A ledger with ten orders, two in each state, and what serves it."""

    url: str
    app: App = field(default_factory=lambda: App(shop.lifecycle))
    web: WebSettings = field(default_factory=WebSettings)
    bound: Bound = field(default_factory=lambda: Bound("127.0.0.1", 8642))
    clock: Clock = field(default_factory=SystemClock)
    #: Tests change the ledger behind the desk and look at once.
    fresh: float = 0.0

    def __post_init__(self) -> None:
        self.ledger = Ledger.open(
            self.url, self.app.machines, create=True, data_tables=self.app.data.tables, clock=self.clock
        )
        self.desks: list[Desk] = []

    def orders(self, count: int = 10) -> None:
        made = [
            shop.Order(shop="acme", number=n, day=date(2026, 11, 1), status=list(shop.S)[n % 5], pieces=n)
            for n in range(1, count + 1)
        ]
        self.ledger.birth(made, actor=Actor.API, who="test")

    def application(
        self, web: WebSettings | None = None, bound: Bound | None = None, *, pages: bool = False
    ) -> Starlette:
        """Over a connection of its own; with `pages` the whole desk."""
        made = program(self.app, web or self.web, self.clock)
        desk = Desk(lambda: made, self._open, bound or self.bound, fresh=self.fresh)
        self.desks.append(desk)
        return make_desk(desk) if pages else make_application(desk)

    def browser(self, web: WebSettings | None = None, bound: Bound | None = None, **wishes: Any) -> Client:
        """A client of the pages."""
        return Client(self.application(web, bound, pages=True), **wishes)

    def frame(self) -> Frame:
        """What pages are made with."""
        made = program(self.app, self.web, self.clock)
        desk = Desk(lambda: made, self._open, self.bound)
        self.desks.append(desk)
        return Frame(desk, Access(desk))

    def client(self, web: WebSettings | None = None, bound: Bound | None = None, **wishes: Any) -> Client:
        return Client(self.application(web, bound), **wishes)

    def _open(self) -> Ledger:
        return Ledger.open(self.url, self.app.machines, clock=self.clock)

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, **values)])

    def states(self) -> dict[str, str]:
        return {str(name): str(state) for name, state in self.rows("SELECT unit_id, status FROM shop_order")}

    def close(self) -> None:
        for desk in self.desks:
            desk.close()
        self.ledger.close()


@contextmanager
def site(url: str, orders: int = 10, **wishes: Any) -> Iterator[Site]:
    made = Site(url, **wishes)
    try:
        made.orders(orders)
        yield made
    finally:
        made.close()

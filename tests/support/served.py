"""A desk over real HTTP on loopback."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from penstock.api.desk import Bound, Desk
from penstock.api.serve import bind, bound_to, serving
from penstock.ledger.ledger import Ledger
from penstock.settings.kernel import WebSettings
from penstock.web.pages import make_desk
from tests.support.web import Answer, Site, named, program

FORM = "application/x-www-form-urlencoded"


@dataclass
class Served:
    """Where it is served."""

    bound: Bound

    def ask(self, method: str, path: str, **headers: str) -> Answer:
        """One request, over a connection of its own."""
        return self._ask(method, path, None, headers)

    def post(self, path: str, given: Any, **headers: str) -> Answer:
        """Send JSON."""
        return self._ask("POST", path, json.dumps(given).encode(), {"content_type": "application/json", **headers})

    def send(self, path: str, **fields: str) -> Answer:
        """Send a form."""
        return self._ask("POST", path, urlencode(fields).encode(), {"content_type": FORM})

    def _ask(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection(self.bound.host, self.bound.port, timeout=30)
        try:
            connection.request(method, path, body, named(headers))
            found = connection.getresponse()
            return Answer(found.status, {name.lower(): value for name, value in found.getheaders()}, found.read())
        finally:
            connection.close()


@contextmanager
def served(site: Site, web: WebSettings | None = None, opens: Callable[[], Ledger] | None = None) -> Iterator[Served]:
    """The whole desk of a site; `opens` opens another ledger than its own."""
    running = program(site.app, web, site.clock)
    with bind("127.0.0.1:0") as listening:
        own = opens or (lambda: Ledger.open(site.url, site.app.machines, clock=site.clock))
        desk = Desk(lambda: running, own, bound_to(listening, "127.0.0.1:0"), fresh=0.0)
        with serving(make_desk(desk), listening):
            yield Served(desk.bound)

"""Whose request it is: the address behind trusted proxies, the path below which it is served, and a Host of ours.

A page of somebody else's can make a browser call this machine under a name of its own (rebinding). So a Host that is
neither loopback's nor configured is refused before anything else is looked at.
"""

from __future__ import annotations

from http import HTTPStatus
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.desk import is_loopback
from penstock.api.problems import Problem

if TYPE_CHECKING:
    from penstock.api.desk import Desk

_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-proto", "x-forwarded-host")
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_DEFAULT = {"http": 80, "https": 443}
_PORT_DIGITS = 5


class Hosts:
    """Sets client, scheme, host and root path of a request, and refuses those that are for somebody else."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self.app = app
        self._desk = desk

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope.update(self._seen(scope))  # in place: what stands around this one sees it too
            if not self._ours(scope["state"]["host"], scope["scheme"]):
                said = scope["state"]["host"][:100]
                detail = f"this server is not called {said!r}; add it to hosts in [web], or use a name that is there"
                return await Problem(HTTPStatus.MISDIRECTED_REQUEST, detail).response()(scope, receive, send)
        return await self.app(scope, receive, send)

    def _seen(self, scope: Scope) -> dict[str, Any]:
        headers = Headers(scope=scope)
        client = (scope.get("client") or ("", 0))[0]
        host, scheme = headers.get("host", ""), scope["scheme"]
        forwarded = any(name in headers for name in _FORWARDED)
        if self._trusted(client):
            client = self._caller(headers, client)
            told = headers.get("x-forwarded-proto", scheme).strip().lower()
            scheme = told if told in _DEFAULT else scheme
            host = headers.get("x-forwarded-host", host).strip()
        state = dict(scope.get("state") or {})
        # Nobody stands between: then loopback is a person at this machine.
        state |= {"host": host.lower(), "client": client, "direct": not forwarded and is_loopback(client)}
        prefix, path = self._desk.root_path, scope["path"]
        if prefix and path != prefix and not path.startswith(f"{prefix}/"):
            path = f"{prefix}{path}"  # a proxy may take the prefix away, or leave it
        # Starlette builds addresses of the Host header; it is what the browser used.
        raw = [(name, value) for name, value in scope["headers"] if name != b"host"]
        return {
            "state": state,
            "scheme": scheme,
            "root_path": prefix,
            "path": path,
            "headers": [*raw, (b"host", host.encode("latin-1"))],
        }

    def _trusted(self, client: str) -> bool:
        try:
            address = ip_address(client)
        except ValueError:
            return False
        return any(address in ip_network(one, strict=False) for one in self._desk.settings.trusted_proxies)

    def _caller(self, headers: Headers, client: str) -> str:
        """The last address that a trusted proxy names and that is none itself: those before it anybody can write."""
        named = [one.strip() for value in headers.getlist("x-forwarded-for") for one in value.split(",")]
        for one in reversed(named):
            client = one.strip("[]")
            if not self._trusted(client):
                break
        return client

    def _ours(self, host: str, scheme: str) -> bool:
        name, port = _split(host)
        bound = self._desk.bound
        with_port = port or _DEFAULT.get(scheme, 80)
        if with_port == bound.port and (name in _LOOPBACK or name.strip("[]") == bound.host.lower()):
            return True
        wanted = (_split(one.lower()) for one in self._desk.settings.hosts)
        return any(name == other and number in (None, with_port) for other, number in wanted)


def _split(host: str) -> tuple[str, int | None]:
    name, colon, port = host.rpartition(":")
    if colon and port.isascii() and port.isdigit() and len(port) <= _PORT_DIGITS and not name.endswith(":"):
        return name, int(port)
    return host, None

"""Downloading from an address that a provider named, without being led astray by it.

Only `https` to hosts of a list, only to public addresses, and the connection goes to the very address that was checked:
a name that resolves to something else a moment later changes nothing. Redirects are not followed. Nothing is sent but
the request: no credentials, no header of the provider's API, no proxy, nothing of `.netrc`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from penstock.connectors.http.client import Head, Http
from penstock.connectors.http.exchange import Patience, Transport
from penstock.model.clock import Clock
from penstock.model.errors import Rejected, Transient
from penstock.settings.addresses import is_loopback

Resolve = Callable[[str, int], Awaitable[list[str]]]

_GIB = 1 << 30
_NAT64 = IPv6Network("64:ff9b::/96")
_UNICAST = IPv6Network("2000::/3")
_SPECIAL = tuple(
    map(
        ip_network,
        (
            *("192.0.0.0/24", "192.88.99.0/24", "198.18.0.0/15"),  # protocols, relays of 6to4, benchmarks
            "168.63.129.16/32",  # answers for the cloud's own machinery, to every machine of Azure
            *("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"),  # protocols, documentation, tunnels
        ),
    )
)
"""Addresses that not every version of Python knows for what they are."""
_DEFAULT_PORTS = {"https": 443, "http": 80}
_HTTPS = 443
_FORBIDDEN = 403
_LATER = (408, 429)


class LinkExpired(Transient):
    """The link no longer opens the file; ask for another one, the file is still there."""

    answered = True


class RefusedLink(Rejected):
    """The link leads to a place that the configuration does not allow; nothing was sent there."""


class TooLarge(Rejected):
    """The file is larger than the configuration allows."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of a name, as the operating system gives them."""
    with contextlib.suppress(ValueError):
        return [str(ip_address(host))]
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


@dataclass(frozen=True, slots=True)
class Allowed:
    """Where downloads may come from, and how much.

    A `*` in `hosts` stands for any part of one label. `private_hosts` are exact, `host:port`: an address that is not
    public is allowed for them and for nobody else, and plain `http` where that address is this machine's own.
    """

    hosts: tuple[str, ...]
    private_hosts: tuple[str, ...] = ()
    max_bytes: int = 2 * _GIB
    max_seconds: float = 3_600.0

    def private(self, host: str, port: int) -> bool:
        """Whether the configuration names that very host."""
        return f"{host}:{port}" in self.private_hosts

    def public(self, host: str) -> bool:
        """Whether a host is on the list."""
        return any(re.fullmatch(re.escape(pattern).replace(r"\*", "[a-z0-9-]+"), host) for pattern in self.hosts)


class Downloads:
    """Streams files. `transport` replaces the network: then no address is looked up, and the lists still hold."""

    def __init__(
        self,
        allowed: Allowed,
        clock: Clock,
        *,
        transport: Transport | None = None,
        resolve: Resolve = resolve,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._allowed = allowed
        self._clock = clock
        self._resolve = None if transport is not None else resolve
        self._http = Http("", clock, headers={"Accept-Encoding": "identity"}, transport=transport, context=context)
        self._patience = Patience(total=allowed.max_seconds)

    async def get(self, url: str) -> AsyncGenerator[bytes]:
        """The file's bytes as they are stored, piece by piece.

        Raises LinkExpired, RefusedLink, TooLarge, or Transient when the other side is away or breaks off.
        """
        place = _Place.read(url, self._allowed)
        address = await self._address(place)
        started, received = self._clock.elapsed(), 0
        async with self._http.stream(
            place.url, shown=place.shown, address=address, patience=self._patience
        ) as response:
            self._check(place, response)
            async for piece in response.pieces():
                received += len(piece)
                self._check_size(place, received)
                if self._clock.elapsed() - started > self._allowed.max_seconds:
                    raise Transient(f"GET {place.shown}: not finished after {self._allowed.max_seconds:g} s")
                yield piece

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def _address(self, place: _Place) -> str | None:
        """The one address to connect to; None where there is no network."""
        if self._resolve is None:
            return None
        try:
            async with asyncio.timeout(self._patience.connect):
                found = await self._resolve(place.host, place.port)
        except TimeoutError as error:
            raise Transient(f"GET {place.shown}: no address after {self._patience.connect:g} s") from error
        except OSError as error:
            raise Transient(f"GET {place.shown}: the name cannot be resolved: {error.strerror or error}") from error
        if not found:
            raise Transient(f"GET {place.shown}: the name has no address")
        # One bad address among good ones is how a name is made to pass a check and then lead elsewhere.
        if not place.private and (bad := [address for address in found if not is_public(address)]):
            raise RefusedLink(f"GET {place.shown}: the name leads to {bad[0]}, which is not a public address")
        if place.parts.scheme == "http" and not all(map(is_loopback, found)):
            raise RefusedLink(f"GET {place.shown}: plain http is only for this machine, and this is {found[0]}")
        return found[0]

    def _check(self, place: _Place, response: Head) -> None:
        if response.is_success:
            length = response.headers.get("content-length", "")
            self._check_size(place, int(length) if length.isdecimal() else 0)
            return
        if response.status_code == _FORBIDDEN:
            raise LinkExpired(f"GET {place.shown}: 403, the link has expired or was never valid; ask for another")
        if response.is_redirect:
            raise RefusedLink(f"GET {place.shown}: {response.status_code}, a redirection, which is not followed")
        kind = Transient if response.is_server_error or response.status_code in _LATER else Rejected
        raise kind(f"GET {place.shown}: {response.status_code}")

    def _check_size(self, place: _Place, size: int) -> None:
        if size > self._allowed.max_bytes:
            raise TooLarge(f"GET {place.shown}: more than {self._allowed.max_bytes:,} bytes, the limit of a download")


@dataclass(frozen=True, slots=True)
class _Place:
    """A link that may be followed, in its parts. The query is left out of every text: its signature opens the file."""

    parts: SplitResult
    host: str
    port: int
    private: bool

    @classmethod
    def read(cls, url: str, allowed: Allowed) -> _Place:
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").encode("idna").decode().lower()
            port = _DEFAULT_PORTS.get(parts.scheme, 0) if parts.port is None else parts.port
        except ValueError:  # UnicodeError included
            raise RefusedLink("the link is not an address") from None
        place = cls(parts, host, port, allowed.private(host, port))
        if parts.username is not None or parts.password is not None or not url.isascii() or not url.isprintable():
            raise RefusedLink(f"the link to {host} is not a plain address")
        if place.private and parts.scheme in _DEFAULT_PORTS:
            return place
        if parts.scheme != "https" or port != _HTTPS:
            raise RefusedLink(f"the link to {host} is not https on its usual port")
        if not allowed.public(host):
            known = ", ".join(allowed.hosts) or "none"
            raise RefusedLink(f"the link leads to {host}, which is not an allowed host for downloads: {known}")
        return place

    @property
    def shown(self) -> str:
        return f"{self.host}{self.parts.path}"

    @property
    def url(self) -> str:
        """What is asked for. The name is the host's, whatever address it is asked at: TLS checks the certificate."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        usual = self.port == _DEFAULT_PORTS[self.parts.scheme]
        return self.parts._replace(netloc=name if usual else f"{name}:{self.port}", fragment="").geturl()


def is_public(address: str) -> bool:
    """Whether an address belongs to the public internet, also when it is an IPv4 address in the clothes of IPv6."""
    try:
        found: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        elif found in _NAT64:
            found = IPv4Address(int(found) & 0xFFFFFFFF)
        elif found not in _UNICAST:
            return False
    special = any(found.version == network.version and found in network for network in _SPECIAL)
    return found.is_global and not found.is_multicast and not found.is_reserved and not special

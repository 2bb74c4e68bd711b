"""The one place that makes HTTP calls and says what a failed one means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx2

from penstock.clock import Clock
from penstock.errors import Fatal, InDoubt, Rejected, StepError, Throttled, Transient
from penstock.retry import parse_retry_after

_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# As many connections as a worker takes steps at once: a step that waits for one would count as a failed call.
_LIMITS = httpx2.Limits(max_connections=1_000, max_keepalive_connections=100)
_TIMEOUT = httpx2.Timeout(30.0, connect=10.0)


class Http:
    """A client of one base address. `transport` replaces the network, for a simulator in the same process."""

    def __init__(
        self,
        base_url: str,
        clock: Clock,
        *,
        headers: Mapping[str, str] | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._clock = clock
        self._client = httpx2.AsyncClient(
            base_url=base_url,
            headers=dict(headers or {}),
            timeout=_TIMEOUT,
            transport=transport,
            follow_redirects=False,
        )

    async def send(self, method: str, path: str, *, missing_ok: bool = False, **request: Any) -> httpx2.Response | None:
        """The response of a call that succeeded; with `missing_ok`, None for a 404. Raises a StepError otherwise."""
        try:
            response = await self._client.request(method, path, **request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as error:
            raise Transient(f"{method} {path}: could not connect: {error}") from error
        except httpx2.TransportError as error:
            raise _unanswered(method, f"{method} {path}: {type(error).__name__} {error}".rstrip()) from error
        if response.is_success:
            return response
        if missing_ok and response.status_code == httpx2.codes.NOT_FOUND:
            return None
        raise self._classify(method, path, response)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _classify(self, method: str, path: str, response: httpx2.Response) -> StepError:
        status = response.status_code
        text = f"{method} {path}: {status} {response.text[:200]}".rstrip()
        if status == httpx2.codes.TOO_MANY_REQUESTS:
            asked = response.headers.get("retry-after")
            return Throttled(text, None if asked is None else parse_retry_after(asked, self._clock.now()))
        if status in (httpx2.codes.UNAUTHORIZED, httpx2.codes.FORBIDDEN):
            return Fatal(text)
        if status == httpx2.codes.SERVICE_UNAVAILABLE:
            return Transient(text)
        if status >= httpx2.codes.INTERNAL_SERVER_ERROR or status == httpx2.codes.REQUEST_TIMEOUT:
            return _unanswered(method, text)
        return Rejected(text)


def _unanswered(method: str, text: str) -> StepError:
    """A read may simply be repeated; a write may have arrived."""
    return Transient(text) if method in _SAFE else InDoubt(text)

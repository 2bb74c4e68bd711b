"""One HTTP exchange: what is sent, what comes back, and what is known when nothing does.

A transport carries exchanges: `network` over sockets, `in_process` to a simulator of the same program. It sends each
request once, and what `http` makes of the answer is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


class NotSent(Exception):
    """Nothing of the request left: it may be sent again."""


class Unanswered(Exception):
    """The request may have arrived, and no whole answer came."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How many seconds are waited for a connection, for the next sign of life, and for all of a call."""

    connect: float = 10.0
    silence: float = 30.0
    total: float = 120.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent. One that goes `alone` has a connection of its own; `address` is where its host is to be found."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    patience: Patience
    alone: bool
    address: str | None = None


class Answer(Protocol):
    """An answer whose body is still to be read. The names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]

    async def piece(self) -> bytes:
        """The next bytes of the body, as they were sent; none at its end. Raises Unanswered where it breaks off."""

    def close(self) -> None:
        """Be done with it; a connection with something left to read is never used again."""


class Transport(Protocol):
    """Carries requests, each once."""

    async def send(self, request: Request) -> Answer:
        """The answer. Raises NotSent or Unanswered."""

    async def close(self) -> None:
        """Close the connections."""


def lowered(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers by their names in lower case; those that come more than once in one text, as HTTP joins them."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = name.lower()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found

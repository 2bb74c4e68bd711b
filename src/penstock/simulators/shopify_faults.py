"""What can go wrong with a call at Shopify's simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to one call in place of its answer.

    With `carried_out` the call takes effect first. `cut` closes the connection without an answer. With no `status` the
    answer is the right one, and only late by `seconds`.
    """

    status: int | None = 500
    body: Any = b"Internal Server Error"
    headers: tuple[tuple[str, str], ...] = ()
    carried_out: bool = False
    cut: bool = False
    seconds: float = 0.0


LOST = Fault(cut=True, carried_out=True)
"""The call takes effect, and the connection closes without an answer."""


def errors(message: str, code: str | None = None, *, status: int = 200, carried_out: bool = False) -> Fault:
    """An error of GraphQL, by default under HTTP 200."""
    error = {"message": message, **({} if code is None else {"extensions": {"code": code}})}
    return Fault(status, {"errors": [error]}, carried_out=carried_out)


def slow(seconds: float) -> Fault:
    """The right answer, late."""
    return Fault(None, seconds=seconds)

"""Spans: from a step to the calls that it makes. Without a tracer they cost one comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol


class Tracer(Protocol):
    """Who records spans."""

    def span(self, name: str, facts: dict[str, Any]) -> AbstractContextManager[Any]:
        """A span around a block, within the one that is open here. An exception that leaves the block is recorded."""

    def failed(self, error: BaseException) -> None:
        """The span that is open here has failed, although its block goes on."""


_NOTHING: AbstractContextManager[Any] = nullcontext()
_tracer: Tracer | None = None


@contextlib.contextmanager
def tracing(tracer: Tracer) -> Iterator[None]:
    """Record spans while the block runs; workers that are made within it trace their steps."""
    global _tracer  # noqa: PLW0603 - one process, one tracer
    _tracer = tracer
    try:
        yield
    finally:
        _tracer = None


def on() -> bool:
    """Whether spans are recorded."""
    return _tracer is not None


def span(name: str, **facts: Any) -> AbstractContextManager[Any]:
    """A span around a block; nothing where nobody records them."""
    return _NOTHING if _tracer is None else _tracer.span(name, facts)


def failed(error: BaseException) -> None:
    """The span that is open here has failed."""
    if _tracer is not None:
        _tracer.failed(error)

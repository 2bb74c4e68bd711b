"""Waiting for a ledger that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import structlog

from penstock.ledger.store.presence import Presence
from penstock.model.clock import Rng
from penstock.model.errors import LedgerUnavailable
from penstock.worker.executor import Executor

T = TypeVar("T")
log = structlog.get_logger()
_LONGEST_PAUSE = 5.0


def announce(presence: Presence) -> None:
    """Log when the ledger stops answering and when it is back, once each, whoever notices first."""
    presence.tell(
        gone=lambda error: log.warning("ledger.away", error=str(error)),
        back=lambda: log.info("ledger.back"),
        busy=lambda error: log.warning("ledger.busy", error=str(error)),
    )


def pauses(rng: Rng) -> Iterator[float]:
    """Seconds to wait before each further try: ever longer, up to a few, and never the same for all workers."""
    pause = 0.1
    while True:
        yield pause * rng.uniform(0.8, 1.2)
        pause = min(pause * 2, _LONGEST_PAUSE)


async def patiently(executor: Executor, rng: Rng, work: Callable[..., T], *args: Any) -> T:
    """What the work comes to, inside a step: the step's deadline is the limit.

    It is done again until the ledger answers, so doing it twice must change nothing.
    """
    waits = pauses(rng)
    while True:
        try:
            return await executor.run(work, *args)
        except LedgerUnavailable:
            await asyncio.sleep(next(waits))

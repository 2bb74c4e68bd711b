"""One page of a client, with the retries that a run makes while it holds the run lock.

Released in between, the lock would let another query run meanwhile. A client that limits the rate of calls rests for
hours, and its gate says so to every query of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from penstock.connectors.searches import Batch, Client, Parameters, Wanted
from penstock.lifecycles.queries.runs import Stop
from penstock.lifecycles.queries.store import Digest
from penstock.model.errors import Fatal, GateClosed, InDoubt, Rejected, Throttled, Transient
from penstock.model.retry import RetryPolicy
from penstock.worker.flow import Io

Asked = Callable[[], None]
RETRIES = RetryPolicy(max_retries=3)
_SHORT = timedelta(seconds=90)
"""A gate that opens within this time is waited for; a breaker opens after a minute."""
_WAITS = 3


class Halted(Struct, frozen=True):
    """Why a run cannot go on: what went wrong, and until when its client is closed."""

    stop: Stop
    error: str
    until: datetime | None = None
    #: What was asked for is refused, and will be.
    refused: bool = False


class Fetched(Struct, frozen=True):
    """A page, or why there is none."""

    batch: Batch | None = None
    #: Of its records, by their ids.
    digests: Mapping[str, Digest] = {}
    halted: Halted | None = None
    throttles: int = 0


async def fetch(  # noqa: PLR0917 - what is asked, of whom, and through which gate
    client: Client, parameters: Parameters, wanted: Wanted, gate_id: str, client_pause: timedelta, io: Io, asked: Asked
) -> Fetched:
    """The page. A failed call is made again up to three times, two seconds later and ever later.

    `asked` is called when the gate has let the call through.
    """
    failures = waits = 0
    said = ""
    while True:
        if io.stopping():
            return Fetched(halted=Halted(Stop.STOPPED, "its worker was told to stop", io.now()))
        try:
            async with io.gate(gate_id):
                asked()
                before = client.calls
                try:
                    return Fetched(await _asked(client, parameters, wanted, client_pause))
                finally:
                    # The gate has let one through.
                    if client.calls - before > 1:
                        io.charge(gate_id, {"requests": client.calls - before - 1.0})
        except GateClosed as closed:
            wait = None if closed.until is None else closed.until - io.now()
            # Nobody waits for a breaker that this run's own failures have opened: the lock is everybody's.
            if failures or wait is None or wait > _SHORT or waits == _WAITS:
                stop = Stop.ERROR if failures else Stop.CLIENT_CLOSED
                return Fetched(halted=Halted(stop, f"{said}{closed}", closed.until))
            waits += 1
            await asyncio.sleep(max(0.0, wait.total_seconds()))
        except (Throttled, Fatal, Rejected) as error:
            return Fetched(halted=_final(error), throttles=isinstance(error, Throttled))
        except (Transient, InDoubt) as error:
            told = f"{type(error).__name__}: {error} (after {failures} retries)"
            if RETRIES.exhausted(failures):
                return Fetched(halted=Halted(Stop.ERROR, told))
            said = f"{told}; "
            await asyncio.sleep(RETRIES.delay(failures, io.rng).total_seconds())
            failures += 1


def _final(error: Throttled | Fatal | Rejected) -> Halted:
    """Errors that another try would not mend."""
    if isinstance(error, Throttled):
        return Halted(Stop.RATE_LIMITED, str(error), error.until)
    told = f"{type(error).__name__}: {error}"
    return Halted(Stop.FATAL, told) if isinstance(error, Fatal) else Halted(Stop.ERROR, told, refused=True)


async def _asked(client: Client, parameters: Parameters, wanted: Wanted, client_pause: timedelta) -> Batch:
    """One call. A throttle closes the client for hours, whatever it asks for."""
    try:
        return await client.page(parameters, wanted)
    except Throttled as error:
        seconds = max(client_pause.total_seconds(), error.retry_after or 0.0)
        raise Throttled(str(error), seconds) from error

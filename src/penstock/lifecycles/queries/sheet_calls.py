"""The calls of one synchronisation: inside the window, through the gate, and tried again where that may help.

The window is looked at right before each call. A call that fails is part of a piece of work that reads first: the whole
piece begins anew, up to three times. Nobody is charged for waiting at the gate.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from penstock.model.cadence import Cadence, Window
from penstock.model.errors import GateClosed, InDoubt, PenstockError, Rejected, Throttled, Transient
from penstock.model.limits import GateLimits, Limit
from penstock.model.retry import RetryPolicy

if TYPE_CHECKING:
    from penstock.lifecycles.queries.settings import QueriesSettings, SheetSettings
    from penstock.worker.flow import Io

T = TypeVar("T")
RETRIES = RetryPolicy(max_retries=3, base=timedelta(seconds=2), jitter=0.0)
READ: Mapping[str, float] = {"reads": 1.0, "writes": 0.0}
WRITE: Mapping[str, float] = {"reads": 0.0, "writes": 1.0}

_PATIENCE = timedelta(minutes=3)
"""How long a synchronisation waits for its gate; when that takes longer, it begins anew once the gate is open."""
_LONGEST = timedelta(minutes=40)
"""How long it goes on at most: a step of an hour counts as one that hangs."""
_THROTTLES = 5
_MOST_MOVES = 3


class WindowClosed(PenstockError):
    """The hours are over; what is left is done in the next ones."""


class TimeUp(PenstockError):
    """It has gone on for long enough; what is left is done at once, by another run."""


class Moved(PenstockError):
    """Somebody moved rows or columns while they were written."""


class Restless(Rejected):
    """Rows or columns were moved each time they were written."""


class _Again(PenstockError):
    """A write was throttled: what it would write may no longer be true."""


async def _sleep(seconds: float) -> None:
    import asyncio  # not by who asks for the gates alone

    await asyncio.sleep(seconds)


def gate_of(settings: SheetSettings) -> str:
    """The gate of a spreadsheet's calls."""
    return f"google_sheets/{settings.spreadsheet_id}"


def gates(settings: QueriesSettings) -> list[GateLimits]:
    """How fast the spreadsheet may be read and written: together a minute's calls are never more than those allowed."""
    own = settings.sheet
    if own is None or not own.requests_per_minute:
        return []
    burst = max(1.0, own.requests_per_minute / 10)
    rate = max(own.requests_per_minute - burst, own.requests_per_minute / 2) / 60
    return [GateLimits(gate_of(own), tuple(Limit(name, rate, burst) for name in ("reads", "writes")))]


def window_of(settings: SheetSettings) -> Window:
    """The hours in which the sheet is read and written."""
    window = Cadence.parse(every="1h", hours=settings.hours, time_zone=settings.time_zone).window
    assert window is not None  # noqa: S101 - hours were given
    return window


class Calls:
    """Makes the calls of one synchronisation."""

    def __init__(self, gate_id: str, window: Window, io: Io) -> None:
        self._gate_id = gate_id
        self._window = window
        self._io = io
        self._ends = io.now() + _LONGEST
        self._throttles = 0
        #: How many calls were answered.
        self.made = 0

    async def read(self, work: Callable[[], Awaitable[T]]) -> T:
        """A call that reads; it waits for the gate. Raises WindowClosed, TimeUp, GateClosed or a StepError."""
        while True:
            try:
                return await self._through(READ, work)
            except (GateClosed, Throttled) as closed:
                await self._wait(closed)

    async def write(self, work: Callable[[], Awaitable[T]]) -> T:
        """A call that writes; once it was throttled the piece of work begins anew, with a read.

        Where the budget is spent it only waits: a read would spend that again, and nothing would ever be written.
        """
        while True:
            try:
                return await self._through(WRITE, work)
            except GateClosed as closed:
                await self._wait(closed)
            except Throttled as closed:
                await self._wait(closed)
                raise _Again(str(closed)) from closed

    async def settle(self, piece: Callable[[], Awaitable[T]], doubt: Callable[[], None]) -> T:
        """Do a piece of work that begins with a read. `doubt` is called before it begins anew after a failure.

        Raises what it failed with at last, and Restless where people moved what was written each time.
        """
        failures = moves = 0
        while True:
            try:
                return await piece()
            except _Again:
                continue
            except Moved as error:
                moves += 1
                if moves > _MOST_MOVES:
                    raise Restless(f"{error}; it was written {moves} times") from error
            except (Transient, InDoubt):
                if RETRIES.exhausted(failures):
                    raise
                await _sleep(RETRIES.delay(failures, self._io.rng).total_seconds())
                failures += 1
            doubt()

    async def _through(self, costs: Mapping[str, float], work: Callable[[], Awaitable[T]]) -> T:
        self._look()
        async with self._io.gate(self._gate_id, costs):
            self._look()  # leave may have taken its time
            answer = await work()
        self.made += 1
        self._throttles = 0
        return answer

    def _look(self) -> None:
        now = self._io.now()
        if self._window.open_or_next(now) != now:
            raise WindowClosed("the window closed")
        if now > self._ends:
            raise TimeUp("the time of one run is over")

    async def _wait(self, closed: GateClosed | Throttled) -> None:
        """Wait for the gate; raise what was met where that takes long, or where nobody knows how long."""
        if isinstance(closed, Throttled):
            self._throttles += 1
            if self._throttles > _THROTTLES:
                raise closed
        now = self._io.now()
        if closed.until is None or closed.until > now + _PATIENCE:
            raise closed
        await _sleep(max(0.0, (closed.until - now).total_seconds()) + 0.001)

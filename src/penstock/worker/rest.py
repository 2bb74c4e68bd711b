"""A worker's rest: it sleeps until the ledger says, until it is poked, or until it hears of others."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading

from penstock.ledger.gates.budget import HORIZON
from penstock.ledger.idle import Idle
from penstock.model.clock import Clock

_SHORTEST = 0.005
_UNANSWERED = 1.0


class Rest:
    """`longest` seconds at a time; None where nobody else writes to the ledger (simulation)."""

    def __init__(self, clock: Clock, longest: float | None) -> None:
        self._clock = clock
        self._longest = longest
        self._called = asyncio.Event()
        self._poked = self._heard = self._asking = False
        self._until = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        #: More is due than could be claimed: whatever becomes free is a reason to claim again.
        self.backlog = False
        self.asleep = asyncio.Event()
        #: Something was claimed since anybody last looked here.
        self.worthwhile = False

    def begin(self) -> None:
        """From here on this thread's event loop is the worker's."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()

    def poke(self) -> None:
        """Claim now: something was made due."""
        self._poked = True
        self._called.set()

    def hear(self) -> None:
        """Ask the ledger now: somebody wrote to it."""
        self._heard = True
        self._called.set()

    def ring(self) -> None:
        """`poke`, from any thread."""
        if threading.get_ident() == self._thread:
            self.poke()
        elif self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it was closed meanwhile
                self._loop.call_soon_threadsafe(self.poke)

    def freed(self, soon: float | None) -> None:
        """A unit was settled: claim again if more was waiting, or wake earlier for what it made due."""
        if self.backlog or (soon is not None and self._clock.elapsed() + soon < self._until):
            self.poke()

    def look(self) -> None:
        """The ledger is about to be looked at: whatever was said before is heeded by that."""
        self._poked = self._heard = False
        self._called.clear()

    def ask(self) -> None:
        """The ledger is about to be asked: so is whatever was heard before."""
        self._asking, self._heard = self._heard, False
        if not self._poked:
            self._called.clear()

    async def called(self, seconds: float | None) -> None:
        """Wait to be called, no longer than so many seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._called.wait(), seconds)

    async def sleep(self, idle: Idle | None) -> bool:
        """Sleep until the ledger says; False when there is a reason to ask again, but none yet to claim."""
        wanted = _UNANSWERED if idle is None else idle.seconds()
        if self._asking and wanted == 0:
            return True
        seconds, longest = wanted, self._longest
        if longest is not None:
            seconds = min(longest, math.inf if wanted is None else wanted)
        if seconds is not None:
            # What is due but taken by others first would have us ask again at once: never faster than this.
            seconds = max(seconds, HORIZON if self.backlog else _SHORTEST)
        self._until = math.inf if seconds is None else self._clock.elapsed() + seconds
        self.asleep.set()
        try:
            await self.called(seconds)
        finally:
            self.asleep.clear()
        if idle is None or self._poked:
            return True
        if self._heard:
            return False
        return wanted is not None and seconds is not None and wanted <= seconds

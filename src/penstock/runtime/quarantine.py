"""Suspects, stepped apart from the others: a worker died while it held them, and one of them may have killed it.

They are claimed by statements of their own, one at a time as long as their steps are quick; while a step takes longer
others join it, ever more of them, so that slow steps of innocents go on side by side. The more deaths a suspect has
seen, the fewer others it is held with; from the seventh on it is alone. So what the ledger says was held together ran
together, and the guilty one is found by ever smaller groups (see `ledger.suspicion`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from penstock.clock import Clock
from penstock.ledger.claims import Levels
from penstock.runtime.stepper import Stepper

#: At most so many together, by level of suspicion: a third after each death.
_WIDEST = (1_000, 300, 100, 30, 10, 3, 1)
#: So many have joined a step after a second, and with the square of the time: after 30 ms one, after 100 ms ten.
_JOINED = 1_000
_LOOK_AGAIN = 0.01
#: So long suspects of one level are let in before those of the next have their turn.
_TURN_SECONDS = 3.0
_MOST = 2**31 - 1

Look = Callable[[], Awaitable[list[int] | None]]
Claim = Callable[[int, Levels], Awaitable[int]]


class Quarantine:
    """Lets a few suspects in at a time, when it is poked.

    `look` asks which levels of suspicion wait (None: the ledger is away), `claim` takes up to so many suspects of some
    levels and says how many it got.
    """

    def __init__(self, stepper: Stepper, clock: Clock, look: Look, claim: Claim, *, look_seconds: float) -> None:
        self._stepper = stepper
        self._clock = clock
        self._look = look
        self._claim = claim
        self._look_seconds = look_seconds
        self._poke = asyncio.Event()

    def poke(self) -> None:
        """Look now: suspects may have come."""
        self._poke.set()

    async def run(self) -> None:
        """Work suspects off, for ever."""
        while True:
            await self._poke.wait()
            self._poke.clear()
            # The lowest level first: they are the most, and nearly all of them are innocent. But each has its turn.
            for place in sorted({min(level, len(_WIDEST)) for level in await self._look() or []}):
                levels = Levels(place, place if place < len(_WIDEST) else _MOST)
                ends = self._clock.elapsed() + _TURN_SECONDS
                while await self._let_in(levels, _WIDEST[place - 1], ends):
                    self._poke.set()  # there may be more

    async def _let_in(self, levels: Levels, widest: int, ends: float) -> bool:
        """Claim as many as may join those that are being stepped, or wait a moment; False when the turn is over.

        It is when none is held and none was to be had, or time is up.
        """
        suspects, settled = self._stepper.suspects, self._stepper.suspect_settled
        settled.clear()
        room = self._room(widest) if self._clock.elapsed() < ends else 0
        if room > 0 and await self._claim(room, levels):
            return True
        if not suspects:
            return False
        # With no room, others may join after a moment. With room, nobody waits: those that are held end first.
        wait = _LOOK_AGAIN if room <= 0 else self._look_seconds
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(settled.wait(), wait)
        return True

    def _room(self, widest: int) -> int:
        """How many more may join those that are being stepped."""
        suspects = self._stepper.suspects
        if not suspects:
            return 1
        seconds = self._clock.elapsed() - min(suspects.values())
        return min(widest, 1 + int(_JOINED * seconds * seconds)) - len(suspects)

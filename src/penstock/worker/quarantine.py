"""Suspects, stepped apart from the others: a worker died while it held them, and one of them may have killed it.

They are claimed by statements of their own, one at a time as long as their steps are quick; while a step takes longer
others join it, ever more of them, so that slow steps of innocents go on side by side. The more deaths a suspect has
seen, the fewer others it is held with; from the seventh on it is alone. So what the ledger says was held together ran
together, and the guilty one is found by ever smaller groups (see `ledger.suspicion`). Siblings are one suspect, until
they are parted (see `model.siblings`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable

from penstock.ledger.claim import Levels
from penstock.model.clock import Clock
from penstock.worker.holding import Holding

#: At most so many together, by level of suspicion: a third after each death.
_WIDEST = (1_000, 300, 100, 30, 10, 3, 1)
#: So many have joined a step after a second, and with the square of the time: after 30 ms one, after 100 ms ten.
_JOINED = 1_000
_LOOK_AGAIN = 0.01
_LOOK_SELDOM = 0.5
#: So long suspects of one level are let in before those of the next have their turn.
_TURN_SECONDS = 1.0
_MOST = 2**31 - 1

Look = Callable[[], Awaitable[list[int] | None]]
Claim = Callable[[int, Levels], Awaitable[int]]


class Quarantine:
    """Lets a few suspects in at a time, when it is poked.

    `look` asks which levels of suspicion wait (None: the ledger is away), `claim` takes up to so many suspects of some
    levels and says how many it got.
    """

    def __init__(self, holding: Holding, clock: Clock, look: Look, claim: Claim) -> None:
        self._holding = holding
        self._clock = clock
        self._look = look
        self._claim = claim
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
            for level in sorted({min(level, len(_WIDEST)) for level in await self._look() or []}):
                if await self._turn(level):
                    self._poke.set()  # there may be more

    async def _turn(self, level: int) -> bool:
        """Let suspects of one level in, for a while from the first on; whether there was any."""
        levels = Levels(level, level if level < len(_WIDEST) else _MOST)
        ends = math.inf
        while self._clock.elapsed() < ends:
            settled = self._holding.suspect_settled
            settled.clear()
            room = self._room(level)
            if room > 0 and not await self._claim(room, levels):
                break
            if room > 0:
                ends = min(ends, self._clock.elapsed() + _TURN_SECONDS)
            # While a group may grow it is looked at often; one that may not waits for its own.
            seconds = _LOOK_AGAIN if self._stepped() < self._widest(level) else _LOOK_SELDOM
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(settled.wait(), seconds)
        return ends < math.inf

    def _room(self, level: int) -> int:
        """How many more may join those that are being stepped: nobody is held with more than its level allows."""
        suspects = self._holding.suspects
        if not suspects:
            return 1
        seconds = self._clock.elapsed() - min(suspect.since for suspect in suspects.values())
        return min(self._widest(level), 1 + int(_JOINED * seconds * seconds)) - self._stepped()

    def _stepped(self) -> int:
        """How many are being stepped, siblings as one."""
        return len({suspect.step for suspect in self._holding.suspects.values()})

    def _widest(self, level: int) -> int:
        """How many may be held together when one of that level is among them."""
        highest = max([level, *(suspect.level for suspect in self._holding.suspects.values())])
        return _WIDEST[min(len(_WIDEST), highest) - 1]

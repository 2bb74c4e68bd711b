"""Which machines a worker claims from: while others have work, one that had nothing due is asked seldom.

Room is shared among the machines that are asked. A program has several that rest most of the time, such as its
schedules, and each of them would take its share of every claim.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from penstock.model.clock import Clock

_SELDOM_SECONDS = 0.05


class Shares:
    """What was found of each machine when it was last asked."""

    def __init__(self, machines: Collection[str], clock: Clock) -> None:
        self._machines = list(machines)
        self._clock = clock
        self._empty: dict[str, float] = {}

    def of(self, room: int) -> list[dict[str, int]]:
        """How many to claim of which: first those that had any, and one each of others where their time has come.

        Where these have nothing, all are asked, with equal shares.
        """
        now = self._clock.elapsed()
        busy = [name for name in self._machines if name not in self._empty]
        others = [name for name, seen in self._empty.items() if now - seen >= _SELDOM_SECONDS]
        equal = dict.fromkeys(self._machines, math.ceil(room / max(1, len(self._machines))))
        if not busy or len(busy) == len(self._machines):
            return [equal]
        share = max(1, math.ceil((room - len(others)) / len(busy)))
        return [dict.fromkeys(busy, share) | dict.fromkeys(others, 1), equal]

    def noted(self, wants: Mapping[str, int], there: Collection[str]) -> None:
        """So many were asked for of each machine, and these had any."""
        now = self._clock.elapsed()
        for name, wanted in wants.items():
            if name in there:
                self._empty.pop(name, None)
            elif wanted > 0:
                self._empty[name] = now

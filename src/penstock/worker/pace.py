"""How fast a worker gets its steps done, and how many units it holds by that."""

from __future__ import annotations

from penstock.model.clock import Clock
from penstock.worker.held import Counts
from penstock.worker.holding import Holding

_AHEAD_SECONDS = 0.25
_RATE_SECONDS = 0.1


class Pace:
    """At most `slots` units are held, and about twice as many steps as run at once (`concurrency`)."""

    def __init__(self, clock: Clock, counts: Counts, *, concurrency: int, slots: int) -> None:
        self._clock = clock
        self._counts = counts
        self._concurrency = concurrency
        self._slots = slots
        #: Steps that were committed in a second, as last measured.
        self.rate = 0.0
        self._measured = (0, clock.elapsed())

    def measure(self) -> None:
        """Asked often, so that the read-ahead soon meets a burst."""
        now = self._clock.elapsed()
        steps, since = self._measured
        if now - since >= _RATE_SECONDS:
            self.rate = (self._counts.steps - steps) / (now - since)
            self._measured = (self._counts.steps, now)

    def room(self, holding: Holding) -> int:
        """How many more units to hold: enough to keep every step busy, and no more than is done in a moment.

        What one worker hoards, another cannot take; so the read-ahead follows what this worker gets done.
        """
        self.measure()
        ahead = max(self._concurrency, int(self.rate * _AHEAD_SECONDS))
        return min(self._slots - len(holding.held), self._concurrency + ahead - holding.steps)

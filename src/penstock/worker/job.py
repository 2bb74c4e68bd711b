"""What a run of a periodic job comes to. It imports nothing heavy: a lifecycle in one file returns it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from penstock.model.outcome import Birth, Event, Move, Write


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a run came to; it commits with the schedule's next tick."""

    reason: str
    writes: Sequence[Write] = ()
    others: Sequence[Birth | Move] = ()
    events: Sequence[Event] = ()
    #: Come back at once: there was more to do than one run should carry.
    again: bool = False
    #: Come back after so long, unless a tick comes before: there will be more soon.
    soon: timedelta | None = None

"""What a chunk needs next. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from penstock.lifecycles.harvest.chunk.machine import C, Chunk
from penstock.lifecycles.harvest.run.machine import R
from penstock.lifecycles.harvest.settings import HarvestSettings
from penstock.model.outcome import Act, Decision, Look, Wait


@dataclass(frozen=True, slots=True)
class Seen:
    """How the chunk's run stands, and the digest of the rules that it is priced by."""

    run: str
    digest: str | None


def decide(chunk: Chunk, now: datetime, settings: HarvestSettings, seen: Seen | None) -> Decision:
    """Consolidate while the run wants it; a chunk whose run has stopped goes with it."""
    if chunk.status is not C.WORKING:
        return Wait(None, f"the chunk is {chunk.status}")
    if chunk.feed not in settings.feeds:
        return Wait(now + timedelta(minutes=5), f"the feed {chunk.feed!r} is not configured; configure it again")
    if seen is None:
        return Look("does its run still want it?")
    if seen.run != R.CONSOLIDATING or seen.digest is None:
        return Act("give_up", f"its run is {seen.run}", counts_attempt=False)
    return Act("consolidate", "its rows are to be consolidated")

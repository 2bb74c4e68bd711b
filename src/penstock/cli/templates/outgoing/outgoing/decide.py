"""The decision: what to do with an item now, and why. Pure, so that `penstock why` and the tests can ask it too."""

from __future__ import annotations

from datetime import datetime

from penstock import Act, Decision, Look, Wait

from outgoing.machine import Item, S
from outgoing.settings import OutgoingSettings


def decide(item: Item, now: datetime, settings: OutgoingSettings, seen: str | None) -> Decision:
    """`seen` is what a look has found: the API's id of the item, "" where it has none, None before any look."""
    if item.status is not S.SENDING:
        return Wait(None, "nothing to do")
    if seen is None and (settings.look_first or item.attempts + item.doubts > 0):
        return Look("an earlier call may have arrived")
    if seen:
        return Act("record", f"the API has it as {seen}", counts_attempt=False)
    return Act("send", "the API does not have it")

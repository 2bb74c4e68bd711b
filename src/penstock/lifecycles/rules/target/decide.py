"""What to do with a target: look at the live price, then set it, record it, or leave it to a person."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import Struct

from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.settings import gate_of
from penstock.lifecycles.rules.target.machine import T, Target
from penstock.model.outcome import Act, Decision, Look, Wait
from penstock.model.unit import NO_GATE

if TYPE_CHECKING:
    from penstock.lifecycles.rules.settings import RulesSettings


class Seen(Struct, frozen=True):
    """The live price; None: the variant does not exist."""

    live: Price | None


def in_doubt(target: Target) -> bool:
    """Whether a call of it may have left whose effect nobody has seen."""
    return target.in_doubt_since is not None or target.doubts > 0


def gate(target: Target, settings: RulesSettings) -> str:  # noqa: ARG001 - one shape
    """The gate of a target's next step. One that was stopped calls nobody, unless a call of it is in doubt."""
    return NO_GATE if target.halted and not in_doubt(target) else gate_of(target.account)


def decide(target: Target, now: datetime, settings: RulesSettings, seen: Seen | None) -> Decision:  # noqa: ARG001
    """Every call is preceded by a look in the same step, so that no price is set over one that nobody expected."""
    if target.status is not T.APPLYING:
        return Wait(None, "waits for its run" if target.held else f"it is {target.status}")
    if target.held and not in_doubt(target):
        return Act("rest", "its run lets it wait", counts_attempt=False)
    if target.halted and not in_doubt(target):
        return Act("halt", "its run was stopped before it was sent", counts_attempt=False)
    if seen is None:
        return Look("the live price says what is to be done")
    if seen.live is None:
        return Act("gone", "the variant does not exist any more", counts_attempt=False)
    if seen.live == Price.from_json(target.after_json or {}):
        return Act("record", "the live price is the one wanted", counts_attempt=False)
    if seen.live != Price.from_json(target.before_json):
        return Act("conflict", "somebody else has set the price", counts_attempt=False)
    if target.halted:
        return Act("halt", "its run was stopped, and no call of it has arrived", counts_attempt=False)
    if target.spent:
        return Act("give_up", "no call of it has arrived, and no retry is left", counts_attempt=False)
    return Act("send", "the live price is the one before")

"""A move of many units by one statement, as a part of an outcome."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from penstock.model.machine import Actor

if TYPE_CHECKING:
    from penstock.model.outcome import Where

MAX_SET = 20_000
"""How many units one set moves at most: its transaction takes a second at the most."""
MOVED = "moved"
"""What the `result` of an item says when its unit was moved; otherwise it says why not."""


LOCKED = "locked by somebody"
"""What it says of a unit that another transaction had locked: it may go a moment later."""


class Left(Struct, frozen=True):
    """How many units a set has left: those it would move now, those that a worker holds, and of the others the parked.

    A unit that somebody has locked for a moment is among the first.
    """

    free: int
    claimed: int
    parked: int


class MoveSet(Struct, frozen=True, kw_only=True):
    """Units of one machine that go from any of `sources` to `to`, set-based. `to=None`: each keeps its state.

    Which units: those that equal `where` in all its columns, at most `limit`; or those that `items` names, rows of a
    data table bounded by a `span` of at most 20,000, with the columns `unit_id`, `version` and `result`. An item moves
    its unit only as long as the unit still has that version, and its `result` becomes "moved" or the reason why not.

    Units that a worker holds never move. `parked`: False moves those that are not parked, True those that are, None
    both. `changes` are constants by column; `NOW` in a column of instants is the ledger's time. `adds` are numbers that
    are added to what each unit has in a column. `who` is whoever the history names, if not the one who commits.
    `action_id` links the rows of the history to their bulk action.

    A set passes by what it cannot have now. `Ledger.left_of` says how many units are left, so that a flow can repeat it
    until there are none.
    """

    machine: str
    sources: Collection[str]
    to: str | None
    reason: str
    where: Mapping[str, Any] | None = None
    items: Where | None = None
    changes: Mapping[str, Any] = {}
    adds: Mapping[str, int] = {}
    limit: int = MAX_SET
    parked: bool | None = False
    actor: Actor = Actor.WORKER
    who: str | None = None
    action_id: str | None = None

"""The flow of bulk actions: one set of units is one commit, so that a crash loses nothing and repeats nothing."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from penstock.model.move_set import MAX_SET, MOVED, MoveSet
from penstock.model.outcome import Act, Decision, Outcome, Wait, Where
from penstock.model.unit import replace
from penstock.operations.bulk.machine import B, BulkAction, bulk_action
from penstock.operations.bulk.tables import bulk_item
from penstock.worker.flow import Flow, Io


def decide(action: BulkAction, now: datetime, settings: None, seen: None) -> Decision:  # noqa: ARG001 - one shape
    """Move the next units; when all were looked at, sum up."""
    if action.status is not B.RUNNING:
        return Wait(None, f"the action is {action.status}")
    if action.position < action.total:
        return Act("move", f"{action.position:,} of {action.total:,} were looked at", counts_attempt=False)
    return Act("finish", "every unit was looked at", counts_attempt=False)


class BulkActions(Flow[BulkAction, None, None]):
    """Carries out plans of many moves."""

    machine = bulk_action
    decide = staticmethod(decide)
    deadline = timedelta(minutes=5)
    #: Sets of 20,000: two thousand million units.
    turns = 100_000
    #: Others have their share of the ledger between two sets of one action.
    at_once = 1

    def __init__(self) -> None:
        super().__init__(None)

    async def act(self, what: str, unit: BulkAction, seen: None, io: Io) -> Outcome[BulkAction]:  # noqa: ARG002
        if what == "move":
            return _move(unit)
        moved, skipped = await io.ledger(lambda ledger: counted(ledger, unit.action_id))
        after = replace(unit, status=B.DONE, moved=moved, skipped=skipped, finished_at=io.now())
        return Outcome(unit, after, f"{moved:,} moved, {skipped:,} skipped")


def _move(action: BulkAction) -> Outcome[BulkAction]:
    number, (source, target, changes, _, after) = _part(action)
    last = min(action.position + MAX_SET, after)
    items = Where(bulk_item, {"action_id": action.action_id, "part": number}, span=("position", action.position, last))
    moves = MoveSet(
        machine=action.target,
        sources=[source],
        to=None if target == source else target,
        reason=action.reason,
        items=items,
        changes=changes,
        parked=None,
        actor=Actor.OPERATOR,
        who=action.requested_by,
        action_id=action.action_id,
    )
    reason = f"{last:,} of {action.total:,} were looked at"
    return Outcome(action, replace(action, position=last), reason, move_sets=[moves], keep_claim=True)


def _part(action: BulkAction) -> tuple[int, list[Any]]:
    """The part in which the next item lies."""
    for number, part in enumerate(action.parts):
        if action.position < part[4]:
            return number, part
    raise AssertionError(action.unit_id)


def counted(ledger: Ledger, action_id: str) -> tuple[int, int]:
    """How many units of an action were moved, and how many skipped."""
    sql = "SELECT result = :moved, count(*) FROM bulk_item WHERE action_id = :action AND result IS NOT NULL GROUP BY 1"
    rows = ledger.read(lambda cursor: cursor.rows(sql, moved=MOVED, action=action_id))
    found = {bool(moved): int(count) for moved, count in rows}
    return found.get(True, 0), found.get(False, 0)

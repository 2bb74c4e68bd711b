"""The flow of bulk actions: one set of units is one commit, so that a crash loses nothing and repeats nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from penstock.ledger.ledger import Ledger
from penstock.model.errors import LedgerRefused, MustWait
from penstock.model.machine import Actor
from penstock.model.move_set import LOCKED, MAX_SET, MOVED, MoveSet
from penstock.model.outcome import Outcome, Where
from penstock.model.unit import replace
from penstock.operations.bulk.machine import B, BulkAction, bulk_action, decide
from penstock.operations.bulk.tables import bulk_item
from penstock.worker.flow import Flow, Io

_ROUNDS = 5
_PAUSE = timedelta(seconds=1)


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
            if not await io.ledger(lambda ledger: unit.target in ledger.machines):
                # Its lifecycle was switched off, or runs elsewhere: the action waits for a worker that has it.
                raise MustWait(f"no lifecycle of this worker has the machine {unit.target}")
            last = _last(unit)
            after, reason = replace(unit, position=last), f"{last:,} of {unit.total:,} were looked at"
            if unit.crashes == 0:
                sets = [_moves(unit, unit.position, last)]
                return Outcome(unit, after, reason, move_sets=sets, keep_claim=True)
            # The database refused the set as a whole: the units that it refuses are found, and the others go.
            await io.ledger(lambda ledger: halved(ledger, unit, unit.position, last))
            return Outcome(unit, after, reason, keep_claim=True)
        locked = await io.ledger(lambda ledger: look_again(ledger, unit)) if unit.attempts < _ROUNDS else 0
        if locked:
            after = replace(unit, position=0, attempts=unit.attempts + 1, due_at=io.now() + _PAUSE)
            return Outcome(unit, after, f"{locked:,} units were locked by somebody; they are looked at again")
        moved, skipped = await io.ledger(lambda ledger: counted(ledger, unit.action_id))
        done = replace(unit, status=B.DONE, moved=moved, skipped=skipped, finished_at=io.now())
        return Outcome(unit, done, f"{moved:,} moved, {skipped:,} skipped")


def _last(action: BulkAction) -> int:
    """Where the next set ends: with its part, or after 20,000."""
    return min(action.position + MAX_SET, int(_part(action)[1][4]))


def _moves(action: BulkAction, first: int, last: int) -> MoveSet:
    number, (source, target, changes, *_) = _part(action)
    return MoveSet(
        machine=action.target,
        sources=[source],
        to=None if target == source else target,
        reason=action.reason,
        items=Where(bulk_item, {"action_id": action.action_id, "part": number}, span=("position", first, last)),
        changes=changes,
        parked=None,
        actor=Actor.OPERATOR,
        who=action.requested_by,
        action_id=action.action_id,
    )


def halved(ledger: Ledger, action: BulkAction, first: int, last: int) -> None:
    """Move the units of a span, each half by itself where the database refuses it; one that is alone is skipped.

    It may be done twice: an item that has its result is left alone.
    """
    try:
        ledger.move_set(_moves(action, first, last), who=action.requested_by)
    except LedgerRefused as error:
        if last - first > 1:
            middle = (first + last) // 2
            halved(ledger, action, first, middle)
            halved(ledger, action, middle, last)
            return
        sql = "UPDATE bulk_item SET result = :why WHERE action_id = :action AND position = :position"
        given = {"why": f"refused by the database: {error}", "action": action.action_id, "position": first}
        ledger.database.write(lambda cursor: cursor.run(sql, **given))


def _part(action: BulkAction) -> tuple[int, list[Any]]:
    """The part in which the next item lies."""
    for number, part in enumerate(action.parts):
        if action.position < part[4]:
            return number, part
    raise AssertionError(action.unit_id)


def look_again(ledger: Ledger, action: BulkAction) -> int:
    """Forget the result of the units that somebody had locked for a moment; how many they are."""
    sql = "UPDATE bulk_item SET result = NULL WHERE action_id = :action AND result = :locked"
    return ledger.database.write(lambda cursor: cursor.run(sql, action=action.action_id, locked=LOCKED))


def counted(ledger: Ledger, action_id: str) -> tuple[int, int]:
    """How many units of an action were moved, and how many skipped."""
    sql = "SELECT result = :moved, count(*) FROM bulk_item WHERE action_id = :action AND result IS NOT NULL GROUP BY 1"
    rows = ledger.read(lambda cursor: cursor.rows(sql, moved=MOVED, action=action_id))
    found = {bool(moved): int(count) for moved, count in rows}
    return found.get(True, 0), found.get(False, 0)

"""Starting a bulk action, driving it where no worker runs, and what it came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from penstock.ledger.schema.columns import plain
from penstock.ledger.store.database import Cursor, Row
from penstock.model.clock import instant_text
from penstock.model.machine import Actor
from penstock.model.move_set import MOVED
from penstock.model.outcome import MAX_ROWS, Birth, Move, Write
from penstock.model.unit import Ref
from penstock.operations.bulk.flow import BulkActions
from penstock.operations.bulk.machine import B, BulkAction, bulk_action
from penstock.operations.bulk.tables import bulk_item
from penstock.operations.follow import follow
from penstock.operations.plan import Each, Together

if TYPE_CHECKING:
    from penstock.ledger.ledger import Ledger
    from penstock.operations.carry import Planned

_COLUMNS = ("action_id", "position", "unit_id", "version", "part", "result", "laid_at")
_KEPT = timedelta(days=1)
Watch = Callable[[int, int | None], None]


def start(ledger: Ledger, planned: Planned, *, who: str, reason: str, progress: Watch = lambda *_: None) -> Ref:
    """Keep what was seen as rows, and give birth to the action, together with what the plan does at once.

    The rows are written first, some thousands in each transaction; until the action is born they mean nothing.
    """
    plan = planned.plan
    each = plan if isinstance(plan, Each) else plan.then if isinstance(plan, Together) else None
    assert each is not None  # noqa: S101 - only such plans become actions
    action = _action(ledger, planned, each, who, reason)
    waiting = _items(action, each)
    while chunk := list(islice(waiting, MAX_ROWS)):
        ledger.write([Write(bulk_item, chunk, on_conflict="error", columns=_COLUMNS)])
        progress(int(chunk[-1][1]) + 1, action.total)
    birth = Birth(action, reason, actor=Actor.OPERATOR)
    if isinstance(plan, Together):
        others: list[Birth | Move] = [*plan.births, *plan.moves, birth]
        ledger.together(others, who=who, writes=plan.writes, events=plan.events)
    else:
        ledger.together([birth], who=who)
    return Ref(bulk_action.name, action.action_id)


def _action(ledger: Ledger, planned: Planned, each: Each, who: str, reason: str) -> BulkAction:
    parts: list[Any] = []
    first = 0
    for part in each.parts:
        after = first + len(part.units)
        parts.append([part.source, part.target, {n: plain(v) for n, v in part.changes.items()}, first, after])
        first = after
    now = ledger.clock.now()
    return BulkAction(
        action_id=ledger.rng.token(),
        operation=planned.preview.operation,
        says=each.says,
        target=each.machine.name,
        digest=planned.preview.digest,
        requested_by=who,
        requested_at=now,
        reason=reason,
        parts=parts,
        total=len(each),
        due_at=now,
    )


def _items(action: BulkAction, each: Each) -> Iterator[list[Any]]:
    position = 0
    for number, part in enumerate(each.parts):
        for unit_id, version in part.units:
            yield [action.action_id, position, unit_id, version, number, None, action.requested_at]
            position += 1


def drive(
    ledger: Ledger, ref: Ref, progress: Watch = lambda *_: None, *, config_version: str | None = None
) -> BulkAction:
    """Work on bulk actions in this process until this one has ended or is parked.

    Other workers may help, and go on after Ctrl-C.
    """

    def ended(action: BulkAction) -> bool:
        progress(action.position, action.total)
        return action.status is not B.RUNNING

    action = follow(ledger, [BulkActions()], ref, ended, config_version=config_version)
    assert isinstance(action, BulkAction)  # noqa: S101 - the machine's units
    return action


def results(ledger: Ledger, action_id: str) -> tuple[int, dict[str, int]]:
    """How many units an action has moved so far, and how many it left as they are, by reason."""
    sql = "SELECT result, count(*) FROM bulk_item WHERE action_id = :action AND result IS NOT NULL GROUP BY 1"
    found = {str(why): int(count) for why, count in ledger.read(lambda cursor: cursor.rows(sql, action=action_id))}
    return found.pop(MOVED, 0), found


def sweep_items(ledger: Ledger) -> int:
    """Remove items whose action was never born or is pruned; how many went. Those of the last day may be under way."""
    gone = 0
    for action_id in _laid_down(ledger):
        gone += ledger.database.write(partial(_sweep, ledger, action_id))
    return gone


def _laid_down(ledger: Ledger) -> Iterator[str]:
    """Every action that has items, by one look into the index for each."""
    last = ""
    while True:
        ((found,),) = ledger.read(partial(_after, last))
        if found is None:
            return
        last = str(found)
        yield last


def _after(last: str, cursor: Cursor) -> list[Row]:
    return cursor.rows("SELECT min(action_id) FROM bulk_item WHERE action_id > :last", last=last)


def _sweep(ledger: Ledger, action_id: str, cursor: Cursor) -> int:
    sql = (
        f"DELETE FROM bulk_item WHERE action_id = :action AND laid_at < {ledger.database.sql.instant('before')}"
        f" AND NOT EXISTS (SELECT 1 FROM {bulk_action.table} WHERE unit_id = :action)"
    )
    return cursor.run(sql, action=action_id, before=instant_text(ledger.clock.now() - _KEPT))

"""Bulk actions as people see them: how far each has come, what it skipped, and ending one."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from penstock.model.errors import BadReference, UnknownUnit, UsageError
from penstock.model.unit import Ref
from penstock.operations.bulk.machine import B, BulkAction, bulk_action
from penstock.operations.change import edge_to, pull
from penstock.operations.declare import Ask, Page, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.past import At, lacking, said
from penstock.operations.plan import Each, Moves
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor

_MOVED = "moved"


class ActionList(Parameters, frozen=True):
    running: Annotated[bool, option("Only those that are under way.")] = False
    limit: Annotated[int, option("How many at most.", ge=1, le=10_000)] = 20
    at: At = None


class ActionNamed(Parameters, frozen=True):
    action: Annotated[str, argument("The bulk action, as 'bulk list' shows it.")]


class ActionShown(ActionNamed, frozen=True):
    at: At = None


class ActionRow(Row, frozen=True):
    action: Annotated[str, column("The bulk action.", show="reference", leads="bulk show")]
    status: Annotated[str, column("running, done or cancelled.", show="state")]
    says: Annotated[str, column("What it does.", show="text", heading="does")]
    position: Annotated[
        int | None,
        column("How many units were looked at; empty of the past, while it was running.", heading="looked at"),
    ]
    total: Annotated[int, column("How many units it was asked for.", heading="of")]
    requested_by: Annotated[str, column("Who asked for it.", heading="by")]
    requested_at: Annotated[datetime, column("When it was asked for.", heading="since")]
    finished_at: Annotated[datetime | None, column("When it ended.", show="detail")]
    operation: Annotated[str, column("The command.", show="detail")]
    reason: Annotated[str, column("Why it was asked for.", show="detail")]


class ActionDetail(ActionRow, frozen=True, kw_only=True):
    machine: Annotated[str, column("The machine whose units are moved.")]
    moved: Annotated[int | None, column("How many units were moved; of the past, by their history.")]
    skipped: Annotated[
        dict[str, int] | None,
        column("How many units were left as they are, by reason; empty of the past, while it was running."),
    ]
    skipped_units: Annotated[list[str] | None, column("Some of those units.", show="reference")]
    digest: Annotated[str, column("The digest of the plan.", show="detail")]


@reading("bulk list", "Bulk actions, the newest first: how far each has come.")
def list_actions(ask: Ask[KernelSettings], wanted: ActionList) -> Page[ActionRow]:
    if not ask.reader.keeps(bulk_action):
        return Page(rows=[], note="no bulk actions yet")
    lacks, ask = lacking(ask, [bulk_action], wanted.at), ask.then(wanted.at)
    which = " WHERE status = :running" if wanted.running else ""
    values = {"running": str(B.RUNNING)} if wanted.running else {}
    sql = f"SELECT unit_id FROM {bulk_action.table}{which} ORDER BY requested_at DESC, unit_id LIMIT :most"
    ids = [str(row[0]) for row in ask.reader.read(lambda cursor: cursor.rows(sql, most=wanted.limit, **values))]
    found = sorted(ask.reader.get_many(bulk_action, ids), key=lambda one: ids.index(one.unit_id))
    return Page(
        rows=[ActionRow(**_facts(one)) for one in found], note=said(lacks, None if found else "no bulk actions yet")
    )


@reading("bulk show", "One bulk action: what it moved, and what it skipped and why.")
def show_action(ask: Ask[KernelSettings], wanted: ActionShown) -> ActionDetail:
    one = _named(ask.then(wanted.at), wanted.action)
    detail = partial(ActionDetail, **_facts(one), machine=one.target, digest=one.digest)
    if wanted.at is not None and one.status is B.RUNNING:
        return detail(moved=_moved_then(ask, one, wanted.at), skipped=None, skipped_units=None)

    def work(cursor: Cursor) -> tuple[dict[str, int], list[str]]:
        by_result = "SELECT result, count(*) FROM bulk_item WHERE action_id = :action AND result IS NOT NULL GROUP BY 1"
        some = (
            "SELECT unit_id FROM bulk_item WHERE action_id = :action AND result IS NOT NULL AND result <> :moved"
            " ORDER BY position LIMIT 10"
        )
        counts = {str(result): int(count) for result, count in cursor.rows(by_result, action=one.action_id)}
        return counts, [str(row[0]) for row in cursor.rows(some, action=one.action_id, moved=_MOVED)]

    counts, some = ask.reader.database.read(work, patient=True)
    return detail(
        moved=counts.pop(_MOVED, 0),
        skipped=counts,
        skipped_units=[f"{one.target}:{unit_id}" for unit_id in some],
    )


def _moved_then(ask: Ask[Any], one: BulkAction, at: datetime | None) -> int | None:
    """How many units it had moved, as their history tells; None where some of that was pruned.

    An item does not say when it was looked at. Once the action has ended, nothing changes in them any more.
    """
    from penstock.ledger.flow import pruned_before

    if ask.reader.read(lambda cursor: pruned_before(cursor, one.target)) is not None:
        return None
    sql = (
        "SELECT count(DISTINCT i.unit_id) FROM bulk_item i JOIN transition_log l ON l.machine = :machine"
        " AND l.unit_id = i.unit_id AND l.action_id = i.action_id WHERE i.action_id = :action"
    )
    given = {"machine": one.target, "action": one.action_id}
    ((count,),) = ask.then(at).reader.database.read(lambda cursor: cursor.rows(sql, **given), patient=True)
    return int(count)


@operation("bulk cancel", "End a bulk action; what it has moved stays moved.")
def cancel(ask: Ask[KernelSettings], wanted: ActionNamed) -> Each:
    one = _named(ask, wanted.action)
    edge = edge_to(bulk_action, str(one.status), B.CANCELLED)
    if edge is None:
        raise UsageError(f"the bulk action {one.action_id} is {one.status}; only a running one can be cancelled")
    moves = Moves(bulk_action)
    pull(moves, edge, one, ask.now)
    return moves.plan(f"cancel the bulk action {one.action_id} after {one.position:,} of {one.total:,} units")


READINGS = [list_actions, show_action]
OPERATIONS = [cancel]


def _named(ask: Ask[Any], text: str) -> BulkAction:
    """By its id, or by its reference. Raises UnknownUnit."""
    action_id = text.removeprefix(f"{bulk_action.name}:")
    try:
        if ask.reader.keeps(bulk_action):
            found = ask.reader.get(Ref(bulk_action.name, action_id))
            assert isinstance(found, BulkAction)  # noqa: S101 - the machine's units
            return found
    except (BadReference, UnknownUnit):
        pass
    raise UnknownUnit(f"no bulk action is called {text!r}; 'penstock bulk list' shows them")


def _facts(one: BulkAction) -> dict[str, Any]:
    names = ("says", "position", "total", "requested_by", "requested_at", "finished_at", "operation", "reason")
    return {"action": one.action_id, "status": str(one.status)} | {name: getattr(one, name) for name in names}

"""The event log: what happened, who was told, and telling again those who refused."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from penstock.ledger.delivery import D, machine
from penstock.model.clock import instant_text
from penstock.model.errors import UsageError
from penstock.model.spoken import counted
from penstock.operations.declare import Ask, Page, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.past import At, lacking, lacking_events, said
from penstock.operations.plan import NOW, Each, Moves
from penstock.operations.selection import read_instant, units_of
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.outbox import Listed


class EventList(Parameters, frozen=True):
    alerts: Annotated[bool, option("Only events with a severity.")] = False
    at: At = None
    limit: Annotated[int, option("How many at most.", ge=1, le=10_000)] = 20
    after: Annotated[str | None, option("Continue after an earlier page: the cursor that it ended with.")] = None


class Redeliver(Parameters, frozen=True):
    subscriber: Annotated[str | None, argument("Only the dead letters of this subscriber.", example="audit")] = None


class EventRow(Row, frozen=True):
    at: Annotated[datetime, column("When it happened.", heading="when")]
    severity: Annotated[str | None, column("info, warning or critical; empty if it is not an alert.", show="severity")]
    kind: Annotated[str, column("What happened.", heading="what")]
    key: Annotated[str, column("The event's name, unique in its tenant.", show="detail")]
    unit: Annotated[str | None, column("The unit that it is about.", show="reference")]
    told: Annotated[str, column("Who was told, or what became of it.", heading="delivered to")]
    payload: Annotated[Any, column("What it says.", show="text", heading="says")]
    tenant: Annotated[str, column("Whose it is.", show="detail")]
    correlation: Annotated[str | None, column("The change that wrote it.", show="detail")]
    deliveries: Annotated[dict[str, str], column("The state of the delivery to each subscriber.", show="detail")]


@reading("events list", "The newest events, and what became of their deliveries.")
def list_events(ask: Ask[KernelSettings], wanted: EventList) -> Page[EventRow]:
    from penstock.ledger import outbox

    kept = [machine] if ask.reader.keeps(machine) else []
    lacks = said(lacking_events(ask, wanted.at), lacking(ask, kept, wanted.at))
    ask, after = ask.then(wanted.at), None
    if wanted.after is not None:
        at, space, key = wanted.after.partition(" ")
        if not space:
            raise UsageError(f"{wanted.after!r} is not a cursor; take it from the page before")
        after = (read_instant(at), key)
    found = outbox.list_events(ask.reader.database, most=wanted.limit + 1, alerts=wanted.alerts, after=after)
    rows = [_row(one) for one in found[: wanted.limit]]
    more = len(found) > wanted.limit
    return Page(
        rows=rows,
        next=f"{instant_text(rows[-1].at)} {rows[-1].key}" if more else None,
        note=said(lacks, None if rows else "no events yet"),
    )


@operation("events redeliver", "Deliver dead letters again, with all their retries.")
def redeliver(ask: Ask[KernelSettings], wanted: Redeliver) -> Each:
    from penstock.ledger import outbox

    known = outbox.subscribers(ask.reader.database)
    if not known:
        raise UsageError("nobody has subscribed to events of this ledger; there is nothing to deliver")
    if wanted.subscriber is not None and wanted.subscriber not in known:
        raise UsageError(f"no subscriber is called {wanted.subscriber!r}; this ledger has {', '.join(known)}")
    dead = outbox.dead_letters(ask.reader.database, wanted.subscriber) if ask.reader.keeps(machine) else []
    moves = Moves(machine)
    for unit in units_of(ask, machine, dead):
        moves.add(unit, D.PENDING, attempts=0, due_at=NOW)
    return moves.plan(f"deliver {counted(len(moves), 'dead letter')} again")


READINGS = [list_events]
OPERATIONS = [redeliver]


def _row(listed: Listed) -> EventRow:
    event, deliveries = listed.event, dict(listed.deliveries)
    told = (
        name if state == D.DELIVERED else f"{name} ({state})"
        for name, state in deliveries.items()
        if state != D.UNWANTED
    )
    return EventRow(
        at=event.created_at,
        severity=event.severity,
        kind=event.event_type,
        key=event.event_key,
        unit=f"{event.machine}:{event.unit_id}" if event.unit_id is not None else event.machine,
        told=", ".join(told),
        payload=event.payload,
        tenant=event.tenant_id,
        correlation=event.correlation_id,
        deliveries=deliveries,
    )

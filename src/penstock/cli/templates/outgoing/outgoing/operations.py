"""What people ask and do: `penstock outgoing items`, `penstock outgoing resend`.

A reading answers a question. An operation returns a plan: Penstock shows it, asks, and carries it out with who did it
and why. `penstock units` and `penstock dead` know items without a line of code.
"""

from __future__ import annotations

from typing import Annotated

from penstock import NOW, Ask, At, Moves, Page, Parameters, Plan, Row, argument, column, operation, option, reading

from outgoing.machine import S, machine
from outgoing.settings import OutgoingSettings


class Wanted(Parameters, frozen=True):
    """Which items to list."""

    status: Annotated[S | None, option("Only items in this state.")] = None
    limit: Annotated[int, option("How many at most.", ge=1, le=10_000)] = 20
    at: At = None


class ItemRow(Row, frozen=True):
    """An item in a list."""

    item_id: Annotated[str, column("Its name.", show="reference", heading="item")]
    status: Annotated[S, column("How far it is.", show="state")]
    remote_id: Annotated[str | None, column("What the API calls it.", heading="there")]
    reason: Annotated[str | None, column("Why it changed last.", show="text")]


class Named(Parameters, frozen=True):
    """Which items are meant."""

    items: Annotated[tuple[str, ...], argument("These items; by default all that failed.", example="17")] = ()


def _ids(ask: Ask[OutgoingSettings], status: S | None, limit: int) -> list[str]:
    where = "" if status is None else " WHERE status = :status"
    bound = {} if status is None else {"status": str(status)}
    sql = f"SELECT unit_id FROM {machine.table}{where} ORDER BY unit_id LIMIT :most"
    return [str(row[0]) for row in ask.reader.read(lambda cursor: cursor.rows(sql, most=limit, **bound))]


@reading("items", "Items, and how far each of them is.")
def items(ask: Ask[OutgoingSettings], wanted: Wanted) -> Page[ItemRow]:
    """The first of them, by name. Of the past, columns that changed since are empty."""
    ask = ask.then(wanted.at)
    found = ask.reader.get_many(machine, _ids(ask, wanted.status, wanted.limit))
    return Page(
        rows=[
            ItemRow(item_id=one.item_id, status=one.status, remote_id=one.remote_id, reason=one.change_reason)
            for one in found
        ]
    )


@operation("resend", "Send failed items again.")
def resend(ask: Ask[OutgoingSettings], wanted: Named) -> Plan:
    """Those that are named, or all that failed. What has not failed is left as it is."""
    moves = Moves(machine)
    found = ask.reader.get_many(machine, wanted.items or _ids(ask, S.FAILED, 100_000))
    for item in found:
        if item.status is S.FAILED:
            moves.add(item, S.NEW, attempts=0, due_at=NOW)
        else:
            moves.skip(item.unit_id, f"it is {item.status}, not {S.FAILED}")
    moves.skip_all(set(wanted.items) - {item.unit_id for item in found}, "there is no such item")
    return moves.plan(f"send {len(moves):,} items again")

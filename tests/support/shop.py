"""A lifecycle whose readings and operations have every shape that a command can take."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from penstock.app.lifecycle import Lifecycle
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.state import State, done, fault, hold, rest, work
from penstock.model.unit import Ref, Unit
from penstock.operations.declare import Ask, Lines, Page, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.pictures import Runs
from penstock.operations.plan import NOW, Each, Moves
from penstock.settings.typed import Settings, says


class S(State):
    OPEN = rest("open", "nobody has begun")
    PACKING = work("packing", "we are at it")
    SENT = done("sent", "the customer has it")
    WAITING = hold("waiting", "the customer must pay first")
    LOST = fault("lost", "nobody knows where it is")


class Order(Unit):
    key = ("shop", "number")
    status: S = S.OPEN
    shop: str
    number: int
    day: date
    pieces: int = 1
    note: str | None = None


OPERATOR = frozenset({Actor.OPERATOR})

machine = Machine(
    "order",
    Order,
    births=list(S),
    edges=[
        Edge(S.LOST, S.OPEN, "reset", OPERATOR),
        Edge(S.OPEN, S.PACKING, "begin", frozenset({Actor.WORKER})),
        Edge(S.PACKING, S.SENT, "sent", frozenset({Actor.WORKER})),
        Edge(S.OPEN, S.WAITING, "hold", OPERATOR),
        Edge(S.WAITING, S.OPEN, "paid", OPERATOR),
        Edge(S.PACKING, S.LOST, "lost", frozenset({Actor.WORKER})),
    ],
    terminal={S.SENT},
    table="shop_order",
)


class ShopSettings(Settings):
    greeting: Annotated[str, says("What is said to a customer.")] = "hello"


class Sorting(StrEnum):
    NUMBER = "number"
    DAY = "day"


class OrderFilter(Parameters, frozen=True):
    shop: Annotated[list[str], option("Only orders of this shop.", short="s")] = msgspec.field(default_factory=list)
    status: Annotated[S | None, option("Only orders in this state.")] = None
    since: Annotated[date | None, option("Only orders from this day on.")] = msgspec.field(default=None, name="from")
    before: Annotated[datetime | None, option("Only orders that changed before then.")] = None
    older_than: Annotated[timedelta | None, option("Only orders of that age.")] = None
    weight: Annotated[float | None, option("Only orders of that weight.", ge=0)] = None
    sort: Annotated[Sorting, option("In which order.")] = Sorting.NUMBER
    shape: Annotated[Literal["full", "short"], option("How much of each.")] = "full"
    lost: Annotated[bool, option("Only those that are lost.")] = False
    fresh: Annotated[bool, option("Those of today too.")] = True
    limit: Annotated[int, option("How many at most.", ge=1, le=1_000)] = 100
    after: Annotated[str | None, option("Those after this one.")] = None


class OrderRow(Row, frozen=True):
    unit: Annotated[str, column("The order.", show="reference")]
    status: Annotated[S, column("Its state.", show="state")]
    pieces: Annotated[int, column("How many pieces.")]
    day: Annotated[date, column("When it was made.")]
    changed: Annotated[datetime | None, column("When it last changed.", heading="changed")]
    note: Annotated[str | None, column("What was noted.", show="text")]
    version: Annotated[int, column("Its version.", show="detail")]


def _orders(ask: Ask[Any], wanted: OrderFilter) -> list[Order]:
    ids = ask.reader.read(
        lambda cursor: [str(row[0]) for row in cursor.rows("SELECT unit_id FROM shop_order ORDER BY unit_id")]
    )
    found: list[Order] = ask.reader.get_many(machine, ids)
    return [
        one
        for one in found
        if (not wanted.shop or one.shop in wanted.shop)
        and (wanted.status is None or one.status is wanted.status)
        and (wanted.since is None or one.day >= wanted.since)
        and (not wanted.lost or one.status is S.LOST)
        and (wanted.after is None or one.unit_id > wanted.after)
    ]


def _row(one: Order) -> OrderRow:
    ref = f"order:{one.unit_id}"
    return OrderRow(
        unit=ref,
        status=one.status,
        pieces=one.pieces,
        day=one.day,
        changed=one.changed_at,
        note=one.note,
        version=one.version,
    )


@reading("orders", "Orders, by number.")
def orders(ask: Ask[ShopSettings], wanted: OrderFilter) -> Page[OrderRow]:
    """Every order of every shop.

    In a second paragraph.
    """
    found = _orders(ask, wanted)
    shown = found[: wanted.limit]
    following = shown[-1].unit_id if len(found) > wanted.limit else None
    return Page(rows=[_row(one) for one in shown], next=following, counts={"orders": len(found)})


class OneOrder(Parameters, frozen=True):
    unit: Annotated[str, argument("The order, as order:shop/number.")]


class Piece(Row, frozen=True):
    place: Annotated[int, column("Its number.")]
    name: Annotated[str, column("What it is.", show="reference")]


class Whole(Row, frozen=True):
    unit: Annotated[str, column("The order.", show="reference")]
    status: Annotated[S, column("Its state.", show="state")]
    changed: Annotated[datetime | None, column("When it last changed.")]
    note: Annotated[str | None, column("What was noted.", show="text")]
    greeting: Annotated[str, column("What is said to the customer.")]
    asked_by: Annotated[str, column("Who asks.", show="detail")]
    pieces: Annotated[list[Piece], column("Its pieces.")]


@reading("order show", "One order, with its pieces.")
def order_show(ask: Ask[ShopSettings], wanted: OneOrder) -> Whole:
    unit = ask.reader.get(Ref.parse(wanted.unit))
    assert isinstance(unit, Order)
    return Whole(
        unit=wanted.unit,
        status=unit.status,
        changed=unit.changed_at,
        note=unit.note,
        greeting=ask.settings.greeting,
        asked_by=ask.who,
        pieces=[Piece(place=n, name=f"{unit.unit_id}#{n}") for n in range(1, unit.pieces + 1)],
    )


@reading("export", "All orders, one line each.")
def export(ask: Ask[ShopSettings]) -> Lines:
    def lines() -> Iterator[str]:
        for one in _orders(ask, OrderFilter()):
            yield f"{one.unit_id} {one.status} {one.note or ''}".rstrip()

    return Lines(lines())


class Health(Row, frozen=True):
    failed: Annotated[bool, column("Whether something is wrong.")]
    lost: Annotated[int, column("How many are lost.")]


@reading("check", "Whether an order is lost.")
def check(ask: Ask[ShopSettings]) -> Health:
    lost = len(_orders(ask, OrderFilter(lost=True)))
    return Health(failed=bool(lost), lost=lost)


@operation("reset", "Look for lost orders again.")
def reset(ask: Ask[ShopSettings], wanted: OrderFilter) -> Each:
    moves = Moves(machine)
    for one in _orders(ask, wanted):
        if one.status is S.LOST:
            moves.add(one, S.OPEN, attempts=0, due_at=NOW)
        else:
            moves.skip(one.unit_id, f"it is {one.status}")
    return moves.plan(f"reset {len(moves):,} order{'' if len(moves) == 1 else 's'}")


class Naming(Parameters, frozen=True):
    units: Annotated[list[str], argument("The orders.")]
    text: Annotated[str, option("What to note.")]


@operation("order note", "Write a note on orders.", wants_reason=False)
def note(ask: Ask[ShopSettings], wanted: Naming) -> Each:
    moves = Moves(machine)
    for name in wanted.units:
        moves.add(ask.reader.get(Ref.parse(name)), None, note=wanted.text)
    return moves.plan(f"note {wanted.text!r} on {len(moves):,} orders")


lifecycle = Lifecycle(
    "shop",
    "Orders of a shop.",
    settings=ShopSettings,
    machines=[machine],
    readings=[orders, order_show, export, check],
    operations=[reset, note],
    pictures=[
        Runs(says="Orders, in pieces.", reading=orders, at="changed", amount="pieces", note="day", state="status")
    ],
    front=[orders],
)

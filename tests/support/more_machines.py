"""What `machines` lacks: a unit with a column of every type, data tables, and a machine that counts on nothing."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from penstock.ledger.schema.column_types import Day, Document, Exact, Identifier, Instant
from penstock.model.machine import Edge, Machine
from penstock.model.state import State, done, rest
from penstock.model.unit import Unit
from tests.support.machines import DUE, OPERATOR, WORKER


class ParcelState(State):
    OPEN = rest("open", "not sent yet")
    CLOSED = done("closed", "sent")


class Parcel(Unit):
    """A column of every type. Parcels with the same note are siblings; one without is nobody's."""

    key = ("name",)

    status: ParcelState = ParcelState.OPEN
    name: str
    note: str | None = None
    price: Decimal | None = None
    weight: float | None = None
    count: int | None = None
    sealed_up: bool | None = None
    day: date | None = None
    at: datetime | None = None
    token: UUID | None = None
    facts: dict[str, Any] | None = None
    tags: list[Any] | None = None
    failing_since: datetime | None = None


PARCEL = Machine(
    "parcel",
    Parcel,
    births={ParcelState.OPEN},
    edges=[
        Edge(ParcelState.OPEN, ParcelState.CLOSED, "closed", WORKER),
        Edge(ParcelState.CLOSED, ParcelState.OPEN, "reopened", OPERATOR),
    ],
    checks={"count_is_small": "count IS NULL OR count < 1000"},
    siblings="note",
    siblings_at_once=5,
)


def parcel(name: str = "box", **fields: Any) -> Parcel:
    made: dict[str, Any] = {"name": name, "due_at": DUE}
    return Parcel(**made | fields)


data = sa.MetaData()

reading = sa.Table(
    "reading",
    data,
    sa.Column("sensor", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True),
    sa.Column("note", sa.Text),
    sa.Column("price", Exact),
    sa.Column("weight", sa.Double),
    sa.Column("count", sa.BigInteger),
    sa.Column("flag", sa.Boolean(create_constraint=False)),
    sa.Column("day", Day),
    sa.Column("at", Instant),
    sa.Column("token", Identifier),
    sa.Column("facts", Document),
    sa.CheckConstraint("count IS NULL OR count >= 0", name="reading_count"),
)
"""A data table with a column of every type."""

label = sa.Table("label", data, sa.Column("name", sa.Text, primary_key=True))
"""A data table that is nothing but its key."""

chosen = sa.Table(
    "chosen",
    data,
    sa.Column("action_id", sa.Text, primary_key=True),
    sa.Column("position", sa.BigInteger, primary_key=True),
    sa.Column("unit_id", sa.Text, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("result", sa.Text),
)
"""Units that somebody chose, for a set move."""

DATA_TABLES = (reading, label, chosen)

"""A program with one lifecycle of its own, over a ledger on either database, and the short words to ask it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from penstock.app.app import App
from penstock.app.lifecycle import Lifecycle, NoSettings
from penstock.app.program import Program
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Rng, VirtualClock
from penstock.model.machine import Actor, Edge, Machine, OnError
from penstock.model.state import State, done, fault, hold, work
from penstock.model.unit import GuardedUnit, Ref, Unit, replace, unit_id_of
from penstock.operations.carry import Done, Planned, carry_out, check_digest, make_plan
from penstock.operations.declare import Ask, operation
from penstock.operations.fields import Parameters, argument
from penstock.operations.plan import Each, Moves
from penstock.operations.reader import Reader
from penstock.settings.file import Configuration
from penstock.settings.kernel import KernelSettings
from tests.support.copies import copied, made_file, made_template, opened

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
WORKER, OPERATOR = {Actor.WORKER}, {Actor.OPERATOR}


class O(State):  # noqa: E742 - as short as a machine's states are
    """Orders."""

    NEW = work("new", "to be sent")
    SENT = done("sent", "the shop has it")
    HELD = hold("held", "the customer is asked", allowed=timedelta(days=3))
    FAILED = fault("failed", "the shop refused it")


class Order(Unit):
    key = ("shop", "number")
    status: O = O.NEW
    shop: str
    number: int
    amount: int = 0
    label: str = ""
    placed: date | None = None
    confirmed_at: datetime | None = None
    tags: dict[str, Any] | None = None


def again(order: Order, now: datetime) -> Order:
    return replace(order, attempts=0, due_at=now)


def labelled(order: Order, now: datetime) -> Order:
    return order if order.label else replace(order, label=f"{order.shop}-{order.number}")


ORDER = Machine(
    "order",
    Order,
    births={O.NEW: {Actor.API, Actor.OPERATOR}, O.HELD: {Actor.API}},
    edges=[
        Edge(O.NEW, O.SENT, "accepted", WORKER),
        Edge(O.NEW, O.FAILED, "refused", WORKER),
        Edge(O.NEW, O.HELD, "hold", OPERATOR),
        Edge(O.HELD, O.NEW, "go_on", OPERATOR),
        Edge(O.FAILED, O.NEW, "retry", OPERATOR, by_hand=again),
    ],
    terminal={O.SENT},
    on_error=OnError(dead=O.FAILED),
    table="shop_order",
    create=labelled,
)


class C(State):
    """Prices."""

    OPEN = work("open", "not checked")
    CHECKED = done("checked", "checked")


class Price(GuardedUnit):
    key = ("name",)
    status: C = C.OPEN
    name: str


PRICE = Machine(
    "price",
    Price,
    births={C.OPEN},
    edges=[Edge(C.OPEN, C.CHECKED, "checked", {Actor.VALIDATOR})],
    terminal={C.CHECKED},
)


class Named(Parameters, frozen=True):
    number: Annotated[int, argument("The order.")]


@operation("hold", "Ask the customer first.")
def hold_order(ask: Ask[NoSettings], wanted: Named) -> Each:
    return Moves(ORDER).plan("hold nothing")


ORDERS = Lifecycle("orders", "Orders.", settings=NoSettings, machines=[ORDER, PRICE], operations=[hold_order])


@dataclass
class Desk:
    """A ledger and the program over it; asks readings and carries out operations."""

    url: str
    app: App
    clock: VirtualClock = field(default_factory=lambda: VirtualClock(NOW))
    kernel: KernelSettings = field(default_factory=KernelSettings)

    def __post_init__(self) -> None:
        sections = {one.name: one.settings() for one in self.app.own}
        self.program = Program(self.app, Configuration(self.kernel, sections, version="v1"), self.clock)
        tables = self.app.data.tables
        self.ledger = opened(self.url, self.app.machines, clock=self.clock, rng=Rng(1), data_tables=tables)
        self.declared = {
            one.name: one for one in (*self.app.lifecycles[0].readings, *self.app.lifecycles[0].operations)
        }

    def ask(self, *, reason: str = "because", who: str = "jo") -> Ask[Any]:
        reader = Reader(self.ledger.database, self.app.machines, self.app.past)
        return self.program.ask(self.app.lifecycles[0], reader, self.clock.now(), who=who, reason=reason)

    def read(self, name: str, /, **wanted: Any) -> Any:
        """What a reading answers."""
        declared = self.declared[name]
        return declared(self.ask(), declared.parameters(**wanted))

    def plan(self, name: str, /, *, reason: str = "because", **wanted: Any) -> Planned:
        declared: Any = self.declared[name]
        parameters = declared.parameters(**wanted)
        return make_plan(declared, self.ask(reason=reason), parameters, owner="kernel", version="v1")

    def do(self, name: str, /, *, seen: str | None = None, **wanted: Any) -> Done:
        """Plan it, check what was seen, and carry it out."""
        planned = self.plan(name, **wanted)
        check_digest(planned, seen)
        return carry_out(self.ledger, self.ask(), planned)

    def born(self, *units: GuardedUnit) -> list[str]:
        self.ledger.birth(units, actor=Actor.API, who="test")
        return [f"{self.ledger.preparer.machine_of(unit).name}:{unit_id_of(unit)}" for unit in units]

    def orders(self, count: int = 3, **columns: Any) -> list[str]:
        return self.born(*(Order(shop="acme", number=n, due_at=NOW, **columns) for n in range(1, count + 1)))

    def fail(self, ref: str, reason: str) -> None:
        self.ledger.move(Ref.parse(ref), O.FAILED, actor=Actor.WORKER, who="w", reason=reason, due_at=None, attempts=4)

    def unit(self, ref: str) -> Any:
        return self.ledger.get(Ref.parse(ref))

    def rows(self, sql: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda cursor: [tuple(row) for row in cursor.rows(sql, **values)])

    def later(self, **span: float) -> None:
        self.clock.advance(timedelta(**span).total_seconds())


def make(url: str) -> Ledger:
    return Desk(url, App(ORDERS)).ledger


@pytest.fixture(scope="session")
def sqlite_orders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_file(tmp_path_factory, make)


@pytest.fixture(scope="session")
def postgres_orders(postgres_server: str) -> Iterator[str]:
    with made_template(postgres_server, make) as name:
        yield name


@pytest.fixture(params=["sqlite", "postgres"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """As elsewhere; beside `desk` it is the address of the desk's ledger."""
    if "desk" in request.fixturenames:
        with copied(request, tmp_path, "sqlite_orders", "postgres_orders") as url:
            yield url
    elif request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'penstock.db'}"
    else:
        yield request.getfixturevalue("postgres_url")


@pytest.fixture
def desk(ledger_url: str) -> Iterator[Desk]:
    made = Desk(ledger_url, App(ORDERS))
    yield made
    made.ledger.close()

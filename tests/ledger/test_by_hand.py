"""A bare move by hand: the edge says what follows from it, or that an operation is needed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import pytest

from penstock.examples import invoices
from penstock.ledger import delivery
from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.columns import plain, python_type
from penstock.ledger.schema.tables import machine_table
from penstock.ledger.store import statements
from penstock.lifecycles.harvest import MACHINES as HARVEST
from penstock.lifecycles.partitions.machine import extraction, partition
from penstock.lifecycles.reports.machine import machine as report
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import IllegalMove, LedgerRefused, MachineError
from penstock.model.machine import Actor, Edge, Machine
from penstock.model.unit import DRIVEN_COLUMNS, NO_GATE, GuardedUnit, Ref, field_types, replace, unit_id_of
from penstock.worker import schedule_unit
from penstock.worker.schedule_unit import Schedule
from tests.support.machines import DUE, InvoiceState, invoice
from tests.support.world import World, after

SHIPPED: tuple[Machine, ...] = (*HARVEST, extraction, partition, report, schedule_unit.machine, delivery.machine)
EDGES = [(m, e) for m in (*SHIPPED, invoices.machine) for e in m.edges if e.by_hand is not None]
ANN: dict[str, Any] = {"who": "ann", "reason": "asked to"}
PAUSED = Ref("schedule", "nightly")


@pytest.fixture
def ticking(ledger_url: str) -> Iterator[Ledger]:
    clock = VirtualClock(DUE)
    with Ledger.open(ledger_url, [schedule_unit.machine], clock=clock, rng=Rng(1), create=True) as ledger:
        nightly = Schedule(name="nightly", job="prune", at=["03:00"], due_at=DUE)
        ledger.birth([nightly], actor=Actor.SCHEDULER, who="test")
        yield ledger


def test_a_paused_schedule_is_not_due_and_a_resumed_one_is_at_its_next_tick(ticking):
    paused = ticking.move_by_hand(PAUSED, "paused", **ANN)
    assert (paused.status, paused.due_at, paused.changed_by) == (schedule_unit.S.PAUSED, None, "operator:ann")
    resumed = ticking.move_by_hand(PAUSED, "active", **ANN)
    assert resumed.due_at == schedule_unit.cadence_of(resumed).next_after(DUE, "nightly")
    assert resumed.due_at > DUE


def test_what_the_machine_does_not_allow_is_refused(ticking):
    with pytest.raises(IllegalMove, match="'gone' is not a state of schedule; its states are active, paused, retired"):
        ticking.move_by_hand(PAUSED, "gone", **ANN)
    with pytest.raises(IllegalMove, match="schedule:nightly is active already"):
        ticking.move_by_hand(PAUSED, "active", **ANN)
    with pytest.raises(IllegalMove, match="only operator may move a unit from active to paused, not api"):
        ticking.move_by_hand(PAUSED, "paused", actor=Actor.API, **ANN)
    ticking.move_by_hand(PAUSED, "retired", **ANN)
    with pytest.raises(IllegalMove, match="retired -> paused is not an edge"):
        ticking.move_by_hand(PAUSED, "paused", **ANN)


def test_an_edge_that_needs_more_names_the_operation(world: World):
    (ref,) = world.born(invoice("1"))
    worker = world.worker()
    worker.claim({"invoice": 1})
    world.ledger.move(ref, "FAILED", actor=Actor.WORKER, who="w", reason="gave up")
    with pytest.raises(IllegalMove, match=r"FAILED -> QUEUED \(retry_by_hand\) needs more .*; use penstock dead retry"):
        world.ledger.move_by_hand(ref, "QUEUED", instead="penstock dead retry", **ANN)
    with pytest.raises(IllegalMove, match="no operation does it"):
        world.ledger.move_by_hand(ref, "QUEUED", **ANN)
    assert world.unit(ref).status is InvoiceState.FAILED


def test_an_edge_is_found_by_who_pulls_it():
    found = schedule_unit.machine.edge("active", "retired", Actor.OPERATOR)
    assert found is not None
    assert found.trigger == "retire"
    found = schedule_unit.machine.edge("active", "retired", Actor.SCHEDULER)
    assert found is not None
    assert (found.trigger, found.by_hand) == ("unwanted", None)
    assert schedule_unit.machine.edge("active", "retired", Actor.WORKER) is None


def test_hands_are_for_people():
    edges = [
        Edge(e.source, e.target, e.trigger, {Actor.WORKER}, by_hand=lambda u, _: u) for e in invoices.machine.edges
    ]
    with pytest.raises(MachineError, match="by_hand is for people; give the worker an edge of its own"):
        Machine("invoice", invoices.Invoice, births=["QUEUED"], edges=edges, terminal=["SENT"])


def test_the_definition_says_only_whether():
    described = invoices.machine.definition()["transitions"]
    assert [e["by_hand"] for e in described] == [e.by_hand is not None for e in invoices.machine.edges]


@pytest.mark.parametrize("machine", [*SHIPPED, invoices.machine], ids=lambda m: m.name)
def test_nobody_shares_an_edge_with_a_worker(machine):
    """People pull verbs, workers say what happened: no edge is for both."""
    assert [e for e in machine.edges if Actor.WORKER in e.actors and len(e.actors) > 1] == []


# Every edge that hands can pull, against the checks of the database.

_WORDS = ("a", "b/c", "7")
_KEPT = {"unit_id": "", "version": 1, "changed_by": "test:x", "gate_id": NO_GATE, "wakes": 0, "claimed_by": None}
_NAMED: dict[str, dict[str, Any]] = {
    "schedule": {"every": "5m", "at": None, "time_zone": "UTC", "hours": None, "jitter": None}
}


def any_value(rng: random.Random, annotation: Any) -> Any:
    kind, optional = python_type(annotation)
    if optional and rng.random() < 0.5:
        return None
    if issubclass(kind, Enum):
        return rng.choice([*kind])
    moment = datetime(2026, 11, 1, tzinfo=UTC) + timedelta(seconds=rng.randrange(10**6))
    made = {
        str: rng.choice(_WORDS),
        bool: rng.random() < 0.5,
        int: rng.randrange(4),
        datetime: moment,
        date: moment.date(),
        UUID: UUID(int=rng.getrandbits(128)),
        dict: {},
        list: [],
    }
    return made[kind]


def any_unit(rng: random.Random, machine: Machine, number: int, status: str) -> GuardedUnit:
    """A unit in that state with any values at all; the database may refuse it."""
    types = field_types(machine.unit)
    values = {name: any_value(rng, kind) for name, kind in types.items() if name not in machine.generated()}
    values |= {n: v for n, v in _KEPT.items() if n in types} | _NAMED.get(machine.name, {})
    values |= dict.fromkeys(("parked_at", "parked_reason"), None) if machine.driven else {}
    last = machine.unit.key[-1]
    unique = {str: str(number), int: number, date: date(2026, 1, 1) + timedelta(number), UUID: UUID(int=number)}
    values |= {last: unique.get(types[last], values[last]), "status": types["status"](status)}
    assert {*values} >= {n for n in DRIVEN_COLUMNS if n in types}
    made = machine.unit(**values)
    return replace(made, unit_id=unit_id_of(made))


def insert(ledger: Ledger, machine: Machine, unit: GuardedUnit) -> bool:
    """Put it there as it is; whether the checks allow it."""
    sql = statements.insert_units(
        ledger.database, machine, machine_table(machine, ledger.database.dialect), if_absent=False
    )
    skip = machine.generated() | {"changed_at"}
    text = statements.batch_text([[plain(getattr(unit, n)) for n in machine.columns if n not in skip]])
    try:
        ledger.database.write(lambda cursor: cursor.rows(sql, batch=text, **ledger.database.bind_now()))
    except LedgerRefused:
        return False
    return True


def births_anywhere(ledger: Ledger, machine: Machine) -> None:
    """Guards of births stand aside, so that a unit can be put into any state."""
    name = f"penstock_{machine.name}_birth"
    on = f" ON {machine.table}" if ledger.database.dialect == "postgresql" else ""
    ledger.database.write(lambda cursor: cursor.run(f"DROP TRIGGER {name}{on}"))
    if not on:
        ledger.database.write(lambda cursor: cursor.run("DROP TRIGGER penstock_log_insert"))


@pytest.mark.parametrize(("machine", "edge"), EDGES, ids=lambda x: x.name if isinstance(x, Machine) else x.trigger)
def test_no_move_by_hand_breaks_a_check(ledger_url, machine, edge):
    """Whatever values a unit has that the checks allow, each edge that hands can pull leads to values they allow."""
    rng = random.Random(f"{machine.name} {edge.source} {edge.target}")
    with Ledger.open(ledger_url, [machine], clock=VirtualClock(DUE), rng=Rng(1), create=True) as ledger:
        births_anywhere(ledger, machine)
        tried = 0
        for number in range(300):
            unit = any_unit(rng, machine, number, edge.source)
            if not insert(ledger, machine, unit):
                continue
            moved: Any = ledger.move_by_hand(Ref(machine.name, unit.unit_id), edge.target, **ANN)
            assert moved.status == edge.target
            if machine.driven:
                assert moved.due_at in {None, after(0)} or moved.due_at > DUE
            tried += 1
            if tried == 25:
                break
        assert tried >= 10, "the values that are tried are hardly ever allowed"


@pytest.mark.parametrize("machine", [m for m in SHIPPED if m.create is not None], ids=lambda m: m.name)
def test_what_a_person_creates_is_whole(ledger_url, machine):
    rng = random.Random(machine.name)
    born = next(s for s, actors in machine.born_by.items() if Actor.OPERATOR in actors)
    with Ledger.open(ledger_url, [machine], clock=VirtualClock(DUE), rng=Rng(1), create=True) as ledger:
        for number in range(20):
            made = machine.create(any_unit(rng, machine, number, born), DUE)
            ledger.birth([made], actor=Actor.OPERATOR, who="ann")
            born_as: Any = ledger.get(Ref(machine.name, unit_id_of(made)))
            assert born_as.due_at is not None

"""The forecast's arithmetic: the ways that history teaches, gates that put off, and what comes with a change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.model.experience import Experience, Happened, kind_of
from penstock.model.forecast import Budget, Door, Expected, Outlook
from tests.operations.conftest import ORDER, PRICE

AT = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MACHINES = {"order": ORDER, "price": PRICE}
HOMES = dict.fromkeys(MACHINES, "orders")


def happened(unit: str, source: str | None, target: str, at: datetime, *, by: str = "worker:w", machine: str = "order"):
    return Happened(machine, unit, source, target, None if source is None else "accepted", by, at)


def lived(unit: str, stays: timedelta, target: str = "sent", born: datetime = AT - DAY) -> list[Happened]:
    return [happened(unit, None, "new", born, by="api:x"), happened(unit, "new", target, born + stays)]


def foretold(known: Experience, *expected: Expected, doors: dict[str, Door] | None = None, gate: str | None = None):
    outlook = Outlook(MACHINES, known, doors or {}, AT + DAY, gate_of=lambda one: gate)
    return [(one.hour.hour, one.machine, one.source, one.target, one.n) for one in outlook.lead(expected)]


def test_days_and_identifiers_are_no_kind():
    assert kind_of("acme/2026-11-01/daily/target") == kind_of("acme/2026-11-02T05Z/daily/target") == "acme/daily/target"
    assert kind_of("2d68a336-dbdd-54ee-aff7-2499b9e90e9e/partition-0") == "partition-0"


def test_without_history_the_first_declared_edge_is_taken():
    nothing = Experience(MACHINES, HOMES, [])
    assert foretold(nothing, Expected(machine="order", at=AT, source="new")) == [(12, "order", "new", "sent", 1)]
    assert foretold(nothing, Expected(machine="order", at=AT, source="held")) == [], "only a person moves it"


def test_units_that_are_alike_teach_how_long_they_stay():
    rows = [
        *lived("acme/2026-11-01", HOUR),
        *lived("globex/2026-11-01", 3 * HOUR),
        *lived("globex/2026-11-02", 5 * HOUR),
    ]
    known = Experience(MACHINES, HOMES, rows)
    assert known.stay("order", "new", "acme", 1) == 3_600
    assert known.stay("order", "new", "globex", 1) == 4 * 3_600
    assert known.stay("order", "new", "globex", 1, elapsed=4 * 3_600) == 5 * 3_600
    assert known.stay("order", "new", "globex", 1, elapsed=6 * 3_600) is None
    assert known.stay("order", "new", "initech", 2) == 3 * 3_600, "nobody is like it: all speak"


def test_what_is_rare_is_left_out_and_the_rest_is_shared():
    often = [row for n in range(15) for row in lived(f"a/{n}", HOUR)]
    some = [row for n in range(14) for row in lived(f"b/{n}", HOUR, "failed")]
    rare = lived("c/1", HOUR, "held")
    known = Experience(MACHINES, HOMES, [*rare, *often, *some])
    due = Expected(machine="order", at=AT, source="new", n=100)
    assert foretold(known, due) == [(12, "order", "new", "sent", 52), (12, "order", "new", "failed", 48)]


def test_what_people_did_teaches_nothing():
    rows = [happened("a/1", None, "held", AT - DAY, by="api:x"), happened("a/1", "held", "new", AT, by="operator:jo")]
    assert Experience(MACHINES, HOMES, rows).stay("order", "held", "a/1", 1) is None


def test_a_change_brings_what_came_with_it():
    rows = lived("a/1", HOUR)
    rows.append(happened("p1", None, "open", rows[-1].at, machine="price"))
    known = Experience(MACHINES, HOMES, rows)
    expected = [(12, "order", "new", "sent", 2), (12, "price", None, "open", 2)]
    assert foretold(known, Expected(machine="order", at=AT, source="new", n=2)) == expected


def test_a_closed_gate_puts_off_and_one_that_is_held_lets_nothing_through():
    nothing, due = Experience(MACHINES, HOMES, []), Expected(machine="order", at=AT, source="new")
    closed = {"shop": Door("shop", AT + 3 * HOUR, AT)}
    assert foretold(nothing, due, doors=closed, gate="shop") == [(15, "order", "new", "sent", 1)]
    assert foretold(nothing, due, doors={"shop": Door("shop", None, AT)}, gate="shop") == []


def test_a_budget_that_is_spent_puts_work_off_hour_by_hour():
    door = Door("shop", AT, AT, [Budget(rate=100 / 3_600, burst=10, cost=1, left=10)])
    assert door.affords(AT + DAY) == 2_410
    due = Expected(machine="order", at=AT, source="new", n=200)
    rows = foretold(Experience(MACHINES, HOMES, []), due, doors={"shop": door}, gate="shop")
    # Half an hour and what was saved, a whole hour, and the rest.
    assert [(row[0], row[4]) for row in rows] == [(12, 60), (13, 100), (14, 40)]
    assert door.starves() == AT - timedelta(minutes=30)
    assert {hour.hour: n for hour, n in door.put_off.items()} == {12: 140, 13: 40}


def test_a_budget_that_will_do_starves_never():
    door = Door("shop", AT, AT, [Budget(rate=1, burst=10, cost=1, left=0)])
    due = Expected(machine="order", at=AT, source="new", n=1_800)
    assert foretold(Experience(MACHINES, HOMES, []), due, doors={"shop": door}, gate="shop")[0][4] == 1_800
    assert door.starves() is None

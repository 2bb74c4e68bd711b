"""`penstock units …`: what every machine has without a line of code, to be read."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from penstock.ledger.care.prune import Ages, Pruner
from penstock.model.clock import MILLISECOND, Rng, instant_text
from penstock.model.errors import BadReference, UnknownMachine, UnknownUnit, UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations.selection import Moment, condition
from penstock.operations.units import UnitList, _some
from tests.operations.conftest import NOW, ORDER, O, Order, Price


def listed(desk, **wanted):
    return [row.unit for row in desk.read("units list", **wanted).rows]


def test_units_are_listed_by_machine_and_key_page_by_page(desk):
    orders = sorted(desk.orders(12))
    prices = desk.born(Price(name="a"), Price(name="b"))
    assert listed(desk) == [*orders, *prices]
    pages, after = [], None
    while True:
        page = desk.read("units list", limit=5, after=after)
        pages.append([row.unit for row in page.rows])
        if (after := page.next) is None:
            break
    assert [len(page) for page in pages] == [5, 5, 4]
    assert [unit for page in pages for unit in page] == [*orders, *prices]
    assert desk.read("units list", limit=14).next is None


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"machine": "order", "after": "price:a"}, "'price:a' is not a cursor of order"),
        ({"after": "odrer:acme/1"}, "no machine is called 'odrer'; did you mean order?"),
        ({"after": "order:acme"}, "has 1 part"),
        ({"younger_than": timedelta(days=900_000)}, "younger than that reaches back beyond the year 1"),
        ({"older_than": timedelta(days=900_000)}, "older than that reaches back beyond the year 1"),
    ],
)
def test_a_cursor_of_another_list_and_a_span_beyond_time_are_refused(desk, wanted, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        desk.read("units list", **wanted)


def test_filters_hold_together_and_counts_are_asked_for(desk):
    first, second, third = desk.orders(3, gate_id="shop/acme")
    desk.born(Order(shop="globex", number=9, due_at=NOW + timedelta(hours=2), gate_id="shop2"), Price(name="a"))
    desk.fail(second, "timeout after 30 s")
    desk.ledger.park([Ref.parse(third)], who="jo", reason="Looks ODD")
    assert listed(desk, status=("failed",)) == [second]
    assert listed(desk, machine="order", status=("failed", "new"), because="TIMEOUT") == [second]
    assert listed(desk, because="odd") == [third], "the reason of a park counts too"
    assert listed(desk, parked=True) == [third]
    assert listed(desk, gate="shop") == [first, second, third]
    assert listed(desk, due="now") == [first, third]
    assert len(listed(desk, due="2026-11-15T14:00:00Z")) == 3
    desk.later(hours=3)
    assert listed(desk, machine="price", older_than=timedelta(hours=1)) == ["price:a"]
    assert listed(desk, younger_than=timedelta(hours=1)) == []
    page = desk.read("units list", count=True, limit=1)
    assert page.counts == {"new": 3, "failed": 1, "open": 1}
    assert desk.read("units list").counts is None


def test_units_without_a_gate_are_listed_by_the_gate_none(desk):
    desk.orders(1, gate_id="shop/acme")
    desk.born(Order(shop="initech", number=1), Price(name="a"))
    assert listed(desk, gate="none") == ["order:initech/1"]


@pytest.mark.parametrize("text", ["100%", "a_b", "!", "' OR 1=1 --", "\\", "é", '"; DROP TABLE shop_order; --'])
def test_a_text_is_looked_for_as_it_is(desk, text):
    one, other, *_ = desk.orders(3)
    desk.fail(one, f"said {text} to us")
    desk.fail(other, "100x axb")
    assert listed(desk, because=text) == [one]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"machine": "ordr"}, "no machine is called 'ordr'; did you mean order?"),
        ({"machine": "order", "status": ("faild",)}, "no state of order is called 'faild'; did you mean failed?"),
        ({"status": ("zzz",)}, "no state is called 'zzz'; known are acknowledged, active,"),
        ({"machine": "price", "parked": True}, "price is not driven by workers"),
        ({"due": "soon"}, "'soon' is not an instant; write date, time and offset"),
        ({"because": "a\0b"}, "has a character that no ledger can store"),
        ({"after": "x"}, "'x' is not a unit reference"),
    ],
)
def test_what_cannot_be_listed_is_said(desk, wanted, says):
    with pytest.raises(UsageError) as refused:
        desk.read("units list", **wanted)
    assert says in str(refused.value)


class Explained:
    """A cursor that asks how each statement would be carried out, and answers with no rows."""

    def __init__(self, cursor, dialect):
        self.cursor = cursor
        self.how = "EXPLAIN QUERY PLAN" if dialect == "sqlite" else "EXPLAIN"
        self.plans: list[str] = []

    def rows(self, sql, **values):
        self.plans.append("\n".join(str(row[-1]) for row in self.cursor.rows(f"{self.how} {sql}", **values)))
        return []


@pytest.mark.parametrize(
    ("wanted", "index"), [({}, "PRIMARY KEY|_pkey"), ({"parked": True}, "_parked"), ({"status": ("failed",)}, "_dead")]
)
def test_a_page_of_a_large_machine_is_read_by_an_index(desk, wanted, index):
    made = (Order(shop="acme", number=n, due_at=NOW) for n in range(5_000))
    desk.ledger.birth(made, actor=Actor.API, who="test")
    desk.ledger.database.write(lambda cursor: cursor.run("ANALYZE"))
    dialect = desk.ledger.database.dialect

    def work(cursor):
        explained = Explained(cursor, dialect)
        where = condition(Moment(desk.ledger.database, NOW), ORDER, UnitList(machine="order", **wanted))
        cursor_like: Any = explained
        list(_some(cursor_like, ORDER, where, "acme/1", 50))
        return explained.plans

    (plan,) = desk.ledger.read(work)
    assert re.search(index, plan), plan
    assert "SCAN shop_order\n" not in f"{plan}\n", plan
    assert "Seq Scan on shop_order" not in plan, plan


def test_one_unit_is_shown_whole(desk):
    (ref, *_) = desk.orders(1, amount=7, gate_id="shop/acme", tags={"a": [1]})
    desk.fail(ref, "x" * 500)
    found = desk.read("units show", unit=ref)
    assert (found.status, found.meaning, found.says) == ("failed", "fault", "the shop refused it")
    assert (found.reason, found.changed_by, found.gate, found.attempts) == ("x" * 500, "worker:w", "shop/acme", 4)
    assert found.columns == {
        "shop": "acme",
        "number": 1,
        "amount": 7,
        "label": "",
        "placed": None,
        "confirmed_at": None,
        "tags": {"a": [1]},
    }
    assert found.operators_can == ["retry (→ new)"]
    assert [(one.source, one.target, one.actor) for one in found.history] == [
        (None, "new", "api:test"),
        ("new", "failed", "worker:w"),
    ]
    assert msgspec.json.encode(found)
    assert desk.read("units show", unit=desk.born(Price(name="a"))[0]).due_at is None


def test_history_tells_every_change_and_how_it_stood(desk):
    (ref,) = desk.orders(1)
    desk.later(hours=1)
    desk.fail(ref, "no")
    for name in ("units history", "history"):
        rows = desk.read(name, unit=ref).rows
        assert [(one.source, one.target, one.reason) for one in rows] == [
            (None, "new", "born"),
            ("new", "failed", "no"),
        ]
    then = desk.read("history", unit=ref, at=NOW + timedelta(minutes=5))
    assert ([one.target for one in then.rows], then.note) == (["new"], f"{ref} was new at 2026-11-15T12:05:00.000Z")
    before = desk.read("history", unit=ref, at=NOW - timedelta(days=1))
    assert (before.rows, before.note) == ([], f"{ref} was not born at 2026-11-14T12:00:00.000Z")


def test_why_follows_the_chain_under_both_names(desk):
    (ref,) = desk.orders(1)
    for name in ("units why", "why"):
        found = desk.read(name, unit=ref)
        assert found.verdict == "blocked: no running worker serves order"
        assert found.links[0].says.endswith("operators can hold it (→ held)")
    assert msgspec.json.encode(found)


@pytest.mark.parametrize("name", ["units show", "units history", "units why"])
def test_a_unit_that_is_not_there_is_said(desk, name):
    for ref, error in (("order:acme/9", UnknownUnit), ("ordr:acme/9", UnknownMachine), ("order", BadReference)):
        with pytest.raises(error):
            desk.read(name, unit=ref)


def test_a_state_of_a_newer_program_is_shown_as_it_is(desk):
    (ref,) = desk.orders(1)
    desk.ledger.move(Ref.parse(ref), O.HELD, actor=Actor.OPERATOR, who="jo", reason="x", due_at=None)
    assert desk.read("units show", unit=ref).says == "the customer is asked"


def test_a_list_of_then_says_how_many_units_may_have_been_pruned_since(desk):
    sent, _ = desk.orders(2)
    desk.ledger.move(Ref.parse(sent), O.SENT, actor=Actor.WORKER, who="w", reason="taken")
    desk.later(days=40)
    ages = Ages({"units": timedelta(days=30), "transition_log": timedelta(days=300)})
    Pruner(desk.ledger.database, ages, who="operator:jo", rng=Rng()).prune()
    death = desk.clock.now()
    desk.later(minutes=1)
    told = "up to 1 unit of order may be left out: pruned since"
    assert [desk.read("stuck", at=at).note for at in (death, death - MILLISECOND)] == [None, told]


def test_a_baseline_of_then_is_nobodys(desk):
    (order,) = desk.orders(1)
    desk.ledger.move(Ref.parse(order), O.HELD, actor=Actor.OPERATOR, who="jo", reason="x", due_at=None)
    desk.later(days=40)
    ages = Ages({"units": timedelta(days=300), "transition_log": timedelta(days=30)})
    Pruner(desk.ledger.database, ages, who="operator:jo", rng=Rng()).prune()
    at = desk.clock.now()
    desk.later(minutes=1)
    desk.ledger.move(Ref.parse(order), O.NEW, actor=Actor.OPERATOR, who="jo", reason="again", due_at=desk.clock.now())
    reason = "baseline, 1 row before it pruned; operator:jo: x"
    shown = desk.read("units show", unit=order, at=at)
    assert (shown.status, shown.changed_by, shown.reason) == ("held", "", reason)
    state, *_ = desk.read("units why", unit=order, at=at).links
    assert f"): {reason}" in state.says


def test_answers_about_a_past_that_is_gone_say_so(desk):
    sent, living = desk.orders(2)
    desk.ledger.move(Ref.parse(sent), O.SENT, actor=Actor.WORKER, who="w", reason="taken")
    desk.later(days=40)
    month, who = timedelta(days=30), "operator:jo"
    ages = {"units": month, "transition_log": month, "keep_graves": timedelta(days=60)}
    Pruner(desk.ledger.database, Ages(ages), who=who, rng=Rng()).prune()
    inside = desk.clock.now() - timedelta(days=5)
    assert [(one.unit, one.status) for one in desk.read("units list", at=inside).rows] == [
        (sent, "sent"),
        (living, "new"),
    ]
    then = desk.read("history", unit=sent, at=inside)
    assert (then.rows, then.note) == ([], f"{sent} was sent at {instant_text(inside)}")
    desk.born(Price(name="a"))
    desk.later(days=70)
    Pruner(desk.ledger.database, Ages(ages), who=who, rng=Rng()).prune()
    missing = f"units of order that were pruned before {instant_text(desk.clock.now() - timedelta(days=60))}"
    beyond = desk.read("units list", at=inside, count=True)
    assert [one.unit for one in beyond.rows] == [living]
    assert f"{missing} are no longer in the history" in beyond.note
    assert beyond.counts == {"new": 1, "sent": 1}, "the counts of the past stay right"
    with pytest.raises(UnknownUnit, match=missing):
        desk.read("history", unit=sent)
    desk.orders(1)
    again = desk.read("history", unit=sent, at=inside)
    assert again.note == f"{sent} was not born at {instant_text(inside)}; {missing} are no longer in the history"

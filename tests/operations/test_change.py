"""`units move | wake | park | unpark`: plans, digests, what is skipped and why."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.model.errors import BadReference, PlanChanged, UnknownUnit, UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations.carry import carry_out
from tests.operations.conftest import NOW, O, Price


def history(desk, ref):
    machine, unit_id = Ref.parse(ref)
    rows = desk.rows(
        "SELECT from_status, to_status, actor, reason FROM transition_log"
        " WHERE machine = :machine AND unit_id = :unit_id ORDER BY seq",
        machine=machine,
        unit_id=unit_id,
    )
    return rows[1:]


def test_a_move_by_hand_makes_the_changes_that_belong_to_the_edge(desk):
    (ref, other, _) = desk.orders(3)
    version = desk.unit(other).version
    desk.fail(ref, "no")
    desk.later(minutes=5)
    planned = desk.plan("units move", units=(ref,), to="new")
    assert (planned.preview.says, planned.preview.sample) == ("move 1 order unit to new", [ref])
    assert desk.unit(ref).status is O.FAILED, "a plan writes nothing"
    done = desk.do("units move", units=(ref,), to="new", seen=planned.preview.digest)
    moved = desk.unit(ref)
    assert (done.count, moved.status, moved.attempts, moved.due_at) == (1, O.NEW, 0, desk.clock.now())
    assert history(desk, ref)[-1] == ("failed", "new", "operator:jo", "because")
    assert desk.unit(other).version == version, "nobody else is touched"


def test_a_plan_of_a_minute_later_is_the_same_and_another_set_is_refused(desk):
    one, two, _ = desk.orders(3)
    desk.fail(one, "no")
    seen = desk.plan("units move", machine="order", status=("failed",), to="new").preview.digest
    desk.later(minutes=1)
    assert desk.plan("units move", machine="order", status=("failed",), to="new").preview.digest == seen
    desk.fail(two, "no")
    with pytest.raises(PlanChanged, match="no longer what was shown"):
        desk.do("units move", machine="order", status=("failed",), to="new", seen=seen)
    assert [desk.unit(ref).status for ref in (one, two)] == [O.FAILED, O.FAILED]


def test_a_unit_that_changed_since_the_plan_is_skipped_and_the_others_go(desk):
    one, two, _ = desk.orders(3)
    desk.fail(one, "no")
    desk.fail(two, "no")
    planned = desk.plan("units move", units=(one, two), to="new")
    desk.ledger.move(Ref.parse(one), O.NEW, actor=Actor.OPERATOR, who="al", reason="quicker")
    done = carry_out(desk.ledger, desk.ask(), planned)
    assert (done.count, done.skipped) == (1, {"it changed since it was looked at": 1})
    assert done.skipped_sample == {one: "it changed since it was looked at"}


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("held", "new → held takes more than a move; use 'penstock orders hold'"),
        ("sent", "new → sent is only for worker"),
        ("new", "it is new already"),
        ("gone", "order has no state 'gone'; it has new, sent, held, failed"),
    ],
)
def test_what_no_hand_may_move_is_refused_and_says_what_does(desk, to, says):
    refs = desk.orders(1)
    with pytest.raises(UsageError) as refused:
        desk.plan("units move", units=tuple(refs), to=to)
    assert says in str(refused.value)


def test_what_cannot_go_is_skipped_where_others_can(desk):
    one, two, _ = desk.orders(3)
    desk.fail(one, "no")
    preview = desk.plan("units move", units=(one, two), to="new").preview
    assert (preview.count, preview.skipped) == (1, {"it is new already": 1})


def test_an_edge_without_by_hand_and_without_a_command_of_its_name_shows_all_commands(desk):
    (ref,) = desk.orders(1)
    desk.ledger.move(Ref.parse(ref), O.HELD, actor=Actor.OPERATOR, who="jo", reason="x")
    with pytest.raises(UsageError, match="held → new takes more than a move; use 'penstock orders hold'"):
        desk.plan("units move", units=(ref,), to="new")


def test_units_are_woken_by_name_or_by_filter(desk):
    one, two, three = desk.orders(3)
    for ref in (one, two):
        desk.ledger.move(
            Ref.parse(ref), O.NEW, actor=Actor.WORKER, who="w", reason="later", due_at=NOW + timedelta(days=1)
        )
    assert desk.do("units wake", units=(one,)).count == 1
    assert desk.unit(one).due_at == NOW
    assert desk.do("units wake", machine="order", because="later").count == 1
    assert desk.unit(two).due_at == NOW
    assert history(desk, two)[-1] == ("new", "new", "operator:jo", "because")
    assert history(desk, three) == []


def test_parked_units_stay_until_they_are_unparked(desk):
    one, two, _ = desk.orders(3)
    assert desk.do("units park", units=(one, two)).count == 2
    assert desk.unit(one).parked_reason == "because"
    with pytest.raises(UsageError, match=f"nothing to park: {one}: it is parked already"):
        desk.plan("units park", units=(one,))
    preview = desk.plan("units wake", machine="order").preview
    assert (preview.count, preview.skipped) == (1, {"it is parked; unpark it instead": 2})
    assert desk.do("units unpark", machine="order", parked=True).count == 2
    assert (desk.unit(one).parked_at, desk.unit(one).due_at) == (None, NOW)
    with pytest.raises(UsageError, match="it is not parked"):
        desk.plan("units unpark", units=(one,))


def test_what_has_ended_is_left_alone(desk):
    one, two, _ = desk.orders(3)
    desk.ledger.move(Ref.parse(one), O.SENT, actor=Actor.WORKER, who="w", reason="taken")
    preview = desk.plan("units wake", units=(one, two)).preview
    assert (preview.count, preview.skipped_sample) == (1, {one: "it has ended as sent"})


@pytest.mark.parametrize("verb", ["units wake", "units park", "units unpark"])
def test_who_is_meant_must_be_clear(desk, verb):
    (ref, *_) = desk.orders(1)
    (price,) = desk.born(Price(name="a"))
    for wanted, says in (
        ({}, "which units?"),
        ({"because": "x"}, "which units?"),
        ({"units": (ref,), "machine": "order"}, "not both"),
        ({"units": (price,)}, "price is not driven by workers"),
    ):
        with pytest.raises(UsageError, match=says.replace("?", r"\?")):
            desk.plan(verb, **wanted)
    with pytest.raises(UnknownUnit, match="no unit order:acme/99 in the ledger"):
        desk.plan(verb, units=(ref, "order:acme/99"))
    for text in ("order:acme", "order:acme/x", "order", "order:acme/1\0", "order:acme/01"):
        with pytest.raises(UsageError):
            desk.plan(verb, units=(text,))
    with pytest.raises(BadReference):
        desk.plan(verb, units=("order:acme/' OR 1=1",))


def test_a_reason_is_wanted(desk):
    refs = desk.orders(1)
    with pytest.raises(UsageError, match="units park needs a reason"):
        desk.plan("units park", units=tuple(refs), reason=" ")


def test_many_become_a_bulk_action_and_are_listed_shown_and_cancelled(desk):
    refs = desk.orders(1_100)
    for ref in refs:
        desk.fail(ref, "no")
    done = desk.do("units move", machine="order", status=("failed",), to="new")
    assert done.action is not None
    (row,) = desk.read("bulk list", running=True).rows
    assert (row.status, row.total, row.position, row.says) == ("running", 1_100, 0, "move 1,100 order units to new")
    cancelled = desk.do("bulk cancel", action=row.action)
    assert cancelled.count == 1
    found = desk.read("bulk show", action=done.action)
    assert (found.status, found.moved, found.skipped, found.machine) == ("cancelled", 0, {}, "order")
    with pytest.raises(UsageError, match="is cancelled; only a running one"):
        desk.plan("bulk cancel", action=row.action)
    with pytest.raises(UnknownUnit, match="no bulk action is called 'x'"):
        desk.read("bulk show", action="x")
    assert desk.read("bulk list", running=True).rows == []

"""`penstock dead …`: dead letters of all machines, grouped by cause, retried or dismissed."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from penstock.model.errors import PlanChanged, UsageError
from penstock.model.machine import Actor
from penstock.model.unit import Ref
from penstock.operations.fingerprint import cause_of, fingerprint
from tests.operations.conftest import NOW, O, Order


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("timeout after 30 s", "timeout after 7.5 s"),
        ("order 17 of 'acme' is refused", "order 18 of 'globex corp' is refused"),
        ("no report 2b1c7f0e-1a2b-4c3d-8e9f-0123456789ab", "no report 9f8e7d6c-5b4a-4321-aaaa-bbbbbbbbbbbb"),
        ("expired at 2026-11-15T12:00:00.123Z", "expired at 2025-01-01 00:00:00+02:00"),
        ("GET https://a.example/x?y=1 is gone", "GET http://b.example/ is gone"),
        ("request id-a1b2c3d4e5 failed", "request id-z9y8x7w6v5 failed"),
        ("day 2026-11-01", "day 2026-11-02"),
    ],
)
def test_what_differs_from_unit_to_unit_is_no_cause(one, other):
    assert cause_of(one) == cause_of(other)
    assert fingerprint("m", "s", cause_of(one)) == fingerprint("m", "s", cause_of(other))


def test_other_words_are_another_cause():
    assert cause_of("timeout after 30 s") != cause_of("refused after 30 s")
    assert cause_of(None) == "no reason given"
    assert fingerprint("a", "failed", "x") != fingerprint("b", "failed", "x")
    assert len(cause_of("x" * 100_000)) <= 2_000


def groups(desk, **wanted):
    return {(row.status, row.reason): row for row in desk.read("dead list", **wanted).rows}


@pytest.fixture
def dead(desk):
    """Four that timed out, one that was refused, one that is parked, and one that is well."""
    refs = desk.orders(7)
    for number, ref in enumerate(refs[:4]):
        desk.fail(ref, f"timeout after {number} s")
        desk.later(minutes=1)
    desk.fail(refs[4], 'refused: "no such item"')
    desk.ledger.park([Ref.parse(refs[5])], who="jo", reason="step 3 broke")
    return refs


def test_dead_letters_are_grouped_by_cause(desk, dead):
    found = groups(desk)
    assert {key: row.count for key, row in found.items()} == {
        ("failed", "timeout after <n> s"): 4,
        ("failed", 'refused: "no such item"'): 1,
        ("parked", "step 3 broke"): 1,
    }
    most = next(iter(desk.read("dead list").rows))
    assert (most.machine, most.count, most.example) == ("order", 4, dead[0])
    assert (most.oldest, most.newest) == (NOW, NOW + timedelta(minutes=3))
    shown = desk.read("dead show", cause=most.cause, limit=3)
    assert ([row.unit for row in shown.rows], shown.next) == (dead[:3], dead[2])
    rest = desk.read("dead show", cause=most.cause, limit=3, after=shown.next)
    assert ([row.unit for row in rest.rows], rest.next) == ([dead[3]], None)
    assert [row.reason for row in rest.rows] == ["timeout after 3 s"]


def test_filters_choose_among_them(desk, dead):
    assert sum(row.count for row in groups(desk, because="REFUSED").values()) == 1
    assert groups(desk, machine="bulk_action") == {}
    assert sum(row.count for row in groups(desk, younger_than=timedelta(seconds=90)).values()) == 3
    assert desk.read("dead list", because="nothing of it").note == "no dead letters"


def test_a_cause_is_retried_whole(desk, dead):
    cause = groups(desk)["failed", "timeout after <n> s"].cause
    planned = desk.plan("dead retry", cause=cause)
    assert (planned.preview.says, planned.preview.sample) == ("retry 4 order units", dead[:4])
    assert desk.do("dead retry", cause=cause, seen=planned.preview.digest).count == 4
    assert {desk.unit(ref).status for ref in dead[:4]} == {O.NEW}
    assert (desk.unit(dead[0]).attempts, desk.unit(dead[0]).due_at) == (0, desk.clock.now())
    assert ("failed", "timeout after <n> s") not in groups(desk)
    with pytest.raises(UsageError, match="no dead letters have the cause"):
        desk.plan("dead retry", cause=cause)


def test_one_more_dead_letter_of_the_cause_refuses_the_digest(desk, dead):
    cause = groups(desk)["failed", "timeout after <n> s"].cause
    seen = desk.plan("dead retry", cause=cause).preview.digest
    desk.fail(dead[6], "timeout after 99 s")
    with pytest.raises(PlanChanged):
        desk.do("dead retry", cause=cause, seen=seen)


def test_parked_units_are_retried_by_unparking_them(desk, dead):
    cause = groups(desk)["parked", "step 3 broke"].cause
    assert desk.do("dead retry", cause=cause).count == 1
    assert desk.unit(dead[5]).parked_at is None


def test_by_name_and_by_filter(desk, dead):
    assert desk.do("dead retry", units=(dead[4],)).count == 1
    preview = desk.plan("dead retry", units=(dead[0], dead[6])).preview
    assert (preview.count, preview.skipped_sample) == (1, {dead[6]: "it is new, not a dead letter"})
    assert desk.do("dead retry", machine="order", because="timeout").count == 4
    with pytest.raises(UsageError, match="no dead letters of order match"):
        desk.plan("dead retry", machine="order", because="timeout")


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({}, "which dead letters"),
        ({"cause": "abc", "machine": "order"}, "only one of the three"),
        ({"cause": "abc"}, "no dead letters have the cause 'abc'"),
        ({"machine": "order"}, "some of these are parked and others are dead"),
    ],
)
def test_what_is_meant_must_be_clear(desk, dead, wanted, says):
    with pytest.raises(UsageError) as refused:
        desk.plan("dead retry", **wanted)
    assert says in str(refused.value)


def test_dismissed_letters_are_left_out_until_they_change(desk, dead):
    cause = groups(desk)["failed", "timeout after <n> s"].cause
    seen = desk.plan("dead dismiss", cause=cause, reason="dry run").preview
    assert (seen.count, seen.sample) == (4, dead[:4])
    desk.later(minutes=1)
    assert desk.do("dead dismiss", cause=cause, seen=seen.digest).count == 4
    assert ("failed", "timeout after <n> s") not in groups(desk)
    kept = groups(desk, dismissed=True)
    assert {row.count for row in kept.values()} == {4}
    (row, *_) = desk.read("dead show", cause=cause, dismissed=True).rows
    assert (row.dismissed_by, row.dismissed_for) == ("jo", "because")
    assert desk.unit(dead[0]).status is O.FAILED
    desk.ledger.move(Ref.parse(dead[0]), O.NEW, actor=Actor.OPERATOR, who="jo", reason="x")
    desk.fail(dead[0], "timeout after 5 s")
    assert groups(desk)["failed", "timeout after 5 s"].count == 1
    assert desk.do("dead dismiss", units=(dead[0],)).count == 1, "it may be dismissed again"
    assert groups(desk, dismissed=True)["failed", "timeout after <n> s"].count == 4


def test_what_lives_cannot_be_dismissed_and_a_reason_is_wanted(desk, dead):
    with pytest.raises(UsageError, match="order:acme/7 is new, not a dead letter"):
        desk.plan("dead dismiss", units=(dead[6],))
    with pytest.raises(UsageError, match="needs a reason"):
        desk.plan("dead dismiss", units=(dead[0],), reason="")


def test_hostile_reasons_are_texts(desk):
    (ref,) = desk.born(Order(shop="a'; --", number=1, due_at=NOW))
    desk.fail(ref, "' OR '1'='1'; DROP TABLE dismissal; -- \x1b[31m")
    (row,) = desk.read("dead list").rows
    assert desk.do("dead dismiss", cause=row.cause).count == 1
    assert desk.read("dead list").rows == []


@pytest.mark.parametrize("operation", ["dead retry", "dead dismiss"])
def test_a_machine_that_nobody_drives_has_no_dead_letters(desk, operation):
    with pytest.raises(UsageError, match="price is not driven by workers; it has no dead letters"):
        desk.plan(operation, machine="price")


def test_dead_letters_are_listed_as_they_stood(desk, dead):
    then = desk.clock.now()
    desk.later(hours=1)
    refused = next(row.cause for row in desk.read("dead list").rows if row.reason.startswith("refused"))
    desk.do("dead retry", cause=refused)
    assert ("failed", 'refused: "no such item"') not in groups(desk)
    assert {key: row.count for key, row in groups(desk, at=then).items()} == {
        ("failed", "timeout after <n> s"): 4,
        ("failed", 'refused: "no such item"'): 1,
        ("parked", "step 3 broke"): 1,
    }
    (row,) = desk.read("dead show", cause=refused, at=then).rows
    assert (row.unit, row.status) == (dead[4], "failed")
    assert groups(desk, at=NOW - timedelta(hours=1)) == {}
    parked = next(row.cause for row in desk.read("dead list", at=then).rows if row.status == "parked")
    assert [row.status for row in desk.read("dead show", cause=parked, at=then).rows] == ["parked"]
    desk.do("dead retry", cause=parked)
    assert "parked" not in {state for state, _ in groups(desk, at=then)}, "who took it up knows that it was"
    with pytest.raises(UsageError, match="of the past only the machine is known"):
        desk.read("dead list", at=then, because="timeout")


def test_a_need_tells_one_reason_in_full_and_that_others_are_alike(desk, dead):
    (need,) = [one for one in desk.read("needs").rows if one.what == "4 dead letters of order"]
    assert re.fullmatch(r"timeout after [0-3] s \(the others are alike\)", need.why)
    (need,) = [one for one in desk.read("needs").rows if one.units == [dead[4]]]
    assert need.why == 'refused: "no such item"'

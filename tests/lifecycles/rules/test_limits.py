"""Totals, and the limits that they are compared with."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.limits import Limits, check, must_stop, needs_approval
from penstock.lifecycles.rules.money import Price
from penstock.lifecycles.rules.outcomes import Excluded, Reason, Target
from penstock.lifecycles.rules.pricing import evaluate
from penstock.lifecycles.rules.totals import KEPT, Totals, percent
from tests.lifecycles.rules.making import item, rule


def gathered(changes: list[tuple[int, int]], catalogue: int = 100) -> Totals:
    totals = Totals()
    totals.catalogue = catalogue
    for number, (before, after) in enumerate(changes):
        thing = item(before, variant_id=f"v{number:04}", sku=f"S{number}")
        totals.add(thing, Target(thing.price, Price(after, None, "USD")))
    return totals


def test_totals_of_a_preview():
    totals = Totals()
    things = [item(sku="A"), item(1000, sku="B", vendor="B"), item(sku="C"), item(sku="D", vendor="Other")]
    found = list(evaluate(rule(selector={"where": 'vendor != "Other"'}), things, {"C"}, totals=totals))
    assert len(found) == totals.meant == 3
    assert (totals.catalogue, totals.targets) == (4, 2)
    assert totals.excluded == {Reason.LOCKED: 1}
    assert (totals.before, totals.after) == (3000, 2700)
    assert (totals.rises, totals.falls) == (0, 2)
    assert totals.mean_change == totals.least_change == totals.most_change == Decimal("-10.00")
    assert [change.item.sku for change in totals.largest_falls] == ["A", "B"]
    assert totals.largest_rises == []
    assert check(Limits(), totals) == []


def test_totals_of_nothing():
    totals = gathered([])
    assert totals.mean_change is totals.least_change is totals.most_change is None
    assert totals.largest is None
    assert check(Limits(), totals) == ["the rule means none of the 100 items"]
    totals.add(item(), Excluded(Reason.LOCKED, "…"))
    totals.add(item(), Excluded(Reason.NO_CHANGE, "…"))
    totals.add(item(), Excluded(Reason.NO_CHANGE, "…"))
    assert check(Limits(), totals) == [
        "no price would change: all 3 items that the rule means are excluded (no_change 2, locked 1)"
    ]


@pytest.mark.parametrize(
    ("limits", "changes", "refused"),
    [
        ({"most_targets": 2}, [(100, 90)] * 2, None),
        ({"most_targets": 2}, [(100, 90)] * 3, "3 targets are more than most_targets, 2"),
        ({"most_share": Decimal("2.5")}, [(100, 90)] * 2, None),
        ({"most_share": Decimal("2.5")}, [(100, 90)] * 3, "3 of 100 items (3.00 %) are more than most_share, 2.5 %"),
        ({}, [(2000, 1000), (1000, 1500)], None),
        (
            {},
            [(2000, 1999), (2000, 999)],
            "the price of S1 would go from 20.00 to 9.99 (-50.05 %), which is more than most_percent, 50 %",
        ),
        ({"most_percent": Decimal("0.1")}, [(1000, 1001)], None),
        (
            {"most_percent": Decimal("0.099999")},
            [(1000, 1001)],
            "(0.10 %), which is more than most_percent, 0.099999 %",
        ),
    ],
)
def test_a_limit_refuses_with_the_number_that_broke_it(limits, changes, refused):
    found = check(Limits(**limits), gathered(changes))
    assert found == [] if refused is None else refused in found[0]
    assert len(found) <= 1


def test_skus_that_the_catalogue_does_not_have_are_refused_by_name():
    totals = Totals()
    skus = [f"X{number}" for number in range(7)]
    list(evaluate(rule(selector={"skus": ["RING-1", *skus]}), [item()], totals=totals))
    assert totals.unknown == skus
    assert check(Limits(), totals) == [
        "the catalogue does not have 7 of the rule's SKUs: X0, X1, X2, X3, X4 and 2 more"
    ]


def test_all_refusals_come_at_once():
    totals = gathered([(100, 10), (100, 20)], catalogue=4)
    assert len(check(Limits(most_targets=1, most_share=Decimal(10)), totals)) == 3


def test_a_run_stops_at_its_failure_rate_once_it_can_be_judged():
    limits = Limits(stop_at=Decimal(10), judged_from=20)
    assert must_stop(limits, 0, 19) is None
    assert must_stop(limits, 18, 2) is None
    assert must_stop(limits, 17, 3) == "3 of 20 targets failed (15.00 %), which is more than stop_at, 10 %"
    assert must_stop(Limits(stop_at=Decimal(100)), 0, 1000) is None
    assert must_stop(Limits(stop_at=Decimal(0), judged_from=1), 999, 1) is not None


def test_above_a_size_a_second_person_approves():
    assert not needs_approval(Limits(), 10**6)
    assert not needs_approval(Limits(approve_above=100), 100)
    assert needs_approval(Limits(approve_above=100), 101)


changes = st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), max_size=300)


@given(changes, st.randoms(use_true_random=False))
def test_totals_are_those_of_a_plain_count_in_any_order(several, chance: random.Random):
    pairs = [(item(before, variant_id=f"v{n:04}"), after) for n, (before, after) in enumerate(several)]
    plain = sorted(
        ((Fraction(after - thing.price.amount, thing.price.amount), thing.variant_id) for thing, after in pairs),
        key=lambda found: (-abs(found[0]), found[1]),
    )
    chance.shuffle(pairs)
    totals = Totals()
    for thing, after in pairs:
        totals.add(thing, Target(thing.price, Price(after, None, "USD")))
    assert totals.targets == len(several)
    assert totals.before == sum(before for before, _ in several)
    assert totals.after == sum(after for _, after in several)
    for kept, expected in (
        (totals.largest_rises, [one for one in plain if one[0] > 0]),
        (totals.largest_falls, [one for one in plain if one[0] < 0]),
    ):
        assert _shares(kept) == [abs(share) for share, _ in expected[:KEPT]]
    if plain:
        assert totals.largest is not None
        assert totals.largest.item.variant_id == plain[0][1]
        mean = sum((share for share, _ in plain), Fraction(0)) * 100 / len(plain)
        assert totals.mean_change is not None
        assert abs(Fraction(totals.mean_change) - mean) < Fraction(1, 100)


def _shares(kept: list[Any]) -> list[Fraction]:
    return [Fraction(abs(change.difference), change.target.before.amount) for change in kept]


@given(st.permutations(range(200)))
def test_of_equal_changes_those_of_the_lowest_variants_are_kept(order):
    totals = Totals()
    for number in order:
        thing = item(1000, variant_id=f"v{number:04}")
        totals.add(thing, Target(thing.price, Price(900, None, "USD")))
    assert [change.item.variant_id for change in totals.largest_falls] == [f"v{number:04}" for number in range(KEPT)]


def test_memory_does_not_grow_with_the_changes():
    totals = Totals()
    for number in range(5_000):
        thing: Item = item(1000, variant_id=f"v{number}")
        totals.add(thing, Target(thing.price, Price(1000 + number, None, "USD")))
    assert len(totals._up._found) < 100
    assert [change.target.after.amount for change in totals.largest_rises] == list(range(5_999, 5_989, -1))


@given(st.integers(-(10**9), 10**9), st.integers(1, 10**9))
def test_a_percentage_is_rounded_half_away_from_zero(part, whole):
    found = percent(part, whole)
    assert abs(Fraction(found) - Fraction(part * 100, whole)) <= Fraction(1, 200)
    assert percent(-part, whole) == -found
    assert found.as_tuple().exponent == -2

"""What a rule makes of a price: exactly, within its bounds, or not at all and why."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.money import LARGEST, Price, text
from penstock.lifecycles.rules.outcomes import Excluded, Reason, Target
from penstock.lifecycles.rules.pricing import evaluate, prepare, price
from penstock.lifecycles.rules.totals import Totals
from tests.lifecycles.rules.making import item, rule


def after(thing: Item, **fields: Any) -> Price:
    outcome = price(prepare(rule(**fields)), thing)
    assert isinstance(outcome, Target), outcome
    assert outcome.before == thing.price
    return outcome.after


def amount(thing: Item, **fields: Any) -> int:
    return after(thing, **fields).amount


def reason(thing: Item, **fields: Any) -> Reason:
    outcome = price(prepare(rule(**fields)), thing)
    assert isinstance(outcome, Excluded), outcome
    assert outcome.sentence
    return outcome.reason


@pytest.mark.parametrize(
    ("transform", "expected"),
    [
        ({"percent": "-10"}, 1799),  # 1799.1
        ({"percent": "12.5"}, 2249),  # 2248.875
        ({"percent": "0.025"}, None),  # 1999.49975
        ({"percent": "0.026"}, 2000),  # 1999.51974
        ({"amount": "-5.00"}, 1499),
        ({"amount": "5"}, 2499),
        ({"set_to": "24.90"}, 2490),
        ({"beat_by_amount": "0.01"}, 1799),
        ({"beat_by_percent": "3"}, 1746),
        ({"beat_by_percent": "0"}, 1800),
        ({"prices": {"RING-1": {"price": "21.00"}}}, 2100),
    ],
)
def test_each_transform(transform, expected):
    thing = item(1999, reference=1800)
    if expected is None:
        assert reason(thing, transform=transform) is Reason.NO_CHANGE
    else:
        assert amount(thing, transform=transform) == expected


def test_half_a_minor_unit_goes_up_and_a_reference_stays_beaten():
    assert amount(item(1050), transform={"percent": "5"}) == 1103  # 1102.5
    assert amount(item(1050), transform={"percent": "-5"}) == 998  # 997.5
    assert amount(item(2000, reference=1050), transform={"beat_by_percent": "5"}) == 997  # 997.5
    # The nearest .99 to 10.69 is 10.99, which beats nothing.
    assert amount(item(2000, reference=1070), transform={"beat_by_amount": "0.01"}, rounding={"ending": ".99"}) == 999
    nearest = {"ending": ".99", "mode": "nearest"}
    assert amount(item(2000, reference=1070), transform={"beat_by_amount": "0.01"}, rounding=nearest) == 1099


def test_currencies_without_and_with_three_decimals():
    assert amount(item(1999, currency="JPY"), currency="JPY") == 1799
    assert amount(item(1999, currency="KWD"), currency="KWD", transform={"amount": "0.005"}) == 2004


@pytest.mark.parametrize(
    ("floor", "expected"),
    [
        ({"amount": "15.00"}, 1500),
        ({"cost_factor": "1.3"}, 1562),  # 1201 * 1.3 = 1561.3, and never below it
        ({"cost_plus_percent": "30"}, 1562),
        ({"amount": "16.00", "cost_factor": "1.3"}, 1600),
        ({"amount": "1.00", "cost_factor": "1.3"}, 1562),
    ],
)
def test_a_floor_lifts_a_price(floor, expected):
    assert amount(item(2000, cost=1201), transform={"percent": "-50"}, floor=floor) == expected


def test_bounds_never_turn_a_cut_into_a_rise_nor_a_rise_into_a_cut():
    assert reason(item(900), transform={"percent": "-10"}, floor={"amount": "10"}) is Reason.BELOW_FLOOR
    assert reason(item(1100), transform={"percent": "10"}, ceiling="10") is Reason.ABOVE_CEILING
    assert reason(item(1000), transform={"percent": "-10"}, floor={"amount": "10"}) is Reason.NO_CHANGE
    # A rule that changes nothing by itself does lift prices to their floor.
    assert amount(item(900), transform={"percent": 0}, floor={"amount": "10"}) == 1000
    assert amount(item(1100), transform={"percent": 0}, ceiling="10") == 1000
    assert amount(item(900), transform={"set_to": "9.50"}, floor={"amount": "10"}) == 1000


def test_a_ceiling_lowers_a_price_and_rounding_stays_between_both():
    assert amount(item(2000), transform={"percent": 50}, ceiling="25") == 2500
    ending = {"ending": ".99"}
    assert amount(item(2000), transform={"percent": 50}, ceiling="25", rounding=ending) == 2499
    assert amount(item(2000), transform={"percent": -50}, floor={"amount": "10"}, rounding=ending) == 1099
    assert amount(item(2000), transform={"percent": -47}, floor={"amount": "10"}, rounding=ending) == 1099
    bounds = {"floor": {"amount": "10.00"}, "ceiling": "10.98"}
    assert reason(item(2000), transform={"percent": -47}, rounding=ending, **bounds) is Reason.NO_ROUNDING
    costly = {"floor": {"cost_factor": 2}, "ceiling": "25"}
    assert reason(item(2000, cost=1500), transform={"percent": 5}, **costly) is Reason.BELOW_FLOOR


def test_what_is_missing_excludes_an_item():
    assert reason(item(), transform={"beat_by_amount": "1"}) is Reason.NO_REFERENCE
    assert reason(item(reference=0), transform={"beat_by_percent": "1"}) is Reason.NO_REFERENCE
    assert reason(item(), floor={"cost_factor": "1.3"}) is Reason.NO_COST
    assert reason(item(cost=-1), floor={"cost_factor": "1.3", "amount": "1"}) is Reason.NO_COST
    assert reason(item(sku="")) is Reason.NO_SKU
    assert reason(item(currency="EUR")) is Reason.CURRENCY_DIFFERS
    assert reason(item(0)) is Reason.PRICE_INVALID
    assert reason(item(-5)) is Reason.PRICE_INVALID
    assert reason(item(LARGEST + 1)) is Reason.PRICE_INVALID


def test_no_price_is_ever_zero_or_absurd():
    assert reason(item(500), transform={"amount": "-5.00"}) is Reason.NOT_POSITIVE
    assert reason(item(500), transform={"amount": "-6.00"}) is Reason.NOT_POSITIVE
    assert amount(item(500), transform={"amount": "-6.00"}, floor={"amount": "1"}) == 100
    down = {"ending": ".99", "mode": "down"}
    assert reason(item(100), transform={"percent": -50}, rounding=down) is Reason.NOT_POSITIVE
    assert amount(item(300), transform={"percent": -90}, rounding={"ending": ".99"}) == 99
    assert amount(item(2), transform={"percent": "-99"}) == 1
    assert reason(item(LARGEST), transform={"percent": 1}) is Reason.TOO_LARGE
    assert amount(item(LARGEST - 1), transform={"percent": 1}, ceiling=text(LARGEST, "USD")) == LARGEST


def test_a_change_that_is_too_large_excludes_the_item_or_is_cut_short():
    cut = {"transform": {"percent": -50}}
    assert reason(item(2000), max_change={"percent": 30}, **cut) is Reason.CHANGE_TOO_LARGE
    assert amount(item(2000), max_change={"percent": 50}, **cut) == 1000
    assert reason(item(2000), max_change={"amount": "9.99"}, **cut) is Reason.CHANGE_TOO_LARGE
    assert reason(item(2000), max_change={"percent": 50, "amount": "9.99"}, **cut) is Reason.CHANGE_TOO_LARGE
    clamp = {"percent": 30, "then": "clamp"}
    assert amount(item(2000), max_change=clamp, **cut) == 1400
    assert amount(item(1999), max_change=clamp, **cut) == 1400  # 599.7 at most
    assert amount(item(2000), max_change=clamp, rounding={"ending": ".99"}, **cut) == 1499
    assert amount(item(2000), max_change=clamp, transform={"percent": 80}) == 2600
    far = {"max_change": clamp, "transform": {"set_to": "50"}, "floor": {"amount": "30"}}
    assert reason(item(2000), **far) is Reason.CHANGE_TOO_LARGE


@pytest.mark.parametrize(
    ("policy", "before", "expected"),
    [
        ({}, None, None),
        ({}, 2500, 2500),
        ({}, 1700, None),  # no longer above the price
        ({}, 1800, None),
        ({"becomes": "price_before"}, None, 2000),
        ({"becomes": "price_before"}, 2500, 2000),
        ({"becomes": "amount", "amount": "29.99"}, None, 2999),
        ({"becomes": "amount", "amount": "18.00"}, 2500, None),
        ({"becomes": "percent", "percent": "12.5"}, None, 2025),
        ({"becomes": "clear"}, 2500, None),
    ],
)
def test_what_becomes_of_the_compare_at_price(policy, before, expected):
    assert after(item(2000, before), compare_at=policy) == Price(1800, expected, "USD")


def test_a_compare_at_price_is_a_change_too():
    same = {"transform": {"percent": 0}}
    assert after(item(2000), compare_at={"becomes": "percent", "percent": 50}, **same) == Price(2000, 3000, "USD")
    assert after(item(2000, 2500), compare_at={"becomes": "clear"}, **same) == Price(2000, None, "USD")
    assert reason(item(2000, 1500), **same) is Reason.NO_CHANGE
    assert reason(item(2000), compare_at={"becomes": "price_before"}, **same) is Reason.NO_CHANGE
    assert after(item(2000), transform={"percent": 10}, compare_at={"becomes": "price_before"}).compare_at is None


def test_a_price_list_means_its_skus_alone():
    listed = rule(
        transform={"prices": {"A": {"price": "5"}, "B": {"price": "6", "compare_at_price": "9"}, "D": {"price": "1"}}},
        compare_at={"becomes": "clear"},
    )
    things = [item(sku="A", compare_at=2500), item(sku="B"), item(sku="C"), item(sku="")]
    totals = Totals()
    found = {thing.sku: outcome for thing, outcome in evaluate(listed, things, totals=totals)}
    assert found == {
        "A": Target(things[0].price, Price(500, None, "USD")),
        "B": Target(things[1].price, Price(600, 900, "USD")),
    }
    assert totals.unknown == ["D"]
    assert totals.catalogue == 4


def test_a_price_by_sku_needs_one_variant_of_that_sku():
    things = [item(sku="A", variant_id="v1"), item(sku="A", variant_id="v2")]
    listed = rule(transform={"prices": {"A": {"price": "5"}}})
    outcomes = [outcome for _, outcome in evaluate(listed, things, duplicated={"A"})]
    assert [one.reason for one in outcomes if isinstance(one, Excluded)] == [Reason.DUPLICATE_SKU] * 2
    cut = [outcome for _, outcome in evaluate(rule(), things, duplicated={"A"})]
    assert all(isinstance(one, Target) for one in cut)


def test_locked_skus_are_never_touched_and_others_are_not_mentioned():
    things = [item(sku="A"), item(sku="B"), item(sku="C", vendor="Other")]
    found = list(evaluate(rule(selector={"vendors": ["acme"]}), things, {"B", "C"}))
    assert [(thing.sku, type(outcome)) for thing, outcome in found] == [("A", Target), ("B", Excluded)]
    assert isinstance(found[1][1], Excluded)
    assert found[1][1].reason is Reason.LOCKED


def test_the_lowest_priority_number_wins_and_ties_go_by_name():
    things = [item(sku="A", tags=("ring",)), item(sku="B")]
    own = rule(name="m", priority=10)
    rings: dict[str, Any] = {"selector": {"tags": ["ring"]}}

    def excluded_by(*others: Any) -> list[str]:
        found = evaluate(own, things, others=others)
        return [outcome.sentence for _, outcome in found if isinstance(outcome, Excluded)]

    assert excluded_by(rule(name="z", priority=5, **rings)) == [
        "rule 'z' comes first (priority 5, this one 10)",
    ]
    assert len(excluded_by(rule(name="a", priority=10, **rings))) == 1
    assert len(excluded_by(rule(name="a", priority=1))) == 2
    for other in (
        rule(name="z", priority=10, **rings),
        rule(name="z", priority=11, **rings),
        rule(name="z", priority=5, active=False, **rings),
        rule(name="z", priority=5, account="other", **rings),
        rule(name="z", priority=5, currency="EUR", **rings),
        rule(name="m", priority=1, **rings),
    ):
        assert excluded_by(other) == [], other


@settings(max_examples=50)
@given(st.permutations(range(6)), st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_of_overlapping_rules_exactly_one_changes_an_item(order, priorities):
    rules = [rule(name=f"r{n}", priority=priorities[n], transform={"set_to": str(n + 1)}) for n in order]
    changed = [
        one.name for one in rules for _, outcome in evaluate(one, [item()], others=rules) if isinstance(outcome, Target)
    ]
    assert changed == [min(rules, key=lambda one: one.order).name]


def texts(low: int, high: int) -> st.SearchStrategy[str]:
    return st.integers(low, high).map(lambda amount: text(amount, "USD"))


percents = st.integers(-99_999, 300_000).map(lambda number: f"{number / 1000:.3f}")
shares = st.integers(1, 200_000).map(lambda number: f"{number / 1000:.3f}")
transforms = st.one_of(
    st.fixed_dictionaries({"percent": percents}),
    st.fixed_dictionaries({"amount": texts(-5000, 5000)}),
    st.fixed_dictionaries({"set_to": texts(1, 20_000)}),
    st.fixed_dictionaries({"beat_by_percent": st.integers(0, 99).map(str)}),
    st.fixed_dictionaries({"beat_by_amount": texts(0, 500)}),
)
definitions = st.fixed_dictionaries(
    {"transform": transforms},
    optional={
        "rounding": st.fixed_dictionaries(
            {},
            optional={"mode": st.sampled_from(["nearest", "up", "down"])},
        ).flatmap(
            lambda known: st.sampled_from(
                [{}, {"ending": ".99"}, {"ending": "9.95"}, {"step": "0.05"}, {"step": "5"}, {"ending": "00.00"}]
            ).map(lambda more: known | more)
        ),
        "floor": st.one_of(
            st.fixed_dictionaries({"amount": texts(1, 3000)}),
            st.fixed_dictionaries({"cost_factor": shares}, optional={"amount": texts(1, 3000)}),
            st.fixed_dictionaries({"cost_plus_percent": shares}),
        ),
        "ceiling": texts(3000, 20_000),
        "max_change": st.fixed_dictionaries(
            {"percent": shares}, optional={"amount": texts(1, 3000), "then": st.just("clamp")}
        ),
        "compare_at": st.sampled_from(
            [
                {"becomes": "price_before"},
                {"becomes": "clear"},
                {"becomes": "amount", "amount": "30"},
                {"becomes": "percent", "percent": "0.01"},
            ]
        ),
    },
)
things = st.builds(
    item,
    st.integers(1, 20_000),
    st.none() | st.integers(0, 30_000),
    cost=st.none() | st.integers(0, 5000),
    reference=st.none() | st.integers(1, 20_000),
)


def exact(definition: dict[str, Any], thing: Item) -> Fraction:
    """What the transform says, by fractions."""
    (kind, value), *_ = definition["transform"].items()
    number, before = Fraction(value), thing.price.amount
    reference = thing.reference or 0
    return {
        "percent": before * (1 + number / 100),
        "amount": before + number * 100,
        "set_to": number * 100,
        "beat_by_percent": reference * (1 - number / 100),
        "beat_by_amount": reference - number * 100,
    }[kind]


@settings(max_examples=1000)
@given(definitions, things)
def test_every_bound_is_respected_whatever_the_rule(definition, thing):
    outcome = price(prepare(rule(**definition)), thing)
    if isinstance(outcome, Excluded):
        return
    before, found = thing.price.amount, outcome.after.amount
    assert type(found) is int
    assert 0 < found <= LARGEST
    assert outcome.after != outcome.before
    assert outcome.after.currency == outcome.before.currency
    assert outcome.after.compare_at is None or outcome.after.compare_at > found
    floor = definition.get("floor", {})
    if "amount" in floor:
        assert found >= Fraction(floor["amount"]) * 100
    if "cost_factor" in floor:
        assert found >= thing.cost * Fraction(floor["cost_factor"])
    if "cost_plus_percent" in floor:
        assert found >= thing.cost * (1 + Fraction(floor["cost_plus_percent"]) / 100)
    if "ceiling" in definition:
        assert found <= Fraction(definition["ceiling"]) * 100
    most = definition.get("max_change", {})
    if "percent" in most:
        assert abs(found - before) <= before * Fraction(most["percent"]) / 100
    if "amount" in most:
        assert abs(found - before) <= Fraction(most["amount"]) * 100
    rounding = definition.get("rounding", {})
    if "ending" in rounding:
        assert text(found + 10**9, "USD").endswith(rounding["ending"])
    if "step" in rounding:
        assert found % int(Fraction(rounding["step"]) * 100) == 0


@settings(max_examples=500)
@given(transforms, things)
def test_without_bounds_a_price_is_the_exact_one_rounded_once(transform, thing):
    wished = exact({"transform": transform}, thing)
    outcome = price(prepare(rule(transform=transform)), thing)
    if isinstance(outcome, Excluded):
        beats = any("beat" in name for name in transform)
        allowed = {
            Reason.NO_REFERENCE: beats and not thing.reference,
            Reason.NOT_POSITIVE: wished < 1,
            Reason.NO_CHANGE: abs(wished - thing.price.amount) < 1,
        }
        assert allowed[outcome.reason]
        return
    if any("beat" in name for name in transform):
        assert outcome.after.amount <= wished < outcome.after.amount + 1
    elif wished >= 1:
        assert wished - Fraction(1, 2) < outcome.after.amount <= wished + Fraction(1, 2)


@settings(max_examples=100)
@given(st.lists(things, max_size=8), definitions)
def test_an_item_is_priced_alike_whatever_stands_beside_it(several, definition):
    own = rule(**definition)
    together = [outcome for _, outcome in evaluate(own, several)]
    assert together == [price(prepare(own), thing) for thing in several]

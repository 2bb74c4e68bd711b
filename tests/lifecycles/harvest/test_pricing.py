"""Pricing rules: which one wins, and what exactly it makes of a price."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lifecycles.harvest.feed import Unmappable
from penstock.lifecycles.harvest.pricing import ROUNDING, WORDS, BadRule, Rule, compile_rules, digest, rounded

amounts = st.decimals(min_value=0, max_value=10**9, allow_nan=False, places=2)
steps = st.sampled_from([Decimal(s) for s in ("0.01", "0.05", "0.03", "1", "2.5", "10", "99", "1E+2")])
words = st.sampled_from([None, "a", "b", "A"])
bounds = st.sampled_from([None, Decimal(0), Decimal("0.5"), Decimal(1), Decimal(50), Decimal(100)])


def row(price: str = "100", carat: str | None = "1", **words: str | None) -> dict[str, Any]:
    found = {"supplier_price": Decimal(price), "carat": None if carat is None else Decimal(carat)}
    return {**dict.fromkeys(WORDS), **found, **words}


def rule(number: int = 1, priority: int = 10, **fields: Any) -> Rule:
    values: dict[str, Any] = {"margin": "0.1"} if "absolute" not in fields else {}
    return Rule.read({"id": number, "priority": priority, **values, **fields})


def priced(rules: list[Rule], record: dict[str, Any]) -> tuple[Decimal, int | None]:
    compile_rules(rules, "nivoda")(record)
    return record["price"], record["pricing_rule_id"]


def test_a_margin_and_an_amount_are_exact():
    assert priced([rule(margin="0.125")], row("10.01")) == (Decimal("11.26125"), 1)
    assert priced([rule(absolute="-0.005")], row("10.01")) == (Decimal("10.005"), 1)
    assert priced([rule(margin="0.125", rounding="0.01")], row("10.01")) == (Decimal("11.26"), 1)


def test_a_record_that_no_rule_matches_keeps_the_suppliers_price():
    assert priced([rule(shape="OVAL")], row("10.01", shape="ROUND")) == (Decimal("10.01"), None)
    assert priced([], row("10.01")) == (Decimal("10.01"), None)


def test_the_lowest_priority_number_wins_and_ties_go_to_the_lower_id():
    rules = [rule(3, 5, margin="0.3"), rule(2, 5, margin="0.2"), rule(1, 6, margin="0.1")]
    assert priced(rules, row())[1] == 2
    assert priced(rules[::-1], row())[1] == 2
    assert priced([*rules, rule(9, 1, shape="OVAL")], row(shape="ROUND"))[1] == 2


def test_words_match_whatever_their_case_and_a_missing_word_matches_no_wish():
    rules = [rule(1, shape="Round"), rule(2, 20, color="d")]
    assert priced(rules, row(shape="ROUND"))[1] == 1
    assert priced(rules, row(shape=None, color="D"))[1] == 2
    assert priced(rules, row(shape=None, color=None))[1] is None


def test_ranges_hold_their_lower_end_and_not_their_upper_one():
    rules = [rule(1, carat_from="0.5", carat_to="1"), rule(2, carat_from="1", carat_to="1.5")]
    assert [priced(rules, row(carat=c))[1] for c in ("0.49", "0.5", "0.99", "1.00", "1.49", "1.5")] == [
        *(None, 1, 1, 2, 2, None)
    ]
    assert priced(rules, row(carat=None))[1] is None
    assert priced([rule(1, price_to="100")], row("100"))[1] is None
    assert priced([rule(1, price_from="100")], row("100"))[1] == 1


def test_rules_of_another_feed_do_not_count():
    assert priced([rule(1, 1, feed="other"), rule(2, 2, feed="nivoda")], row())[1] == 2


def test_a_price_below_zero_sets_the_record_aside():
    with pytest.raises(Unmappable, match="rule 1 turns 100 into -1"):
        priced([rule(absolute="-101")], row("100"))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"margin": "0.1", "absolute": "1"}, "not both"),
        ({"margin": None}, "not both"),
        ({"margin": "much"}, "margin is 'much'"),
        ({"margin": "NaN"}, "not an amount"),
        ({"rounding": "0"}, "above 0"),
        ({"rounding_mode": "sideways"}, "half_even"),
        ({"priority": "first"}, "priority is 'first', which is not a whole number"),
        ({"shape": b"oval"}, "which is not text"),
        ({"carat_from": "1", "carat_to": "1"}, "its range of carat, 1 to 1, is empty"),
    ],
)
def test_a_rule_that_cannot_be_applied_is_named(fields, says):
    with pytest.raises(BadRule, match="pricing rule 7") as caught:
        rule(7, **fields)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("amount", "step", "by_mode"),
    [
        ("2.5", "1", {"half_up": "3", "half_even": "2", "up": "3", "down": "2"}),
        ("3.5", "1", {"half_up": "4", "half_even": "4", "up": "4", "down": "3"}),
        ("-2.5", "1", {"half_up": "-3", "half_even": "-2", "up": "-2", "down": "-3"}),
        ("0.10", "0.03", {"half_up": "0.09", "half_even": "0.09", "up": "0.12", "down": "0.09"}),
        ("1049.99", "100", {"half_up": "1000", "half_even": "1000", "up": "1100", "down": "1000"}),
        ("12", "4", {"half_up": "12", "half_even": "12", "up": "12", "down": "12"}),
    ],
)
def test_rounding(amount, step, by_mode):
    assert {mode: rounded(Decimal(amount), Decimal(step), mode) for mode in ROUNDING} == {
        mode: Decimal(expected) for mode, expected in by_mode.items()
    }


@given(amount=amounts, step=steps, mode=st.sampled_from(ROUNDING))
def test_what_is_rounded_is_the_right_multiple(amount, step, mode):
    made = Fraction(rounded(amount, step, mode))
    exact, unit = Fraction(amount), Fraction(step)
    assert made % unit == 0
    distance = made - exact
    if mode == "up":
        assert 0 <= distance < unit
    elif mode == "down":
        assert 0 <= -distance < unit
    else:
        assert abs(distance) <= unit / 2
        if abs(distance) == unit / 2:
            assert distance > 0 if mode == "half_up" else (made / unit) % 2 == 0


@given(supplier=amounts, margin=st.decimals(min_value=0, max_value=5, allow_nan=False, places=4))
def test_a_margin_is_never_rounded_by_itself(supplier, margin):
    assert Fraction(Rule(id=1, priority=1, margin=margin).price(supplier)) == Fraction(supplier) * (
        1 + Fraction(margin)
    )


@st.composite
def rule_lists(draw: st.DrawFn) -> list[Rule]:
    made = []
    for number in range(draw(st.integers(0, 8))):
        fields: dict[str, Any] = {name: draw(words) for name in ("shape", "color")}
        for name in ("carat", "price"):
            low, high = draw(bounds), draw(bounds)
            fields[f"{name}_from"], fields[f"{name}_to"] = (
                (low, high) if low is None or high is None or low < high else (low, None)
            )
        made.append(Rule(id=number, priority=draw(st.integers(1, 3)), margin=Decimal(number), **fields))
    return made


def matches(each: Rule, record: dict[str, Any]) -> bool:
    """The definition, written plainly."""
    for name in WORDS:
        wanted, found = getattr(each, name), record[name]
        if wanted is not None and (found is None or wanted.lower() != found.lower()):
            return False
    for low, high, found in (
        (each.carat_from, each.carat_to, record["carat"]),
        (each.price_from, each.price_to, record["supplier_price"]),
    ):
        if (low is not None or high is not None) and found is None:
            return False
        if (low is not None and found < low) or (high is not None and found >= high):
            return False
    return True


@given(rules=rule_lists(), seed=st.integers(0, 1000))
def test_compiled_rules_choose_as_the_definition_does(rules, seed):
    rng = random.Random(seed)
    price = compile_rules(rng.sample(rules, len(rules)), "nivoda")
    for _ in range(10):
        record = row(
            rng.choice(["0", "0.5", "49.99", "50", "100"]),
            rng.choice([None, "0.5", "1", "50"]),
            shape=rng.choice([None, "A", "b"]),
            color=rng.choice([None, "a", "B"]),
        )
        wanted = min((r for r in rules if matches(r, record)), key=lambda r: (r.priority, r.id), default=None)
        price(record)
        assert record["pricing_rule_id"] == (None if wanted is None else wanted.id)


def test_rules_are_read_back_from_their_documents():
    rules = [rule(2, shape="OVAL", carat_from="0.50", rounding="0.01"), rule(1, absolute="12.30", rounding_mode="up")]
    assert [Rule.read(r.document()) for r in rules] == rules
    assert digest(rules) == digest(rules[::-1]) != digest(rules[:1])

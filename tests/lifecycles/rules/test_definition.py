"""Rules as files and as the ledger has them: every error at once, and a digest of what they mean."""

from __future__ import annotations

import json
import re
import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lifecycles.rules.definition import (
    ListedPrice,
    Rule,
    RuleSettings,
    named,
    read_rule,
    read_rules,
    with_prices,
)
from penstock.lifecycles.rules.pricing import prepare
from penstock.model.errors import UsageError
from penstock.settings.reader import read_section
from penstock.settings.sample import reference, sample
from penstock.settings.typed import ConfigError, Settings, says
from tests.lifecycles.rules.making import rule

SUMMER = """
[rules.summer]
account = "shop"
currency = "USD"
description = "The summer sale."
priority = 10

[rules.summer.selector]
tags = ["ring"]
price_at_least = "10.00"
where = 'vendor = "Acme" and not tag "sale"'

[rules.summer.transform]
percent = "-12.5"

[rules.summer.rounding]
ending = "0.99"

[rules.summer.floor]
amount = 5
cost_plus_percent = 30

[rules.summer.max_change]
percent = 30
then = "clamp"

[rules.summer.compare_at]
becomes = "price_before"

[rules.summer.limits]
most_targets = 500
most_share = "12.5"
approve_above = 100
"""


def errors_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        read_rules(tomllib.loads(text), "rules.toml")
    return str(caught.value).splitlines()


def test_a_rule_of_a_file_and_its_document():
    (found,) = read_rules(tomllib.loads(SUMMER), "rules.toml")
    assert found.name == "summer"
    assert found.transform.percent == Decimal("-12.5")
    assert found.floor is not None
    assert found.floor.amount == 5
    document = json.loads(json.dumps(found.document()))
    assert document["rounding"] == {"ending": ".99"}
    assert "active" not in document
    assert read_rule(document) == found
    assert read_rule(document).digest == found.digest


def test_the_same_rule_stands_in_the_configuration():
    class RulesSettings(Settings):
        rules: Annotated[
            dict[str, RuleSettings], says("The rules.", examples={"summer": tomllib.loads(SUMMER)["rules"]["summer"]})
        ] = {}

    shown = sample(kinds={"rules": RulesSettings}, on=["rules"])
    given = tomllib.loads(re.sub(r"^#(?! )", "", shown, flags=re.MULTILINE))["rules"]
    del given["enabled"]
    errors: list[str] = []
    section = read_section(RulesSettings, given, at=("rules",), folder=None, errors=errors, path_text="penstock.toml")
    assert errors == []
    assert section is not None
    assert [named(section.rules["summer"], "summer")] == read_rules(tomllib.loads(SUMMER), "rules.toml")
    assert "`rules.rules.*.transform.percent`" in reference({"rules": RulesSettings})


def test_all_errors_are_told_at_once_with_what_was_meant():
    told = errors_of("""
[rules.one]
account = "shop"
currency = "usd"
piority = 5
[rules.one.selector]
where = 'vendr = "Acme"'
[rules.one.transform]
percent = -12.5

[rules.two]
currency = "JPY"
ceiling = "100"
[rules.two.selector]
everything = true
[rules.two.transform]
set_to = "12.50"
percent = 5

[rules.three]
account = "shop"
currency = "JPY"
ceiling = "100.5"
[rules.three.selector]
where = "price > 1.5"
[rules.three.transform]
set_to = "12.50"
[rules.three.rounding]
ending = ".99"
[rules.three.floor]
amount = 200
""")
    expected = [
        "rules.one.piority is not a setting; did you mean rules.one.priority?",
        'rules.one.currency = "usd" must be a currency of ISO 4217, for example USD; did you mean USD?',
        'at character 1: "vendr" is not a column; did you mean "vendor"?',
        "rules.one.transform.percent = -12.5 must be a whole number, or a decimal number in quotes",
        "rules.two.account is missing",
        "rules.two.transform: has percent and set_to; give one of",
        "rules.three.selector: at character 9",
        "rules.three.rounding: the ending .99 does not fit: a price in JPY has no decimals",
        "rules.three.transform.set_to: 12.50 is wrongly scaled",
        "rules.three.ceiling: 100.5 is wrongly scaled",
        "rules.three.floor.amount 200 is above ceiling 100.5",
    ]
    for line in expected:
        assert any(line in one for one in told), line
    assert len(told) == len(expected)
    assert all(line.startswith("rules.toml: ") for line in told)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"transform": {}}, "transform: says nothing; give one of percent"),
        ({"transform": {"percent": "-100"}}, "percent -100 must be above -100"),
        ({"transform": {"percent": 200_000}}, "of at most 100000"),
        ({"transform": {"beat_by_percent": 100}}, "must be of at least 0 and below 100"),
        ({"transform": {"beat_by_percent": "-1"}}, "must be of at least 0 and below 100"),
        ({"transform": {"beat_by_amount": "-1"}}, "not an amount"),
        ({"transform": {"set_to": 0}}, "is zero"),
        ({"transform": {"set_to": "-5"}}, "not an amount"),
        ({"transform": {"set_to": "99999999999999"}}, "too large"),
        ({"transform": {"prices": {}}}, "must be a table"),
        ({"transform": {"prices": {"A": {"price": "0"}}}}, "transform.prices.A: 0 is zero"),
        ({"transform": {"prices": {"A": {"price": "5", "compare_at_price": "5"}}}}, "is not above the price 5"),
        ({"transform": {"prices": {"A": {"prize": "5"}}}}, "did you mean transform.prices.A.price"),
        ({"floor": {}}, "floor: says nothing"),
        ({"floor": {"cost_factor": 1, "cost_plus_percent": 1}}, "give one of them"),
        ({"floor": {"cost_factor": 0}}, "must be above 0"),
        ({"floor": {"cost_plus_percent": -100}}, "must be above -100"),
        ({"max_change": {}}, "max_change: says nothing"),
        ({"max_change": {"percent": 0}}, "must be above 0"),
        ({"max_change": {"percent": 5, "then": "cut"}}, "one of exclude, clamp"),
        ({"compare_at": {"becomes": "amount"}}, "needs 'amount'"),
        ({"compare_at": {"becomes": "clear", "amount": "5"}}, "has 'amount', but becomes is clear"),
        ({"compare_at": {"becomes": "percent", "percent": 0}}, "must be above 0"),
        ({"limits": {"most_percent": 0}}, "above 0"),
        ({"limits": {"most_share": 101}}, "from 0 to 100"),
        ({"limits": {"most_share": 0.5}}, "from 0 to 100"),
        ({"limits": {"most_targets": 0}}, "at least 1|from 1"),
        ({"priority": -1}, "from 0"),
        ({"active": 1}, "true or false"),
        ({"account": ""}, "text"),
    ],
)
def test_a_definition_that_cannot_work_is_refused(fields, says):
    with pytest.raises(ConfigError, match=says):
        rule(**fields)


def test_many_wrong_prices_are_cut_short():
    prices = {f"S{number}": {"price": "1.999"} for number in range(50)}
    with pytest.raises(ConfigError, match="and 30 more"):
        rule(transform={"prices": prices})


def test_a_digest_changes_with_the_meaning_and_not_with_the_spelling():
    one = rule(
        selector={"tags": ["a", "b"], "where": "price>=10 and ( cost is missing )"},
        transform={"percent": "-10.0"},
        ceiling="5.00",
    )
    same = rule(
        selector={"tags": ["B", "a", "a"], "where": "PRICE >= 10.00 AND cost IS missing"},
        transform={"percent": -10},
        ceiling=5,
        description="words",
        active=True,
        priority=100,
        rounding={},
        limits={"judged_from": 20},
    )
    assert one.digest == same.digest
    others = [
        rule(),
        rule(name="winter"),
        rule(account="other"),
        rule(currency="EUR"),
        rule(transform={"percent": "-10.5"}),
        rule(transform={"amount": "-10"}),
        rule(priority=1),
        rule(active=False),
        rule(rounding={"mode": "up"}),
        rule(limits={"most_percent": 60}),
        rule(selector={"tags": ["a"]}),
        rule(selector={"all_tags": ["a"]}),
        rule(selector={"skus": ["a"]}),
        rule(selector={"skus": ["A"]}),
    ]
    assert len({other.digest for other in others}) == len(others)


def test_prices_of_a_file_are_part_of_the_rule():
    found = rule(transform={"prices_file": "prices.csv"})
    assert found.transform.prices_file == Path("prices.csv")
    with pytest.raises(UsageError, match=r"the prices of prices\.csv were not read"):
        prepare(found)
    full = with_prices(found, {"RING-1": ListedPrice(price=Decimal("19.90"))})
    assert full.document()["transform"] == {"prices": {"RING-1": {"price": "19.9"}}}
    assert full.digest != with_prices(found, {"RING-1": ListedPrice(price=Decimal("19.91"))}).digest
    assert read_rule(full.document()) == full
    with pytest.raises(UsageError, match=r"rule 'summer': .*wrongly scaled"):
        with_prices(found, {"RING-1": ListedPrice(price=Decimal("19.999"))})


cents = st.integers(1, 10**7).map(lambda amount: f"{amount // 100}.{amount % 100:02}")
percents = st.decimals(min_value="0.001", max_value=99, places=3).map(lambda number: f"{number:f}")
words = st.text(min_size=1, max_size=5).filter(lambda text: text.strip() and "\0" not in text)
definitions = st.fixed_dictionaries(
    {
        "name": st.just("summer"),
        "account": st.just("shop"),
        "currency": st.just("USD"),
        "transform": st.one_of(
            st.fixed_dictionaries({"percent": percents}),
            st.fixed_dictionaries({"amount": cents | cents.map(lambda text: f"-{text}")}),
            st.fixed_dictionaries({"beat_by_percent": percents}),
            st.fixed_dictionaries({"set_to": cents | st.integers(1, 99)}),
        ),
        "selector": st.one_of(
            st.just({"everything": True}),
            st.fixed_dictionaries(
                {"tags": st.lists(words, min_size=1, max_size=3)}, optional={"price_at_least": cents}
            ),
            st.fixed_dictionaries({"skus": st.lists(words, min_size=1, max_size=3)}),
        ),
    },
    optional={
        "description": words,
        "priority": st.integers(0, 200),
        "active": st.booleans(),
        "ceiling": cents,
        "rounding": st.sampled_from([{}, {"ending": ".99"}, {"step": "0.05", "mode": "up"}]),
        "floor": st.fixed_dictionaries({"cost_factor": percents}),
        "max_change": st.fixed_dictionaries({"percent": percents}, optional={"then": st.just("clamp")}),
        "compare_at": st.sampled_from([{"becomes": "clear"}, {"becomes": "percent", "percent": "20"}]),
        "limits": st.fixed_dictionaries({}, optional={"most_targets": st.integers(1, 9), "stop_at": percents}),
    },
)


@settings(max_examples=200)
@given(definitions)
def test_reading_again_what_was_written_changes_nothing(given: dict[str, Any]):
    first = read_rule(given)
    second = read_rule(json.loads(json.dumps(first.document())))
    assert second == first
    assert second.document() == first.document()
    assert second.digest == first.digest


@given(
    st.dictionaries(
        st.sampled_from([*Rule.__struct_fields__, "x"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just({}) | st.just([]),
    )
)
def test_no_document_raises_anything_else(given):
    with pytest.raises(ConfigError):
        read_rule(given)

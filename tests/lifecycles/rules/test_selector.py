"""Which items a rule means."""

from __future__ import annotations

import pytest

from penstock.settings.typed import ConfigError
from tests.lifecycles.rules.making import item, rule


def means(thing, **selector) -> bool:
    return rule(selector=selector).selector.means("USD")(thing)


def test_tags_are_any_or_all_whatever_their_case():
    thing = item(tags=("Gold", "ring"))
    assert means(thing, tags=["silver", "gold"])
    assert not means(thing, tags=["silver"])
    assert means(thing, all_tags=["RING", "gold"])
    assert not means(thing, all_tags=["ring", "silver"])
    assert not means(item(tags=()), tags=["gold"])


def test_vendors_ignore_case_and_skus_do_not():
    assert means(item(vendor="ACME"), vendors=["Other", "acme"])
    assert not means(item(vendor=""), vendors=["acme"])
    assert means(item(sku="RING-1"), skus=["RING-1"])
    assert not means(item(sku="RING-1"), skus=["ring-1"])


def test_both_ends_of_a_range_belong_to_it():
    for amount, expected in ((999, False), (1000, True), (2000, True), (2001, False)):
        assert means(item(amount), price_at_least="10.00", price_at_most="20.00") is expected
    assert means(item(1000), price_at_least=10, price_at_most=10)
    assert means(item(5), price_at_most="20")
    assert not means(item(1500, currency="EUR"), price_at_least="10", price_at_most="20")


def test_everything_that_is_given_must_be_fulfilled():
    wanted = {"tags": ["gold"], "vendors": ["Acme"], "price_at_least": "10", "where": 'not sku like "X-*"'}
    assert means(item(1000, tags=("gold",)), **wanted)
    assert not means(item(999, tags=("gold",)), **wanted)
    assert not means(item(1000, tags=("gold",), vendor="B"), **wanted)
    assert not means(item(1000, tags=("gold",), sku="X-1"), **wanted)
    assert means(item(), everything=True)


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        ({}, "selector says nothing; give a condition, or everything = true"),
        ({"price_at_least": "20", "price_at_most": "10"}, "no item can be meant"),
        ({"everything": True, "tags": ["a"]}, "give one or the other"),
        ({"tags": []}, "a list that is not empty"),
        ({"price_at_least": "9.999"}, "wrongly scaled"),
        ({"price_at_least": 9.99}, "in quotes"),
        ({"price_at_least": "-1"}, "not an amount"),
        ({"where": "price > 9.999"}, "at character 9: .*wrongly scaled"),
        ({"where": "prize > 9"}, 'did you mean "price"'),
        ({"where": " "}, "a condition, such as"),
        ({"tag": ["a"]}, "did you mean selector.tags"),
    ],
)
def test_a_selector_that_cannot_work_is_refused_when_it_is_defined(selector, says):
    with pytest.raises(ConfigError, match=says):
        rule(selector=selector)

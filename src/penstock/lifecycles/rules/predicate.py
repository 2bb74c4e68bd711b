"""Conditions as functions: what `expression` has parsed, made once into a predicate over items."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

from penstock.lifecycles.rules.expression import AMOUNTS, EXACT, And, BadExpression, Check, Node, Not, Or
from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.money import BadMoney, minor

Predicate: TypeAlias = Callable[[Item], bool]
_Word: TypeAlias = Callable[[str], bool]
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXT: dict[str, Callable[[Item], str]] = {
    "sku": lambda item: item.sku,
    "title": lambda item: item.title,
    "vendor": lambda item: item.vendor,
    "product": lambda item: item.product_id,
}
_AMOUNT: dict[str, Callable[[Item], int | None]] = {
    "price": lambda item: item.price.amount,
    "compare_at": lambda item: item.price.compare_at,
    "cost": lambda item: item.cost,
    "reference": lambda item: item.reference,
}


def predicate(node: Node, currency: str) -> Predicate:
    """Whether an item fulfils the condition. Raises BadExpression for an amount that the currency does not have.

    Of an item in another currency all amounts are missing: they cannot be compared.
    """
    if isinstance(node, Not):
        part = predicate(node.part, currency)
        return lambda item: not part(item)
    if isinstance(node, And):
        return all_of([predicate(part, currency) for part in node.parts])
    if isinstance(node, Or):
        return any_of([predicate(part, currency) for part in node.parts])
    if node.column in AMOUNTS:
        return _amount_test(node, currency)
    if node.column == "margin":
        return _margin_test(node, currency)
    return tagged(_word_test(node)) if node.column == "tag" else _text_test(node)


def all_of(parts: list[Predicate]) -> Predicate:
    """All of them; an empty list is always fulfilled."""
    if len(parts) == 1:
        return parts[0]

    def test(item: Item) -> bool:
        for part in parts:  # noqa: SIM110 - a generator costs more than the tests
            if not part(item):
                return False
        return True

    return test


def any_of(parts: list[Predicate]) -> Predicate:
    """At least one of them."""

    def test(item: Item) -> bool:
        for part in parts:  # noqa: SIM110 - as above
            if part(item):
                return True
        return False

    return test


def tagged(word: _Word | None) -> Predicate:
    """Whether one of an item's tags is such a word; None: whether it has no tag."""
    if word is None:
        return lambda item: not item.tags

    def test(item: Item) -> bool:
        for tag in item.tags:  # noqa: SIM110 - as above
            if word(tag):
                return True
        return False

    return test


def _text_test(test: Check) -> Predicate:
    get, word = _TEXT[test.column], _word_test(test)
    if word is None:
        return lambda item: not get(item)
    return lambda item: word(get(item))


def _word_test(test: Check) -> _Word | None:
    """What a text must be; None for `is missing`."""
    if test.operator == "missing":
        return None
    exact = test.column in EXACT
    values = [str(value) if exact else str(value).casefold() for value in test.values]
    if test.operator == "like":
        matches = _pattern(values[0]).fullmatch
        return (lambda text: matches(text) is not None) if exact else lambda text: matches(text.casefold()) is not None
    if len(values) == 1:
        wanted = values[0]
        return (lambda text: text == wanted) if exact else lambda text: text.casefold() == wanted
    known = frozenset(values)
    return (lambda text: text in known) if exact else lambda text: text.casefold() in known


def _pattern(wanted: str) -> re.Pattern[str]:
    """`*` and `?` as a pattern that takes linear time: what stands before a `*` is never tried again."""
    first, *rest = ("".join("." if c == "?" else re.escape(c) for c in part) for part in wanted.split("*"))
    if not rest:
        return re.compile(first, re.DOTALL)
    middle = "".join(f"(?>.*?{part})" for part in rest[:-1])
    return re.compile(f"{first}{middle}.*{rest[-1]}", re.DOTALL)


def _amount_test(test: Check, currency: str) -> Predicate:
    get = _AMOUNT[test.column]
    if test.operator == "missing":
        return lambda item: item.price.currency != currency or get(item) is None
    bounds = [_minor(value, currency, test) for value in test.values]
    if test.operator == "in":
        known = frozenset(bounds)
        return lambda item: item.price.currency == currency and get(item) in known
    bound, compare = bounds[0], _COMPARE[test.operator]

    def compared(item: Item) -> bool:
        amount = get(item)
        return amount is not None and item.price.currency == currency and compare(amount, bound)

    return compared


def _minor(value: Any, currency: str, test: Check) -> int:
    try:
        return minor(value, currency, zero=True)
    except BadMoney as error:
        raise BadExpression(f'"{test.column}": {error}', test.position) from None


def _margin_test(test: Check, currency: str) -> Predicate:
    """The share of the price that is not cost, in percent, compared without dividing."""

    def known(item: Item) -> bool:
        return item.cost is not None and item.price.amount > 0 and item.price.currency == currency

    if test.operator == "missing":
        return lambda item: not known(item)
    ratios = [value.as_integer_ratio() for value in test.values if isinstance(value, Decimal)]
    compare = _COMPARE["=" if test.operator == "in" else test.operator]

    def compared(item: Item) -> bool:
        if not known(item):
            return False
        price = item.price.amount
        earned = (price - (item.cost or 0)) * 100
        return any(compare(earned * lower, upper * price) for upper, lower in ratios)

    return compared

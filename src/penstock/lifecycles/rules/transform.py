"""What a transform makes of a price before rounding: an exact fraction, with one denominator for all items."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TypeAlias

from penstock.lifecycles.rules.definition import Floor, Rule, Transform
from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.money import minor
from penstock.lifecycles.rules.outcomes import Excluded, Reason
from penstock.model.errors import UsageError

Numerator: TypeAlias = Callable[[Item], int | Excluded]
"""What the price becomes, times the denominator; or why it cannot be said."""

NO_REFERENCE = Excluded(Reason.NO_REFERENCE, "it has no reference price to beat")
NO_COST = Excluded(Reason.NO_COST, "it has no cost, from which its floor is worked out")


def transformed(rule: Rule) -> tuple[Numerator, int]:
    """The rule's transform: numerators by item, and their denominator. Raises UsageError for prices not yet read."""
    transform = rule.transform
    if transform.percent is not None:
        return _percent(transform.percent)
    if transform.beat_by_percent is not None:
        return _beaten_by_percent(transform.beat_by_percent)
    return _amounts(rule, transform), 1


def _percent(percent: Decimal) -> tuple[Numerator, int]:
    factor, denominator = _factor(percent)
    return (lambda item: item.price.amount * factor), denominator


def _beaten_by_percent(percent: Decimal) -> tuple[Numerator, int]:
    factor, denominator = _factor(-percent)
    return (lambda item: NO_REFERENCE if not item.reference else item.reference * factor), denominator


def _amounts(rule: Rule, transform: Transform) -> Numerator:
    """The transforms that need no fraction."""
    if transform.amount is not None:
        by = minor(transform.amount, rule.currency, zero=True, signed=True)
        return lambda item: item.price.amount + by
    if transform.beat_by_amount is not None:
        below = minor(transform.beat_by_amount, rule.currency, zero=True)
        return lambda item: NO_REFERENCE if not item.reference else item.reference - below
    if transform.set_to is not None:
        amount = minor(transform.set_to, rule.currency)
        return lambda _item: amount
    if transform.prices is None:
        raise UsageError(f"rule {rule.name!r}: the prices of {transform.prices_file} were not read; import it again")
    listed = {sku: minor(one.price, rule.currency) for sku, one in transform.prices.items()}
    return lambda item: listed[item.sku]


def floor_of(floor: Floor, currency: str) -> Numerator:
    """The lowest price of an item in minor units, rounded up."""
    amount = 0 if floor.amount is None else minor(floor.amount, currency)
    if not floor.needs_cost:
        return lambda _item: amount
    if floor.cost_factor is not None:
        factor, denominator = floor.cost_factor.as_integer_ratio()
    else:
        factor, denominator = _factor(floor.cost_plus_percent or Decimal(0))

    def lowest(item: Item) -> int | Excluded:
        if item.cost is None or item.cost < 0:
            return NO_COST
        return max(amount, -(-item.cost * factor // denominator))

    return lowest


def _factor(percent: Decimal) -> tuple[int, int]:
    """What a price is multiplied with and divided by to change it by a percentage."""
    upper, lower = percent.as_integer_ratio()
    return 100 * lower + upper, 100 * lower

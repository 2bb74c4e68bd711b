"""What a rule makes of an item's price. Pure, exact, and quick: whole numbers of minor units throughout.

The transform gives an exact fraction, which is rounded once. Then the bounds hold: a floor lifts the price, a ceiling
lowers it, to the next price that the rounding allows; where there is none between them the item is excluded. Two things
a bound never does: it does not turn a cut into a rise (the price was below the floor already), nor a rise into a cut.
A change that is too large excludes the item, or is cut short. What would be zero or less is excluded, except where a
floor lifts it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence

import msgspec

from penstock.lifecycles.rules.definition import MaxChange, Rule
from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.money import LARGEST, Price, minor, text
from penstock.lifecycles.rules.outcomes import Excluded, Reason, Target
from penstock.lifecycles.rules.predicate import Predicate
from penstock.lifecycles.rules.rounding import Grid
from penstock.lifecycles.rules.totals import Totals, percent
from penstock.lifecycles.rules.transform import Numerator, floor_of, transformed

NOTHING: frozenset[str] = frozenset()
_NO_SKU = Excluded(Reason.NO_SKU, "it has no SKU, by which it could be locked and found again")
_LOCKED = Excluded(Reason.LOCKED, "its SKU is locked")
_DUPLICATE = Excluded(
    Reason.DUPLICATE_SKU, "several variants have its SKU, so that a price by SKU could mean any of them"
)
_NO_CHANGE = Excluded(Reason.NO_CHANGE, "the rule leaves its price as it is")
_TOO_LARGE = Excluded(Reason.TOO_LARGE, "its price would be larger than any amount may be")


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A rule, made ready once for many items."""

    rule: Rule
    means: Predicate
    named: frozenset[str] | None
    """The SKUs that the rule names; None where it means items by other things."""
    numerator: Numerator
    denominator: int
    grid: Grid
    floor: Numerator | None
    ceiling: int | None
    most_change: Callable[[int], int] | None
    clamps: bool
    compare_at: Callable[[Item, int], int | None]


def prepare(rule: Rule) -> Prepared:
    """Raises UsageError for a rule whose `prices_file` was not read."""
    numerator, denominator = transformed(rule)
    change = rule.max_change
    return Prepared(
        rule=rule,
        means=_means(rule),
        named=_named(rule),
        numerator=numerator,
        denominator=denominator,
        grid=rule.rounding.grid(rule.currency, "down" if rule.transform.beats else "nearest"),
        floor=None if rule.floor is None else floor_of(rule.floor, rule.currency),
        ceiling=None if rule.ceiling is None else minor(rule.ceiling, rule.currency),
        most_change=None if change is None else _most_change(change, rule.currency),
        clamps=change is not None and change.then == "clamp",
        compare_at=_compare_at(rule),
    )


def evaluate(
    rule: Rule,
    items: Iterable[Item],
    locked: Container[str] = NOTHING,
    others: Iterable[Rule] = (),
    *,
    duplicated: Container[str] = NOTHING,
    totals: Totals | None = None,
) -> Iterator[tuple[Item, Target | Excluded]]:
    """Every item that the rule means, with its target or the reason why it has none.

    `locked` are SKUs that are never touched, `others` are rules, of which those count that come before this one.
    `duplicated` are SKUs that more than one variant has. `totals` gathers what it all comes to, and is complete after
    the last item. Raises UsageError as `prepare` does.
    """
    own = prepare(rule)
    higher = [prepare(other) for other in others if _comes_before(other, rule)]
    missing = set(own.named or ())
    seen = 0
    for item in items:
        seen += 1
        missing.discard(item.sku)
        if own.means(item):
            outcome = price(own, item, locked, higher, duplicated)
            if totals is not None:
                totals.add(item, outcome)
            yield item, outcome
    if totals is not None:
        totals.catalogue += seen
        totals.unknown = sorted(missing)


def price(
    own: Prepared,
    item: Item,
    locked: Container[str] = NOTHING,
    higher: Sequence[Prepared] = (),
    duplicated: Container[str] = NOTHING,
) -> Target | Excluded:
    """What the rule makes of an item that it means; `higher` are rules that come before it."""
    refused = _refused(own, item, locked, higher, duplicated)
    if refused is not None:
        return refused
    amount = _amount(own, item)
    if isinstance(amount, Excluded):
        return amount
    before = item.price
    compare_at = own.compare_at(item, amount)
    # Asked before it is judged: one that stays is left alone where the price stays, whatever it is.
    if amount == before.amount and compare_at == before.compare_at:
        return _NO_CHANGE
    if compare_at is not None and not amount < compare_at <= LARGEST:
        compare_at = None
    if amount == before.amount and compare_at == before.compare_at:
        return _NO_CHANGE
    return Target(before, Price(amount, compare_at, before.currency))


def _refused(
    own: Prepared, item: Item, locked: Container[str], higher: Sequence[Prepared], duplicated: Container[str]
) -> Excluded | None:
    """Why the item is left alone, whatever its price would be."""
    rule, before = own.rule, item.price
    if not item.sku:
        return _NO_SKU
    if item.sku in locked:
        return _LOCKED
    if before.currency != rule.currency:
        return Excluded(
            Reason.CURRENCY_DIFFERS, f"its price is in {before.currency}, and the rule's amounts are in {rule.currency}"
        )
    if not 0 < before.amount <= LARGEST:
        return Excluded(
            Reason.PRICE_INVALID, f"its price is {text(before.amount, before.currency)}, from which nothing follows"
        )
    for other in higher:
        if other.means(item):
            return Excluded(
                Reason.OTHER_RULE,
                f"rule {other.rule.name!r} comes first (priority {other.rule.priority}, this one {rule.priority})",
            )
    return _DUPLICATE if rule.transform.prices is not None and item.sku in duplicated else None


def _amount(own: Prepared, item: Item) -> int | Excluded:
    """The new price, rounded and within all bounds."""
    before, currency = item.price.amount, item.price.currency
    numerator = own.numerator(item)
    if isinstance(numerator, Excluded):
        return numerator
    bounds = _bounds(own, item, numerator)
    if isinstance(bounds, Excluded):
        return bounds
    lowest, highest = bounds
    amount = own.grid.rounded(numerator, own.denominator)
    if amount < lowest:
        if own.grid.mode == "down" and amount <= 0 and own.floor is None:
            return Excluded(Reason.NOT_POSITIVE, "its price would be rounded down to zero")
        amount = own.grid.at_least(lowest)
    elif amount > highest:
        if highest == LARGEST and own.ceiling is None:
            return _TOO_LARGE
        amount = own.grid.at_most(highest)
    if not lowest <= amount <= highest:
        return Excluded(
            Reason.NO_ROUNDING,
            f"no price from {text(lowest, currency)} to {text(highest, currency)} is one that the rounding allows",
        )
    if own.most_change is not None and abs(amount - before) > own.most_change(before):
        return Excluded(
            Reason.CHANGE_TOO_LARGE,
            f"from {text(before, currency)} to {text(amount, currency)} is a change of"
            f" {percent(amount - before, before)} %, and at most {text(own.most_change(before), currency)} is allowed",
        )
    return amount


def _bounds(own: Prepared, item: Item, numerator: int) -> tuple[int, int] | Excluded:
    """The lowest and the highest price that the item may have."""
    before, currency = item.price.amount, item.price.currency
    moved = numerator - before * own.denominator
    lowest, highest = 1, LARGEST
    if own.floor is not None:
        floor = own.floor(item)
        if isinstance(floor, Excluded):
            return floor
        if moved < 0 and before < floor:
            return Excluded(
                Reason.BELOW_FLOOR,
                f"its price {text(before, currency)} is below the floor {text(floor, currency)} already,"
                " and the rule would cut it",
            )
        lowest = max(lowest, floor)
    elif numerator <= 0:
        return Excluded(Reason.NOT_POSITIVE, "its price would be zero or less")
    if own.ceiling is not None:
        if moved > 0 and before > own.ceiling:
            return Excluded(
                Reason.ABOVE_CEILING,
                f"its price {text(before, currency)} is above the ceiling {text(own.ceiling, currency)} already,"
                " and the rule would raise it",
            )
        highest = own.ceiling
    if lowest > highest:
        return Excluded(
            Reason.BELOW_FLOOR,
            f"its floor {text(lowest, currency)} is above the highest price {text(highest, currency)}",
        )
    return _nearby(own, before, lowest, highest, currency) if own.clamps else (lowest, highest)


def _nearby(own: Prepared, before: int, lowest: int, highest: int, currency: str) -> tuple[int, int] | Excluded:
    """The bounds, drawn in to what a change may be at most."""
    most = 0 if own.most_change is None else own.most_change(before)
    near, far = max(lowest, before - most), min(highest, before + most)
    if near > far:
        return Excluded(
            Reason.CHANGE_TOO_LARGE,
            f"from {text(before, currency)} no price from {text(lowest, currency)} to {text(highest, currency)} is"
            f" within a change of {text(most, currency)}",
        )
    return near, far


def _means(rule: Rule) -> Predicate:
    selected, prices = rule.selector.means(rule.currency), rule.transform.prices
    if prices is None:
        return selected
    return lambda item: item.sku in prices and selected(item)


def _named(rule: Rule) -> frozenset[str] | None:
    if rule.transform.prices is not None:
        return frozenset(rule.transform.prices)
    return None if rule.selector.skus is None else frozenset(rule.selector.skus)


def _comes_before(other: Rule, rule: Rule) -> bool:
    return (
        other.active
        and other.account == rule.account
        and other.currency == rule.currency
        and other.name != rule.name
        and other.order < rule.order
    )


def _most_change(change: MaxChange, currency: str) -> Callable[[int], int]:
    """How far a price may move, in minor units; rounded down, so that the percentage is never passed."""
    amount = LARGEST if change.amount is None else minor(change.amount, currency)
    if change.percent is None:
        return lambda _before: amount
    upper, lower = change.percent.as_integer_ratio()
    return lambda before: min(amount, before * upper // (100 * lower))


def _compare_at(rule: Rule) -> Callable[[Item, int], int | None]:
    """What the compare-at price of an item becomes, by its new price; whether it is above that is for the caller."""
    otherwise = _compare_at_policy(rule)
    listed = {
        sku: minor(one.compare_at_price, rule.currency)
        for sku, one in (rule.transform.prices or {}).items()
        if one.compare_at_price is not None
    }
    if not listed:
        return otherwise
    return lambda item, amount: listed[item.sku] if item.sku in listed else otherwise(item, amount)


def _compare_at_policy(rule: Rule) -> Callable[[Item, int], int | None]:
    policy = rule.compare_at
    if policy.amount is not None:
        fixed = minor(policy.amount, rule.currency)
        return lambda _item, _amount: fixed
    if policy.percent is not None:
        upper, lower = policy.percent.as_integer_ratio()
        factor, denominator = 100 * lower + upper, 100 * lower
        return lambda _item, amount: (2 * amount * factor + denominator) // (2 * denominator)
    if policy.becomes == "price_before":
        return lambda item, _amount: item.price.amount
    if policy.becomes == "clear":
        return lambda _item, _amount: None
    return lambda item, _amount: item.price.compare_at

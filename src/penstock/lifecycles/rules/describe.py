"""Rules and prices in a few words, for tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal

from penstock.lifecycles.rules.definition import Rule
from penstock.lifecycles.rules.money import Price, text, write_decimal
from penstock.lifecycles.rules.totals import percent

_LISTED = 3


def described(rule: Rule) -> str:
    """What a rule does and to what: `-10 %, to .99, at least 5: tag ring or gold`."""
    return f"{', '.join(_effects(rule))}: {' and '.join(_conditions(rule))}"


def _effects(rule: Rule) -> Iterator[str]:
    transform, floor = rule.transform, rule.floor
    if transform.percent is not None:
        yield f"{_signed(transform.percent)} %"
    elif transform.amount is not None:
        yield f"{_signed(transform.amount)} {rule.currency}"
    elif transform.set_to is not None:
        yield f"set to {write_decimal(transform.set_to)} {rule.currency}"
    elif transform.beat_by_percent is not None:
        yield f"{write_decimal(transform.beat_by_percent)} % below the reference"
    elif transform.beat_by_amount is not None:
        yield f"{write_decimal(transform.beat_by_amount)} {rule.currency} below the reference"
    else:
        yield "listed prices"
    if rule.rounding.ending is not None or rule.rounding.step is not None:
        yield f"to {rule.rounding.ending or write_decimal(rule.rounding.step or Decimal(0))}"
    if floor is not None:
        yield "with a floor" if floor.amount is None else f"at least {write_decimal(floor.amount)}"
    if rule.ceiling is not None:
        yield f"at most {write_decimal(rule.ceiling)}"


def _conditions(rule: Rule) -> list[str]:
    selector = rule.selector
    found = []
    for words, values, joined in (
        ("tag", selector.tags, "or"),
        ("tags", selector.all_tags, "and"),
        ("vendor", selector.vendors, "or"),
        ("SKU", selector.skus, "or"),
    ):
        if values:
            found.append(f"{words} {_some(values, joined)}")
    if selector.price_at_least is not None:
        found.append(f"price from {write_decimal(selector.price_at_least)}")
    if selector.price_at_most is not None:
        found.append(f"price up to {write_decimal(selector.price_at_most)}")
    if selector.where is not None:
        found.append(selector.where)
    if not found:
        found.append("everything" if selector.everything else "the SKUs that it lists")
    return found


def _some(values: Sequence[str], joined: str) -> str:
    shown = f" {joined} ".join(values[:_LISTED])
    return f"{shown} and {len(values) - _LISTED:,} more" if len(values) > _LISTED else shown


def _signed(value: Decimal) -> str:
    return f"{'+' if value > 0 else ''}{write_decimal(value)}"


def money(price: Price | None) -> str | None:
    """`19.99 EUR`, with the compare-at price in parentheses."""
    if price is None:
        return None
    crossed = f" ({text(price.compare_at, price.currency)})" if price.compare_at is not None else ""
    return f"{text(price.amount, price.currency)} {price.currency}{crossed}"


def change(before: int, after: int) -> str:
    """`-10.00 %`."""
    share = percent(after - before, before)
    return f"{'+' if share > 0 else ''}{share} %"

"""Pricing rules: which one a record gets, and what it makes of the supplier's price. Pure and exact.

The active rule with the lowest priority number wins, ties by id. A rule matches by words (NULL is any, letter
case does not matter) and by ranges, to which their lower end belongs and their upper end does not, so that ranges side
by side do not overlap. A record that no rule matches keeps the supplier's price.
"""

from __future__ import annotations

import decimal
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any, Self

from penstock.lifecycles.harvest.feed import Unmappable
from penstock.model.errors import UsageError

WORDS = ("shape", "color", "clarity", "lab")
"""The columns that a rule compares with a word."""
RANGES = {"carat": "carat", "price": "supplier_price"}
"""What a rule bounds by `…_from` and `…_to`, and the column that is meant."""
ROUNDING = ("half_up", "half_even", "up", "down")
_KEPT = 50_000
_DIGITS = 60
# Wide enough that no product of prices is rounded; what would not fit is an error and never a wrong price.
EXACT = decimal.Context(prec=_DIGITS, traps=[decimal.Inexact, decimal.InvalidOperation, decimal.Overflow])
_QUANTIZE = {
    mode: decimal.Context(prec=_DIGITS, rounding=rounding, traps=[decimal.InvalidOperation, decimal.Overflow])
    for mode, rounding in {
        "half_up": decimal.ROUND_HALF_UP,
        "half_even": decimal.ROUND_HALF_EVEN,
        "up": decimal.ROUND_CEILING,
        "down": decimal.ROUND_FLOOR,
    }.items()
}
_ONE, _TWO = Decimal(1), Decimal(2)


class BadRule(UsageError):
    """A pricing rule that cannot be applied; the message names it and says what is wrong."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `margin` is a share of the supplier's price on top of it, `absolute` an amount; it has one of them.

    The price is rounded to a multiple of `rounding` (None: not at all) in the way that `rounding_mode` names.
    """

    id: int
    priority: int
    feed: str | None = None
    shape: str | None = None
    color: str | None = None
    clarity: str | None = None
    lab: str | None = None
    carat_from: Decimal | None = None
    carat_to: Decimal | None = None
    price_from: Decimal | None = None
    price_to: Decimal | None = None
    margin: Decimal | None = None
    absolute: Decimal | None = None
    rounding: Decimal | None = None
    rounding_mode: str = "half_up"

    def __post_init__(self) -> None:
        wrong = []
        if (self.margin is None) == (self.absolute is None):
            wrong.append("give it a margin or an absolute amount, not both")
        if self.rounding is not None and not self.rounding > 0:
            wrong.append(f"it rounds to multiples of {self.rounding}; give an amount above 0")
        if self.rounding_mode not in ROUNDING:
            wrong.append(f"rounding_mode {self.rounding_mode!r} must be one of {', '.join(ROUNDING)}")
        for name in RANGES:
            low, high = getattr(self, f"{name}_from"), getattr(self, f"{name}_to")
            if low is not None and high is not None and not low < high:
                wrong.append(f"its range of {name}, {low} to {high}, is empty; the upper end is not part of it")
        if wrong:
            raise BadRule(f"pricing rule {self.id}: " + "; ".join(wrong))

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        """A rule of a row, or of a document; amounts may be text. Raises BadRule."""
        values = {name: row[name] for name in cls.__slots__ if row.get(name) is not None}
        for kind, names in ((int, ("id", "priority")), (str, ("feed", *WORDS, "rounding_mode"))):
            # SQLite keeps whatever is typed.
            for name in names:
                if not isinstance(values.get(name, kind()), kind):
                    what = "a whole number" if kind is int else "text"
                    raise BadRule(f"pricing rule {row['id']}: {name} is {row[name]!r:.40}, which is not {what}")
        for name in ("carat_from", "carat_to", "price_from", "price_to", "margin", "absolute", "rounding"):
            if name in values:
                values[name] = _amount(row, name)
        return cls(**values)

    def document(self) -> dict[str, Any]:
        """The rule as JSON can carry it; `read` reads it back."""
        plain = {n: str(v) if isinstance(v, Decimal) else v for n, v in asdict(self).items()}
        return {name: value for name, value in plain.items() if value is not None}

    def price(self, supplier: Decimal) -> Decimal:
        """The supplier's price with the rule applied. Raises Unmappable where nothing that can be asked comes out."""
        try:
            if self.margin is not None:
                made = EXACT.add(supplier, EXACT.multiply(supplier, self.margin))
            else:
                made = EXACT.add(supplier, self.absolute or Decimal(0))
            if self.rounding is not None:
                made = rounded(made, self.rounding, self.rounding_mode)
        except decimal.DecimalException as error:
            raise Unmappable(
                f"pricing rule {self.id} cannot be applied to {supplier}: {type(error).__name__}"
            ) from None
        if made < 0:
            raise Unmappable(f"pricing rule {self.id} turns {supplier} into {made}, which is below zero")
        return made


def rounded(amount: Decimal, step: Decimal, mode: str) -> Decimal:
    """The multiple of the step that the mode chooses; exact for any step, also one like 0.03."""
    if amount > 0 and _is_place(str(step)):
        return amount.quantize(step, context=_QUANTIZE[mode])
    down = EXACT.divide_int(amount, step)
    rest = EXACT.subtract(amount, EXACT.multiply(down, step))
    if rest < 0:  # divide_int goes towards zero
        down, rest = EXACT.subtract(down, _ONE), EXACT.add(rest, step)
    if rest and mode != "down":
        twice = EXACT.add(rest, rest)
        # Of a negative amount half up is away from zero, as in commerce.
        half = amount > 0 if mode == "half_up" else EXACT.remainder(down, _TWO) != 0
        if mode == "up" or twice > step or (twice == step and half):
            down = EXACT.add(down, _ONE)
    return EXACT.multiply(down, step)


@functools.lru_cache(maxsize=1_000)
def _is_place(step: str) -> bool:
    """Whether it is 1, 0.1, 0.01 and so on, written without a zero behind: Decimal rounds to those by itself."""
    _, digits, exponent = Decimal(step).as_tuple()
    return digits == (1,) and isinstance(exponent, int) and exponent <= 0


Pricer = Callable[[dict[str, Any]], None]


def compile_rules(rules: Iterable[Rule], feed: str) -> Pricer:
    """A function that puts `price`, `pricing_rule_id` and `pricing_digest` into a canonical row.

    It raises Unmappable, as `Rule.price` does.

    Few combinations of words occur: for each it is worked out once which rules are left to ask about ranges.
    """
    ordered = sorted((r for r in rules if r.feed in (None, feed)), key=lambda r: (r.priority, r.id))
    known: dict[tuple[Any, ...], tuple[Rule, ...]] = {}
    of_these = digest(ordered)

    def price(row: dict[str, Any]) -> None:
        row["pricing_digest"] = of_these
        words = (row["shape"], row["color"], row["clarity"], row["lab"])
        left = known.get(words)
        if left is None:
            if len(known) >= _KEPT:
                known.clear()
            left = known[words] = _left(ordered, words)
        supplier, carat = row["supplier_price"], row["carat"]
        for rule in left:
            if _within(supplier, rule.price_from, rule.price_to) and _within(carat, rule.carat_from, rule.carat_to):
                row["price"] = rule.price(supplier)
                row["pricing_rule_id"] = rule.id
                return
        row["price"] = supplier
        row["pricing_rule_id"] = None

    return price


def digest(rules: Sequence[Rule]) -> str:
    """The same for the same rules, whatever their order."""
    documents = sorted((r.document() for r in rules), key=lambda d: (d["priority"], d["id"]))
    # Short, because every record has it.
    return hashlib.sha256(json.dumps(documents, sort_keys=True).encode()).hexdigest()[:16]


def _left(rules: Sequence[Rule], words: tuple[Any, ...]) -> tuple[Rule, ...]:
    """The rules whose words match, as far as one that matches whatever the ranges."""
    found = []
    for rule in rules:
        wanted = [getattr(rule, name) for name in WORDS]
        if all(
            w is None or (v is not None and w.casefold() == v.casefold()) for w, v in zip(wanted, words, strict=True)
        ):
            found.append(rule)
            if rule.carat_from is rule.carat_to is rule.price_from is rule.price_to is None:
                break
    return tuple(found)


def _within(value: Decimal | None, low: Decimal | None, high: Decimal | None) -> bool:
    if low is None and high is None:
        return True
    return value is not None and (low is None or value >= low) and (high is None or value < high)


def _amount(row: Mapping[str, Any], name: str) -> Decimal:
    try:
        value = Decimal(row[name])
    except (decimal.InvalidOperation, TypeError, ValueError):
        value = Decimal("NaN")
    if not value.is_finite():
        raise BadRule(f"pricing rule {row['id']}: {name} is {row[name]!r:.40}, which is not an amount")
    return value

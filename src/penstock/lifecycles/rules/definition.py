"""A rule: which items it means and what it makes of their prices, as `penstock.toml` or an imported file says it.

Both are read by the reader of settings: `[rules.rules.NAME]` as a `RuleSettings`, and what the ledger keeps, with the
name, as a `Rule`. Amounts are whole numbers or text, because a number with a point is not exact.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec.structs import asdict, replace

from penstock.lifecycles.rules.expression import canonical, parse
from penstock.lifecycles.rules.limits import Limits
from penstock.lifecycles.rules.money import minor, read_currency, read_decimal, write_decimal
from penstock.lifecycles.rules.rounding import Rounding
from penstock.lifecycles.rules.selector import Selector
from penstock.model.errors import UsageError
from penstock.settings.reader import read_section
from penstock.settings.shapes import REQUIRED, Items, Section, Shape, Table, fields_of, write
from penstock.settings.typed import ConfigError, Says, Settings, says

_MOST_PERCENT = 100_000
_MOST_FACTOR = 1_000
_LATEST = 1_000_000
_MOST_TOLD = 20


def decimal(sentence: str, example: str) -> Says:
    """What is said of an exact number."""
    return says(sentence, reads=read_decimal, writes=write_decimal, examples=[example])


def _outside(
    name: str,
    value: Decimal | None,
    *,
    least: Decimal | None = None,
    above: Decimal | None = None,
    below: Decimal | None = None,
    most: int | None = None,
) -> Iterator[str]:
    """One line for a number that is out of its bounds."""
    told = [("of at least", least), ("above", above), ("below", below), ("of at most", most)]
    if value is not None and not (
        (least is None or value >= least)
        and (above is None or value > above)
        and (below is None or value < below)
        and (most is None or value <= most)
    ):
        yield f"{name} {value} must be {' and '.join(f'{word} {bound}' for word, bound in told if bound is not None)}"


class ListedPrice(Settings):
    """`transform.prices.*`: what one SKU is to cost."""

    price: Annotated[Decimal, decimal("Its price.", "19.99")]
    compare_at_price: Annotated[
        Decimal | None, decimal("Its compare-at price; without it the rule's compare_at decides.", "24.99")
    ] = None


class Transform(Settings):
    """`transform`: what becomes of a price. One of these, and one only."""

    percent: Annotated[Decimal | None, decimal("Change by a percentage; below zero is a cut.", "-10")] = None
    amount: Annotated[Decimal | None, decimal("Change by an amount; below zero is a cut.", "-5.00")] = None
    set_to: Annotated[Decimal | None, decimal("The new price.", "19.99")] = None
    beat_by_percent: Annotated[
        Decimal | None, decimal("Go below the reference price by a percentage; 0 is as much as it.", "2")
    ] = None
    beat_by_amount: Annotated[
        Decimal | None, decimal("Go below the reference price by an amount; 0 is as much as it.", "0.01")
    ] = None
    prices: Annotated[
        dict[str, ListedPrice] | None,
        says("Prices by SKU. Only these SKUs are meant.", filled=True, examples={"RING-1": {"price": "19.99"}}),
    ] = None
    prices_file: Annotated[
        Path | None,
        says("A CSV file of prices: sku, price, compare_at_price and, if you like, currency.", examples=["prices.csv"]),
    ] = None

    def __post_init__(self) -> None:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"has {' and '.join(given)}" if given else "says nothing"
            raise ValueError(f"{found}; give one of {', '.join(self.__struct_fields__)}")
        wrong = [
            *_outside("percent", self.percent, above=Decimal(-100), most=_MOST_PERCENT),
            *_outside("beat_by_percent", self.beat_by_percent, least=Decimal(0), below=Decimal(100)),
        ]
        if wrong:
            raise ValueError("\n".join(wrong))

    @property
    def beats(self) -> bool:
        """Whether it needs a reference price."""
        return self.beat_by_percent is not None or self.beat_by_amount is not None


class Floor(Settings):
    """`floor`: no price goes below. With an amount and a cost, the higher of both counts."""

    amount: Annotated[Decimal | None, decimal("The lowest price.", "5.00")] = None
    cost_factor: Annotated[
        Decimal | None, decimal("The lowest price as a multiple of the cost; items without a cost are excluded.", "1.3")
    ] = None
    cost_plus_percent: Annotated[Decimal | None, decimal("Likewise, as so many percent on top of the cost.", "30")] = (
        None
    )

    def __post_init__(self) -> None:
        if self.amount is None and not self.needs_cost:
            raise ValueError("says nothing; give amount, cost_factor or cost_plus_percent")
        if self.cost_factor is not None and self.cost_plus_percent is not None:
            raise ValueError("has both 'cost_factor' and 'cost_plus_percent'; give one of them")
        wrong = [
            *_outside("cost_factor", self.cost_factor, above=Decimal(0), most=_MOST_FACTOR),
            *_outside("cost_plus_percent", self.cost_plus_percent, above=Decimal(-100), most=_MOST_PERCENT),
        ]
        if wrong:
            raise ValueError("\n".join(wrong))

    @property
    def needs_cost(self) -> bool:
        return self.cost_factor is not None or self.cost_plus_percent is not None


class MaxChange(Settings):
    """`max_change`: how far a price may move at once; with both, both hold."""

    percent: Annotated[Decimal | None, decimal("In percent of the price before.", "30")] = None
    amount: Annotated[Decimal | None, decimal("As an amount.", "50.00")] = None
    then: Annotated[
        Literal["exclude", "clamp"],
        says("What becomes of a larger change: its item is left alone, or it is cut short."),
    ] = "exclude"

    def __post_init__(self) -> None:
        if self.percent is None and self.amount is None:
            raise ValueError("says nothing; give percent or amount")
        if wrong := list(_outside("percent", self.percent, above=Decimal(0), most=_MOST_PERCENT)):
            raise ValueError("\n".join(wrong))


class CompareAt(Settings):
    """`compare_at`: what becomes of the compare-at price. One that is not above the new price is always removed."""

    becomes: Annotated[
        Literal["keep", "price_before", "amount", "percent", "clear"],
        says("It stays, is the price before, an amount, so many percent above the new price, or is removed."),
    ] = "keep"
    amount: Annotated[Decimal | None, decimal("The amount, with becomes = amount.", "29.99")] = None
    percent: Annotated[Decimal | None, decimal("The percentage, with becomes = percent.", "20")] = None

    def __post_init__(self) -> None:
        wrong = []
        for name in ("amount", "percent"):
            given = getattr(self, name) is not None
            if given != (self.becomes == name):
                missing = f"has {name!r}, but becomes is {self.becomes}" if given else f"needs {name!r}"
                wrong.append(missing)
        wrong += _outside("percent", self.percent, above=Decimal(0), most=_MOST_PERCENT)
        if wrong:
            raise ValueError("\n".join(wrong))


class RuleSettings(Settings):
    """`[rules.rules.*]`: one rule of one account."""

    account: Annotated[str, says("Whose catalogue it changes.", examples=["shop"])]
    currency: Annotated[
        str, says("The currency of its amounts; items in others are excluded.", reads=read_currency, examples=["USD"])
    ]
    description: Annotated[str | None, says("What it is for, in your words.", examples=["The summer sale."])] = None
    priority: Annotated[
        int, says("Where rules mean the same item, the lowest number wins, ties by name.", ge=0, le=_LATEST)
    ] = 100
    active: Annotated[bool, says("Whether it can be previewed, and comes before rules of a higher number.")] = True
    selector: Annotated[Selector, says("Which items it means.")] = Selector()
    transform: Annotated[Transform, says("What becomes of a price.")]
    rounding: Annotated[Rounding, says("What a price is rounded to.")] = Rounding()
    floor: Annotated[Floor | None, says("The lowest price.")] = None
    ceiling: Annotated[Decimal | None, decimal("The highest price.", "500.00")] = None
    max_change: Annotated[MaxChange | None, says("How far a price may move at once.")] = None
    compare_at: Annotated[CompareAt, says("What becomes of the compare-at price.")] = CompareAt()
    limits: Annotated[Limits, says("What a run of it may do at most.")] = Limits()

    def __post_init__(self) -> None:
        wrong = list(self._wrong_amounts())
        listed = self.transform.prices is not None or self.transform.prices_file is not None
        if not listed and not self.selector.everything and not self.selector.conditions:
            wrong.append("selector says nothing; give a condition, or everything = true for the whole catalogue")
        lowest = None if self.floor is None else self.floor.amount
        if lowest is not None and self.ceiling is not None and lowest > self.ceiling:
            wrong.append(f"floor.amount {lowest} is above ceiling {self.ceiling}: no price is allowed")
        if wrong:
            more = [f"and {len(wrong) - _MOST_TOLD} more"] if len(wrong) > _MOST_TOLD else []
            raise ValueError("\n".join(wrong[:_MOST_TOLD] + more))

    def _wrong_amounts(self) -> Iterator[str]:
        """Amounts that the currency does not have, by key."""
        checks: list[tuple[str, Callable[[], object]]] = [
            ("selector", lambda: self.selector.means(self.currency)),
            ("rounding", lambda: self.rounding.grid(self.currency)),
        ]
        transform, floor, change = self.transform, self.floor, self.max_change
        amounts = [
            ("transform.set_to", transform.set_to, False, False),
            ("transform.amount", transform.amount, True, True),
            ("transform.beat_by_amount", transform.beat_by_amount, True, False),
            ("floor.amount", None if floor is None else floor.amount, False, False),
            ("ceiling", self.ceiling, False, False),
            ("max_change.amount", None if change is None else change.amount, False, False),
            ("compare_at.amount", self.compare_at.amount, False, False),
        ]
        for key, check in checks:
            yield from _refusal(key, check)
        for key, amount, zero, signed in amounts:
            if amount is not None:
                yield from _refusal(key, functools.partial(minor, amount, self.currency, zero=zero, signed=signed))
        for sku, listed in (transform.prices or {}).items():
            yield from self._wrong_listed(f"transform.prices.{sku}", listed)

    def _wrong_listed(self, key: str, listed: ListedPrice) -> Iterator[str]:
        yield from _refusal(key, lambda: minor(listed.price, self.currency))
        compare_at = listed.compare_at_price
        if compare_at is not None:
            yield from _refusal(key, lambda: minor(compare_at, self.currency))
            if compare_at <= listed.price:
                yield f"{key}: the compare-at price {compare_at} is not above the price {listed.price}"


class Rule(RuleSettings):
    """A rule with its name, as the ledger keeps it."""

    name: Annotated[str, says("Its name, once per account.", examples=["summer"])]

    def document(self) -> dict[str, Any]:
        """The rule as JSON can carry it, without what is at its default; `read_rule` reads it back."""
        return _written(self)

    @property
    def digest(self) -> str:
        """The same for rules that mean the same, whatever their description, order and spelling."""
        document = _written(self)
        document.pop("description", None)
        selector = document.get("selector", {})
        for name, spelt in (
            ("tags", str.casefold),
            ("all_tags", str.casefold),
            ("vendors", str.casefold),
            ("skus", str),
        ):
            if name in selector:
                selector[name] = sorted(set(map(spelt, selector[name])))
        if "where" in selector:
            selector["where"] = canonical(parse(selector["where"]))
        encoded = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(encoded.encode()).hexdigest()

    @property
    def order(self) -> tuple[int, str]:
        """Which rule comes first where both mean an item: the lower one."""
        return self.priority, self.name


def named(settings: RuleSettings, name: str) -> Rule:
    """A rule of the configuration, with the name of its section."""
    return Rule(name=name, **asdict(settings))


def with_prices(rule: Rule, prices: Mapping[str, ListedPrice]) -> Rule:
    """The rule with what its `prices_file` says. Raises UsageError for prices that its currency does not have."""
    try:
        return replace(rule, transform=Transform(prices=dict(prices)))
    except ValueError as error:
        raise UsageError(f"rule {rule.name!r}: {error}") from None


class _File(Settings):
    rules: Annotated[dict[str, RuleSettings], says("The rules, by name.", filled=True)]


def read_rules(given: Any, path_text: str, folder: Path | None = None) -> list[Rule]:
    """The rules of a file, `[rules.NAME]`. Raises ConfigError with everything that is wrong."""
    errors: list[str] = []
    found = read_section(_File, given, at=(), folder=folder, errors=errors, path_text=path_text)
    if found is None:
        raise ConfigError("\n".join(errors))
    return [named(settings, name) for name, settings in found.rules.items()]


def read_rule(given: Any, path_text: str = "rule") -> Rule:
    """A rule of its document. Raises ConfigError with everything that is wrong."""
    errors: list[str] = []
    found = read_section(Rule, given, at=(), folder=None, errors=errors, path_text=path_text)
    if found is None:
        raise ConfigError("\n".join(errors))
    return found


def _written(settings: Settings) -> dict[str, Any]:
    """As a file has it, without defaults: a setting that is added later changes no digest."""
    found = {}
    for field in fields_of(type(settings)):
        value = getattr(settings, field.name)
        if value is None or (field.default is not REQUIRED and value == field.default):
            continue
        found[field.key] = _plain(field.shape, value)
    return found


def _plain(shape: Shape, value: Any) -> Any:
    if isinstance(shape, Section):
        return _written(value)
    if isinstance(shape, Table):
        return {name: _plain(shape.item, item) for name, item in value.items()}
    return write(shape, value) if not isinstance(shape, Items) else [write(shape.item, item) for item in value]


def _refusal(key: str, check: Callable[[], object]) -> Iterator[str]:
    try:
        check()
    except UsageError as error:
        yield f"{key}: {error}"

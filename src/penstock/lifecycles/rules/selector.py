"""Which items a rule means: tags, vendors, a range of prices, SKUs, and a condition."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

from penstock.lifecycles.rules.expression import BadExpression, parse
from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.money import minor, read_decimal, write_decimal
from penstock.lifecycles.rules.predicate import Predicate, all_of, predicate, tagged
from penstock.settings.typed import Settings, says

_CONDITION = 'a condition, such as vendor = "Acme" and price >= 100'


def read_where(value: Any) -> str:
    """A condition that can be read. Raises ValueError with what is wrong, and where."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(_CONDITION)
    try:
        parse(value)
    except BadExpression as error:
        raise ValueError(f"{_CONDITION}; {error}") from None
    return value


class Selector(Settings):
    """`selector`: an item is meant if it fulfils everything that is given here."""

    everything: Annotated[bool, says("Mean the whole catalogue; without it something else must be given.")] = False
    tags: Annotated[
        tuple[str, ...] | None, says("Tags, of which an item has at least one.", filled=True, examples=[["ring"]])
    ] = None
    all_tags: Annotated[
        tuple[str, ...] | None, says("Tags, of which an item has all.", filled=True, examples=[["gold", "new"]])
    ] = None
    vendors: Annotated[
        tuple[str, ...] | None, says("Vendors, of which an item has one.", filled=True, examples=[["Acme"]])
    ] = None
    skus: Annotated[
        tuple[str, ...] | None,
        says("SKUs, of which an item has one; each must be in the catalogue.", filled=True, examples=[["RING-1"]]),
    ] = None
    price_at_least: Annotated[
        Decimal | None,
        says("The lowest price of an item.", reads=read_decimal, writes=write_decimal, examples=["10.00"]),
    ] = None
    price_at_most: Annotated[
        Decimal | None,
        says("The highest price of an item.", reads=read_decimal, writes=write_decimal, examples=["99.99"]),
    ] = None
    where: Annotated[
        str | None,
        says(
            "A condition on sku, title, vendor, product, tag, price, compare_at, cost, reference and margin.",
            reads=read_where,
            examples=['vendor = "Acme" and not tag "sale" and sku like "RING-*"'],
        ),
    ] = None

    def __post_init__(self) -> None:
        low, high = self.price_at_least, self.price_at_most
        if low is not None and high is not None and low > high:
            raise ValueError(f"price_at_least {low} is above price_at_most {high}: no item can be meant")
        if self.everything and self.conditions:
            raise ValueError("has 'everything' and conditions too; give one or the other")

    @property
    def conditions(self) -> bool:
        """Whether anything is asked of an item."""
        asked = (self.tags, self.all_tags, self.vendors, self.skus, self.price_at_least, self.price_at_most, self.where)
        return any(one is not None for one in asked)

    def means(self, currency: str) -> Predicate:
        """Whether an item is meant. Raises UsageError for amounts that the currency does not have."""
        parts: list[Predicate] = []
        if self.skus is not None:
            parts.append(_in_skus(frozenset(self.skus)))
        if self.vendors is not None:
            parts.append(_in_vendors(frozenset(map(str.casefold, self.vendors))))
        if self.price_at_least is not None or self.price_at_most is not None:
            parts.append(_in_range(self.price_at_least, self.price_at_most, currency))
        if self.tags is not None:
            known = frozenset(map(str.casefold, self.tags))
            parts.append(tagged(lambda tag: tag.casefold() in known))
        if self.all_tags is not None:
            parts.append(_with_tags(frozenset(map(str.casefold, self.all_tags))))
        if self.where is not None:
            parts.append(predicate(parse(self.where), currency))
        return all_of(parts)


def _in_skus(known: frozenset[str]) -> Predicate:
    return lambda item: item.sku in known


def _in_vendors(known: frozenset[str]) -> Predicate:
    return lambda item: item.vendor.casefold() in known


def _with_tags(wanted: frozenset[str]) -> Predicate:
    return lambda item: wanted <= {tag.casefold() for tag in item.tags}


def _in_range(low: Decimal | None, high: Decimal | None, currency: str) -> Predicate:
    """Both ends belong to it. An item in another currency is in no range."""
    lowest = None if low is None else minor(low, currency, zero=True)
    highest = None if high is None else minor(high, currency, zero=True)

    def test(item: Item) -> bool:
        price = item.price
        return (
            price.currency == currency
            and (lowest is None or price.amount >= lowest)
            and (highest is None or price.amount <= highest)
        )

    return test

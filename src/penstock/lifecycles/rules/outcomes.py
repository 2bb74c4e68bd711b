"""What a rule makes of an item: a target, or the reason why there is none."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.lifecycles.rules.money import Price


class Reason(StrEnum):
    """Why an item that a rule means is left alone."""

    NO_SKU = "no_sku"
    LOCKED = "locked"
    CURRENCY_DIFFERS = "currency_differs"
    PRICE_INVALID = "price_invalid"
    OTHER_RULE = "other_rule"
    DUPLICATE_SKU = "duplicate_sku"
    NO_REFERENCE = "no_reference"
    NO_COST = "no_cost"
    NOT_POSITIVE = "not_positive"
    TOO_LARGE = "too_large"
    BELOW_FLOOR = "below_floor"
    ABOVE_CEILING = "above_ceiling"
    NO_ROUNDING = "no_rounding"
    CHANGE_TOO_LARGE = "change_too_large"
    NO_CHANGE = "no_change"


MEANINGS = {
    Reason.NO_SKU: "no SKU",
    Reason.LOCKED: "locked",
    Reason.CURRENCY_DIFFERS: "in another currency",
    Reason.PRICE_INVALID: "no price that could be changed",
    Reason.OTHER_RULE: "meant by a rule that comes first",
    Reason.DUPLICATE_SKU: "another variant has the same SKU",
    Reason.NO_REFERENCE: "no reference price",
    Reason.NO_COST: "no cost",
    Reason.NOT_POSITIVE: "the price would not be above 0",
    Reason.TOO_LARGE: "the price would be too large",
    Reason.BELOW_FLOOR: "the price would be below the floor",
    Reason.ABOVE_CEILING: "the price would be above the ceiling",
    Reason.NO_ROUNDING: "no rounded price is allowed",
    Reason.CHANGE_TOO_LARGE: "the change is larger than max_change",
    Reason.NO_CHANGE: "the price is right already",
}
"""What each reason says of many items."""


class Target(msgspec.Struct, frozen=True, gc=False):
    """A price that is to be changed, both sides absolute."""

    before: Price
    after: Price


class Excluded(msgspec.Struct, frozen=True, gc=False):
    """An item that is left alone: the reason as a code, and as a sentence."""

    reason: Reason
    sentence: str

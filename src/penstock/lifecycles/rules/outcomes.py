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


class Target(msgspec.Struct, frozen=True, gc=False):
    """A price that is to be changed, both sides absolute."""

    before: Price
    after: Price


class Excluded(msgspec.Struct, frozen=True, gc=False):
    """An item that is left alone: the reason as a code, and as a sentence."""

    reason: Reason
    sentence: str

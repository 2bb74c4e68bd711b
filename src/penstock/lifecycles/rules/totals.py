"""What a preview comes to: counts, sums and the largest changes, gathered item by item in bounded memory."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal

import msgspec

from penstock.lifecycles.rules.item import Item
from penstock.lifecycles.rules.outcomes import Excluded, Reason, Target

KEPT = 10
"""How many of the largest rises, and of the largest falls, are kept."""
_GATHERED = 8 * KEPT
# Shares of a price are summed and put in order as whole billionths.
_FINE = 10**9


class Change(msgspec.Struct, frozen=True):
    """One change among the largest."""

    item: Item
    target: Target

    @property
    def difference(self) -> int:
        return self.target.after.minus(self.target.before)

    @property
    def percent(self) -> Decimal:
        return percent(self.difference, self.target.before.amount)


class Totals:
    """What a preview comes to, gathered item by item; the order of the items makes no difference."""

    def __init__(self) -> None:
        self.catalogue = 0
        self.targets = 0
        self.excluded: Counter[Reason] = Counter()
        self.before = 0
        self.after = 0
        self.rises = 0
        self.falls = 0
        self.unknown: list[str] = []
        """SKUs that the rule names and the catalogue does not have."""
        self.largest: Change | None = None
        """The largest change of any price, up or down, as a share of the price before."""
        self._lowest: int | None = None
        self._highest: int | None = None
        self._sum = 0
        self._up = _Largest()
        self._down = _Largest()

    @property
    def meant(self) -> int:
        """How many items the rule means."""
        return self.targets + self.excluded.total()

    @property
    def largest_rises(self) -> list[Change]:
        return self._up.kept()

    @property
    def largest_falls(self) -> list[Change]:
        return self._down.kept()

    @property
    def least_change(self) -> Decimal | None:
        """The lowest change in percent, falls below zero; None without targets."""
        return None if self._lowest is None else percent(self._lowest, _FINE)

    @property
    def most_change(self) -> Decimal | None:
        """The highest change in percent; None without targets."""
        return None if self._highest is None else percent(self._highest, _FINE)

    @property
    def mean_change(self) -> Decimal | None:
        """The mean of all changes in percent; None without targets."""
        return percent(self._sum, _FINE * self.targets) if self.targets else None

    def add(self, item: Item, outcome: Target | Excluded) -> None:
        """Count one item that the rule means."""
        if isinstance(outcome, Excluded):
            self.excluded[outcome.reason] += 1
            return
        before, after = outcome.before.amount, outcome.after.amount
        difference = after - before
        share = difference * _FINE // before
        self.targets += 1
        self.before += before
        self.after += after
        self._sum += share
        if self._lowest is None or share < self._lowest:
            self._lowest = share
        if self._highest is None or share > self._highest:
            self._highest = share
        if difference > 0:
            self.rises += 1
            self._up.add(share, item, outcome)
        elif difference < 0:
            self.falls += 1
            self._down.add(-share, item, outcome)
        if self.largest is None or self._is_larger(item, difference, before, self.largest):
            self.largest = Change(item, outcome)

    @staticmethod
    def _is_larger(item: Item, difference: int, before: int, known: Change) -> bool:
        """Whether it is, exactly; of equal changes the one of the lower variant counts."""
        own, other = abs(difference) * known.target.before.amount, abs(known.difference) * before
        return own > other or (own == other and item.variant_id < known.item.variant_id)


class _Largest:
    """The largest changes; of equal ones those with the lowest variant ids, whatever the order in which they come."""

    def __init__(self) -> None:
        self._found: list[tuple[int, str, Change]] = []
        self._bar = 0

    def add(self, share: int, item: Item, target: Target) -> None:
        if share < self._bar:
            return
        self._found.append((-share, item.variant_id, Change(item, target)))
        if len(self._found) >= _GATHERED:
            self._cut()

    def kept(self) -> list[Change]:
        self._cut()
        return [change for _, _, change in self._found]

    def _cut(self) -> None:
        self._found.sort(key=lambda found: found[:2])
        del self._found[KEPT:]
        if len(self._found) == KEPT:
            self._bar = -self._found[-1][0]


def percent(part: int, whole: int) -> Decimal:
    """A share in percent with two decimals, half away from zero."""
    if not whole:
        return Decimal("0.00")
    hundredths = (abs(part) * 20_000 + whole) // (2 * whole)
    return Decimal(-hundredths if part < 0 else hundredths).scaleb(-2)

"""Rounding to prices that look right: to the minor unit, to a step, or to an ending such as .99. Whole numbers only."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec

from penstock.lifecycles.rules.money import BadMoney, decimals_of, minor, parse, read_decimal, write_decimal
from penstock.settings.typed import Settings, says

_ENDING = re.compile(r"(?=.)([0-9]{0,6})(?:\.([0-9]{1,4}))?")
_WANTED = 'the end of a price, in quotes, for example ".99" or "9.00"'


def read_ending(value: Any) -> str:
    """`.99`, `9.00` or, in a currency without decimals, `80`. Raises ValueError with what is allowed."""
    if not isinstance(value, str) or not _ENDING.fullmatch(value):
        raise ValueError(_WANTED)
    # A single 0 before the point is how .99 is often written, and not a price that ends in 0.99.
    return value.removeprefix("0") if value.startswith("0.") else value


class Rounding(Settings):
    """`rounding`: what a price is rounded to after the transform; without it, to the currency's minor unit."""

    ending: Annotated[
        str | None,
        says(
            "How a price ends: .99 gives 4.99 and 5.99, 9.00 gives 9.00 and 19.00.", reads=read_ending, examples=[".99"]
        ),
    ] = None
    step: Annotated[
        Decimal | None,
        says("What a price is a multiple of.", reads=read_decimal, writes=write_decimal, examples=["0.05"]),
    ] = None
    mode: Annotated[
        Literal["nearest", "up", "down"] | None,
        says(
            "Which way; half goes up. Without it to the nearest, and down where a reference price is to be beaten.",
            examples=["nearest"],
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.ending is not None and self.step is not None:
            raise ValueError("has both 'ending' and 'step'; give one of them")

    def grid(self, currency: str, mode: str = "nearest") -> Grid:
        """The prices that it allows; `mode` is for a rounding that names none. Raises BadMoney."""
        mode = self.mode or mode
        if self.step is not None:
            return Grid(minor(self.step, currency), 0, mode)
        if self.ending is None:
            return Grid(1, 0, mode)
        whole, _, fraction = self.ending.partition(".")
        decimals = decimals_of(currency)
        if fraction and len(fraction) != decimals:
            count = f"{decimals} decimals" if decimals else "no decimals"
            raise BadMoney(f"the ending {self.ending} does not fit: a price in {currency} has {count}")
        rest = parse(f"{int(whole or 0)}{'.' if fraction else ''}{fraction}", currency, zero=True)
        return Grid(10 ** (len(whole) + decimals), rest, mode)


class Grid(msgspec.Struct, frozen=True):
    """The amounts `rest`, `rest + step`, `rest + 2 * step` and so on, and which way to go to one of them."""

    step: int
    rest: int
    mode: str

    def rounded(self, numerator: int, denominator: int) -> int:
        """The amount on the grid for an exact fraction: rounded once, and not to the minor unit before."""
        step = self.step * denominator
        above = (numerator - self.rest * denominator) % step
        down = (numerator - above) // denominator
        if above and (self.mode == "up" or (self.mode == "nearest" and 2 * above >= step)):
            return down + self.step
        return down

    def at_least(self, amount: int) -> int:
        """The lowest on the grid that is not below the amount."""
        return amount + (self.rest - amount) % self.step

    def at_most(self, amount: int) -> int:
        """The highest on the grid that is not above the amount."""
        return amount - (amount - self.rest) % self.step

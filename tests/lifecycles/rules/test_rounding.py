"""Rounding is exact, happens once, and ends where it should."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lifecycles.rules.money import BadMoney, text
from penstock.lifecycles.rules.rounding import Grid, Rounding, read_ending

modes = st.sampled_from(["nearest", "up", "down"])
grids = st.builds(
    lambda step, rest, mode: Grid(step, rest % step, mode), st.integers(1, 5000), st.integers(0, 5000), modes
)


def rounded(numerator: int, denominator: int = 1, currency: str = "USD", **fields) -> int:
    if "ending" in fields:
        fields["ending"] = read_ending(fields["ending"])
    return Rounding(**fields).grid(currency).rounded(numerator, denominator)


@pytest.mark.parametrize(
    ("amount", "ending", "mode", "expected"),
    [
        (1050, ".99", "nearest", 1099),
        (1048, ".99", "nearest", 999),
        (1049, ".99", "nearest", 1099),  # as far from both: half goes up
        (1099, ".99", "nearest", 1099),
        (1100, ".99", "up", 1199),
        (1098, ".99", "down", 999),
        (1050, "0.99", "nearest", 1099),
        (1050, ".95", "nearest", 1095),
        (1050, ".00", "nearest", 1100),
        (1500, "9.00", "nearest", 1900),
        (1399, "9.00", "nearest", 900),
        (1500, "9", "up", 1900),
        (1500, "9.99", "down", 999),
        (15_000, "99.99", "nearest", 19_999),
        (15_000, "00.99", "nearest", 10_099),
    ],
)
def test_endings(amount, ending, mode, expected):
    assert rounded(amount, ending=ending, mode=mode) == expected


def test_an_ending_in_other_currencies():
    assert rounded(1_234, currency="JPY", ending="80") == 1_280
    assert rounded(12_345, currency="KWD", ending=".990") == 11_990
    for ending, currency in ((".99", "JPY"), (".99", "KWD"), (".9", "USD")):
        with pytest.raises(BadMoney, match="does not fit"):
            Rounding(ending=ending).grid(currency)


@pytest.mark.parametrize("ending", ["", ".", "-1", "1,00", "x", 0.99, 99, None, "1.", "1234567"])
def test_an_ending_that_is_none_is_refused(ending):
    with pytest.raises(ValueError, match="the end of a price, in quotes"):
        read_ending(ending)


def test_steps_and_the_minor_unit():
    assert rounded(1012, step=Decimal("0.05")) == 1010
    assert rounded(1013, step=Decimal("0.05")) == 1015
    assert rounded(1250, step=Decimal(5)) == 1500
    assert rounded(3, 2) == 2  # 1.5 minor units: half goes up
    assert rounded(5, 2) == 3
    assert rounded(149, 100) == 1
    with pytest.raises(BadMoney, match="zero"):
        Rounding(step=Decimal(0)).grid("USD")
    with pytest.raises(ValueError, match="both"):
        Rounding(step=Decimal(5), ending=".99")


def test_an_exact_fraction_is_not_rounded_to_the_minor_unit_first():
    # 10.4949… is nearer to 10.00; rounded to 10.50 first it would go up.
    assert rounded(1_049_999, 1000, ending=".00") == 1000
    assert rounded(1_050_000, 1000, ending=".00") == 1100


@given(grids, st.integers(-(10**9), 10**12), st.integers(1, 10**6))
def test_what_is_rounded_is_on_the_grid_and_the_nearest_of_it(grid, numerator, denominator):
    found, exact = grid.rounded(numerator, denominator), Fraction(numerator, denominator)
    assert found % grid.step == grid.rest
    if grid.mode == "up":
        assert exact <= found < exact + grid.step
    elif grid.mode == "down":
        assert exact - grid.step < found <= exact
    else:
        assert exact - Fraction(grid.step, 2) < found <= exact + Fraction(grid.step, 2)


@given(grids, st.integers(0, 10**12))
def test_the_next_on_the_grid(grid, amount):
    low, high = grid.at_most(amount), grid.at_least(amount)
    assert low <= amount <= high
    assert high - low in (0, grid.step)
    assert low % grid.step == high % grid.step == grid.rest


@given(st.from_regex(r"[1-9]?[0-9]?\.[0-9]{2}", fullmatch=True), st.integers(1, 10**9), modes)
def test_an_ending_is_really_there(ending, amount, mode):
    found = text(rounded(amount, ending=ending, mode=mode) + 100_000, "USD")
    assert found.endswith(read_ending(ending))

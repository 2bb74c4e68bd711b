"""Price lists as CSV: what is taken, and what is refused with its line."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lifecycles.rules.definition import ListedPrice, with_prices
from penstock.lifecycles.rules.money import LARGEST, text
from penstock.lifecycles.rules.prices import BadPrices, read_prices
from tests.lifecycles.rules.making import rule


def read(given: str, currency: str = "USD", **fields) -> dict[str, ListedPrice]:
    return read_prices(given.splitlines(keepends=True), currency, path_text="prices.csv", **fields)


def test_a_list_is_read_with_its_columns_in_any_order():
    found = read(
        "\ufeffPrice,SKU,currency,compare_at_price\n19.99,RING-1,USD,24.99\n\n 5 ,'A, B',,\n".replace("'", '"'),
        known={"RING-1", "A, B"},
    )
    assert found == {
        "RING-1": ListedPrice(price=Decimal("19.99"), compare_at_price=Decimal("24.99")),
        "A, B": ListedPrice(price=Decimal(5)),
    }
    assert with_prices(rule(transform={"prices_file": "prices.csv"}), found).transform.prices == found


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("A,19.99,", 'line 3: "A" has a price in line 2 already'),
        ("A,5.00,", 'line 3: "A" has a price in line 2 already'),
        ("B,19.999,", 'line 3: "B": 19.999 is wrongly scaled: an amount in USD has at most 2 decimals'),
        ("B,-5,", "line 3: \"B\": '-5' is not an amount"),
        ("B,0,", 'line 3: "B": 0 is zero'),
        ("B,NaN,", "is not an amount"),
        ("B,,", "is not an amount"),
        ('B,"1,000.00",', "is not an amount"),
        ("B,99999999999999,", "too large"),
        ("B,5,5.00", 'line 3: "B": the compare-at price 5.00 is not above the price 5'),
        ("B,5,x", "is not an amount"),
        ("Z,5,", 'line 3: "Z" is not in the catalogue'),
        (",5,", 'line 3: "" is not a SKU'),
        ("B,5", "line 3: 2 cells, and the first line has 3"),
        ("B,5,,7", "line 3: 4 cells"),
        ('B,"5', "line 3: this is not CSV"),
        ("B\x1b[2J,5,", r'"B\x1b[2J" is not a SKU'),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(line, says):
    with pytest.raises(BadPrices) as caught:
        read(f"sku,price,compare_at_price\nA,5.00,\n{line}\n", known={"A", "B"})
    assert str(caught.value).startswith("prices.csv, ")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_currency_is_refused():
    with pytest.raises(BadPrices, match='line 2: "A" is in "EUR", and the rule in USD'):
        read("sku,price,currency\nA,5.00,EUR\n")
    with pytest.raises(BadPrices, match="JPY has no decimals"):
        read("sku,price\nA,5.00\n", "JPY")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("", "line 1: the column sku is missing"),
        ("sku,price\n", "line 2: the list has no prices"),
        ("sku,prize\nA,5\n", 'line 1: "prize" is not a column; did you mean price?'),
        ("sku;price\nA;5\n", "line 1: the cells must be separated by commas"),
        ("sku,price,colour\nA,5,red\n", 'line 1: "colour" is not a column; the columns are sku, price'),
        ("sku,price,price\nA,5,6\n", "the column price stands there twice"),
    ],
)
def test_a_list_without_its_columns_is_refused(given, says):
    with pytest.raises(BadPrices) as caught:
        read(given)
    assert says in str(caught.value)


def test_all_errors_come_at_once_up_to_a_number():
    lines = "".join(f"S{number},x\n" for number in range(50))
    with pytest.raises(BadPrices) as caught:
        read(f"sku,price\n{lines}")
    told = str(caught.value).splitlines()
    assert len(told) == 21
    assert told[0].startswith('prices.csv, line 2: "S0"')
    assert told[-1] == "and 30 more"


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_bytes(b"sku,price\nA,\xff\xfe\n")
    with path.open(encoding="utf-8", newline="") as lines, pytest.raises(BadPrices, match="not text in UTF-8"):
        read_prices(lines, "USD")


@given(st.dictionaries(st.from_regex(r"[A-Z]{1,3}-[0-9]{1,3}", fullmatch=True), st.integers(1, LARGEST), min_size=1))
def test_every_amount_arrives_exactly(amounts):
    lines = "".join(f"{sku},{text(amount, 'KWD')}\n" for sku, amount in amounts.items())
    found = read(f"sku,price\n{lines}", "KWD")
    assert {sku: int(listed.price.scaleb(3)) for sku, listed in found.items()} == amounts


@given(st.text(max_size=80))
def test_nothing_else_is_ever_raised(given):
    for whole in (given, f"sku,price\n{given}"):
        try:
            read(whole)
        except BadPrices as error:
            assert str(error)  # noqa: PT017 - most texts are refused, some are not

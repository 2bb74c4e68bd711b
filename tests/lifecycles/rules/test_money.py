"""Amounts are exact, in the minor units of one currency."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lifecycles.rules.money import (
    DECIMALS,
    LARGEST,
    BadMoney,
    Price,
    minor,
    parse,
    read_currency,
    read_decimal,
    text,
    write_decimal,
)

currencies = st.sampled_from(sorted(DECIMALS))


@pytest.mark.parametrize(
    ("given", "currency", "amount"),
    [
        ("19.99", "USD", 1999),
        ("19.9", "USD", 1990),
        ("19", "USD", 1900),
        ("0.01", "USD", 1),
        ("1999", "JPY", 1999),
        ("1.005", "KWD", 1005),
        ("1.0001", "CLF", 10001),
        ("9999999999999.99", "USD", LARGEST),
    ],
)
def test_an_amount_is_read_as_minor_units(given, currency, amount):
    assert parse(given, currency) == amount


@pytest.mark.parametrize(
    ("given", "currency", "says"),
    [
        ("-1", "USD", "not an amount"),
        ("+1", "USD", "not an amount"),
        ("0", "USD", "is zero"),
        ("0.00", "USD", "is zero"),
        ("NaN", "USD", "not an amount"),
        ("Infinity", "USD", "not an amount"),
        ("1e3", "USD", "not an amount"),
        ("1,000.00", "USD", "not an amount"),
        ("1 000", "USD", "not an amount"),
        ("1_000", "USD", "not an amount"),
        ("19,99", "USD", "not an amount"),
        ("$19.99", "USD", "not an amount"),
        (" 19.99", "USD", "not an amount"),
        ("19.99\n", "USD", "not an amount"),
        ("007", "USD", "not an amount"),
        (".99", "USD", "not an amount"),
        ("19.", "USD", "not an amount"),
        ("", "USD", "not an amount"),
        ("١٩", "USD", "not an amount"),
        ("19.999", "USD", "wrongly scaled: an amount in USD has at most 2 decimals"),
        ("19.990", "USD", "wrongly scaled"),
        ("1999.0", "JPY", "wrongly scaled: an amount in JPY has no decimals"),
        ("10000000000000.00", "USD", "too large; the largest amount is 9999999999999.99 USD"),
        ("9" * 5000, "USD", "too large"),
        ("1", "XAU", "'XAU' is not a currency"),
        ("1", "usd", "did you mean USD"),
        ("1", "", "is not a currency"),
    ],
)
def test_anything_else_is_refused_and_says_why(given, currency, says):
    with pytest.raises(BadMoney, match=says.replace(".", r"\.")) as caught:
        parse(given, currency)
    assert len(str(caught.value)) < 200


def test_zero_and_a_providers_zeros_are_read_where_they_are_allowed():
    assert parse("0.00", "USD", zero=True) == 0
    assert parse("1999.00", "JPY", padded=True) == 1999
    assert parse("19.9900", "USD", padded=True) == 1999
    with pytest.raises(BadMoney, match="wrongly scaled"):
        parse("19.9901", "USD", padded=True)


@given(st.integers(min_value=0, max_value=LARGEST), currencies)
def test_text_and_parse_are_the_reverse_of_each_other(amount, currency):
    written = text(amount, currency)
    assert parse(written, currency, zero=True) == amount
    assert Decimal(written).scaleb(DECIMALS[currency]) == amount
    assert minor(Decimal(written), currency, zero=True) == amount


@given(st.integers(min_value=1, max_value=LARGEST), currencies)
def test_a_difference_below_zero_has_its_sign(amount, currency):
    assert text(-amount, currency) == f"-{text(amount, currency)}"
    assert minor(Decimal(text(-amount, currency)), currency, signed=True) == -amount
    with pytest.raises(BadMoney, match="not an amount"):
        minor(Decimal(text(-amount, currency)), currency)


@given(st.text(max_size=30), st.text(max_size=5) | currencies)
def test_no_text_raises_anything_else(given, currency):
    try:
        amount = parse(given, currency)
    except BadMoney:
        return
    assert 0 < amount <= LARGEST


def test_every_currency_has_the_decimals_of_iso_4217():
    assert {DECIMALS[code] for code in ("JPY", "KRW", "CLP", "VND", "XOF")} == {0}
    assert {DECIMALS[code] for code in ("USD", "EUR", "GBP", "CHF", "INR")} == {2}
    assert {DECIMALS[code] for code in ("KWD", "BHD", "OMR", "TND", "JOD")} == {3}
    assert not {"XAU", "XXX", "XTS", "BTC"} & set(DECIMALS)
    assert all(len(code) == 3 and code.isupper() for code in DECIMALS)


def test_a_price_as_json_and_back():
    price = Price(1999, 2499, "USD")
    assert price.as_json() == {"unit_amount": 1999, "compare_at_amount": 2499, "currency": "USD"}
    assert Price.from_json(price.as_json()) == price
    assert Price.from_json(Price(0, None, "JPY").as_json()) == Price(0, None, "JPY")


@pytest.mark.parametrize(
    "change",
    [
        {"unit_amount": -1},
        {"unit_amount": 19.99},
        {"unit_amount": "1999"},
        {"unit_amount": True},
        {"unit_amount": None},
        {"unit_amount": LARGEST + 1},
        {"compare_at_amount": -1},
        {"compare_at_amount": 24.99},
        {"currency": "XXX"},
        {"more": 1},
    ],
)
def test_a_document_that_is_no_price_is_refused(change):
    with pytest.raises(BadMoney):
        Price.from_json({**Price(1999, 2499, "USD").as_json(), **change})


def test_currencies_are_never_mixed():
    assert Price(1999, None, "USD").minus(Price(2499, None, "USD")) == -500
    with pytest.raises(BadMoney, match="in EUR cannot be taken from one in USD"):
        Price(1999, None, "USD").minus(Price(1999, None, "EUR"))


@given(st.decimals(min_value=-(10**12), max_value=10**12, places=4))
def test_a_decimal_is_written_in_one_way_only(number):
    written = write_decimal(number)
    assert read_decimal(written) == number
    assert write_decimal(read_decimal(f"{number:f}")) == written == write_decimal(number * 1)


@pytest.mark.parametrize("value", [1.5, "1e3", "NaN", "", " 1", True, None, "1" * 16, "0.1234567", [], "\uff11"])
def test_a_number_that_is_not_exact_or_absurd_is_refused(value):
    with pytest.raises(ValueError, match="in quotes"):
        read_decimal(value)


def test_a_currency_that_is_none_is_refused_with_the_one_that_was_meant():
    assert read_currency("KWD") == "KWD"
    with pytest.raises(ValueError, match="did you mean EUR"):
        read_currency("eur")
    with pytest.raises(ValueError, match="ISO 4217"):
        read_currency(None)

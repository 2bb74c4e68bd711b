"""Money, exactly: whole numbers of a currency's minor units, and never two currencies in one sum."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Self

import msgspec

from penstock.model.errors import UsageError
from penstock.model.near import near

LARGEST = 10**15 - 1
"""The largest amount, in minor units: every reader of JSON keeps it exactly."""

# ISO 4217 by the number of decimals. What has no minor unit of its own (metals, tests, none) is no currency of a price.
_CURRENCIES = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    2: (
        "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BMD BND BOB BOV BRL BSD BTN BWP BYN BZD CAD CDF CHE CHF"
        " CHW CNY COP COU CRC CUP CVE CZK DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GTQ GYD HKD HNL HTG"
        " HUF IDR ILS INR IRR JMD KES KGS KHR KPW KYD KZT LAK LBP LKR LRD LSL MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR"
        " MWK MXN MXV MYR MZN NAD NGN NIO NOK NPR NZD PAB PEN PGK PHP PKR PLN QAR RON RSD RUB SAR SBD SCR SDG SEK SGD"
        " SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TOP TRY TTD TWD TZS UAH USD USN UYU UZS VED VES WST XCD XCG"
        " YER ZAR ZMW ZWG"
    ),
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
DECIMALS = {code: decimals for decimals, codes in _CURRENCIES.items() for code in codes.split()}
"""How many decimals an amount of a currency has."""

_AMOUNT = re.compile(r"(0|[1-9][0-9]*)(?:\.([0-9]+))?")
_DECIMAL = re.compile(r"-?[0-9]{1,15}(?:\.[0-9]{1,6})?")
_SHOWN = 40


class BadMoney(UsageError):
    """An amount, or a currency, that cannot be taken; the message says why."""


def decimals_of(currency: str) -> int:
    """How many decimals an amount of that currency has. Raises BadMoney for a code that is none of ISO 4217."""
    found = DECIMALS.get(currency)
    if found is None:
        raise BadMoney(f"{str(currency)[:_SHOWN]!r} is not a currency of ISO 4217{_meant(currency)}")
    return found


def parse(given: str, currency: str, *, zero: bool = False, padded: bool = False) -> int:
    """`19.99` in USD as 1999. Raises BadMoney for everything that is not exactly an amount of that currency.

    `zero` allows 0. `padded` allows zeros behind the last decimal, as some providers write them.
    """
    decimals = decimals_of(currency)
    found = _AMOUNT.fullmatch(given) if isinstance(given, str) else None
    if found is None:
        raise BadMoney(
            f"{str(given)[:_SHOWN]!r} is not an amount; write digits and a point, such as {_example(decimals)}"
        )
    whole, fraction = found[1], found[2] or ""
    if padded:
        fraction = fraction[:decimals] + fraction[decimals:].rstrip("0")
    if len(fraction) > decimals:
        allowed = f"at most {decimals} decimals" if decimals else "no decimals"
        raise BadMoney(f"{given[:_SHOWN]} is wrongly scaled: an amount in {currency} has {allowed}")
    if len(whole) > len(str(LARGEST)):
        raise BadMoney(f"{given[:_SHOWN]} is too large; the largest amount is {text(LARGEST, currency)} {currency}")
    amount = int(whole + fraction.ljust(decimals, "0"))
    if amount > LARGEST:
        raise BadMoney(f"{given[:_SHOWN]} is too large; the largest amount is {text(LARGEST, currency)} {currency}")
    if amount == 0 and not zero:
        raise BadMoney(f"{given[:_SHOWN]} is zero; an amount here is above 0")
    return amount


def text(amount: int, currency: str) -> str:
    """1999 in USD as `19.99`, with all its decimals; also of a difference below zero."""
    decimals = decimals_of(currency)
    if not decimals:
        return str(amount)
    digits = str(abs(amount)).rjust(decimals + 1, "0")
    return f"{'-' if amount < 0 else ''}{digits[:-decimals]}.{digits[-decimals:]}"


def minor(amount: Decimal, currency: str, *, zero: bool = False, signed: bool = False) -> int:
    """A decimal as minor units. Raises BadMoney as `parse` does; `signed` allows one below zero."""
    written = format(amount, "f")
    if signed and written.startswith("-"):
        return -parse(written[1:], currency, zero=zero)
    return parse(written, currency, zero=zero)


def read_decimal(value: Any) -> Decimal:
    """A number as a file gives it, exactly: whole, or text. Raises ValueError with what is allowed."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        # A number with a point is no longer exact when it arrives here.
        raise ValueError('a whole number, or a decimal number in quotes, for example "12.50"')
    return Decimal(value)


def write_decimal(value: Decimal) -> str:
    """The same text for the same number: `5` for 5.00."""
    written = format(value, "f")
    written = written.rstrip("0").rstrip(".") if "." in written else written
    return "0" if written == "-0" else written


def read_currency(value: Any) -> str:
    """A code of ISO 4217. Raises ValueError with what is allowed."""
    if not isinstance(value, str) or value not in DECIMALS:
        raise ValueError(f"a currency of ISO 4217, for example USD{_meant(value)}")
    return value


class Price(msgspec.Struct, frozen=True, gc=False):
    """What a variant costs, and the higher price that is shown crossed out beside it, both in minor units."""

    amount: int
    compare_at: int | None
    currency: str

    def as_json(self) -> dict[str, Any]:
        return {"unit_amount": self.amount, "compare_at_amount": self.compare_at, "currency": self.currency}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """The reverse of `as_json`. Raises BadMoney."""
        if set(document) != {"unit_amount", "compare_at_amount", "currency"}:
            raise BadMoney("a price has unit_amount, compare_at_amount and currency, and nothing else")
        amount, compare_at, currency = document["unit_amount"], document["compare_at_amount"], document["currency"]
        decimals_of(currency)
        for value in (amount,) if compare_at is None else (amount, compare_at):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
                raise BadMoney(f"{str(value)[:_SHOWN]} is not an amount in minor units")
        return cls(amount, compare_at, currency)

    def minus(self, other: Price) -> int:
        """How much more this one is, in minor units. Raises BadMoney where the currencies differ."""
        if self.currency != other.currency:
            raise BadMoney(f"an amount in {other.currency} cannot be taken from one in {self.currency}")
        return self.amount - other.amount


def _example(decimals: int) -> str:
    return f"19.{'99'.ljust(decimals, '0')[:decimals]}" if decimals else "1999"


def _meant(currency: Any) -> str:
    close = near(str(currency).upper(), DECIMALS)
    return f"; did you mean {close[0]}?" if close else ""

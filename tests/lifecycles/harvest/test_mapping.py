"""From Nivoda's record to a canonical row, or a reason why not."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lifecycles.harvest.feed import Unmappable
from penstock.lifecycles.harvest.nivoda import mapping
from penstock.lifecycles.harvest.tables import diamonds

cents = mapping("cents")


def item(**changes: Any) -> dict[str, Any]:
    """A record as it comes; `diamond__id=…` changes what is inside."""
    made: dict[str, Any] = {
        "id": "DIAMOND/offer-1",
        "price": 123_456,
        "discount": -32.5,
        "diamond": {
            "id": "stone-1",
            "availability": "AVAILABLE",
            "supplierStockId": "S-1",
            "image": None,
            "video": "https://video.example/1",
            "certificate": {
                "id": "c-1",
                "lab": "GIA",
                "certNumber": "2141438171",
                "shape": "ROUND",
                "carats": 1.01,
                "color": "D",
                "clarity": "VS1",
                "cut": "EX",
            },
        },
    }
    for path, value in changes.items():
        *folders, name = path.split("__")
        place = made
        for folder in folders:
            place = place[folder]
        place[name] = value
    return made


def mapped(**changes: Any) -> dict[str, Any]:
    return cents(json.dumps(item(**changes)))


def test_a_record_becomes_a_canonical_row():
    assert mapped() == {
        "offer_id": "DIAMOND/offer-1",
        "shape": "ROUND",
        "carat": Decimal("1.01"),
        "color": "D",
        "clarity": "VS1",
        "cut": "EX",
        "lab": "GIA",
        "certificate_number": "2141438171",
        "availability": "AVAILABLE",
        "currency": "USD",
        "supplier_price": Decimal("1234.56"),
    }
    assert set(mapped()) <= set(diamonds.columns.keys())


def test_the_unit_of_prices_is_a_setting():
    assert mapping("dollars")(json.dumps(item()))["supplier_price"] == Decimal(123_456)
    assert mapping("dollars", "EUR")(json.dumps(item(price=12.34)))["currency"] == "EUR"


def test_decimals_are_those_of_the_text():
    payload = json.dumps(item()).replace("1.01", "1.10000000000000000555")
    assert cents(payload)["carat"] == Decimal("1.10000000000000000555")
    assert mapped(price=0.1)["supplier_price"] == Decimal("0.001")


def test_what_the_provider_leaves_out_is_null():
    blank = mapped(
        diamond__availability=None,
        **{f"diamond__certificate__{name}": None for name in ("lab", "certNumber", "shape", "carats", "color", "cut")},
        diamond__certificate__clarity="",
    )
    assert {name for name, value in blank.items() if value is not None} == {"offer_id", "currency", "supplier_price"}


def test_a_certificate_number_may_come_as_a_number():
    assert mapped(diamond__certificate__certNumber=2141438171)["certificate_number"] == "2141438171"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"diamond": None}, "names no stone"),
        ({"diamond__id": None}, "names no stone"),
        ({"diamond__id": ""}, "names no stone"),
        ({"id": None}, "names no offer"),
        ({"diamond__certificate": None}, "no certificate"),
        ({"price": None}, "no price"),
        ({"price": 0}, "price of 0 cents"),
        ({"price": -5}, "price of -5 cents"),
        ({"price": 10**15}, "price of 1000000000000000 cents"),
        ({"price": "NaN"}, "price of NaN cents"),
        ({"price": "much"}, "price"),
        ({"diamond__certificate__carats": 1e9}, "carats is not possible"),
        ({"diamond__certificate__carats": 0}, "0 carats is not possible"),
        ({"diamond__certificate__carats": "Infinity"}, "Infinity carats is not possible"),
        ({"diamond__certificate__shape": 7}, "certificate.shape"),
        ({"diamond": "stone-1"}, "diamond"),
    ],
)
def test_what_cannot_be_mapped_says_why(changes, says):
    with pytest.raises(Unmappable, match=says):
        mapped(**changes)


@pytest.mark.parametrize("payload", ["", "null", "[]", "{", "\ud800", '{"price": 1e999999999}', "[" * 100_000])
def test_what_is_no_record_says_why(payload):
    with pytest.raises(Unmappable):
        cents(payload)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*item(), *item()["diamond"]]), inner, max_size=3)
    ),
    max_leaves=8,
)
places = st.sampled_from(
    ["id", "price", "diamond", "diamond__id", "diamond__certificate", "diamond__certificate__carats"]
)


@given(place=places, value=values)
def test_whatever_comes_is_mapped_or_set_aside(place, value):
    with contextlib.suppress(Unmappable):
        assert mapped(**{place: value})["supplier_price"] > 0

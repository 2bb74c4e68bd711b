"""The key of a query: what does not matter does not change it, and all else does."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from penstock.lifecycles.queries.key import normalise, query_key

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.dates() | TEXTS
)
NAMES = st.sampled_from(["q", "city", "Category", "min salary", "año", "straße", "page"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)
PARAMETERS = st.dictionaries(NAMES, VALUES, max_size=5)
few = settings(max_examples=60)


def same(one: Mapping[str, Any], other: Mapping[str, Any], **options: Any) -> bool:
    equal = query_key("c", one, **options) == query_key("c", other, **options)
    assert equal == (normalise(one, **options) == normalise(other, **options))
    return equal


# Properties.


def rewritten(value: Any, draw: Any) -> Any:
    """The same, written in another way."""
    if isinstance(value, dict):
        names = draw(st.permutations(list(value)))
        cases = {name: draw(st.sampled_from([name, name.upper(), name.title(), f" {name}\t"])) for name in names}
        extra = draw(st.sampled_from([{}, {"nothing": None}, {"blank": " \n"}, {"none": []}, {"empty": {}}]))
        return {**extra, **{cases[name]: rewritten(value[name], draw) for name in names}}
    if isinstance(value, list):
        items = [rewritten(item, draw) for item in draw(st.permutations(value))]
        return items + draw(st.sampled_from([[], items, [""], [None], [[]]]))
    if isinstance(value, str):
        pad = draw(st.sampled_from(["", " ", "\n\t", "\u00a0"]))
        return unicodedata.normalize(draw(st.sampled_from(["NFC", "NFD"])), pad + value.replace(" ", "  ") + pad)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return draw(st.sampled_from([value, float(value), str(value), Decimal(value), f" {value} ", [value]]))
    if type(value) is date:
        return draw(st.sampled_from([value, value.isoformat()]))
    return draw(st.sampled_from([value, [value], [[value], None]]))


@few
@given(PARAMETERS, st.data())
def test_another_way_to_write_a_search_has_the_same_key(parameters, data):
    assert same(parameters, rewritten(parameters, data.draw))


@few
@given(PARAMETERS)
def test_what_is_normalised_stays_as_it_is_and_is_json(parameters):
    once = normalise(parameters)
    assert normalise(once) == once
    assert json.loads(json.dumps(once)) == once
    assert list(once) == sorted(once)


@few
@given(PARAMETERS, NAMES, VALUES)
def test_a_parameter_more_or_another_value_has_another_key(parameters, name, value):
    changed = {**parameters, name: value}
    assume(normalise(changed) != normalise(parameters))
    assert not same(parameters, changed)
    assert not same(parameters, {**parameters, "further": "1"})


@few
@given(PARAMETERS, PARAMETERS)
def test_what_equals_the_default_does_not_matter(parameters, defaults):
    rest = {name: value for name, value in parameters.items() if name not in defaults}
    assert same({**rest, **defaults}, rest, defaults=defaults)


@few
@given(st.lists(st.integers(), min_size=2, max_size=6, unique=True), st.randoms())
def test_the_order_of_a_list_matters_only_where_it_is_said(items, rng):
    mixed = items[:]
    rng.shuffle(mixed)
    assert same({"sort": items}, {"sort": mixed})
    assert same({"Sort": items}, {"sort": mixed}, ordered=["SORT"]) == (items == mixed)


@few
@given(st.text(min_size=1, max_size=12))
def test_a_key_is_safe_whatever_the_client_is_called(client):
    try:
        client.encode()
    except UnicodeEncodeError:
        with pytest.raises(ValueError, match="surrogate"):
            query_key(client, {})
        return
    encoded, _, digest = query_key(client, {}).rpartition("-")
    assert set(encoded) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-%")
    assert len(digest) == 12


# Examples.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": 10}, {"n": 10.0}),
        ({"n": 10}, {"n": "10"}),
        ({"n": -0.0}, {"n": 0}),
        ({"n": 1e16}, {"n": 10**16}),
        ({"n": 0.1}, {"n": "0.1"}),
        ({"n": 1e-7}, {"n": "0.0000001"}),
        ({"n": Decimal("1.50")}, {"n": 1.5}),
        ({"n": Decimal("1e400")}, {"n": 10**400}),
        ({"q": "  big   data "}, {"q": "big data"}),
        ({"q": "caf\u00e9"}, {"q": "cafe\u0301"}),
        ({"q": ["a"]}, {"q": "a"}),
        ({"q": ["b", "a", "b"]}, {"q": ("a", "b")}),
        ({"f": {"B": 1, "a": [2, 1]}}, {"F": {"A": ["1", 2.0], "b": "1", "c": {"d": None}}}),
        ({"d": date(2026, 1, 2)}, {"d": "2026-01-02"}),
        ({"d": datetime(2026, 1, 2, 3, tzinfo=UTC)}, {"d": "2026-01-02T03:00:00Z"}),
        (
            {"d": datetime(2026, 1, 2, 3, tzinfo=UTC)},
            {"d": datetime(2026, 1, 2, 4, tzinfo=timezone(timedelta(hours=1)))},
        ),
        ({"d": time(3, 4)}, {"d": "03:04:00"}),
    ],
)
def test_the_same(one, other):
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": "010"}, {"n": 10}),
        ({"n": "3.10"}, {"n": "3.1"}),
        ({"n": True}, {"n": 1}),
        ({"n": True}, {"n": "true"}),
        ({"n": False}, {"n": 0}),
        ({"n": False}, {}),
        ({"n": 0}, {}),
        ({"q": "Python"}, {"q": "python"}),
        ({"q": "data big"}, {"q": "big data"}),
        ({"q": "bigdata"}, {"q": "big data"}),
        ({"q": "a,b"}, {"q": ["a", "b"]}),
        ({"q": "cafe"}, {"q": "café"}),
        ({"q": "a"}, {"r": "a"}),
        ({"q": {"a": 1}}, {"q": {"b": 1}}),
        ({"q": [["a", "b"], "c"]}, {"q": ["a", "b", "c"]}),
        ({"q": "\uff41"}, {"q": "a"}),
        ({"d": datetime(2026, 1, 2, 3)}, {"d": datetime(2026, 1, 2, 3, tzinfo=UTC)}),  # noqa: DTZ001
        ({"d": date(2026, 1, 2)}, {"d": datetime(2026, 1, 2)}),  # noqa: DTZ001
    ],
)
def test_not_the_same(one, other):
    assert not same(one, other)


def test_a_table_equals_the_default_as_a_whole_or_not_at_all():
    defaults = {"filter": {"a": 1, "b": 2}, "Page": 50}
    assert normalise({"FILTER": {"b": "2", "a": "1"}, "page": "50"}, defaults=defaults) == {}
    assert normalise({"filter": {"a": 1}}, defaults=defaults) == {"filter": {"a": "1"}}
    assert not same({"on": True}, {}, defaults={"on": 1})


def test_everything_below_an_ordered_name_keeps_its_order():
    one, other = {"f": {"sort": [[2, 1], [1, 2]]}}, {"f": {"sort": [[1, 2], [1, 2]]}}
    assert normalise(one, ordered=["sort"]) == {"f": {"sort": [["2", "1"], ["1", "2"]]}}
    assert not same(one, other, ordered=["sort"])
    assert same(one, other)
    assert normalise({"sort": ["a"]}, ordered=["sort"]) == {"sort": "a"}


def test_the_client_is_part_of_the_key():
    assert query_key("a", {}) != query_key("b", {})
    assert query_key("Mi API/~ñ", {}).startswith("Mi%20API%2F%7E%C3%B1-")


@pytest.mark.parametrize(
    ("client", "parameters", "ordered", "key"),
    [
        ("infojobs", {}, (), "infojobs-44136fa355b3"),
        ("infojobs", {"q": "python", "province": "madrid"}, (), "infojobs-4c939926cda7"),
        (
            "infojobs",
            {"q": "Python", "province": ["barcelona", "madrid"], "maxPay": 30000},
            (),
            "infojobs-1ef5b7a32d3b",
        ),
        ("feed", {"sort": ["b", "a"], "remote": True, "since": date(2026, 1, 31)}, ["sort"], "feed-945528e1d818"),
        ("jobs api", {"filter": {"city": "L'Hospitalet", "radius": 2.5}, "q": "C++ ñ"}, (), "jobs%20api-5f4beb62e4bd"),
    ],
)
def test_keys_stay_what_they_are(client, parameters, ordered, key):
    """A key that changes is a query that loses its history: these are not to be adapted."""
    assert query_key(client, parameters, ordered=ordered) == key


# Bad input.


def nested(depth: int) -> Any:
    return [nested(depth - 1), "x"] if depth else "x"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"q": float("nan")}, "'q' is nan"),
        ({"q": [float("inf")]}, "'q' is inf"),
        ({"q": Decimal("sNaN")}, "'q' is sNaN"),
        ({"q": "\ud800"}, "'q' has half of a surrogate pair"),
        ({"\udfff": 1}, r"the name '\\udfff' has half of a surrogate pair"),
        ({"f": {"Q": 1, "q": 2}}, "'Q' and 'q' are the same parameter"),
        ({"straße": None, "STRASSE": 1}, "'straße' and 'STRASSE' are the same parameter"),
        ({"q": nested(11)}, "'q' is nested more than 10 deep"),
        ({"q": "x" * 10_001}, "the parameters are 10,009 characters long; at most 10,000 are allowed"),
        ({"q": [str(n) for n in range(3_000)]}, "at most 10,000"),
        ({"q": 10**5_000}, "'q' is a number with too many digits"),
        ({"q": Decimal("1e1000000")}, "'q' is a number with too many digits"),
        ({"f": {"q": b"x"}}, r"'f\.q' is of type bytes"),
        ({"q": {1, 2}}, "'q' is of type set"),
        ({1: 2}, "'parameters' has the name '1', which is not a text"),
        ({"d": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}, "'d' is a date beyond the calendar"),
    ],
)
def test_what_cannot_be_normalised_is_said_in_one_sentence(parameters, message):
    with pytest.raises(ValueError, match=message) as raised:
        normalise(parameters)
    assert "\n" not in str(raised.value)


def test_ten_deep_and_ten_thousand_long_is_allowed():
    assert normalise({"q": nested(10)})
    assert len(normalise({"q": "x" * 9_992})["q"]) == 9_992


@pytest.mark.parametrize("client", ["", "x" * 201])
def test_a_client_needs_a_name_of_a_length(client):
    with pytest.raises(ValueError, match="name"):
        query_key(client, {})

"""The array of batches: what is read, what is refused by name, and that no text makes the reader slow or large."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors.google_ads.stream import DEPTH, BadAnswer, BrokenStream, Row, Splitter
from penstock.connectors.records import Limits
from penstock.model.errors import Rejected, Transient

MIB = 1 << 20


def read(raw: bytes, *, at_once: int = 65_536, limits: Limits | None = None) -> list[Row]:
    splitter = Splitter(limits) if limits else Splitter()
    found = [row for start in range(0, len(raw), at_once) for row in splitter.feed(raw[start : start + at_once])]
    found += splitter.close()
    assert splitter.rows == len(found)
    return found


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | TEXTS
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=10)
ROWS = st.lists(st.dictionaries(TEXTS, VALUES), max_size=5)
BATCHES = st.lists(
    st.dictionaries(TEXTS.filter(lambda name: name != "results"), VALUES, max_size=3).flatmap(
        lambda about: ROWS.map(lambda rows: {**about, "results": rows, "requestId": "x"}) | st.just(about)
    ),
    max_size=4,
)


@settings(max_examples=40)
@given(BATCHES, st.integers(1, 50), st.booleans(), st.sampled_from([None, 1]))
def test_whatever_json_writes_is_read_back(batches, at_once, escaped, indent):
    raw = json.dumps(batches, ensure_ascii=escaped, indent=indent).encode()
    assert read(raw, at_once=at_once) == [row for batch in batches for row in batch.get("results", [])]


@settings(max_examples=40)
@given(BATCHES, st.data())
def test_no_beginning_of_an_answer_passes_for_the_whole(batches, data):
    raw = json.dumps(batches).encode()
    with pytest.raises(BrokenStream):
        read(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(st.binary(max_size=200), st.sampled_from([b"", b"[", b'[{"results":[', b'[{"results":[{"a":1},', b'[{"a":']))
def test_no_bytes_do_anything_but_be_read_or_be_refused(noise, before):
    with contextlib.suppress(BadAnswer, BrokenStream):
        read(before + noise, at_once=16)


def test_pieces_are_cut_anywhere():
    rows: list[dict[str, Any]] = [{"a": 'x"}{][,\\', "b": {"c": [[], {}, [1, {"d": "]"}]]}}, {"é": "\u20ac"}] * 2_000
    batches = [{"results": rows, "fieldMask": "a"}, {"requestId": '"}]', "results": rows}]
    raw = json.dumps(batches, indent=1, ensure_ascii=False).encode()
    for at_once in (4_099, 262_144, len(raw)):
        assert read(raw, at_once=at_once) == rows * 2


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"  ",
        b"{}",
        b"nonsense",
        b"<html>",
        b"[",
        b"[,]",
        b"[{}",
        b"[{},]",
        b"[{}{}]",
        b"[1]",
        b"[[]]",
        b'[{"a"}]',
        b'[{"a":}]',
        b'[{"a":1,}]',
        b'[{"a":1 "b":2}]',
        b'[{"results":{}}]',
        b'[{"results":null}]',
        b'[{"results":[1]}]',
        b'[{"results":[{},]}]',
        b'[{"results":[{}{}]}]',
        b'[{"results":[{}],,}]',
        b'[{"results":[{}]}]]',
        b"[]x",
        b"[][]",
    ],
)
def test_what_is_no_array_of_batches_is_a_broken_stream(text):
    with pytest.raises(BrokenStream) as caught:
        read(text)
    assert isinstance(caught.value, Transient)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (b"{a:1}", "near row 2"),
        (b'{"a":NaN}', "malformed"),
        (b'{"a":1]', "near row 2"),
        (b'{"a":' + b"1" * 4_301 + b"}", "out of range"),
        (b'{"a":{"b":[18446744073709551616]}}', "beyond 64 bits"),
        (b'{"a":9223372036854775808}', "beyond 64 bits"),
        (b'{"a":1e400}', "out of range"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"a":"\\ud800"}', "broken escape"),
        (b'{"a":"\x00"}', "near row 2"),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_by_its_number(row, said):
    with pytest.raises(BadAnswer, match=said) as caught:
        read(b'[{"results":[{"a":1}]},{"results":[' + row + b"]}]")
    assert isinstance(caught.value, Rejected)


def test_rows_nest_to_a_depth_and_no_deeper():
    def nested(depth: int) -> bytes:
        return b'[{"results":[' + b'{"a":' * depth + b"1" + b"}" * depth + b"]}]"

    assert len(read(nested(DEPTH))) == 1
    with pytest.raises(BadAnswer, match=f"row 1 is deeper than {DEPTH} levels"):
        read(nested(DEPTH + 1))
    with pytest.raises(BadAnswer, match=f"deeper than {DEPTH} levels"):
        read(b'[{"results":[' + b'{"a":' * MIB)


@pytest.mark.parametrize(
    "endless",
    [b'{"a":"' + b"x" * 8 * MIB, b"{" + b'"a":1,' * MIB, b'{"a":' + b"[" * 8 * MIB, b'{"a":[' + b"[1]," * 2 * MIB],
)
@pytest.mark.parametrize("before", [b'[{"results":[', b'[{"fieldMask":'])
def test_an_endless_row_is_refused_soon_and_held_nowhere(before, endless):
    raw = before + endless
    taken = 0

    def feed() -> None:
        nonlocal taken
        splitter = Splitter()
        for taken in range(0, len(raw), 65_536):
            splitter.feed(raw[taken : taken + 65_536])

    with pytest.raises(BadAnswer, match="longer than 1,048,576 bytes"):
        feed()
    assert taken < 2 * MIB


def test_tiny_pieces_do_not_make_a_large_row_slow():
    row = b'{"a":"' + b"x" * (MIB - 100) + b'"}'
    started = time.monotonic()
    assert len(read(b'[{"results":[' + row + b"]}]", at_once=4)) == 1
    assert time.monotonic() - started < 60  # looked at anew for every piece it would be hours


def test_memory_does_not_grow_with_the_answer():
    row = json.dumps({"campaign": {"id": "7", "name": "x" * 200}, "metrics": {"clicks": "1"}}).encode()
    piece = (row + b",") * 250
    splitter = Splitter()
    splitter.feed(b'[{"results":[')
    tracemalloc.start()
    try:
        count = sum(len(splitter.feed(piece)) for _ in range(150))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    count += len(splitter.feed(row + b"]}]")) + len(splitter.close())
    assert count == 37_501
    assert 150 * len(piece) > 9 * MIB
    assert peak < 8 * MIB

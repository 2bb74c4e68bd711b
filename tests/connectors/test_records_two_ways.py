"""The quick way through a report's file and the slow one: the same records as they came, and the same refusals.

A line break behind the opening bracket sends a file the slow way, and is space like any other.
"""

from __future__ import annotations

import gzip
import json
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.connectors.quick import quick_lines
from penstock.connectors.records import BadReport, Limits, Reader

NEAR = re.compile(r"^near record [\d,]+| \(byte \d+\)$")
LIMIT = Limits().max_record
TEXTS = st.text(st.sampled_from('a"\\{}[],:eE019é\n\t\u2028😀'), max_size=12)
# Smaller ones have more digits than any real number.
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(1e-30, 9) | st.floats(-9, -1e-30)
RECORDS = st.lists(
    st.dictionaries(TEXTS, st.none() | st.booleans() | TEXTS | NUMBERS, max_size=4), min_size=1, max_size=6
)


def compact(rows: list[dict[str, object]], *, escaped: bool = False) -> str:
    return json.dumps(rows, separators=(",", ":"), ensure_ascii=escaped)


def read(text: bytes, at_once: int = 65_536) -> bytes | str:
    """The lines of a file that arrives in pieces, or why it is refused."""
    reader, raw = Reader(Limits()), gzip.compress(text, 1)
    try:
        found = [lines for start in range(0, len(raw), at_once) for lines in reader.feed(raw[start : start + at_once])]
        return b"".join([*found, reader.close()])
    except BadReport as error:
        return error.reason


def both_ways(text: bytes) -> bytes | str:
    found, slow = read(text), read(text.replace(b"[", b"[\n", 1))
    if isinstance(found, str) and isinstance(slow, str):
        # Where a run begins, and so which record is near and how far it is to the byte, is another matter.
        assert NEAR.sub("", found) == NEAR.sub("", slow)
    else:
        assert found == slow
    return found


@given(RECORDS, st.integers(1, 60), st.booleans())
def test_records_land_as_they_came(rows, at_once, escaped):
    text = compact(rows, escaped=escaped).encode()
    wanted = b"".join(compact([row], escaped=escaped)[1:-1].encode() + b"\n" for row in rows)
    assert both_ways(text) == read(text, at_once) == wanted


@given(RECORDS, st.data())
def test_what_is_broken_is_refused_alike(rows, data):
    text = compact(rows)
    at = data.draw(st.integers(1, len(text) - 1))
    cut = data.draw(st.integers(0, 3))
    noise = data.draw(st.text(st.sampled_from('"\\{}[],:eE0.-x\n\x01\ud800'), max_size=3))
    both_ways((text[:at] + noise + text[at + cut :]).encode(errors="surrogatepass"))


@given(st.binary(max_size=60))
@example(b'{"a":"\xff"}')
@example(b'{"a":"\\ud800"}')
@example(b'{"a":1}{"b":2}')
@example(b'{"a":{"b":1}}')
@example(b'{"a":"},{"}')
@example(b'{"a":1e999}')
@example(b'{"a":12345678901234567890}')
def test_the_quick_way_takes_nothing_that_the_slow_one_refuses(noise):
    run = b'{"a":1},' + noise + b',{"b":2}'
    lines = quick_lines(run, LIMIT)
    assert lines is None or read(b"[\n" + run + b"]") == lines


def test_the_quick_way_is_taken():
    plain = b'{"a":"x","b":1.5,"c":-7,"d":null,"e":true,"f":"\\u00c1 \\"q\\" 9 E x"},{"a":"\xc3\xa9 {[}]"}'
    assert quick_lines(plain, LIMIT) == plain.replace(b"},{", b"}\n{") + b"\n"


def many(count: int) -> list[str]:
    return [f'{{"a":{n},"b":"text {n}"}}' for n in range(1, count + 1)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ('{"a":{}}', "record 20,001 is not a flat JSON object, or not followed by a comma"),
        ('{"a":1', "record 20,001 is not a flat JSON object"),
        ('{"a":NaN}', r"near record (9|1\d|20),\d{3}: JSON is malformed: invalid character"),
        ('{"a":"\\u0000"}', r"near record (9|1\d|20),\d{3}: a text holds a NUL"),
        ('{"a":1e99}', r"near record (9|1\d|20),\d{3}: a number of more than 40 digits"),
        ('{"a":9223372036854775808}', r"near record (9|1\d|20),\d{3}: a whole number beyond 64 bits"),
        (f'{{"a":"{"x" * LIMIT}"}}', "record 20,001 is longer than 65,536 bytes"),
    ],
)
def test_a_bad_record_among_many_is_told_by_its_number(bad, reason):
    rows = many(40_000)
    rows.insert(20_000, bad)
    found = read(f"[{','.join(rows)}]".encode())
    assert isinstance(found, str)
    assert re.match(reason, found), found


@pytest.mark.parametrize("at_once", [1_000, 4_096, 10_000_000])
def test_records_that_are_cut_by_the_borders_of_pieces_are_whole(at_once):
    rows = many(30_000)
    assert read(f"[{','.join(rows)}]".encode(), at_once) == "".join(f"{row}\n" for row in rows).encode()


def test_a_file_that_breaks_off_is_refused_after_what_was_read():
    text = f"[{','.join(many(30_000))}".encode()
    assert both_ways(text) == "the JSON ends in the middle, after 29,999 records"
    reader = Reader(Limits())
    raw = gzip.compress(text + b"]")
    _ = list(reader.feed(raw[:-1_000]))
    with pytest.raises(BadReport, match="the gzip file ends in the middle"):
        reader.close()

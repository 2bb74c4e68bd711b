"""A report's file: what is read, what is refused by name, and how much memory it takes."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import json
import re
import subprocess
import sys
import zlib
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.connectors.amazon_ads.client import daily
from penstock.connectors.http.download import TooLarge
from penstock.connectors.records import BadReport, Limits, Reader, Record
from penstock.model.errors import Rejected
from tests.support.amazon import DAY, Profile, decoded, on
from tests.support.big_report import bomb

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def read_all(pieces: Iterable[bytes], limits: Limits | None = None) -> list[Record]:
    reader = Reader(limits or Limits())
    found = [record for piece in pieces for lines in reader.feed(piece) for record in decoded(lines)]
    return found + decoded(reader.close())


def read(raw: bytes, *, at_once: int = 65_536, limits: Limits | None = None) -> list[Record]:
    """The records of a file that arrives in pieces."""
    return read_all((raw[start : start + at_once] for start in range(0, len(raw), at_once)), limits)


@pytest.mark.parametrize("text", ["[]", " [ ]\n", "[\r\n]"])
def test_a_report_without_records_is_valid(text):
    assert read(gzip.compress(text.encode())) == []


@pytest.mark.parametrize("at_once", [1, 7, 65_536])
def test_records_are_read_whatever_the_pieces(at_once):
    text = ' [{"a":"x\\"}{][,\\\\","b":12} ,\n{"c":null,"d":true},{"e":-0.10,"f":1.5e3,"ñ":"\\u00e9 [x]"}]\n '
    assert read(gzip.compress(text.encode()), at_once=at_once) == [
        {"a": 'x"}{][,\\', "b": 12},
        {"c": None, "d": True},
        {"e": Decimal("-0.10"), "f": Decimal("1.5e3"), "ñ": "é [x]"},
    ]


TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS


@given(st.lists(st.dictionaries(TEXTS, SCALARS)), st.integers(1, 50), st.booleans())
def test_whatever_json_writes_is_read_back(rows, at_once, escaped):
    raw = gzip.compress(json.dumps(rows, ensure_ascii=escaped).encode(), 1)
    assert read(raw, at_once=at_once) == rows


@given(st.binary(max_size=200), st.booleans())
def test_no_bytes_do_anything_but_be_read_or_be_refused(noise, packed):
    with contextlib.suppress(BadReport):
        read(gzip.compress(b'[{"a":' + noise) if packed else noise, at_once=16)


WHOLE = gzip.compress(b'[{"a":1},{"a":2}]', mtime=0)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "the file is empty"),
        (b"[]", "not a whole gzip file"),
        (WHOLE[:-9], "ends in the middle"),
        (WHOLE[:-1], "ends in the middle, after 32 bytes"),
        (WHOLE[:-8] + b"\0" * 8, "incorrect data check"),
        (WHOLE + b"more", "something follows the end of the gzip file"),
    ],
    ids=itertools.count(),
)
def test_a_file_that_is_not_gzip_or_is_cut_off_is_refused(raw, reason):
    with pytest.raises(BadReport, match=re.escape(reason)):
        read(raw)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "the JSON ends in the middle"),
        (b"[", "the JSON ends in the middle"),
        (b'[{"a":1}', "the JSON ends in the middle"),
        (b'[{"a":1},{"a":', "ends in the middle, after 1 records"),
        (b'{"a":1}', "not a JSON array of records"),
        (b"<Error/>", "not a JSON array of records"),
        (b'\xef\xbb\xbf[{"a":1}]', "not a JSON array of records"),
        (b"[1]", "record 1 is not a flat JSON object"),
        (b"[null]", "record 1 is not a flat JSON object"),
        (b'[{"a":1},[]]', "record 2 is not a flat JSON object"),
        (b'[{"a":{"b":1}}]', "record 1 is not a flat JSON object"),
        (b'[{"a":1}{"a":2}]', "not followed by a comma"),
        (b'[{"a":1},]', "record 2 is not"),
        (b"[,]", "record 1 is not"),
        (b"[}]", "record 1 is not"),
        (b'[{"a":1}]]', "something follows the end of the array"),
        (b"[] []", "something follows the end of the array"),
        (b'[{"a":NaN}]', "near record 1: JSON is malformed: invalid character"),
        (b'[{"a":-Infinity}]', "JSON is malformed"),
        (b'[{"a":1,}]', "trailing comma"),
        (b"[{'a':1}]", "JSON is malformed"),
        (b'[{"a":01}]', "invalid number"),
        (b'[{"a":tru}]', "JSON is malformed"),
        (b'[{"a":"\n"}]', "JSON is malformed"),
        (b'[{"a":"\xff"}]', "a text is not UTF-8"),
        (b'[{"a":"\\ud800"}]', "a broken escape"),
        (b'[{"a":"\\udc00x"}]', "surrogate"),
        (b'[{"a":"\\u0000"}]', "a NUL character"),
        (b'[{"a":' + b"9" * 4_300 + b"}]", "a whole number beyond 64 bits"),
        (b'[{"a":' + b"9" * 5_000 + b"}]", "Integer value out of range"),
        (b'[{"a":-9223372036854775809}]', "a whole number beyond 64 bits"),
        (b'[{"a":0.' + b"3" * 4_300 + b"}]", "a number of more than 40 digits"),
        (b'[{"a":1e999999999}]', "a number of more than 40 digits"),
        (b'[{"a":1e-99999999999999999999}]', "a number of more than 40 digits"),
        (b"[" * 1_000_000, "record 1 is not a flat JSON object"),
        (b'[{"a":' * 200_000, "record 1 is not a flat JSON object"),
        (b'[{"' + b"a" * (3 * MIB) + b'":1}]', "record 1 is longer than 65,536 bytes"),
        (b"[{" + b'""' * (2 * MIB), "record 1 is longer than 65,536 bytes"),
        (b"[" + b" " * (3 * MIB) + b"]", "record 1 is longer than 65,536 bytes"),
    ],
    ids=itertools.count(),
)
def test_json_that_is_not_an_array_of_flat_records_is_refused(text, reason):
    with pytest.raises(BadReport, match=re.escape(reason)) as caught:
        read(gzip.compress(text))
    assert isinstance(caught.value, Rejected)
    assert len(str(caught.value)) < 300


def test_the_number_of_the_record_is_told():
    text = json.dumps([{"a": n} for n in range(50_000)]).encode()[:-1] + b',{"a":[]}]'
    with pytest.raises(BadReport, match=r"record 50,001 is not a flat JSON object"):
        read(gzip.compress(text))


def test_several_gzip_files_in_a_row_are_one_text():
    raw = gzip.compress(b'[{"a":1},') + gzip.compress(b"") + gzip.compress(b'{"a":2}]')
    assert read(raw, at_once=5) == read(raw) == [{"a": 1}, {"a": 2}]
    with pytest.raises(BadReport, match="something follows"):
        read(b"".join([gzip.compress(b"[]"), *[gzip.compress(b"")] * 10_001]))


def test_large_numbers_as_texts_are_texts():
    assert read(gzip.compress(b'[{"a":"99999999999999999999999","b":9223372036854775807}]')) == [
        {"a": "99999999999999999999999", "b": 2**63 - 1}
    ]


def test_a_file_out_of_proportion_is_refused_after_a_few_megabytes():
    with pytest.raises(BadReport, match="growth of more than 200 times") as caught:
        read_all(bomb(10 << 30))
    assert re.search(r"became (1[67]|18),", caught.value.reason), "it stops soon after the ratio counts"


def test_a_file_that_is_too_large_is_refused_where_it_becomes_so():
    rows = json.dumps([{"a": n} for n in range(20_000)]).encode()
    with pytest.raises(BadReport, match=r"larger than 100,000 bytes decompressed"):
        read(gzip.compress(rows), at_once=512, limits=Limits(max_bytes=100_000))


def test_a_bomb_is_refused_while_it_is_downloaded(tmp_path):
    async def test(p: Profile) -> None:
        url = await p.ready(await p.ads.create(daily("target", DAY)))
        p.simulator.bodies.append(lambda: bomb(10 << 30))
        with pytest.raises(BadReport, match="is taken for an attack"):
            await p.read(url)
        assert len(await p.read(url)) == 20

    on(tmp_path, test)


def test_a_download_that_is_too_large_is_refused(tmp_path):
    async def test(p: Profile) -> None:
        url = await p.ready(await p.ads.create(daily("target", DAY)))
        p.simulator.bodies.append(lambda: (b"\0" * 1_000 for _ in range(1_000)))
        with pytest.raises(TooLarge, match="more than 100,000 bytes"):
            _ = [piece async for piece in p.ads.download(url)]

    on(tmp_path, test, max_bytes=100_000)


def measured(megabytes: int) -> dict[str, int]:
    """What a child process says of itself, which reads a report of that size from another process."""
    script = [sys.executable, "-m", "tests.support.big_report", str(megabytes)]
    done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False, timeout=3_000)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_report_of_50_mb_is_read_in_constant_memory():
    found = measured(50)
    assert found["bytes"] >= 50 * MIB
    assert found["peak"] < 150 * MIB
    assert found["peak"] - found["before"] < 40 * MIB, "less than the report has"


@pytest.mark.nightly
def test_a_report_of_1_gb_is_read_under_150_mb():
    found = measured(1_024)
    assert found["bytes"] >= 1 << 30
    assert found["peak"] < 150 * MIB


def test_the_bomb_is_one():
    whole = zlib.decompressobj(31)
    assert sum(len(whole.decompress(piece)) for piece in bomb(64 * MIB)) >= 64 * MIB


@pytest.mark.parametrize("size", [1, 7])
def test_small_pieces_cost_no_more_than_large_ones(size):
    """Each record is as long as a record may be, and comes byte by byte: a look at each byte would take minutes."""
    record = json.dumps({"text": "x" * 60_000})
    raw = gzip.compress(f"[{','.join([record] * 20)}]".encode(), 0)
    started = process_time()
    assert len(read(raw, at_once=size)) == 20
    assert process_time() - started < 20

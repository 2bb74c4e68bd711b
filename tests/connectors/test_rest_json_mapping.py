"""Records as items: paths, dates, values, links, and whatever else an API may send."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import hypothesis
import pytest
from hypothesis import strategies as st

from penstock.connectors.http.client import Response
from penstock.connectors.rest_json.answers import document
from penstock.connectors.rest_json.columns import reader
from penstock.connectors.rest_json.dates import instant_reader, since_writer
from penstock.connectors.rest_json.links import followed, next_in_header
from penstock.connectors.rest_json.mapping import MOST_BYTES, Mapper
from penstock.connectors.rest_json.paths import getter
from penstock.connectors.rest_json.settings import DateFormat
from penstock.connectors.rest_json.slices import slicer
from penstock.connectors.searches import Bad, Item
from penstock.model.clock import EPOCH, MILLISECOND
from penstock.model.errors import Rejected, Transient
from tests.support.paged import rest

MADRID = ZoneInfo("Europe/Madrid")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="."), min_size=1, max_size=4).filter(
    lambda name: name.strip() == name
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)


def ways(whole: Any, at: tuple[str, ...] = ()) -> list[tuple[str, Any]]:
    """Every path of a document, with what is there."""
    found = [(".".join(at), whole)] if at else []
    if isinstance(whole, dict):
        found += [way for name, inner in whole.items() for way in ways(inner, (*at, name))]
    if isinstance(whole, list):
        found += [way for place, inner in enumerate(whole) for way in ways(inner, (*at, str(place)))]
    return found


@hypothesis.settings(max_examples=100)
@hypothesis.given(ANYTHING, ANYTHING)
def test_a_path_leads_to_what_is_there_and_nowhere_else(whole, other):
    for path, expected in ways(whole):
        assert getter(path)(whole) == expected
        getter(path)(other)
        assert getter(f"{path}.not there")(whole) is None
    assert getter(None)(whole) == whole
    assert getter("a.-1")({"a": [1, 2]}) == 2
    assert getter("a.2")({"a": [1, 2]}) is None


def instant(value: Any, form: DateFormat = "iso") -> datetime:
    return instant_reader(form, MADRID)(value)


def test_dates():
    summer = datetime(2026, 7, 1, 10, tzinfo=UTC)
    assert instant("2026-07-01T10:00:00Z") == instant("2026-07-01T12:00:00+02:00") == summer
    assert instant("2026-07-01T12:00:00") == instant("2026-07-01 12:00") == summer
    assert instant("2026-07-01") == instant("2026-07-01", "date") == datetime(2026, 6, 30, 22, tzinfo=UTC)
    assert instant("2026-07-01T10:00:00.123999Z") == summer + timedelta(milliseconds=123)
    assert instant(1_782_900_000, "unix") == instant("1782900000", "unix") == summer
    assert (
        instant(1_782_900_000_123, "unix_ms")
        == instant(1_782_900_000.1234, "unix")
        == instant("2026-07-01T10:00:00.123Z")
    )
    for moment in (instant("2026-07-01T10:00:00.5+05:30"), instant(0, "unix"), instant("2026-01-01", "date")):
        assert moment.tzinfo is UTC


@pytest.mark.parametrize("form", ["iso", "date", "unix", "unix_ms"])
@pytest.mark.parametrize(
    "value",
    [None, "", "yesterday", True, [], {}, float("inf"), 10**400, "9" * 400, "0001-01-01T00:00:00+14:00", "1e5", 10**18],
)
def test_what_is_no_date(form, value):
    with pytest.raises((ValueError, OverflowError)):
        instant(value, form)


@hypothesis.settings(max_examples=100)
@hypothesis.given(
    st.integers(365 * 86_400_000, 900 * 365 * 86_400_000).map(lambda number: EPOCH + number * MILLISECOND),
    st.sampled_from(["iso", "date", "unix", "unix_ms"]),
)
def test_a_date_that_is_sent_is_a_little_early_and_never_late(moment, form):
    sent = since_writer(form, MADRID)(moment)
    read = instant_reader(form, MADRID)(sent)
    assert read < moment
    assert moment - read <= (timedelta(days=2, hours=2) if form == "date" else timedelta(seconds=2))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("text", "a", "a"),
        ("text", "", ""),
        ("text", 5, "5"),
        ("text", True, "true"),
        ("text", None, None),
        ("text", [], ValueError),
        ("integer", 5, 5),
        ("integer", 5.0, 5),
        ("integer", "-5", -5),
        ("integer", "", None),
        ("integer", 5.5, ValueError),
        ("integer", 2**63, ValueError),
        ("integer", "9" * 19, ValueError),
        ("integer", True, ValueError),
        ("number", 5, 5.0),
        ("number", "5.25", 5.25),
        ("number", "1e400", ValueError),
        ("number", 10**400, OverflowError),
        ("number", "five", ValueError),
        ("number", True, ValueError),
        ("boolean", True, True),
        ("boolean", "False", False),
        ("boolean", 1, ValueError),
        ("date", "2026-01-02", date(2026, 1, 2)),
        ("date", "2026-13-02", ValueError),
        ("date", 5, ValueError),
        ("instant", "2026-01-02T00:00:00Z", datetime(2026, 1, 2, tzinfo=UTC)),
        ("instant", "0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("instant", "", None),
        ("json", {"b": 1, "a": [None]}, '{"a":[null],"b":1}'),
        ("json", None, None),
    ],
)
def test_values_of_columns(kind, value, expected):
    read = reader(kind, "iso", UTC)
    if isinstance(expected, type):
        with pytest.raises(expected):
            read(value)
    else:
        assert (read(value), type(read(value))) == (expected, type(expected))


FIELDS = {
    kind: {"path": f"{kind}.0", "type": kind}
    for kind in ("text", "integer", "number", "boolean", "instant", "date", "json")
}
MAPPER = Mapper(rest({"url": "https://a.example", "date": "d", "table": "t", "fields": FIELDS}))


def shaped(body: bytes) -> list[Item | Bad]:
    return list(MAPPER.items(document("GET /", Response(200, {}, body))))


HOSTILE = st.recursive(
    st.sampled_from(
        [None, True, 0, -1, 2**63, 10**30, 1.5, 1e308, "", "a", "\0", "\ud800", "2026-01-01T00:00:00Z", "x" * 400]
    )
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.lists(st.dictionaries(st.sampled_from(["id", "d", *FIELDS]), HOSTILE) | HOSTILE, max_size=5))
def test_no_record_breaks_anything(records):
    found = shaped(json.dumps(records).encode())
    assert len(found) == len(records)
    for item in found:
        json.loads(item.payload)
        texts = [item.payload, item.id or ""]
        if isinstance(item, Bad):
            assert item.reason
        else:
            texts += [value for value in item.values if isinstance(value, str)]
            assert len(item.values) == len(FIELDS)
            assert item.at.tzinfo is UTC
        for text in texts:
            text.encode()
            assert "\0" not in text
            assert r"\u0000" not in text


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"d": "2026-01-01"}', "there is no id at 'id'"),
        ('{"id": "", "d": "2026-01-01"}', "there is no id at 'id'"),
        ('{"id": true, "d": "2026-01-01"}', "the id at 'id' is neither text nor a whole number"),
        (r'{"id": "a\u0000b", "d": "2026-01-01"}', "the id at 'id' has characters that cannot be kept"),
        (r'{"id": "a\ud800b", "d": "2026-01-01"}', "the id at 'id' has characters that cannot be kept"),
        ('{"id": 1}', "there is no date at 'd'"),
        ('{"id": 1, "d": NaN}', "there is no date at 'd'"),
        ('{"id": 1, "d": 5}', "the date at 'd' cannot be read as 'iso'"),
        ('{"id": 1, "d": "0001-01-01T00:00:00Z"}', "the date at 'd' cannot be read as 'iso'"),
        ('{"id": 1, "d": "9999-12-31T23:59:59Z"}', "the date at 'd' cannot be read as 'iso'"),
        (
            '{"id": 1, "d": "2026-01-01", "integer": ["x"], "date": [1]}',
            "'integer.0' is not a whole number of 64 bits; 'date.0' is not a date",
        ),
        ("5", "the record is not an object"),
    ],
)
def test_why_a_record_is_bad(record, reason):
    (bad,) = shaped(f"[{record}]".encode())
    assert isinstance(bad, Bad)
    assert bad.reason == reason
    assert (bad.at is None) == ("2026" not in record)


def test_odd_numbers_are_no_reason_to_give_up_a_page():
    body = b'[{"id":1,"d":"2026-01-01","x":%s},{"id":2,"d":"2026-01-01","x":[NaN,Infinity,1e999]}]' % (b"1" * 6_000)
    first, second = shaped(body)
    assert (first.id, second.id) == ("1", "2")
    assert json.loads(second.payload)["x"] == [None, None, None]


def test_a_record_that_is_too_large_is_cut_to_something_small():
    (bad,) = shaped(b'[{"id":"a","d":"2026-01-01","x":"%s"}]' % ("ñ" * MOST_BYTES).encode())
    assert isinstance(bad, Bad)
    assert "400,0" in bad.reason
    assert (bad.id, bad.at) == ("a", datetime(2026, 1, 1, tzinfo=UTC))
    assert json.loads(bad.payload)["bytes"] > 400_000
    assert len(bad.payload) < 2_000


def test_a_byte_that_is_no_text_spoils_no_page():
    found = document(
        "GET /", Response(200, {}, b'[{"id": "a\xff", "d": "2026-01-01"}, {"id": "b", "d": "2026-01-01"}]')
    )
    assert [one["id"] for one in found] == ["a\ufffd", "b"]
    assert document("GET /", Response(200, {}, '["é"]'.encode("utf-16"))) == ["é"]


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.binary(max_size=40) | st.integers(1, 3_000).map(lambda depth: b"[" * depth + b"]" * depth))
def test_any_bytes_are_a_document_or_transient(body):
    said = ""
    try:
        whole = document("GET /", Response(200, {}, body))
    except Transient as error:
        said = str(error)
    else:
        MAPPER.item(whole)
    assert len(said) < 700


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('<https://a.example/?p=2>; rel="next"', "https://a.example/?p=2"),
        ('<https://a.example/?p=1>; rel="prev", </?p=3>; rel=next', "/?p=3"),
        ('</a>; title="<b>; rel=next, x"; rel="last", </c,d>; REL="Next up"', "/c,d"),
        ('</a>; rel="first" ; rel="next"', None),
        ('</a>; rel="next"; anchor="#x"', None),
        ("</a>; rel=nextest", None),
        ("</a>", None),
        ("", None),
        ("<" * 50_000, None),
        ('</a>; x="' + "\\" * 50_000, None),
    ],
)
def test_the_next_page_in_a_header(header, expected):
    assert next_in_header(header) == expected


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("https://api.example.com/b?p=2#x", "/b?p=2"),
        ("https://API.example.com:443/b", "/b"),
        ("?p=2", "/a/list?p=2"),
        ("more?p=2", "/a/more?p=2"),
        ("/x y?q=ñ", "/x%20y?q=%C3%B1"),
        ("https://api.example.com", "/"),
    ],
)
def test_links_are_resolved(link, expected):
    assert followed("GET /", "https://api.example.com", "/a/list?p=1", link) == expected


@pytest.mark.parametrize(
    "link",
    [
        *("https://evil.example/", "//evil.example/x", "http://api.example.com/b", "https://api.example.com:8443/b"),
        *(
            "https://api.example.com@evil.example/",
            "https://me@api.example.com/b",
            "https://api.example.com.evil.example/",
        ),
        *(
            "file:///etc/passwd",
            "javascript:alert(1)",
            "ftp://api.example.com/",
            "https://[",
            "https://a:b:c/",
            "data:,x",
        ),
        *("https://api.example.com:99999/", "/" * 5_000, "/a/list?p=1", ""),
    ],
)
def test_links_that_lead_away_or_nowhere_are_refused(link):
    with pytest.raises(Rejected) as refused:
        followed("GET /", "https://api.example.com", "/a/list?p=1", link)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "link",
    [
        "https://me:hunter2@evil.example:8443/hunter2?api_key=hunter2#hunter2",
        "//me:hunter2@evil.example/x",
        "https://me:hunter2@api.example.com/b?token=hunter2",
        "https://evil.example/?token=hunter2",
        "me:hunter2@evil.example/x",
        "https://me:hunter2@[",
        "https://me:hunter2@evil.example:99999/",
    ],
)
def test_a_refused_link_shows_nothing_that_opens_something(link):
    with pytest.raises(Rejected) as refused:
        followed("GET /", "https://api.example.com", "/a/list?p=1", link)
    assert "hunter2" not in str(refused.value)
    assert "me:" not in str(refused.value)


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.text(max_size=30) | st.text("/\\@:.?#ahtps", max_size=30))
def test_no_link_leaves_the_host(link):
    try:
        target = followed("GET /", "https://api.example.com", "/a", link)
    except Rejected:
        return
    assert target.startswith("/")
    assert target.isascii()
    assert target.isprintable()


API = {"url": "https://api.example.com", "date": "at"}
GOOD = {"id": "a", "at": "2026-11-18T10:00:00Z", "n": {"x": "1.5"}, "t": "text"}
ODD = st.sampled_from(
    [
        GOOD,
        {**GOOD, "id": 7},
        {**GOOD, "id": ""},
        {**GOOD, "id": "\ufffd"},
        {**GOOD, "at": None},
        {**GOOD, "at": "2026-11-18"},
        {**GOOD, "n": None},
        {**GOOD, "n": {"x": 2}},
        {**GOOD, "n": {"x": "many"}},
        {**GOOD, "n": [3]},
        {**GOOD, "t": 5},
        {**GOOD, "t": ["no text"]},
        {**GOOD, "t": "é" * MOST_BYTES},
        "no object",
    ]
)


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.lists(ODD, max_size=4))
def test_records_come_to_the_same_together_and_one_by_one(records):
    fields = {"x": {"path": "n.x", "type": "number"}, "t": {"path": "t"}, "day": {"path": "at", "type": "instant"}}
    own = Mapper(rest({**API, "table": "things", "fields": fields}))
    offers = Mapper(rest({**API, "offer": {"title": "t", "salary_min": "n.x", "published_at": "at"}}))
    for mapper in (own, offers):
        assert [*mapper.items(records)] == [mapper.item(record) for record in records]


@pytest.mark.parametrize(
    ("path", "answer", "cut"),
    [
        (None, b'[{"a": 1}, 2]', ['{"a": 1}', "2"]),
        ("data", '{"n":1,"data":[{"a":"é"}],"data2":[]}'.encode(), ['{"a":"é"}']),
        ("a.b", b'{"a":{"x":[1],"b":[{"c":[]},{}]}}', ['{"c":[]}', "{}"]),
        ("a.b", b'{"a":{"b":[]}}', []),
        ("data", b'{"data":[{"a":\n1}]}', None),
        ("data", b'{"data":[{"a":"\\u0000"}]}', None),
        ("data", b'{"data":[{"a":"\xff"}]}', None),
        ("data", b'{"data":[{"a":NaN}]}', None),
        ("data", b'{"data":{"a":1}}', None),
        ("data", b"[]", None),
        ("data.0", b'{"data":[[1]]}', None),
        ("data", b'{"data":' + b"[" * 100_000, None),
    ],
)
def test_records_are_cut_out_as_they_came(path, answer, cut):
    assert slicer(path)(answer) == cut


@hypothesis.settings(max_examples=60)
@hypothesis.given(st.lists(ANYTHING, max_size=4), st.booleans())
def test_what_is_cut_out_says_what_is_read(records, spaced):
    answer = json.dumps({"data": records}, separators=(", ", ": ") if spaced else (",", ":"), ensure_ascii=False)
    lines = slicer("data")(answer.encode())
    assert lines is None or [json.loads(line) for line in lines] == records
    assert lines is not None or "\\u" in answer

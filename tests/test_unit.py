"""The text of a key: one canonical form, reversible, for every type a key part can have."""

from __future__ import annotations

import contextlib
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model.clock import parse_instant, truncate
from penstock.model.errors import BadInstant, BadReference
from penstock.model.unit import Ref, key_part, parse_key, replace, unit_id_of
from tests.support.machines import BatchItem, Invoice, Sample, batch_run, invoice, partition, sample

TOKEN = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
instants = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.timezones()).map(truncate)  # noqa: DTZ001


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        ("a/b", "a%2Fb"),
        ("100%", "100%25"),
        ("%2F", "%252F"),
        ("ZÜRICH 😀", "ZÜRICH 😀"),
        (" a\tb\n", " a\tb\n"),
        (-7, "-7"),
        (2**63, "9223372036854775808"),
        (date(2026, 11, 5), "2026-11-05"),
        (date(1, 1, 1), "0001-01-01"),
        (datetime(2026, 11, 15, 19, 31, tzinfo=UTC), "2026-11-15T19:31:00.000Z"),
        (datetime(2026, 11, 15, 20, 31, 0, 5_999, tzinfo=timezone(timedelta(hours=1))), "2026-11-15T19:31:00.005Z"),
        (TOKEN, "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
    ],
)
def test_a_key_part_has_one_text_form(value, text):
    assert key_part(value) == text


@pytest.mark.parametrize("value", [True, None, 1.5, Decimal(1), b"x", ("a",)])
def test_other_types_cannot_be_part_of_a_key(value):
    with pytest.raises(BadReference, match="use text, an integer, a date, an instant or a UUID"):
        key_part(value)


def test_an_instant_without_a_zone_cannot_be_part_of_a_key():
    with pytest.raises(BadReference, match="no time zone"):
        key_part(datetime(2026, 11, 15))  # noqa: DTZ001 - the point of the test


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_what_no_database_can_keep_cannot_be_part_of_a_key(text):
    with pytest.raises(BadReference, match="cannot be part of a key"):
        key_part(text)


def test_the_parts_are_joined_by_a_slash():
    assert unit_id_of(partition()) == "sales/2026-11-15"
    assert unit_id_of(invoice("a/b", tenant="50%")) == "50%25/a%2Fb"


def test_an_empty_key_is_refused():
    with pytest.raises(BadReference, match="BatchRun has an empty key"):
        unit_id_of(batch_run(""))


@given(texts, st.integers(), st.dates(), instants, st.uuids())
@example("/", 0, date.min, datetime(1, 1, 2, tzinfo=UTC), TOKEN)
@example("%2f%", -1, date.max, datetime(9999, 12, 30, tzinfo=UTC), TOKEN)
def test_every_key_comes_back_from_its_text(name, number, day, moment, token):
    try:
        moment.astimezone(UTC)
    except OverflowError:
        return
    text = unit_id_of(sample(name, number=number, day=day, moment=moment, token=token))
    found = {"name": name, "number": number, "day": day, "moment": moment, "token": token}
    assert parse_key(Sample, text) == found


@given(st.tuples(texts, texts), st.tuples(texts, texts))
@example(("a/b", "c"), ("a", "b/c"))
@example(("%2F", ""), ("/", ""))
def test_different_keys_have_different_texts(one, other):
    same = unit_id_of(Invoice(tenant=one[0], number=one[1])) == unit_id_of(Invoice(tenant=other[0], number=other[1]))
    assert same == (one == other)


@given(st.text())
def test_a_text_is_read_as_the_key_it_is_the_form_of_or_refused(text):
    try:
        found = parse_key(BatchItem, text)
    except BadReference:
        return
    assert unit_id_of(BatchItem(**found)) == text


@pytest.mark.parametrize(
    ("unit_id", "message"),
    [
        ("run", "'run' has 1 part; the key of BatchItem is run_id/position"),
        ("run/1/2", "'run/1/2' has 3 parts; the key of BatchItem is run_id/position"),
        ("run/one", "'one' is not a valid position"),
        ("run/", "'' is not a valid position"),
        ("run/01", "'01' is not the canonical form of position; write '1'"),
        ("run/+1", "'\\+1' is not the canonical form of position"),
        ("r%C3%BCn/1", "it is 'rün'"),
        ("r%2fn/1", "it is 'r%2Fn'"),
        ("r%n/1", "it is 'r%25n'"),
        ("r%FFn/1", "'r%FFn' is not a valid run_id"),
        ("run/" + "9" * 5_000, "is not a valid position"),
    ],
)
def test_a_text_that_is_not_a_key_is_refused_with_the_form(unit_id, message):
    with pytest.raises(BadReference, match=message):
        parse_key(BatchItem, unit_id)


@pytest.mark.parametrize(
    "part",
    ["2026-11-15 19:31:00.123Z", "2026-11-15T20:31:00.123+01:00", "2026-11-15T19:31:00.123", "2026-11-15", "soon"],
)
def test_an_instant_has_one_form(part):
    text = f"a/1/2026-11-15/{part}/{TOKEN}"
    with pytest.raises(BadReference, match="moment"):
        parse_key(Sample, text)


@pytest.mark.parametrize("part", ["20261115", "2026-W46-7", "2026-13-01", "2026-11-15T00:00:00"])
def test_a_date_has_one_form(part):
    with pytest.raises(BadReference, match="day"):
        parse_key(Sample, f"a/1/{part}/2026-11-15T19:31:00.123Z/{TOKEN}")


@pytest.mark.parametrize("part", [TOKEN.hex, str(TOKEN).upper(), f"{{{TOKEN}}}", "x"])
def test_a_uuid_has_one_form(part):
    with pytest.raises(BadReference, match="token"):
        parse_key(Sample, f"a/1/2026-11-15/2026-11-15T19:31:00.123Z/{part}")


@pytest.mark.parametrize(
    "text",
    [
        *("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "9" * 5_000, "2026-11-15T19:31:00", "", "\0"),
        *("2026-11-15T19:31:00+" + "9" * 100, "2026-W47-2T00:00:00+25:00", "\ud800"),
    ],
)
def test_what_is_no_instant_is_refused_by_name(text):
    with pytest.raises(BadInstant):
        parse_instant(text)


@given(st.text() | st.from_regex(r"[0-9]{1,6}-[0-9]{2}-[0-9]{2}T[0-9:.]{0,15}([+-][0-9:]{1,9}|Z)", fullmatch=True))
def test_any_text_is_an_instant_or_refused_by_name(text):
    with contextlib.suppress(BadInstant):
        assert parse_instant(text).tzinfo is UTC


def test_a_reference_is_printed_as_it_is_read():
    ref = Ref.parse("report:acme/2026-11-01/daily/target")
    assert ref == ("report", "acme/2026-11-01/daily/target")
    assert str(ref) == "report:acme/2026-11-01/daily/target"


@given(texts, texts)
@example(" acme", "1 ")
@example("a:b", ":")
def test_every_reference_comes_back_from_its_text(tenant, number):
    ref = Ref("invoice", unit_id_of(Invoice(tenant=tenant, number=number)))
    assert Ref.parse(str(ref)) == ref


@pytest.mark.parametrize("text", ["", "invoice", ":", "invoice:", ":acme/17"])
def test_what_is_no_reference_is_refused_with_the_form(text):
    with pytest.raises(BadReference, match="write machine:key, for example invoice:acme/17"):
        Ref.parse(text)


def test_a_unit_with_another_value_is_another_unit():
    before = invoice("1")
    after = replace(before, remote_id="r")
    assert (before.remote_id, after.remote_id) == (None, "r")
    assert after != before
    assert replace(after, remote_id=None) == before
    assert len({before, after, replace(before)}) == 2


def test_a_misspelt_column_is_refused_by_name():
    with pytest.raises(TypeError, match="`Invoice` has no field 'remot_id'"):
        replace(invoice("1"), remot_id="r")  # type: ignore[call-arg]

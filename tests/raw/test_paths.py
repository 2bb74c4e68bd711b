"""Names of landed data: nothing leaves the root, and everything is read back equal."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import BadReference, UsageError
from penstock.model.unit import key_part
from penstock.raw.paths import PARTS, PartitionKey, check_run_id, parse_day, read_folder, run_folder, run_id_at

RUN = "2026-11-15T19:31:00.123Z"
DAY = date(2026, 11, 1)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=16)
odd = st.sampled_from(
    ["..", ".", "../../etc", "/", "a/b", "a\\b", "C:\\x", "%2F", "%", "é", "e\u0301", " ", "\n", "=", "~", "*"]
)
keys = st.builds(PartitionKey, texts | odd, texts | odd, texts | odd, st.dates())


@given(keys, st.datetimes(timezones=st.just(UTC)))
def test_a_folder_stays_below_the_root_and_tells_its_key(key, moment):
    folder = run_folder(key, run_id_at(moment))
    parts = folder.split("/")
    assert len(parts) == 5
    assert not {"", ".", ".."} & set(parts)
    assert all(len(part) <= 255 and part.isascii() and part.isprintable() for part in parts)
    assert read_folder(folder) == (key, run_id_at(moment))


@given(keys)
def test_the_text_of_a_key_is_read_back(key):
    assert PartitionKey.parse(str(key)) == key
    assert str(key) == "/".join(key_part(getattr(key, name)) for name in PARTS), "the id of its unit in the ledger"


@given(keys, keys)
def test_two_keys_never_share_a_folder(one, other):
    assert (run_folder(one, RUN) == run_folder(other, RUN)) == (one == other)


@pytest.mark.parametrize("value", ["", "x" * 201, "é" * 40, "a\0b", "\ud800"])
def test_what_no_store_could_keep_is_refused(value):
    with pytest.raises(UsageError, match="customer_id"):
        PartitionKey("google_ads", value, "campaigns", DAY)


@pytest.mark.parametrize(
    "text", ["", "a/b/c", "a/b/c/2026-11-1", "a/b/c/20261101", "a/b/c/d/2026-11-01", "a/%FF/c/2026-11-01"]
)
def test_a_text_that_is_no_key_is_refused(text):
    with pytest.raises((BadReference, UsageError)):
        PartitionKey.parse(text)


@pytest.mark.parametrize(
    "text", ["", "1", "2026-11-15", "2026-11-15T19:31:00Z", "2026-11-15T20:31:00.123+01:00", "../x"]
)
def test_a_run_id_has_one_form(text):
    with pytest.raises(UsageError, match="instant in UTC with milliseconds"):
        check_run_id(text)


@given(st.datetimes(timezones=st.just(UTC)), st.datetimes(timezones=st.just(UTC)))
def test_run_ids_sort_as_their_instants(one, other):
    one, other = (m.replace(microsecond=m.microsecond // 1000 * 1000) for m in (one, other))
    assert (run_id_at(one) < run_id_at(other)) == (one < other)


@pytest.mark.parametrize(
    "folder", ["", "lost+found", "source=a", "source=a/customer_id=b/query_name=c/logical_date=x/run_id=y"]
)
def test_what_else_lies_in_a_store_is_not_a_run(folder):
    assert read_folder(folder) is None


def test_a_day_is_written_in_one_way():
    assert parse_day("2026-11-01") == DAY
    with pytest.raises(UsageError, match="YYYY-MM-DD"):
        parse_day("1.11.2026")
    with pytest.raises(UsageError, match="logical_date"):
        PartitionKey("a", "b", "c", datetime(2026, 11, 1, tzinfo=UTC))

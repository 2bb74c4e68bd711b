"""Validators: every kind of bad input ends in an error that names the row, the field and what is wrong."""

from __future__ import annotations

import json

import pytest

from penstock.lifecycles.partitions.settings import SourceQuery
from penstock.lifecycles.partitions.validate import Rules, check_fields, inspect
from penstock.model.errors import UsageError
from penstock.model.unit import replace
from penstock.raw.paths import run_folder
from penstock.raw.sink import RawSink
from tests.raw.test_sink import NOW, RUN
from tests.support.partitions import KEY, QUERY, rows


def verdict_of(
    sink: RawSink, records, query: SourceQuery = QUERY, *, rules: Rules | None = None, version="1", customers=None
):
    sink.write_partition(KEY, RUN, records, schema_version=version, created_at=NOW)
    return inspect(sink.open_partition(KEY, RUN), query, rules, customers)


@pytest.fixture
def sink(tmp_path) -> RawSink:
    return RawSink(tmp_path / "raw")


def test_good_rows_are_good(sink):
    found = verdict_of(sink, rows(5), customers=[KEY.customer_id])
    assert (found.good, found.error, found.record_count, found.run_id) == (True, None, 5, RUN)


def changed(path: str, value):
    """Three good rows, of which the second has another value."""
    made = rows()
    outer, _, inner = path.partition(".")
    if inner:
        made[1][outer] = {**made[1][outer], inner: value}
    else:
        made[1][outer] = value
    return made


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([{"campaign": {"id": 1}}], "row 1: field metrics.clicks is missing"),
        ([{**rows(1)[0], "metrics": {"klicks": 1}}], "did it become metrics.klicks?"),
        (changed("metrics.clicks", 1.5), "row 2: field metrics.clicks is float 1.5, not whole"),
        (changed("metrics.clicks", True), "field metrics.clicks is bool True, not whole"),
        (changed("metrics.clicks", "9" * 19), "not whole"),
        (changed("metrics.clicks", "12x"), "not whole"),
        (changed("metrics.clicks", None), "row 2: field metrics.clicks is null"),
        (changed("metrics", "gone"), "field metrics.clicks is missing"),
        (changed("note", 5), "field note is int 5, not text"),
        (changed("segments.date", "2026-11-31"), "field segments.date is str '2026-11-31', not date"),
        (changed("segments.date", "2026-11-02"), "the partition is of 2026-11-01"),
        (changed("campaign.id", "0"), "row 2: repeats campaign.id"),
    ],
)
def test_bad_rows_are_named(sink, records, expected):
    found = verdict_of(sink, records)
    assert not found.good
    assert expected in str(found.error)


def test_an_optional_field_may_be_missing_or_null(sink):
    made = rows()
    del made[0]["note"]
    made[1]["note"] = None
    assert verdict_of(sink, made).good


def test_the_same_mistake_in_every_row_is_told_once(sink):
    found = verdict_of(sink, [{"campaign": {"id": n}} for n in range(1_000)])
    assert len(found.errors) == 3
    assert all(error.startswith("row 1: ") for error in found.errors)


@pytest.mark.parametrize(("unique", "good"), [(("*",), False), ((), True)])
def test_whole_rows_are_compared_unless_duplicates_are_allowed(sink, unique, good):
    found = verdict_of(sink, [*rows(), rows()[0]], replace(QUERY, unique=unique))
    assert found.good is good
    assert found.error == (None if good else "row 4: repeats an earlier row")


def test_another_schema_version_is_refused_and_names_both(sink):
    found = verdict_of(sink, rows(), version="2")
    assert "schema version '2' was landed, and the configuration pins '1'" in str(found.error)


def test_an_unknown_customer_is_refused(sink):
    found = verdict_of(sink, rows(), customers=["5"])
    assert f"customer {KEY.customer_id} is not in the configuration of google_ads" in str(found.error)


def test_rules_of_business_are_asked_and_one_that_breaks_does_not_let_pass(sink):
    rules = Rules()

    @rules.row("campaign_daily")
    def few_clicks(_, row):
        return "too many clicks" if int(row["metrics"]["clicks"]) > 1 else None

    @rules.row("another_query")
    def never(_, __):
        return "not asked"

    @rules.partition()
    def enough(_, metadata):
        return None if metadata.record_count >= 3 else f"only {metadata.record_count} rows"

    @rules.row()
    def broken(_, row):
        return row["nothing"]

    found = verdict_of(sink, rows(), rules=rules)
    assert list(found.errors) == [
        "row 1: rule broken failed: KeyError 'nothing'",
        "row 3: rule few_clicks: too many clicks",
    ]


def test_a_rule_for_the_whole_is_asked_before_the_rows(sink):
    rules = Rules()
    rules.partition("campaign_daily")(lambda _, metadata: "it is empty" if not metadata.record_count else None)
    assert "it is empty" in str(verdict_of(sink, [], rules=rules).error)


def spoiled(sink: RawSink, tmp_path, name: str, change) -> str:
    sink.write_partition(KEY, RUN, rows(), schema_version="1", created_at=NOW)
    place = tmp_path / "raw" / run_folder(KEY, RUN) / name
    place.chmod(0o644)
    place.write_bytes(change(place.read_bytes()))
    return str(inspect(sink.open_partition(KEY, RUN), QUERY).error)


def test_a_truncated_payload_is_found(sink, tmp_path):
    assert "bytes; " in spoiled(sink, tmp_path, "payload.jsonl", lambda text: text[:-9])


def test_a_payload_that_was_changed_is_found(sink, tmp_path):
    assert "checksum" in spoiled(
        sink, tmp_path, "payload.jsonl", lambda text: text.replace(b'"clicks":"2"', b'"clicks":"7"')
    )


def test_a_line_that_is_not_json_is_found(sink):
    assert "line 2 is not JSON" in str(verdict_of(sink, [json.dumps(rows()[0]).encode(), b"{nonsense"]).error)
    assert "line 1 is list, not an object" in str(inspect_lines(sink, [b"[1]"]).error)


def inspect_lines(sink: RawSink, lines):
    run_id = "2027-01-01T00:00:00.000Z"
    sink.write_partition(KEY, run_id, lines, schema_version="1", created_at=NOW)
    return inspect(sink.open_partition(KEY, run_id), QUERY)


def test_deep_nesting_and_long_numbers_are_errors_and_not_crashes(sink):
    assert "line 1 is not JSON" in str(inspect_lines(sink, [b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"]).error)
    assert "is not JSON" in str(verdict_of(sink, [b'{"n":' + b"9" * 5_000 + b"}"]).error)


def test_a_wrong_count_in_the_metadata_is_found(sink, tmp_path):
    def more(text: bytes) -> bytes:
        return json.dumps(json.loads(text) | {"record_count": 4}).encode()

    assert "3 records; its metadata says 4" in spoiled(sink, tmp_path, "metadata.json", more)


def test_an_unknown_type_is_refused_when_it_is_declared():
    with pytest.raises(UsageError, match=r"field a is 'int'; a type is one of text, whole"):
        check_fields({"a": "int"})


def test_a_row_that_cannot_be_read_does_not_hide_what_is_wrong_before_it(sink):
    lines = [json.dumps(row).encode() for row in changed("note", 5)]
    found = verdict_of(sink, [*lines, b"{no JSON", lines[0]])
    assert [error.partition(":")[0] for error in found.errors] == ["row 2", "payload.jsonl line 4 is not JSON"]


def test_the_digest_is_that_of_the_rows_whatever_their_neighbours(tmp_path):
    """Half a character is read by Python's JSON alone: its block goes another way."""
    plain = [json.dumps(row).encode() for row in rows(3)]
    odd = json.dumps({**rows(4)[3], "note": "\ud800", "more": 10**30}).encode()
    other = [json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode() for text in plain]
    texts = ([*plain, odd], [odd, *reversed(plain)], [odd, *other])
    found = {verdict_of(RawSink(tmp_path / str(n)), made).digest for n, made in enumerate(texts)}
    assert len(found) == 1
    assert str(*found).startswith("2:4-")
    assert verdict_of(RawSink(tmp_path / "others"), plain).digest not in found

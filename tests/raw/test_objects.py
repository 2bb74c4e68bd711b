"""The raw sink on S3 and Google's store as a server speaks them: chosen by the address, finalised by a creation."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.raw.paths import run_id_at
from penstock.raw.store import AlreadyFinalised, RawMissing, RawUnavailable
from tests.raw.test_sink import KEY, NOW, ROWS, RUN, land


def test_what_was_landed_is_read_back(objects, bucket):
    land(objects)
    opened = objects.open_partition(KEY, RUN)
    assert list(opened.rows()) == ROWS
    assert opened.address.startswith(f"{objects.url}/source=google_ads/customer_id=1234567890/")
    assert opened.address.partition("://landed/")[2] in bucket.objects
    assert {name.rpartition("/")[2] for name in bucket.objects} == {"payload.jsonl", "metadata.json"}


def test_a_long_payload_is_uploaded_and_read_in_parts(objects, bucket):
    rows = [{"text": "x" * 1_000, "n": n} for n in range(20_000)]
    land(objects, rows)
    assert ("POST", next(name for name in bucket.objects if name.endswith("payload.jsonl"))) in bucket.asked
    assert [row["n"] for row in objects.open_partition(KEY, RUN).rows()] == list(range(20_000))


def test_of_two_writers_one_finalises_and_a_late_one_changes_nothing(objects, bucket):
    late = objects.writer(KEY, RUN, schema_version="1", created_at=NOW)
    late.write({"by": "the late one"})
    land(objects)
    with pytest.raises(AlreadyFinalised):
        late.finalise()
    assert list(objects.open_partition(KEY, RUN).rows()) == ROWS
    assert len(bucket.objects) == 2


def test_runs_are_listed_page_by_page_and_removed(objects, bucket):
    runs = [run_id_at(NOW + timedelta(hours=n)) for n in range(4)]
    for run_id in runs:
        land(objects, run_id=run_id)
    assert [run_id for _, run_id in objects.list_partitions()] == runs
    objects.remove(KEY, runs[0])
    assert objects.runs(KEY) == runs[1:]
    assert len(bucket.objects) == 6
    with pytest.raises(RawMissing):
        objects.open_partition(KEY, runs[0])


def test_a_store_that_refuses_is_told_in_one_line(objects, bucket):
    bucket.broken = 403
    with pytest.raises(RawUnavailable) as caught:
        land(objects)
    assert len(str(caught.value).splitlines()) == 1

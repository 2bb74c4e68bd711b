"""The raw sink on S3 and Google's store as a server speaks them: chosen by the address, finalised by a creation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from penstock.raw.paths import run_id_at
from penstock.raw.sink import RawSink
from penstock.raw.store import AlreadyFinalised, RawMissing, RawUnavailable
from tests.raw.test_sink import KEY, NOW, ROWS, RUN, land
from tests.support.s3 import S3, s3


@pytest.fixture
def bucket(monkeypatch, tmp_path) -> Iterator[S3]:
    with s3() as made:
        account = {"gcs_base_url": made.address, "disable_oauth": True}
        account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        (tmp_path / "account.json").write_text(json.dumps(account))
        settings = {
            "GOOGLE_SERVICE_ACCOUNT": str(tmp_path / "account.json"),
            "AWS_ENDPOINT": made.address,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "eu-west-1",
        }
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture(params=["s3", "gs"])
def sink(bucket, request) -> RawSink:
    return RawSink(f"{request.param}://landed/raw/data")


def test_what_was_landed_is_read_back(sink, bucket):
    land(sink)
    opened = sink.open_partition(KEY, RUN)
    assert list(opened.rows()) == ROWS
    assert opened.address.startswith(f"{sink.url}/source=google_ads/customer_id=1234567890/")
    assert opened.address.partition("://landed/")[2] in bucket.objects
    assert {name.rpartition("/")[2] for name in bucket.objects} == {"payload.jsonl", "metadata.json"}


def test_a_long_payload_is_uploaded_and_read_in_parts(sink, bucket):
    rows = [{"text": "x" * 1_000, "n": n} for n in range(20_000)]
    land(sink, rows)
    assert ("POST", next(name for name in bucket.objects if name.endswith("payload.jsonl"))) in bucket.asked
    assert [row["n"] for row in sink.open_partition(KEY, RUN).rows()] == list(range(20_000))


def test_of_two_writers_one_finalises_and_a_late_one_changes_nothing(sink, bucket):
    late = sink.writer(KEY, RUN, schema_version="1", created_at=NOW)
    late.write({"by": "the late one"})
    land(sink)
    with pytest.raises(AlreadyFinalised):
        late.finalise()
    assert list(sink.open_partition(KEY, RUN).rows()) == ROWS
    assert len(bucket.objects) == 2


def test_runs_are_listed_page_by_page_collected_and_removed(sink, bucket):
    runs = [run_id_at(NOW + timedelta(hours=n)) for n in range(4)]
    for run_id in runs:
        land(sink, run_id=run_id)
    orphan = next(name for name in bucket.objects if name.endswith("payload.jsonl")).replace("attempt=", "attempt=0")
    bucket.objects[orphan] = b"half a payl"
    assert [run_id for _, run_id in sink.list_partitions()] == runs
    assert sink.collect(datetime.now(UTC) + timedelta(days=1)) == 1
    assert orphan not in bucket.objects
    sink.remove(KEY, runs[0])
    assert sink.runs(KEY) == runs[1:]
    assert len(bucket.objects) == 6
    with pytest.raises(RawMissing):
        sink.open_partition(KEY, runs[0])


def test_a_store_that_refuses_is_told_in_one_line(sink, bucket):
    bucket.broken = 403
    with pytest.raises(RawUnavailable) as caught:
        land(sink)
    assert len(str(caught.value).splitlines()) == 1

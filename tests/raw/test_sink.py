"""The raw sink: landed once, whole, unchanged after, and begun anew before."""

from __future__ import annotations

import hashlib
import json
import os
import threading
import tracemalloc
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.model.errors import UsageError
from penstock.raw.paths import PartitionKey, run_folder, run_id_at
from penstock.raw.sink import BLOCK, RawSink
from penstock.raw.store import AlreadyFinalised, RawCorrupt, RawMissing, RawUnavailable
from tests.raw.test_paths import keys

NOW = datetime(2026, 11, 15, 19, 31, tzinfo=UTC)
RUN = run_id_at(NOW)
KEY = PartitionKey("google_ads", "1234567890", "campaign_daily", date(2026, 11, 1))
ROWS = [{"campaign": {"id": str(n)}, "text": "naïve 🦊"} for n in range(3)]


def land(sink: RawSink, rows=ROWS, key=KEY, run_id=RUN, **facts):
    return sink.write_partition(key, run_id, rows, schema_version="1", created_at=NOW, facts=facts)


def test_what_was_landed_is_read_back_with_its_metadata(sink):
    written = land(sink, request_id="r-1")
    opened = sink.open_partition(KEY, RUN)
    assert list(opened.rows()) == ROWS
    assert opened.metadata == written == sink.find(KEY, RUN)
    payload = b"".join(line + b"\n" for line in opened.lines())
    assert written.checksum == "sha256:" + hashlib.sha256(payload).hexdigest()
    assert (written.record_count, written.size, written.schema_version) == (3, len(payload), "1")
    assert (written.created_at, written.facts) == (NOW, {"request_id": "r-1"})


def test_an_empty_partition_is_a_partition(sink):
    assert land(sink, []).record_count == 0
    assert list(sink.open_partition(KEY, RUN).rows()) == []


def test_a_finalised_run_cannot_be_changed(sink):
    land(sink)
    with pytest.raises(AlreadyFinalised, match="new run id"):
        land(sink, [{"other": 1}])
    assert list(sink.open_partition(KEY, RUN).rows()) == ROWS


def test_two_writers_of_one_run_leave_one_whole_run(sink):
    first = sink.writer(KEY, RUN, schema_version="1", created_at=NOW)
    second = sink.writer(KEY, RUN, schema_version="1", created_at=NOW)
    for run, name in ((first, "first"), (second, "second")):
        for n in range(10):
            run.write({"by": name, "n": n})
    second.finalise()
    with pytest.raises(AlreadyFinalised):
        first.finalise()
    assert {row["by"] for row in sink.open_partition(KEY, RUN).rows()} == {"second"}
    assert list(sink.unfinished(NOW + timedelta(days=36_500))) == [], "the loser left nothing"


def test_an_attempt_that_failed_is_simply_written_anew(sink):
    def broken():
        yield ROWS[0]
        raise ConnectionError

    with pytest.raises(ConnectionError):
        land(sink, broken())
    assert sink.find(KEY, RUN) is None
    assert list(sink.list_partitions()) == []
    land(sink)
    assert list(sink.open_partition(KEY, RUN).rows()) == ROWS


def test_runs_are_listed_and_narrowed(sink):
    made = [
        (
            PartitionKey(source, customer, query, KEY.logical_date + timedelta(days=day)),
            run_id_at(NOW + timedelta(hours=run)),
        )
        for source in ("google_ads", "other")
        for customer in ("1", "2")
        for query in ("a", "b")
        for day in (0, 1)
        for run in (0, 1)
    ]
    for key, run_id in made:
        land(sink, [], key, run_id)
    assert sorted(sink.list_partitions()) == sorted(made)
    assert sorted(sink.list_partitions("other")) == sorted(m for m in made if m[0].source == "other")
    narrow = list(sink.list_partitions("other", "2", "b", KEY.logical_date))
    assert narrow == [m for m in made if m[0] == PartitionKey("other", "2", "b", KEY.logical_date)]
    assert sink.runs(made[0][0]) == [made[0][1], made[1][1]]
    assert list(sink.list_partitions("nobody")) == []
    with pytest.raises(UsageError, match="source is needed"):
        list(sink.list_partitions(customer_id="1"))


def test_a_run_is_removed_whole(sink):
    land(sink)
    sink.remove(KEY, RUN)
    assert list(sink.list_partitions()) == []
    with pytest.raises(RawMissing, match="no finalised run"):
        sink.open_partition(KEY, RUN)
    land(sink)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=keys, run=st.datetimes(min_value=datetime(2000, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001
def test_no_key_leaves_the_root_and_each_is_read_back(sink, tmp_path, key, run):
    run_id = run_id_at(run)
    try:
        land(sink, [{"key": str(key)}], key, run_id)
    except AlreadyFinalised:
        assert sink.find(key, run_id) is not None
    assert [row["key"] for row in sink.open_partition(key, run_id).rows()] == [str(key)]
    assert (key, run_id) in set(sink.list_partitions(key.source, key.customer_id, key.query_name, key.logical_date))
    assert {place.name for place in tmp_path.iterdir()} <= {"raw"}


@pytest.mark.parametrize(
    "record",
    [b"", b'{"a":1}\n{"b":2}', {"n": float("nan")}, {"n": float("inf")}, {"at": object()}, {"n": 10**5000}],
    ids=["empty", "two lines", "nan", "inf", "object", "4300 digits"],
)
def test_a_record_that_json_cannot_keep_is_refused(sink, record):
    with pytest.raises(UsageError, match="record"):
        land(sink, [record])
    assert sink.find(KEY, RUN) is None


def test_half_a_surrogate_pair_is_kept_as_json_keeps_it(sink):
    land(sink, [{"text": "\ud83d"}])
    assert list(sink.open_partition(KEY, RUN).rows()) == [{"text": "\ud83d"}]


def test_lines_of_json_are_kept_as_they_are(sink):
    land(sink, [b'{"a" : 1.10}'])
    assert list(sink.open_partition(KEY, RUN).lines()) == [b'{"a" : 1.10}']


def test_lines_land_and_are_read_many_at_a_time(sink):
    lines = [b'{"n":%d,"text":"%s"}\n' % (n, b"x" * (n % 300)) for n in range(10_000)]
    with sink.writer(KEY, RUN, schema_version="1", created_at=NOW) as run:
        for start in range(0, len(lines), 700):
            run.write_lines(b"".join(lines[start : start + 700]))
        with pytest.raises(UsageError, match="the last one ends without a line break"):
            run.write_lines(b'{"n":1}\n{"n":2}')
    opened = sink.open_partition(KEY, RUN)
    blocks = list(opened.blocks())
    assert b"".join(blocks) == b"".join(lines)
    assert opened.metadata.record_count == 10_000
    assert all(block.endswith(b"\n") for block in blocks)
    assert max(map(len, blocks)) <= BLOCK + max(map(len, lines))
    assert [line + b"\n" for line in opened.lines()] == lines


def payload(tmp_path: Path) -> Path:
    return tmp_path / "raw" / run_folder(KEY, RUN) / "payload.jsonl"


@pytest.fixture
def disk(tmp_path) -> RawSink:
    return RawSink(tmp_path / "raw")


def spoil(place: Path, text: bytes) -> None:
    place.chmod(0o644)
    place.write_bytes(text)


def test_a_truncated_payload_is_refused_before_its_first_row(disk, tmp_path):
    land(disk)
    spoil(payload(tmp_path), payload(tmp_path).read_bytes()[:-5])
    with pytest.raises(RawCorrupt, match=r"bytes; .* were landed"):
        next(disk.open_partition(KEY, RUN).rows())


def test_a_changed_payload_is_found_out(disk, tmp_path):
    land(disk)
    spoil(
        payload(tmp_path), payload(tmp_path).read_bytes().replace(b"naive", b"brave").replace(b'"id":"1"', b'"id":"9"')
    )
    with pytest.raises(RawCorrupt, match="checksum"):
        list(disk.open_partition(KEY, RUN).rows())


@pytest.mark.parametrize(
    ("change", "why"), [({"record_count": 4}, "4"), ({"run_id": "x"}, "says it is"), ({"size": "?"}, "read")]
)
def test_metadata_that_is_wrong_is_found_out(disk, tmp_path, change, why):
    land(disk)
    place = payload(tmp_path).with_name("metadata.json")
    spoil(place, json.dumps(json.loads(place.read_bytes()) | change).encode())
    with pytest.raises(RawCorrupt, match=why):
        list(disk.open_partition(KEY, RUN).rows())


def test_files_are_read_only_and_the_address_is_theirs(disk, tmp_path):
    land(disk)
    assert disk.open_partition(KEY, RUN).address == str(payload(tmp_path))
    assert [place.stat().st_mode & 0o222 for place in payload(tmp_path).parent.iterdir()] == [0, 0]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_landed_data_is_for_its_owner_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        land(RawSink(tmp_path / "raw"))
    finally:
        os.umask(before)
    made = list((tmp_path / "raw").rglob("*"))
    assert len(made) > 4
    assert [place for place in (tmp_path / "raw", *made) if place.stat().st_mode & 0o077] == []


def test_a_file_address_is_a_folder(tmp_path):
    land(RawSink(f"file://{tmp_path}/raw"))
    assert list(RawSink(tmp_path / "raw").open_partition(KEY, RUN).rows()) == ROWS


def test_a_disk_that_refuses_is_told_in_one_line(tmp_path):
    (tmp_path / "raw").write_text("a file where a folder should be")
    with pytest.raises(RawUnavailable) as caught:
        land(RawSink(tmp_path / "raw"))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("url", ["", "ftp://host/x", "s4://bucket"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(UsageError, match="s3://, gs://, az:// or memory://"):
        RawSink(url)


def test_memory_does_not_grow_with_the_payload(disk):
    row = {"text": "x" * 1_000}
    tracemalloc.start()
    try:
        land(disk, (row for _ in range(30_000)))
        assert sum(1 for _ in disk.open_partition(KEY, RUN).rows()) == 30_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12_000_000, "a payload of 30 MB passed"


def test_readers_see_a_whole_run_or_none(disk):
    """One thread lands run after run while another lists and reads: every run that is seen is whole."""
    stop = threading.Event()
    seen: list[int] = []

    def read() -> None:
        while not stop.is_set():
            for key, run_id in disk.list_partitions():
                rows = list(disk.open_partition(key, run_id).rows())
                seen.append(len({row["run"] for row in rows}))
                assert len(rows) == 50

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(40):
        land(disk, [{"run": n} for _ in range(50)], run_id=run_id_at(NOW + timedelta(seconds=n)))
    stop.set()
    reader.join(60)
    assert set(seen) <= {1}


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket", "AWS_ENDPOINT"),
        ("s3a://bucket", "AWS_ENDPOINT_URL_S3"),
        ("gs://bucket", "GOOGLE_BASE_URL"),
        ("az://bucket", "AZURE_STORAGE_ENDPOINT"),
        ("abfss://bucket", "AZURITE_BLOB_STORAGE_URL"),
    ],
)
def test_plain_http_to_a_store_does_not_leave_this_machine(url, name, monkeypatch):
    monkeypatch.setenv(name, "http://10.0.0.1:9000")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    with pytest.raises(UsageError, match="only for this machine"):
        RawSink(url)

"""The published watermark: compare-and-swap on a file, in memory and on S3 as a server speaks it."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from penstock.connectors.watermark import Blob, FileBlob, ForeignBlob, ObjectBlob, Watermark, open_blob
from penstock.model.errors import Fatal, Transient, UsageError
from penstock.settings.secret import ConfigError, Secret
from tests.support.s3 import s3

MARK = Watermark(datetime(2024, 1, 16, 2, tzinfo=UTC), "abc123", datetime(2024, 1, 16, 2, 15, tzinfo=UTC))
WRITERS = 8


@pytest.fixture(params=["file", "memory", "s3"])
def blob(request, tmp_path, monkeypatch) -> Iterator[Callable[[], Blob]]:
    """Opens the same blob anew, as another process would."""
    if request.param == "file":
        yield lambda: open_blob(f"file://{tmp_path}/deep/er/watermark.json")
    elif request.param == "memory":
        store = MemoryStore()
        yield lambda: ObjectBlob(store, "watermark.json", "memory://watermark.json")
    else:
        monkeypatch.setenv("PENSTOCK_TEST_STORE", "a-secret-key")
        with s3() as bucket:
            options: dict[str, str | Secret] = {
                "aws_endpoint": bucket.address,
                "aws_access_key_id": "key",
                "aws_secret_access_key": Secret("env", "PENSTOCK_TEST_STORE"),
                "aws_region": "eu-west-1",
            }
            yield lambda: open_blob("s3://landed/state/watermark.json", options)


def test_the_blob_is_the_seeds_and_is_read_back():
    assert json.loads(MARK.encode()) == {
        "lastUpdatedAt": "2024-01-16T02:00:00.000Z",
        "lastRunId": "abc123",
        "lastRunCompletedAt": "2024-01-16T02:15:00.000Z",
    }
    assert Watermark.decode(MARK.encode()) == MARK
    seeds = MARK.encode().replace(b":00.000Z", b":00Z")
    assert Watermark.decode(seeds) == MARK


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b'{"lastUpdatedAt": "yesterday"}'])
def test_what_is_no_watermark_is_somebody_elses(content):
    with pytest.raises(ForeignBlob):
        Watermark.decode(content)


def test_only_who_knows_what_is_there_replaces_it(blob):
    assert blob().read() is None
    first = blob().swap(b"one", None)
    assert blob().read() == (b"one", first)
    second = blob().swap(b"two", first)
    assert blob().read() == (b"two", second)
    with pytest.raises(ForeignBlob, match="two"):
        blob().swap(b"three", first)
    with pytest.raises(ForeignBlob, match="two"):
        blob().swap(b"three", None)
    assert blob().read() == (b"two", second)


def test_an_attempt_whose_answer_was_lost_has_landed(blob):
    tag = blob().swap(b"one", None)
    assert blob().swap(b"one", None) == tag
    later = blob().swap(b"two", tag)
    assert blob().swap(b"two", tag) == later


def test_of_many_writers_at_once_one_wins(blob):
    tag = blob().swap(b"before", None)
    start, won, lost = threading.Barrier(WRITERS), [], []

    def write(number: int) -> None:
        mine = blob()
        start.wait()
        try:
            mine.swap(b"%d" % number, tag)
        except ForeignBlob:
            lost.append(number)
        else:
            won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert len(lost) == WRITERS - 1
    assert blob().read().content == b"%d" % won[0]


def _swap_file(path: str, number: int, tag: str, start, results) -> None:
    start.wait(60)
    try:
        FileBlob(Path(path)).swap(b"%d" % number, tag)
    except ForeignBlob:
        results.put(None)
    else:
        results.put(number)


def test_of_many_processes_at_a_file_one_wins(tmp_path):
    path = tmp_path / "watermark.json"
    tag = FileBlob(path).swap(b"before", None)
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(WRITERS), context.Queue()
    processes = [context.Process(target=_swap_file, args=(str(path), n, tag, start, results)) for n in range(WRITERS)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
    won = [number for number in found if number is not None]
    assert len(won) == 1
    assert path.read_bytes() == b"%d" % won[0]
    assert sorted(place.name for place in tmp_path.iterdir()) == ["watermark.json", "watermark.json.lock"]


def test_a_blob_that_was_removed_is_a_persons_affair(blob, tmp_path):
    blob().swap(b"one", None)
    tag = blob().swap(b"two", blob().read().etag)
    place = tmp_path / "deep/er/watermark.json"
    if not place.exists():
        pytest.skip("removed by hand on a filesystem only")
    place.unlink()
    with pytest.raises(ForeignBlob, match="removed"):
        blob().swap(b"three", tag)


@pytest.mark.parametrize(("status", "error"), [(503, Transient), (403, Fatal)])
def test_a_store_that_is_away_may_come_back_and_one_that_refuses_will_not(status, error):
    with s3() as bucket:
        bucket.broken = status
        options = {"aws_endpoint": bucket.address, "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        blob = open_blob("s3://landed/watermark.json", {**options, "aws_region": "eu-west-1"})
        for call in (blob.read, lambda: blob.swap(b"one", None)):
            with pytest.raises(error, match="s3://landed/watermark") as caught:
                call()
            assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_cannot_be_written_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(Transient, match="file"):
        open_blob(f"{tmp_path}/file/watermark.json").swap(b"one", None)


@pytest.mark.parametrize("address", ["ftp://host/name", "s3://bucket", "s3://bucket/", "s3:///name"])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(UsageError, match=r"s3://BUCKET/NAME"):
        open_blob(address)


def test_a_secret_that_is_not_there_is_named_by_its_reference():
    with pytest.raises(ConfigError, match="PENSTOCK_TEST_NO_SUCH"):
        open_blob("s3://bucket/name", {"aws_secret_access_key": Secret("env", "PENSTOCK_TEST_NO_SUCH")})


BEYOND = "http://10.0.0.1:9000"


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("s3://bucket/name", {"aws_endpoint": BEYOND}),
        ("s3://bucket/name", {"endpoint_url": BEYOND}),
        ("s3://bucket/name", {"aws_endpoint_url_s3": BEYOND}),
        ("s3://bucket/name", {"aws_endpoint": "HTTP://10.0.0.1"}),
        ("s3://bucket/name", {"aws_allow_http": "true"}),
        ("gs://bucket/name", {"google_base_url": BEYOND}),
        ("az://bucket/name", {"azure_storage_endpoint": BEYOND}),
    ],
)
def test_plain_http_to_a_store_does_not_leave_this_machine(address, options):
    with pytest.raises(UsageError):
        open_blob(address, options)


@pytest.mark.parametrize(
    "name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "AWS_METADATA_ENDPOINT", "IDENTITY_ENDPOINT", "GOOGLE_BASE_URL"]
)
def test_where_something_else_is_does_not_matter_to_a_store(name, monkeypatch):
    monkeypatch.setenv(name, "http://169.254.169.254")
    assert open_blob("s3://bucket/name", {"aws_region": "eu-west-1"}).address == "s3://bucket/name"

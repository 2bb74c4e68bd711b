"""Collecting: what was never finalised goes by age, what is superseded by request, and nothing that cannot be read."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from penstock.raw.collect import Collected, Held, collect
from penstock.raw.paths import partition_folder, run_folder, run_id_at
from penstock.raw.sink import RawSink
from penstock.raw.store import RawUnavailable
from tests.raw.test_sink import KEY, NOW, ROWS, RUN, land

LATE = datetime.now(UTC) + timedelta(days=1)
EARLY = datetime(2000, 1, 1, tzinfo=UTC)
RUNS = [run_id_at(NOW + timedelta(hours=n)) for n in range(4)]


def gathered(sink: RawSink, held: Held | None = None, **options: Any) -> Collected:
    """Collect as if all were old, with a ledger that knows this of the one partition."""
    chosen: dict[str, Any] = {"unfinished": LATE, **options}
    return collect(sink, lambda keys: {} if held is None else dict.fromkeys(keys, held), **chosen)


def left(sink: RawSink, run_id: str = RUN) -> None:
    """An attempt whose writer died before it was finalised."""
    run = sink.writer(KEY, run_id, schema_version="1", created_at=NOW)
    run.write(ROWS[0])
    run._flush()
    attempt: Any = run._attempt
    (attempt._upload if hasattr(attempt, "_upload") else attempt._file).close()


@pytest.fixture
def disk(tmp_path: Path) -> RawSink:
    return RawSink(tmp_path / "raw")


def test_an_attempt_that_was_left_is_invisible_and_collected_after_its_time(sink):
    left(sink)
    assert list(sink.list_partitions()) == []
    assert sink.find(KEY, RUN) is None
    land(sink, run_id=RUNS[1])
    assert gathered(sink, unfinished=EARLY) == Collected(), "it may still be written"
    assert gathered(sink, dry_run=True) == Collected(unfinished=1)
    assert gathered(sink) == Collected(unfinished=1)
    assert gathered(sink) == Collected()
    assert list(sink.open_partition(KEY, RUNS[1]).rows()) == ROWS, "what is finalised stays"


def test_what_a_worker_is_at_is_not_touched_however_old(sink):
    left(sink)
    assert gathered(sink, Held(claimed=True)) == Collected(under_way=1)
    assert gathered(sink, Held()) == Collected(unfinished=1)


def test_superseded_runs_go_by_age_and_a_needed_one_never(sink):
    for run_id in RUNS:
        land(sink, run_id=run_id)
    held = Held(RUNS[3], frozenset([RUNS[3], RUNS[1]]), frozenset([RUNS[2]]))
    assert gathered(sink, held) == Collected(), "only on request"
    assert gathered(sink, held, superseded=NOW) == Collected(), "not of that age"
    assert gathered(sink, superseded=LATE) == Collected(), "nobody knows the partition"
    assert gathered(sink, Held(None), superseded=LATE) == Collected(), "nothing is authoritative"
    assert gathered(sink, held, superseded=LATE, dry_run=True) == Collected(superseded=1)
    assert gathered(sink, held, superseded=LATE) == Collected(superseded=1)
    assert sink.runs(KEY) == RUNS[1:]


def test_a_run_that_is_pointed_at_while_it_is_collected_stays(sink):
    land(sink)
    land(sink, run_id=RUNS[1])
    answers = [Held(RUNS[1]), Held(RUNS[0])]
    found = collect(sink, lambda keys: dict.fromkeys(keys, answers.pop(0)), unfinished=EARLY, superseded=LATE)
    assert found == Collected()
    assert sink.runs(KEY) == RUNS[:2]


def test_two_collectors_at_once_leave_nothing_and_break_nothing(sink):
    for run_id in RUNS:
        land(sink, run_id=run_id)
    for n in range(20):
        left(sink, run_id_at(NOW + timedelta(days=1, hours=n)))
    found: list[Collected] = []
    start = threading.Barrier(3)

    def work() -> None:
        start.wait()
        found.append(gathered(sink, Held(RUNS[3], frozenset(RUNS[3:])), superseded=LATE))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 3
    assert [one.skipped for one in found] == [{}, {}, {}]
    assert sum(one.superseded for one in found) >= 3
    assert sum(one.unfinished for one in found) >= 20
    assert gathered(sink) == Collected()
    assert list(sink.open_partition(KEY, RUNS[3]).rows()) == ROWS


@pytest.mark.parametrize("text", [b"", b"garbage", b"[]", b"{}", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_in_an_object_store_a_run_whose_metadata_is_garbage_is_skipped_and_named(objects, bucket, text):
    land(objects)
    (payload,) = [name for name in bucket.objects if name.endswith("payload.jsonl")]
    bucket.objects[payload.replace("attempt=", "attempt=0")] = b"half a payl"
    (metadata,) = [name for name in bucket.objects if name.endswith("metadata.json")]
    bucket.objects[metadata] = text
    before = dict(bucket.objects)
    assert len(before) == 3
    found = gathered(objects, Held(RUNS[3]), superseded=LATE)
    assert (found.unfinished, found.superseded) == (0, 0)
    assert list(found.skipped) == [run_folder(KEY, RUN)]
    assert "metadata.json" in found.skipped[run_folder(KEY, RUN)]
    assert bucket.objects == before


def test_in_an_object_store_a_run_whose_metadata_is_refused_is_skipped_and_named(objects, bucket):
    """A 403 for one object: the store is there, and does not say what belongs to the run."""
    land(objects)
    (payload,) = [name for name in bucket.objects if name.endswith("payload.jsonl")]
    (metadata,) = [name for name in bucket.objects if name.endswith("metadata.json")]
    bucket.objects[payload.replace("attempt=", "attempt=0")] = b"half a payl"
    bucket.closed[metadata] = 403
    before = dict(bucket.objects)
    found = gathered(objects, Held(RUNS[3]), superseded=LATE)
    assert (found.unfinished, found.superseded, list(found.skipped)) == (0, 0, [run_folder(KEY, RUN)])
    assert bucket.objects == before
    bucket.closed.clear()
    assert gathered(objects) == Collected(unfinished=1), "the loser goes once the run can be read"
    assert list(objects.open_partition(KEY, RUN).rows()) == ROWS


def test_in_an_object_store_a_run_that_the_ledger_refers_to_stays_without_its_metadata(objects, bucket):
    land(objects)
    (metadata,) = [name for name in bucket.objects if name.endswith("metadata.json")]
    del bucket.objects[metadata]
    found = gathered(objects, Held(RUN, frozenset([RUN])))
    assert "the ledger refers to this run" in next(iter(found.skipped.values()))
    assert len(bucket.objects) == 1


def test_what_is_not_ours_is_left_alone(objects, bucket, disk, tmp_path):
    names = ["payload.jsonl", "other/attempt=1/payload.jsonl", f"{run_folder(KEY, RUN)}/payload.jsonl"]
    for name in names:
        bucket.objects[f"raw/data/{name}"] = b"somebody's"
    assert gathered(objects) == Collected()
    assert len(bucket.objects) == 3
    land(disk)
    (tmp_path / "raw" / ".writing-by-somebody").mkdir()
    (tmp_path / "raw" / "source=x" / ".writing-by-somebody").mkdir(parents=True)
    assert gathered(disk) == Collected()


def test_on_a_disk_a_run_whose_metadata_is_garbage_or_gone_is_skipped_and_named(disk, tmp_path):
    for run_id in RUNS:
        land(disk, run_id=run_id)
    place = [tmp_path / "raw" / run_folder(KEY, run_id) / "metadata.json" for run_id in RUNS]
    place[0].chmod(0o644)
    place[0].write_text("garbage")
    place[1].unlink()
    changed = json.loads(place[2].read_text()) | {"run_id": RUNS[0]}
    place[2].chmod(0o644)
    place[2].write_text(json.dumps(changed))
    found = gathered(disk, Held(RUNS[3], frozenset(RUNS[3:])), superseded=LATE)
    assert (found.superseded, sorted(found.skipped)) == (0, [run_folder(KEY, run_id) for run_id in RUNS[:3]])
    assert disk.runs(KEY) == RUNS


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is closed to root")
def test_on_a_disk_what_may_not_be_read_is_skipped_and_named(disk, tmp_path):
    left(disk)
    land(disk, run_id=RUNS[1])
    folder = tmp_path / "raw" / partition_folder(KEY)
    (attempt,) = folder.glob(".writing-*")
    other = tmp_path / "raw" / "source=other"
    other.mkdir()
    for place in (attempt, other):
        place.chmod(0)
    try:
        found = gathered(disk)
        assert found.unfinished == 0
        assert sorted(found.skipped) == [f"{partition_folder(KEY)}/{attempt.name}", other.name]
        assert set(found.skipped.values()) == {"Permission denied"}
    finally:
        for place in (attempt, other):
            place.chmod(0o755)
    assert gathered(disk) == Collected(unfinished=1)


def test_a_store_that_cannot_be_listed_is_an_error_and_an_empty_one_is_not(objects, bucket, tmp_path):
    assert gathered(RawSink(tmp_path / "nowhere"), superseded=LATE) == Collected()
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(RawUnavailable):
        gathered(RawSink(tmp_path / "file"))
    bucket.broken = 403
    with pytest.raises(RawUnavailable):
        gathered(objects)

"""Hourly data: deltas counted once and summed, from a folder that the simulator fills."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from penstock.connectors.amazon_ads.report import ReportState
from penstock.connectors.amazon_ads.stream import AmazonStream, StreamGone
from penstock.connectors.records import BadReport, Record
from penstock.model.clock import VirtualClock
from penstock.model.errors import UsageError
from penstock.simulators.amazon_data import Performance
from penstock.simulators.amazon_stream import StreamSimulator

HOUR = datetime(2026, 11, 14, 10, tzinfo=UTC)
NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def stream(root: Path) -> AmazonStream:
    return AmazonStream(root, "1001", VirtualClock(NOW))


def read(root: Path, entity: str = "target", hour: datetime = HOUR) -> list[Record]:
    made = stream(root)
    report_id = made.snapshot(hour, entity).report_id
    return [record for batch in made.records(report_id) for record in batch]


def total(rows: list[Record], column: str) -> Decimal:
    return sum((Decimal(str(row[column])) for row in rows), Decimal())


def write(root: Path, *deltas: dict[str, Any], name: str = "a.jsonl", dataset: str = "sp-traffic") -> None:
    folder = root / "1001" / dataset / "2026-11-14T10"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(delta) + "\n" for delta in deltas))


def read_traffic(root: Path) -> list[Record]:
    """The hour, of which it is known that it has no conversions."""
    write(root, dataset="sp-conversion", name="none.jsonl")
    return read(root)


DELTA = {
    "idempotency_id": "one",
    "time_window_start": "2026-11-14T11:00:00+01:00",
    "campaign_id": "7",
    "ad_group_id": "8",
    "ad_id": "9",
    "keyword_id": "10",
    "keyword_text": "shoes",
    "match_type": "EXACT",
    "impressions": 100,
    "clicks": 3,
    "cost": 0.1,
}


def test_a_snapshot_is_a_report_that_is_ready_once_the_hour_has_come(tmp_path):
    made = stream(tmp_path)
    write(tmp_path, name="a.jsonl")
    pending = made.status(made.snapshot(HOUR, "target").report_id)
    assert pending.state is ReportState.PENDING
    assert pending.said == "the stream has brought no file of 2026-11-14T10 for sp-conversion"
    write(tmp_path, dataset="sp-conversion")
    created = made.snapshot(HOUR, "target")
    assert created.report_id == "stream/target/2026-11-14T10/2026-11-15T12:00:00.000Z"
    status = made.status(created.report_id)
    assert (status.state, status.created_at) == (ReportState.COMPLETED, NOW)
    assert made.snapshot(HOUR.astimezone(), "target").report_id == created.report_id


def test_an_hour_whose_files_are_empty_has_nothing(tmp_path):
    StreamSimulator(tmp_path).quiet("1001", HOUR)
    assert read(tmp_path) == []


def test_an_hour_without_a_file_is_not_an_hour_with_nothing(tmp_path):
    made = stream(tmp_path)
    for folder in (tmp_path / "1001" / name / "2026-11-14T10" for name in ("sp-traffic", "sp-conversion")):
        folder.mkdir(parents=True)
    created = made.snapshot(HOUR, "target")
    assert made.status(created.report_id).state is ReportState.PENDING
    with pytest.raises(StreamGone, match="no file of 2026-11-14T10 for sp-traffic and sp-conversion"):
        list(made.records(created.report_id))


def test_without_its_folder_a_stream_is_gone(tmp_path):
    made = stream(tmp_path / "stream")
    report_id = f"stream/target/2026-11-14T10/{NOW:%Y-%m-%dT%H:%M:%S.000Z}"
    asked: list[Callable[[], object]] = [
        made.require,
        made.first_hour,
        lambda: made.snapshot(HOUR, "target"),
        lambda: made.status(report_id),
        lambda: list(made.records(report_id)),
    ]
    for ask in asked:
        with pytest.raises(StreamGone, match=r"1001 cannot be read: No such file or directory"):
            ask()
    (tmp_path / "stream").mkdir()
    (tmp_path / "stream" / "1001").write_text("")
    with pytest.raises(StreamGone, match="is not a folder"):
        made.require()


def test_the_first_hour_is_the_earliest_folder_that_is_one(tmp_path):
    made = stream(tmp_path)
    made.folder.mkdir()
    assert made.first_hour() is None
    for name in ("2026-11-14T11", "2026-11-14T10", "2026-1-1T0", "tmp", "2026-13-01T00"):
        (tmp_path / "1001" / "sp-traffic" / name).mkdir(parents=True)
    (tmp_path / "1001" / "sp-conversion" / "2026-10-01T00").mkdir(parents=True)  # late conversions of an earlier click
    assert made.first_hour() == HOUR


def test_what_cannot_be_read_is_named(tmp_path):
    StreamSimulator(tmp_path).quiet("1001", HOUR)
    hour = tmp_path / "1001" / "sp-traffic" / "2026-11-14T10"
    hour.rename(hour.with_name("away"))
    hour.symlink_to(hour)
    with pytest.raises(StreamGone, match=r"2026-11-14T10 cannot be read: Too many levels of symbolic links"):
        read(tmp_path)


def test_a_file_that_cannot_be_looked_at_is_named_as_well(tmp_path):
    StreamSimulator(tmp_path).quiet("1001", HOUR)
    hour = tmp_path / "1001" / "sp-traffic" / "2026-11-14T10"
    # As in a folder that may be listed and not entered, whoever runs the test.
    (hour / "long.jsonl").symlink_to("x" * 300)
    with pytest.raises(StreamGone, match="2026-11-14T10 cannot be read: File name too long"):
        stream(tmp_path).status(f"stream/target/2026-11-14T10/{NOW:%Y-%m-%dT%H:%M:%S.000Z}")


def test_what_is_no_file_says_nothing_of_an_hour(tmp_path):
    write(tmp_path, dataset="sp-conversion")
    write(tmp_path, name="a.part")
    hour = tmp_path / "1001" / "sp-traffic" / "2026-11-14T10"
    (hour / "folder.jsonl").mkdir()
    os.mkfifo(hour / "pipe.jsonl")
    with pytest.raises(StreamGone, match="no file of 2026-11-14T10 for sp-traffic"):
        read(tmp_path)


def test_deltas_are_counted_once_and_summed_exactly(tmp_path):
    write(tmp_path, DELTA, DELTA, DELTA | {"idempotency_id": "two", "cost": 0.2, "clicks": -1})
    write(tmp_path, DELTA | {"idempotency_id": "three", "cost": 1, "impressions": 1}, DELTA, name="b.jsonl")
    conversion = {name: DELTA[name] for name in ("campaign_id", "ad_group_id", "ad_id", "keyword_id")}
    conversion |= {"idempotency_id": "four", "time_window_start": "2026-11-14T10:00:00Z"}
    conversion |= {"attributed_conversions_7d": 2, "attributed_sales_7d": 39.98}
    write(tmp_path, conversion, dataset="sp-conversion")
    assert read(tmp_path) == [
        {
            "hour": "2026-11-14T10:00:00.000Z",
            "campaignId": 7,
            "adGroupId": 8,
            "keywordId": 10,
            "keyword": "shoes",
            "matchType": "EXACT",
            "impressions": 201,
            "clicks": 5,
            "cost": Decimal("1.3"),
            "purchases7d": 2,
            "sales7d": Decimal("39.98"),
        }
    ]
    (product,) = read(tmp_path, "product")
    assert (product["adId"], product["clicks"], "keywordId" in product) == (9, 5, False)


def test_the_id_alone_says_that_a_delta_came_before_and_the_first_one_counts(tmp_path):
    write(tmp_path, DELTA, DELTA | {"received_at": "later"})
    write(tmp_path, DELTA | {"clicks": 99}, name="b.jsonl")
    assert [(row["clicks"], row["impressions"]) for row in read_traffic(tmp_path)] == [(3, 100)]


def test_late_deltas_are_in_the_next_snapshot_and_complete_the_sum(tmp_path):
    simulator = StreamSimulator(tmp_path, Performance(rows=50))
    simulator.write("1001", HOUR)
    simulator.write("1001", HOUR + timedelta(hours=1))
    simulator.write("1002", HOUR)
    early = read(tmp_path)
    simulator.write("1001", HOUR, late=True)
    late = read(tmp_path)
    assert len(early) == len(late) == 50
    truth = simulator.deltas("1001", HOUR, "sp-traffic")
    assert total(late, "impressions") == sum(delta["impressions"] for delta in truth)
    assert total(late, "cost") == sum(Decimal(str(delta["cost"])) for delta in truth)
    assert total(early, "impressions") < total(late, "impressions")
    conversions = simulator.deltas("1001", HOUR, "sp-conversion")
    assert total(late, "purchases7d") == sum(delta["attributed_conversions_7d"] for delta in conversions) > 0
    assert {row["keyword"] is None for row in late} == {False}


def test_many_deltas_come_in_batches(tmp_path):
    rows = (DELTA | {"idempotency_id": str(n), "keyword_id": str(n % 2_500)} for n in range(10_000))
    write(tmp_path, *rows)
    write(tmp_path, dataset="sp-conversion")
    made = stream(tmp_path)
    batches = list(made.records(made.snapshot(HOUR, "target").report_id))
    assert [len(batch) for batch in batches] == [1_000, 1_000, 500]
    assert sum(int(str(row["impressions"])) for batch in batches for row in batch) == 1_000_000


def test_files_that_are_still_being_written_are_left_alone(tmp_path):
    write(tmp_path, DELTA, name="a.part")
    write(tmp_path, name="b.jsonl")
    assert read_traffic(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"idempotency_id": None}, "without idempotency_id"),
        ({"idempotency_id": 5}, "without idempotency_id"),
        ({"time_window_start": "2026-11-14T11:00:00Z"}, "not 2026-11-14T10:00:00.000Z"),
        ({"time_window_start": "2026-11-14T10:00:00"}, "has no time zone"),
        ({"time_window_start": None}, "time_window_start is None"),
        ({"clicks": "3"}, "clicks is '3', not a number"),
        ({"clicks": True}, "clicks is True, not a number"),
        ({"cost": 10**30}, "not a number that can be summed"),
        ({"keyword_id": [1]}, "keyword_id is"),
    ],
)
def test_a_delta_that_cannot_be_counted_is_named(tmp_path, change, reason):
    write(tmp_path, DELTA, DELTA | change)
    with pytest.raises(BadReport, match=r"a\.jsonl, line 2: ") as caught:
        read_traffic(tmp_path)
    assert reason in caught.value.reason


@pytest.mark.parametrize(
    "line", ["{", "[1]", '{"a":NaN}', '{"cost":1e999999}', '"' + "x" * 2_000_000, "[" * 9_999], ids=range(6)
)
def test_a_line_that_is_not_a_delta_is_named(tmp_path, line):
    write(tmp_path)
    (tmp_path / "1001" / "sp-traffic" / "2026-11-14T10" / "a.jsonl").write_text(f"\n{line}\n")
    with pytest.raises(BadReport, match=r"a\.jsonl, line 2: "):
        read_traffic(tmp_path)


def test_what_is_no_hour_no_entity_no_profile_and_no_snapshot_is_refused(tmp_path):
    made = stream(tmp_path)
    with pytest.raises(UsageError, match="not the start of an hour"):
        made.snapshot(HOUR.replace(minute=1), "target")
    with pytest.raises(UsageError, match="one of target, product"):
        made.snapshot(HOUR, "campaign")
    for profile in ("..", "", "a/b"):
        with pytest.raises(UsageError, match="not a profile id"):
            replace(made, profile_id=profile)
    for report_id in ("stream/target/../x", "stream/campaign/2026-11-14T10/2026-11-15T12:00:00.000Z", "a-uuid"):
        with pytest.raises(BadReport, match="not the id of a snapshot"):
            list(made.records(report_id))

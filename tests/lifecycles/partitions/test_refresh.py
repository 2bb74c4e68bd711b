"""A day is extracted once it is over where its customer is, and again at every offset; a failure serves none."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from penstock.ledger.care.doctor import examine
from penstock.lifecycles.partitions.flow import Extractions
from penstock.lifecycles.partitions.jobs import ENUMERATE
from penstock.lifecycles.partitions.judgement import Validators
from penstock.lifecycles.partitions.machine import MACHINES, P, X, wanted_unit
from penstock.lifecycles.partitions.operations import RangeWanted, backfill
from penstock.lifecycles.partitions.settings import PartitionSettings, Source
from penstock.model.errors import Rejected
from penstock.model.machine import Actor
from penstock.raw.paths import PartitionKey, run_id_at
from penstock.settings.typed import TimeZone
from penstock.worker.schedule import Schedules, keep_schedules
from penstock.worker.schedule_unit import Schedule
from tests.support.ad_source import CONFIG, CUSTOMERS
from tests.support.partitions import DAY, KEY, QUERY, START, Partitions, Said, read_settings, rows

pytestmark = pytest.mark.by_day
A_DAY, HOUR = timedelta(days=1), timedelta(hours=1)
ZONES = {CUSTOMERS[0]: "America/Los_Angeles", CUSTOMERS[1]: "Europe/Madrid"}


def source(zone: str, **more: Any) -> Source:
    return Source(customers=("1",), time_zone=TimeZone(zone), queries={"campaign_daily": QUERY}, **more)


def want(world: Partitions, key: PartitionKey = KEY) -> None:
    world.ledger.birth([wanted_unit(key, world.time.now())], actor=Actor.SCHEDULER, who="test")


def offsets(world: Partitions, key: PartitionKey = KEY) -> list[tuple[str, str]]:
    """(day and hour of the run, verdict) of every evaluation."""
    return [(run_id[5:13], verdict) for run_id, verdict, _ in world.attempts(key)]


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("America/Los_Angeles", date(2026, 10, 31), 24),
        ("America/Los_Angeles", date(2026, 11, 1), 25),
        ("America/Los_Angeles", date(2026, 3, 8), 23),
        ("Asia/Beirut", date(2026, 3, 29), 23),  # midnight itself is skipped there
        ("Pacific/Apia", date(2011, 12, 30), 0),  # a day that was left out
        ("UTC", date(2026, 3, 8), 24),
    ],
)
def test_a_day_has_23_24_or_25_hours_and_its_first_offset_comes_after_it(zone, day, hours):
    found = source(zone)
    assert found.ends("1", day) - found.begins("1", day) == timedelta(hours=hours)
    ladder = found.ladder("1", day)
    assert ladder.at(A_DAY) == max(found.ends("1", day) + 3 * HOUR, found.begins("1", day) + A_DAY)
    assert ladder.due(found.ends("1", day)) is None
    assert ladder.at(3 * A_DAY) == found.begins("1", day) + 3 * A_DAY


def test_midnight_in_utc_ends_no_day_in_los_angeles():
    found = PartitionSettings(sources={"google_ads": source("America/Los_Angeles", days=1)})
    for moment, last in (
        (datetime(2026, 11, 2, 0, tzinfo=UTC), date(2026, 10, 31)),
        (datetime(2026, 11, 2, 10, 59, tzinfo=UTC), date(2026, 10, 31)),  # over at 08:00, and three hours are not
        (datetime(2026, 11, 2, 11, tzinfo=UTC), date(2026, 11, 1)),
    ):
        (wanted,) = found.wanted(moment)
        assert (wanted.start, wanted.end) == (last, last)


def test_each_customer_has_its_own_days():
    found = read_settings(CONFIG.format(more='delay = "1h"\ntime_zones = { "222-222-2222" = "Asia/Tokyo" }'))
    assert found.source("google_ads").zones == {CUSTOMERS[0]: "UTC", CUSTOMERS[1]: "Asia/Tokyo"}
    ends = {w.customers: w.end for w in found.wanted(datetime(2026, 11, 2, 16, tzinfo=UTC))}
    assert ends == {(CUSTOMERS[0],): date(2026, 11, 1), (CUSTOMERS[1],): date(2026, 11, 2)}


def test_the_schedule_wants_a_day_when_it_is_over_there_and_the_run_has_all_of_it(partitions_url, tmp_path):
    """Two customers, nine hours apart: no run is begun before its own midnight and the delay."""
    world = Partitions(partitions_url, tmp_path, time_zones=ZONES, days=1)
    keep_schedules(world.ledger, [Schedule(name="daily", job=ENUMERATE, every="1h")], "test")
    asked = Said(lambda key: rows(key=key))
    world.live(world.flow(asked), Schedules(world.program.jobs()), days=2)
    begun = {(key.customer_id, key.logical_date.day): run_id[:13] for key, run_id in asked.asked}
    del begun[CUSTOMERS[0], 1], begun[CUSTOMERS[1], 2]  # over when the test begins, and refreshed since
    assert begun == {
        (CUSTOMERS[0], 2): "2026-11-03T11",
        (CUSTOMERS[0], 3): "2026-11-04T11",
        (CUSTOMERS[1], 3): "2026-11-04T02",
        (CUSTOMERS[1], 4): "2026-11-05T02",
    }
    world.close()


def test_a_partition_is_extracted_at_every_offset_and_then_no_more(world):
    want(world)
    answers = [rows(note="1"), rows(note="3"), rows(note="3"), rows(note="30")]
    world.live(world.flow(Said(*answers)), days=60)
    assert offsets(world) == [
        ("11-03T06", "success"),  # its first offset was past
        ("11-04T00", "success"),
        ("11-08T00", "success"),
        ("12-01T00", "success"),
    ]
    unit, state = world.extraction(), world.state()
    assert (unit.status, unit.due_at, unit.serving_offset) == (X.DONE, None, None)
    assert state is not None
    assert (state.status, state.attempt_count, state.current_run_id) == (P.SUCCESS, 4, unit.run_id)
    assert [(a, b, who) for a, b, who, _ in world.history()] == [
        (None, "success", "validator"),
        *[("success", "success", "validator")] * 3,
    ]
    again = [who for a, b, who, _ in world.history("extraction") if (a, b) == ("done", "wanted")]
    assert again == ["scheduler"] * 3
    found = [(c.query_name, c.offset, c.loads, c.compared, c.changed) for c in world.cadence()]
    assert found == [
        ("campaign_daily", "T+1d", 1, 0, 0),
        ("campaign_daily", "T+3d", 1, 1, 1),
        ("campaign_daily", "T+7d", 1, 1, 0),
        ("campaign_daily", "T+30d", 1, 1, 1),
    ]
    assert world.cadence("other") == []
    assert examine(world.ledger.database, {m.name: m for m in MACHINES}) == []


def test_the_order_of_rows_and_fields_is_no_change(world):
    want(world)
    turned = [dict(reversed(row.items())) for row in reversed(rows())]
    world.live(world.flow(Said(rows(), turned)), days=2)
    assert [c.changed for c in world.cadence()] == [0, 0]


def test_offsets_that_were_missed_come_to_one_run(world):
    want(world)
    world.time.advance(10 * 86_400)
    asked = Said(rows())
    world.work(world.flow(asked), seconds=60)
    assert len(asked.asked) == 1
    assert world.extraction().due_at == datetime(2026, 12, 1, tzinfo=UTC)
    assert [c.offset for c in world.cadence()] == ["T+7d"]


def test_a_failure_does_not_serve_its_offset_and_the_next_one_comes_all_the_same(world):
    want(world)
    asked = Said(Rejected("not today"), rows())
    world.work(world.flow(asked), seconds=60)
    unit = world.extraction()
    assert (unit.status, unit.serving_offset, unit.served_at) == (X.FAILED, 86_400, None)
    assert unit.due_at == datetime(2026, 11, 4, tzinfo=UTC)
    world.live(world.flow(asked), days=1)
    unit = world.extraction()
    assert (unit.status, unit.serving_offset) == (X.DONE, None)
    assert offsets(world) == [("11-04T00", "success")]
    assert ("failed", "wanted", "scheduler") in [line[:3] for line in world.history("extraction")]


def test_a_rejected_run_does_not_serve_its_offset_and_consumers_read_on_where_the_last_good_is_kept(
    partitions_url, tmp_path
):
    world = Partitions(partitions_url, tmp_path, keep_last_good=True)
    want(world)
    world.live(world.flow(Said(rows(note="1"), [{"bad": 1}], rows(note="7"))), days=1)
    unit = world.extraction()
    assert (unit.status, unit.verdict, unit.serving_offset) == (X.DONE, "kept", 3 * 86_400)
    assert unit.served_at == START
    assert {row["note"] for row in world.reader.open(KEY).rows()} == {"1"}
    world.live(world.flow(Said(rows(note="7"))), days=5)
    assert offsets(world) == [("11-03T06", "success"), ("11-04T00", "kept"), ("11-08T00", "success")]
    assert {row["note"] for row in world.reader.open(KEY).rows()} == {"7"}
    assert [c.offset for c in world.cadence()] == ["T+1d", "T+7d"]
    world.close()


def test_consumers_read_the_run_of_before_while_a_refresh_is_under_way(world):
    want(world)
    seen: list[tuple[str, str | None]] = []

    def answer(key: PartitionKey) -> list[dict[str, Any]]:
        found = world.reader.status(key)
        seen.append((found.status, found.current_run_id))
        return rows(key=key)

    world.live(world.flow(Said(answer)), days=1)
    assert seen == [("pending", None), ("success", run_id_at(START))]


def test_a_day_that_is_not_over_waits_whoever_wants_it(partitions_url, tmp_path):
    world = Partitions(partitions_url, tmp_path, time_zones=ZONES)
    today = PartitionKey("google_ads", CUSTOMERS[0], "campaign_daily", date(2026, 11, 2))
    want(world, today)
    asked = Said(lambda key: rows(key=key))
    world.live(world.flow(asked), days=1 / 24)
    assert asked.asked == []
    assert world.extraction(today).due_at == datetime(2026, 11, 3, 8, tzinfo=UTC)
    assert "is not over in America/Los_Angeles" in str(world.extraction(today).change_reason)
    world.live(world.flow(asked), days=2 / 24)
    assert [run_id[:13] for _, run_id in asked.asked] == ["2026-11-03T08"], "a person need not wait for the delay"
    assert world.extraction(today).due_at == datetime(2026, 11, 3, 11, tzinfo=UTC), "which serves no offset"
    world.close()


def test_a_run_from_before_the_end_of_its_day_is_rejected_whoever_landed_it(partitions_url, tmp_path):
    world = Partitions(partitions_url, tmp_path, time_zones=ZONES)
    today = PartitionKey("google_ads", CUSTOMERS[0], "campaign_daily", date(2026, 11, 2))
    judged = world.validate(world.land(key=today), today)
    assert judged.verdict == "failed"
    assert "before its day was over at 2026-11-03T08:00:00.000Z; extract it again" in judged.reason
    world.time.advance(2 * 3_600)
    assert world.validate(world.land(key=today), today).verdict == "success"
    world.close()


def test_a_backfill_is_fetched_once_beyond_the_last_offset_and_climbs_the_rest_within(world):
    old, young = DAY - 60 * A_DAY, DAY - 4 * A_DAY
    asked = Said(lambda key: rows(key=key))
    for day in (old, young):
        world.do(backfill, RangeWanted(source="google_ads", first=day, customer=CUSTOMERS[:1]))
    world.work(world.flow(asked), seconds=60)
    keys = {day: PartitionKey("google_ads", CUSTOMERS[0], "campaign_daily", day) for day in (old, young)}
    assert (world.extraction(keys[old]).due_at, world.extraction(keys[old]).backfill) == (None, True)
    assert world.extraction(keys[young]).due_at == datetime(2026, 11, 4, tzinfo=UTC)
    world.live(world.flow(asked), days=60)
    assert [key.logical_date for key, _ in asked.asked].count(old) == 1
    assert [key.logical_date for key, _ in asked.asked].count(young) == 3, "on the way, and at T+7d and T+30d"
    unit = world.extraction(keys[young])
    assert (unit.backfill, unit.due_at) == (False, None)


def test_what_leaves_the_configuration_rests_and_goes_on_when_it_is_back(world):
    want(world)
    asked = Said(lambda key: rows(key=key))
    world.work(world.flow(asked), seconds=60)
    without = Extractions({"google_ads": asked}, Validators(world.sink, PartitionSettings()))
    world.live(without, days=6)
    unit = world.extraction()
    assert (unit.status, len(asked.asked)) == (X.DONE, 1)
    assert unit.due_at is not None
    assert unit.due_at - world.time.now() <= A_DAY, "it is looked at once a day"
    world.live(world.flow(asked), days=1)
    assert len(asked.asked) == 2
    assert world.extraction().due_at == datetime(2026, 12, 1, tzinfo=UTC)


def test_a_change_of_the_zone_moves_what_was_wanted_before(partitions_url, tmp_path):
    """Wanted by UTC, and found out to live in Los Angeles: it waits for the day that is over there."""
    world = Partitions(partitions_url, tmp_path)
    key = PartitionKey("google_ads", CUSTOMERS[0], "campaign_daily", date(2026, 11, 2))
    want(world, key)
    moved = Partitions(partitions_url, tmp_path, time_zones=ZONES)
    asked = Said(lambda key: rows(key=key))
    world.live(Extractions({"google_ads": asked}, moved.validators), days=3 / 24)
    assert [run_id[:13] for _, run_id in asked.asked] == ["2026-11-03T08"]
    moved.close()
    world.close()

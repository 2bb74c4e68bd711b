"""The rows of every account's retention window: all of them, once, in their own time zones; and their end."""

from __future__ import annotations

import dataclasses
import shutil
from datetime import UTC, date, datetime, timedelta

import msgspec
import pytest
import structlog
from msgspec.structs import asdict

from penstock.connectors.amazon_ads.stream import AmazonStream
from penstock.ledger.care.doctor import examine
from penstock.ledger.ledger import Ledger
from penstock.lifecycles.reports.datasets import (
    LIKE,
    periods,
    prune_report_datasets,
    update_report_datasets,
    window,
)
from penstock.lifecycles.reports.machine import Aggregation, S, machine
from penstock.lifecycles.reports.settings import Account, ReportSettings
from penstock.lifecycles.reports.tables import DATA_TABLES, VIEWS
from penstock.model.clock import Rng, VirtualClock
from penstock.model.errors import LedgerRefused
from penstock.model.machine import Actor
from penstock.model.unit import Ref, replace
from penstock.settings.typed import TimeZone
from penstock.simulators.amazon_stream import StreamSimulator

NOW = datetime(2026, 11, 15, 12, 34, 56, tzinfo=UTC)
ACCOUNTS = {
    "acme": Account(profile_id="1", country="ES", time_zone=TimeZone("Europe/Madrid")),
    "globex": Account(profile_id="2", country="US", time_zone=TimeZone("America/Los_Angeles")),
    "a/b%c": Account(profile_id="3", country="JP", time_zone=TimeZone("Asia/Tokyo")),
}
DAILY, HOURLY = 2 * 62, 2 * 360


LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


class Town:
    """A ledger of its own, on a clock that the test moves, and a stream that has long been there for every account."""

    def __init__(self, url, folder):
        self.clock = VirtualClock(NOW)
        self.stream = StreamSimulator(folder)
        self.streams = {name: AmazonStream(folder, a.profile_id, self.clock) for name, a in ACCOUNTS.items()}
        for account in ACCOUNTS.values():
            self.stream.quiet(account.profile_id, LONG_AGO)
        self.ledger = Ledger.open(
            url, [machine], clock=self.clock, rng=Rng(5), create=True, data_tables=DATA_TABLES, views=VIEWS
        )

    def update(self, accounts=ACCOUNTS, **settings):
        return self.update_at(self.clock.now(), ReportSettings(accounts=accounts, **settings))

    def update_at(self, now, known):
        return update_report_datasets(self.ledger, known, now, who="test", streams=self.streams)

    def prune(self, **settings):
        known = ReportSettings(**settings)
        return prune_report_datasets(self.ledger, known, self.clock.now(), who="test", rng=self.ledger.rng)

    def rows(self, sql, **parameters):
        return [tuple(row) for row in self.ledger.read(lambda cursor: cursor.rows(sql, **parameters))]

    def count(self, where="true", **parameters):
        return self.rows(f"SELECT count(*) FROM report_dataset_metadata WHERE {where}", **parameters)[0][0]

    def unit(self, key):
        return self.ledger.get(Ref("report", key))


@pytest.fixture
def town(ledger_url, tmp_path):
    made = Town(ledger_url, tmp_path / "stream")
    with made.ledger:
        yield made


def test_every_account_gets_its_whole_window_once(town):
    assert town.update().born == 3 * (DAILY + HOURLY)
    assert town.count("aggregation = 'daily'") == 3 * DAILY
    assert town.count("account = :a", a="a/b%c") == DAILY + HOURLY
    assert town.update().born == 0
    assert town.rows("SELECT count(*) FROM transition_log WHERE from_status IS NULL") == [(3 * (DAILY + HOURLY),)]
    assert not examine(town.ledger.database, {"report": machine})


def test_a_clock_that_was_ahead_for_a_while_hides_no_day(town):
    """One tick in the year after next, and back: what lies between was never made, and is."""
    town.update()
    ahead = town.update_at(NOW + timedelta(days=500), ReportSettings(accounts=ACCOUNTS))
    assert ahead.born == 3 * (DAILY + HOURLY)
    town.clock.advance(86_400)
    assert town.update().born == 3 * (2 + 2 * 24)
    assert town.unit("acme/2026-11-16/daily/target").status is S.MISSING
    assert town.update().born == 0


def test_a_dataset_knows_its_place_and_time(town):
    town.update()
    daily = town.unit("acme/2026-11-01/daily/target")
    assert (daily.status, daily.timestamp) == (S.MISSING, datetime(2026, 10, 31, 23, tzinfo=UTC))
    assert (daily.report_date, daily.time_zone, daily.country) == (date(2026, 11, 1), "Europe/Madrid", "ES")
    assert daily.due_at == daily.timestamp + timedelta(days=1)
    assert daily.gate_id == "amazon_ads/acme"
    hourly = town.unit("globex/2026-11-15T05Z/hourly/product")
    assert hourly.timestamp == datetime(2026, 11, 15, 5, tzinfo=UTC)
    assert hourly.report_date == date(2026, 11, 14)  # it was still Saturday in Los Angeles
    assert hourly.gate_id == "amazon_stream/globex"
    assert hourly.due_at == hourly.timestamp + timedelta(hours=24)
    assert town.unit("a%2Fb%25c/2026-11-15/daily/target").account == "a/b%c"


def test_the_window_follows_the_clock_and_nothing_is_made_twice(town):
    town.update()
    town.clock.advance(3_600)
    assert town.update().born == 2 * 3
    town.clock.advance(23 * 3_600)
    assert town.update().born == 2 * 3 * 24
    assert town.rows("SELECT unit_id FROM transition_log GROUP BY unit_id HAVING count(*) > 1") == []


def test_downtime_leaves_no_gap_within_the_window(town):
    town.update()
    town.clock.advance(100 * 86_400)
    assert town.update().born == 3 * (DAILY + HOURLY)


def test_an_account_is_added_paused_removed_and_comes_back(town):
    town.update({"acme": ACCOUNTS["acme"]})
    assert town.update(ACCOUNTS).born == 2 * (DAILY + HOURLY)
    paused = {**ACCOUNTS, "acme": msgspec.structs.replace(ACCOUNTS["acme"], paused=True)}
    town.clock.advance(3_600)
    assert town.update(paused).born == 2 * 2
    without = {name: a for name, a in ACCOUNTS.items() if name != "acme"}
    town.update(without)
    assert town.rows("SELECT state FROM report_account WHERE account = 'acme'") == [("gone",)]
    ref = Ref("report", "acme/2026-11-01/daily/target")
    resting = {"error": "account 'acme' is not configured", "due_at": None}
    town.ledger.move(ref, S.ERROR, actor=Actor.WORKER, who="test", reason="not configured", **resting)
    done = town.update(ACCOUNTS)
    assert (done.born, done.woken) == (2, 1)  # the hour that was missed while it was paused
    assert town.ledger.get(ref).due_at == town.clock.now()
    assert town.update(ACCOUNTS).woken == 0


def test_offsets_that_reach_further_make_a_longer_window(town):
    town.update({"acme": ACCOUNTS["acme"]})
    longer = {"daily_offsets": (timedelta(days=1), timedelta(days=70))}
    assert town.update({"acme": ACCOUNTS["acme"]}, **longer).born == 2 * 10
    assert town.update({"acme": ACCOUNTS["acme"]}, **longer).born == 0


def test_two_at_once_make_each_dataset_once(town, ledger_url):
    with Ledger.open(ledger_url, [machine], clock=town.clock, rng=Rng(6)) as other:
        known = ReportSettings(accounts=ACCOUNTS)
        town.update({"acme": ACCOUNTS["acme"]})
        town.ledger.database.write(lambda cursor: cursor.run("DELETE FROM report_account"))  # as if both began at once
        born = update_report_datasets(other, known, NOW, who="other", streams=town.streams).born
        assert born == 2 * (DAILY + HOURLY)
        assert town.count() == 3 * (DAILY + HOURLY)


@pytest.mark.parametrize(
    ("zone", "day", "begins"),
    [
        ("America/Los_Angeles", date(2026, 3, 8), datetime(2026, 3, 8, 8, tzinfo=UTC)),  # 23 hours long
        ("America/Los_Angeles", date(2026, 3, 9), datetime(2026, 3, 9, 7, tzinfo=UTC)),
        ("America/Los_Angeles", date(2026, 11, 1), datetime(2026, 11, 1, 7, tzinfo=UTC)),  # 25 hours long
        ("America/Los_Angeles", date(2026, 11, 2), datetime(2026, 11, 2, 8, tzinfo=UTC)),
        ("America/Santiago", date(2026, 9, 6), datetime(2026, 9, 6, 4, tzinfo=UTC)),  # its midnight is skipped
    ],
)
def test_days_begin_at_local_midnight_also_when_clocks_change(zone, day, begins):
    within = window(ReportSettings(), Aggregation.DAILY, zone, begins + timedelta(hours=1))
    assert within is not None
    assert within.last == day
    (found,) = periods(dataclasses.replace(within, first=day), zone, Aggregation.DAILY)
    assert found == {"period": day.isoformat(), "timestamp": begins, "report_date": day}


def test_datasets_beyond_their_retention_go_with_their_history(town):
    town.update({"acme": ACCOUNTS["acme"]})
    assert town.prune() == 0
    old = town.unit("acme/2026-10-02/daily/target")
    town.ledger.birth(
        [replace(old, period="2026-08-01", timestamp=old.timestamp - timedelta(days=62), backfill=True)],
        actor=Actor.OPERATOR,
        who="test",
    )
    town.clock.advance(40 * 86_400)
    gone = town.prune()
    assert gone == HOURLY + 2 * 40
    assert town.count("aggregation = 'hourly'") == 0
    assert town.count("backfill") == 1  # asked for by hand: it stays as long as others do
    history = "SELECT to_status FROM transition_log WHERE unit_id = :unit_id"
    assert town.rows(history, unit_id="acme/2026-10-02/daily/target") == [(None,)]
    assert not [f for f in examine(town.ledger.database, {"report": machine}) if f.severity == "error"]
    town.clock.advance(60 * 86_400)
    town.prune()
    assert town.count() == 0


HOURS = "aggregation = 'hourly' AND account = :a"


def test_an_account_without_a_stream_has_days_and_no_hours(town):
    shutil.rmtree(town.streams["acme"].folder)
    del town.streams["globex"]  # as where reports.stream is not set
    town.update()
    assert town.count("aggregation = 'daily'") == 3 * DAILY
    assert [town.count(HOURS, a=name) for name in ACCOUNTS] == [0, 0, HOURLY]
    assert town.rows("SELECT hourly_from FROM report_account WHERE account = 'acme'") == [(None,)]


def test_hours_are_made_from_the_first_that_the_stream_brought(town):
    shutil.rmtree(town.streams["acme"].folder)
    town.stream.quiet("1", NOW - timedelta(hours=30))
    only = {"acme": ACCOUNTS["acme"]}
    town.update(only)
    assert town.count(HOURS, a="acme") == 2 * 31
    assert town.count("period < '2026-11-14T06Z' AND aggregation = 'hourly'") == 0
    assert town.update(only).born == 0
    town.stream.quiet("1", NOW - timedelta(hours=32))  # it came late
    assert town.update(only).born == 2 * 2
    town.clock.advance(20 * 86_400)
    assert town.update(only).born == 2 * (20 + 360)


def test_a_stream_without_an_hour_yet_begins_now(town):
    shutil.rmtree(town.streams["acme"].folder)
    town.streams["acme"].folder.mkdir()
    town.update({"acme": ACCOUNTS["acme"]})
    assert town.count(HOURS, a="acme") == 2


def test_hours_of_a_stream_that_was_away_are_made_when_it_is_back(town):
    only = {"acme": ACCOUNTS["acme"]}
    town.update(only)
    folder = town.streams["acme"].folder
    folder.rename(folder.with_name("away"))
    town.clock.advance(5 * 3_600)
    assert town.update(only).born == 0
    folder.with_name("away").rename(folder)
    assert town.update(only).born == 2 * 5


def test_an_aggregation_without_offsets_is_off_and_what_it_has_is_kept(town):
    assert town.update(hourly_offsets=()).born == 3 * DAILY
    assert town.update().born == 3 * HOURLY
    town.clock.advance(40 * 86_400)
    assert town.update(hourly_offsets=()).born == 3 * 2 * 40
    assert town.prune(hourly_offsets=()) == 3 * 2 * 40
    assert town.count("aggregation = 'hourly'") == 3 * HOURLY
    assert town.update(daily_offsets=()).born == 3 * HOURLY


@pytest.mark.parametrize(("column", "value"), [("aggregation", "weekly"), ("entity_type", "campaign")])
def test_an_unknown_aggregation_or_entity_type_is_refused_by_the_database(town, column, value):
    town.update({"acme": ACCOUNTS["acme"]})
    known = asdict(town.unit("acme/2026-11-01/daily/target"))
    row = {"account": "acme", "period": "2026-11-01", "aggregation": "daily", "entity_type": "target"} | {column: value}
    changed = {**{name: known[name] for name in ("timestamp", "report_date", "time_zone", "country")}, **row}
    with pytest.raises(LedgerRefused, match=f"{column}_is_known"):
        town.ledger.birth([replace(LIKE, **changed)], actor=Actor.SCHEDULER, who="test")


def test_the_log_and_the_history_name_the_job_of_an_account(town):
    with structlog.testing.capture_logs() as lines:
        town.update()
    found = [line for line in lines if line.get("job") == "update-report-dataset-for-account"]
    assert [(line["account"], line["datasets"]) for line in found] == [
        (name, DAILY + HOURLY) for name in sorted(ACCOUNTS)
    ]
    ((reason,),) = town.rows("SELECT DISTINCT change_reason FROM report_dataset_metadata")
    assert reason == "update-report-dataset-for-account: within its retention window"

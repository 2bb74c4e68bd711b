"""The decisions, as a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from penstock.lifecycles.harvest.feed import Window
from penstock.lifecycles.harvest.partition.decide import decide as decide_partition
from penstock.lifecycles.harvest.partition.decide import doubt_of, is_short, turn_page
from penstock.lifecycles.harvest.partition.machine import P, Partition
from penstock.lifecycles.harvest.run.decide import Known, wanted_run
from penstock.lifecycles.harvest.run.decide import decide as decide_run
from penstock.lifecycles.harvest.run.machine import R, Run, RunType
from penstock.lifecycles.harvest.settings import FeedSettings, HarvestSettings
from penstock.model.outcome import Act, Wait
from penstock.model.unit import replace
from penstock.settings.typed import Secret

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
MARK = NOW - timedelta(hours=6)
OVERLAP, WEEK = timedelta(minutes=10), timedelta(days=7)
RUN = Run(
    run_id=UUID(int=1),
    feed="stones",
    run_type=RunType.FULL,
    expected_workers=3,
    started_at=NOW,
    window_to=NOW,
    expected_records=90,
)
PART = Partition(
    run_id=UUID(int=1),
    partition_id="partition-0",
    feed="stones",
    ordinal=0,
    low=0,
    expected_records=70,
    created_at=NOW,
    updated_at=NOW,
    begun_at=NOW,
    status=P.IN_PROGRESS,
)
OWN: dict[str, Any] = {"username": "buyer@example.com", "password": Secret("env", "NIVODA_PASSWORD")}
SETTINGS = HarvestSettings(
    overlap=OVERLAP, full_every=WEEK, feeds={"stones": FeedSettings(**OWN), "paused": FeedSettings(**OWN, paused=True)}
)


@pytest.mark.parametrize(
    ("known", "run_type"),
    [
        (Known(), RunType.FULL),
        (Known(watermark=MARK, last_full=MARK), RunType.INCREMENTAL),
        (Known(watermark=MARK, last_full=MARK, full_requested=True), RunType.FULL),
        (Known(watermark=MARK, last_full=NOW - WEEK + timedelta(seconds=1)), RunType.INCREMENTAL),
        (Known(watermark=MARK, last_full=NOW - WEEK), RunType.FULL),
        (Known(watermark=MARK, last_full=None), RunType.FULL),
    ],
)
def test_which_run_a_feed_wants(known, run_type):
    assert wanted_run(known, NOW, SETTINGS).run_type is run_type


def test_the_window_ends_before_the_first_call_and_begins_an_overlap_before_the_watermark():
    wanted = wanted_run(Known(watermark=MARK, last_full=MARK), NOW, SETTINGS)
    assert wanted.window == Window(MARK - OVERLAP, NOW)
    assert wanted.watermark == MARK


def test_a_full_run_asks_without_a_window_and_still_ends_its_own_at_the_start():
    wanted = wanted_run(Known(watermark=MARK), NOW, SETTINGS)
    assert wanted.window == Window(None, None)
    assert (wanted.window_to, wanted.watermark) == (NOW, MARK)


def test_a_watermark_of_a_clock_that_runs_ahead_loses_nothing():
    wanted = wanted_run(Known(watermark=NOW + timedelta(hours=1), last_full=NOW), NOW, SETTINGS)
    assert wanted.window == Window(NOW - OVERLAP, NOW)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, "start"),
        ({"expected_workers": 0}, "trigger"),
        ({"status": R.WORKERS_RUNNING, "completed_workers": 2, "verified_workers": 2}, None),
        ({"status": R.WORKERS_RUNNING, "completed_workers": 3, "verified_workers": 2}, None),
        ({"status": R.WORKERS_RUNNING, "completed_workers": 3, "verified_workers": 3}, "trigger"),
        ({"status": R.WORKERS_RUNNING, "completed_workers": 1, "verified_workers": 1, "failed_workers": 1}, None),
        ({"status": R.WORKERS_RUNNING, "completed_workers": 2, "verified_workers": 2, "failed_workers": 1}, "skip"),
        ({"status": R.WORKERS_RUNNING, "failed_workers": 3}, "skip"),
        ({"status": R.CONSOLIDATION_SKIPPED, "failed_workers": 1}, "alert"),
        ({"status": R.CONSOLIDATION_TRIGGERED}, "consolidate"),
        ({"status": R.CONSOLIDATING}, "consolidate"),
        ({"status": R.COMPLETED}, None),
        ({"status": R.FAILED}, None),
    ],
)
def test_what_a_run_does_next(changes, what):
    decision = decide_run(replace(RUN, **changes), NOW, SETTINGS, None)
    if isinstance(decision, Wait):
        assert (what, decision.until) == (None, None)
    else:
        assert isinstance(decision, Act)
        assert decision.what == what


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"begun_at": None}, "begin"),
        ({}, "fetch"),
        ({"status": P.FETCHING_PAGES, "next_offset": 60}, "fetch"),
        ({"status": P.FETCHING_PAGES, "next_offset": 70}, "fetch"),
        ({"status": P.FETCHING_PAGES, "next_offset": 70, "ended": True}, "complete"),
        ({"status": P.FETCHING_PAGES, "next_offset": 669}, "fetch"),
        ({"status": P.FETCHING_PAGES, "next_offset": 670}, "complete"),
        ({"expected_records": 0}, "fetch"),
        ({"error": "it is hopeless"}, "give_up"),
        ({"status": P.FETCHING_PAGES, "error": "it is hopeless"}, "give_up"),
        ({"status": P.COMPLETED, "completed": True}, "recount"),
        ({"status": P.COMPLETED, "completed": True, "attempts": 3}, "verify"),
        ({"status": P.COMPLETED, "completed": True, "verified_at": NOW}, "skip"),
        ({"status": P.FAILED, "error": "it was hopeless"}, None),
        ({"feed": "paused"}, None),
        ({"feed": "gone"}, None),
    ],
)
def test_what_a_partition_does_next(changes, what):
    decision = decide_partition(replace(PART, **changes), NOW, SETTINGS, None)
    assert decision.what == what if isinstance(decision, Act) else what is None
    assert isinstance(decision, Act | Wait)


def test_a_feed_that_is_gone_says_what_to_do():
    assert "configure it again or cancel" in decide_partition(replace(PART, feed="gone"), NOW, SETTINGS, None).reason


def page(first: int, last: int) -> list[str]:
    return [f"s{n}" for n in range(first, last)]


@pytest.mark.parametrize(
    ("before", "found", "after"),
    [
        ({}, page(0, 31), {"next_offset": 30, "coming": "s30"}),
        ({"next_offset": 30, "coming": "s30"}, page(30, 61), {"next_offset": 60, "coming": "s60"}),
        # The last page, with what was counted, more and less than that.
        ({"next_offset": 60, "coming": "s60"}, page(60, 70), {"next_offset": 70, "ended": True}),
        ({"next_offset": 60, "coming": "s60"}, page(60, 91), {"next_offset": 90, "coming": "s90"}),
        ({"next_offset": 60, "coming": "s60"}, page(60, 90), {"next_offset": 90, "ended": True}),
        ({"next_offset": 60, "coming": "s60"}, page(60, 65), {"next_offset": 65}),
        ({"next_offset": 65}, [], {"next_offset": 65, "ended": True}),
        ({"next_offset": 65}, page(65, 67), {"next_offset": 67, "doubt": "a page was short before the end"}),
        ({}, [], {"next_offset": 0, "ended": True}),
        # Two came in front of it; two went; all behind it went.
        ({"next_offset": 30, "coming": "s30"}, page(28, 59), {"next_offset": 60, "coming": "s58"}),
        ({"next_offset": 30, "coming": "s30"}, page(32, 63), {"next_offset": 0, "coming": "s30", "steps_back": 1}),
        ({"next_offset": 60, "coming": "s60"}, [], {"next_offset": 30, "coming": "s60", "steps_back": 1}),
        # One that could be any.
        ({}, ["s0", "??1f"], {"next_offset": 2, "doubt": "a record has no id of its own"}),
        # At the very beginning nothing can have been passed over.
        ({"coming": "s60", "steps_back": 2}, page(0, 31), {"next_offset": 30, "coming": "s30"}),
    ],
)
def test_where_a_partition_stands_after_a_page(before, found, after):
    given = replace(PART, **before)
    turned = turn_page(given, found, SETTINGS)
    assert turned == replace(given, **{"coming": None, **after})


def test_records_that_move_too_often_are_followed_no_further():
    given = replace(PART, next_offset=30, coming="gone", steps_back=SETTINGS.extra_pages)
    turned = turn_page(given, page(32, 63), SETTINGS)
    assert (turned.next_offset, turned.coming, turned.ended) == (60, "s62", False)
    assert "more often than they could be followed" in str(turned.doubt)


@pytest.mark.parametrize(
    ("changes", "found", "there", "doubt"),
    [
        ({}, 70, 70, None),
        ({}, 70, 69, None),
        ({}, 69, 70, "69 of 70 records were found"),
        # What went after it was read makes up for nothing.
        ({"next_offset": 69}, 75, 70, "69 of 70 records were found"),
        ({}, 70, None, "it could not be counted again"),
        ({"ended": False}, 70, 70, "it goes on past its count of 70 without an end"),
        ({"doubt": "they moved"}, 70, 70, "they moved"),
    ],
)
def test_when_all_was_found(changes, found, there, doubt):
    assert doubt_of(replace(PART, **{"next_offset": 70, "ended": True, **changes}), found, there) == doubt


@pytest.mark.parametrize(
    ("found", "counted", "short"),
    [(1_000, 1_000, False), (995, 1_000, False), (994, 1_000, True), (0, 0, False), (7, 0, False), (0, 1, True)],
)
def test_half_a_percent_may_be_missing(found, counted, short):
    assert is_short(found, counted, SETTINGS.tolerance) is short

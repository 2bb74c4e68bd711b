"""The decisions, as a table."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from penstock.lifecycles.harvest.decide import Known, Settings, decide_partition, decide_run, is_short, page_limit, plan
from penstock.lifecycles.harvest.feed import Window
from penstock.lifecycles.harvest.machine import P, Partition, R, Run, RunType
from penstock.outcome import Act, Wait
from penstock.unit import replace

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
    partition_id="partition-00",
    feed="stones",
    ordinal=0,
    low=0,
    expected_records=70,
    created_at=NOW,
    updated_at=NOW,
    begun_at=NOW,
    status=P.IN_PROGRESS,
)
SETTINGS = Settings(feeds={"stones": False, "paused": True})


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
    assert plan(known, NOW, overlap=OVERLAP, full_every=WEEK).run_type is run_type


def test_the_window_ends_before_the_first_call_and_begins_an_overlap_before_the_watermark():
    wanted = plan(Known(watermark=MARK, last_full=MARK), NOW, overlap=OVERLAP, full_every=WEEK)
    assert wanted.window == Window(MARK - OVERLAP, NOW)
    assert wanted.watermark == MARK


def test_a_full_run_asks_without_a_window_and_still_ends_its_own_at_the_start():
    wanted = plan(Known(watermark=MARK), NOW, overlap=OVERLAP, full_every=WEEK)
    assert wanted.window == Window(None, None)
    assert (wanted.window_to, wanted.watermark) == (NOW, MARK)


def test_a_watermark_of_a_clock_that_runs_ahead_loses_nothing():
    wanted = plan(Known(watermark=NOW + timedelta(hours=1), last_full=NOW), NOW, overlap=OVERLAP, full_every=WEEK)
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
    decision = decide_run(replace(RUN, **changes), NOW, None, None)
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
        ({"status": P.FETCHING_PAGES, "next_offset": 70}, "complete"),
        ({"expected_records": 0}, "complete"),
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


@pytest.mark.parametrize(("offset", "limit"), [(0, 30), (30, 30), (60, 10), (69, 1)])
def test_a_page_never_reaches_beyond_the_count(offset, limit):
    assert page_limit(replace(PART, next_offset=offset), SETTINGS) == limit


@pytest.mark.parametrize(
    ("found", "counted", "short"),
    [(1_000, 1_000, False), (995, 1_000, False), (994, 1_000, True), (0, 0, False), (7, 0, False), (0, 1, True)],
)
def test_half_a_percent_may_be_missing(found, counted, short):
    assert is_short(found, counted, SETTINGS.tolerance) is short

"""What a dataset needs now: the table of offsets, the limits, and properties over random clocks."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lifecycles.reports.decide import (
    Seen,
    decide,
    next_attention,
    next_offset_at,
    wanted_offset,
)
from penstock.lifecycles.reports.machine import Aggregation, EntityType, Report, S
from penstock.lifecycles.reports.settings import Account, ReportSettings
from penstock.model.outcome import Act, Decision, Look, Wait
from penstock.model.unit import replace

T = datetime(2026, 11, 1, 8, 0, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
ACME = {"acme": Account(profile_id="1")}
SETTINGS = ReportSettings(accounts={**ACME, "idle": Account(profile_id="2", paused=True)})


def dataset(**fields: Any) -> Report:
    made: dict[str, Any] = {
        "account": "acme",
        "period": "2026-11-01",
        "aggregation": Aggregation.DAILY,
        "entity_type": EntityType.TARGET,
        "timestamp": T,
        "report_date": T.date(),
        "time_zone": "America/Los_Angeles",
        "country": "US",
    }
    return Report(**made | fields)


def fetching(**fields: Any) -> Report:
    made: dict[str, Any] = {
        "status": S.FETCHING,
        "report_id": "r1",
        "last_report_created_at": T + DAY,
        "serving_offset": 86_400,
    }
    return dataset(**made | fields)


def what(decision: Decision) -> str | None:
    return decision.what if isinstance(decision, Act) else None


def changed(report: Report, **fields: Any) -> Report:
    return replace(report, **fields)


def test_before_the_first_offset_it_waits_for_it():
    decision = decide(dataset(), T + 23 * HOUR, SETTINGS, None)
    assert decision == Wait(T + DAY, "no offset is due yet; the next is T+1d")


@pytest.mark.parametrize("days", [1, 3, 5, 7, 14, 30, 60])
def test_each_daily_offset_creates_a_report(days):
    served = dataset(last_report_created_at=T + days * DAY - HOUR)
    decision = decide(served, T + days * DAY, SETTINGS, None)
    assert decision == Act("create", f"T+{days}d is due and unserved")
    assert decide(
        replace(served, last_report_created_at=T + days * DAY), T + days * DAY, SETTINGS, None
    ).reason.startswith("every")


@pytest.mark.parametrize("hours", [24, 72, 312])
def test_each_hourly_offset_creates_a_report(hours):
    hourly = dataset(aggregation=Aggregation.HOURLY, period="2026-11-01T08Z")
    assert next_offset_at(hourly, T + hours * HOUR - HOUR, SETTINGS) == T + hours * HOUR
    decision = decide(hourly, T + hours * HOUR, SETTINGS, None)
    assert decision == Act("create", f"T+{hours}h is due and unserved")


def test_after_the_last_offset_nothing_is_scheduled():
    done = dataset(last_report_created_at=T + 60 * DAY)
    assert decide(done, T + 61 * DAY, SETTINGS, None) == Wait(
        None, "every offset that is due is served; there is no later offset"
    )


def test_a_report_under_way_is_looked_at():
    assert isinstance(decide(fetching(), T + DAY, SETTINGS, None), Look)
    assert isinstance(decide(fetching(status=S.PARSING), T + DAY, SETTINGS, None), Look)


def test_a_pending_report_is_looked_at_again_in_five_minutes():
    now = T + DAY + HOUR
    decision = decide(fetching(), now, SETTINGS, Seen("pending", "PROCESSING"))
    assert decision == Wait(now + timedelta(minutes=5), "report r1 is not ready: PROCESSING")


@pytest.mark.parametrize(
    ("seen", "hours", "refused", "wanted"),
    [
        (Seen("ready", url="https://x"), 0, False, "process"),
        (Seen("failed", "FAILED: too large"), 0, False, "fail"),
        (Seen("pending", "PENDING"), 6, False, "cancel"),
        (Seen("pending", "PENDING"), 24, True, "give_up"),
        (Seen("ready", url="https://x"), 30, True, "process"),
    ],
)
def test_what_a_look_leads_to(seen, hours, refused, wanted):
    now = T + DAY + hours * HOUR
    report = fetching(cancel_refused_at=now if refused else None)
    assert what(decide(report, now, SETTINGS, seen)) == wanted


def test_a_cancel_that_was_refused_is_not_asked_for_again():
    now = T + DAY + 7 * HOUR
    assert isinstance(decide(fetching(cancel_refused_at=now), now, SETTINGS, Seen("pending", "PENDING")), Wait)


def test_no_report_is_cancelled_before_six_hours_are_over():
    now = T + DAY + 6 * HOUR - timedelta(seconds=1)
    assert isinstance(decide(fetching(), now, SETTINGS, Seen("pending", "PENDING")), Wait)


def test_without_offsets_a_dataset_rests_and_is_asked_after_a_day_later():
    off = ReportSettings(accounts=ACME, hourly_offsets=())
    hourly = dataset(aggregation=Aggregation.HOURLY, period="2026-11-01T08Z", serving_offset=86_400)
    assert decide(hourly, T + DAY, off, None) == Wait(
        T + 2 * DAY, "hourly is switched off: reports.hourly_offsets is empty"
    )
    assert next_attention(hourly, T + DAY, off) == T + 2 * DAY


def test_an_account_that_is_not_configured_is_disowned_and_a_paused_one_waits():
    assert what(decide(dataset(account="nobody"), T + DAY, SETTINGS, None)) == "disown"
    assert decide(dataset(account="idle"), T + DAY, SETTINGS, None) == Wait(
        T + DAY + HOUR, "account 'idle' is paused in the configuration"
    )


def test_a_backfill_looks_first_and_waits_behind_daily_work():
    old, now = dataset(backfill=True), T + 90 * DAY
    assert isinstance(decide(old, now, SETTINGS, None), Look)
    assert isinstance(decide(old, now, SETTINGS, Seen("busy")), Wait)
    assert what(decide(old, now, SETTINGS, Seen("free"))) == "create"


FAILURES = ["create_failures", "provider_failures", "pending_failures", "parse_failures", "link_expiries"]


@pytest.mark.parametrize("counter", FAILURES)
def test_a_failure_does_not_serve_its_offset_until_its_limit(counter):
    failed = dataset(status=S.ERROR, error="why", serving_offset=86_400, last_report_created_at=T + DAY + HOUR)
    now = T + DAY + 2 * HOUR
    assert wanted_offset(changed(failed, **{counter: 2}), now, SETTINGS) == DAY
    given_up = changed(failed, **{counter: 3})
    assert decide(given_up, now, SETTINGS, None) == Wait(T + 3 * DAY, "T+1d was given up: why; the next is T+3d")
    # The next offset is another matter, whatever became of this one.
    assert wanted_offset(given_up, T + 3 * DAY, SETTINGS) == 3 * DAY


def test_an_adopted_report_that_is_older_than_the_offset_leaves_it_unserved():
    adopted = dataset(status=S.COMPLETED, loaded_report_id="r0", last_report_created_at=T + DAY - HOUR)
    assert next_attention(adopted, T + DAY + HOUR, SETTINGS) == T + DAY + HOUR


offset_lists = st.lists(st.integers(1, 90 * 24), min_size=1, max_size=8, unique=True).map(sorted)
FATES = st.sampled_from(["loaded", "loaded", "loaded", "create", "provider", "pending", "parse"])
COUNTERS = {
    "create": "create_failures",
    "provider": "provider_failures",
    "pending": "pending_failures",
    "parse": "parse_failures",
}


class Life:
    """A dataset as a worker would move it, on a clock that jumps; what each created report served."""

    def __init__(self, offsets):
        self.settings = ReportSettings(accounts=ACME, daily_offsets=tuple(timedelta(hours=h) for h in offsets))
        self.report = dataset(due_at=T + timedelta(hours=offsets[0]))
        self.loaded = []

    def attend(self, now, fate):
        """One claim at that moment: what became of it."""
        if self.report.due_at is None or self.report.due_at > now:
            return
        decision = decide(self.report, now, self.settings, None)
        if isinstance(decision, Wait):
            assert decision.until is None or decision.until > now
            self.report = replace(self.report, due_at=decision.until)
            return
        offset = wanted_offset(self.report, now, self.settings)
        assert offset is not None
        if self.report.serving_offset != offset.total_seconds():
            self.report = changed(self.report, serving_offset=int(offset.total_seconds()), **dict.fromkeys(FAILURES, 0))
        created = self.report.last_report_created_at if fate == "create" else now
        if fate == "loaded":
            self.loaded.append((now, offset))
            after = changed(self.report, serving_offset=None, last_report_created_at=now, **dict.fromkeys(FAILURES, 0))
        else:
            count = getattr(self.report, COUNTERS[fate]) + 1
            after = changed(self.report, last_report_created_at=created, **{COUNTERS[fate]: count})
        self.report = replace(after, due_at=next_attention(after, now, self.settings))


@given(offset_lists, st.lists(st.tuples(st.integers(0, 60 * 24 * 40), FATES), max_size=60))
def test_no_offset_is_served_twice_and_none_is_skipped_for_good(offsets, visits):
    """Downtime of any length between visits; each visit fails in any way or loads."""
    life, now = Life(offsets), T
    for minutes, fate in visits:
        now += timedelta(minutes=minutes)
        life.attend(now, fate)
    served = [offset for _, offset in life.loaded]
    assert len(served) == len(set(served)), "an offset was loaded twice"
    # From here on all goes well: a few visits later every offset that is due is served, unless it was given up.
    now += timedelta(hours=offsets[-1])
    for _ in range(2):
        life.attend(now, "loaded")
    assert life.report.due_at is None, "something is still scheduled after the last offset"
    last = timedelta(hours=offsets[-1])
    gave_up = life.report.serving_offset == last.total_seconds()
    assert gave_up or life.loaded[-1][1] == last
    assert life.report.last_report_created_at is not None or gave_up


@given(offset_lists, st.integers(0, 60 * 24 * 120))
def test_missed_offsets_make_one_report(offsets, minutes):
    life, now = Life(offsets), T + timedelta(minutes=minutes)
    due = [h for h in offsets if timedelta(hours=h) <= now - T]
    for _ in range(3):
        life.attend(now, "loaded")
    assert len(life.loaded) == (1 if due else 0)
    coming = next((T + timedelta(hours=h) for h in offsets if timedelta(hours=h) > now - T), None)
    assert life.report.due_at == coming


@given(offset_lists, st.integers(1, 60 * 24))
def test_a_worker_that_is_there_serves_every_offset_once(offsets, minutes):
    """Visits at any steady pace that is finer than the gaps between offsets."""
    gap = min([b - a for a, b in itertools.pairwise(offsets)] or [24]) * 60
    step = timedelta(minutes=min(minutes, gap))
    life, now = Life(offsets), T
    while now < T + timedelta(hours=offsets[-1]) + step:
        now = max(now + step, life.report.due_at - step if life.report.due_at else now)
        life.attend(now, "loaded")
    assert [o.total_seconds() / 3600 for _, o in life.loaded] == offsets


@given(st.sampled_from(sorted(COUNTERS)), st.integers(1, 9))
def test_each_failure_is_borne_as_often_as_its_limit_says(fate, limit):
    life = Life([24, 72])
    limits = {f"{name}_limit": limit for name in ("create", "provider", "pending", "parse", "link")}
    life.settings = ReportSettings(accounts=ACME, daily_offsets=(DAY, 3 * DAY), **limits)
    tries = 0
    while life.report.due_at is not None and life.report.due_at <= T + DAY:
        life.attend(T + DAY, fate)
        tries += 1
        assert tries < 50
    assert getattr(life.report, COUNTERS[fate]) == limit
    assert life.report.due_at == T + 3 * DAY

"""When a periodic job is next due, across zones, windows and both daylight-saving changes."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.cadence import Cadence, Window, local_instant, parse_span, parse_time, parse_zone
from penstock.model.errors import UsageError

MADRID = ZoneInfo("Europe/Madrid")
ZONES = [
    MADRID,
    ZoneInfo("UTC"),
    ZoneInfo("America/New_York"),
    ZoneInfo("Australia/Lord_Howe"),
    ZoneInfo("Asia/Kolkata"),
]
MOMENTS = st.datetimes(datetime(2020, 1, 1), datetime(2035, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001
TIMES = st.times().map(lambda t: t.replace(second=0, microsecond=0))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("7d", timedelta(days=7)),
        ("1y", timedelta(days=365)),
    ],
)
def test_a_span_is_a_number_and_a_unit(text, span):
    assert parse_span(text) == span


@pytest.mark.parametrize("text", ["", "5", "m", "0m", "-5m", "5 weeks", "1.5h", "36501d", "101y"])
def test_another_span_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match="for example 5m"):
        parse_span(text)


@pytest.mark.parametrize("text", ["", "25:00", "03:00:01", "3", "03:00+01:00"])
def test_another_time_of_day_is_refused(text):
    with pytest.raises(UsageError, match="for example 03:00"):
        parse_time(text)


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../etc/passwd"])
def test_an_unknown_time_zone_is_refused(name):
    with pytest.raises(UsageError, match="Europe/Madrid"):
        parse_zone(name)


def test_a_local_time_that_spring_skips_becomes_the_end_of_the_gap():
    assert local_instant(date(2026, 3, 29), time(2, 30), MADRID) == at("2026-03-29T01:00:00+00:00")


def test_a_local_time_that_autumn_repeats_counts_the_first_time():
    assert local_instant(date(2026, 10, 25), time(2, 30), MADRID) == at("2026-10-25T00:30:00+00:00")


def test_ticks_of_an_interval_are_the_same_for_everyone():
    cadence = Cadence(every=timedelta(minutes=5))
    assert cadence.next_after(at("2026-11-15T19:31:00Z")) == at("2026-11-15T19:35:00Z")
    assert cadence.next_after(at("2026-11-15T19:35:00Z")) == at("2026-11-15T19:40:00Z")


def test_times_of_day_tick_once_on_both_daylight_saving_days():
    cadence = Cadence(at=[time(2, 30)], zone=MADRID)
    spring = cadence.next_after(at("2026-03-28T12:00:00Z"))
    assert spring == at("2026-03-29T01:00:00Z")
    assert cadence.next_after(spring) == at("2026-03-30T00:30:00Z")
    autumn = cadence.next_after(at("2026-10-24T12:00:00Z"))
    assert autumn == at("2026-10-25T00:30:00Z")
    assert cadence.next_after(autumn) == at("2026-10-26T01:30:00Z")


def test_a_window_moves_ticks_to_its_start_and_lets_them_through_inside():
    cadence = Cadence(every=timedelta(minutes=30), window=Window(time(3), time(6), MADRID))
    first = cadence.next_after(at("2026-11-15T12:00:00Z"))
    assert first == at("2026-11-16T02:00:00Z")
    assert cadence.next_after(first) == at("2026-11-16T02:30:00Z")
    assert cadence.next_after(at("2026-11-16T04:30:00Z")) == at("2026-11-17T02:00:00Z")


def test_a_window_over_midnight_is_one_window():
    window = Window(time(22), time(2), MADRID)
    inside = at("2026-11-15T23:30:00Z")
    assert window.open_or_next(inside) == inside
    assert window.open_or_next(at("2026-11-15T12:00:00Z")) == at("2026-11-15T21:00:00Z")


def test_the_first_tick_comes_at_once_where_nothing_speaks_against_it():
    moment = at("2026-11-15T19:01:00Z")
    often = Cadence(every=timedelta(hours=1))
    assert often.first(moment) == moment
    assert Cadence(at=[time(3)]).first(moment) == at("2026-11-16T03:00:00Z"), "times of day are waited for"
    night = Window(time(2), time(6), ZoneInfo("UTC"))
    nightly = Cadence(every=timedelta(hours=1), window=night)
    assert nightly.first(moment) == at("2026-11-16T02:00:00Z"), "the window is not open"
    assert nightly.first(at("2026-11-16T03:20:00Z")) == at("2026-11-16T03:20:00Z")


def test_many_new_ones_are_spread_over_their_jitter():
    moment = at("2026-11-15T19:01:00Z")
    spread = Cadence(every=timedelta(hours=1), jitter=timedelta(minutes=10))
    firsts = {spread.first(moment, name) for name in map(str, range(50))}
    assert len(firsts) > 40
    assert all(moment <= first < moment + timedelta(minutes=10) for first in firsts)


def test_jitter_depends_on_the_name_alone_and_stays_below_its_bound():
    cadence = Cadence(every=timedelta(hours=1), jitter=timedelta(minutes=10))
    moment = at("2026-11-15T19:00:00Z")
    ticks = {name: cadence.next_after(moment, name) for name in map(str, range(50))}
    assert ticks == {name: cadence.next_after(moment, name) for name in map(str, range(50))}
    assert len(set(ticks.values())) > 40
    assert all(tick.minute < 10 for tick in ticks.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"every": timedelta(minutes=5), "at": [time(3)]},
        {"every": timedelta(milliseconds=5)},
        {"at": [time(3)], "window": Window(time(3), time(6), MADRID)},
        {"every": timedelta(minutes=5), "jitter": timedelta(minutes=-1)},
    ],
)
def test_a_cadence_that_cannot_tick_is_refused(wrong):
    with pytest.raises(UsageError):
        Cadence(**wrong)


def test_an_empty_window_is_refused():
    with pytest.raises(UsageError, match="empty"):
        Window(time(3), time(3), MADRID)


@given(MOMENTS, TIMES, TIMES, st.sampled_from(ZONES), st.integers(1, 2000), st.booleans())
def test_the_next_tick_is_after_the_moment_inside_the_window_and_nothing_lies_between(  # noqa: PLR0917
    moment, start, end, zone, minutes, windowed
):
    window = Window(start, end, zone) if windowed and start != end else None
    cadence = Cadence(every=timedelta(minutes=minutes), window=window)
    tick = cadence.next_after(moment)
    assert tick > moment
    assert window is None or window.open_or_next(tick) == tick
    assert cadence.next_after(tick - timedelta(milliseconds=1)) == tick


@given(MOMENTS, st.lists(TIMES, min_size=1, max_size=3), st.sampled_from(ZONES))
def test_times_of_day_tick_at_least_once_in_any_two_days(moment, times, zone):
    tick = Cadence(at=times, zone=zone).next_after(moment)
    assert moment < tick <= moment + timedelta(days=2)

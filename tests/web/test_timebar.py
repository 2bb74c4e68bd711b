"""The time bar: which days it shows, and where they lead."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from penstock.operations.flow import HourRow
from penstock.web.timebar import DAYS, bar_of, end_of

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


def hour(back: timedelta, machine: str = "order", failed: int = 0) -> HourRow:
    return HourRow(hour=NOW - back, machine=machine, moved=3, done=1, failed=failed, states={})


def test_a_day_leads_to_how_it_stood_when_it_ended_and_keeps_what_was_asked():
    bar = bar_of([hour(timedelta(days=3), failed=1), hour(timedelta(0))], NOW, None, kept=(("status", "a&b"),))
    links = re.findall(r'href="([^"]*)"', bar.chart)
    assert links == ["?status=a%26b&amp;at=2026-11-15T23%3A59%3A59Z", "?status=a%26b"]
    assert re.findall(r'class="(is-fault|bar)"', bar.chart) == ["is-fault", "bar"]
    assert bar.chart.count("<polygon") == 1, "a day with faults has a shape of its own"
    assert ">now</text>" in bar.chart


def test_only_the_machines_of_a_page_are_counted():
    assert "nothing changed" in bar_of([hour(timedelta(days=3), "other")], NOW, None, {"order"}).chart


@pytest.mark.parametrize(("back", "ahead"), [(1, None), (DAYS - 2, None), (DAYS, 15), (400, 15)])
def test_a_moment_long_ago_stands_in_the_middle(back: int, ahead: int | None):
    at = NOW - timedelta(days=back)
    assert end_of(NOW, at) == (NOW if ahead is None else at + timedelta(days=ahead))
    bar = bar_of([], NOW, at)
    assert bar.first <= at.timestamp() <= bar.last
    assert (">now</text>" in bar.chart) == (ahead is None)

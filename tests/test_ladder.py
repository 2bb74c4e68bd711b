"""A ladder of offsets: which is due, which is wanted, and when to look again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.lifecycles.ladder import Ladder, offset_list, offset_name

T = datetime(2026, 11, 1, tzinfo=UTC)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
LADDER = Ladder(T, (DAY, 3 * DAY, 7 * DAY))


@pytest.mark.parametrize(
    ("at", "fetched", "serving", "given_up", "expected"),
    [
        (HOUR, None, None, False, None),
        (DAY, None, None, False, DAY),
        (2 * DAY, DAY, None, False, None),
        (3 * DAY, DAY, None, False, 3 * DAY),
        (9 * DAY, DAY, None, False, 7 * DAY),  # several that were missed come to one
        (9 * DAY, 8 * DAY, None, False, None),
        (2 * DAY, None, DAY, False, DAY),  # a failure serves nothing
        (2 * DAY, None, DAY, True, None),  # given up
        (3 * DAY, None, DAY, True, 3 * DAY),  # the next one comes all the same
        (3 * DAY, 3 * DAY, DAY, True, 3 * DAY),
    ],
)
def test_what_is_wanted(at, fetched, serving, given_up, expected):
    moment = None if fetched is None else T + fetched
    assert LADDER.wanted(T + at, moment, serving, given_up=given_up) == expected


def test_nothing_is_due_before_the_earliest():
    late = Ladder(T, (DAY, 3 * DAY), earliest=T + DAY + 5 * HOUR)
    assert late.due(T + DAY + HOUR) is None
    assert late.next_at(T + DAY + HOUR) == T + DAY + 5 * HOUR
    assert late.due(T + DAY + 5 * HOUR) == DAY
    assert late.next_at(T + DAY + 5 * HOUR) == T + 3 * DAY


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=30).map(sorted))
def test_however_often_it_is_looked_at_each_offset_is_fetched_at_most_once(moments):
    fetched: list[datetime] = []
    for seconds in moments:
        now = T + timedelta(seconds=seconds)
        if LADDER.wanted(now, fetched[-1] if fetched else None, None, given_up=False) is not None:
            fetched.append(now)
        assert LADDER.attention(now, fetched[-1] if fetched else None, None, given_up=False) == LADDER.next_at(now)
    assert len(fetched) <= len(LADDER.offsets)
    last_due = LADDER.due(T + timedelta(seconds=moments[-1]))
    assert last_due is None or fetched[-1] >= T + last_due


def test_names():
    assert [offset_name(s) for s in (86_400, 3_600, 90, 0)] == ["T+1d", "T+1h", "T+90s", "T+0d"]
    assert offset_name(312 * 3_600, days=False) == "T+312h"


@pytest.mark.parametrize("value", [[], ["1d", "1d"], ["3d", "1d"], "1d", [1], ["soon"], ["24h", "1d"]])
def test_a_list_that_is_no_ladder_is_refused(value):
    with pytest.raises(ValueError, match="span"):
        offset_list(value)

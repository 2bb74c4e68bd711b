"""Durable retry: how long to wait, how often to try, and what a provider's Retry-After means."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.model.clock import Rng
from penstock.model.retry import THROTTLE_POLICY, RetryPolicy, parse_retry_after

NOW = datetime(2026, 11, 15, 19, 31, 0, tzinfo=UTC)


def seconds(policy: RetryPolicy, retries: int) -> list[float]:
    rng = Rng(1)
    return [policy.delay(attempts, rng).total_seconds() for attempts in range(retries)]


def test_without_jitter_the_delays_double():
    assert seconds(RetryPolicy(jitter=0.0), 3) == [2, 4, 8]


def test_without_jitter_the_delays_stop_at_the_cap():
    assert seconds(RetryPolicy(jitter=0.0, max_retries=9), 9) == [2, 4, 8, 16, 32, 64, 64, 64, 64]


def test_a_throttle_that_names_no_time_waits_longer():
    assert seconds(THROTTLE_POLICY, 4) == [16, 32, 64, 64]


@given(st.integers(min_value=0), st.integers(min_value=0, max_value=2))
def test_jitter_is_at_most_a_fifth_either_way(seed, attempts):
    plain = 2.0 * 2**attempts
    found = RetryPolicy().delay(attempts, Rng(seed)).total_seconds()
    assert plain * 0.8 - 0.001 <= found <= plain * 1.2 + 0.001


def test_jitter_spreads_both_ways():
    found = [RetryPolicy().delay(0, Rng(seed)).total_seconds() for seed in range(200)]
    assert min(found) < 1.7
    assert max(found) > 2.3


def test_the_same_seed_waits_the_same():
    assert seconds(RetryPolicy(), 3) == seconds(RetryPolicy(), 3)


def test_the_cap_holds_after_any_number_of_attempts():
    assert RetryPolicy(jitter=0.0).delay(100_000, Rng(1)) == timedelta(seconds=64)


def test_three_retries_are_four_calls():
    policy = RetryPolicy(max_retries=3)
    assert [policy.exhausted(attempts) for attempts in range(5)] == [False, False, False, True, True]


def test_no_retries_is_one_call():
    assert RetryPolicy(max_retries=0).exhausted(0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_retries": -1},
        {"base": timedelta()},
        {"base": timedelta(seconds=65)},
        {"cap": timedelta(seconds=1)},
        {"multiplier": 0.5},
        {"jitter": -0.1},
        {"jitter": 1.0},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="a retry policy needs"):
        RetryPolicy(**wrong)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("120", 120.0),
        ("0", 0.0),
        (" 7 ", 7.0),
        ("2.5", 2.5),
        ("-5", 0.0),
        ("Sun, 15 Nov 2026 19:32:30 GMT", 90.0),
        ("Sunday, 15-Nov-26 19:32:30 GMT", 90.0),
        ("Sun Nov 15 19:32:30 2026", 90.0),
        ("Sun, 15 Nov 2026 20:32:30 +0100", 90.0),
        ("Sun, 15 Nov 2026 19:30:00 GMT", 0.0),
    ],
)
def test_retry_after_may_be_an_integer_a_decimal_or_a_date(value, wanted):
    assert parse_retry_after(value, NOW) == wanted


@pytest.mark.parametrize(
    "value", ["", "soon", "nan", "inf", "-inf", "1e999", "1_000", "9" * 400, "12 s", "15 Foo 2026", "2026-11-15"]
)
def test_nonsense_is_no_answer(value):
    assert parse_retry_after(value, NOW) is None


@given(
    st.text()
    | st.from_regex(r"[+-]?[0-9]{1,30}(\.[0-9]{0,5})?", fullmatch=True)
    | st.from_regex(
        r"(Mon, )?[0-9]{1,25} (Jan|Feb|dec)[ -][0-9]{1,25} [0-9:.]{0,20} (GMT|[+-][0-9]{0,25}|)", fullmatch=True
    )
)
@example("Mon, 01 Jan 0001 00:00:00 +2359")
@example("Fri, 31 Dec 9999 23:59:59 -2359")
@example(f"Mon, 01 Jan {'9' * 5_000} 00:00:00 GMT")
@example(f"Mon, 01 Jan 2026 00:00:00 +{'9' * 5_000}")
@example("9" * 5_000)
@example("1 Jan 99999999999999999999 00:00:00")
def test_no_header_breaks_the_reader(value):
    found = parse_retry_after(value, NOW)
    assert found is None or found >= 0

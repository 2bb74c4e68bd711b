"""The split of an axis: nothing left out, nothing twice, few questions, even parts."""

from __future__ import annotations

import bisect
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lifecycles.harvest.feed import Span
from penstock.lifecycles.harvest.run.scan import Scanned, Split, scan


def answered(questions, prices: list[int]) -> tuple[Scanned, list[Span]]:
    """Drive a scan over sorted prices; what it came to, and what it asked."""
    asked = []
    try:
        span = next(questions)
        while True:
            asked.append(span)
            high = len(prices) if span.high is None else bisect.bisect_left(prices, span.high)
            span = questions.send(high - bisect.bisect_left(prices, span.low))
    except StopIteration as done:
        return done.value, asked


def count(prices: list[int], low: int, high: int | None) -> int:
    last = len(prices) if high is None else bisect.bisect_left(prices, high)
    return last - bisect.bisect_left(prices, low)


def lognormal(rng: random.Random) -> int:
    return int(rng.lognormvariate(7.3, 1.3)) + 50


def spiky(rng: random.Random) -> int:
    """As shops price: near half of all at or just below a round sum."""
    price = rng.lognormvariate(7.3, 1.4) + 50
    return max(1, int(round(price, -2) - rng.randrange(2) if rng.random() < 0.4 else price))


def two_kinds(rng: random.Random) -> int:
    """Many cheap ones of a laboratory, fewer natural ones."""
    cheap = rng.random() < 0.7
    return int(rng.lognormvariate(5.2, 0.6)) + 20 if cheap else int(rng.lognormvariate(9, 1.2)) + 300


def long_tail(rng: random.Random) -> int:
    return min(10**7, int(100 * rng.paretovariate(0.9)))


def prices_of(kind, number: int, seed: int = 1) -> list[int]:
    rng = random.Random(seed)
    return sorted(kind(rng) for _ in range(number))


@pytest.mark.parametrize("kind", [lognormal, spiky, two_kinds, long_tail])
def test_half_a_million_records_are_split_evenly_with_thirty_to_sixty_counts(kind):
    prices = prices_of(kind, 500_000)
    first, asked = answered(scan(0, 1_000_000, Split(5_000, 1_000, 30)), prices)
    mean = 500_000 / 30
    assert len(first.partitions) == 30
    assert 30 <= len(asked) == first.calls <= 60
    assert max(n for _, _, n in first.partitions) <= 1.5 * mean
    # A week later, with other prices and fewer records.
    rng = random.Random(2)
    later = sorted(int(price * rng.uniform(0.97, 1.05)) for price in prices[::2])
    second, again = answered(scan(0, 1_000_000, Split(5_000, 1_000, 30), first.density), later)
    assert len(again) <= min(len(asked) - 4, 38)
    assert len(second.partitions) == 30
    assert max(n for _, _, n in second.partitions) <= 1.5 * len(later) / 30


lists_of_prices = st.one_of(
    st.lists(st.integers(0, 3_000_000), max_size=400),
    st.lists(st.integers(0, 40), max_size=400),
    st.lists(st.sampled_from([0, 1, 99, 100, 5_000_000]), max_size=400),
)


@given(
    lists_of_prices,
    st.builds(Split, st.integers(1, 60), st.integers(1, 30), st.integers(1, 12)),
    st.integers(2, 2_000_000),
    st.integers(0, 400),
)
@settings(max_examples=200)
def test_partitions_cover_the_axis_without_gap_or_overlap(found, limits, highest, remembered):
    prices = sorted(found)
    before = answered(scan(0, highest, limits), sorted(prices[:remembered]))[0].density
    done, asked = answered(scan(0, highest, limits, before), prices)
    ends = [high for _, high, _ in done.partitions]
    lows = [low for low, _, _ in done.partitions]
    assert [n for _, _, n in done.partitions] == [count(prices, low, high) for low, high, _ in done.partitions]
    assert sum(n for _, _, n in done.partitions) == done.records == len(prices)
    if prices:
        assert lows == [0, *ends[:-1]]
        assert ends[-1] is None
        assert all(high is None or low < high for low, high, _ in done.partitions)
        assert all(n > 0 for _, _, n in done.partitions) or len(done.partitions) == 1
    else:
        assert list(done.partitions) == []
    assert len(asked) <= 201
    assert len(set(asked)) == len(asked), "nothing is asked twice"


@given(lists_of_prices.filter(bool), st.integers(5, 60), st.integers(1, 12))
@settings(max_examples=100)
def test_a_partition_is_larger_than_one_and_a_half_means_only_for_a_single_price(found, target, most):
    prices = sorted(found)
    done, _ = answered(scan(0, 100_000, Split(target, 1, most)), prices)
    mean = len(prices) / Split(target, 1, most).partitions(len(prices))
    commonest = max(prices.count(price) for price in set(prices))
    assert max(n for _, _, n in done.partitions) <= max(1.5 * mean, mean + commonest)


@given(st.integers(0, 2_000_000), st.integers(1, 10_000), st.integers(1, 5_000), st.integers(1, 40))
def test_the_number_of_partitions_is_that_of_h10(records, target, least, most):
    number = Split(target, least, most).partitions(records)
    if records == 0:
        assert number == 0
    else:
        assert number == min(max(1, min(math.ceil(records / target), most)), max(1, records // least))


def test_distinct_prices_give_exactly_the_number_of_h10():
    prices = prices_of(lognormal, 20_000)
    for most in (1, 2, 4, 10):
        done, _ = answered(scan(0, 1_000_000, Split(5_000, 1_000, most)), prices)
        assert len(done.partitions) == Split(5_000, 1_000, most).partitions(20_000) == min(4, most)


def test_one_price_for_all_makes_one_partition():
    done, asked = answered(scan(0, 1_000_000, Split(5_000, 1_000, 30)), [777] * 100_000)
    assert list(done.partitions) == [(0, None, 100_000)]
    assert len(asked) < 60


def test_a_catalogue_that_changes_while_it_is_counted_still_gives_whole_spans():
    rng = random.Random(5)
    questions = scan(0, 100_000, Split(5_000, 1_000, 30))
    prices = prices_of(lognormal, 60_000)
    try:
        span = next(questions)
        while True:
            high = len(prices) if span.high is None else bisect.bisect_left(prices, span.high)
            answer = high - bisect.bisect_left(prices, span.low)
            prices = sorted(rng.sample(prices, len(prices) - 300))
            span = questions.send(answer)
    except StopIteration as stopped:
        done = stopped.value
    assert all(n >= 0 for _, _, n in done.partitions)
    assert sum(n for _, _, n in done.partitions) == 60_000
    assert [low for low, _, _ in done.partitions[1:]] == [high for _, high, _ in done.partitions[:-1]]

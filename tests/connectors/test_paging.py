"""Pages that overlap and go on."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.connectors.paging import covering


@settings(max_examples=100)
@given(st.integers(0, 10**7), st.integers(1, 1_000))
@example(61, 50)
@example(5_650, 50)
@example(2, 2)
def test_a_page_begins_before_the_place_and_passes_it(place, size):
    number, actual = covering(place, size)
    start = number * actual
    assert 0 < actual <= size
    assert start <= place < start + actual


@settings(max_examples=100)
@given(st.integers(31, 10**7), st.integers(10, 50))
def test_usual_pages_overlap_by_one_to_ten_records(place, size):
    number, actual = covering(place, size)
    assert 1 <= place - number * actual <= max(10, size - 1)
    assert actual >= 0.6 * size


def test_pages_of_fifty_cost_little_more_than_those_that_do_not_overlap():
    place, calls = 0, 0
    while place < 5_000:
        number, size = covering(place, 50)
        assert place == 0 or 1 <= place - number * size <= 10 or place < 31
        place, calls = (number + 1) * size, calls + 1
    assert calls <= 5_000 / 50 * 1.25
    assert covering(0, 50) == (0, 50)
    assert covering(1, 1) == (1, 1)

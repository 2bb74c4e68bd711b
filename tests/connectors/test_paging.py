"""Which page covers a place."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from penstock.connectors.paging import MOST_OVERLAP, covering


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.integers(0, 100_000), st.integers(1, 1_000))
def test_a_page_has_its_place_and_is_never_too_large(place, size):
    index, own = covering(place, size)
    assert index >= 0
    assert 1 <= own <= size
    assert index * own <= place < (index + 1) * own


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.integers(1, 20_000), st.integers(20, 100))
def test_it_begins_a_little_before_and_reaches_farthest_of_such(place, size):
    index, own = covering(place, size)
    start, reach = index * own, (index + 1) * own
    assert start < place
    least = -(-size * 6 // 10)
    begins = [(k * s, (k + 1) * s) for s in range(least, size + 1) for k in [(place - 1) // s]]
    near = [end for begin, end in begins if place - begin <= MOST_OVERLAP and end > place]
    if near:
        assert place - start <= MOST_OVERLAP
        assert reach == max(near)
    else:
        assert reach == max(end for _, end in begins)


def test_a_list_is_read_with_few_more_pages_than_without_overlap():
    for size in (20, 50, 100):
        place = pages = 0
        while place < 10_000:
            index, own = covering(place, size)
            place, pages = (index + 1) * own, pages + 1
        assert pages < 1.6 * 10_000 / size
    assert covering(0, 50) == (0, 50)
    assert covering(50, 50) == (1, 49)


def test_pages_of_one_or_two_records_go_on():
    for size in (1, 2, 3):
        place = 0
        for _ in range(50):
            index, own = covering(place, size)
            assert (index + 1) * own > place
            place = (index + 1) * own

"""Pages that begin a little before the wanted place, of APIs that take a page's number and its size."""

from __future__ import annotations

MOST_OVERLAP = 10
"""How many records before the wanted place a page begins at most, where its size can be chosen freely."""


def covering(place: int, size: int) -> tuple[int, int]:
    """The page to ask for, to read from `place` on: its index, counted from 0, and its size, at most `size`.

    It begins 1 to 10 records before the place, so that a record which was removed meanwhile, and moved the others up,
    is noticed; of such pages it is the one that reaches farthest. Where there is none it is the one that reaches
    farthest at all, and where no page has both the place and a record before it, the one that begins at the place.
    """
    if place == 0:
        return 0, size
    best, reached, near = (place, 1), place + 1, False
    for own in range(size, max(1, size * 6 // 10) - 1, -1):
        index = (place - 1) // own
        reach, is_near = (index + 1) * own, place - index * own <= MOST_OVERLAP
        if reach > place and (is_near, reach) > (near, reached):
            best, reached, near = (index, own), reach, is_near
    if near or reached > place + 1:
        return best
    return _beginning_at(place, size)


def _beginning_at(place: int, size: int) -> tuple[int, int]:
    """The largest page that begins at the place."""
    own = next(own for own in range(size, 0, -1) if place % own == 0)
    return place // own, own

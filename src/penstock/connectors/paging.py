"""Which page to ask for, of a list that has numbered pages and is wanted from a place on."""

from __future__ import annotations

MOST_OVERLAP = 10
"""How many records before the wanted place a page begins at most, where that is possible."""
_SMALLEST = 6
"""So many tenths of the size are asked for at least."""


def covering(place: int, size: int) -> tuple[int, int]:
    """The number of a page, from 0 on, and its size, at most `size`: it begins a little before `place`, and passes it.

    Pages so asked for overlap by a record at least, and by ten at most where that is possible: a record that was
    removed meanwhile, and moved the others up, is then noticed. Of the pages that do, this is the one that reaches
    farthest. Pages of one record, and some of two, cannot overlap: they begin at `place`.
    """
    if place <= 0:
        return 0, size
    smallest = max(1, -(-size * _SMALLEST // 10))
    pages = [((place - 1) // one, one) for one in range(smallest, size + 1)]
    passing = [page for page in pages if _end(page) > place]
    near = [page for page in passing if place - page[0] * page[1] <= MOST_OVERLAP]
    return max(near or passing or [(place // size, size)], key=lambda page: (_end(page), page[0]))


def _end(page: tuple[int, int]) -> int:
    number, size = page
    return (number + 1) * size

"""A year of queries with troubles, on virtual time: no hole, no double, no lock of the dead, every error explained.

By day some weeks on SQLite; by night these on PostgreSQL too, and the year, twice with one seed: the same digest.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.nightly import by_night
from tests.support.postgres import in_memory
from tests.support.query_audit import digest, findings
from tests.support.query_world import Troubles
from tests.support.query_year import lived

OFTEN = Troubles(throttles=100, errors=30, cuts=30, pages=100, spoils=60, kills=60, outages=40, jumps=50)


def _url(tmp_path, number):
    return f"sqlite:///{tmp_path / f'{number}.db'}"


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory: a year waits for a disk a hundred thousand times, and takes a third longer for it."""
    with tempfile.TemporaryDirectory(dir=in_memory()) as folder:
        yield Path(folder)


@by_night("postgres")
@pytest.mark.timeout(600)
def test_weeks_of_trouble_leave_no_hole(ledger_url):
    with lived(ledger_url, 24, 3, troubles=OFTEN, rate=0.3) as year:
        assert findings(year) == []
        assert {"429", "500", "503", "cut", "html", "kill"} <= {*year.journal.troubles}
        assert year.killed > 5


def test_one_seed_comes_to_one_digest(tmp_path):
    found = []
    for number in range(2):
        with lived(_url(tmp_path, number), 6, 5, troubles=OFTEN, rate=0.3) as year:
            found.append((digest(year), len(year.ended), year.journal.calls))
    assert found[0] == found[1]


def test_two_workers_take_turns(tmp_path):
    with lived(_url(tmp_path, 0), 3, 7, workers=2, troubles=replace(OFTEN, kills=20), rate=0.3) as year:
        assert findings(year) == []
        assert year.killed > 0


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_year_of_trouble_leaves_no_hole(memory, seed):
    digests = set()
    for number in range(2):
        with lived(_url(memory, number), 365, seed) as year:
            assert findings(year) == []
            assert len(year.ended) > 10_000
            digests.add(digest(year))
    assert len(digests) == 1

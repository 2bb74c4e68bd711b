"""A reader who does not wait for ever: what takes too long is given up, and the database works on."""

from __future__ import annotations

import pytest

from penstock.ledger.store.hurried import Hurried
from penstock.model.clock import SystemClock, VirtualClock
from penstock.model.errors import LedgerBusy
from tests.support.world import World

LONG = (
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000000)"
    " SELECT count(*) FROM n WHERE i < 0"
)


def test_a_statement_that_takes_too_long_is_given_up(real_world: World):
    database = real_world.ledger.database
    with pytest.raises(LedgerBusy):
        Hurried(database, SystemClock(), 0.2).read(lambda cursor: cursor.rows(LONG), patient=True)
    assert [tuple(row) for row in database.read(lambda cursor: cursor.rows("SELECT 1"))] == [(1,)]


def test_the_time_is_for_all_statements_together(world: World):
    clock = VirtualClock()
    hurried = Hurried(world.ledger.database, clock, 10)
    assert hurried.read(lambda cursor: len(cursor.rows("SELECT 1"))) == 1
    clock.advance(6)
    assert hurried.left() == 4
    clock.advance(4)
    with pytest.raises(LedgerBusy, match="within 10 s"):
        hurried.read(lambda cursor: cursor.rows("SELECT 1"))
    assert hurried.url == world.ledger.database.url

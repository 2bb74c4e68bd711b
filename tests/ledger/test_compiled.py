"""SQLite compiles a statement once: what is asked again and again is not taken apart again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pysqlite3 import dbapi2 as driver

from penstock.ledger.store.database import Cursor
from penstock.ledger.store.sqlite.database import steady
from penstock.model.outcome import Outcome
from penstock.model.unit import replace
from tests.support.machines import InvoiceState, invoice
from tests.support.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(f"sqlite:///{tmp_path / 'ledger.db'}")
    yield made
    made.close()


def watched(world: World) -> list[int]:
    """What is compiled from now on: SQLite asks for leave when it compiles a statement, and never when it runs one."""
    compiled: list[int] = []

    def leave(action: int, *_: Any) -> int:
        compiled.append(action)
        return driver.SQLITE_OK

    def watch(cursor: Any) -> None:
        cursor.connection.set_authorizer(leave)

    world.ledger.database.write(watch)
    world.ledger.database.read(watch)
    return compiled


def test_a_worker_that_goes_on_compiles_nothing(world):
    world.born(*(invoice(str(n), gate_id=f"gate {n % 3}") for n in range(40)))
    worker, compiled = world.worker("invoice"), watched(world)
    for turn in range(4):
        if turn == 2:
            compiled.clear()
        units = worker.take({"invoice": 3}).units
        assert len(units) == 3
        worker.idle()
        done = [Outcome(unit, replace(unit, status=InvoiceState.SENT, remote_id="1"), "sent") for unit in units]
        world.commit(worker, *done)
    assert compiled == []


def test_a_bound_limit_is_the_same_behind_a_sum(world):
    sql = "SELECT value FROM json_each('[1, 2, 3]') ORDER BY value LIMIT :most"

    def first(cursor: Cursor) -> list[int]:
        return [value for (value,) in cursor.rows(sql, most=2)]

    assert world.ledger.read(first) == [1, 2]
    compiled = watched(world)
    for turn in range(3):
        if turn == 1:
            compiled.clear()
        assert world.ledger.read(first) == [1, 2]
    assert compiled == []


@pytest.mark.parametrize(
    ("written", "run"),
    [
        ("SELECT 1 LIMIT :n", "SELECT 1 LIMIT (:n + 0)"),
        ("(SELECT 1 LIMIT :n) AS s LIMIT :most_of2", "(SELECT 1 LIMIT (:n + 0)) AS s LIMIT (:most_of2 + 0)"),
        ("SELECT 1 LIMIT :n * 4", "SELECT 1 LIMIT (:n + 0) * 4"),
        ("SELECT 1 LIMIT 5", "SELECT 1 LIMIT 5"),
    ],
)
def test_only_limits_that_are_a_parameter_alone_are_written_otherwise(written, run):
    assert steady(written) == run
    assert steady(run) == run

"""When a parent is asked whether it is complete: the question reads all its children, so it is seldom asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.ledger.commit import Won
from penstock.ledger.parents import Parents
from penstock.ledger.prepare import PreparedOutcome
from penstock.ledger.store.database import Cursor
from penstock.model.machine import Actor
from penstock.model.move_set import MoveSet
from penstock.model.outcome import Move, Outcome
from penstock.model.unit import Ref, replace
from tests.support.sealed import DAY, SEALED, R, T, price_run, target
from tests.support.world import World, after

RUN = Ref("price_run", f"a/{DAY}")


@pytest.fixture
def world(ledger_url: str) -> Iterator[World]:
    made = World(ledger_url, machines=SEALED)
    yield made
    made.close()


def family(world: World, children: int, expected: int | None = None) -> list[Any]:
    """A run that applies, and its targets, claimed by a worker that holds them no more."""
    expected = children if expected is None else expected
    world.born(
        price_run("a", expected=expected, due_at=None), *(target(n, "a", status=T.QUEUED) for n in range(children))
    )
    world.ledger.move(RUN, R.APPLYING, actor=Actor.WORKER, who="w", reason="started")
    refs = [Ref("target", f"{RUN.unit_id}/{n}") for n in range(children)]
    return [world.ledger.move(ref, T.APPLYING, actor=Actor.WORKER, who="w", reason="claim") for ref in refs]


def to(unit: Any, status: T, **more: Any) -> Outcome[Any]:
    return Outcome(unit, replace(unit, status=status, due_at=None), str(status), **more)


def asked(world: World, *outcomes: Outcome[Any]) -> list[str]:
    """What a parent is told by these outcomes, as statements; afterwards it was never told."""
    entries = [world.ledger.preparer.entry(one, "w") for one in outcomes]
    return told(world, *entries)


def told(world: World, *entries: PreparedOutcome) -> list[str]:
    found: list[str] = []

    class Listening:
        def __init__(self, cursor: Cursor) -> None:
            self._cursor = cursor

        def rows(self, sql: str, **given: Any) -> Any:
            found.append(sql)
            return self._cursor.rows(sql, **given)

        def run(self, sql: str, **given: Any) -> Any:
            found.append(sql)
            return self._cursor.run(sql, **given)

    def work(cursor: Cursor) -> None:
        listening: Any = Listening(cursor)
        tallies = [tally for entry in entries for tally in entry.tallies]
        Parents(world.ledger.database, world.ledger.machines).count(listening, tallies)
        raise _TakenBack

    with pytest.raises(_TakenBack):
        world.ledger.database.write(work)
    return found


class _TakenBack(Exception):
    pass


def question(statements: list[str]) -> int:
    return sum("count(*)" in sql for sql in statements)


def test_the_set_is_counted_only_when_the_counters_are_complete(world):
    units = family(world, 3)
    assert question(asked(world, to(units[0], T.APPLIED))) == 0
    assert len(asked(world, to(units[0], T.APPLIED))) == 2, "the lock and the tally"
    assert question(asked(world, *(to(unit, T.FAILED) for unit in units))) == 1


def test_who_goes_from_one_counted_state_to_another_asks_and_wakes_nobody(world):
    units = family(world, 3)
    worker = world.worker()
    world.commit(worker, *(to(unit, T.APPLIED) for unit in units))
    assert world.unit(RUN).wakes == 1
    world.time.advance(5)
    (one, *_) = [world.unit(Ref("target", unit.unit_id)) for unit in units]
    assert question(asked(world, to(one, T.ROLLED_BACK))) == 0
    assert world.commit(worker, to(one, T.ROLLED_BACK)) == [Won()]
    run = world.unit(RUN)
    assert (run.applied, run.rolled_back, run.wakes, run.due_at) == (2, 1, 1, after(0))


def test_a_set_between_counted_states_wakes_nobody(world):
    units = family(world, 3)
    worker = world.worker()
    world.commit(worker, *(to(unit, T.APPLIED) for unit in units))
    back = MoveSet(machine="target", sources=[T.APPLIED], to=T.ROLLED_BACK, reason="back", where={"account": "a"})
    assert world.ledger.move_set(back, who="w") == 3
    run = world.unit(RUN)
    assert (run.applied, run.rolled_back, run.wakes) == (0, 3, 1)


def test_who_leaves_the_counted_states_asks_nobody(world):
    units = family(world, 2)
    world.commit(world.worker(), *(to(unit, T.FAILED) for unit in units))
    failed = [world.unit(Ref("target", unit.unit_id)) for unit in units]
    again = Outcome(failed[0], replace(failed[0], status=T.QUEUED), "again", actor=Actor.OPERATOR)
    assert question(asked(world, again)) == 0


def test_one_that_enters_as_another_leaves_asks(world):
    """The total is what it was; but had they come one after the other, the second would have asked too."""
    one, two = family(world, 2, expected=1)
    world.commit(world.worker(), to(one, T.FAILED))
    assert world.unit(RUN).wakes == 1
    failed = world.unit(Ref("target", one.unit_id))
    again = Move(failed, replace(failed, status=T.QUEUED), "again", Actor.OPERATOR)
    done = Move(two, replace(two, status=T.APPLIED), "applied")
    world.ledger.together([again, done], who="ann")
    run = world.unit(RUN)
    assert (run.applied, run.failed, run.wakes) == (1, 0, 3), "for the one that goes on again, and for the end"


def test_what_a_step_counts_by_itself_asks(world):
    """A parent may wait for a sum of its own after all children have ended, as a harvest's run does."""
    (unit,) = family(world, 1)
    worker = world.worker()
    world.commit(worker, to(unit, T.APPLIED))
    world.sql("UPDATE price_run SET due_at = NULL, wakes = wakes + 1")
    unit = world.unit(Ref("target", unit.unit_id))
    world.commit(worker, Outcome(unit, replace(unit, due_at=None), "looked", parent_counts={"looked_at": 1}))
    run = world.unit(RUN)
    assert (run.looked_at, run.due_at, run.wakes) == (1, after(0), 3)

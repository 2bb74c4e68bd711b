"""Seals where commits interleave: locks, old snapshots, and many at once."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg import errors as pg

from penstock.ledger.commit import Refused, Won
from penstock.ledger.ledger import Ledger
from penstock.ledger.schema import seals
from penstock.model.clock import SystemClock
from penstock.model.errors import IllegalMove, LedgerRefused
from penstock.model.machine import Actor
from penstock.model.outcome import Outcome
from penstock.model.unit import Ref, replace
from tests.ledger.test_seals import RUN, RUN_ID, family, move, refusal, typed
from tests.support.hand import Hand
from tests.support.sealed import SEALED, R, T, price_run, target
from tests.support.world import World


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[World]:
    """For what only happens where commits interleave."""
    made = World(postgres_url, SystemClock(), machines=SEALED)
    yield made
    made.close()


class Other:
    """A second session at the prompt, whose statement may have to wait."""

    def __init__(self, url: str, isolation: str = "READ COMMITTED") -> None:
        self.connection = psycopg.connect(url)
        self.connection.isolation_level = psycopg.IsolationLevel[isolation.replace(" ", "_")]
        self.error: BaseException | None = None
        self.pid = self.connection.info.backend_pid

    def start(self, sql: str) -> threading.Thread:
        def work() -> None:
            try:
                self.connection.execute(sql)
                self.connection.commit()
            except psycopg.Error as error:
                self.error = error
            self.connection.close()

        thread = threading.Thread(target=work)
        thread.start()
        return thread


def waits(world: World, other: Other) -> bool:
    """Whether the other session waits for a lock, within ten seconds."""
    waiting = f"SELECT wait_event_type FROM pg_stat_activity WHERE pid = {other.pid} AND wait_event_type = 'Lock'"
    pause = threading.Event()
    for _ in range(1000):
        if world.rows(waiting):
            return True
        pause.wait(0.01)
    return False


@pytest.fixture
def two(postgres: World) -> Iterator[tuple[World, Hand]]:
    with Hand(postgres.url) as hand:
        yield postgres, hand


LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_target_that_moves_first_holds_the_run_back(two, level):
    world, hand = two
    (ref,) = family(world, T.PREVIEW)
    hand.type(f"BEGIN ISOLATION LEVEL {level}")
    hand.type(typed(ref, T.QUEUED))
    other = Other(world.url)
    thread = other.start(typed(RUN, R.APPLIED))
    assert waits(world, other)
    hand.type("COMMIT")
    thread.join(30)
    assert "cannot become APPLIED while its target" in str(other.error)
    assert (world.unit(RUN).status, world.unit(ref).status) == (R.APPLYING, T.QUEUED)


@pytest.mark.parametrize("level", LEVELS)
def test_a_run_that_moves_first_holds_the_target_back(two, level):
    world, hand = two
    (ref,) = family(world, T.PREVIEW)
    hand.type("BEGIN")
    hand.type("UPDATE price_run SET looked_at = looked_at + 1, tallies = tallies + 1")
    hand.type(typed(RUN, R.APPLIED))
    other = Other(world.url, level)
    thread = other.start(typed(ref, T.QUEUED))
    assert waits(world, other)
    hand.type("COMMIT")
    thread.join(30)
    if level == "READ COMMITTED":
        assert "cannot become QUEUED while its price_run" in str(other.error)
    else:
        assert isinstance(other.error, pg.SerializationFailure)
    assert (world.unit(RUN).status, world.unit(ref).status) == (R.APPLIED, T.PREVIEW)


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("counted", [False, True], ids=["at once", "after a tally"])
def test_an_old_snapshot_does_not_slip_past_a_seal(two, level, counted):
    """The snapshot still shows the run as applying; in between lies a tally, which takes no key."""
    world, hand = two
    (ref,) = family(world, T.PREVIEW)
    hand.type(f"BEGIN ISOLATION LEVEL {level}")
    assert hand.type("SELECT status FROM price_run") == [("APPLYING",)]
    if counted:
        world.sql("UPDATE price_run SET looked_at = looked_at + 1, tallies = tallies + 1")
    move(world, RUN, R.APPLIED)
    with pytest.raises(pg.SerializationFailure):
        hand.type(typed(ref, T.QUEUED))
    hand.type("ROLLBACK")
    assert world.unit(ref).status is T.PREVIEW


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_run_is_not_sealed_on_an_old_snapshot(two, level):
    world, hand = two
    (ref,) = family(world, T.PREVIEW)
    hand.type(f"BEGIN ISOLATION LEVEL {level}")
    assert hand.type("SELECT status FROM target") == [("PREVIEW",)]
    move(world, ref, T.QUEUED)
    assert "cannot become APPLIED but in READ COMMITTED" in refusal(hand, typed(RUN, R.APPLIED))
    hand.type("ROLLBACK")
    assert world.unit(RUN).status is R.APPLYING


def test_targets_on_their_way_do_not_ask_for_the_run(two):
    """Claims and results of targets that are outside of every list wait for nobody who holds the run."""
    world, hand = two
    refs = family(world, T.QUEUED, T.APPLYING, T.APPLYING, T.APPLYING, T.PREVIEW)
    hand.type("BEGIN")
    hand.type("SELECT 1 FROM price_run FOR UPDATE")
    with Hand(world.url) as other:
        other.type("SET lock_timeout = '200ms'")
        for ref, to in zip(refs, (T.APPLYING, T.APPLIED, T.FAILED, T.QUEUED), strict=False):
            other.type(typed(ref, to))
        with pytest.raises(pg.LockNotAvailable):
            other.type(typed(refs[-1], T.QUEUED))
    hand.type("ROLLBACK")


def test_who_counts_on_a_run_does_not_wait_for_targets_that_leave(two):
    world, hand = two
    (ref, _) = family(world, T.PREVIEW, T.APPLYING)
    hand.type("BEGIN")
    hand.type(typed(ref, T.QUEUED))
    worker = world.worker()
    unit = world.unit(Ref("target", f"{RUN_ID}/2"))
    assert world.commit(worker, Outcome(unit, replace(unit, status=T.APPLIED, due_at=None), "sent")) == [Won()]
    assert world.unit(RUN).applied == 1
    hand.type("ROLLBACK")


def test_a_run_that_is_being_sealed_and_a_target_that_counts_on_it_do_not_lock_each_other_out(two):
    """The target has the run's key and then comes to count; the ledger takes the run whole, before half of it."""
    world, hand = two
    (ref,) = family(world, T.APPLIED)
    worker = world.worker()
    run = world.unit(RUN)
    results: list[Any] = []
    hand.type("SET deadlock_timeout = '100ms'")
    hand.type("BEGIN")
    hand.type(typed(ref, T.QUEUED))
    outcome = Outcome(run, replace(run, status=R.APPLIED, due_at=None), "all applied")
    thread = threading.Thread(target=lambda: results.extend(world.commit(worker, outcome)))
    thread.start()
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    pause = threading.Event()
    for _ in range(1000):
        if world.one(waiting):
            break
        pause.wait(0.01)
    else:
        pytest.fail("nobody waits")
    hand.type("UPDATE price_run SET applied = applied - 1, tallies = tallies + 1")  # no deadlock is found
    hand.type("COMMIT")
    thread.join(30)
    assert [type(r) for r in results] == [Refused]
    assert (world.unit(RUN).status, world.unit(RUN).applied, world.unit(ref).status) == (R.APPLYING, 0, T.QUEUED)


class Restless(threading.Thread):
    """Moves runs and targets at random, until it is told to stop."""

    def __init__(self, ledger: Ledger, refs: list[Ref], seed: int, stop: threading.Event) -> None:
        super().__init__()
        self.ledger, self.refs, self.stop = ledger, refs, stop
        self.chance = random.Random(seed)
        self.applied = self.refused = 0
        self.errors: list[BaseException] = []

    def run(self) -> None:
        while not self.stop.is_set():
            ref = self.chance.choice(self.refs)
            before: Any = self.ledger.get(ref)
            ways = [
                (target, actor)
                for (source, target), actors in self.ledger.machine(ref.machine).pairs.items()
                for actor in actors
                if source == before.status and target != "ROLLED_BACK"  # from which there is no way back
            ]
            to, actor = self.chance.choice(sorted(ways))
            try:
                after = self.ledger.move(ref, to, actor=Actor(actor), who="x", reason="x")
                self.applied += after.status is R.APPLIED
            except LedgerRefused as error:
                self.refused += " while " in str(error)
            except IllegalMove:
                pass  # another was quicker
            except BaseException as error:  # noqa: BLE001 - told to the test
                self.errors.append(error)


class Watching(threading.Thread):
    """Looks at one snapshot after the other for what breaks a seal."""

    def __init__(self, ledger: Ledger, stop: threading.Event) -> None:
        super().__init__()
        self.ledger, self.stop = ledger, stop
        self.found: list[Any] = []
        self.looks = 0

    def run(self) -> None:
        while not self.stop.is_set():
            self.looks += 1
            self.found += self.ledger.read(
                lambda cursor: [b for one in seals.families(SEALED) for b in seals.broken(cursor, one, 5)]
            )


def test_many_at_once_never_break_a_seal(ledger_url):
    world = World(ledger_url, SystemClock(), machines=SEALED)
    refs = world.born(*(price_run(a) for a in "abc"), *(target(n, a) for a in "abc" for n in range(2)))
    for run in refs[:3]:
        move(world, run, R.APPLYING)
    stop = threading.Event()
    restless = [Restless(world.another(), refs, seed, stop) for seed in range(3)]
    watching = Watching(world.another(), stop)
    try:
        for thread in (*restless, watching):
            thread.start()
        end = time.monotonic() + 40
        stop.wait(4)
        while not any(one.applied for one in restless) and time.monotonic() < end:
            stop.wait(0.5)
    finally:
        stop.set()
        for thread in (*restless, watching):
            thread.join(60)
        world.close()
    assert [error for one in restless for error in one.errors] == []
    assert watching.found == []
    assert watching.looks > 10
    assert sum(one.applied for one in restless) > 0
    assert sum(one.refused for one in restless) > 0

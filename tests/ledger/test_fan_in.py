"""Fan-in: counters that equal sets, and parents woken when all their children have ended or one goes on again."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from penstock.ledger.commit import Lost, Refused, Won
from penstock.ledger.incarnation import Incarnation
from penstock.ledger.ledger import Ledger
from penstock.ledger.prepare import Preparer
from penstock.model.clock import Rng
from penstock.model.errors import MachineError, UnknownMachine
from penstock.model.machine import Actor, Machine, Parent
from penstock.model.outcome import Birth, Move, Outcome
from penstock.model.unit import Ref, replace
from tests.support.machines import (
    BATCH_ITEM,
    BATCH_RUN,
    BatchItem,
    BatchRun,
    InvoiceState,
    ItemState,
    RunState,
    batch_item,
    batch_run,
    invoice,
    partition,
)
from tests.support.world import World, after

RUN = Ref("batch_run", "run")
OPERATOR = {"actor": Actor.OPERATOR, "who": "ann", "reason": "again"}


def family(world: World, children: int, run_id: str = "run", **parent: Any) -> None:
    world.born(
        batch_run(run_id, items_expected=children, due_at=None, **parent),
        *(batch_item(i, run_id=run_id) for i in range(children)),
    )


def ended(item: Any, status: ItemState = ItemState.DONE, **more: Any) -> Outcome[BatchItem]:
    return Outcome(item, replace(item, status=status, due_at=None), str(status), **more)


def counters(world: World, ref: Ref = RUN) -> tuple[int, int]:
    run = world.unit(ref)
    return run.items_done, run.items_failed


def balanced(world: World) -> None:
    """Every parent's counters equal its set of children."""
    sets = world.rows(
        "SELECT r.run_id, r.items_done, r.items_failed,"
        " (SELECT count(*) FROM batch_item i WHERE i.run_id = r.run_id AND i.status = 'done'),"
        " (SELECT count(*) FROM batch_item i WHERE i.run_id = r.run_id AND i.status = 'failed') FROM batch_run r"
    )
    assert sets
    assert [(r[0], r[3], r[4]) for r in sets] == [(r[0], r[1], r[2]) for r in sets]


def test_the_parent_sleeps_until_the_last_child_ended(world):
    family(world, 4)
    before = world.unit(RUN)
    worker = world.worker()
    items = worker.claim({"batch_item": 4})
    for done, item in enumerate(items):
        run = world.unit(RUN)
        assert (run.due_at, run.wakes) == (None, 0)
        assert run.items_done == done
        world.time.advance(1)
        assert world.commit(worker, ended(item)) == [Won()]
    run = world.unit(RUN)
    assert run == replace(before, items_done=4, due_at=after(4), wakes=1), "its version and claim are its own"
    balanced(world)


def test_all_in_one_batch_wake_once(world):
    family(world, 7)
    worker = world.worker()
    items = worker.claim({"batch_item": 7})
    states = [ItemState.DONE, ItemState.FAILED]
    world.commit(worker, *(ended(item, states[i % 2]) for i, item in enumerate(items)))
    run = world.unit(RUN)
    assert (run.items_done, run.items_failed, run.due_at, run.wakes) == (4, 3, after(0), 1)
    balanced(world)


def test_failures_count_towards_the_end(world):
    family(world, 2)
    worker = world.worker()
    first, second = worker.claim({"batch_item": 2})
    world.commit(worker, ended(first, ItemState.FAILED))
    assert (counters(world), world.unit(RUN).due_at) == ((0, 1), None)
    world.commit(worker, ended(second, ItemState.FAILED))
    assert (counters(world), world.unit(RUN).due_at) == ((0, 2), after(0))


def test_steps_that_end_nothing_count_nothing(world):
    family(world, 1)
    worker = world.worker()
    (item,) = worker.claim({"batch_item": 1})
    (won,) = world.commit(worker, Outcome(item, replace(item, result="half"), "intent", keep_claim=True))
    assert isinstance(won, Won)
    world.commit(worker, Outcome(won.unit, replace(won.unit, status=ItemState.OPEN), "retry"))
    assert (counters(world), world.unit(RUN).wakes) == ((0, 0), 0)
    balanced(world)


def test_a_lost_or_refused_child_counts_nothing(world):
    family(world, 2)
    worker = world.worker()
    first, second = worker.claim({"batch_item": 2})
    world.sql("UPDATE batch_item SET version = version + 1 WHERE position = 0")
    refusing = Birth(batch_run("run"))  # it is there already
    lost, refused = world.commit(worker, ended(first), ended(second, others=[refusing]))
    assert lost == Lost()
    assert isinstance(refused, Refused)
    assert (counters(world), world.unit(RUN).due_at) == ((0, 0), None)


def test_a_faked_counter_does_not_wake(world):
    family(world, 3)
    worker = world.worker()
    items = worker.claim({"batch_item": 3})
    world.sql("UPDATE batch_run SET items_done = 1")
    world.commit(worker, ended(items[0]))
    world.commit(worker, ended(items[1]))
    assert counters(world) == (3, 0)
    assert world.unit(RUN).due_at is None, "the counter says three, the set says two"


def test_a_set_without_its_counter_does_not_wake(world):
    family(world, 2)
    worker = world.worker()
    first, second = worker.claim({"batch_item": 2})
    world.sql("UPDATE batch_item SET status = 'done' WHERE position = 0")  # nobody counted this one
    assert world.commit(worker, ended(first), ended(second)) == [Lost(), Won()]
    assert (counters(world), world.unit(RUN).due_at) == ((1, 0), None)


def test_other_families_are_left_alone(world):
    for name in ("a", "a/b", "b"):
        family(world, 1, run_id=name)
    worker = world.worker()
    items = {i.run_id: i for i in worker.claim({"batch_item": 3})}
    world.commit(worker, ended(items["a/b"]))
    assert [counters(world, Ref("batch_run", n)) for n in ("a", "a%2Fb", "b")] == [(0, 0), (1, 0), (0, 0)]
    assert [world.unit(Ref("batch_run", n)).due_at for n in ("a", "a%2Fb", "b")] == [None, after(0), None]


def test_several_parents_in_one_batch(world):
    for run in range(5):
        family(world, 3, run_id=f"r{run}")
    worker = world.worker()
    items = worker.claim({"batch_item": 15})
    last = [i for i in items if i.position == 2 and i.run_id in ("r1", "r3")]
    world.commit(worker, *(ended(i) for i in items if i not in last))
    awake = [r[0] for r in world.rows("SELECT run_id FROM batch_run WHERE due_at IS NOT NULL ORDER BY 1")]
    assert awake == ["r0", "r2", "r4"]
    world.commit(worker, *(ended(i, ItemState.FAILED) for i in last))
    assert world.one("SELECT count(*) FROM batch_run WHERE due_at IS NOT NULL") == 5
    balanced(world)


def test_a_wake_of_a_claimed_parent_survives_its_commit(world):
    """The last child ends while the parent is being stepped: the parent must not fall asleep over it."""
    family(world, 1, status=RunState.CREATED)
    world.ledger.nudge([RUN])
    worker = world.worker()
    run, item = worker.claim({"batch_run": 1, "batch_item": 1})
    world.time.advance(5)
    world.commit(worker, ended(item))
    assert world.unit(RUN).claimed_by == worker.identity.id
    assert world.commit(worker, Outcome(run, replace(run, status=RunState.RUNNING, due_at=None), "sleeps")) == [Won()]
    now = world.unit(RUN)
    assert (now.items_done, now.due_at) == (1, after(0))
    assert [u.unit_id for u in worker.claim({"batch_run": 1})] == ["run"]


def test_a_sleeping_claimed_parent_is_woken_at_the_end(world):
    """As above, for a parent whose schedule was already taken away when it was claimed."""
    family(world, 1)
    world.ledger.nudge([RUN])
    worker = world.worker()
    run, item = worker.claim({"batch_run": 1, "batch_item": 1})
    (won,) = world.commit(worker, Outcome(run, replace(run, due_at=None), "intent", keep_claim=True))
    assert isinstance(won, Won)
    world.time.advance(5)
    world.commit(worker, ended(item))
    world.commit(worker, Outcome(won.unit, replace(won.unit, due_at=after(900)), "sleeps"))
    assert world.unit(RUN).due_at == after(5)


def test_the_parent_and_its_last_child_in_one_batch(world):
    family(world, 1)
    world.ledger.nudge([RUN])
    worker = world.worker()
    run, item = worker.claim({"batch_run": 1, "batch_item": 1})
    sleeps = Outcome(run, replace(run, status=RunState.RUNNING, due_at=None), "sleeps")
    assert world.commit(worker, sleeps, ended(item)) == [Won(), Won()]
    now = world.unit(RUN)
    assert (now.status, now.items_done, now.due_at) == (RunState.RUNNING, 1, after(0))


def test_an_ended_parent_is_not_woken(world):
    family(world, 1, status=RunState.CREATED)
    world.ledger.nudge([RUN])
    worker = world.worker()
    run, item = worker.claim({"batch_run": 1, "batch_item": 1})
    (won,) = world.commit(worker, Outcome(run, replace(run, status=RunState.RUNNING), "started", keep_claim=True))
    assert isinstance(won, Won)
    world.commit(worker, Outcome(won.unit, replace(won.unit, status=RunState.COMPLETED), "forced"))
    world.commit(worker, ended(item))
    now = world.unit(RUN)
    assert (now.items_done, now.due_at) == (1, None)


def test_a_retried_child_is_taken_off_and_counts_again(world):
    family(world, 2)
    worker = world.worker()
    first, second = worker.claim({"batch_item": 2})
    world.commit(worker, ended(first, ItemState.FAILED), ended(second))
    assert (counters(world), world.unit(RUN).wakes) == ((1, 1), 1)
    world.sql("UPDATE batch_run SET due_at = NULL")
    world.ledger.move(Ref("batch_item", "run/0"), "open", **OPERATOR, due_at=after(0))
    run = world.unit(RUN)
    assert (run.items_done, run.items_failed, run.due_at, run.wakes) == (1, 0, after(0), 2), "it hears of it"
    balanced(world)
    world.sql("UPDATE batch_run SET due_at = NULL")
    (again,) = worker.claim({"batch_item": 1})
    world.commit(worker, ended(again))
    run = world.unit(RUN)
    assert (run.items_done, run.items_failed, run.due_at, run.wakes) == (2, 0, after(0), 3)
    balanced(world)


def test_a_child_moved_by_another_units_outcome_counts(world):
    family(world, 1)
    world.born(invoice("1"))
    worker = world.worker()
    unit, item = worker.claim({"invoice": 1, "batch_item": 1})
    move = Move(item, replace(item, status=ItemState.FAILED, due_at=None), "with it")
    world.commit(worker, Outcome(unit, replace(unit, status=InvoiceState.FAILED), "gave up", others=[move]))
    assert (counters(world), world.unit(RUN).due_at) == ((0, 1), after(0))
    balanced(world)


def test_tallies_of_the_step_are_added_to_the_kernels(world):
    family(world, 2)
    worker = world.worker()
    first, second = worker.claim({"batch_item": 2})
    world.commit(
        worker,
        ended(first, parent_counts={"bytes_read": 10}),
        Outcome(second, replace(second, result="x"), "x", parent_counts={"bytes_read": 5}, keep_claim=True),
    )
    run = world.unit(RUN)
    assert (run.bytes_read, run.items_done, run.wakes) == (15, 1, 0)


def test_a_child_of_an_unknown_parent_is_refused_by_name(world):
    family(world, 1)
    worker = world.worker()
    (item,) = worker.claim({"batch_item": 1})
    alone = Preparer({"batch_item": BATCH_ITEM}, Rng(1))
    with pytest.raises(UnknownMachine, match="the parent of batch_item is 'batch_run', unknown to this program"):
        alone.entry(ended(item), "w")


@pytest.mark.parametrize(
    ("parent", "message"),
    [
        (Parent("batch_run", ("run_id",), {"items_dun": {"done"}}, "items_expected"), "has no counter 'items_dun'"),
        (Parent("batch_run", ("run_id",), {"items_done": {"done"}}, "expected"), "cannot count in 'expected'"),
        (Parent("batch_run", ("run_id",), {"run_id": {"done"}}, "items_expected"), "has no counter 'run_id'"),
        (Parent("batch_run", ("run_id",), {"wakes": {"done"}}, "items_expected"), "has no counter 'wakes'"),
        (
            Parent("batch_run", ("run_id", "position"), {"items_done": {"done"}}, "items_expected"),
            "batch_run is found by run_id",
        ),
        (Parent("partition", ("run_id", "position"), {"record_count": {"done"}}, "schema_version"), "not driven"),
    ],
)
def test_a_parent_that_cannot_count_is_refused_when_the_ledger_opens(world, parent, message):
    machines = [m for m in world.ledger.machines.values() if m is not BATCH_ITEM]
    child = Machine("batch_item", BatchItem, BATCH_ITEM.births, BATCH_ITEM.edges, BATCH_ITEM.terminal, parent=parent)
    with pytest.raises(MachineError, match=message):
        Preparer({m.name: m for m in [*machines, child]}, Rng(1))
    assert partition().key == ("source", "logical_date")


class Committing(threading.Thread):
    """A worker with connections of its own that ends children in small batches, in a random order."""

    def __init__(self, ledger: Ledger, session: Incarnation, seed: int) -> None:
        super().__init__()
        self.ledger = ledger
        self.session = session
        self.random = random.Random(seed)
        self.items: list[Any] = session.claim({"batch_item": 150})
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.random.shuffle(self.items)
            while self.items:
                size = self.random.randint(1, 12)
                batch, self.items = self.items[:size], self.items[size:]
                states = self.random.choices([ItemState.DONE, ItemState.FAILED], [3, 1], k=len(batch))
                made: list[Outcome[Any]] = [
                    ended(i, s, parent_counts={"bytes_read": 1}) for i, s in zip(batch, states, strict=True)
                ]
                # Now and then the worker also steps a parent, whose row others are counting on.
                runs = self.session.claim({"batch_run": 1}) if self.random.random() < 0.3 else []
                made += [Outcome(r, replace(r, due_at=None), "looked") for r in runs if isinstance(r, BatchRun)]
                self.random.shuffle(made)
                results = self.session.commit([self.ledger.preparer.entry(o, self.session.identity.id) for o in made])
                assert all(isinstance(r, Won) for r in results)
        except BaseException as error:  # noqa: BLE001 - told to the test
            self.error = error


def test_four_committers_over_the_same_parents(real_world: World):
    """No deadlock surfaces, no parent is left asleep, and every counter is exact."""
    world, parents, children = real_world, 5, 100
    for run in range(parents):
        family(world, children, run_id=f"run{run}")
    threads = []
    for seed in range(4):
        ledger = world.another()
        threads.append(Committing(ledger, world.worker("batch_item", "batch_run", ledger=ledger), seed))
    assert sum(len(t.items) for t in threads) == parents * children
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [t.error for t in threads] == [None] * 4
    balanced(world)
    rows = world.rows("SELECT items_done + items_failed, bytes_read, wakes FROM batch_run")
    assert [r[:2] for r in rows] == [(children, children)] * parents
    assert all(r[2] >= 1 for r in rows)
    # Every parent was woken by its last child: it is due now, or a worker looked at it since.
    asleep = world.rows(
        "SELECT r.run_id FROM batch_run r WHERE r.due_at IS NULL AND r.changed_at <"
        " (SELECT max(i.changed_at) FROM batch_item i WHERE i.run_id = r.run_id)"
    )
    assert asleep == []
    assert world.one("SELECT count(*) FROM batch_item WHERE claimed_by IS NOT NULL") == 0


def test_the_sample_parent_counts_what_its_child_declares():
    assert BATCH_ITEM.parent is not None
    assert {*BATCH_ITEM.parent.counts, BATCH_ITEM.parent.expected} <= set(BATCH_RUN.columns)

"""Parents and children against a plain model: counters equal sets, and a parent wakes when its last child ends.

It also wakes when a child that had ended goes on again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.ledger.commit import Lost, Won
from penstock.model.machine import Actor
from penstock.model.outcome import Outcome
from penstock.model.unit import Ref, replace
from tests.model.test_ledger_model import play
from tests.support.machines import BATCH_ITEM, BATCH_RUN, BatchItem, ItemState, RunState, batch_item, batch_run
from tests.support.world import World

EXAMPLES = itertools.count(1)
pick = st.integers(0, 10**6)


@dataclass
class Family:
    """What the model believes of one parent and its children, by position."""

    children: dict[int, str]
    wakes: int = 0
    due: bool = False
    held: Any = None
    status: str = "created"
    tallied: int = 0
    history: list[str] = field(default_factory=list)

    def count(self, status: str) -> int:
        return sum(s == status for s in self.children.values())

    def changed(self) -> None:
        """After a change of the counters: all ended means the parent is wanted."""
        if self.count("done") + self.count("failed") == len(self.children):
            self.woken()

    def woken(self) -> None:
        if self.status != "completed":
            self.wakes += 1
            self.due = True


class FanInModel(RuleBasedStateMachine):
    """One worker ends, retries and gives up children of up to three parents, and steps the parents in between."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.prefix = f"f{next(EXAMPLES)}"
        self.families: dict[str, Family] = {}
        self.items: dict[tuple[str, int], BatchItem] = {}

    @initialize(children=st.integers(1, 3))
    def start(self, children: int) -> None:
        self.session = self.world.worker("batch_run", "batch_item")
        self.birth(children)
        self.birth(2)
        self.claim_children(5)

    @precondition(lambda self: len(self.families) < 3)
    @rule(children=st.integers(1, 4))
    def birth(self, children: int) -> None:
        name = f"{self.prefix}-{len(self.families)}"
        self.world.born(
            batch_run(name, items_expected=children, due_at=None),
            *(batch_item(i, run_id=name) for i in range(children)),
        )
        self.families[name] = Family(dict.fromkeys(range(children), "open"))

    @rule(n=st.integers(1, 5))
    def claim_children(self, n: int) -> None:
        for item in self.session.claim({"batch_item": n}):
            assert isinstance(item, BatchItem)
            assert self.families[item.run_id].children[item.position] == "open"
            self.families[item.run_id].children[item.position] = "working"
            self.items[item.run_id, item.position] = item

    @precondition(lambda self: self.items)
    @rule(ends=st.lists(st.tuples(pick, st.sampled_from(["done", "failed", "open"])), min_size=1, max_size=5))
    def end_children(self, ends: list[tuple[int, str]]) -> None:
        """Several in one batch, each with a tally of its own."""
        made: dict[tuple[str, int], Outcome[Any]] = {}
        for number, status in ends:
            key = sorted(self.items)[number % len(self.items)]
            item = self.items[key]
            after = replace(item, status=ItemState(status), due_at=item.due_at if status == "open" else None)
            made[key] = Outcome(item, after, status, parent_counts={"bytes_read": 3})
        results = self.world.commit(self.session, *made.values())
        touched = set()
        for (key, outcome), result in zip(made.items(), results, strict=True):
            del self.items[key]
            family = self.families[key[0]]
            if family.children[key[1]] != "working":
                assert result == Lost()
                continue
            assert result == Won()
            family.children[key[1]] = str(outcome.after.status)
            family.tallied += 3
            touched.add(key[0])
        for name in touched:
            self.families[name].changed()

    @precondition(lambda self: any(f.count("failed") for f in self.families.values()))
    @rule(number=pick)
    def retry_by_hand(self, number: int) -> None:
        failed = [(n, p) for n, f in self.families.items() for p, s in f.children.items() if s == "failed"]
        name, position = failed[number % len(failed)]
        ref = Ref("batch_item", f"{name}/{position}")
        self.world.ledger.move(
            ref, "open", actor=Actor.OPERATOR, who="ann", reason="again", due_at=self.world.time.now()
        )
        self.families[name].children[position] = "open"
        self.families[name].woken()

    @precondition(lambda self: self.items)
    @rule(number=pick)
    def type_sql(self, number: int) -> None:
        """A stranger puts a held child back: whoever holds it loses it, and nothing was counted."""
        name, position = sorted(self.items)[number % len(self.items)]
        family = self.families[name]
        if family.children[position] == "working":
            self.world.sql(
                "UPDATE batch_item SET status = 'open' WHERE run_id = :run AND position = :position",
                run=name,
                position=position,
            )
            family.children[position] = "open"

    @rule()
    def claim_parents(self) -> None:
        wanted = {n for n, f in self.families.items() if f.due and f.held is None}
        claimed: list[Any] = self.session.claim({"batch_run": 10})
        assert {r.run_id for r in claimed} == wanted
        for run in claimed:
            self.families[run.run_id].held = run

    @precondition(lambda self: any(f.held for f in self.families.values()))
    @rule(number=pick, keep=st.booleans())
    def step_parent(self, number: int, keep: bool) -> None:
        """It goes to sleep, or to its end when all is done; a child that ended meanwhile keeps it awake."""
        name = sorted(n for n, f in self.families.items() if f.held)[
            number % sum(bool(f.held) for f in self.families.values())
        ]
        family = self.families[name]
        run = family.held
        status = RunState.RUNNING if run.status is RunState.CREATED else run.status
        if run.status is RunState.RUNNING and family.count("done") == len(family.children):
            status = RunState.COMPLETED
        (result,) = self.world.commit(
            self.session, Outcome(run, replace(run, status=status, due_at=None), "stepped", keep_claim=keep)
        )
        assert isinstance(result, Won)
        family.status = str(status)
        family.due = status is not RunState.COMPLETED and family.wakes != run.wakes
        family.held = result.unit if keep else None

    @invariant()
    def counters_equal_sets_and_nobody_sleeps_over_an_end(self) -> None:
        runs = self.world.ledger.get_many(BATCH_RUN, list(self.families))
        assert {r.run_id: (r.items_done, r.items_failed, r.bytes_read, r.wakes, bool(r.due_at)) for r in runs} == {
            n: (f.count("done"), f.count("failed"), f.tallied, f.wakes, f.due) for n, f in self.families.items()
        }
        assert {r.run_id: r.claimed_by is not None for r in runs} == {
            n: f.held is not None for n, f in self.families.items()
        }
        ids = [f"{n}/{p}" for n, f in self.families.items() for p in f.children]
        items = self.world.ledger.get_many(BATCH_ITEM, ids)
        assert {i.unit_id: str(i.status) for i in items} == {
            f"{n}/{p}": s for n, f in self.families.items() for p, s in f.children.items()
        }

    def teardown(self) -> None:
        self.session.retire()
        for table in ("batch_run", "batch_item"):
            self.world.sql(f"UPDATE {table} SET due_at = NULL WHERE run_id LIKE :name", name=f"{self.prefix}-%")


def test_fan_in_follows_the_model(world):
    play(FanInModel, world, examples=20, steps=40)


@pytest.mark.nightly
def test_fan_in_follows_the_model_for_long(world):
    play(FanInModel, world, examples=2_000, steps=60)

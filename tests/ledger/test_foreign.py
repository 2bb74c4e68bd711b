"""What somebody types while a unit is held stands: the commit under way is lost, and the history names the columns."""

from __future__ import annotations

import itertools
import threading
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.ledger.commit import Lost, Won
from penstock.ledger.schema.columns import plain
from penstock.model.errors import LedgerRefused
from penstock.model.machine import Actor
from penstock.model.outcome import Move, Outcome
from penstock.model.unit import Ref, replace
from tests.support.hand import Hand, literal
from tests.support.machines import (
    InvoiceState,
    PartitionState,
    RunState,
    batch_item,
    batch_run,
    feed,
    invoice,
    partition,
)
from tests.support.more_machines import PARCEL, parcel
from tests.support.probe import FeedProbe, Probe, sent, work
from tests.support.world import World, after

INVOICE = Ref("invoice", "acme/1")
RUN = Ref("batch_run", "run")
DAYS = [date(2026, 11, day) for day in (1, 2, 3)]
SENT = {"status": InvoiceState.SENT, "remote_id": "r-1"}


def held_invoice(world: World) -> tuple[Any, Any]:
    world.born(invoice("1"))
    worker = world.worker()
    (unit,) = worker.claim({"invoice": 1})
    return worker, unit


def strange(world: World, ref: Ref) -> list[tuple[Any, ...]]:
    """(from, to, reason) of every foreign change in the history."""
    return [(a, b, why) for a, b, who, why in world.history(ref) if who == "sql"]


# What a worker holds.


@pytest.mark.parametrize("keep_claim", [False, True])
def test_a_column_that_somebody_typed_is_not_overwritten(world, keep_claim):
    worker, unit = held_invoice(world)
    world.sql("UPDATE invoice SET remote_id = 'theirs'")
    ours = replace(unit, remote_id="ours") if keep_claim else replace(unit, **SENT)
    assert world.commit(worker, Outcome(unit, ours, "accepted", keep_claim=keep_claim)) == [Lost()]
    now = world.unit(INVOICE)
    assert (now.remote_id, now.status, now.claimed_by, now.changed_by) == ("theirs", "SENDING", None, "sql")
    assert strange(world, INVOICE) == [("SENDING", "SENDING", "changed remote_id")]


def test_a_column_that_the_step_leaves_alone_is_reason_enough(world):
    """What it decided rests on the whole unit as it was read."""
    worker, unit = held_invoice(world)
    world.sql("UPDATE invoice SET amount_minor = 5")
    assert world.commit(worker, Outcome(unit, replace(unit, **SENT), "accepted")) == [Lost()]
    assert world.unit(INVOICE).amount_minor == 5
    (again,) = worker.claim({"invoice": 1})
    assert again.amount_minor == 5
    assert world.commit(worker, Outcome(again, replace(again, **SENT), "accepted")) == [Won()]
    assert world.unit(INVOICE).amount_minor == 5


def test_only_what_was_typed_at_is_lost_of_a_batch(world):
    world.born(*(invoice(n) for n in "123"))
    worker = world.worker()
    units = worker.claim({"invoice": 3})
    world.sql("UPDATE invoice SET amount_minor = 5 WHERE number = '2'")
    done = [Outcome(u, replace(u, **SENT), "accepted") for u in units]
    assert world.commit(worker, *done) == [Won(), Lost(), Won()]


def test_an_unheld_unit_stays_without_doubt_and_a_held_one_does_not(world):
    """Whoever held it may have made a call: the next one looks first, as after a claim that ended without a word."""
    worker, unit = held_invoice(world)
    assert unit.doubts == 0
    world.sql("UPDATE invoice SET amount_minor = 5")
    assert world.unit(INVOICE).doubts == 1
    world.sql("UPDATE invoice SET amount_minor = 6")
    assert world.unit(INVOICE).doubts == 1
    world.sql("UPDATE invoice SET doubts = 0")
    assert world.unit(INVOICE).doubts == 0
    worker.claim({"invoice": 1})
    world.sql("UPDATE invoice SET doubts = 2")
    assert world.unit(INVOICE).doubts == 2


def test_a_stranger_never_parks_a_unit(world):
    worker, _ = held_invoice(world)
    for amount in range(6):
        world.sql(f"UPDATE invoice SET amount_minor = {amount}")
        assert len(worker.claim({"invoice": 1})) == 1
    assert (world.unit(INVOICE).doubts, world.unit(INVOICE).parked_at) == (1, None)


def test_a_schedule_typed_while_the_unit_is_held_stands(world):
    (ref,) = world.born(feed("news"))
    worker = world.worker()
    (unit,) = worker.claim({"feed": 1})
    world.sql("UPDATE feeds SET next_refresh_at = :at", at=plain(after(7)))
    assert world.commit(worker, Outcome(unit, replace(unit, due_at=after(60)), "later")) == [Lost()]
    assert world.unit(ref).due_at == after(7)
    assert strange(world, ref) == [("missing", "missing", "changed next_refresh_at")]


def test_what_only_wakes_is_no_stranger(world):
    (ref,) = world.born(feed("news"))
    worker = world.worker()
    (unit,) = worker.claim({"feed": 1})
    world.ledger.nudge([ref])
    assert world.commit(worker, Outcome(unit, replace(unit, due_at=after(60)), "later")) == [Won()]
    assert world.unit(ref).due_at == unit.due_at
    assert strange(world, ref) == []


def test_a_worker_calls_it_lost_and_steps_again_on_what_was_typed(world):
    world.born(invoice("1"))
    seen: list[tuple[int, int]] = []

    async def act(unit: Any, io: Any) -> Any:
        seen.append((unit.amount_minor, unit.doubts))
        if len(seen) == 1:
            world.sql("UPDATE invoice SET amount_minor = 5")
        return sent(unit)

    worker = work(world, Probe(act))
    assert seen == [(100, 0), (5, 1)]
    assert (worker.counts.lost, worker.counts.committed) == (1, 1)
    now = world.unit(INVOICE)
    assert (now.status, now.amount_minor, now.crashes, now.parked_at) == ("SENT", 5, 0, None)
    assert world.rows("SELECT event_type FROM event_log") == []


def test_a_worker_leaves_a_unit_alone_until_the_schedule_that_was_typed(world):
    (ref,) = world.born(feed("news"))

    async def act(unit: Any, io: Any) -> Any:
        if len(flow.acted) == 1:
            world.sql("UPDATE feeds SET next_refresh_at = :at", at=plain(after(50)))
        return Outcome(unit, replace(unit, due_at=None), "served")

    flow = FeedProbe(act)
    work(world, flow, seconds=40)
    assert [name for name, _ in flow.acted] == ["news"]
    work(world, flow, seconds=40)
    assert [at >= after(50) for _, at in flow.acted] == [False, True]
    assert world.unit(ref).due_at is None


# Others who move units.


def test_a_move_beside_an_outcome_does_not_overwrite_what_was_typed(world):
    worker, unit = held_invoice(world)
    (ref,) = world.born(partition())
    before = world.unit(ref)
    world.sql("UPDATE partitions SET note = 'theirs'")
    judged = replace(before, status=PartitionState.SUCCESS, note="ours")
    move = Move(before, judged, "judged", Actor.VALIDATOR)
    (refused,) = world.commit(worker, Outcome(unit, replace(unit, **SENT), "accepted", others=[move]))
    assert "changed since it was read" in str(refused.error)
    with pytest.raises(LedgerRefused, match="changed since it was read"):
        world.ledger.together([move], who="test")
    assert (world.unit(ref).status, world.unit(ref).note) == ("pending", "theirs")
    assert strange(world, ref) == [("pending", "pending", "changed note")]


def test_a_step_that_moves_another_unit_is_taken_again_on_what_was_typed(world):
    world.born(invoice("1"))
    (ref,) = world.born(partition())
    seen: list[Any] = []

    async def act(unit: Any, io: Any) -> Any:
        other = world.unit(ref)
        seen.append(other.note)
        if len(seen) == 1:
            world.sql("UPDATE partitions SET note = 'theirs'")
        judged = replace(other, status=PartitionState.SUCCESS, record_count=3)
        return replace(sent(unit), others=[Move(other, judged, "judged", Actor.VALIDATOR)])

    work(world, Probe(act))
    now = world.unit(ref)
    assert seen == [None, "theirs"]
    assert (now.status, now.note, now.record_count) == ("success", "theirs", 3)
    assert (world.unit(INVOICE).status, world.unit(INVOICE).crashes) == ("SENT", 0)


def test_an_operators_move_keeps_what_was_typed(world):
    (ref,) = world.born(partition(status=PartitionState.SUCCESS), actor=Actor.VALIDATOR)
    world.sql("UPDATE partitions SET note = 'theirs'")
    world.ledger.move(ref, "pending", actor=Actor.OPERATOR, who="ann", reason="again", record_count=3)
    assert (world.unit(ref).note, world.unit(ref).record_count) == ("theirs", 3)


def test_many_are_moved_but_for_what_was_typed_at_meanwhile(world):
    """`move_many` reads first and commits a part at a time; what changes in between is skipped, not overwritten."""
    landed = (partition(day=day, status=PartitionState.SUCCESS) for day in DAYS)
    refs = world.born(*landed, actor=Actor.VALIDATOR)
    befores = [world.unit(ref) for ref in refs]
    world.sql("UPDATE partitions SET note = 'theirs' WHERE unit_id = :id", id=refs[1].unit_id)
    pulled = [
        world.ledger.preparer.move(b, replace(b, status=PartitionState.PENDING), "x", Actor.OPERATOR, "a")
        for b in befores
    ]
    assert [type(r) for r in world.ledger._committer.commit(pulled)] == [Won, Lost, Won]
    assert world.unit(refs[1]).note == "theirs"


# Counters.


def test_a_counter_typed_by_hand_stands_and_children_go_on_counting(world):
    world.born(batch_run(items_expected=2), *(batch_item(n) for n in (1, 2)))
    worker = world.worker()
    (run,) = worker.claim({"batch_run": 1})
    world.sql("UPDATE batch_run SET items_done = 10")
    (item, _) = worker.claim({"batch_item": 2})
    done = Outcome(item, replace(item, status="done", due_at=None), "done", parent_counts={"bytes_read": 3})
    started = Outcome(run, replace(run, status=RunState.RUNNING, due_at=None), "started")
    assert world.commit(worker, done, started) == [Won(), Lost()]
    now = world.unit(RUN)
    assert (now.items_done, now.bytes_read, now.status) == (11, 3, "created")
    assert strange(world, RUN) == [("created", "created", "changed items_done")]


def test_a_counter_that_a_step_sets_anew_is_compared_with_what_it_read(world):
    """A tally leaves the version alone, so that whoever holds the parent keeps it; but none is overwritten."""
    world.born(batch_run(items_expected=2), *(batch_item(n) for n in (1, 2)))
    worker = world.worker()
    (run,) = worker.claim({"batch_run": 1})
    (item, _) = worker.claim({"batch_item": 2})
    tally = Outcome(item, replace(item, status="done", due_at=None), "done", parent_counts={"bytes_read": 3})
    assert world.commit(worker, tally) == [Won()]
    reset = Outcome(run, replace(run, status=RunState.RUNNING, bytes_read=100, due_at=None), "reset", keep_claim=True)
    assert world.commit(worker, reset) == [Lost()]
    assert (world.unit(RUN).bytes_read, world.unit(RUN).items_done) == (3, 1)
    fresh = world.unit(RUN)
    again = Outcome(fresh, replace(fresh, status=RunState.RUNNING, bytes_read=100), "reset", keep_claim=True)
    (won,) = world.commit(worker, again)
    assert won.unit.bytes_read == 100
    plainly = Outcome(won.unit, replace(won.unit, due_at=None), "waits")
    assert world.commit(worker, plainly) == [Won()]
    assert strange(world, RUN) == []


# Any column, in any order, at any time.


moments = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)).map(  # noqa: DTZ001 - made aware below
    lambda m: m.replace(microsecond=m.microsecond // 1000 * 1000, tzinfo=UTC)
)
numbers = st.integers(-(10**6), 10**6).map(lambda n: n / 8)
leaves = st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "1", "null"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "note": st.none() | st.sampled_from(["", "a", "A", "\N{LATIN SMALL LETTER E WITH ACUTE}", "1", "null"]),
    "price": st.none() | st.integers(-900, 900).map(lambda n: Decimal(n) / 100 + Decimal("10.01")),
    "weight": st.none() | numbers,
    "count": st.none() | st.integers(-5, 5),
    "sealed_up": st.none() | st.booleans(),
    "day": st.none() | st.dates(),
    "at": st.none() | moments,
    "token": st.none() | st.uuids(),
    "facts": st.none() | st.fixed_dictionaries({}, optional={"a": leaves, "b": leaves}),
    "tags": st.none() | st.lists(leaves, max_size=3),
    "due_at": st.none() | moments,
    "attempts": st.integers(0, 3),
}
some_columns = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True)
changes = some_columns.flatmap(lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names}))
deeds = st.tuples(st.sampled_from(["read", "step", "move", "type", "type"]), st.integers(0, 1), changes)
NAMES = itertools.count(1)


class Desk:
    """One unit that two step and anybody types at. `row` is what it must hold, `changed` how often it has changed."""

    def __init__(self, world: World) -> None:
        self.world, self.worker = world, world.worker()
        (self.ref,) = world.born(parcel(f"box-{next(NAMES)}"))
        unit = world.unit(self.ref)
        self.row = {name: getattr(unit, name) for name in VALUES}
        self.changed = 0
        self.read_by: dict[int, tuple[Any, int]] = {}
        self.typed: list[str] = []
        self.read(0, {})
        self.read(1, {})

    def read(self, who: int, _: dict[str, Any]) -> None:
        self.read_by[who] = (self.world.unit(self.ref), self.changed)

    def step(self, who: int, values: dict[str, Any]) -> None:
        unit, seen = self.read_by[who]
        (result,) = self.world.commit(self.worker, Outcome(unit, replace(unit, **values), "stepped"))
        assert isinstance(result, Won if seen == self.changed else Lost)
        self.wrote(values, won=seen == self.changed)

    def move(self, who: int, values: dict[str, Any]) -> None:
        unit, seen = self.read_by[who]
        move = Move(unit, replace(unit, **values), "moved", Actor.WORKER)
        try:
            self.world.ledger.together([move], who="test")
        except LedgerRefused:
            assert seen != self.changed
        else:
            self.wrote(values, won=True)

    def wrote(self, values: dict[str, Any], *, won: bool) -> None:
        if won:
            self.row |= values
            self.changed += 1

    def type(self, _: int, values: dict[str, Any]) -> None:
        sets = ", ".join(f"{name} = {literal(value)}" for name, value in values.items())
        self.world.sql(f"UPDATE parcel SET {sets} WHERE unit_id = '{self.ref.unit_id}'")
        others = [n for n in PARCEL.columns if n in values and plain(values[n]) != plain(self.row[n])]
        if others:
            self.wrote(values, won=True)
            self.typed.append(f"changed {', '.join(others)}")

    def check(self) -> None:
        unit = self.world.unit(self.ref)
        assert {name: getattr(unit, name) for name in VALUES} == self.row
        assert [why for _, _, why in strange(self.world, self.ref)] == self.typed


def test_no_value_that_was_typed_is_ever_lost_in_silence(world):
    @settings(max_examples=60, deadline=None, suppress_health_check=[*HealthCheck])
    @given(st.lists(deeds, min_size=2, max_size=12))
    def play(script: list[tuple[str, int, dict[str, Any]]]) -> None:
        desk = Desk(world)
        for deed, who, values in script:
            getattr(desk, deed)(who, values)
            desk.check()

    play()


def test_a_worker_and_somebody_at_a_prompt_never_lose_each_others_sums(world):
    """Both add to one column at the same time, over connections of their own."""
    (ref,) = world.born(parcel("sum", weight=0.0))
    ledger = world.another()
    worker = ledger.incarnation()
    worker.register()
    stop, typed = threading.Event(), 0

    def person() -> None:
        nonlocal typed
        with Hand(world.url) as hand:
            if hand.dialect == "sqlite":
                hand.type("PRAGMA busy_timeout = 30000")
            for _ in range(60):
                hand.type("UPDATE parcel SET weight = weight + 1000")
                typed += 1
        stop.set()

    thread = threading.Thread(target=person)
    thread.start()
    won = lost = 0
    while not stop.is_set() or not won or not lost:
        for unit in worker.claim({"parcel": 1}):
            step = Outcome(unit, replace(unit, weight=unit.weight + 1), "one more")
            if stop.is_set() and not lost:
                world.sql("UPDATE parcel SET weight = weight + 1000")
                typed += 1
            (result,) = worker.commit([ledger.preparer.entry(step, worker.identity.id)])
            won, lost = won + isinstance(result, Won), lost + (result == Lost())
    thread.join()
    assert world.unit(ref).weight == 1000 * typed + won
    assert len(strange(world, ref)) == typed

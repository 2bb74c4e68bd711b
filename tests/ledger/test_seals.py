"""Seals: what a parent and its children may be together, whoever moves them and in whatever order."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ledger.care.doctor import examine
from penstock.ledger.care.look import WHOLE, Scope
from penstock.ledger.commit import Refused, Won
from penstock.ledger.ledger import Ledger
from penstock.ledger.schema.install import install
from penstock.model.errors import LedgerMismatch, LedgerRefused, MachineError
from penstock.model.machine import Actor, Machine, Parent
from penstock.model.move_set import MoveSet
from penstock.model.outcome import Outcome
from penstock.model.unit import Ref, replace
from tests.support.hand import Hand, typed_insert, typed_move
from tests.support.sealed import DAY, PRICE_RUN, SEALED, SLIP, TARGET, R, T, Target, price_run, slip, target
from tests.support.world import World

RUN_ID = f"a%2Fb%25c/{DAY}"
RUN = Ref("price_run", RUN_ID)
WAYS = {
    T.PREVIEW: (),
    T.QUEUED: (T.QUEUED,),
    T.APPLYING: (T.QUEUED, T.APPLYING),
    T.APPLIED: (T.QUEUED, T.APPLYING, T.APPLIED),
    T.FAILED: (T.QUEUED, T.APPLYING, T.FAILED),
    T.ROLLED_BACK: (T.QUEUED, T.APPLYING, T.APPLIED, T.ROLLED_BACK),
}
BARRED = {R.APPLIED: (T.QUEUED, T.APPLYING, T.FAILED), R.ROLLED_BACK: (T.QUEUED, T.APPLYING, T.APPLIED, T.FAILED)}


@pytest.fixture
def sealed(ledger_url: str) -> Iterator[World]:
    made = World(ledger_url, machines=SEALED)
    yield made
    made.close()


@pytest.fixture
def hand(sealed: World) -> Iterator[Hand]:
    with Hand(sealed.url) as hand:
        yield hand


def family(world: World, *states: T, run: R = R.APPLYING) -> list[Ref]:
    """A run in that state, and a target of it in each of the states; none of them breaks its seal."""
    refs = world.born(price_run(), *(target(n) for n in range(1, len(states) + 1)))
    move(world, RUN, R.APPLYING)
    for ref, state in zip(refs[1:], states, strict=True):
        for step in WAYS[state]:
            move(world, ref, step)
    if run is not R.APPLYING:
        move(world, RUN, run)
    return refs[1:]


def move(world: World, ref: Ref, to: str) -> Any:
    machine = world.ledger.machine(ref.machine)
    actor = min(machine.pairs[str(world.unit(ref).status), str(to)])
    return world.ledger.move(ref, to, actor=Actor(actor), who="test", reason="test")


def refusal(hand: Hand, sql: str) -> str:
    with pytest.raises(hand.error) as caught:
        hand.type(sql)
    return str(caught.value).splitlines()[0]


def typed(ref: Ref, to: str) -> str:
    return typed_move(PRICE_RUN if ref.machine == "price_run" else TARGET, ref.unit_id, str(to))


def said(hand: Hand, short: str, long: str) -> str:
    """SQLite's messages are literals, PostgreSQL's name the units."""
    return f"penstock: {short if hand.dialect == 'sqlite' else long}"


# What is typed.


@pytest.mark.parametrize("state", BARRED[R.APPLIED])
def test_a_run_is_not_applied_over_a_target_that_is_not(sealed, hand, state):
    (_, bad) = family(sealed, T.APPLIED, state)
    assert refusal(hand, typed(RUN, R.APPLIED)) == said(
        hand,
        f"price_run cannot become APPLIED while a target of it is {state}",
        f"price_run {RUN_ID} cannot become APPLIED while its target {bad.unit_id} is {state}",
    )
    assert sealed.unit(RUN).status is R.APPLYING


@pytest.mark.parametrize("state", [s for s in T if s not in BARRED[R.APPLIED]])
def test_a_run_is_applied_over_targets_that_it_may_have(sealed, hand, state):
    family(sealed, T.APPLIED, state)
    hand.type(typed(RUN, R.APPLIED))
    assert sealed.unit(RUN).status is R.APPLIED


def test_each_sealed_state_has_its_own_list(sealed, hand):
    first, second = family(sealed, T.APPLIED, T.PREVIEW, run=R.APPLIED)
    assert "cannot become ROLLED_BACK while" in refusal(hand, typed(RUN, R.ROLLED_BACK))
    hand.type(typed(first, T.ROLLED_BACK))
    hand.type(typed(RUN, R.ROLLED_BACK))
    assert "cannot become QUEUED while its price_run" in refusal(hand, typed(second, T.QUEUED))


@pytest.mark.parametrize("state", [T.PREVIEW, T.APPLIED])
def test_a_target_does_not_leave_the_list_under_an_applied_run(sealed, hand, state):
    (ref,) = family(sealed, state, run=R.APPLIED)
    assert refusal(hand, typed(ref, T.QUEUED)) == said(
        hand,
        "target cannot become QUEUED while its price_run is APPLIED",
        f"target {ref.unit_id} cannot become QUEUED while its price_run {RUN_ID} is APPLIED",
    )
    assert sealed.unit(ref).status is state
    move(sealed, RUN, R.APPLYING)
    hand.type(typed(ref, T.QUEUED))
    assert sealed.unit(ref).status is T.QUEUED


def test_another_family_is_not_concerned(sealed, hand):
    family(sealed, T.APPLIED, run=R.APPLIED)
    (run, other) = sealed.born(price_run("a"), target(1, "a"))
    move(sealed, run, R.APPLYING)
    hand.type(typed(other, T.QUEUED))
    assert "cannot become APPLIED" in refusal(hand, typed(run, R.APPLIED))
    assert sealed.unit(RUN).status is R.APPLIED


def test_one_of_many_spoils_the_statement(sealed, hand):
    refs = family(sealed, T.PREVIEW, T.PREVIEW, run=R.APPLIED)
    sealed.born(price_run("free"), target(7, "free"))
    assert "QUEUED while its price_run" in refusal(hand, "UPDATE target SET status = 'QUEUED'")
    assert {sealed.unit(ref).status for ref in refs} == {T.PREVIEW}
    hand.type("UPDATE target SET status = 'QUEUED' WHERE account = 'free'")


def test_a_target_is_not_born_where_it_may_not_be(sealed, hand):
    family(sealed, T.APPLIED, run=R.APPLIED)
    text = refusal(hand, typed_insert(TARGET, target(8, status=T.QUEUED)))
    assert text.startswith("penstock: target ")
    assert "cannot be born as QUEUED while its price_run" in text
    hand.type(typed_insert(TARGET, target(8)))
    there = typed_insert(TARGET, target(8, status=T.QUEUED)) + " ON CONFLICT DO NOTHING"
    hand.type(there)
    assert sealed.unit(Ref("target", f"{RUN_ID}/8")).status is T.PREVIEW, "what is not made breaks nothing"


def test_a_child_is_not_pointed_to_a_sealed_parent(sealed, hand):
    family(sealed, T.APPLIED, run=R.APPLIED)
    sealed.born(price_run("other"), slip("s", "other"))
    text = refusal(hand, "UPDATE slip SET account = 'a/b%c'")
    assert "cannot become loose while its price_run" in text
    hand.type("UPDATE slip SET status = 'filed'")
    hand.type("UPDATE slip SET account = 'a/b%c'")
    assert "cannot become loose" in refusal(hand, "UPDATE slip SET status = 'loose'")
    hand.type("UPDATE slip SET account = 'nobody', status = 'loose'")


def test_a_parent_is_sealed_by_all_its_children(sealed, hand):
    family(sealed, T.APPLIED)
    sealed.born(slip())
    assert "slip" in refusal(hand, typed(RUN, R.APPLIED))
    hand.type("UPDATE slip SET status = 'filed'")
    hand.type(typed(RUN, R.APPLIED))


def test_the_sqlite_of_a_distribution_keeps_seals(tmp_path: Path):
    world = World(f"sqlite:///{tmp_path / 'penstock.db'}", machines=SEALED)
    (ref,) = family(world, T.PREVIEW, run=R.APPLIED)
    world.close()
    with Hand(world.url, driver=sqlite3) as hand:
        assert "target cannot become QUEUED while its price_run is APPLIED" in refusal(hand, typed(ref, T.QUEUED))
        hand.type(typed(RUN, R.APPLYING))
        hand.type(typed(ref, T.QUEUED))
        assert "while a target of it is QUEUED" in refusal(hand, typed(RUN, R.APPLIED))


# What the ledger's own calls come to.


def test_of_a_batch_only_what_breaks_a_seal_is_refused(sealed):
    """The run would be applied over a target that failed; the others of the batch are committed."""
    (queued, *_) = family(sealed, T.QUEUED, T.QUEUED, T.QUEUED)
    worker = sealed.worker()
    sealed.ledger.nudge([RUN])
    run, *targets = worker.claim({"price_run": 1, "target": 3})
    outcomes: list[Outcome[Any]] = [Outcome(t, replace(t, status=T.APPLIED, due_at=None), "sent") for t in targets[1:]]
    outcomes.insert(1, Outcome(run, replace(run, status=R.APPLIED, due_at=None), "too early"))
    results = sealed.commit(worker, *outcomes)
    assert [type(r) for r in results] == [Won, Refused, Won]
    assert isinstance(results[1], Refused)
    assert "cannot become APPLIED while" in str(results[1].error)
    assert targets[0].unit_id == queued.unit_id
    assert (sealed.unit(RUN).status, sealed.unit(RUN).applied) == (R.APPLYING, 2)
    done = Outcome(targets[0], replace(targets[0], status=T.APPLIED, due_at=None), "sent")
    assert sealed.commit(worker, done) == [Won()]
    run = sealed.unit(RUN)
    assert sealed.commit(worker, Outcome(run, replace(run, status=R.APPLIED, due_at=None), "all")) == [Won()]


def test_a_move_and_its_refusal(sealed):
    (ref,) = family(sealed, T.APPLIED, run=R.APPLIED)
    with pytest.raises(LedgerRefused, match="cannot become QUEUED while its price_run"):
        move(sealed, ref, T.QUEUED)
    assert sealed.unit(RUN).applied == 1


def test_many_moves_skip_those_under_a_seal(sealed):
    (bad,) = family(sealed, T.PREVIEW, run=R.APPLIED)
    (_, good) = sealed.born(price_run("free"), target(1, "free"))
    moved = sealed.ledger.move_many(
        "target", [bad.unit_id, good.unit_id], T.QUEUED, actor=Actor.API, who="x", reason="go"
    )
    assert moved.moved == [good]
    assert "while its price_run" in moved.skipped[bad]


def all_to_queued(**fields: Any) -> MoveSet:
    made: dict[str, Any] = {
        "machine": "target",
        "sources": [T.PREVIEW],
        "to": T.QUEUED,
        "reason": "fan out",
        "where": {"account": "a/b%c", "day": DAY},
        "actor": Actor.API,
    }
    return MoveSet(**made | fields)


def test_a_set_is_refused_whole(sealed):
    refs = family(sealed, T.PREVIEW, T.PREVIEW, run=R.APPLIED)
    with pytest.raises(LedgerRefused, match="cannot become QUEUED while its price_run"):
        sealed.ledger.move_set(all_to_queued(), who="x")
    assert {sealed.unit(ref).status for ref in refs} == {T.PREVIEW}


def test_a_run_that_leaves_its_seal_takes_its_targets_along(sealed):
    """The unit of an outcome moves first: what it had sealed may go in the same transaction."""
    refs = family(sealed, T.PREVIEW, T.PREVIEW, run=R.APPLIED)
    worker = sealed.worker()
    run = sealed.unit(RUN)
    again = Outcome(run, replace(run, status=R.APPLYING), "again", actor=Actor.OPERATOR, move_sets=[all_to_queued()])
    assert sealed.commit(worker, again) == [Won()]
    assert {sealed.unit(ref).status for ref in refs} == {T.QUEUED}


def test_a_set_in_an_outcome_spoils_that_outcome_alone(sealed):
    family(sealed, T.PREVIEW, run=R.APPLIED)
    (other,) = sealed.born(price_run("free"))
    worker = sealed.worker()
    run, free = sealed.unit(RUN), sealed.unit(other)
    fan_out = Outcome(run, replace(run, due_at=None), "fan out", move_sets=[all_to_queued()])
    results = sealed.commit(worker, fan_out, Outcome(free, replace(free, status=R.APPLYING), "started"))
    assert [type(r) for r in results] == [Refused, Won]


# The doctor, and ledgers that change.


def drop(hand: Hand, name: str, table: str) -> None:
    hand.type(f"DROP TRIGGER {name}" + ("" if hand.dialect == "sqlite" else f" ON {table}"))


def findings(world: World, check: str, scope: Scope = WHOLE) -> dict[str, str]:
    found = examine(world.ledger.database, world.ledger.machines, scope=scope)
    return {f.subject: f.message for f in found if f.check == check}


TRIGGERS = {
    "penstock_target_seal": "target",
    "penstock_target_seal_new": "target",
    "penstock_target_sealing": "price_run",
    "penstock_slip_seal": "slip",
    "penstock_slip_seal_new": "slip",
    "penstock_slip_sealing": "price_run",
}


def test_the_doctor_misses_a_trigger_and_finds_what_slipped_past(sealed, hand):
    (ref,) = family(sealed, T.PREVIEW, run=R.APPLIED)
    assert (findings(sealed, "triggers"), findings(sealed, "seals")) == ({}, {})
    for name, table in TRIGGERS.items():
        drop(hand, name, table)
    ((before,),) = hand.type("SELECT max(seq) FROM transition_log")
    hand.type(typed(ref, T.QUEUED))
    found = findings(sealed, "triggers")
    assert {name: text.split(";")[0] for name, text in found.items()} == dict.fromkeys(TRIGGERS, "is missing")
    text = f"is QUEUED under price_run:{RUN_ID}, which is APPLIED; move one of them"
    assert findings(sealed, "seals") == findings(sealed, "seals", Scope(before)) == {f"target:{ref.unit_id}": text}
    assert findings(sealed, "seals", Scope(before + 1)) == {}, "nothing of that family is new"
    Ledger.open(sealed.url, SEALED, create=True).close()
    assert findings(sealed, "triggers") == {}
    hand.type(typed(ref, T.APPLYING))  # it was outside already: a claim of many units does not fail over it
    hand.type(typed(ref, T.APPLIED))
    assert findings(sealed, "seals") == {}


def unsealed() -> Machine:
    assert TARGET.parent is not None
    fan_in = Parent("price_run", TARGET.parent.by, TARGET.parent.counts, TARGET.parent.expected)
    return Machine("target", Target, TARGET.births, TARGET.edges, TARGET.terminal, parent=fan_in)


def test_seals_come_and_go_with_the_program(sealed, hand):
    (ref,) = family(sealed, T.PREVIEW, run=R.APPLIED)
    loose = (PRICE_RUN, unsealed(), SLIP)
    with Ledger.open(sealed.url, loose, create=True) as ledger:
        assert [f for f in examine(ledger.database, ledger.machines) if f.check == "triggers"] == []
    hand.type(typed(ref, T.QUEUED))
    text = f"target:{ref.unit_id} is QUEUED under price_run:{RUN_ID}, which is APPLIED and would be sealed"
    with pytest.raises(LedgerMismatch, match=text):
        install(sealed.ledger.database, SEALED, take_back=True)
    hand.type(typed(ref, T.APPLYING))
    hand.type(typed(ref, T.APPLIED))
    install(sealed.ledger.database, SEALED, take_back=True)
    assert "cannot become QUEUED" in refusal(hand, typed(ref, T.QUEUED))


def test_a_program_without_the_parent_is_refused(ledger_url):
    with pytest.raises(MachineError, match="'target' seals states of 'price_run', unknown to this program"):
        Ledger.open(ledger_url, [TARGET], create=True)
    Ledger.open(ledger_url, SEALED, create=True).close()
    with pytest.raises(MachineError, match="'target' seals states of 'price_run', unknown to this program"):
        Ledger.open(ledger_url, [TARGET])


def declared(**fields: Any) -> Machine:
    assert TARGET.parent is not None
    of = TARGET.parent
    made: dict[str, Any] = {"machine": of.machine, "by": of.by, "counts": of.counts, "expected": of.expected}
    return Machine("target", Target, TARGET.births, TARGET.edges, TARGET.terminal, parent=Parent(**made | fields))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"APPLIED": {"APLIED"}}, "the seal of APPLIED names the unknown state 'APLIED'"),
        ({"APPLIED": set()}, "the seal of APPLIED allows no state"),
        ({"APPLIED": set(T)}, "the seal of APPLIED allows every state; leave it out"),
    ],
)
def test_a_seal_that_makes_no_sense_is_refused_when_declared(given, message):
    with pytest.raises(MachineError, match=message):
        declared(seals=given)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seals": {"DONE": {"APPLIED"}}}, "price_run has no state 'DONE' to be sealed"),
        ({"seals": {"QUEUED": {"APPLIED"}}}, "price_run is born as QUEUED, so QUEUED cannot be sealed"),
        ({"seals": {"APPLIED": {"APPLIED"}}, "by": ("day", "account")}, "price_run is found by account, day"),
        ({"seals": {"APPLIED": {"APPLIED"}}, "by": ("account",)}, "price_run is found by account, day"),
    ],
)
def test_a_seal_that_the_parent_does_not_bear_out_is_refused_when_the_ledger_opens(tmp_path, fields, message):
    with pytest.raises(MachineError, match=message):
        Ledger.open(f"sqlite:///{tmp_path / 'penstock.db'}", (PRICE_RUN, declared(**fields)), create=True)


def test_seals_are_part_of_the_rules_and_of_the_digest():
    assert TARGET.rules()["parent"]["seals"] == {
        "APPLIED": ["APPLIED", "PREVIEW", "ROLLED_BACK"],
        "ROLLED_BACK": ["PREVIEW", "ROLLED_BACK"],
    }
    assert TARGET.digest() != unsealed().digest()

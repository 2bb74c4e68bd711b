"""Births in bulk, and edges pulled from outside a claim: by operators, validators and the API."""

from __future__ import annotations

import itertools
import threading

import pytest

from penstock.ledger.commit import Lost
from penstock.model.errors import BadReference, BrokenFlow, IllegalMove, LedgerRefused, UnknownMachine, UnknownUnit
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Outcome
from penstock.model.unit import Ref, replace
from tests.support.machines import (
    INVOICE,
    PARTITION,
    InvoiceState,
    ItemState,
    PartitionState,
    batch_item,
    batch_run,
    feed,
    invoice,
    partition,
)
from tests.support.more_machines import parcel
from tests.support.world import World, after, ids

ANN = {"actor": Actor.OPERATOR, "who": "ann", "reason": "asked to"}


def fail(world: World, *numbers: str) -> list[Ref]:
    """Invoices that a worker gave up on."""
    refs = world.born(*(invoice(n) for n in numbers))
    worker = world.worker()
    units = worker.claim({"invoice": len(numbers)})
    world.commit(worker, *(Outcome(u, replace(u, status=InvoiceState.FAILED, due_at=None), "gave up") for u in units))
    return refs


def test_a_move_pulls_an_edge_in_somebodys_name(world):
    (ref,) = fail(world, "1")
    before = world.unit(ref)
    world.time.advance(3)
    moved = world.ledger.move(ref, "QUEUED", **ANN, due_at=after(3), attempts=0)
    assert moved == world.unit(ref)
    assert (moved.status, moved.due_at, moved.changed_by) == (InvoiceState.QUEUED, after(3), "operator:ann")
    assert (moved.version, moved.changed_at) == (before.version + 1, after(3))
    assert world.history(ref)[-1] == ("FAILED", "QUEUED", "operator:ann", "asked to")
    assert ids(world.worker().claim({"invoice": 1})) == [ref.unit_id]


def test_a_guarded_unit_moves_with_its_tracked_columns(world):
    (ref,) = world.born(partition())
    world.ledger.move(
        ref, "success", actor=Actor.VALIDATOR, who="v1", reason="validated", current_run_id="r1", record_count=9
    )
    unit = world.unit(ref)
    assert (unit.status, unit.current_run_id, unit.record_count) == (PartitionState.SUCCESS, "r1", 9)
    world.ledger.move(ref, "success", actor=Actor.VALIDATOR, who="v1", reason="superseded", current_run_id="r2")
    assert [h[:2] for h in world.history(ref)] == [(None, "pending"), ("pending", "success"), ("success", "success")]


@pytest.mark.parametrize(
    ("to", "actor", "message"),
    [
        ("SENT", Actor.OPERATOR, "FAILED -> SENT is not an edge; from FAILED a unit goes to QUEUED"),
        ("QUEUED", Actor.API, "only operator may move a unit .*, not api"),
        ("LOST", Actor.OPERATOR, "'LOST' is not a state; states are QUEUED, SENDING, SENT, FAILED"),
    ],
)
def test_edges_and_actors_are_checked(world, to, actor, message):
    (ref,) = fail(world, "1")
    before = world.unit(ref)
    with pytest.raises(IllegalMove, match=message):
        world.ledger.move(ref, to, actor=actor, who="ann", reason="x")
    assert world.unit(ref) == before


def test_what_cannot_be_found_is_named(world):
    with pytest.raises(UnknownUnit, match="no unit invoice:acme/404"):
        world.ledger.move(Ref("invoice", "acme/404"), "QUEUED", **ANN)
    with pytest.raises(UnknownMachine, match="no machine is called 'invoce'; known here: batch_item"):
        world.ledger.move(Ref("invoce", "acme/1"), "QUEUED", **ANN)
    with pytest.raises(BadReference, match="has 1 part; the key of Invoice is tenant/number"):
        world.ledger.move(Ref("invoice", "acme"), "QUEUED", **ANN)


def test_a_move_cannot_change_what_the_kernel_writes(world):
    (ref,) = fail(world, "1")
    with pytest.raises(BrokenFlow, match="cannot change claimed_by"):
        world.ledger.move(ref, "QUEUED", **ANN, claimed_by="me")


def test_a_refusal_of_the_database_is_raised(world):
    (ref,) = world.born(parcel("box"))
    with pytest.raises(LedgerRefused, match="count_is_small"):
        world.ledger.move(ref, "open", **ANN, count=1000)
    assert world.unit(ref).count is None


def test_whoever_holds_the_unit_loses_it(world):
    (ref,) = world.born(batch_item(1, due_at=after(0)))
    world.born(batch_run(due_at=None))
    worker = world.worker()
    (held,) = worker.claim({"batch_item": 1})
    world.ledger.move(ref, "working", **ANN, due_at=after(60))
    now = world.unit(ref)
    assert (now.claimed_by, now.version) == (None, held.version + 1)
    assert world.commit(worker, Outcome(held, replace(held, status=ItemState.DONE), "late")) == [Lost()]


def test_a_wake_meanwhile_is_not_lost_by_a_move(world):
    (ref,) = world.born(feed("news", due_at=None))
    before = world.unit(ref)
    world.ledger.nudge([ref])
    entry = world.ledger.preparer.move(before, replace(before, url="https://x"), "edited", Actor.OPERATOR, "ann")
    world.ledger._committer.commit([entry])
    assert world.unit(ref).due_at == after(0)
    assert world.unit(ref).url == "https://x"


def test_a_parked_unit_is_freed_by_hand(world):
    (ref,) = world.born(invoice("1"))
    world.sql("UPDATE invoice SET parked_at = changed_at, parked_reason = 'test', crashes = 3")
    world.ledger.move(ref, "QUEUED", **ANN, parked_at=None, parked_reason=None)
    assert world.unit(ref).crashes == 0
    assert ids(world.worker().claim({"invoice": 1})) == [ref.unit_id]


def test_many_moves_say_what_was_skipped_and_why(world):
    failed = fail(world, "1", "2")
    (queued,) = world.born(invoice("3"))
    missing = Ref("invoice", "acme/404")
    wanted = [r.unit_id for r in (*failed, queued, missing, failed[0])]
    done = world.ledger.move_many("invoice", wanted, "QUEUED", **ANN, due_at=after(5))
    assert done.moved == [*failed, queued], "staying is legal: a unit that is there already is changed where it is"
    assert done.skipped == {missing: "no such unit"}
    assert [world.unit(r).due_at for r in done.moved] == [after(5)] * 3
    assert [len(world.history(r)) for r in done.moved] == [4, 4, 2], "every change by hand is in the history"


def test_many_moves_skip_illegal_edges_one_by_one(world):
    failed = fail(world, "1", "2")
    (queued,) = world.born(invoice("3"))
    done = world.ledger.move_many("invoice", [r.unit_id for r in (*failed, queued)], "FAILED", **ANN)
    assert queued in done.skipped
    assert "QUEUED -> FAILED is not an edge" in done.skipped[queued]
    assert world.unit(queued).status is InvoiceState.QUEUED


def test_many_moves_skip_what_the_database_refuses(world):
    refs = world.born(*(invoice(str(i), remote_id=None if i == 4 else "r") for i in range(9)))
    world.worker().claim({"invoice": 9})
    as_worker = {"actor": Actor.WORKER, "who": "w", "reason": "accepted"}
    done = world.ledger.move_many("invoice", [r.unit_id for r in refs], "SENT", **as_worker)
    assert list(done.skipped) == [refs[4]]
    assert "sent_has_id" in done.skipped[refs[4]]
    assert done.moved == [r for r in refs if r != refs[4]]
    assert world.unit(refs[4]).status is InvoiceState.SENDING


def test_many_moves_adjust_the_parents_counters(world):
    world.born(batch_run(items_expected=3, due_at=None), *(batch_item(i) for i in (1, 2, 3)))
    worker = world.worker()
    items = worker.claim({"batch_item": 3})
    world.commit(worker, *(Outcome(i, replace(i, status=ItemState.FAILED, due_at=None), "gave up") for i in items))
    run = Ref("batch_run", "run")
    assert (world.unit(run).items_failed, world.unit(run).due_at) == (3, after(0))
    done = world.ledger.move_many("batch_item", ["run/1", "run/3"], "open", **ANN, due_at=after(0))
    assert len(done.moved) == 2
    assert (world.unit(run).items_failed, world.unit(run).items_done) == (1, 0)


def test_many_moves_of_nothing(world):
    done = world.ledger.move_many("invoice", [], "QUEUED", **ANN)
    assert (done.moved, done.skipped) == ([], {})


def test_a_bad_reference_among_many_is_skipped_wherever_it_stands(world):
    (good,) = fail(world, "1")
    for order in (["acme", good.unit_id], [good.unit_id, "acme"]):
        done = world.ledger.move_many("invoice", order, "QUEUED", **ANN)
        assert done.moved == [good]
        assert list(done.skipped) == [Ref("invoice", "acme")]


def test_movers_at_once_have_one_winner_each_turn(real_world: World):
    """Four operators flip the same partition; every flip that was answered is in the history, in one line."""
    world, flips = real_world, 10
    (ref,) = world.born(partition())
    ledgers = [world.another() for _ in range(4)]
    answered: list[str] = []

    def flip(ledger, who):
        for _ in range(flips):
            for to in ("success", "failed"):
                try:
                    ledger.move(ref, to, actor=Actor.VALIDATOR, who=who, reason="flip", note=who)
                    answered.append(who)
                except (IllegalMove, LedgerRefused):
                    pass

    threads = [threading.Thread(target=flip, args=(ledger, f"v{i}")) for i, ledger in enumerate(ledgers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    history = world.history(ref)
    assert len(answered) > flips
    assert all(a[1] == b[0] for a, b in itertools.pairwise(history))
    assert len(history) <= len(answered) + 1
    assert history[-1][1] == world.unit(ref).status


def test_births_in_bulk(world):
    made = (invoice(f"{i:05}", gate_id=f"g{i % 7}") for i in range(20_000))
    assert world.ledger.birth(made, actor=Actor.API, who="import", reason="imported") == 20_000
    assert world.one("SELECT count(*) FROM invoice") == 20_000
    assert world.rows("SELECT DISTINCT from_status, to_status, actor, reason FROM transition_log") == [
        (None, "QUEUED", "api:import", "imported")
    ]
    assert world.one("SELECT count(*) FROM transition_log") == 20_000
    again = (invoice(f"{i:05}", amount_minor=7) for i in range(19_990, 20_010))
    assert world.ledger.birth(again, actor=Actor.API, who="import", if_absent=True) == 10
    assert world.one("SELECT count(*) FROM invoice WHERE amount_minor = 7") == 10
    assert world.one("SELECT count(*) FROM transition_log") == 20_010


def test_versions_are_random_at_birth(world):
    world.born(*(invoice(str(i)) for i in range(50)))
    versions = [r[0] for r in world.rows("SELECT version FROM invoice")]
    assert len(set(versions)) == 50
    assert all(0 <= v < 2**48 for v in versions)
    assert max(versions) - min(versions) > 2**40


def test_a_birth_of_what_is_there_is_refused_whole(world):
    (ref,) = world.born(invoice("2", amount_minor=5))
    with pytest.raises(LedgerRefused):
        world.born(invoice("1"), invoice("2"), invoice("3"))
    assert ids(world.ledger.get_many(INVOICE, ["acme/1", "acme/2", "acme/3"])) == ["acme/2"]
    assert world.unit(ref).amount_minor == 5


def test_the_same_unit_twice_in_one_import(world):
    twice = [invoice("1", amount_minor=1), invoice("1", amount_minor=2)]
    assert world.ledger.birth(twice, actor=Actor.API, who="t", if_absent=True) == 1
    assert world.unit(Ref("invoice", "acme/1")).amount_minor == 1
    assert len(world.history(Ref("invoice", "acme/1"))) == 1


def test_a_birth_outside_the_birth_states_is_refused_by_name(world):
    with pytest.raises(IllegalMove, match="invoice cannot be born as SENT; it is born as QUEUED"):
        world.born(invoice("1", status=InvoiceState.SENT, remote_id="r"))


def test_a_birth_is_for_its_actors(world):
    part = partition(status=PartitionState.FAILED)
    for actor in set(Actor) - {Actor.VALIDATOR}:
        with pytest.raises(IllegalMove, match=f"partition: only validator may create a unit as failed, not {actor}"):
            world.ledger.birth([part], actor=actor, who="t")
        with pytest.raises(IllegalMove, match=f"only validator may create a unit as failed, not {actor}"):
            world.ledger.together([Birth(part, actor=actor)], who="t")
    assert world.ledger.birth([part], actor=Actor.VALIDATOR, who="t") == 1


def test_reading_many_gives_those_that_exist_in_order(world):
    world.born(partition("b"), partition("a"), partition("c"))
    wanted = ["c/2026-11-15", "x/2026-11-15", "a/2026-11-15"]
    assert ids(world.ledger.get_many(PARTITION, wanted)) == ["a/2026-11-15", "c/2026-11-15"]
    assert world.ledger.get_many(PARTITION, []) == []


def test_a_read_is_one_snapshot(world):
    world.born(invoice("1"))
    other = world.another()

    def count_around_a_birth(cursor):
        first = cursor.rows("SELECT count(*) FROM invoice")[0][0]
        other.birth([invoice("2")], actor=Actor.API, who="t")
        return first, cursor.rows("SELECT count(*) FROM invoice")[0][0]

    assert world.ledger.read(count_around_a_birth) == (1, 1)
    assert world.one("SELECT count(*) FROM invoice") == 2

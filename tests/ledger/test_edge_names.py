"""The history names the edge that was pulled."""

from __future__ import annotations

from dataclasses import replace as replaced

from penstock.ledger.history import history
from penstock.ledger.schema.edge_names import edge_name
from penstock.ledger.schema.install import install
from penstock.model.machine import Actor, Edge
from penstock.model.outcome import Outcome
from penstock.model.unit import Ref, replace, unit_id_of
from tests.support.hand import Hand, typed_insert
from tests.support.machines import (
    BATCH_ITEM,
    PARTITION,
    PartitionState,
    batch_item,
    batch_run,
    invoice,
    partition,
)
from tests.support.world import World


def triggers(world: World, ref: Ref) -> list[str | None]:
    return [one.trigger for one in history(world.ledger.database, ref)]


def move(world: World, ref: Ref, to: str, actor: Actor, **changes: object) -> None:
    world.ledger.move(ref, to, actor=actor, who="test", reason="because", **changes)


def test_a_birth_has_none_and_a_move_has_its_edges(world):
    (ref,) = world.born(partition())
    move(world, ref, "success", Actor.VALIDATOR, current_run_id="r1")
    move(world, ref, "pending", Actor.OPERATOR)
    move(world, ref, "failed", Actor.VALIDATOR)
    assert triggers(world, ref) == [None, "validated", "reset", "rejected"]


def test_who_stays_pulls_a_loop_that_is_declared_for_him(world):
    (ref,) = world.born(partition())
    move(world, ref, "success", Actor.VALIDATOR, current_run_id="r1")
    move(world, ref, "success", Actor.VALIDATOR, current_run_id="r2")
    move(world, ref, "success", Actor.OPERATOR, current_run_id="r3")
    assert triggers(world, ref)[2:] == ["superseded", "pointed"]


def test_a_claim_and_a_commit_of_a_worker(world):
    _, ref = world.born(batch_run("r", items_expected=1), batch_item(1, run_id="r"))
    worker = world.worker("batch_item")
    (claimed,) = worker.claim({"batch_item": 1})
    world.commit(worker, Outcome(claimed, replace(claimed, status=type(claimed.status)("done")), "done"))
    assert triggers(world, ref) == [None, "claim", "done"]


def test_a_person_who_keeps_the_state_pulls_nothing(world):
    (ref,) = world.born(invoice())
    world.ledger.park([ref], actor=Actor.OPERATOR, who="ana", reason="later")
    world.ledger.wake([ref], actor=Actor.OPERATOR, who="ana", reason="now")
    assert triggers(world, ref) == [None, None, None]


def test_sql_pulls_nothing(hand: Hand):
    hand.type(typed_insert(PARTITION, partition()))
    hand.type("UPDATE partitions SET status = 'success'")
    assert hand.type("SELECT actor, trigger FROM transition_log ORDER BY seq") == [("sql", None), ("sql", None)]


def test_several_edges_of_a_pair_are_all_named(world):
    edges = (
        Edge(PartitionState.PENDING, PartitionState.SUCCESS, "second", {Actor.VALIDATOR, Actor.API}),
        *PARTITION.edges,
    )
    twice = replaced(PARTITION, edges=edges)
    assert twice.digest() != PARTITION.digest()
    install(world.ledger.database, [twice])
    newer = world.another([twice])
    newer.birth([partition()], actor=Actor.API, who="test")
    ref = Ref("partition", unit_id_of(partition()))
    newer.move(ref, "success", actor=Actor.VALIDATOR, who="test", reason="because")
    assert triggers(world, ref) == [None, "second, validated"]


def test_a_driven_unit_pulls_a_loop_by_a_tracked_column_alone():
    loop = Edge(BATCH_ITEM.states[1], BATCH_ITEM.states[1], "again", {Actor.WORKER})
    plain = replaced(BATCH_ITEM, edges=(*BATCH_ITEM.edges, loop))
    assert "again" not in edge_name(plain, "o", "n", "who", lambda c: f"same_{c}")
    tracked = replaced(plain, tracked=("result",))
    assert "CASE WHEN NOT same_result THEN CASE who WHEN 'worker' THEN 'again' END END" in edge_name(
        tracked, "o", "n", "who", lambda c: f"same_{c}"
    )


def test_the_history_of_a_trigger_is_kept_as_it_was(hand: Hand):
    hand.type(typed_insert(PARTITION, partition()))
    refusal = hand.refused("UPDATE transition_log SET trigger = 'validated'")
    assert "transition_log is append-only" in refusal

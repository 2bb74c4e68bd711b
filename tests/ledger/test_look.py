"""The doctor since its last clean look: what it reads, what it finds all the same, and what only a whole look finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg
import pytest

from penstock.ledger.care import look
from penstock.ledger.care.doctor import examine
from penstock.ledger.care.finding import Finding
from penstock.ledger.care.look import WHOLE_EVERY, Scope
from penstock.ledger.care.prune import Ages, Pruner
from penstock.ledger.roll_up import roll_up
from penstock.ledger.schema.triggers import make_triggers
from penstock.model.clock import Rng
from penstock.model.machine import Actor, Machine
from penstock.model.unit import Ref
from tests.support.machines import INVOICE, batch_item, batch_run, invoice, partition
from tests.support.world import ALL_MACHINES, World

KNOWN = {machine.name: machine for machine in ALL_MACHINES}


def looked(
    world: World, *, since_last: bool = True, whole_every: timedelta | None = None, machines: dict[str, Machine] = KNOWN
) -> tuple[set[str], Scope]:
    """The checks by which something is found wrong, and what was looked at."""
    database = world.ledger.database

    def examined(scope: Scope) -> list[Finding]:
        return examine(database, machines, scope=scope)

    found, scope = look.look(database, machines, examined, since_last=since_last, whole_every=whole_every)
    return {one.check for one in found if one.severity == "error"}, scope


@contextmanager
def without(world: World, *triggers: tuple[str, str]) -> Iterator[None]:
    """Guards that are off for a while."""
    for name, table in triggers:
        world.sql(f"DROP TRIGGER {name}{'' if world.sqlite else f' ON {table}'}")
    yield
    world.ledger.database.write(lambda cursor: make_triggers(world.ledger.database, cursor, ALL_MACHINES))


def test_the_first_look_is_whole_and_the_next_begins_there(world):
    world.born(invoice("1"))
    assert looked(world) == (set(), Scope())
    world.born(invoice("2"), batch_run(), batch_item(), partition())
    found, scope = looked(world)
    assert found == set()
    assert scope == Scope(1, world.time.now())
    assert looked(world)[1].after == world.one("SELECT max(seq) FROM transition_log")


def test_a_whole_look_is_remembered_too(world):
    world.born(invoice("1"))
    assert looked(world, since_last=False) == (set(), Scope())
    assert looked(world)[1].after == 1


def test_an_illegal_move_is_found(world):
    (ref,) = world.born(invoice("1"))
    looked(world)
    with without(world, ("penstock_invoice_guard", "invoice")):
        world.sql("UPDATE invoice SET status = 'SENT', remote_id = 'r' WHERE unit_id = :id", id=ref.unit_id)
    found, scope = looked(world)
    assert scope.after == 1
    assert found == {"pairs"}


def test_an_unknown_state_is_found(world):
    (ref,) = world.born(invoice("1"))
    looked(world)
    with without(world, ("penstock_invoice_guard", "invoice")):
        world.sql("UPDATE invoice SET status = 'NOWHERE' WHERE unit_id = :id", id=ref.unit_id)
    assert {"states", "pairs"} <= looked(world)[0]


def test_a_wrong_counter_is_found_by_the_parent_and_by_its_children(world):
    world.born(batch_run("a"), batch_run("b"), batch_item(run_id="b"))
    looked(world)
    world.sql("UPDATE batch_run SET items_done = 7 WHERE unit_id = 'a'")
    assert looked(world)[0] == {"counters"}
    world.sql("UPDATE batch_run SET items_done = 0 WHERE unit_id = 'a'")
    assert looked(world)[0] == set()
    with without(world, ("penstock_batch_run_history", "batch_run")):
        world.sql("UPDATE batch_run SET items_done = 7 WHERE unit_id = 'b'")
    assert looked(world)[0] == set(), "it left no trace"
    world.ledger.move(Ref("batch_item", "b/1"), "working", actor=Actor.WORKER, who="w", reason="x")
    assert looked(world)[0] == {"counters"}, "a child of it moved"


def test_a_state_that_no_validator_gave_is_found(world):
    (ref,) = world.born(partition())
    looked(world)
    world.sql("UPDATE partitions SET status = 'success' WHERE unit_id = :id", id=ref.unit_id)
    assert looked(world)[0] == {"validated"}


def test_a_unit_that_is_not_what_its_history_ends_with_is_found_once_it_changes(world):
    (ref,) = world.born(invoice("1"))
    looked(world)
    with without(world, ("penstock_invoice_history", "invoice"), ("penstock_invoice_guard", "invoice")):
        world.sql("UPDATE invoice SET status = 'SENDING', version = version + 1 WHERE unit_id = :id", id=ref.unit_id)
    assert looked(world)[0] == set(), "it left no trace"
    assert looked(world, since_last=False)[0] >= {"present", "flow"}, "a whole look finds it"
    found, scope = looked(world)
    assert scope.whole, "and until one is clean, the next ones are whole"
    assert "present" in found


def test_a_wrong_count_of_an_hour_that_saw_a_change_is_found(world):
    world.born(invoice("1"))
    roll_up(world.ledger.database)
    looked(world)
    world.sql("UPDATE flow_hour SET n = n + 1")
    assert looked(world)[0] == set(), "nothing changed in that hour"
    world.born(invoice("2"))
    assert looked(world)[0] == {"flow"}


def test_what_is_found_stays_found_until_it_is_mended(world):
    world.born(batch_run("a"))
    looked(world)
    world.sql("UPDATE batch_run SET items_done = 7 WHERE unit_id = 'a'")
    for _ in range(2):
        found, scope = looked(world)
        assert (found, scope.after) == ({"counters"}, 1), "a look that found something is not remembered"
    world.sql("UPDATE batch_run SET items_done = 0 WHERE unit_id = 'a'")
    assert looked(world)[0] == set()
    assert looked(world)[1].after == 3


def test_a_whole_look_comes_round(world):
    world.born(invoice("1"))
    looked(world, whole_every=WHOLE_EVERY)
    for number, (days, whole) in enumerate(((6, False), (1, True), (6, False))):
        world.time.advance(days * 86_400.0)
        world.born(invoice(f"later {number}"))
        assert looked(world, whole_every=WHOLE_EVERY)[1].whole is whole


def test_another_definition_or_another_machine_is_looked_at_whole(world):
    world.born(invoice("1"))
    one = {INVOICE.name: INVOICE}
    looked(world, machines=one)
    assert not looked(world, machines=one)[1].whole
    assert looked(world)[1].whole, "of the others nothing is remembered"
    assert not looked(world)[1].whole
    world.sql(
        "UPDATE penstock_meta SET value = replace(value, :old, 'other') WHERE name = 'doctor'", old=INVOICE.digest()
    )
    assert looked(world)[1].whole


def test_after_pruning_it_is_clean(world):
    world.born(invoice("1"), invoice("2"))
    for status in ("SENDING", "SENT"):
        world.ledger.move(Ref("invoice", "acme/1"), status, actor=Actor.WORKER, who="w", reason="x", remote_id="r")
    looked(world)
    world.time.advance(40 * 86_400.0)
    Pruner(world.ledger.database, Ages(older_than=timedelta(days=30)), who="operator:ana", rng=Rng()).prune()
    found, scope = looked(world)
    assert not scope.whole
    assert found == set()


def test_what_was_under_way_during_a_look_is_not_passed_over(postgres_url):
    world = World(postgres_url)
    try:
        world.born(invoice("1"))
        roll_up(world.ledger.database)
        with psycopg.connect(postgres_url) as other:
            other.execute("UPDATE invoice SET amount_minor = 7 WHERE unit_id = 'acme/1'")
            world.born(invoice("2"), invoice("3"))
            drawn = world.one("SELECT min(seq) FROM transition_log WHERE unit_id = 'acme/2'") - 1
            assert looked(world)[0] == set()
            assert looked(world)[1].after < drawn, "a lower number may still appear"
            other.commit()
        assert looked(world)[1].after < drawn
        assert looked(world)[1].after == world.one("SELECT max(seq) FROM transition_log")
    finally:
        world.close()


@pytest.mark.parametrize("since_last", [False, True])
def test_who_may_not_write_looks_all_the_same(postgres_url, since_last):
    world = World(postgres_url)
    try:
        world.born(invoice("1"))
        world.sql("ALTER TABLE penstock_meta ADD CONSTRAINT closed CHECK (name <> 'doctor')")
        assert looked(world, since_last=since_last) == (set(), Scope())
        world.sql("ALTER TABLE penstock_meta DROP CONSTRAINT closed")
    finally:
        world.close()

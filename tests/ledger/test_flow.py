"""Flow by the hour: every row of the history counted once, whatever is pruned, late or under way."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from penstock.ledger import flow, roll_up
from penstock.ledger.care.doctor import examine
from penstock.ledger.care.prune import Ages, Pruner
from penstock.ledger.care.prune_rules import Finished
from penstock.ledger.flow import EdgeFlow, Window
from penstock.ledger.history import units_as_of
from penstock.ledger.roll_up import RECOUNT, recount_as_asked
from penstock.ledger.schema.tables import meta
from penstock.model.clock import Rng, VirtualClock, instant_text
from penstock.model.machine import Actor
from penstock.model.outcome import Write
from tests.support.machines import INVOICE, PARTITION, invoice, partition
from tests.support.world import ALL_MACHINES, World

HOUR = 3_600.0


def move(world: World, ref: Any, to: str, actor: Actor = Actor.VALIDATOR, **changes: Any) -> None:
    world.ledger.move(ref, to, actor=actor, who="test", reason=f"to {to}", **changes)


def asked(world: World, work: Any, *given: Any, **named: Any) -> Any:
    database = world.ledger.database
    return database.read(lambda cursor: work(database, cursor, *given, **named))


def counted(world: World) -> None:
    roll_up.roll_up(world.ledger.database)


def prune(world: World, age: timedelta) -> dict[str, int]:
    ages = Ages(older_than=age)
    return Pruner(world.ledger.database, ages, who="operator:ana", rng=Rng()).prune()


def findings(world: World) -> list[Any]:
    found = examine(world.ledger.database, {m.name: m for m in ALL_MACHINES})
    return [one for one in found if one.check == "flow"]


def day(world: World) -> list[Any]:
    """Three partitions over some hours, on from twenty past one."""
    refs = world.born(partition(source="a"), partition(source="b"), partition(source="c"))
    world.time.advance(HOUR + 1_200)
    for ref in refs:
        move(world, ref, "success", current_run_id="r1")
    world.time.advance(HOUR)
    move(world, refs[0], "failed")
    move(world, refs[1], "success", current_run_id="r2")
    return refs


@pytest.fixture(params=["rolled up", "not yet"])
def flowing(request: pytest.FixtureRequest, world: World) -> World:
    day(world)
    if request.param == "rolled up":
        counted(world)
    return world


def test_edges_are_counted_with_their_triggers(flowing):
    assert asked(flowing, flow.edges, Window(machine="partition")) == [
        EdgeFlow("partition", None, "pending", None, 3),
        EdgeFlow("partition", "pending", "success", "validated", 3),
        EdgeFlow("partition", "success", "failed", "rejected", 1),
        EdgeFlow("partition", "success", "success", "superseded", 1),
    ]


def test_a_window_cuts_hours(flowing):
    end = flowing.time.now()
    within = Window(end - timedelta(minutes=59), end + timedelta(milliseconds=1), "partition")
    assert {(one.target, one.n) for one in asked(flowing, flow.edges, within)} == {("failed", 1), ("success", 1)}
    longer = Window(end - timedelta(minutes=60), end, "partition")
    assert {(one.target, one.n) for one in asked(flowing, flow.edges, longer)} == {("success", 3)}
    assert asked(flowing, flow.edges, Window(end - timedelta(hours=1), end, "invoice")) == []


def test_counts_at_an_instant(flowing):
    now = flowing.time.now()
    assert asked(flowing, flow.counts_at)["partition"] == {"failed": 1, "success": 2}
    assert asked(flowing, flow.counts_at, now)["partition"] == {"failed": 1, "success": 2}
    before = now - timedelta(milliseconds=1)
    assert asked(flowing, flow.counts_at, before, "partition") == {"partition": {"success": 3}}
    assert asked(flowing, flow.counts_at, now - timedelta(hours=2)) == {"partition": {"pending": 3}}
    assert asked(flowing, flow.counts_at, now - timedelta(hours=3)) == {}


def test_activity_by_the_hour(flowing):
    found = asked(flowing, flow.activity, Window(flowing.time.now() - timedelta(hours=5), None, "partition"))
    assert [(one.target, one.n) for one in found] == [("pending", 3), ("success", 3), ("failed", 1)]
    assert [one.hour.minute for one in found] == [0, 0, 0]
    assert found[1].hour - found[0].hour == timedelta(hours=1)


def test_outcomes_go_by_the_meaning_of_states(flowing):
    ended = flow.outcome(PARTITION, asked(flowing, flow.edges, Window()))
    assert (ended.done, ended.failed, ended.rate) == (3, 1, 0.75)
    assert flow.outcome(INVOICE, []).rate is None


def test_dwell_is_the_time_between_coming_and_going(flowing):
    found = {one.state: one for one in asked(flowing, flow.dwell, Window(machine="partition"))}
    assert (found["pending"].n, found["pending"].longest) == (3, timedelta(seconds=HOUR + 1_200))
    # Superseded meanwhile, it stayed in its state.
    assert (found["success"].n, found["success"].median) == (1, timedelta(seconds=HOUR))
    assert asked(flowing, flow.dwell, Window(machine="invoice")) == []


def test_rolling_up_again_changes_nothing(world):
    day(world)
    counted(world)
    cells = world.rows("SELECT * FROM flow_hour ORDER BY machine, hour, from_status, to_status, trigger")
    counted(world)
    assert world.rows("SELECT * FROM flow_hour ORDER BY machine, hour, from_status, to_status, trigger") == cells
    assert len(cells) == 4


def test_batches_count_each_row_once(world):
    world.born(*(invoice(str(n)) for n in range(25)))
    while roll_up.roll_up(world.ledger.database, at_once=4, batches=1):
        pass
    assert world.rows("SELECT sum(n) FROM flow_hour") == [(25,)]


def test_a_row_of_an_older_moment_is_not_lost(world):
    day(world)
    counted(world)
    slow = world.another(clock=VirtualClock(world.time.now() - timedelta(days=30)))
    slow.birth([partition(source="late")], actor=Actor.API, who="test")
    counted(world)
    assert asked(world, flow.counts_at)["partition"]["pending"] == 1
    month = timedelta(days=29)
    assert asked(world, flow.counts_at, world.time.now() - month) == {"partition": {"pending": 1}}
    assert findings(world) == []


def test_a_transaction_that_ends_late_is_not_lost(postgres_url):
    world = World(postgres_url)
    world.born(invoice("1"))
    with psycopg.connect(postgres_url) as slow:
        slow.execute(
            "INSERT INTO invoice (unit_id, tenant, number, status, amount_minor)"
            " VALUES ('acme/2', 'acme', '2', 'QUEUED', 1)"
        )
        world.born(invoice("3"))  # a higher number, and an earlier commit
        for _ in range(3):
            counted(world)
        assert asked(world, flow.counts_at) == {"invoice": {"QUEUED": 2}}
        slow.commit()
    assert asked(world, flow.counts_at) == {"invoice": {"QUEUED": 3}}
    counted(world)
    assert world.rows("SELECT sum(n) FROM flow_hour") == [(3,)]
    assert findings(world) == []
    world.close()


@pytest.mark.parametrize("first", [True, False])
def test_pruning_changes_no_count(world, first):
    day(world)
    if first:
        counted(world)
    world.time.advance(100 * 86_400)
    before = asked(world, flow.edges, Window())
    assert prune(world, timedelta(days=30))["transition_log"] == 5
    assert asked(world, flow.edges, Window()) == before
    assert findings(world) == []
    counted(world)
    assert asked(world, flow.edges, Window()) == before
    assert asked(world, flow.counts_at)["partition"] == {"failed": 1, "success": 2}
    assert findings(world) == []
    assert world.rows("SELECT sum(n), sum(pruned) FROM flow_hour") == [(8, 8)]


@pytest.mark.parametrize("first", [True, False])
def test_units_that_go_are_counted_as_gone(world, first):
    world.born(invoice("1"), invoice("2"))
    if first:
        counted(world)
    pruner = Pruner(world.ledger.database, Ages(), who="schedule:prune", rng=Rng())
    assert pruner.prune_where("invoice", Finished("u.number = :one", {"one": "1"})) == 1
    assert asked(world, flow.counts_at) == {"invoice": {"QUEUED": 1}}
    counted(world)
    assert EdgeFlow("invoice", "QUEUED", None, None, 1) in asked(world, flow.edges, Window())
    assert asked(world, flow.counts_at) == {"invoice": {"QUEUED": 1}}
    assert findings(world) == []


def test_the_doctor_finds_a_wrong_count(world):
    day(world)
    counted(world)
    assert findings(world) == []
    world.sql("UPDATE flow_hour SET n = n + 1 WHERE to_status = 'failed'")
    texts = [(one.subject, one.message) for one in findings(world)]
    assert [subject for subject, _ in texts] == ["partition", "partition", "partition"]
    assert "says 2 times success -> failed" in texts[0][1]
    assert "the history 1" in texts[0][1]
    assert "2 units are failed" in texts[1][1]
    assert "1 are" in texts[1][1]


def test_wrong_counts_are_made_anew_once_somebody_asks(world):
    day(world)
    counted(world)
    right = world.rows("SELECT * FROM flow_hour ORDER BY machine, hour, from_status, to_status, trigger")
    world.sql("UPDATE flow_hour SET n = n + 1 WHERE to_status = 'failed'")
    world.sql("DELETE FROM flow_hour WHERE to_status = 'success'")
    database = world.ledger.database
    assert not recount_as_asked(database), "nobody has asked"
    world.ledger.write([Write(meta, [{"name": RECOUNT, "value": "jo"}])])
    assert recount_as_asked(database)
    assert not recount_as_asked(database), "it was asked for once"
    assert findings(world) == []
    assert world.rows("SELECT * FROM flow_hour ORDER BY machine, hour, from_status, to_status, trigger") == right


def test_units_as_they_stood(flowing):
    now = flowing.time.now()
    database = flowing.ledger.database
    page = units_as_of(database, "partition", now, states=["success"])
    assert ([one.unit for one in page.units], page.next) == (["partition:b/2026-11-15", "partition:c/2026-11-15"], None)
    assert page.units[0].data["current_run_id"] == "r2"
    earlier = units_as_of(database, "partition", now - timedelta(minutes=1), states=["success"], most=2)
    assert [one.unit for one in earlier.units] == ["partition:a/2026-11-15", "partition:b/2026-11-15"]
    assert earlier.next is not None
    rest = units_as_of(database, "partition", now - timedelta(minutes=1), most=2, after=earlier.next)
    assert ([one.unit for one in rest.units], rest.next) == (["partition:c/2026-11-15"], None)
    assert units_as_of(database, "partition", now - timedelta(days=1)).units == []


def test_where_the_history_is_whole_is_known(world):
    day(world)
    assert world.ledger.database.read(lambda c: flow.pruned_before(c, "partition")) is None
    last = world.time.now()
    world.time.advance(100 * 86_400)
    prune(world, timedelta(days=30))
    whole = world.ledger.database.read(lambda c: flow.pruned_before(c, "partition"))
    assert whole is not None
    assert instant_text(whole)[:13] == instant_text(last + timedelta(hours=1))[:13]

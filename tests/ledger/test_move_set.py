"""Moves of many units by one statement: which go, which stay and why, what their parents count, and what is told."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.ledger.commit import Won
from penstock.ledger.history import history
from penstock.model.errors import BrokenFlow, IllegalMove, LedgerRefused, UnknownMachine
from penstock.model.machine import Actor
from penstock.model.move_set import MAX_SET, MoveSet
from penstock.model.outcome import Outcome, Where
from penstock.model.unit import NOW, Ref, replace
from tests.ledger.test_hands import healthy
from tests.support.machines import (
    FeedState,
    InvoiceState,
    ItemState,
    PartitionState,
    batch_item,
    batch_run,
    feed,
    invoice,
    partition,
)
from tests.support.more_machines import chosen, label, parcel
from tests.support.world import World, after, ids

RUN = Ref("batch_run", "run")


def again(**fields: Any) -> MoveSet:
    """Failed items of the run are opened again by hand."""
    made: dict[str, Any] = {
        "machine": "batch_item",
        "sources": [ItemState.FAILED],
        "to": ItemState.OPEN,
        "reason": "again",
        "where": {"run_id": "run"},
        "changes": {"due_at": NOW, "attempts": 0},
        "actor": Actor.OPERATOR,
        "who": "ann",
    }
    return MoveSet(**made | fields)


def chosen_span(first: int = 0, last: int = 100) -> Where:
    return Where(chosen, {"action_id": "act"}, span=("position", first, last))


def by_items(**fields: Any) -> MoveSet:
    return again(**{"where": None, "items": chosen_span(), "action_id": "act"} | fields)


def choose(world: World, table: str = "batch_item") -> None:
    """All units of a table become items, in the order of their ids, with the versions that they now have."""
    world.sql(
        "INSERT INTO chosen (action_id, position, unit_id, version)"
        f" SELECT 'act', row_number() OVER (ORDER BY unit_id) - 1, unit_id, version FROM {table}"
    )


def results(world: World) -> list[Any]:
    return [row[0] for row in world.rows("SELECT result FROM chosen ORDER BY position")]


def failed_items(world: World, *positions: int) -> list[Ref]:
    """A run, and items of it that a worker gave up on."""
    world.born(batch_run(items_expected=len(positions), due_at=None), *(batch_item(n) for n in positions))
    worker = world.worker()
    items = worker.claim({"batch_item": len(positions)})
    world.commit(worker, *(Outcome(i, replace(i, status=ItemState.FAILED, due_at=None), "gave up") for i in items))
    return [Ref("batch_item", f"run/{n}") for n in positions]


def test_all_units_of_a_run_move_at_once(world):
    refs = failed_items(world, 1, 2, 3)
    world.born(batch_run("other", due_at=None), batch_item(1, run_id="other"))
    world.time.advance(5)
    versions = [world.unit(ref).version for ref in refs]
    assert world.ledger.move_set(again(), who="x") == 3
    units = [world.unit(ref) for ref in refs]
    assert [(u.status, u.due_at, u.changed_at, u.changed_by, u.change_reason) for u in units] == [
        (ItemState.OPEN, after(5), after(5), "operator:ann", "again")
    ] * 3
    assert [u.version for u in units] == [v + 1 for v in versions]
    assert [world.history(ref)[-1] for ref in refs] == [("failed", "open", "operator:ann", "again")] * 3
    assert (world.unit(RUN).items_failed, world.unit(RUN).items_done) == (0, 0)
    assert world.ledger.move_set(again(), who="x") == 0
    assert ids(world.worker().claim({"batch_item": 9})) == ["other/1", "run/1", "run/2", "run/3"]
    healthy(world)


def test_a_set_is_a_part_of_an_outcome(world):
    """A run fans out: its own step and the moves of its items are one transaction, and the parent counts them."""
    refs = failed_items(world, 1, 2)
    worker = world.worker()
    world.ledger.nudge([RUN])
    (run,) = worker.claim({"batch_run": 1})
    sets = [again(who=None, actor=Actor.OPERATOR)]
    assert world.commit(worker, Outcome(run, replace(run, due_at=None), "fanned out", move_sets=sets)) == [Won()]
    assert {world.unit(ref).status for ref in refs} == {ItemState.OPEN}
    assert world.history(refs[0])[-1][2] == f"operator:{worker.identity.id}"
    assert world.unit(RUN).items_failed == 0


def test_a_lost_outcome_moves_nothing(world):
    refs = failed_items(world, 1, 2)
    worker = world.worker()
    world.ledger.nudge([RUN])
    (run,) = worker.claim({"batch_run": 1})
    world.ledger.park([RUN], who="ann", reason="wait")
    world.commit(worker, Outcome(run, replace(run, due_at=None), "fanned out", move_sets=[again()]))
    assert {world.unit(ref).status for ref in refs} == {ItemState.FAILED}


def test_the_last_of_a_set_wakes_the_parent(world):
    world.born(batch_run(items_expected=2, due_at=None), batch_item(1), batch_item(2))
    world.worker().claim({"batch_item": 2})
    world.sql("UPDATE batch_item SET claimed_by = NULL, version = version + 1")
    done = MoveSet(
        machine="batch_item", sources=[ItemState.WORKING], to=ItemState.DONE, reason="done", where={"run_id": "run"}
    )
    world.ledger.move_set(done, who="w")
    run = world.unit(RUN)
    assert (run.items_done, run.due_at, run.wakes) == (2, after(0), 1)
    assert [world.unit(Ref("batch_item", f"run/{n}")).due_at for n in (1, 2)] == [None, None], "what has ended rests"


def test_a_parent_that_is_missing_refuses_the_set(world):
    failed_items(world, 1)
    world.born(batch_item(7, run_id="orphan"))
    (unit,) = world.worker().claim({"batch_item": 1})
    world.sql("UPDATE batch_item SET status = 'failed', claimed_by = NULL WHERE run_id = 'orphan'")
    assert unit.run_id == "orphan"
    with pytest.raises(LedgerRefused, match="counts on a batch_run that does not exist"):
        world.ledger.move_set(again(where={"run_id": "orphan"}), who="x")


def test_a_limit_takes_a_part(world):
    failed_items(world, 1, 2, 3, 4, 5)
    assert world.ledger.move_set(again(limit=2), who="x") == 2
    assert world.unit(RUN).items_failed == 3
    assert [world.ledger.move_set(again(limit=2), who="x") for _ in range(3)] == [2, 1, 0]


def test_every_item_says_what_became_of_it(world):
    failed_items(world, 0, 1, 2, 3, 4, 5)
    choose(world)
    world.ledger.move(Ref("batch_item", "run/1"), "failed", actor=Actor.OPERATOR, who="bob", reason="touched")
    world.sql("UPDATE batch_item SET parked_at = changed_at, version = version WHERE position = 2")
    world.sql(
        "UPDATE chosen SET version = (SELECT version FROM batch_item b WHERE b.unit_id = chosen.unit_id)"
        " WHERE position = 2"
    )
    world.ledger.move(Ref("batch_item", "run/3"), "open", actor=Actor.OPERATOR, who="bob", reason="x", due_at=after(0))
    world.worker().claim({"batch_item": 1})
    world.sql("UPDATE chosen SET unit_id = 'run/404' WHERE position = 4")
    world.sql("INSERT INTO chosen (action_id, position, unit_id, version) VALUES ('other', 0, 'run/0', 1)")
    assert world.ledger.move_set(by_items(), who="x") == 2
    told = dict(world.rows("SELECT position, result FROM chosen WHERE action_id = 'act'"))
    assert told == {
        0: "moved",
        1: "changed since",
        2: "parked",
        3: "claimed by a worker",
        4: "gone",
        5: "moved",
    }
    assert world.one("SELECT result FROM chosen WHERE action_id = 'other'") is None
    assert world.ledger.move_set(by_items(), who="x") == 0, "an item moves its unit once"
    assert world.unit(RUN).items_failed == 3


def test_items_go_by_their_span(world):
    failed_items(world, 0, 1, 2, 3)
    choose(world)
    assert world.ledger.move_set(by_items(items=chosen_span(1, 3)), who="x") == 2
    assert results(world) == [None, "moved", "moved", None]


def test_the_history_names_the_bulk_action(world):
    (ref,) = failed_items(world, 0)
    choose(world)
    world.ledger.move_set(by_items(), who="x")
    worker = world.worker()
    (unit,) = worker.claim({"batch_item": 1})
    world.commit(worker, Outcome(unit, replace(unit, status=ItemState.FAILED, due_at=None), "gave up again"))
    world.ledger.move(ref, "open", actor=Actor.OPERATOR, who="bob", reason="once more")
    rows = history(world.ledger.database, ref)
    assert [(row.reason, row.action_id) for row in rows[-4:]] == [
        ("again", "act"),
        ("claim", None),
        ("gave up again", None),
        ("once more", None),
    ]


@pytest.mark.parametrize(("parked", "moved"), [(False, 1), (True, 1), (None, 2)])
def test_parked_units_go_as_the_caller_says(world, parked, moved):
    refs = failed_items(world, 0, 1)
    world.ledger.park([refs[0]], who="ann", reason="wait")
    choose(world)
    fresh = {"due_at": NOW, "parked_at": None, "parked_reason": None}
    assert world.ledger.move_set(by_items(parked=parked, changes=fresh), who="x") == moved
    assert results(world) == {False: ["parked", "moved"], True: ["moved", "not parked"], None: ["moved"] * 2}[parked]
    assert world.unit(refs[0]).parked_at == (after(0) if parked is False else None)


def test_columns_change_where_the_state_stays(world):
    refs = world.born(feed("a", due_at=None), feed("b", due_at=after(60)))
    same = MoveSet(
        machine="feed",
        sources=list(FeedState),
        to=None,
        reason="fetch now",
        where={},
        changes={"due_at": NOW, "url": "https://x", "gate_id": "a new gate"},
        actor=Actor.API,
    )
    assert world.ledger.move_set(same, who="site") == 2
    for ref in refs:
        unit = world.unit(ref)
        assert (unit.status, unit.due_at, unit.url, unit.gate_id) == ("missing", after(0), "https://x", "a new gate")
        assert world.history(ref)[-1] == ("missing", "missing", "api:site", "fetch now")
    assert world.one("SELECT count(*) FROM gate WHERE gate_id = 'a new gate'") == 1
    healthy(world)


def test_now_is_a_word_in_a_column_of_text(world):
    (ref,) = world.born(feed("a"))
    given = MoveSet(machine="feed", sources=["missing"], to=None, reason="x", where={}, changes={"url": NOW})
    world.ledger.move_set(given, who="w")
    assert world.unit(ref).url == "now"


def test_guarded_units_move_in_sets(world):
    refs = world.born(partition("a"), partition("b"))
    good = MoveSet(
        machine="partition",
        sources=["pending"],
        to="success",
        reason="validated",
        where={"source": "a"},
        changes={"current_run_id": "r1", "record_count": 1},
        actor=Actor.VALIDATOR,
    )
    assert world.ledger.move_set(good, who="v") == 1
    assert [world.unit(ref).status for ref in refs] == [PartitionState.SUCCESS, PartitionState.PENDING]


def test_doubts_stay_and_crashes_go(world):
    (ref,) = failed_items(world, 0)
    world.sql("UPDATE batch_item SET doubts = 1, crashes = 2, suspicion = 1, version = version + 1")
    world.ledger.move_set(again(), who="x")
    unit = world.unit(ref)
    assert (unit.doubts, unit.crashes, unit.suspicion) == (1, 0, 0)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"to": "done"}, IllegalMove, "failed -> done is not an edge"),
        ({"actor": Actor.API}, IllegalMove, "only operator may move a unit .*, not api"),
        ({"to": "lost"}, IllegalMove, "'lost' is not a state"),
        ({"sources": ["lost"]}, IllegalMove, "'lost' is not a state"),
        ({"sources": []}, BrokenFlow, "at least one state"),
        ({"machine": "batch_itm"}, UnknownMachine, "no machine is called 'batch_itm'"),
        ({"changes": {"claimed_by": "me"}}, BrokenFlow, "cannot change claimed_by"),
        ({"changes": {"run_id": "other"}}, BrokenFlow, "cannot change run_id"),
        ({"changes": {"status": "done"}}, BrokenFlow, "cannot change status"),
        ({"where": {"colour": 1}}, BrokenFlow, "batch_item has no column colour"),
        ({"where": None}, BrokenFlow, "either by where or by items"),
        ({"items": chosen_span()}, BrokenFlow, "either by where or by items"),
        ({"limit": MAX_SET + 1}, BrokenFlow, "at most 20,000 units"),
        ({"where": None, "items": chosen_span(0, MAX_SET + 1)}, BrokenFlow, "span of at most 20,000"),
        ({"where": None, "items": Where(chosen, {"action_id": "act"})}, BrokenFlow, "span of at most 20,000"),
        (
            {"where": None, "items": Where(label, {"name": "x"})},
            BrokenFlow,
            "label has no column unit_id, version, res",
        ),
    ],
)
def test_what_is_wrong_is_refused_before_any_sql(world, fields, error, message):
    (ref,) = failed_items(world, 1)
    before = world.unit(ref)
    with pytest.raises(error, match=message):
        world.ledger.move_set(again(**fields), who="x")
    assert world.unit(ref) == before


def test_counters_are_not_for_sets(world):
    world.born(batch_run())
    given = MoveSet(machine="batch_run", sources=["created"], to=None, reason="x", where={}, changes={"items_done": 9})
    with pytest.raises(BrokenFlow, match="cannot change items_done"):
        world.ledger.move_set(given, who="w")


def test_a_loop_that_is_for_others_cannot_be_pulled_by_a_set(world):
    world.born(partition(status=PartitionState.PENDING))
    given = MoveSet(
        machine="partition",
        sources=["failed"],
        to=None,
        reason="x",
        where={},
        changes={"record_count": 1},
        actor=Actor.OPERATOR,
    )
    with pytest.raises(IllegalMove, match="only validator may move a unit from failed to failed, not operator"):
        world.ledger.move_set(given, who="ann")


def test_a_refusal_of_the_database_moves_none(world):
    refs = world.born(parcel("a"), parcel("b"))
    given = MoveSet(machine="parcel", sources=["open"], to=None, reason="x", where={}, changes={"count": 1000})
    with pytest.raises(LedgerRefused, match="count_is_small"):
        world.ledger.move_set(given, who="w")
    assert [world.unit(ref).count for ref in refs] == [None, None]


def test_what_somebody_has_locked_is_passed_by(real_world: World):
    """On PostgreSQL a row lock makes nobody wait; on SQLite a set waits for the one writer."""
    world = real_world
    if world.sqlite:
        pytest.skip("SQLite has no row locks")
    failed_items(world, 0, 1, 2)
    choose(world)
    locked, go = threading.Event(), threading.Event()
    other = world.another()

    def hold(cursor: Any) -> None:
        cursor.rows("SELECT 1 FROM batch_item WHERE position = 1 FOR UPDATE")
        locked.set()
        go.wait(30)

    thread = threading.Thread(target=other.database.write, args=(hold,))
    thread.start()
    locked.wait(30)
    try:
        assert world.ledger.move_set(by_items(), who="x") == 2
        assert results(world) == ["moved", "locked by somebody", "moved"]
    finally:
        go.set()
        thread.join()


unit_facts = st.tuples(
    st.sampled_from([InvoiceState.QUEUED, InvoiceState.SENDING, InvoiceState.FAILED]),
    st.booleans(),  # claimed
    st.booleans(),  # parked
    st.booleans(),  # changed since it was chosen
)


def test_a_set_moves_what_one_by_one_would(world):
    """Any mix of states, claims, parked and changed units: a set moves those that a loop over them would."""
    runs = iter(range(10_000))

    @settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
    @given(st.lists(unit_facts, max_size=8), st.sampled_from([True, False, None]), st.booleans())
    def play(facts: list[tuple[InvoiceState, bool, bool, bool]], parked: bool | None, listed: bool) -> None:
        tenant = f"t{next(runs)}"
        world.sql("DELETE FROM chosen")
        world.born(*(invoice(str(i), tenant=tenant, due_at=None) for i in range(len(facts))))
        for i, (state, claimed, aside, _) in enumerate(facts):
            path = {InvoiceState.QUEUED: (), InvoiceState.SENDING: ("SENDING",)}.get(state, ("SENDING", "FAILED"))
            for step in path:
                world.ledger.move(Ref("invoice", f"{tenant}/{i}"), step, actor=Actor.WORKER, who="w", reason="x")
            sets = [f"claimed_by = {repr('w') if claimed else 'NULL'}"]
            sets.append(f"parked_at = {'changed_at' if aside else 'NULL'}")
            world.sql(f"UPDATE invoice SET {', '.join(sets)}, version = version + 1 WHERE unit_id = '{tenant}/{i}'")
        world.sql(
            "INSERT INTO chosen (action_id, position, unit_id, version)"
            " SELECT 'act', CAST(number AS integer), unit_id, version FROM invoice WHERE tenant = :tenant",
            tenant=tenant,
        )
        expected = []
        for i, (state, claimed, aside, changed) in enumerate(facts):
            if changed:
                world.sql(f"UPDATE invoice SET version = version + 1 WHERE unit_id = '{tenant}/{i}'")
            goes = state is InvoiceState.FAILED and not claimed and parked in {None, aside}
            expected += [i] if goes and not (listed and changed) else []
        which = {"where": None, "items": chosen_span()} if listed else {"where": {"tenant": tenant}}
        given_set = again(machine="invoice", sources=["FAILED"], to="QUEUED", parked=parked, **which)
        assert world.ledger.move_set(given_set, who="x") == len(expected)
        units = [world.unit(Ref("invoice", f"{tenant}/{i}")) for i in range(len(facts))]
        assert [i for i, u in enumerate(units) if u.changed_by == "operator:ann"] == expected
        if listed:
            assert [i for i, said in enumerate(results(world)) if said == "moved"] == expected
            assert None not in results(world)

    play()

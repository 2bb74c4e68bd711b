"""What people do is in the history, whether or not it moves a unit; what workers do without moving one is not."""

from __future__ import annotations

import functools
from datetime import timedelta

import pytest

from penstock.ledger.care import doctor_history
from penstock.ledger.care.look import Scope
from penstock.ledger.care.prune import Ages, Pruner
from penstock.ledger.commit import Lost, Won
from penstock.ledger.history import as_of, history
from penstock.model.clock import Rng
from penstock.model.errors import IllegalMove, LedgerRefused, UnknownUnit
from penstock.model.machine import Actor
from penstock.model.outcome import Move, Outcome
from penstock.model.unit import Ref, replace
from tests.support.machines import InvoiceState, feed, invoice, partition
from tests.support.world import World, after, ids

NEWS, MISSING = Ref("feed", "news"), Ref("feed", "404")
ANN = {"who": "ann", "reason": "asked to"}
HANDS = sorted(set(Actor) - {Actor.WORKER})


def told(world: World, ref: Ref) -> list[tuple[str, str]]:
    """(who, why) of every row after the birth."""
    return [row[2:] for row in world.history(ref)[1:]]


def healthy(world: World) -> None:
    """The doctor finds nothing impossible in the history."""
    database = world.ledger.database
    for check in (doctor_history.present, doctor_history.contiguous, doctor_history.pairs):
        looks = functools.partial(check, database)
        assert world.ledger.read(lambda cursor, looks=looks: [*looks(cursor, world.ledger.machines, Scope())]) == []  # type: ignore[misc]


@pytest.mark.parametrize("actor", HANDS)
def test_a_move_that_keeps_the_state_is_logged(world, actor):
    world.born(feed("news"))
    world.ledger.move(NEWS, world.unit(NEWS).status, actor=actor, who="ann", reason="a new address", url="https://x")
    assert told(world, NEWS) == [(f"{actor}:ann", "a new address")]
    healthy(world)


def test_a_workers_step_that_changes_nothing_is_not_logged(world):
    world.born(feed("news"))
    world.ledger.wake([NEWS], **ANN)
    worker = world.worker()
    for _ in range(3):
        world.time.advance(61)
        (unit,) = worker.claim({"feed": 1})
        world.commit(worker, Outcome(unit, replace(unit, due_at=after(0)), "nothing new"))
        world.ledger.nudge([NEWS])
    assert told(world, NEWS) == [("operator:ann", "asked to")]
    healthy(world)


def test_a_workers_move_of_another_that_stays_is_not_logged_and_a_schedulers_is(world):
    world.born(feed("news"))
    for actor in (Actor.WORKER, Actor.SCHEDULER):
        unit = world.unit(NEWS)
        world.ledger.together([Move(unit, replace(unit, url=str(actor)), "edited", actor)], who="x")
    assert told(world, NEWS) == [("scheduler:x", "edited")]
    healthy(world)


def test_a_wake_says_who_and_why(world):
    world.born(feed("news", due_at=after(60)))
    before = world.unit(NEWS)
    assert world.ledger.wake([NEWS, MISSING], **ANN).skipped == {MISSING: "no such unit"}
    unit = world.unit(NEWS)
    assert (unit.due_at, unit.wakes, unit.version) == (after(0), before.wakes + 1, before.version)
    assert told(world, NEWS) == [("operator:ann", "asked to")]
    world.time.advance(1)
    world.ledger.wake([NEWS], **ANN)
    assert len(told(world, NEWS)) == 2, "again, under the same version"
    healthy(world)


def test_whoever_needs_all_of_them_woken_is_told_of_one_that_is_not_there(world):
    world.born(feed("news", due_at=after(60)))
    with pytest.raises(UnknownUnit, match="no such unit"):
        world.ledger.wake([NEWS, MISSING], **ANN).all()
    assert world.ledger.wake([NEWS], **ANN).all() == [NEWS]


def test_a_wake_costs_nobody_a_claim(world):
    world.born(feed("news"))
    worker = world.worker()
    (unit,) = worker.claim({"feed": 1})
    world.ledger.wake([NEWS], **ANN)
    assert world.unit(NEWS).claimed_by == worker.identity.id
    assert world.commit(worker, Outcome(unit, replace(unit, due_at=after(600)), "nothing new")) == [Won()]
    assert world.unit(NEWS).due_at == after(0), "and it is not lost"
    assert told(world, NEWS) == [("operator:ann", "asked to")]
    healthy(world)


def test_whoever_wakes_without_a_wake_is_foreign(world):
    world.born(feed("news"))
    world.sql("UPDATE feeds SET changed_by = 'operator:eve', change_reason = 'because'")
    assert told(world, NEWS) == [("sql", "because (changed changed_by)")]


def test_parked_and_unparked_by_hand(world):
    world.born(feed("news"))
    world.sql("UPDATE feeds SET crashes = 2, suspicion = 1, doubts = 1, next_refresh_at = NULL, version = version + 1")
    parked = world.ledger.park([NEWS, MISSING], **ANN)
    assert (parked.moved, parked.skipped) == ([NEWS], {MISSING: "no such unit"})
    unit = world.unit(NEWS)
    assert (unit.parked_at, unit.parked_reason, unit.crashes) == (after(0), "asked to", 2)
    assert world.ledger.park([NEWS], **ANN).skipped == {NEWS: "parked already"}
    world.ledger.wake([NEWS], **ANN)
    assert world.worker().claim({"feed": 1}) == []

    world.time.advance(1)
    assert world.ledger.unpark([NEWS], who="bob", reason="mended").moved == [NEWS]
    unit = world.unit(NEWS)
    assert (unit.parked_at, unit.parked_reason, unit.crashes, unit.suspicion, unit.doubts) == (None, None, 0, 0, 1)
    assert ids(world.worker().claim({"feed": 1})) == ["news"]
    assert world.ledger.unpark([NEWS], **ANN).skipped == {NEWS: "not parked"}
    assert told(world, NEWS) == [("operator:ann", "asked to"), ("operator:bob", "mended")]
    healthy(world)


def test_whoever_held_a_parked_unit_has_lost_it(world):
    world.born(feed("news"))
    worker = world.worker()
    (unit,) = worker.claim({"feed": 1})
    world.ledger.park([NEWS], **ANN)
    assert world.commit(worker, Outcome(unit, replace(unit, url="late"), "late")) == [Lost()]
    assert (world.unit(NEWS).claimed_by, world.unit(NEWS).doubts) == (None, 1)


def test_what_has_ended_is_left_alone(world):
    (ref,) = world.born(invoice("1"))
    worker = world.worker()
    (unit,) = worker.claim({"invoice": 1})
    world.commit(worker, Outcome(unit, replace(unit, status=InvoiceState.SENT, remote_id="r"), "accepted"))
    before = world.history(ref)
    for verb in (world.ledger.wake, world.ledger.park, world.ledger.unpark):
        assert verb([ref], **ANN).skipped == {ref: "it has ended as SENT"}
    assert world.history(ref) == before


def test_a_guarded_unit_has_nothing_to_wake(world):
    (ref,) = world.born(partition())
    for verb in (world.ledger.wake, world.ledger.park, world.ledger.unpark):
        with pytest.raises(IllegalMove, match="partition is not driven by workers"):
            verb([ref], **ANN)


def test_nobody_can_add_a_row_to_what_was_said(world):
    world.born(feed("news"))
    world.time.advance(1)
    world.ledger.park([NEWS], **ANN)
    world.ledger.unpark([NEWS], **ANN)
    world.worker().claim({"feed": 1})
    ((version, at),) = world.rows("SELECT version, changed_at FROM feeds")
    before = world.history(NEWS)
    for who, why, when in (("operator:ann", "asked to", at), ("operator:ann", "more", at), ("api:eve", "asked to", at)):
        with pytest.raises(LedgerRefused, match="triggers of the units alone"):
            world.sql(
                "INSERT INTO transition_log (machine, unit_id, from_status, to_status, actor, reason, version, at)"
                " VALUES ('feed', 'news', 'missing', 'missing', :who, :why, :version, :at)",
                who=who,
                why=why,
                version=version,
                at=when,
            )
    assert world.history(NEWS) == before


def test_the_past_is_answered_across_what_people_did(world):
    world.born(feed("news"))
    status = str(world.unit(NEWS).status)
    world.time.advance(10)
    world.ledger.park([NEWS], **ANN)
    world.time.advance(10)
    world.ledger.unpark([NEWS], **ANN)
    database = world.ledger.database
    assert [as_of(database, NEWS, after(s)).since for s in (5, 15, 25)] == [after(0), after(10), after(20)]
    assert {as_of(database, NEWS, after(s)).status for s in (5, 15, 25)} == {status}
    assert [row.action_id for row in history(database, NEWS)] == [None, None, None]


def test_pruning_keeps_what_was_told_last(world):
    """What people did becomes a baseline like any other row, and nobody can add to it."""
    world.born(feed("news"))
    for days in (1, 2):
        world.time.advance(86_400)
        world.ledger.park([NEWS], who="ann", reason=f"day {days}")
        world.ledger.unpark([NEWS], who="bob", reason=f"day {days}")
    world.time.advance(40 * 86_400)
    database = world.ledger.database
    Pruner(database, Ages(older_than=timedelta(days=30)), who="operator:ana", rng=Rng()).prune()
    (only,) = history(database, NEWS)
    assert (only.from_status, only.to_status, only.at) == (None, "missing", after(2 * 86_400))
    assert only.reason is not None
    assert only.reason.endswith("operator:bob: day 2")
    assert as_of(database, NEWS, after(3 * 86_400)).status == "missing"
    world.worker().claim({"feed": 1})
    with pytest.raises(LedgerRefused, match="triggers of the units alone"):
        world.sql(
            "INSERT INTO transition_log (machine, unit_id, from_status, to_status, actor, reason, version, at)"
            " SELECT 'feed', unit_id, status, status, changed_by, change_reason, version, changed_at FROM feeds"
        )
    world.ledger.wake([NEWS], **ANN)
    assert len(history(database, NEWS)) == 2
    healthy(world)


@pytest.mark.parametrize(
    ("actor", "version", "found"),
    [
        ("worker:w", 1, ["pairs"]),  # workers that stay are not logged here
        ("operator:eve", 1, []),
        ("operator:eve", -1, ["contiguous"]),  # a wake-up may keep the version, nobody lowers it
        ("nobody:x", 1, ["pairs"]),
    ],
)
def test_the_doctor_finds_what_cannot_have_been(world, actor, version, found):
    world.born(feed("news"))
    table = "" if world.sqlite else " ON transition_log"
    world.sql(f"DROP TRIGGER penstock_log_insert{table}")
    world.sql(
        "INSERT INTO transition_log (machine, unit_id, from_status, to_status, actor, version, at)"
        f" SELECT 'feed', unit_id, status, status, '{actor}', version + ({version}), changed_at FROM feeds"
    )
    database = world.ledger.database
    for name in ("pairs", "contiguous"):
        looks = functools.partial(getattr(doctor_history, name), database)
        told = world.ledger.read(lambda cursor, looks=looks: [*looks(cursor, world.ledger.machines, Scope())])
        assert {f.check for f in told} == {name} & {*found}

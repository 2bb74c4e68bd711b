"""Pruning: what goes, what stays, and that history, doctor and as-of answers stay right."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.ledger import delivery, history, outbox
from penstock.ledger.care.doctor import examine
from penstock.ledger.care.prune import EVENTS, HISTORY, UNITS, WORKERS, Ages, Pruner
from penstock.ledger.ledger import Ledger
from penstock.model.clock import Rng, VirtualClock, instant_text
from penstock.model.errors import UnknownMachine, UsageError
from penstock.model.machine import Actor
from penstock.model.outcome import Outcome
from penstock.model.unit import Ref, replace
from tests.support.machines import (
    InvoiceState,
    ItemState,
    RunState,
    batch_item,
    batch_run,
    invoice,
    partition,
)
from tests.support.world import ALL_MACHINES, World

DAY = 86_400.0
MONTH = timedelta(days=30)


def pruner(world: World, ages: Ages | None = None, machine: str | None = None) -> Pruner:
    return Pruner(world.ledger.database, ages or Ages(older_than=MONTH), machine=machine, who="operator:ana", rng=Rng())


# What pruning could break. The others look at leases and clocks, which these tests let run out.
TOUCHED = {"states", "present", "contiguous", "counters", "permits", "definitions", "triggers"}


def healthy(world: World) -> bool:
    found = examine(world.ledger.database, {m.name: m for m in ALL_MACHINES})
    return [f for f in found if f.check in TOUCHED] == []


def move(world: World, ref: Ref, to: str, actor: Actor = Actor.VALIDATOR, **changes: Any) -> None:
    world.ledger.move(ref, to, actor=actor, who="test", reason=f"to {to}", **changes)


def sent(world: World, number: str = "1") -> Ref:
    (ref,) = world.born(invoice(number))
    move(world, ref, "SENDING", Actor.WORKER)
    move(world, ref, "SENT", Actor.WORKER, remote_id="r")
    return ref


# History.


def test_old_history_becomes_a_baseline(world):
    (ref,) = world.born(partition())
    for n in range(3):
        world.time.advance(DAY)
        move(world, ref, "success", current_run_id=f"run-{n}")
    last_old = world.time.now()
    world.time.advance(40 * DAY)
    move(world, ref, "failed", current_run_id="run-9")
    assert pruner(world).prune()[HISTORY] == 3
    baseline, newest = history.history(world.ledger.database, ref)
    assert (baseline.from_status, baseline.to_status, baseline.at) == (None, "success", last_old)
    assert baseline.data["current_run_id"] == "run-2"
    assert baseline.actor.startswith("prune:")
    assert baseline.reason == "baseline, 3 rows before it pruned; validator:test: to success"
    assert (newest.from_status, newest.to_status) == ("success", "failed")
    assert healthy(world)
    assert pruner(world).prune().get(HISTORY, 0) == 0


def test_a_baseline_is_pruned_into_a_later_one(world):
    (ref,) = world.born(partition())
    for _ in range(3):
        move(world, ref, "success")
        world.time.advance(40 * DAY)
        move(world, ref, "failed")
        world.time.advance(40 * DAY)
        pruner(world).prune()
        (only,) = history.history(world.ledger.database, ref)
        assert (only.from_status, only.to_status) == (None, "failed")
    assert healthy(world)


def test_the_newest_row_of_a_living_unit_is_never_pruned(world):
    refs = world.born(partition(), invoice())
    before = [world.history(ref) for ref in refs]
    world.time.advance(1_000 * DAY)
    assert pruner(world).prune() == {}
    assert [world.history(ref) for ref in refs] == before


def test_moments_before_the_baseline_are_not_answered_wrongly(world):
    (ref,) = world.born(partition())
    born = world.time.now()
    world.time.advance(DAY)
    move(world, ref, "success")
    assert history.as_of(world.ledger.database, ref, born).status == "pending"
    assert history.as_of(world.ledger.database, ref, born - timedelta(days=1)).status is None
    world.time.advance(40 * DAY)
    pruner(world).prune()
    with pytest.raises(UsageError, match=r"before 2026-01-02T00:00:00\.000Z was pruned; ask for a later moment"):
        history.as_of(world.ledger.database, ref, born)


STEPS = st.lists(st.tuples(st.sampled_from(["success", "failed", "pending", "run"]), st.integers(0, 20)), max_size=12)


def baseline(world: World, ref: Ref, cutoff: datetime) -> dict[int | None, str]:
    """What the version that will be a baseline says then; empty where nothing stands before it that could be pruned."""
    old = [row for row in history.history(world.ledger.database, ref) if row.at < cutoff]
    if len(old) < 2:
        return {}
    rows = "1 row" if len(old) == 2 else f"{len(old) - 1} rows"
    return {old[-1].version: f"baseline, {rows} before it pruned; {old[-1].actor}: {old[-1].reason}"}


@settings(max_examples=12, suppress_health_check=list(HealthCheck))
@given(histories=st.lists(STEPS, min_size=1, max_size=4), age=st.integers(1, 60))
def test_answers_inside_the_kept_range_are_the_same_after_pruning(world, histories, age):
    database = world.ledger.database
    token = Rng().token()
    refs = []
    for number, steps in enumerate(histories):
        (ref,) = world.born(partition(f"{token}-{number}"))
        refs.append(ref)
        for target, days in steps:
            world.time.advance(days * DAY)
            status = world.unit(ref).status
            if target == "run" and status == "success":
                move(world, ref, "success", current_run_id=f"r{days}")
            elif target not in {"run", status}:
                move(world, ref, target, Actor.OPERATOR if target == "pending" else Actor.VALIDATOR)
    cutoff = world.time.now() - timedelta(days=age)
    moments = [cutoff + timedelta(hours=18) * n for n in range(age + 5)]

    def answers() -> list[Any]:
        return [history.as_of(database, ref, moment) for ref in refs for moment in moments]

    told = {str(ref): baseline(world, ref, cutoff) for ref in refs}
    before = [replace(one, reason=told[one.unit].get(one.version, one.reason)) for one in answers()]
    present = [world.unit(ref) for ref in refs]
    expected = sum(c.rows for c in pruner(world, Ages(older_than=timedelta(days=age))).counts())
    gone = pruner(world, Ages(older_than=timedelta(days=age))).prune()
    assert sum(gone.values()) == expected
    assert answers() == before
    assert [world.unit(ref) for ref in refs] == present
    assert healthy(world)
    old = "SELECT unit_id, count(*) FROM transition_log WHERE at < {} GROUP BY unit_id HAVING count(*) > 1"
    assert world.rows(old.format(f"'{instant_text(cutoff)}'")) == []


# Units.


def test_ended_units_go_and_leave_a_row_that_says_so(world):
    ref = sent(world)
    (living,) = world.born(invoice("2"))
    world.time.advance(40 * DAY)
    young = sent(world, "3")
    assert pruner(world).prune() == {"invoice": 1, HISTORY: 3}
    assert {row[0] for row in world.rows("SELECT unit_id FROM invoice")} == {living.unit_id, young.unit_id}
    assert [row[:3] for row in world.history(ref)] == [("SENT", None, "operator:ana")]
    assert healthy(world)
    assert history.as_of(world.ledger.database, ref, world.time.now() - timedelta(days=1)).status == "SENT"
    assert history.as_of(world.ledger.database, ref, world.time.now()).status is None
    world.time.advance(40 * DAY)
    pruner(world).prune()
    ((source, target, actor, reason),) = world.history(ref)
    assert (source, target, actor) == ("SENT", None, "operator:ana")
    assert reason == "pruned: old enough; last worker:test: to SENT"
    assert healthy(world)


def test_a_unit_that_was_pruned_may_be_born_again(world):
    ref = sent(world)
    for _ in range(2):
        world.time.advance(40 * DAY)
        pruner(world).prune()
    world.born(invoice())
    assert world.unit(ref).status == "QUEUED"
    assert healthy(world)


def test_dead_letters_and_guarded_units_are_not_ended(world):
    (ref,) = world.born(invoice())
    move(world, ref, "SENDING", Actor.WORKER)
    move(world, ref, "FAILED", Actor.WORKER)
    world.born(partition())
    world.time.advance(1_000 * DAY)
    pruner(world).prune()
    assert world.one("SELECT count(*) FROM invoice") == world.one("SELECT count(*) FROM partitions") == 1


def test_units_can_be_kept(world):
    sent(world)
    world.time.advance(1_000 * DAY)
    assert pruner(world, Ages(older_than=MONTH, units=False)).prune() == {HISTORY: 2}
    assert world.one("SELECT count(*) FROM invoice") == 1


def run_with_items(world: World, run_id: str, *, finish: bool) -> None:
    """A run of three items; finished with all of them, or with one item still open."""
    world.born(batch_run(run_id, items_expected=3), *(batch_item(n, run_id=run_id) for n in range(3)))
    session = world.worker("batch_item", "batch_run")
    items = [u for u in session.claim({"batch_item": 10}) if u.unit_id.startswith(f"{run_id}/")]
    done = items if finish else items[:2]
    world.commit(session, *(Outcome(u, replace(u, status=ItemState.DONE), "done") for u in done))
    move(world, Ref("batch_run", run_id), RunState.RUNNING, Actor.WORKER)
    if finish:
        move(world, Ref("batch_run", run_id), RunState.COMPLETED, Actor.WORKER)


def test_nothing_of_an_unfinished_run_goes(world):
    run_with_items(world, "open", finish=False)
    world.time.advance(1_000 * DAY)
    before = world.one("SELECT count(*) FROM transition_log")
    assert pruner(world).prune() == {}
    assert world.one("SELECT count(*) FROM transition_log") == before
    assert healthy(world)


def test_a_finished_run_goes_with_its_items(world):
    run_with_items(world, "done", finish=True)
    run_with_items(world, "open", finish=False)
    world.time.advance(1_000 * DAY)
    counted = {(c.table, c.machine): c.rows for c in pruner(world).counts() if c.rows}
    assert counted[("batch_run", "batch_run")] == 1
    assert counted[("batch_item", "batch_item")] == 3
    gone = pruner(world).prune()
    assert (gone["batch_run"], gone["batch_item"]) == (1, 3)
    assert world.rows("SELECT DISTINCT run_id FROM batch_item") == [("open",)]
    assert healthy(world)


def test_a_machine_alone_is_pruned(world):
    sent(world)
    run_with_items(world, "done", finish=True)
    world.time.advance(1_000 * DAY)
    assert set(pruner(world, machine="invoice").prune()) == {"invoice", HISTORY}
    assert world.one("SELECT count(*) FROM batch_item") == 3
    with pytest.raises(UnknownMachine, match="no machine is called 'nothing'; this ledger has batch_item"):
        pruner(world, machine="nothing")


def test_ages_by_name_and_by_default(world):
    ages = Ages({"invoice": timedelta(days=5), UNITS: timedelta(days=50), EVENTS: None})
    assert ages.of("invoice") == timedelta(days=5)
    assert ages.of("batch_run") == timedelta(days=50)
    assert ages.of(EVENTS) is None
    assert ages.of(HISTORY) == ages.of(WORKERS) == timedelta(days=90)
    assert Ages().of("invoice") == timedelta(days=365)
    sent(world)
    world.time.advance(10 * DAY)
    assert pruner(world, ages).prune() == {"invoice": 1}


def test_more_than_a_batch_goes_with_the_counts_told_before(world):
    number = 1_201
    world.born(*(invoice(f"{n:05}") for n in range(number)))
    world.ledger.move_many(
        "invoice", [f"acme/{n:05}" for n in range(number)], "SENDING", actor=Actor.WORKER, who="t", reason="x"
    )
    world.ledger.move_many(
        "invoice",
        [f"acme/{n:05}" for n in range(number)],
        "SENT",
        actor=Actor.WORKER,
        who="t",
        reason="x",
        remote_id="r",
    )
    world.time.advance(40 * DAY)
    counts = {c.table: c.rows for c in pruner(world, machine="invoice").counts()}
    assert counts == {"invoice": number, HISTORY: 3 * number}
    steps: list[tuple[str, int]] = []
    assert pruner(world, machine="invoice").prune(lambda table, rows: steps.append((table, rows))) == counts
    assert len(steps) == 6
    assert world.one("SELECT count(*) FROM prune_permit WHERE open IS NOT NULL") == 0
    assert world.one("SELECT count(*) FROM prune_permit") == 3
    assert healthy(world)


def test_a_bounded_run_does_a_part_and_the_next_one_the_rest(world):
    world.born(*(partition(f"s{n:04}") for n in range(700)))
    for status in ("success", "failed"):
        world.time.advance(DAY)
        ids = [f"s{n:04}/2026-11-15" for n in range(700)]
        world.ledger.move_many("partition", ids, status, actor=Actor.VALIDATOR, who="t", reason="x")
    world.time.advance(40 * DAY)
    assert pruner(world).prune(most=10) == {HISTORY: 1_000}
    assert healthy(world)
    assert pruner(world).prune(most=10_000) == {HISTORY: 400}
    assert healthy(world)


# Events and workers.


def test_old_events_go(world):
    now_sql = ":now" if world.sqlite else "CAST(:now AS timestamptz)"
    sql = f"INSERT INTO event_log (event_key, event_type, payload, created_at) VALUES (:key, 'x', '{{}}', {now_sql})"
    for key in ("old", "young"):
        world.sql(sql, key=key, now=instant_text(world.time.now()))
        world.time.advance(40 * DAY if key == "old" else 0)
    assert pruner(world).prune() == {EVENTS: 1}
    assert world.rows("SELECT event_key FROM event_log") == [("young",)]


def test_an_event_that_somebody_waits_for_stays(ledger_url):
    clock = VirtualClock()
    with Ledger.open(ledger_url, [delivery.machine], clock=clock, create=True) as ledger:
        now_sql = ":now" if ledger.database.dialect == "sqlite" else "CAST(:now AS timestamptz)"
        now = instant_text(clock.now())

        def write(sql: str) -> None:
            ledger.database.write(lambda c: c.run(sql, now=now))

        outbox.subscribe(ledger.database, "me", ["*"])
        for key in ("waits", "taken"):
            write(
                "INSERT INTO event_log (event_key, event_type, payload, created_at)"
                f" VALUES ('{key}', 'x', '{{}}', {now_sql})"
            )
        taken = Ref(delivery.machine.name, "me/default/taken")
        ledger.move(taken, delivery.D.DELIVERED, actor=Actor.WORKER, who="test", reason="taken")
        clock.advance(40 * DAY)
        run = Pruner(ledger.database, Ages(older_than=MONTH), who="operator:ana", rng=Rng())
        assert run.prune() == {"event_delivery": 1, EVENTS: 1, HISTORY: 2}
        assert ledger.read(lambda c: [tuple(r) for r in c.rows("SELECT event_key FROM event_log")]) == [("waits",)]
        assert [f for f in examine(ledger.database, ledger.machines) if f.check in TOUCHED] == []


def test_workers_go_when_nothing_names_them(world):
    named, nameless = world.worker("invoice"), world.worker("invoice")
    world.born(invoice())
    (unit,) = named.claim({"invoice": 1})
    world.commit(named, Outcome(unit, replace(unit, status=InvoiceState.QUEUED), "again"))
    for session in (named, nameless):
        session.retire()
    world.time.advance(40 * DAY)
    world.worker("invoice")
    assert pruner(world).prune()[WORKERS] == 1
    left = [row[0] for row in world.rows("SELECT id FROM worker")]
    assert named.identity.id in left
    assert nameless.identity.id not in left
    assert healthy(world)

"""Commits: one winner per unit, and an outcome whole or not at all."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pytest

from penstock.ledger.commit import Lost, OthersMissed, Refused, Won
from penstock.model.errors import BrokenFlow, IllegalMove, UnknownMachine
from penstock.model.machine import Actor
from penstock.model.outcome import Birth, Event, Move, Outcome, Write
from penstock.model.unit import Ref, replace
from tests.support.machines import (
    INVOICE,
    BatchItem,
    Invoice,
    InvoiceState,
    ItemState,
    PartitionState,
    RunState,
    batch_item,
    batch_run,
    feed,
    invoice,
    partition,
)
from tests.support.more_machines import label, parcel
from tests.support.world import World, after, ids

SENT: dict[str, Any] = {"status": InvoiceState.SENT, "remote_id": "r", "due_at": None}
FAILED: dict[str, Any] = {"status": InvoiceState.FAILED, "due_at": None}


def claim_invoices(world: World, *numbers: str, **fields: Any):
    """A worker, and the invoices it holds."""
    world.born(*(invoice(n, **fields) for n in numbers))
    worker = world.worker()
    return worker, [*worker.claim({"invoice": len(numbers)})]


def labels(world: World) -> list[str]:
    return [r[0] for r in world.rows("SELECT name FROM label ORDER BY name")]


def events(world: World) -> list[tuple[Any, ...]]:
    return world.rows("SELECT tenant_id, event_key, event_type, severity, unit_id FROM event_log ORDER BY 1, 2")


def test_a_winner_is_changed_freed_and_logged(world):
    worker, (unit,) = claim_invoices(world, "1")
    world.time.advance(4)
    assert world.commit(worker, Outcome(unit, replace(unit, **SENT), "accepted at once")) == [Won()]
    done = world.unit(Ref("invoice", "acme/1"))
    who = f"worker:{worker.identity.id}"
    assert done == replace(
        unit, **SENT, version=unit.version + 1, claimed_by=None, changed_by=who, change_reason="accepted at once",
        changed_at=after(4),
    )  # fmt: skip
    assert world.history(Ref("invoice", "acme/1"))[1:] == [
        ("QUEUED", "SENDING", who, "claim"),
        ("SENDING", "SENT", who, "accepted at once"),
    ]


def everything(unit: Invoice, name: str) -> Outcome[Invoice]:
    """An outcome with one of each."""
    return Outcome(
        unit,
        replace(unit, **SENT),
        "accepted",
        writes=[Write(label, [{"name": name}])],
        others=[Birth(feed(name))],
        events=[Event(name, "sent", {"n": 1})],
    )


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE invoice SET status = 'FAILED'",
        "UPDATE invoice SET status = 'QUEUED'",
        "UPDATE invoice SET version = version + 1",
    ],
)
def test_a_change_by_someone_else_loses_the_outcome_and_all_it_carries(world, change):
    worker, (unit,) = claim_invoices(world, "1")
    world.sql(change)
    changed = world.unit(Ref("invoice", "acme/1"))
    assert world.commit(worker, everything(unit, "x")) == [Lost()]
    assert world.unit(Ref("invoice", "acme/1")) == changed
    assert labels(world) == []
    assert events(world) == []
    assert world.one("SELECT count(*) FROM feeds") == 0


def test_a_change_of_state_by_sql_takes_the_claim_away(world):
    worker, (unit,) = claim_invoices(world, "1")
    world.sql("UPDATE invoice SET status = 'QUEUED'")
    now = world.unit(Ref("invoice", "acme/1"))
    assert (now.claimed_by, now.changed_by, now.version) == (None, "sql", unit.version + 1)
    other = world.worker()
    assert ids(other.claim({"invoice": 1})) == ["acme/1"]
    assert world.commit(worker, Outcome(unit, replace(unit, **FAILED), "late")) == [Lost()]


def test_a_lost_child_is_not_tallied(world):
    world.born(batch_run(items_expected=1, due_at=None), batch_item(1))
    worker = world.worker()
    (item,) = worker.claim({"batch_item": 1})
    world.sql("UPDATE batch_item SET status = 'open'")
    assert world.commit(worker, Outcome(item, replace(item, status=ItemState.DONE), "done")) == [Lost()]
    run = world.unit(Ref("batch_run", "run"))
    assert (run.items_done, run.due_at) == (0, None)


def test_losers_do_not_hold_winners_back(world):
    worker, units = claim_invoices(world, "1", "2", "3")
    world.sql("UPDATE invoice SET status = 'FAILED' WHERE number = '2'")
    results = world.commit(worker, *(everything(u, u.number) for u in units))
    assert results == [Won(), Lost(), Won()]
    assert labels(world) == ["1", "3"]
    assert [e[1] for e in events(world)] == ["1", "3"]
    assert world.rows("SELECT feed_id FROM feeds ORDER BY 1") == [("1",), ("3",)]


def test_a_second_commit_from_the_same_claim_is_lost(world):
    worker, (unit,) = claim_invoices(world, "1")
    outcome = Outcome(unit, replace(unit, status=InvoiceState.QUEUED), "again")
    assert world.commit(worker, outcome) == [Won()]
    assert world.commit(worker, outcome) == [Lost()]


@pytest.mark.parametrize("keep", [False, True])
def test_of_two_outcomes_of_one_claim_in_a_batch_the_first_wins(world, keep):
    worker, (one, two) = claim_invoices(world, "1", "2")
    kept = replace(everything(one, "a"), after=replace(one, amount_minor=1), keep_claim=keep)
    late = Outcome(one, replace(one, amount_minor=2, remote_id="late"), "second", events=[Event("late", "sent", {})])
    first, second, third = world.commit(worker, kept, late, everything(two, "b"))
    assert (isinstance(first, Won), second, third) == (True, Lost(), Won())
    now = world.unit(Ref("invoice", "acme/1"))
    assert (now.amount_minor, now.remote_id, now.version) == (1, None, one.version + 1)
    assert (labels(world), [e[1] for e in events(world)]) == (["a", "b"], ["a", "b"])


def test_of_two_claims_in_a_batch_the_later_wins(world):
    """The first claim was taken away and claimed anew by the same worker before either outcome was written."""
    worker, (old,) = claim_invoices(world, "1")
    worker.release([(old, False)])
    (new,) = worker.claim({"invoice": 1})
    outcomes = [Outcome(u, replace(u, **SENT, amount_minor=n), "sent") for n, u in enumerate((old, new), start=1)]
    assert world.commit(worker, *outcomes) == [Lost(), Won()]
    done = world.unit(Ref("invoice", "acme/1"))
    assert (done.claimed_by, done.amount_minor) == (None, 2)


def test_one_refused_outcome_among_many_stands_alone(world):
    numbers = [f"{i:03}" for i in range(101)]
    worker, units = claim_invoices(world, *numbers)
    outcomes = [everything(u, u.number) for u in units]
    bad = replace(units[37], status=InvoiceState.SENT, remote_id=None)
    outcomes[37] = replace(outcomes[37], after=bad)
    results = world.commit(worker, *outcomes)
    assert [i for i, r in enumerate(results) if not isinstance(r, Won)] == [37]
    refused = results[37]
    assert isinstance(refused, Refused)
    assert "sent_has_id" in str(refused.error)
    assert world.unit(Ref("invoice", "acme/037")) == units[37], "nothing of a refused outcome is written"
    assert labels(world) == [n for n in numbers if n != "037"]
    assert world.one("SELECT count(*) FROM invoice WHERE status = 'SENT'") == 100


def test_several_refused_outcomes_are_all_found(world):
    worker, units = claim_invoices(world, *"abcdefgh")
    bad = {0, 3, 4, 7}
    outcomes = [
        Outcome(u, replace(u, status=InvoiceState.SENT, remote_id=None if i in bad else "r"), "x")
        for i, u in enumerate(units)
    ]
    results = world.commit(worker, *outcomes)
    assert {i for i, r in enumerate(results) if isinstance(r, Refused)} == bad
    assert {i for i, r in enumerate(results) if r == Won()} == set(range(8)) - bad


def test_a_refused_unit_can_still_be_committed_otherwise(world):
    worker, (unit,) = claim_invoices(world, "1")
    (refused,) = world.commit(worker, Outcome(unit, replace(unit, status=InvoiceState.SENT), "no id"))
    assert isinstance(refused, Refused)
    assert world.commit(worker, Outcome(unit, replace(unit, **FAILED), "gave up")) == [Won()]


def test_an_empty_batch_is_nothing(world):
    assert world.worker().commit([]) == []


def test_keeping_the_claim_returns_the_unit_as_it_now_is(world):
    world.born(batch_run(items_expected=2), batch_item(1, due_at=None))
    worker = world.worker()
    (run,) = worker.claim({"batch_run": 1})
    world.sql("UPDATE batch_run SET items_done = 1, bytes_read = 77, tallies = tallies + 1")  # as children do
    world.ledger.nudge([Ref("batch_run", "run")])
    intent = Outcome(run, replace(run, status=RunState.RUNNING), "intent", keep_claim=True)
    (won,) = world.commit(worker, intent)
    assert isinstance(won, Won)
    assert won.unit == world.unit(Ref("batch_run", "run"))
    assert won.unit == replace(
        run, status=RunState.RUNNING, items_done=1, bytes_read=77, version=run.version + 1, wakes=run.wakes + 1,
        changed_by=f"worker:{worker.identity.id}", change_reason="intent", changed_at=won.unit.changed_at,
    )  # fmt: skip
    assert won.unit.claimed_by == worker.identity.id
    assert world.worker().claim({"batch_run": 1}) == []
    done = Outcome(won.unit, replace(won.unit, status=RunState.FAILED, due_at=None), "some failed")
    assert world.commit(worker, done) == [Won()]


def test_kept_and_released_claims_in_one_batch(world):
    worker, (one, two, three) = claim_invoices(world, "1", "2", "3")
    results = world.commit(
        worker,
        Outcome(one, replace(one, amount_minor=7), "intent", keep_claim=True),
        Outcome(two, replace(two, **FAILED), "gave up"),
        Outcome(three, replace(three, amount_minor=9), "intent", keep_claim=True),
    )
    assert [getattr(getattr(r, "unit", None), "amount_minor", None) for r in results] == [7, None, 9]
    assert world.one("SELECT count(*) FROM invoice WHERE claimed_by IS NOT NULL") == 2


def test_an_end_clears_the_schedule(world):
    worker, (unit,) = claim_invoices(world, "1")
    world.commit(worker, Outcome(unit, replace(unit, status=InvoiceState.SENT, remote_id="r"), "accepted"))
    assert unit.due_at is not None
    assert world.unit(Ref("invoice", "acme/1")).due_at is None


def test_success_forgets_crashes_and_a_crashed_step_counts_one(world):
    world.born(invoice("1"), invoice("2"))
    world.sql("UPDATE invoice SET crashes = 2")
    worker = world.worker()
    one, two = worker.claim({"invoice": 2})
    world.commit(
        worker,
        Outcome(one, replace(one, status=InvoiceState.QUEUED), "fine"),
        Outcome(two, replace(two, crashes=two.crashes + 1), "its step crashed"),
    )
    assert world.rows("SELECT crashes FROM invoice ORDER BY number") == [(0,), (3,)]


def test_only_changed_columns_are_written(world):
    """The parent is held while its child counts on it: its commit must not put the old counter back."""
    world.born(batch_run(items_expected=2), batch_item(1), batch_item(2, due_at=None))
    worker = world.worker()
    run, item = worker.claim({"batch_run": 1, "batch_item": 1})
    assert isinstance(item, BatchItem)
    done = Outcome(item, replace(item, status=ItemState.DONE), "done", parent_counts={"bytes_read": 50})
    assert world.commit(worker, done) == [Won()]
    moved = Outcome(run, replace(run, status=RunState.RUNNING, due_at=None), "started")
    assert world.commit(worker, moved) == [Won()]
    now = world.unit(Ref("batch_run", "run"))
    assert (now.status, now.items_done, now.bytes_read) == (RunState.RUNNING, 1, 50)


@pytest.mark.parametrize(
    "change",
    [
        {"unit_id": "acme/2"},
        {"number": "2"},
        {"version": 5},
        {"wakes": 9},
        {"claimed_by": None},
        {"changed_by": "me"},
        {"change_reason": "mine"},
        {"changed_at": after(5)},
    ],
    ids=lambda c: next(iter(c)),
)
def test_a_step_cannot_change_what_the_kernel_writes(world, change):
    worker, (unit,) = claim_invoices(world, "1")
    (name,) = change
    with pytest.raises(BrokenFlow, match=rf"invoice:acme/1: a step cannot change {name}"):
        world.commit(worker, Outcome(unit, replace(unit, **change), "sealed"))


def test_a_step_cannot_change_what_the_database_computes(world):
    world.born(feed("news"))
    worker = world.worker()
    (unit,) = worker.claim({"feed": 1})
    with pytest.raises(BrokenFlow, match="cannot change refreshing"):
        world.commit(worker, Outcome(unit, replace(unit, refreshing=False), "sealed"))


def test_edges_and_actors_are_checked_before_the_database_is_asked(world):
    worker, (unit,) = claim_invoices(world, "1")
    with pytest.raises(IllegalMove, match=r"only worker may move a unit .*, not operator"):
        world.commit(worker, Outcome(unit, replace(unit, **SENT), "x", actor=Actor.OPERATOR))
    queued = replace(unit, status=InvoiceState.QUEUED)
    with pytest.raises(IllegalMove, match="not an edge"):
        world.commit(worker, Outcome(queued, replace(unit, **SENT), "x"))
    with pytest.raises(BrokenFlow, match="after is a Parcel"):
        world.commit(worker, Outcome(unit, parcel(), "x"))


def test_a_machine_of_another_program_is_refused(world):
    worker, (unit,) = claim_invoices(world, "1")
    stranger = world.another([INVOICE])
    with pytest.raises(UnknownMachine, match="Parcel belongs to no machine"):
        stranger.preparer.entry(Outcome(parcel(), parcel(), "x"), "w")
    entry = stranger.preparer.entry(Outcome(unit, replace(unit, **SENT), "x"), worker.identity.id)
    assert worker.commit([entry]) == [Won()]


def test_staying_is_legal_and_not_logged(world):
    worker, (unit,) = claim_invoices(world, "1")
    logged = world.history(Ref("invoice", "acme/1"))
    world.commit(worker, Outcome(unit, replace(unit, due_at=after(60)), "poll again"))
    now = world.unit(Ref("invoice", "acme/1"))
    assert (now.due_at, now.claimed_by, now.change_reason) == (after(60), None, "poll again")
    assert world.history(Ref("invoice", "acme/1")) == logged


def test_a_new_gate_is_opened_by_the_outcome_that_needs_it(world):
    worker, (unit,) = claim_invoices(world, "1")
    world.commit(worker, Outcome(unit, replace(unit, status=InvoiceState.QUEUED, gate_id="brand/new"), "elsewhere"))
    assert world.unit(Ref("invoice", "acme/1")).gate_id == "brand/new"
    assert world.one("SELECT count(*) FROM gate WHERE gate_id = 'brand/new'") == 1
    assert ids(worker.claim({"invoice": 1})) == ["acme/1"]


def test_a_gate_of_a_refused_outcome_can_still_be_used_later(world):
    worker, (unit,) = claim_invoices(world, "1")
    bad = replace(unit, status=InvoiceState.SENT, gate_id="fresh")
    (refused,) = world.commit(worker, Outcome(unit, bad, "refused"))
    assert isinstance(refused, Refused)
    assert world.commit(worker, Outcome(unit, replace(unit, gate_id="fresh"), "fine")) == [Won()]


def test_events_are_kept_once_per_key_and_tenant(world):
    worker, (one, two) = claim_invoices(world, "1", "2")
    event = Event("k", "sent", {"n": 1}, severity="warning")
    world.commit(
        worker,
        Outcome(one, replace(one, amount_minor=1), "x", events=[event, event], keep_claim=True),
        Outcome(
            two, replace(two, **FAILED), "y", events=[replace(event, payload={"n": 2}), replace(event, tenant="t")]
        ),
    )
    assert events(world) == [
        ("default", "k", "sent", "warning", "acme/1"),
        ("t", "k", "sent", "warning", "acme/2"),
    ]
    now = world.unit(Ref("invoice", "acme/1"))
    world.commit(worker, Outcome(now, replace(now, **FAILED), "z", events=[replace(event, kind="other")]))
    assert len(events(world)) == 2


def test_births_ride_on_the_outcome(world):
    worker, (unit,) = claim_invoices(world, "1")
    others = [Birth(feed("a", gate_id="g"), "wanted"), Birth(batch_run("r"), actor=Actor.SCHEDULER)]
    world.commit(worker, Outcome(unit, replace(unit, **FAILED), "x", others=others))
    who = worker.identity.id
    assert world.history(Ref("feed", "a")) == [(None, "missing", f"worker:{who}", "wanted")]
    assert world.history(Ref("batch_run", "r")) == [(None, "created", f"scheduler:{who}", "born")]
    assert ids(worker.claim({"feed": 9, "batch_run": 9})) == ["a", "r"]


def test_a_newborn_is_nobodys_whatever_it_was_copied_from(world):
    world.born(invoice("1"))
    world.sql("UPDATE invoice SET crashes = 2, wakes = 5, parked_reason = 'poison', parked_at = due_at")
    parked = world.unit(Ref("invoice", "acme/1"))
    worker, (claimed,) = claim_invoices(world, "2")
    copies = [replace(u, number=f"{u.number}-copy", status=InvoiceState.QUEUED) for u in (parked, claimed)]
    assert copies[1].claimed_by == worker.identity.id
    world.ledger.birth(copies[:1], actor=Actor.API, who="test")
    world.commit(worker, Outcome(claimed, replace(claimed, **FAILED), "x", others=[Birth(copies[1])]))
    for copy in copies:
        born = world.unit(Ref("invoice", f"acme/{copy.number}"))
        assert (born.claimed_by, born.wakes, born.crashes) == (None, 0, 0)
        assert (born.parked_at, born.parked_reason) == (None, None)
        assert born.version not in (parked.version, claimed.version)
    assert ids(worker.claim({"invoice": 9})) == ["acme/1-copy", "acme/2-copy"]


def test_a_birth_of_what_is_there_refuses_or_leaves_it(world):
    (there,) = world.born(feed("a", url="old"))
    worker, (one, two) = claim_invoices(world, "1", "2")
    refused, won = world.commit(
        worker,
        Outcome(one, replace(one, **FAILED), "x", others=[Birth(feed("a", url="new"))]),
        Outcome(
            two, replace(two, **FAILED), "x", others=[Birth(feed("a", url="new"), if_absent=True), Birth(feed("b"))]
        ),
    )
    assert isinstance(refused, Refused)
    assert won == Won()
    assert world.unit(there).url == "old"
    assert world.unit(Ref("invoice", "acme/1")) == one
    assert world.unit(Ref("feed", "b")).status == "missing"


def test_a_birth_outside_the_birth_states_is_illegal(world):
    worker, (unit,) = claim_invoices(world, "1")
    born = Birth(invoice("9", status=InvoiceState.SENT, remote_id="r"))
    with pytest.raises(IllegalMove, match="invoice cannot be born as SENT"):
        world.commit(worker, Outcome(unit, replace(unit, **FAILED), "x", others=[born]))


def test_a_step_gives_birth_as_the_worker_unless_it_says_who(world):
    """Whoever extracts does not declare its own data safe."""
    worker, (unit,) = claim_invoices(world, "1")
    safe = partition(status=PartitionState.SUCCESS, current_run_id="r1", record_count=1)
    for born in (Birth(safe), Birth(replace(safe, status=PartitionState.PENDING)), Birth(safe, actor=Actor.OPERATOR)):
        with pytest.raises(
            IllegalMove, match=f"only .*validator may create a unit as {born.unit.status}, not {born.actor}"
        ):
            world.commit(worker, Outcome(unit, replace(unit, **FAILED), "x", others=[born]))
    world.commit(worker, Outcome(unit, replace(unit, **FAILED), "x", others=[Birth(safe, actor=Actor.VALIDATOR)]))
    assert world.history(Ref("partition", "sales/2026-11-15"))[0][2].startswith("validator:")


def test_moves_of_guarded_units_ride_on_the_outcome(world):
    (part,) = world.born(partition("sales"))
    worker, (unit,) = claim_invoices(world, "1")
    before = world.unit(part)
    success = replace(before, status=PartitionState.SUCCESS, current_run_id="run-7", record_count=3)
    judged = Move(before, success, "validated", Actor.VALIDATOR)
    assert world.commit(worker, Outcome(unit, replace(unit, **SENT), "x", others=[judged])) == [Won()]
    now = world.unit(part)
    assert (now.status, now.current_run_id, now.record_count) == (PartitionState.SUCCESS, "run-7", 3)
    assert world.history(part)[-1] == ("pending", "success", f"validator:{worker.identity.id}", "validated")


def test_a_missed_move_fails_the_whole_outcome_and_no_other(world):
    part, other = world.born(partition("sales"), partition("costs"))
    worker, (one, two) = claim_invoices(world, "1", "2")
    stale, fresh = world.unit(part), world.unit(other)
    world.sql("UPDATE partitions SET status = 'failed' WHERE source = 'sales'")

    def judged(before):
        return Move(before, replace(before, status=PartitionState.SUCCESS), "validated", Actor.VALIDATOR)

    first, second = world.commit(
        worker,
        replace(everything(one, "1"), others=[Birth(feed("1")), judged(stale)]),
        replace(everything(two, "2"), others=[Birth(feed("2")), judged(fresh)]),
    )
    assert isinstance(first, Refused)
    assert isinstance(first.error, OthersMissed)
    assert "partition:sales/2026-11-15 changed since it was read" in str(first.error)
    assert second == Won()
    assert world.unit(Ref("invoice", "acme/1")) == one
    assert labels(world) == ["2"]
    assert [e[1] for e in events(world)] == ["2"]
    assert world.rows("SELECT feed_id FROM feeds") == [("2",)]


def test_two_outcomes_that_move_the_same_unit_cannot_both_win(world):
    (part,) = world.born(partition("sales"))
    worker, units = claim_invoices(world, "1", "2")
    before = world.unit(part)
    results = world.commit(
        worker,
        *(
            Outcome(
                u,
                replace(u, **FAILED),
                "x",
                others=[Move(before, replace(before, status=status), "judged", Actor.VALIDATOR)],
            )
            for u, status in zip(units, [PartitionState.SUCCESS, PartitionState.FAILED], strict=True)
        ),
    )
    assert results[0] == Won()
    assert isinstance(results[1], Refused)
    assert world.unit(part).status is PartitionState.SUCCESS


def test_the_edges_of_moves_are_checked(world):
    (part,) = world.born(partition("sales"))
    worker, (unit,) = claim_invoices(world, "1")
    before = world.unit(part)
    mine = Move(before, replace(before, status=PartitionState.SUCCESS), "x")
    with pytest.raises(IllegalMove, match=r"only validator may move a unit .*, not worker"):
        world.commit(worker, Outcome(unit, replace(unit, **FAILED), "x", others=[mine]))


def test_a_move_may_lead_behind_a_gate_that_is_new(world):
    (ref,) = world.born(feed("news"))
    worker, (unit,) = claim_invoices(world, "1")
    before = world.unit(ref)
    move = Move(before, replace(before, gate_id="new gate"), "elsewhere")
    assert world.commit(worker, Outcome(unit, replace(unit, **FAILED), "x", others=[move])) == [Won()]
    assert world.unit(ref).gate_id == "new gate"


def test_a_move_takes_the_unit_from_whoever_holds_it(world):
    world.born(feed("news"))
    worker, (unit,) = claim_invoices(world, "1")
    other = world.worker()
    (held,) = other.claim({"feed": 1})
    assert held.gate_id == "none"
    move = Move(held, replace(held, due_at=after(9)), "sooner")
    assert world.commit(worker, Outcome(unit, replace(unit, **FAILED), "x", others=[move])) == [Won()]
    assert world.unit(Ref("feed", "news")).claimed_by is None
    assert world.commit(other, Outcome(held, replace(held, due_at=None), "late")) == [Lost()]


def test_a_tally_without_a_parent_or_of_no_column_breaks_the_flow(world):
    world.born(batch_run(), batch_item(1))
    worker, (unit,) = claim_invoices(world, "1")
    with pytest.raises(BrokenFlow, match="invoice has no parent to count on"):
        world.commit(worker, Outcome(unit, replace(unit, **FAILED), "x", parent_counts={"items_done": 1}))
    (item,) = worker.claim({"batch_item": 1})
    for name in ("bytes_wrote", "status", "version"):
        with pytest.raises(BrokenFlow, match=rf"batch_item:run/1: .*{name}"):
            world.commit(worker, Outcome(item, replace(item, status=ItemState.DONE), "x", parent_counts={name: 1}))


def test_a_child_without_its_parent_is_refused(world):
    world.born(batch_item(1))
    worker = world.worker()
    (item,) = worker.claim({"batch_item": 1})
    (refused,) = world.commit(worker, Outcome(item, replace(item, status=ItemState.DONE), "x"))
    assert isinstance(refused, Refused)
    assert re.search("batch_run:run does not exist", str(refused.error))
    assert world.unit(Ref("batch_item", "run/1")) == item


def test_dates_in_keys_reach_the_right_unit(world):
    first, second = world.born(partition(day=date(2026, 2, 28)), partition(day=date(2026, 3, 1)))
    worker, (unit,) = claim_invoices(world, "1")
    before = world.unit(second)
    move = Move(before, replace(before, status=PartitionState.FAILED), "rejected", Actor.VALIDATOR)
    world.commit(worker, Outcome(unit, replace(unit, **FAILED), "x", others=[move]))
    assert [world.unit(r).status for r in (first, second)] == ["pending", "failed"]

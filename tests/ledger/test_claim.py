"""Claims: who gets which unit, in what order, and what gates, parking and schedules keep back."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from penstock.model.outcome import Outcome
from penstock.model.unit import Ref, replace
from tests.support.machines import FeedState, InvoiceState, feed, invoice
from tests.support.world import World, after, ids


def claimed(session, n: int, machine: str = "invoice") -> list[str]:
    return [u.number if machine == "invoice" else u.unit_id for u in session.claim({machine: n})]


def test_oldest_first_and_ties_by_id(world):
    world.time.advance(100)
    world.born(
        invoice("c", due_at=after(5)),
        invoice("b", due_at=after(5)),
        invoice("z", due_at=after(1)),
        invoice("a", due_at=after(9)),
    )
    worker = world.worker()
    assert claimed(worker, 2) == ["z", "b"]
    assert claimed(worker, 10) == ["c", "a"]


def test_never_more_than_asked(world):
    world.born(*(invoice(str(i), gate_id=f"g{i % 3}") for i in range(30)))
    worker = world.worker()
    assert len(worker.claim({"invoice": 7})) == 7
    assert worker.claim({"invoice": 0}) == []
    assert len(worker.claim({"invoice": 1})) == 1
    assert len(worker.claim({"invoice": 1000})) == 22
    assert worker.claim({"invoice": 1000}) == []


def test_several_machines_in_one_claim(world):
    world.born(invoice("1"), invoice("2"), feed("news"))
    units = world.worker().claim({"invoice": 1, "feed": 5})
    assert sorted(ids(units)) == ["acme/1", "news"]


def test_a_share_for_every_open_gate_however_long_one_queue_is(world):
    world.time.advance(100)
    world.born(*(invoice(f"long{i:03}", gate_id="long", due_at=after(0)) for i in range(50)))
    world.born(*(invoice(f"{gate}{i}", gate_id=gate, due_at=after(50)) for gate in ("x", "y") for i in range(5)))
    units = world.worker().claim({"invoice": 9})
    assert Counter(u.gate_id for u in units) == {"long": 3, "x": 3, "y": 3}
    assert [u.number for u in units if u.gate_id == "long"] == ["long000", "long001", "long002"]


def test_gates_take_turns(world):
    gates = ["a", "b", "c", "d", "e"]
    world.born(*(invoice(f"{gate}{i}", gate_id=gate) for gate in gates for i in range(6)))
    worker = world.worker()
    rounds = [[u.gate_id for u in worker.claim({"invoice": 2})] for _ in range(5)]
    assert [sorted(r) for r in rounds] == [["a", "b"], ["c", "d"], ["a", "e"], ["b", "c"], ["d", "e"]]


def test_a_closed_gate_is_skipped_until_it_opens(world):
    world.born(invoice("1", gate_id="shut"), invoice("2", gate_id="open"))
    world.close_gate("shut", 30)
    worker = world.worker()
    assert claimed(worker, 10) == ["2"]
    world.time.advance(29.999)
    assert claimed(worker, 10) == []
    world.time.advance(0.001)
    assert claimed(worker, 10) == ["1"]


def test_closed_gates_take_no_share_from_open_ones(world):
    world.born(*(invoice(f"{gate}{i}", gate_id=gate) for gate in ("a", "b", "c") for i in range(8)))
    world.close_gate("a", 30)
    world.close_gate("b", 30)
    assert Counter(u.gate_id for u in world.worker().claim({"invoice": 8})) == {"c": 8}


def test_a_gate_never_reopens_earlier_than_it_was_told(world):
    world.born(invoice("1", gate_id="shut"))
    worker = world.worker()
    worker.gates.close("shut", 60, "long")
    worker.gates.close("shut", 5, "short")
    world.time.advance(59)
    assert claimed(worker, 1) == []
    world.time.advance(1)
    assert claimed(worker, 1) == ["1"]


@pytest.mark.parametrize("seconds", [1e12, 1e300])
def test_an_absurd_closing_still_closes(world, seconds):
    world.born(invoice("1", gate_id="shut"))
    worker = world.worker()
    worker.gates.close("shut", seconds, "the provider said so")
    world.time.advance(86_400 * 365)
    assert claimed(worker, 1) == []


def test_what_is_not_due_stays(world):
    refs = world.born(invoice("later", due_at=after(10)), invoice("never", due_at=None))
    worker = world.worker()
    assert claimed(worker, 10) == []
    world.time.advance(10)
    assert claimed(worker, 10) == ["later"]
    assert world.unit(refs[1]).claimed_by is None


def test_parked_and_claimed_units_stay(world):
    world.born(invoice("parked"), invoice("held"))
    world.sql("UPDATE invoice SET parked_at = changed_at, parked_reason = 'test' WHERE number = 'parked'")
    first, second = world.worker(), world.worker()
    assert claimed(first, 10) == ["held"]
    assert claimed(second, 10) == []


def test_a_claim_marks_the_unit_and_leaves_its_schedule(world):
    (ref,) = world.born(invoice("1", due_at=after(3)))
    before = world.unit(ref)
    world.time.advance(10)
    worker = world.worker()
    (unit,) = worker.claim({"invoice": 1})
    assert unit == world.unit(ref)
    assert unit.claimed_by == worker.identity.id
    assert unit.version == before.version + 1
    assert unit.due_at == before.due_at == after(3)
    assert unit.wakes == before.wakes


def test_a_claim_pulls_the_on_claim_edge_in_the_workers_name(world):
    (ref,) = world.born(invoice("1"))
    world.time.advance(7)
    worker = world.worker()
    (unit,) = worker.claim({"invoice": 1})
    assert unit.status is InvoiceState.SENDING
    assert unit.changed_at == after(7)
    who = f"worker:{worker.identity.id}"
    assert unit.changed_by == who
    assert world.history(ref)[-1] == ("QUEUED", "SENDING", who, "claim")


def test_a_claim_from_another_state_changes_no_state_and_logs_nothing(world):
    (invoice_ref, feed_ref) = world.born(invoice("1"), feed("news"))
    first = world.worker()
    (unit,) = first.claim({"invoice": 1})
    first.release([(unit, False)])
    logged = world.history(invoice_ref)
    again, news = world.worker().claim({"invoice": 1, "feed": 1})
    assert again.status is InvoiceState.SENDING
    assert again.changed_by == unit.changed_by
    assert world.history(invoice_ref) == logged
    assert news.version == world.unit(feed_ref).version
    assert len(world.history(feed_ref)) == 1


def test_a_renamed_schedule_and_a_generated_column(world):
    (ref,) = world.born(feed("news"))
    assert world.unit(ref).refreshing is False
    worker = world.worker()
    (unit,) = worker.claim({"feed": 1})
    assert unit.refreshing is True
    world.commit(worker, Outcome(unit, replace(unit, due_at=after(60)), "not yet"))
    assert world.unit(ref).refreshing is False
    assert world.unit(ref).due_at == after(60)


def test_two_sessions_never_claim_the_same_unit(real_world: World):
    """Four workers, each with connections of its own, race for the same units until none is left."""
    world, units, rounds = real_world, 120, 5
    workers = [world.worker(ledger=world.another()) for _ in range(4)]
    for turn in range(rounds):
        world.born(*(invoice(f"{turn}-{i}", gate_id=f"gate{i % 3}") for i in range(units)))
        start = threading.Barrier(len(workers))

        def race(worker, start=start):
            start.wait()
            got: list[str] = []
            # One empty claim is no proof: rows that another worker has locked are skipped.
            empty = 0
            while empty < 3:
                found = ids(worker.claim({"invoice": 7}))
                empty = 0 if found else empty + 1
                got += found
            return got

        with ThreadPoolExecutor(len(workers)) as pool:
            taken = [unit_id for got in pool.map(race, workers) for unit_id in got]
        assert Counter(taken) == Counter(f"acme/{turn}-{i}" for i in range(units))
    owners = world.rows("SELECT claimed_by, count(*) FROM invoice GROUP BY claimed_by")
    assert None not in [owner for owner, _ in owners]
    assert sum(count for _, count in owners) == units * rounds


def test_an_unregistered_or_retired_worker_claims_nothing(world):
    world.born(invoice("1"))
    stranger = world.ledger.incarnation()
    assert stranger.claim({"invoice": 1}) == []
    worker = world.worker()
    worker.retire()
    assert worker.claim({"invoice": 1}) == []


def test_retiring_frees_everything(world):
    refs = world.born(invoice("1"), feed("news"))
    worker = world.worker()
    held = worker.claim({"invoice": 1, "feed": 1})
    worker.retire()
    for ref, unit in zip(refs, held, strict=True):
        freed = world.unit(ref)
        assert freed.claimed_by is None
        assert freed.version == unit.version + 1
        assert freed.doubts == 1, "nobody released it: its step may have begun"
    assert worker.renew() is None
    assert world.one("SELECT count(*) FROM worker WHERE stopped_at IS NOT NULL AND reaped_at IS NOT NULL") == 1
    assert ids(world.worker().claim({"invoice": 1})) == ["acme/1"]


def test_releasing_gives_units_back_and_counts_what_had_begun(world):
    fresh, begun = world.born(invoice("1"), invoice("2"))
    worker = world.worker()
    one, two = worker.claim({"invoice": 2})
    worker.release([(one, False), (two, True)])
    assert [world.unit(r).claimed_by for r in (fresh, begun)] == [None, None]
    assert [world.unit(r).doubts for r in (fresh, begun)] == [0, 1]
    assert world.unit(fresh).version == one.version + 1
    assert world.unit(fresh).due_at == one.due_at
    assert claimed(world.worker(), 10) == ["1", "2"]


def test_releasing_reaches_a_claim_whose_intent_landed_unheard(world):
    (ref,) = world.born(feed("news"))
    worker = world.worker()
    (unit,) = worker.claim({"feed": 1})
    intent = Outcome(unit, replace(unit, status=FeedState.FETCHING), "intent", keep_claim=True)
    world.commit(worker, intent)
    worker.release([(unit, True)])
    found = world.unit(ref)
    assert (found.claimed_by, found.doubts, found.status) == (None, 1, FeedState.FETCHING)


def test_releasing_what_is_no_longer_ours_changes_nothing(world):
    (ref,) = world.born(invoice("1"))
    first, second = world.worker(), world.worker()
    (stale,) = first.claim({"invoice": 1})
    first.release([(stale, False)])
    (held,) = second.claim({"invoice": 1})
    first.release([(stale, True)])
    first.release([(held, True)])
    assert world.unit(ref) == held


def test_releasing_nothing_is_nothing(world):
    world.worker().release([])
    assert world.one("SELECT count(*) FROM worker") == 1


def test_recover_finds_a_claim_whose_reply_was_lost(world):
    world.born(invoice("1"), invoice("2"), feed("news"))
    worker, other = world.worker(), world.worker()
    (heard,) = worker.claim({"invoice": 1})
    worker.claim({"feed": 1})  # nobody hears of this one
    other.claim({"invoice": 1})
    (found,) = worker.recover({("invoice", heard.unit_id)})
    assert found == world.unit(Ref("feed", "news"))
    assert found.crashes == 0
    assert worker.recover({("invoice", heard.unit_id), ("feed", "news")}) == []


def test_a_recovered_unit_can_be_committed(world):
    (ref,) = world.born(invoice("1"))
    worker = world.worker()
    worker.claim({"invoice": 1})
    (unit,) = worker.recover(set())
    world.commit(worker, Outcome(unit, replace(unit, status=InvoiceState.FAILED, due_at=None), "no"))
    assert world.unit(ref).status is InvoiceState.FAILED


def test_idle_names_the_earliest_moments(world):
    worker = world.worker()
    idle = worker.idle()
    assert (idle.now, idle.due, idle.lease, idle.gate) == (after(0), None, None, None)
    assert idle.seconds() is None
    world.born(invoice("1", due_at=after(20)), feed("news", due_at=after(15)), invoice("2", due_at=None))
    assert worker.idle().due == 15
    world.time.advance(18)
    assert worker.idle().due == -3
    assert worker.idle().seconds() == 0


def test_idle_looks_behind_open_gates_only(world):
    worker = world.worker()
    world.born(invoice("1", due_at=after(5), gate_id="shut"), invoice("2", due_at=after(50)))
    world.born(invoice("3", due_at=after(2), gate_id="open"))
    worker.gates.close("shut", 10, "test")
    worker.gates.close("open", 1, "test")
    assert (worker.idle().due, worker.idle().gate) == (50, 1)
    world.time.advance(1)
    assert (worker.idle().due, worker.idle().gate) == (1, 9)
    world.time.advance(9)
    assert (worker.idle().due, worker.idle().gate) == (-8, None)


def test_idle_does_not_count_what_nobody_may_claim(world):
    world.born(invoice("held", due_at=after(0)), invoice("parked", due_at=after(0)), invoice("free", due_at=after(9)))
    worker = world.worker()
    worker.claim({"invoice": 1})
    world.sql("UPDATE invoice SET parked_at = changed_at, parked_reason = 'test' WHERE number = 'parked'")
    assert worker.idle().due == 9


def test_idle_watches_the_leases_of_others(world):
    worker = world.worker()
    assert worker.idle().lease is None
    world.time.advance(4)
    other = world.worker()
    world.time.advance(1)
    assert worker.idle().lease == 29
    assert other.idle().lease == 25
    world.time.advance(30)
    worker.renew()
    worker.reap()
    assert worker.idle().lease is None


def test_idle_serves_only_its_own_machines(world):
    world.born(invoice("1", due_at=after(3)), feed("news", due_at=after(1)))
    assert world.worker("invoice").idle().due == 3
    assert world.worker("batch_run").idle().due is None

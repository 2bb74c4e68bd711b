"""`why`: every link of the chain, and the next moment at which anything can change."""

from __future__ import annotations

from datetime import timedelta

import pytest

from penstock.model.errors import UnknownUnit
from penstock.model.limits import GateLimits, Limit
from penstock.model.machine import Actor
from penstock.model.outcome import Look, Wait
from penstock.model.unit import Ref
from penstock.operations.why import explain
from tests.support.machines import DUE, batch_item, batch_run, invoice, partition
from tests.support.probe import Probe, raising, sent, work
from tests.support.world import after


def why(world, ref, **flows):
    return explain(world.ledger, flows.get(ref.machine, Probe()), ref)


def holding(found):
    return [link.topic for link in found.links if link.holds]


def blocking(found):
    return [link.topic for link in found.links if link.blocks]


def says(found, topic):
    return next(link.says for link in found.links if link.topic == topic)


def test_nothing_holds_a_due_unit_that_a_worker_can_take(world):
    world.worker("invoice")
    (ref,) = world.born(invoice())
    found = why(world, ref)
    assert holding(found) == []
    assert (found.unit, found.next_at) == ("invoice:acme/1", DUE)
    assert says(found, "decision") == "a claim makes it SENDING (claim)"
    assert found.links[-1].says.startswith("then send")


def test_a_unit_that_nobody_serves_waits_for_somebody(world):
    (ref,) = world.born(invoice())
    found = why(world, ref)
    assert (holding(found), found.next_at) == (["claim"], None)
    assert says(found, "claim") == "no running worker serves invoice"
    assert (found.verdict, blocking(found)) == ("blocked: no running worker serves invoice", ["claim"])


def test_a_schedule_to_come_is_the_next_moment(world):
    world.worker("invoice")
    (ref,) = world.born(invoice(due_at=after(90)))
    found = why(world, ref)
    assert (holding(found), found.next_at, found.verdict) == (["due"], after(90), "waits: due")
    assert blocking(found) == []


def test_the_holder_of_a_claim_is_named_with_its_lease(world):
    (ref,) = world.born(invoice())
    worker = world.worker("invoice")
    worker.claim({"invoice": 1})
    found = why(world, ref)
    assert found.verdict == "a worker is working on it"
    assert says(found, "claim").startswith(f"{worker.identity.id} (pid {worker.identity.pid} on ")
    assert "lease has 30 s" in says(found, "claim")


def test_a_closed_gate_outlasts_the_schedule(world):
    world.worker("invoice")
    (ref,) = world.born(invoice(gate_id="shop/acme", due_at=after(10)))
    world.ledger.gates.close("shop/acme", 11 * 3600, "come back in 11 hours")
    found = why(world, ref)
    assert holding(found) == ["due", "gate"]
    assert found.next_at == after(11 * 3600)
    assert says(found, "gate") == "shop/acme is closed: come back in 11 hours"


def test_a_held_gate_waits_for_somebody_and_a_budget_is_told(world):
    world.worker("invoice")
    world.ledger.gates.providers = [GateLimits("shop", (Limit("requests", 2.0, 40),))]
    (ref,) = world.born(invoice(gate_id="shop/acme"))
    found = why(world, ref)
    assert says(found, "budget").startswith("requests: 0 of 40 left, 2 come back per second")
    world.ledger.gates.pause("shop", "operator:jo", "they migrate")
    found = why(world, ref)
    assert (found.verdict, found.next_at) == ("blocked: shop/acme is paused: they migrate", None)
    assert says(found, "gate") == "shop/acme is paused: they migrate"


def test_a_parked_unit_and_a_dead_letter_name_what_a_person_can_do(world):
    world.worker("invoice")
    (ref,) = world.born(invoice())
    work(world, Probe(raising(*[ValueError("a bug")] * 3)), seconds=60)
    assert blocking(why(world, ref))[0] == "park"
    (dead,) = world.born(invoice("2"))
    world.ledger.move(dead, "SENDING", actor=Actor.WORKER, who="w", reason="claim")
    world.ledger.move(dead, "FAILED", actor=Actor.WORKER, who="w", reason="gone", due_at=None)
    found = why(world, dead)
    assert "operators can retry_by_hand it (→ QUEUED)" in says(found, "state")
    assert (found.verdict, blocking(found), found.next_at) == ("is a dead letter: gone", [], None)


def test_what_has_ended_has_nothing_before_it(world):
    (ref,) = world.born(invoice())
    work(world, Probe(lambda unit, io: _sent(unit)), seconds=5)
    found = why(world, ref)
    assert (found.verdict, [link.topic for link in found.links]) == ("has ended", ["state"])
    assert blocking(found) == []


async def _sent(unit):
    return sent(unit)


def test_the_decision_is_that_of_the_flow(world):
    world.worker("invoice")
    (ref,) = world.born(invoice())
    waiting = Probe(decide=lambda unit, now, seen: Wait(now + timedelta(hours=2), "the window opens later"))
    found = why(world, ref, invoice=waiting)
    assert (holding(found), found.next_at) == (["decision"], after(7200))
    assert found.links[-1].says == "then wait: the window opens later"

    def broken(unit, now, seen):
        raise KeyError("settings")

    found = why(world, ref, invoice=Probe(decide=broken))
    assert found.links[-1].says == "decide fails: KeyError: 'settings'"
    assert blocking(found) == ["decision"]
    nobody = "this program has no flow for invoice"
    assert explain(world.ledger, nobody, ref).links[-1].says == nobody


def test_parents_and_children_know_each_other(world):
    world.worker("batch_run", "batch_item")
    (run,) = world.born(batch_run("r", items_expected=3, due_at=None))
    (item, *_) = world.born(*(batch_item(n, run_id="r") for n in (1, 2, 3)))
    found = explain(world.ledger, "this program has no flow for it", run)
    assert says(found, "children") == "0 of 3 batch_item units have ended; the last one wakes it"
    assert says(explain(world.ledger, "this program has no flow for it", item), "parent") == "it counts for batch_run:r"


def test_a_guarded_unit_is_moved_by_no_worker(world):
    (ref,) = world.born(partition())
    found = explain(world.ledger, "this program has no flow for it", ref)
    assert [link.topic for link in found.links] == ["state"]
    assert "workers do not move it" in says(found, "state")
    assert blocking(found) == []


def test_an_unknown_unit_is_refused(world):
    with pytest.raises(UnknownUnit, match="no unit invoice:acme/404"):
        why(world, Ref("invoice", "acme/404"))


def test_who_has_the_places_of_a_full_gate_is_named(world):
    world.ledger.gates.providers = [GateLimits("shop/acme", max_in_flight=1)]
    worker = world.worker("invoice")
    world.born(invoice("1", gate_id="shop/acme"), invoice("2", gate_id="shop/acme"))
    (held,) = worker.claim({"invoice": 2})
    waiting = Ref("invoice", next(f"acme/{n}" for n in "12" if f"acme/{n}" != held.unit_id))
    found = why(world, waiting)
    me = worker.identity
    full = f"shop/acme is full, its one place is taken: {me.id} (pid {me.pid} on {me.host}) has invoice:{held.unit_id}"
    assert (holding(found), says(found, "place"), found.verdict) == (["place"], full, f"waits: {full}")
    assert why(world, Ref("invoice", held.unit_id)).verdict == "a worker is working on it"


def test_a_look_that_asks_the_ledger_alone_is_made(world):
    class Peeks(Probe):
        @staticmethod
        def decide(unit, now, settings, seen):
            return Look("what the ledger has") if seen is None else Wait(after(60), seen)

        def peek(self, unit, ledger):
            return f"{unit.unit_id} waits for {len(ledger.machines)} machines"

    world.worker("invoice")
    (ref,) = world.born(invoice())
    found = why(world, ref, invoice=Peeks())
    assert found.verdict == f"waits: acme/1 waits for {len(world.ledger.machines)} machines"
    assert found.next_at == after(60)

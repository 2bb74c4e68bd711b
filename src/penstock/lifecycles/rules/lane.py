"""The machine `rule_lane`: one run per account applies at a time, and the lane says which."""

from __future__ import annotations

from uuid import UUID

from penstock.model.machine import Actor, Edge, Machine
from penstock.model.state import State, rest, work
from penstock.model.unit import GuardedUnit

_WORKER = frozenset({Actor.WORKER})


class L(State):
    """The states of a lane."""

    FREE = rest("FREE", "no run of the account is applying")
    TAKEN = work("TAKEN", "a run of the account is applying")


class Lane(GuardedUnit):
    """The lane of one account. A run takes it in the transaction in which it starts, and leaves it when it ends."""

    key = ("account",)

    status: L = L.FREE
    account: str
    run_id: UUID | None = None


rule_lane = Machine(
    "rule_lane",
    Lane,
    births={L.FREE: _WORKER, L.TAKEN: _WORKER},
    edges=[Edge(L.FREE, L.TAKEN, "taken", _WORKER), Edge(L.TAKEN, L.FREE, "left", _WORKER)],
    checks={"taken_by_a_run": "(status = 'TAKEN') = (run_id IS NOT NULL)"},
    tracked=("run_id",),
)

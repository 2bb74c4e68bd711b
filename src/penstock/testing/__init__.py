"""What tests of a lifecycle need: virtual time, throw-away ledgers, a worker that runs until idle, and faults.

    with temporary_ledger(lifecycle) as ledger:
        ledger.birth([Parcel(number="1", due_at=ledger.clock.now())], actor=Actor.API, who="test")
        work_until_idle(ledger, [Parcels(settings, Http(URL, ledger.clock, transport=InProcess(Fake())))])
        assert ledger.get(Ref("parcel", "1")).status is S.SENT

A ledger is real: SQLite in a temporary folder, or a database of its own on a PostgreSQL server. Time is virtual unless
a test gives another clock, so that an hour of retries takes no time.
"""

from __future__ import annotations

from penstock.connectors.http.in_process import InProcess
from penstock.model.clock import Rng, VirtualClock
from penstock.model.simulation import SimulatedLoop, SimulationStalled, simulate
from penstock.testing.faults import KILL, Fault, Faulty, inject
from penstock.testing.hands import HandRefused, check_hands
from penstock.testing.ledgers import temporary_ledger
from penstock.testing.work import NeverIdle, run_until_idle, work_until_idle

__all__ = [
    "KILL",
    "Fault",
    "Faulty",
    "HandRefused",
    "InProcess",
    "NeverIdle",
    "Rng",
    "SimulatedLoop",
    "SimulationStalled",
    "VirtualClock",
    "check_hands",
    "inject",
    "run_until_idle",
    "simulate",
    "temporary_ledger",
    "work_until_idle",
]

"""Four worker processes on one provider over loopback HTTP: together they keep its limits, and use them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from penstock.app.app import App
from penstock.ledger.gates.budget import Pass
from penstock.ledger.ledger import Ledger
from penstock.model.machine import Actor
from tests.support.fleet import Member, until
from tests.support.gate_app import ADDRESS, LIFECYCLE, PROVIDERS, SETTINGS, Call
from tests.support.limited_provider import LimitedProvider, limited_provider
from tests.support.nightly import by_night

GATE = "shop/acme"
WORKERS = 4
RATE = 40.0
QUICK = {"lease_ms": 2_000, "renew_seconds": 0.5, "watch_seconds": 0.2, "idle_seconds": 0.2}


class GateFleet:
    """Workers of `gate_app`. Leaving it ends every process it started."""

    def __init__(self, url: str, folder: Path, provider: LimitedProvider) -> None:
        self.url = url
        self.provider = provider
        self.folder = folder
        self.members: list[Member] = []
        app = App(LIFECYCLE)
        self.ledger = Ledger.open(url, app.machines, create=True, data_tables=app.data.tables)
        self.gates = self.ledger.gates

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            if member.alive:
                member.kill()
        self.ledger.close()

    def start(
        self, count: int = WORKERS, *, limits: Any = (), places: int | None = None, **settings: Any
    ) -> list[Member]:
        environment = os.environ | {
            ADDRESS: self.provider.address,
            PROVIDERS: json.dumps({"shop": [limits, places]} if limits or places else {}),
            SETTINGS: json.dumps(QUICK | settings),
        }
        command = [sys.executable, "-m", "tests.support.gate_app", self.url]
        begun = len(self.members)
        for n in range(begun, begun + count):
            self.members.append(Member(command, environment, self.folder / f"worker-{n}.log"))
        fresh = self.members[begun:]
        until(lambda: all(m.said("worker.started") for m in fresh), "every worker is at work")
        return fresh

    def born(self, count: int, gate: str = GATE, prefix: str = "n") -> float:
        """Give birth to so many calls; the moment just before."""
        before, now = time.monotonic(), self.ledger.clock.now()
        units = [Call(name=f"{prefix}{n:05}", due_at=now, gate_id=gate) for n in range(count)]
        self.ledger.birth(units, actor=Actor.API, who="test")
        return before

    def rows(self, sql: str, **given: Any) -> list[tuple[Any, ...]]:
        return self.ledger.read(lambda c: [tuple(r) for r in c.rows(sql, **given)])

    def states(self, gate: str = GATE) -> dict[str, int]:
        sql = "SELECT status, count(*) FROM call_ WHERE gate_id = :gate GROUP BY status"
        return {str(s): int(n) for s, n in self.rows(sql, gate=gate)}

    def gate(self, columns: str, gate: str = GATE) -> tuple[Any, ...]:
        return self.rows(f"SELECT {columns} FROM gate WHERE gate_id = :gate", gate=gate)[0]

    def open_now(self, column: str) -> None:
        """As if the time had come: the moment in that column is over."""
        text = "'2020-01-01T00:00:00.000Z'"
        self.ledger.database.write(lambda c: c.run(f"UPDATE gate SET {column} = {text} WHERE {column} IS NOT NULL"))

    def finish(self, gate: str = GATE, patience: float = 90) -> None:
        until(lambda: self.living() and set(self.states(gate)) == {"done"}, f"all behind {gate} are done", patience)

    def living(self) -> bool:
        assert all(m.alive for m in self.members if m.process.returncode is None), "a worker died"
        return True

    def stop(self) -> None:
        for member in self.members:
            if member.alive:
                member.signal(signal.SIGTERM)
        for member in self.members:
            member.wait()


@pytest.fixture
def provider() -> Iterator[LimitedProvider]:
    with limited_provider() as made:
        yield made


@pytest.fixture
def fleet(ledger_url: str, tmp_path: Path, provider: LimitedProvider) -> Iterator[GateFleet]:
    with GateFleet(ledger_url, tmp_path, provider) as made:
        yield made


def test_a_hundred_refusals_in_flight_count_once(fleet, provider):
    provider.refusing = ""
    provider.answering.clear()
    fleet.start(concurrency=30)
    fleet.born(400)
    until(lambda: provider.inside >= 100, "a hundred calls are in flight", 25)
    provider.answering.set()
    until(lambda: provider.inside == 0 and fleet.gate("throttles") != (0,), "all are refused")
    until(lambda: fleet.rows("SELECT count(*) FROM call_ WHERE claimed_by IS NOT NULL") == [(0,)], "all went back")
    assert fleet.gate("throttles, epoch") == (1, 1)
    assert provider.refused >= 100
    before = len(provider.arrivals)
    assert fleet.rows("SELECT DISTINCT attempts, crashes FROM call_") == [(0, 0)], "nobody is charged"
    assert fleet.gates.resume(GATE, "operator:test") == 1
    provider.refusing = None
    fleet.finish()
    assert len(provider.arrivals) - before == 400
    assert fleet.gate("throttles, epoch") == (0, 1)


def _called_at_the_rate(ledger_url: str, tmp_path: Path) -> tuple[float, str]:
    """Make 400 calls behind a budget, none refused and none too early: the share of the rate that was reached."""
    calls = 400
    with limited_provider(RATE, RATE) as provider, GateFleet(ledger_url, tmp_path, provider) as fleet:
        fleet.gates.providers = ()
        fleet.start(limits=[["requests", RATE, RATE]])
        fleet.born(calls)
        # They are claimed at once, by a program that has not seen this gate yet, and given back.
        fleet.finish()
        assert provider.refused == 0
        assert Counter(provider.names()).most_common(1)[0][1] == 1, "each call was made once"
        # From the first on the bucket was never full, so that everything it gave could be used.
        first, last = provider.arrivals[0].at, provider.arrivals[-1].at
        reached = calls / (RATE * (last - first))
        shape = [provider.between(first + n, first + n + 1) for n in range(int(last - first) + 1)]
        # What came in one window of any length is at most what the provider's bucket bears, and our own reckoning
        # begins with nothing: beyond the places that were waiting to leave it is the rate alone.
        assert calls <= RATE * (last - first) + RATE * 1.25
        fleet.stop()
        return reached, f"{reached:.1%} of the rate, by second: {shape}"


@by_night("sqlite")
def test_the_rate_is_never_exceeded(ledger_url, tmp_path):
    reached, shape = _called_at_the_rate(ledger_url, tmp_path)
    assert reached > 0.5, shape  # how near to 1 is a matter of what else the machine does: asked by night


@pytest.mark.nightly
def test_the_rate_is_reached(ledger_url, tmp_path):
    reached, shape = _called_at_the_rate(ledger_url, tmp_path)
    assert reached >= 0.97, shape


@by_night("postgres")
def test_after_a_pause_the_gate_opens_gently(ledger_url, tmp_path):
    with limited_provider(RATE, RATE) as provider, GateFleet(ledger_url, tmp_path, provider) as fleet:
        fleet.start(limits=[["requests", RATE, RATE]])
        fleet.born(400)
        until(lambda: len(provider.arrivals) >= 20, "calls are made")
        fleet.gates.pause("shop", "operator:test", "to see")
        until(lambda: fleet.rows("SELECT count(*) FROM call_ WHERE claimed_by IS NOT NULL") == [(0,)], "all is quiet")
        quiet = len(provider.arrivals)
        time.sleep(2)
        assert len(provider.arrivals) == quiet, "nobody goes through"
        before = time.monotonic()
        fleet.gates.resume("shop", "operator:test")
        until(lambda: time.monotonic() > before + 1.5, "a second has passed")
        assert 1 <= provider.between(before, before + 1) <= RATE + 1
        assert provider.between(before, before + 0.5) <= RATE / 2 + 1
        assert provider.refused == 0


@by_night("postgres")
def test_a_closed_gate_delays_nobody_else(fleet, provider):
    fleet.gates.close("shut/a", 3_600, "an outage")
    fleet.gates.pause("held", "operator:test", "audit")
    fleet.born(1_000, "shut/a", "s")
    fleet.born(1_000, "held/b", "h")
    fleet.born(1_000, "shop/slow", "w")
    fleet.start(limits=[["requests", 1, 1]], concurrency=20)
    fleet.born(300, "free/c", "f")
    fleet.finish("free/c", patience=45)
    gates = Counter(a.gate for a in provider.arrivals)
    assert gates["free/c"] == 300
    assert gates["shut/a"] == gates["held/b"] == 0
    assert fleet.states("shut/a") == fleet.states("held/b") == {"open": 1_000}
    until(lambda: provider.names("shop/slow"), "the slow one has its turn meanwhile")


@by_night("sqlite")
def test_a_quota_of_eleven_hours_survives_every_restart(fleet, provider):
    provider.refusing = "40591"
    (first,) = fleet.start(1)
    fleet.born(5)
    until(lambda: fleet.gate("throttles") == (1,), "the provider names its time")
    provider.refusing = None
    calls = len(provider.arrivals)
    first.kill()
    fleet.start(WORKERS)
    # What was claimed by the killed one is free again, another gate's calls are made, and this one stays closed.
    until(lambda: fleet.rows("SELECT count(*) FROM call_ WHERE claimed_by IS NOT NULL") == [(0,)], "all is free")
    for turn in "abc":
        fleet.born(20, "free", turn)
        fleet.finish("free")
        time.sleep(0.3)
    assert provider.names(GATE) == [a.name for a in provider.arrivals[:calls]]
    (left,) = fleet.gate("closed_until")
    fresh = fleet.ledger.incarnation(served=["call_"])
    fresh.register()
    seconds = fresh.idle().gate
    assert left is not None
    assert 40_000 < seconds < 41_000
    fleet.open_now("closed_until")
    fleet.finish()


@by_night("sqlite")
def test_the_call_of_a_killed_prober_is_not_followed_by_another_at_once(fleet, provider):
    fleet.born(20)
    assert fleet.gates.throttle(Pass(GATE, 0), 0.0, "429", 0.0) is not None
    provider.answering.clear()
    fleet.start()
    until(lambda: provider.inside == 1, "one probe goes")
    ((pid,),) = fleet.rows("SELECT w.pid FROM call_ c JOIN worker w ON w.id = c.claimed_by")
    next(m for m in fleet.members if m.pid == pid).kill()
    until(lambda: fleet.rows("SELECT max(doubts) FROM call_") == [(1,)], "its unit is freed")
    time.sleep(1)
    assert len(provider.arrivals) == 1, "the provider is not asked again before the probe's lease is over"
    fleet.open_now("next_at")
    until(lambda: len(provider.arrivals) == 2, "then another goes")
    time.sleep(0.5)
    assert len(provider.arrivals) == 2, "alone"
    provider.answering.set()
    fleet.finish()
    assert fleet.gate("throttles, epoch") == (0, 1)


@by_night("postgres")
def test_one_place_is_one_place_also_when_its_holder_is_killed(fleet, provider):
    provider.seconds = 0.05
    fleet.start(places=1)
    fleet.born(40)
    until(lambda: len(provider.arrivals) >= 10, "calls are made")
    until(lambda: provider.inside == 1, "one is under way")
    holders = fleet.rows("SELECT w.pid FROM call_ c JOIN worker w ON w.id = c.claimed_by")
    victim = next((m for m in fleet.members if (m.pid,) in holders), fleet.members[0])
    victim.kill()
    fleet.finish()
    assert provider.most_at_once == {GATE: 1}


@pytest.mark.nightly
@pytest.mark.parametrize(("rate", "burst", "calls"), [(0.5, 1, 3), (2_000, 4_000, 3_000), (20, 1, 60)])
def test_slow_fast_and_burstless_gates_get_through(fleet, provider, rate, burst, calls):
    fleet.start(limits=[["requests", rate, burst]])
    start = fleet.born(calls)
    fleet.finish()
    seconds = provider.arrivals[-1].at - start
    assert len(provider.arrivals) == calls
    assert calls <= burst + rate * seconds + 1

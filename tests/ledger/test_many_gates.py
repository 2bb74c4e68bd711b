"""Many gates: who is served and in what turn, by a simple model, and that the work does not grow with their number."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.ledger import claim
from penstock.ledger.claim import Levels
from penstock.ledger.gates.budget import Pass
from penstock.ledger.incarnation import Incarnation
from penstock.ledger.store import gate_walk, gates_due
from penstock.ledger.store.database import Cursor
from penstock.model.limits import GateLimits
from penstock.model.machine import Actor
from tests.support.databases import temporary_database
from tests.support.gating import limited, per_second
from tests.support.machines import invoice
from tests.support.world import World, after

# Fairness and rotation.


@dataclass
class Model:
    """What is due behind which gate, and whose turn it is. All moments are seconds since the first."""

    now: float = 0.0
    units: dict[str, tuple[str, float]] = field(default_factory=dict)
    closed: dict[str, float] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    last: str = ""

    def is_open(self, gate: str) -> bool:
        return gate not in self.held and self.closed.get(gate, self.now) <= self.now

    def claim(self, n: int) -> set[str]:
        behind: dict[str, list[tuple[float, str]]] = {}
        for number, (gate, due) in self.units.items():
            if due <= self.now and self.is_open(gate):
                behind.setdefault(gate, []).append((due, number))
        turns = sorted(behind, key=lambda gate: (gate <= self.last, gate))
        share = math.ceil(n / max(1, len(turns)))
        picked = [number for gate in turns for _, number in sorted(behind[gate])[:share]][:n]
        served = {self.units[number][0] for number in picked}
        if served:
            self.last = max({gate for gate in served if gate <= self.last} or served)
        for number in picked:
            del self.units[number]
        return set(picked)

    def idle(self) -> tuple[float | None, float | None]:
        """When the next is due behind an open gate (zero: already), and when a gate opens that anybody waits behind."""
        due = [max(0.0, due - self.now) for gate, due in self.units.values() if self.is_open(gate)]
        shut = {gate for gate, _ in self.units.values() if gate not in self.held and not self.is_open(gate)}
        return min(due, default=None), min((self.closed[gate] - self.now for gate in shut), default=None)


WAYS = {
    "usual": {},
    "anywhere": {"_FEW": 1, "_MORE": 0},
    "by a walk": {"_FEW": 1, "_MORE": 0, "_LONGEST_WAITING": 0, "_FIRST": 0},
    "by a list": {"_FEW": 1, "_MORE": 0, "_LONGEST_WAITING": 0, "_FIRST": 0, "_STEPS": 0},
    "mixed": {"_FEW": 1, "_MORE": 2, "_LONGEST_WAITING": 12, "_FIRST": 3, "_STEPS": 3},
}


@pytest.fixture(params=WAYS)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How gates with due units are found: as usual, or soon by other ways."""
    for name, number in WAYS[request.param].items():
        (module,) = [each for each in (claim, gate_walk, gates_due) if hasattr(each, name)]
        monkeypatch.setattr(module, name, number)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("later", [False, True], ids=["some gates", "units for later behind many"])
@pytest.mark.parametrize("seed", range(2))
def test_claims_and_idle_questions_answer_as_the_model_does(world, seed, later):
    chance = random.Random(seed)
    names = ["", *(f"{chance.choice('abcxyz')}{number}" for number in range(300 if later else 60))]
    model, worker, born = Model(), world.worker("invoice"), 0
    if later:
        # A walk of so many steps that come to nothing is broken off.
        world.born(*(invoice(f"later {name}", gate_id=name, due_at=after(1_000)) for name in names))
        model.units |= {f"later {name}": (name, 1_000.0) for name in names}
    for _ in range(60):
        what = chance.choice(["born", "claim", "claim", "close", "hold", "wait"])
        gate = chance.choice(names)
        if what == "born":
            # From one to many gates; some units are for later.
            batch = []
            for name in chance.choices(names, k=chance.choice([1, 5, 60])):
                due = model.now + chance.choice([-5, -5, 0, 30])
                batch.append(invoice(f"{born:04}", gate_id=name, due_at=after(due)))
                model.units[f"{born:04}"] = (name, due)
                born += 1
            world.born(*batch)
        elif what == "claim":
            n = chance.choice([1, 3, 10, 100])
            assert {unit.number for unit in worker.claim({"invoice": n})} == model.claim(n)
        elif what == "close":
            seconds = chance.choice([1, 20])
            worker.gates.close(gate, seconds, "test")
            model.closed[gate] = max(model.closed.get(gate, 0), model.now + seconds)
        elif what == "hold":
            if model.held:
                released = model.held.pop()
                worker.gates.resume(released, "operator:anna")
                model.closed.pop(released, None)
            else:
                worker.gates.pause(gate, "operator:anna", "test")
                model.held.add(gate)
        else:
            passes = chance.choice([0.5, 1, 15])
            world.time.advance(passes)
            model.now += passes
        found = worker.idle()
        answer = (None if found.due is None else max(0.0, found.due), found.gate)
        assert answer == model.idle()


def test_every_gate_on_a_budget_has_its_turn(world):
    limited(world, per_second(100, 200))
    gates = [f"shop/{number:03}" for number in range(150)]
    world.born(*(invoice(f"{gate[5:]}-{turn}", gate_id=gate) for gate in gates for turn in range(2)))
    worker = world.worker("invoice")
    world.time.advance(10)
    rounds = [Counter(unit.gate_id for unit in worker.claim({"invoice": 50})) for _ in range(6)]
    assert [set(served.values()) for served in rounds] == [{1}] * 6
    assert sum(rounds, Counter()) == dict.fromkeys(gates, 2)
    assert worker.claim({"invoice": 50}) == []


def test_what_opens_is_claimed_at_once_and_noticed_soon(world):
    world.born(*(invoice(f"{number:03}", gate_id=f"g{number:03}") for number in range(30)))
    worker = world.worker("invoice")
    for number in range(30):
        worker.gates.close(f"g{number:03}", 10, "test")
    assert worker.claim({"invoice": 100}) == []
    world.time.advance(10)
    assert len(worker.claim({"invoice": 10})) == 10
    assert set(world.rows("SELECT stands, shut_until FROM gate")) == {("open", None)}
    assert len(worker.claim({"invoice": 100})) == 20
    worker.gates.close("g000", 10, "again")
    assert world.one("SELECT stands FROM gate WHERE gate_id = 'g000'") == "shut"


@pytest.mark.parametrize("gates", [1, 50])
def test_who_is_reaped_claims_nothing_behind_what_opens(world, gates):
    world.born(*(invoice(f"{number:03}", gate_id=f"g{number:03}") for number in range(gates)))
    worker = world.worker("invoice")
    for number in range(gates):
        worker.gates.close(f"g{number:03}", 10, "test")
    world.time.advance(9.9)
    assert worker.claim({"invoice": 1}) == []
    world.time.advance(0.15)
    world.sql("UPDATE worker SET reaped_at = started_at")
    assert worker.claim({"invoice": 1}) == []
    assert set(world.rows("SELECT stands FROM gate WHERE gate_id <> 'none'")) == {("shut",)}, "nobody has noticed it"
    world.sql("UPDATE worker SET reaped_at = NULL")
    assert len(worker.claim({"invoice": 1})) == 1


def test_a_gate_is_closed_until_a_moment_that_was_over_when_a_clock_was_wrong(world):
    world.born(invoice("1", gate_id="g"))
    worker = world.worker("invoice")
    until = "'2100-01-01T00:00:00.000Z'"
    world.sql(f"UPDATE gate SET closed_until = {until}, noticed = {until} WHERE gate_id = 'g'")
    assert world.one("SELECT stands FROM gate WHERE gate_id = 'g'") == "open"
    worker.gates.throttle(Pass("g", 0), 5, "slow down", 0.0)
    assert world.one("SELECT stands FROM gate WHERE gate_id = 'g'") == "shut_asked"
    assert worker.claim({"invoice": 1}) == []


def test_a_gate_on_a_budget_whose_pause_was_over_is_asked_though_the_clock_was_set_back(world):
    """It would be found by every claim and let nobody through: a worker would ask without end."""
    limited(world, per_second(1, 2))
    world.born(invoice("1", gate_id="shop/acme"), invoice("2", gate_id="shop/acme"))
    worker = world.worker("invoice")
    world.time.advance(10)
    until = "'2100-01-01T00:00:00.000Z'"
    world.sql(f"UPDATE gate SET next_at = {until}, noticed = {until} WHERE gate_id = 'shop/acme'")
    assert worker.idle().seconds() == 0
    assert len(worker.claim({"invoice": 1})) == 1
    assert worker.claim({"invoice": 1}) == []
    assert 0 < worker.idle().seconds() <= 1.001


@pytest.mark.parametrize("suspicion", [0, 2], ids=["units", "suspects"])
def test_units_behind_the_gate_without_a_name_are_claimed(world, suspicion):
    world.born(*(invoice(str(number), gate_id="") for number in range(3)))
    worker = world.worker("invoice")
    if suspicion:
        world.sql("UPDATE invoice SET suspicion = :n", n=suspicion)
        assert len(worker.take({"invoice": 2}, levels=Levels(1, 3)).units) == 2
    else:
        assert worker.idle().seconds() == 0
        assert len(worker.claim({"invoice": 2})) == 2
        world.time.advance(1)
        world.ledger.gates.close("", 10, "test")
        assert worker.claim({"invoice": 1}) == []
        assert worker.idle().seconds() == 10
        world.time.advance(10)
        assert len(worker.claim({"invoice": 1})) == 1


# The work that it takes.

FEW, MANY = 100, 2_000
WANTED = 20


def fill(world: World, situation: str, gates: int) -> Incarnation:
    """As many units behind so many gates, or behind five among so many; all of the units are due."""
    names = [f"shop/{number:04}" for number in range(gates)]
    served = names if situation in ("open", "metered") else names[gates // 2 : gates // 2 + 5]
    others = [name for name in names if name not in served]
    due = 10 * WANTED if situation == "later" else 2 * MANY
    units = [invoice(f"u{number}", gate_id=served[number % len(served)]) for number in range(due)]
    world.ledger.gates.providers = [GateLimits("shop", (per_second(1e5, 2e5),))] if situation == "metered" else []
    world.ledger.birth(units, actor=Actor.API, who="test")
    if situation == "closed":
        world.ledger.birth([invoice(f"o{name}", gate_id=name) for name in others], actor=Actor.API, who="test")
        world.sql("UPDATE gate SET closed_until = '2100-01-01T00:00:00.000Z' WHERE gate_id LIKE 'shop/%'")
        given = ", ".join(f"'{name}'" for name in served)
        world.sql(f"UPDATE gate SET closed_until = NULL WHERE gate_id IN ({given})")
    if situation == "later":
        later = [invoice(f"l{name}", gate_id=name, due_at=after(86_400)) for name in others]
        world.ledger.birth(later, actor=Actor.API, who="test")
    if situation == "empty":
        world.ledger.database.write(lambda cursor: world.ledger.gates.ensure(cursor, others))
    assert world.one("SELECT count(*) FROM gate WHERE gate_id <> 'none'") == gates
    world.sql("ANALYZE")
    return world.worker("invoice")


def work_of(world: World, work: Callable[[Cursor], Any]) -> int:
    """How much the database does for it: rows and looks in indexes, or hundreds of steps of SQLite's machine."""
    counted: list[int] = []
    read = "seq_tup_read + COALESCE(idx_tup_fetch, 0) + COALESCE(idx_scan, 0)"
    looks = f"SELECT sum({read}) FROM pg_stat_xact_user_tables"

    def transaction(cursor: Any) -> None:
        if world.sqlite:
            cursor.connection.set_progress_handler(lambda: counted.append(1), 100)
            work(cursor)
            cursor.connection.set_progress_handler(None, 0)
        else:
            ((before,),) = cursor.rows(looks)
            work(cursor)
            ((afterwards,),) = cursor.rows(looks)
            counted.extend([1] * int(afterwards - before))

    world.ledger.database.write(transaction)
    return len(counted)


@pytest.mark.parametrize("situation", ["open", "metered", "closed", "empty", "later"])
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_the_work_does_not_grow_with_the_number_of_gates(request, tmp_path, database, situation):
    found: dict[str, list[int]] = {"claim": [], "idle": []}
    for gates in (FEW, MANY):
        with ExitStack() as stack:
            url = f"sqlite:///{tmp_path / str(gates)}.db"
            if database == "postgres":
                server, template = map(request.getfixturevalue, ("postgres_server", "postgres_world"))
                url = stack.enter_context(temporary_database(server, template))
            world = stack.enter_context(closing(World(url)))
            session = fill(world, situation, gates)
            world.time.advance(60)
            taken: list[Any] = []

            def a_claim(cursor: Cursor, session: Incarnation = session, taken: list[Any] = taken) -> None:
                rows, *_ = session._claims.within(cursor, {"invoice": WANTED}, None, None)
                taken += rows["invoice"]

            found["claim"].append(work_of(world, a_claim))
            assert len(taken) == WANTED
            found["idle"].append(work_of(world, session._idle.ask))
    for few, many in found.values():
        assert 0 < many <= 1.3 * few + 5

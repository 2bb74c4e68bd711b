"""Gates under test: what a provider allows, who stands behind it, and what the ledger says of it."""

from __future__ import annotations

from typing import Any

from penstock.ledger.gates.budget import Closed, Pass
from penstock.ledger.gates.gates import Gates
from penstock.ledger.incarnation import Incarnation
from penstock.model.limits import GateLimits, Limit
from tests.support.machines import invoice
from tests.support.world import World, after, instant

GATE = "shop/acme"
EMPTY = Pass(GATE, 0)


def limited(world: World, *limits: Limit, places: int | None = None, name: str = "shop") -> Gates:
    """A provider with these limits, known to the ledger."""
    gates = world.ledger.gates
    gates.providers = [GateLimits(name, limits, places)]
    gates.apply()
    return gates


def per_second(rate: float, burst: float | None = None, cost: float = 1.0) -> Limit:
    return Limit("requests", rate, burst or max(cost, rate), cost)


def crowd(world: World, count: int, gate: str = GATE, prefix: str = "n") -> None:
    world.born(*(invoice(f"{prefix}{n:04}", gate_id=gate) for n in range(count)))


def take(session: Incarnation, count: int = 100) -> list[Any]:
    return session.take({"invoice": count}).units


def row(world: World, columns: str, gate: str = GATE) -> tuple[Any, ...]:
    ((*found,),) = world.rows(f"SELECT {columns} FROM gate WHERE gate_id = :gate", gate=gate)
    return tuple(found)


def shut(world: World, gate: str = GATE) -> Any:
    """Until when the gate is closed, in seconds from the first moment."""
    until = instant(row(world, "closed_until", gate)[0])
    return None if until is None else (until - after(0)).total_seconds()


def tokens(world: World, name: str = "requests", gate: str = GATE) -> float:
    return world.one("SELECT tokens FROM gate_limit WHERE gate_id = :gate AND name = :name", gate=gate, name=name)


def alerts(world: World) -> list[tuple[str, str]]:
    return world.rows(
        "SELECT event_type, severity FROM event_log WHERE severity IS NOT NULL ORDER BY created_at, event_key"
    )


def given(world: World, gate: str = GATE) -> Pass:
    """What a call carries that is let through now."""
    answer = world.ledger.gates.enter(gate, 1)
    assert not isinstance(answer, Closed), answer
    return answer[0]


def held(world: World) -> dict[str, str | None]:
    return dict(world.rows("SELECT gate_id, held_by FROM gate WHERE gate_id <> 'none' ORDER BY gate_id"))


class Statements:
    """How many statements something takes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.made = 0

    def run(self, work: Any) -> Any:
        self.made = 0
        database: Any = self._world.ledger.database
        write = database.write

        def counting(inner: Any) -> Any:
            return write(lambda cursor: inner(_Counting(cursor, self)))

        database.write = counting
        try:
            return work()
        finally:
            del database.write


class _Counting:
    def __init__(self, cursor: Any, statements: Statements) -> None:
        self._cursor = cursor
        self._statements = statements

    def __getattr__(self, name: str) -> Any:
        self._statements.made += 1
        return getattr(self._cursor, name)

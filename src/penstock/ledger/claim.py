"""Claiming due units: which rows, behind which gates, and what each call through a gate carries.

All methods block; the runtime calls them through its executor, one at a time.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.ledger.gates.budget import HORIZON, USUAL, Costs, Metered, Pass
from penstock.ledger.gates.gates import AT_ONCE as GATES_AT_ONCE
from penstock.ledger.gates.gates import Gates
from penstock.ledger.parking import park
from penstock.ledger.schema.columns import UNREADABLE, decoder_of, readable
from penstock.ledger.store import statements
from penstock.ledger.store.claim_statements import ClaimSql, claim
from penstock.ledger.store.database import Cursor, Database, Row
from penstock.model.clock import Clock
from penstock.model.machine import Actor, Machine
from penstock.model.siblings import APART_FROM_CRASHES, APART_FROM_SUSPICION
from penstock.model.unit import NO_GATE, Unit, replace

# So many more gates are asked than steps can begin: some have no room.
_MORE_GATES = 20
# Of fewer gates than these the nearest are all, and a look at them misses nothing.
_FEW = 20

Found = TypeVar("Found")
Price = Callable[[Sequence[Any]], Costs]
"""What the step of a unit, or of siblings, costs in each limit of its gate. It must not fail."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """Units of one claim; for every gate among theirs what a call through it carries, and since when (`elapsed`)."""

    units: list[Unit]
    passes: dict[str, Pass]
    at: float = -math.inf


class Levels(NamedTuple):
    """Which suspects: those whose suspicion lies between the two."""

    low: int
    high: int


class Ways:
    """Whether gates are found among the nearest, or anywhere: what came to nothing is not tried again at once."""

    def __init__(self) -> None:
        self._far: set[Hashable] = set()

    def begin_anew(self) -> None:
        """Try the nearest first again."""
        self._far.clear()

    def find(self, what: Hashable, look: Callable[[bool], list[Found]], many: Callable[[], bool]) -> list[Found]:
        """What a `look` comes to, among the nearest or, if these do not say and there are `many` gates, anywhere."""
        if what not in self._far:
            found = look(True)
            if found or not many():
                return found
            self._far.add(what)
        return look(False)


class Claims:
    """The claims of one worker. Suspects are claimed apart from the others: by their own statements and indexes."""

    def __init__(
        self,
        database: Database,
        served: Mapping[str, Machine],
        clock: Clock,
        worker: str,
        gates: Gates,
        *,
        prices: Mapping[str, Price] = MappingProxyType({}),
    ) -> None:
        """`prices`: of machines whose steps do not all cost the same what a step costs."""
        self._database = database
        self._served = served
        self._clock = clock
        self._worker = worker
        self._gates = gates
        self._after = dict.fromkeys(served, "")
        self._by_share = not database.sql.locks_rows
        self._sql = {
            (name, metered, suspects): claim(
                database, machine, metered=metered, suspects=suspects, priced=metered and name in prices
            )
            for name, machine in served.items()
            for metered in (False, True)
            for suspects in (False, True)
        }
        self._near = {
            (name, suspects): claim(database, machine, suspects=suspects, near=True)
            for name, machine in served.items()
            for suspects in (False, True)
        }
        self.metered = True
        self._ways = Ways()
        self._numbers: tuple[int, int] | None = None
        self._asked_at = -math.inf
        self._turn = 0
        self._asked_last = self._asked_after = ""
        self._gate_of = {n: itemgetter(m.columns.index("gate_id")) for n, m in served.items()}
        self._step_of = {n: _step_of(m) for n, m in served.items()}
        self._decoders = {n: decoder_of(database, m.unit) for n, m in served.items()}
        self._prices = prices
        self._last_costs: dict[str, Costs] = {}

    def take(self, wants: Mapping[str, int], starts: int | None, levels: Levels | None) -> Claimed:
        """Claim up to so many due units of each machine. A lost reply is found again by `retake`.

        Siblings are claimed together, be it that the last of them are more than so many.
        `starts`: how many steps can begin at once; where a place in a budget is taken, the call must follow soon.
        `levels`: of suspects of those levels, and no others; None: of none.
        """
        wanted = {name: n for name, n in wants.items() if n > 0}
        if not wanted:
            return Claimed([], {})

        taken, passes, unmetered, at = self._database.write(lambda cursor: self.within(cursor, wanted, starts, levels))
        self._gates.checked(unmetered)
        claimed: list[Unit] = []
        for name, rows in taken.items():
            # RETURNING has no order; a worker starts with the oldest, ties by id.
            claimed += sorted(self._units(name, rows), key=attrgetter("due_at", "unit_id"))
        return Claimed(claimed, passes, at)

    def within(
        self, cursor: Cursor, wanted: Mapping[str, int], starts: int | None, levels: Levels | None
    ) -> tuple[dict[str, list[Row]], dict[str, Pass], set[str], float]:
        """What `take` does within its transaction: rows by machine, passes by gate, gates not asked, and since when."""
        self._numbers = None
        taken, passes, at = self._take_behind(cursor, wanted, starts, levels)
        for name, n in wanted.items():
            room = n - len(taken.get(name, ()))
            if room > 0:
                rows = self.rows(cursor, name, room, levels)
                if levels is None:
                    self._rotate(name, rows)
                taken[name] = taken.get(name, []) + rows
        gates = {gate for name, rows in taken.items() for gate in {*map(self._gate_of[name], rows)}}
        unmetered = gates - {NO_GATE, *passes}
        return taken, passes | self._gates.passes(cursor, unmetered), unmetered, at

    def suspected(self, cursor: Cursor) -> list[int]:
        """The levels of suspicion at which a unit is due, the lowest first."""
        now = self._database.now_sql
        parts = [
            f"SELECT DISTINCT suspicion FROM {m.table}"
            f" WHERE {statements.waiting(m.due, suspects=True)} AND {m.due} <= {now}"
            for m in self._served.values()
        ]
        if not parts:
            return []
        rows = cursor.rows(f"{' UNION '.join(parts)} ORDER BY 1", **self._database.bind_now())
        return [int(level) for (level,) in rows]

    def retake(self, held: Collection[tuple[str, str]]) -> Claimed:
        """Units that the ledger says are this worker's, and that are not `held`."""

        def work(cursor: Cursor) -> dict[str, list[Row]]:
            found: dict[str, list[Row]] = {}
            for name, machine in self._served.items():
                columns = ", ".join(machine.column(c) for c in machine.columns)
                sql = f"SELECT {columns} FROM {machine.table} WHERE claimed_by = :worker"
                found[name] = [row for row in cursor.rows(sql, worker=self._worker) if (name, row[0]) not in held]
            return found

        units = [unit for name, rows in self._database.write(work).items() for unit in self._units(name, rows)]
        gates = {u.gate_id for u in units} - {NO_GATE}
        return Claimed(units, self._database.write(lambda cursor: self._gates.passes(cursor, gates)) if gates else {})

    def mine(self, cursor: Cursor) -> dict[tuple[str, str], int]:
        """What the ledger says is this worker's: machine and unit, and the version of its claim."""
        return {
            (name, str(unit_id)): version
            for name, machine in self._served.items()
            for unit_id, version in cursor.rows(
                f"SELECT unit_id, version FROM {machine.table} WHERE claimed_by = :worker", worker=self._worker
            )
        }

    def release(self, cursor: Cursor, claims: Iterable[tuple[Machine, str, int, bool]]) -> None:
        """Give units back: of a machine, with the version of its claim, and whether its step may have begun."""
        by_machine: dict[str, tuple[Machine, list[list[Any]]]] = {}
        for machine, unit_id, version, begun in claims:
            by_machine.setdefault(machine.name, (machine, []))[1].append([unit_id, version, int(begun)])
        for machine, rows in by_machine.values():
            sql = statements.release(self._database, machine)
            cursor.run(sql, batch=statements.batch_text(rows), worker=self._worker)

    def _take_behind(
        self, cursor: Cursor, wants: Mapping[str, int], starts: int | None, levels: Levels | None
    ) -> tuple[dict[str, list[Row]], dict[str, Pass], float]:
        """Claim behind the gates that must be asked first: as many as their budgets allow, no more."""
        at = self._clock.elapsed()
        if at - self._asked_at >= HORIZON:
            self._asked_at = at
            self.metered = self._gates.any_metered(cursor)
            self._ways.begin_anew()
            self._gates.notice(cursor)
        room = sum(wants.values()) if starts is None else min(starts, sum(wants.values()))
        if not self.metered or room <= 0:
            return {}, {}, at
        self._asked_after = self._asked_last
        about = (wants, self._asked_after, levels and levels._asdict())
        most = min(room + _MORE_GATES, GATES_AT_ONCE)
        found = self._ways.find(
            ("asked", *wants, levels is not None),
            lambda near: self._gates.meter(cursor, *about, most=most, near=near),
            lambda: self._many(cursor, asked=True),
        )
        gates = {g.gate_id: g for g in found}
        at = self._clock.elapsed()
        taken: dict[str, list[Row]] = {}
        # Where machines share a gate, each has its turn to be the first.
        self._turn += 1
        names = list(wants)
        for name in names[self._turn % len(names) :] + names[: self._turn % len(names)]:
            begun = sum(gate.taken for gate in gates.values())
            taken[name] = self._rows_behind(cursor, name, min(room, wants[name]), gates, levels, units=wants[name])
            room -= sum(gate.taken for gate in gates.values()) - begun
        if gates and levels is None:
            self._asked_last = _next_to_ask(list(gates.values()), most)
        self._gates.settle(cursor, list(gates.values()))
        return taken, {g.gate_id: g.given() for g in gates.values() if g.taken}, at

    def _rows_behind(
        self,
        cursor: Cursor,
        name: str,
        n: int,
        gates: Mapping[str, Metered],
        levels: Levels | None,
        *,
        units: int,
    ) -> list[Row]:
        """Claim up to `n` steps of one machine, of `units` units, behind gates that were asked."""
        shares = {gate_id: self._share(name, n, gate) for gate_id, gate in gates.items()}
        shares = {gate: share for gate, share in shares.items() if share}
        if not shares or n <= 0:
            return []
        fair = math.ceil(n / len(shares))
        shares = {gate: min(share, fair) for gate, share in shares.items()}
        sql, given = self._sql[name, True, levels is not None], self._given(levels, self._asked_after)
        if self._by_share:
            found: list[Row] = [(self._picked_by_share(cursor, sql, n, shares, given),)]
        else:
            text = statements.batch_text([*map(list, shares.items())])
            found = cursor.rows(sql.pick, n=n, batch=text, **given)
        if name in self._prices:
            picked = self._widened(cursor, sql, found[0][0], units, given)
            return self._changed(cursor, sql, self._afforded(cursor, name, sql, picked, gates), given)
        rows = self._taken(cursor, sql, found[0][0], units, given) if sql.take else found
        for gate_id, count in Counter(gate for gate, *_ in {*map(self._step_of[name], rows)}).items():
            gates[gate_id].take(count)
        return rows

    def _picked_by_share(
        self, cursor: Cursor, sql: ClaimSql, n: int, shares: Mapping[str, int], given: dict[str, Any]
    ) -> str | None:
        """The ids of up to `n` units, of each gate its share; gates whose shares are equal are asked together."""
        alike: dict[int, list[list[str]]] = {}
        for gate, share in shares.items():
            alike.setdefault(share, []).append([gate])
        behind: dict[str, str] = {}
        for share, gates in alike.items():
            behind |= dict(cursor.rows(sql.pick, batch=statements.batch_text(gates), share=share, **given))  # type: ignore[arg-type]
        if len(behind) == 1:
            return next(iter(behind.values()))
        picked = [unit_id for gate in shares for unit_id in msgspec.json.decode(behind.get(gate, "[]"))]
        return statements.batch_text(picked[:n]) if picked else None

    def _share(self, name: str, n: int, gate: Metered) -> int:
        """How many steps of a machine to pick behind a gate. Where they are priced, one at least: it may be cheap."""
        if name not in self._prices:
            return gate.allowed(n)
        return gate.allowed(n, self._last_costs.get(name, USUAL)) or gate.allowed(1, dict.fromkeys(gate.limits, 0.0))

    def _afforded(
        self, cursor: Cursor, name: str, sql: ClaimSql, ids: str | None, gates: Mapping[str, Metered]
    ) -> str | None:
        """Those of the picked units whose steps their gates have room for, the oldest first; it takes their costs."""
        at = self._served[name].columns.index
        rows = cursor.gather(sql.read, ids=ids) if ids else []
        rows.sort(key=itemgetter(at("due_at"), at("unit_id")))
        steps: dict[tuple[Any, ...], list[Row]] = {}
        for row in rows:
            steps.setdefault(self._step_of[name](row), []).append(row)
        afforded: list[str] = []
        refused: set[str] = set()
        for (gate_id, *_), step in steps.items():
            if gate_id in refused:
                continue
            costs = self._last_costs[name] = self._prices[name](self._as_claimed(name, step))
            if gates[gate_id].admits(costs):
                gates[gate_id].take(1, costs)
                afforded += [row[at("unit_id")] for row in step]
            else:
                refused.add(gate_id)  # whoever is younger does not go before it
        return statements.batch_text(afforded) if afforded else None

    def _as_claimed(self, name: str, rows: Sequence[Row]) -> list[Any]:
        """The units of picked rows in the state that the claim will leave them in; without those nobody can read."""
        edges, units = self._served[name].on_claim, []
        for row in rows:
            with contextlib.suppress(*UNREADABLE):
                unit = self._decoders[name](row)
                edge = edges.get(unit.status)
                units.append(unit if edge is None else replace(unit, status=type(unit.status)(edge.target)))
        return units

    def rows(self, cursor: Cursor, name: str, n: int, levels: Levels | None = None) -> list[Row]:
        """Claim up to `n` units of one machine behind gates that need not be asked; their rows as they now are."""
        kind = (name, levels is not None)
        given = self._given(levels, self._after[name])

        def take(near: bool) -> list[Row]:
            return self._rows(cursor, self._near[kind] if near else self._sql[name, False, kind[1]], n, given)

        return self._ways.find(kind, take, lambda: self._many(cursor, asked=False))

    def _many(self, cursor: Cursor, *, asked: bool) -> bool:
        """Whether there are many gates that must be asked first, or that need not be, in this transaction."""
        if self._numbers is None:
            self._numbers = self._gates.numbers(cursor, _FEW)
        return self._numbers[asked] == _FEW

    def _rows(self, cursor: Cursor, sql: ClaimSql, n: int, given: dict[str, Any]) -> list[Row]:
        if sql.gates:
            gates = [gate for (gate,) in cursor.rows(sql.gates, n=n, **given)]
            shares = dict.fromkeys(gates, math.ceil(n / max(1, len(gates))))
            found: list[Row] = [(self._picked_by_share(cursor, sql, n, shares, given),)] if gates else [(None,)]
        else:
            found = cursor.rows(sql.pick, n=n, **given)
        return self._taken(cursor, sql, found[0][0], n, given) if sql.take else found

    def _given(self, levels: Levels | None, after: str) -> dict[str, Any]:
        """The parameters of every claim; gates take turns from the one after that."""
        me = {"worker": self._worker, "actor": f"{Actor.WORKER}:{self._worker}", "gate": after}
        return {**me, **(levels._asdict() if levels else {}), **self._database.bind_now()}

    def _taken(self, cursor: Cursor, sql: ClaimSql, picked: str | None, n: int, given: Mapping[str, Any]) -> list[Row]:
        """Take and read the units whose ids were picked, and their siblings: about `n` units (see `ClaimSql`)."""
        return self._changed(cursor, sql, self._widened(cursor, sql, picked, n, given), given)

    def _widened(
        self, cursor: Cursor, sql: ClaimSql, picked: str | None, n: int, given: Mapping[str, Any]
    ) -> str | None:
        if not picked or not sql.widen:
            return picked
        ((ids,),) = cursor.rows(sql.widen, ids=picked, n=n, **given)
        return ids  # type: ignore[no-any-return]

    def _changed(self, cursor: Cursor, sql: ClaimSql, ids: str | None, given: Mapping[str, Any]) -> list[Row]:
        return cursor.gather(sql.read, ids=ids) if ids and cursor.run(sql.take, ids=ids, **given) else []

    def _rotate(self, name: str, rows: Sequence[Row]) -> None:
        if rows:
            # The rotation goes upwards from the last gate and begins anew: what lies below came last.
            gates = {*map(self._gate_of[name], rows)}
            self._after[name] = max({g for g in gates if g <= self._after[name]} or gates)

    def _units(self, name: str, rows: Sequence[Row]) -> list[Any]:
        """The units of claimed rows; what somebody's SQL made unreadable is parked, and the others go on."""
        decode = self._decoders[name]
        try:
            return [decode(row) for row in rows]
        except UNREADABLE:
            units, unreadable = [], []
            for row in rows:
                try:
                    units.append(decode(row))
                except UNREADABLE as error:
                    unreadable.append((row, readable(f"a column cannot be read: {error}")))
            self._database.write(lambda cursor: self._park(cursor, name, unreadable))
            return units

    def _park(self, cursor: Cursor, name: str, unreadable: Sequence[tuple[Row, str]]) -> None:
        machine = self._served[name]
        for row, reason in unreadable:
            values = dict(zip(machine.columns, row, strict=True))
            park(self._database, cursor, machine, (values["unit_id"], values["version"]), reason)


def _next_to_ask(gates: Sequence[Metered], most: int) -> str:
    """After which gate the next claim begins: with the first that had to go without, or with the next of them all."""
    served = [gate.gate_id for gate in gates if gate.taken]
    if served and len(served) < len(gates):
        return served[-1]
    return gates[-1 if len(gates) == most else 0].gate_id


def _step_of(machine: Machine) -> Callable[[Row], tuple[Any, ...]]:
    """Of a unit's row what tells the step that it belongs to from others: its gate, and what its siblings share."""
    at = machine.columns.index
    gate, unit_id = at("gate_id"), at("unit_id")
    if machine.siblings is None:
        return itemgetter(gate, unit_id)
    shared, crashes, suspicion = at(machine.siblings), at("crashes"), at("suspicion")

    def step_of(row: Row) -> tuple[Any, ...]:
        alone = row[shared] is None or row[crashes] >= APART_FROM_CRASHES or row[suspicion] >= APART_FROM_SUSPICION
        return (row[gate], None, row[unit_id]) if alone else (row[gate], row[shared])

    return step_of

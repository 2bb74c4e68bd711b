"""What people ask of units beside pulling edges: wake, park and unpark, each with a row of history: who and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from penstock.ledger.schema.columns import readable
from penstock.ledger.store import statements
from penstock.ledger.store.database import Cursor, Database
from penstock.model.errors import IllegalMove, UnknownUnit
from penstock.model.machine import Actor, Machine
from penstock.model.unit import GuardedUnit, Ref, replace

_MISSING = "no such unit"


@dataclass(frozen=True, slots=True)
class Moved:
    """What a change of many units came to; `skipped` maps a unit to the reason it stayed."""

    moved: list[Ref]
    skipped: dict[Ref, str]

    def all(self) -> list[Ref]:
        """Those that moved: all. Raises UnknownUnit for one that is not there, IllegalMove for one that stayed."""
        for ref, reason in self.skipped.items():
            raise (UnknownUnit if reason == _MISSING else IllegalMove)(f"{ref}: {reason}")
        return self.moved


Verb = Callable[[Database, Machine], str]


class Hands:
    """The verbs, over one database. Each call is one transaction."""

    def __init__(self, database: Database, machine: Callable[[str], Machine]) -> None:
        self._database = database
        self._machine = machine

    def nudge(self, refs: Iterable[Ref]) -> int:
        """Wake units in nobody's name, and without a row of history; how many were woken."""
        by_machine = self._by_machine(refs, "wake")

        def work(cursor: Cursor) -> int:
            woken = 0
            for name, ids in by_machine.items():
                sql = statements.wake_units(self._database, self._machine(name))
                woken += len(cursor.rows(sql, batch=_batch(ids), **self._database.bind_now()))
            return woken

        return self._database.write(work)

    def wake(self, refs: Iterable[Ref], actor: Actor, who: str, reason: str) -> Moved:
        return self._each(self._by_machine(refs, "wake"), _wake, actor, who, reason)

    def park(self, refs: Iterable[Ref], actor: Actor, who: str, reason: str) -> Moved:
        return self._each(self._by_machine(refs, "park"), _park, actor, who, reason)

    def unpark(self, refs: Iterable[Ref], actor: Actor, who: str, reason: str) -> Moved:
        return self._each(self._by_machine(refs, "unpark"), _unpark, actor, who, reason)

    def _by_machine(self, refs: Iterable[Ref], verb: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for ref in dict.fromkeys(refs):
            found.setdefault(ref.machine, []).append(ref.unit_id)
        for name in found:
            if not self._machine(name).driven:
                msg = f"{name} is not driven by workers; there is nothing to {verb}"
                raise IllegalMove(msg)
        return found

    def _each(self, wanted: Mapping[str, list[str]], verb: Verb, actor: Actor, who: str, reason: str) -> Moved:
        said = {"hand": f"{actor}:{who}", "reason": readable(reason)}

        def work(cursor: Cursor) -> Moved:
            moved: list[Ref] = []
            skipped: dict[Ref, str] = {}
            for name, ids in wanted.items():
                sql = verb(self._database, self._machine(name))
                done = {row[0] for row in cursor.rows(sql, batch=_batch(ids), **said, **self._database.bind_now())}
                moved += [Ref(name, unit_id) for unit_id in ids if unit_id in done]
                left = [unit_id for unit_id in ids if unit_id not in done]
                if left:
                    skipped |= self._why_not(cursor, self._machine(name), left)
            return Moved(moved, skipped)

        return self._database.write(work)

    def _why_not(self, cursor: Cursor, machine: Machine, ids: list[str]) -> dict[Ref, str]:
        source = statements.batch(self._database, {"unit_id": statements.TEXT})
        rows = cursor.rows(
            f"SELECT unit_id, status, parked_at FROM {machine.table} WHERE unit_id IN (SELECT n_unit_id FROM {source})",
            batch=_batch(ids),
        )
        reasons = dict.fromkeys((Ref(machine.name, i) for i in ids), _MISSING)
        for unit_id, status, parked_at in rows:
            ended = status in machine.terminal
            reason = f"it has ended as {status}" if ended else "not parked" if parked_at is None else "parked already"
            reasons[Ref(machine.name, unit_id)] = reason
        return reasons


def moved_by_hand(
    machine: Machine, unit: GuardedUnit, to: str, *, actor: Actor, now: datetime, instead: str | None
) -> GuardedUnit:
    """The unit as a bare move by hand makes it. Raises IllegalMove with what to do instead."""
    ref, source = f"{machine.name}:{unit.unit_id}", str(unit.status)
    if to not in machine.states:
        msg = f"{to!r} is not a state of {machine.name}; its states are {', '.join(machine.states)}"
        raise IllegalMove(msg)
    edge = machine.edge(source, to, actor)
    if edge is None:
        machine.check_move(source, to, actor)
        msg = f"{ref} is {source} already"
        raise IllegalMove(msg)
    if edge.by_hand is None:
        msg = f"{ref}: {source} -> {to} ({edge.trigger}) needs more than a new state"
        raise IllegalMove(f"{msg}; use {instead}" if instead else f"{msg}, and no operation does it")
    made: GuardedUnit = edge.by_hand(unit, now)
    return replace(made, status=type(unit.status)(to))


def _batch(ids: list[str]) -> str:
    return statements.batch_text([[i] for i in ids])


_SAID = "changed_by = :hand, change_reason = :reason, changed_at = {now}"


def _wake(database: Database, machine: Machine) -> str:
    """The version stays, so that whoever holds the unit keeps it: see `foreign`."""
    return statements.wake_units(database, machine, also=f", {_SAID.format(now=database.now_sql)}")


def _park(database: Database, machine: Machine) -> str:
    """Whoever holds the unit loses it, and may have made a call."""
    doubts = "CASE WHEN t.doubts = 0 AND t.claimed_by IS NOT NULL THEN 1 ELSE t.doubts END"
    sets = f"parked_at = {database.now_sql}, parked_reason = :reason, doubts = {doubts}, claimed_by = NULL"
    return _changed(database, machine, sets, "t.parked_at IS NULL")


def _unpark(database: Database, machine: Machine) -> str:
    due = f"{machine.due} = {statements.least_due('t.' + machine.due, database.now_sql)}"
    fresh = "parked_at = NULL, parked_reason = NULL, crashes = 0, suspicion = 0, suspected_in = NULL"
    return _changed(database, machine, f"{fresh}, {due}", "t.parked_at IS NOT NULL")


def _changed(database: Database, machine: Machine, sets: str, which: str) -> str:
    source = statements.batch(database, {"unit_id": statements.TEXT})
    said = _SAID.format(now=database.now_sql)
    return (
        f"UPDATE {machine.table} AS t SET {sets}, version = t.version + 1, {said}"
        f" WHERE t.unit_id IN (SELECT n_unit_id FROM {source}) AND {which}{statements.unless_ended(machine)}"
        " RETURNING unit_id"
    )

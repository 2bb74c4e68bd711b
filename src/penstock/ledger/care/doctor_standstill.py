"""The doctor and standstills: nothing is wrong with any row, and nothing will happen to it.

Units that are claimed for longer than any step may take, units that are due and that nobody takes, parents that wait
for children that are set aside, and a clock that was set back. What merely waits (for its time, for a closed gate, for
a budget, behind others) is no standstill.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from penstock.ledger.care.finding import Finding
from penstock.ledger.care.look import Scope
from penstock.ledger.history import WorkerStatus, workers_of
from penstock.ledger.reap import UNKNOWN_MACHINE
from penstock.ledger.schema.birth_rules import SQL
from penstock.ledger.schema.definitions import stored
from penstock.ledger.store.database import Cursor, Database, present
from penstock.model.clock import instant, instant_text
from penstock.model.machine import Actor, Machine

_MOST = 20
# Ten minutes and a lease: by then a worker that died has been replaced, and its units were taken over.
_LONG = timedelta(minutes=10, seconds=30)
_MINUTE = timedelta(minutes=1)
# Of a flow that this program does not have, or cannot make without its settings: that of the kernel's slowest.
_UNKNOWN_DEADLINE = timedelta(hours=1)


def overdue(database: Database, cursor: Cursor, deadlines: Mapping[str, timedelta]) -> Iterator[Finding]:
    """No worker keeps a claim for longer than its flow's steps may take.

    A claim may wait for as long as the steps before it take, and then takes as long itself; it begins anew with every
    commit that keeps it.
    """
    alive = {w.id for w in workers_of(database, cursor) if w.lease_seconds > 0}
    now = present(database, cursor)
    for name, definition in _driven(cursor):
        deadline = deadlines.get(name, _UNKNOWN_DEADLINE)
        began = "CASE WHEN claimed_at IS NULL OR changed_at > claimed_at THEN changed_at ELSE claimed_at END"
        rows = cursor.rows(
            f"SELECT claimed_by, unit_id, since FROM (SELECT claimed_by, unit_id, {began} AS since"
            f" FROM {definition['table']} WHERE claimed_by IS NOT NULL) AS s"
            f" WHERE since < {database.sql.instant('cutoff')} ORDER BY since, unit_id",
            cutoff=instant_text(now - 2 * deadline - _MINUTE),
        )
        held: dict[str, list[tuple[str, datetime]]] = {}
        for worker, unit_id, since in rows:
            held.setdefault(str(worker), []).append((str(unit_id), instant(since)))
        for worker, units in held.items():
            if worker in alive:  # `claims` and `leases` tell of the others
                first, since = units[0]
                text = (
                    f"{_units(len(units))} claimed by {worker} for far longer than a step may take ({_span(deadline)}),"
                    f" the oldest is {name}:{first}, since {instant_text(since)}; restart that worker"
                )
                yield Finding("overdue", name, text)


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Units of one machine that are due since long: how many, which for longest and since when."""

    machine: str
    count: int
    oldest: str
    since: datetime

    def __str__(self) -> str:
        are = "is" if self.count == 1 else "are"
        return f"{self.count:,} {are} due, the oldest is {self.machine}:{self.oldest}, since {instant_text(self.since)}"


def due(database: Database, cursor: Cursor, _: Mapping[str, Machine]) -> Iterator[Finding]:
    """What has been due for long behind an open gate is taken by somebody."""
    now = present(database, cursor)
    alive = [w for w in workers_of(database, cursor) if w.lease_seconds > 0]
    idle: list[_Waiting] = []
    for name, definition in _driven(cursor):
        serving = [w for w in alive if name in w.machines]
        waiting = _waiting(database, cursor, name, definition, now - _LONG, served=bool(serving))
        if waiting is None:
            continue
        if not alive:
            idle.append(waiting)
        elif not serving:
            yield Finding("due", name, f"no running worker serves {name}: {waiting}; start one whose program has it")
        elif all(w.started_at > now - _LONG for w in serving):
            continue  # give them time
        elif not _taken(database, cursor, definition, now - _LONG):
            yield _untaken(cursor, name, waiting, serving)
    if idle:
        oldest = min(idle, key=lambda w: w.since)
        counts = ", ".join(f"{w.count:,} of {w.machine}" for w in idle)
        text = f"no worker is running, and units are due: {counts}; the oldest is {oldest.machine}:{oldest.oldest},"
        yield Finding("due", "workers", f"{text} since {instant_text(oldest.since)}; start 'penstock up'", "warning")


def _waiting(
    database: Database, cursor: Cursor, name: str, definition: Mapping[str, Any], cutoff: datetime, *, served: bool
) -> _Waiting | None:
    """What should have been taken before the cutoff.

    Behind a gate on a budget, or one that lately was closed, much may wait rightly for those who serve it. Where nobody
    serves a machine, workers of others set its units aside.
    """
    column, at = definition["shape"]["due"], database.sql.instant("cutoff")
    asked = " AND NOT g.metered AND g.throttles = 0" if served else ""
    parked = "" if served else " OR t.parked_reason = :unknown"
    which = (
        f"{definition['table']} t JOIN gate g ON g.gate_id = t.gate_id"
        f" WHERE t.{column} <= {at} AND t.claimed_by IS NULL AND (t.parked_at IS NULL{parked})"
        f" AND (t.changed_at IS NULL OR t.changed_at <= {at})"
        f" AND (t.claimed_at IS NULL OR t.claimed_at <= {at}) AND g.held_by IS NULL{asked}"
        f" AND (g.closed_until IS NULL OR g.closed_until <= {at}) AND (g.next_at IS NULL OR g.next_at <= {at})"
    )
    given = {"cutoff": instant_text(cutoff), **({} if served else {"unknown": UNKNOWN_MACHINE})}
    ((count,),) = cursor.rows(f"SELECT count(*) FROM {which}", **given)
    if not count:
        return None
    ((unit_id, since),) = cursor.rows(
        f"SELECT t.unit_id, t.{column} FROM {which} ORDER BY t.{column}, t.unit_id LIMIT 1", **given
    )
    return _Waiting(name, int(count), str(unit_id), instant(since))


def _taken(database: Database, cursor: Cursor, definition: Mapping[str, Any], cutoff: datetime) -> bool:
    """Whether anybody took a unit of the machine lately: then the others wait for their turn."""
    taken = f"claimed_by IS NOT NULL OR claimed_at > {database.sql.instant('cutoff')}"
    sql = f"SELECT 1 FROM {definition['table']} WHERE {taken} LIMIT 1"
    return bool(cursor.rows(sql, cutoff=instant_text(cutoff)))


def _untaken(cursor: Cursor, name: str, waiting: _Waiting, serving: Sequence[WorkerStatus]) -> Finding:
    who = f"{len(serving)} workers serve {name} and none takes it"
    if len(serving) == 1:
        who = f"one worker serves {name} and does not take it"
    ids = {w.id for w in serving}
    held = sum(
        int(count)
        for _, other in _driven(cursor)
        for worker, count in cursor.rows(
            f"SELECT claimed_by, count(*) FROM {other['table']} WHERE claimed_by IS NOT NULL GROUP BY claimed_by"
        )
        if worker in ids
    )
    if held:  # full of long steps, it may be: that is for a person to judge
        others = f"{held:,} other unit{'' if held == 1 else 's'}"
        return Finding("due", name, f"{who}: {waiting}; meanwhile they hold {others}", "warning")
    return Finding("due", name, f"{who}: {waiting}; see their logs, and restart them")


def families(_: Database, cursor: Cursor, __: Mapping[str, Machine]) -> Iterator[Finding]:
    """No unit waits for children that are set aside. It would wait until a person unparks or ends them."""
    known = stored(cursor)
    for name, child in known.items():
        fan_in = child.get("parent")
        parent = known.get(fan_in["machine"]) if fan_in else None
        if fan_in is None or parent is None or not (child["shape"]["driven"] and parent["shape"]["driven"]):
            continue
        key = zip(fan_in["by"], parent["shape"]["key"], strict=True)
        same = " AND ".join(f"c.{mine} = p.{theirs}" for mine, theirs in key)
        counted = _listed(state for states in fan_in["counts"].values() for state in states)
        # A state that only a person leaves is no waiting.
        moving = _listed(edge["source"] for edge in parent["transitions"] if Actor.WORKER in edge["actors"])
        rows = cursor.rows(
            f"SELECT p.unit_id, count(*), min(c.unit_id) FROM {child['table']} c JOIN {parent['table']} p ON {same}"
            f" WHERE c.parked_at IS NOT NULL AND (c.parked_reason IS NULL OR c.parked_reason <> :unknown)"
            f" AND c.status NOT IN ({counted}) AND p.status IN ({moving}) AND p.parked_at IS NULL"
            f" GROUP BY p.unit_id ORDER BY p.unit_id LIMIT {_MOST}",
            unknown=UNKNOWN_MACHINE,
        )
        for unit_id, count, first in rows:
            text = (
                f"waits for {count:,} parked {name}: {first}{', and others' if count > 1 else ''}; unpark or end them"
            )
            yield Finding("families", f"{parent['name']}:{unit_id}", text, "warning")


def clock(database: Database, cursor: Cursor, _: Mapping[str, Machine], scope: Scope) -> Iterator[Finding]:
    """No unit was last changed in the future: the clock was set back since, and what waits may wait for too long.

    What somebody types is dated by the database itself, which in a simulation is not the ledger's time.
    """
    now = present(database, cursor)
    at, here = database.sql.instant("ahead"), database.sql.instant("here")
    for name, definition in stored(cursor).items():
        table, driven = definition["table"], definition["shape"]["driven"]
        later = (
            f"{definition['shape']['due']} > {here} AND parked_at IS NULL AND claimed_by IS NULL" if driven else "1 = 0"
        )
        given = {"ahead": instant_text(now + _MINUTE), **({"here": instant_text(now)} if driven else {})}
        ((count, first, last, late),) = cursor.rows(
            f"SELECT count(*), min(unit_id), max(changed_at), sum(CASE WHEN {later} THEN 1 ELSE 0 END)"
            f" FROM {table} WHERE changed_at > {at} AND changed_by <> '{SQL}' AND {scope.units(name, 'unit_id')}",
            **given,
        )
        if count:
            were = "unit was" if count == 1 else "units were"
            text = (
                f"{count:,} {were} last changed in the future, up to {instant_text(instant(last))}: the clock was"
                f" set back since; the first is {name}:{first}"
            )
            if late:
                text += f"; {late:,} of them may be due too late: look at due_at, and wake what should not wait"
            yield Finding("clock", name, text, "warning")


def _driven(cursor: Cursor) -> list[tuple[str, dict[str, Any]]]:
    return [(name, definition) for name, definition in stored(cursor).items() if definition["shape"]["driven"]]


def _listed(states: Any) -> str:
    return ", ".join(f"'{state}'" for state in sorted(set(states))) or "NULL"


def _units(count: int) -> str:
    return f"{count:,} unit{' is' if count == 1 else 's are'}"


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    return f"{seconds / 60:g} min" if seconds >= _MINUTE.total_seconds() else f"{seconds:g} s"

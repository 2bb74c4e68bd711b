"""Dead letters of all machines: units that failed for good and units that were parked, grouped by their cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

from penstock.model.clock import instant
from penstock.model.errors import UsageError
from penstock.model.machine import Edge, Machine
from penstock.model.outcome import MAX_ROWS, Write
from penstock.model.unit import Ref
from penstock.operations.change import by_hand, counted, instead, pull, refuse_empty
from penstock.operations.declare import Ask, Page, operation, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.fingerprint import cause_of, fingerprint
from penstock.operations.past import lacking, said
from penstock.operations.plan import Each, Moves, Together, Unpark
from penstock.operations.selection import (
    Condition,
    Filter,
    Moment,
    Selected,
    condition,
    filters_of,
    machines_of,
    read_refs,
    select_ids,
    units_of,
)
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.store.database import Cursor
    from penstock.operations.dead_then import Dead

PARKED = "parked"
#: The triggers that give a dead letter another try, the best first.
_AGAIN = ("retry", "reset", "reopen", "reprocess")


class DeadFilter(Parameters, frozen=True):
    machine: Annotated[str | None, option("Only units of this machine.", example="invoice")] = None
    gate: Annotated[str | None, option("Only units behind this gate or one below it.", example="shop/acme")] = None
    older_than: Annotated[timedelta | None, option("Only units that failed longer ago than this.", example="6h")] = None
    younger_than: Annotated[timedelta | None, option("Only units that failed within this time.", example="30m")] = None
    because: Annotated[
        str | None, option("Only units whose reason contains this text; upper and lower case are alike.")
    ] = None
    dismissed: Annotated[bool, option("Those that were dismissed, instead of those that were not.")] = False
    at: Annotated[
        datetime | None,
        option(
            "As they stood at this instant; of the filters only the machine, and of parked units only those parked"
            " still.",
            example="2026-11-15T19:31:00Z",
        ),
    ] = None


class DeadShow(Parameters, frozen=True):
    cause: Annotated[str, argument("The fingerprint of a cause, as 'dead list' shows it.", example="4f1c09ab")]
    limit: Annotated[int, option("How many units at most.", ge=1, le=10_000)] = 50
    after: Annotated[str | None, option("Continue after an earlier page: the cursor that it ended with.")] = None
    dismissed: Annotated[bool, option("Those that were dismissed, instead of those that were not.")] = False
    at: Annotated[datetime | None, option("As they stood at this instant.", example="2026-11-15T19:31:00Z")] = None


class DeadSelected(Selected, frozen=True):
    cause: Annotated[str | None, option("All units of this cause, by its fingerprint.", example="4f1c09ab")] = None


class CauseRow(Row, frozen=True):
    cause: Annotated[str, column("The fingerprint of the cause.", show="reference", leads="dead show")]
    machine: Annotated[str, column("The machine.")]
    status: Annotated[str, column("The state that they died in, or 'parked'.", show="state")]
    count: Annotated[int, column("How many units.")]
    oldest: Annotated[datetime | None, column("When the first of them failed.")]
    newest: Annotated[datetime | None, column("When the last of them failed.")]
    reason: Annotated[str, column("What their reasons have in common.", show="text")]
    example: Annotated[str, column("One of the units.", show="reference")]
    said: Annotated[str, column("The reason of one of them, in full.", show="detail")]


class DeadRow(Row, frozen=True):
    unit: Annotated[str, column("The unit.", show="reference")]
    status: Annotated[str, column("Its state, or 'parked'.", show="state")]
    failed_at: Annotated[datetime | None, column("When it failed.", heading="failed")]
    reason: Annotated[str | None, column("Why.", show="text")]
    dismissed_by: Annotated[str | None, column("Who dismissed it.", show="detail")]
    dismissed_for: Annotated[str | None, column("Why it was dismissed.", show="detail")]


@dataclass(slots=True)
class _Group:
    machine: Machine
    status: str
    cause: str
    count: int = 0
    oldest: Any = None
    newest: Any = None
    example: str = ""
    #: What their reasons have in common: all of it where they are the same, else the cause.
    common: str = ""
    #: The reason of one of them.
    said: str = ""

    def add(self, reason: str | None, count: int, oldest: Any, newest: Any, example: str) -> None:
        self.common = reason if reason and not self.count else self.cause
        self.said = self.said or reason or self.cause
        self.count += count
        self.oldest = min(filter(None, (self.oldest, oldest)), default=None)
        self.newest = max(filter(None, (self.newest, newest)), default=None)
        self.example = self.example or example


@reading("dead list", "Dead letters of all machines, grouped by cause.")
def list_dead(ask: Ask[KernelSettings], wanted: DeadFilter) -> Page[CauseRow]:
    """Units in a state that means a fault, and parked units. Dismissed ones are left out until they change."""
    note, groups = None, dict[str, _Group]()
    if wanted.at is None:
        groups = _groups(ask, _filter(wanted), dismissed=wanted.dismissed)
    else:
        groups, note = _groups_then(ask, wanted, wanted.at)
    rows = [
        CauseRow(
            cause=name,
            machine=group.machine.name,
            status=group.status,
            count=group.count,
            oldest=group.oldest,
            newest=group.newest,
            reason=group.common,
            example=f"{group.machine.name}:{group.example}",
            said=group.said,
        )
        for name, group in groups.items()
    ]
    rows.sort(key=lambda row: (-row.count, row.cause))
    return Page(rows=rows, note=said(note, None if rows else "no dead letters"))


@reading("dead show", "The units of one cause.")
def show_dead(ask: Ask[KernelSettings], wanted: DeadShow) -> Page[DeadRow]:
    if wanted.at is not None:
        return _dead_then(ask, wanted, wanted.at)
    group = _group(ask, wanted.cause, dismissed=wanted.dismissed)
    after = None if wanted.after is None else Ref.parse(wanted.after).unit_id
    found = ask.reader.database.read(
        lambda cursor: list(_members(cursor, group, dismissed=wanted.dismissed, after=after, most=wanted.limit + 1)),
        patient=True,
    )
    rows = [
        DeadRow(
            unit=f"{group.machine.name}:{unit_id}",
            status=group.status,
            failed_at=instant(failed),
            reason=reason,
            dismissed_by=by,
            dismissed_for=why,
        )
        for unit_id, reason, failed, by, why in found
    ]
    more = len(rows) > wanted.limit
    return Page(rows=rows[: wanted.limit], next=rows[wanted.limit - 1].unit if more else None)


@operation("dead retry", "Give dead letters another try.")
def retry(ask: Ask[KernelSettings], wanted: DeadSelected) -> Each | Unpark:
    """By reference, by the fingerprint of their cause, or by machine and filters. Parked units are unparked."""
    machine, ids = _chosen(ask, wanted)
    moves, parked = Moves(machine), []
    for unit in units_of(ask, machine, ids):
        state = str(unit.status)
        if machine.driven and unit.parked_at is not None:
            parked.append(Ref(machine.name, unit.unit_id))
        elif state not in machine.dead:
            moves.skip(unit.unit_id, f"it is {state}, not a dead letter")
        elif (edge := _again(machine, state)) is None:
            moves.skip(unit.unit_id, _no_way(ask, machine, state))
        else:
            pull(moves, edge, unit, ask.now)
    if parked:
        if len(moves):
            raise UsageError("some of these are parked and others are dead; retry them separately, or by their cause")
        return Unpark(parked, moves.skipped, f"unpark {counted(len(parked), machine)}")
    return refuse_empty(moves, f"retry {counted(len(moves), machine)}")


@operation("dead dismiss", "Stop listing dead letters until they change.")
def dismiss(ask: Ask[KernelSettings], wanted: DeadSelected) -> Together:
    """The units stay as they are. Who dismissed them and why is kept, and --dismissed lists them."""
    from penstock.operations.dismissal import dismissal

    machine, ids = _chosen(ask, wanted)
    rows: list[dict[str, Any]] = []
    for unit in units_of(ask, machine, ids):
        if str(unit.status) not in machine.dead and not (machine.driven and unit.parked_at is not None):
            raise UsageError(f"{machine.name}:{unit.unit_id} is {unit.status}, not a dead letter")
        rows.append(
            {
                "machine": machine.name,
                "unit_id": unit.unit_id,
                "version": unit.version,
                "changed_by": ask.who,
                "change_reason": ask.reason,
                "changed_at": ask.now,
            }
        )
    if len(rows) > MAX_ROWS:
        raise UsageError(
            f"these are {len(rows):,} dead letters; dismiss at most {MAX_ROWS:,} at a time, chosen by a filter"
        )
    about = [Ref(machine.name, row["unit_id"]) for row in rows]
    return Together(f"dismiss {counted(len(rows), machine)}", writes=[Write(dismissal, rows, "update")], about=about)


READINGS = [list_dead, show_dead]
OPERATIONS = [retry, dismiss]


def _dead_of(ask: Ask[Any], wanted: DeadFilter, at: datetime) -> tuple[list[Dead], str | None]:
    """The units that were dead letters at an instant. Raises UsageError for what is not known of the past."""
    from penstock.operations.dead_then import dead_of

    if filters_of(_filter(wanted)):
        raise UsageError("of the past only the machine is known; leave the other filters out")
    machines = [machine for machine in machines_of(ask, _filter(wanted)) if machine.driven]
    found, note = dead_of(ask, machines, at, dismissed=wanted.dismissed)
    return found, said(lacking(ask, machines, at), note)


def _groups_then(ask: Ask[Any], wanted: DeadFilter, at: datetime) -> tuple[dict[str, _Group], str | None]:
    alike: dict[tuple[str, str, str | None], list[Dead]] = {}
    found, note = _dead_of(ask, wanted, at)
    for one in found:
        alike.setdefault((one.machine.name, one.status, one.reason), []).append(one)
    groups = dict[str, _Group]()
    for (name, state, reason), alike_ones in alike.items():
        cause, moments = cause_of(reason), [one.since for one in alike_ones if one.since is not None]
        group = groups.setdefault(fingerprint(name, state, cause), _Group(alike_ones[0].machine, state, cause))
        oldest, newest = min(moments, default=None), max(moments, default=None)
        group.add(reason, len(alike_ones), oldest, newest, alike_ones[0].unit_id)
    return groups, note


def _dead_then(ask: Ask[Any], wanted: DeadShow, at: datetime) -> Page[DeadRow]:
    found, note = _dead_of(ask, DeadFilter(dismissed=wanted.dismissed), at)
    rows = [
        DeadRow(
            unit=f"{one.machine.name}:{one.unit_id}",
            status=one.status,
            failed_at=one.since,
            reason=one.reason,
            dismissed_by=one.dismissed_by,
            dismissed_for=one.dismissed_for,
        )
        for one in found
        if fingerprint(one.machine.name, one.status, cause_of(one.reason)) == wanted.cause
    ]
    past = [row for row in rows if wanted.after is None or row.unit > wanted.after]
    more = len(past) > wanted.limit
    return Page(
        rows=past[: wanted.limit],
        next=past[wanted.limit - 1].unit if more else None,
        note=said(note, None if rows else "no dead letters of this cause"),
    )


def _again(machine: Machine, state: str) -> Edge | None:
    """The edge that gives a dead letter another try; None where no edge, or no one edge, does."""
    edges = list(by_hand(machine, state))
    for trigger in _AGAIN:
        for edge in edges:
            if edge.trigger.startswith(trigger):
                return edge
    return edges[0] if len(edges) == 1 else None


def _no_way(ask: Ask[Any], machine: Machine, state: str) -> str:
    triggers = [edge.trigger for edge in machine.edges if str(edge.source) == state and "operator" in edge.actors]
    if not triggers:
        return f"{machine.name} has no edge out of {state} for operators"
    return f"a retry takes more than a move; use {instead(ask, machine, triggers[0])}"


def _filter(wanted: DeadFilter) -> Filter:
    return Filter(
        machine=wanted.machine,
        gate=wanted.gate,
        older_than=wanted.older_than,
        younger_than=wanted.younger_than,
        because=wanted.because,
    )


def _groups(ask: Ask[Any], wanted: Filter, *, dismissed: bool) -> dict[str, _Group]:
    """Every cause with its units counted, by its fingerprint: one statement for each machine, grouped by reason."""
    found: dict[str, _Group] = {}
    at = Moment(ask.reader.database, ask.now)
    machines = [machine for machine in machines_of(ask, wanted) if machine.driven]

    def work(cursor: Cursor) -> None:
        found.clear()
        for done, machine in enumerate(machines):
            ask.progress(done, len(machines))
            for state, where in _kinds(machine):
                _count(cursor, machine, state, _both(where, condition(at, machine, wanted)))

    def _count(cursor: Cursor, machine: Machine, state: str, where: Condition) -> None:
        reason, moment = _said(state)
        rows = cursor.rows(
            f"SELECT {reason}, count(*), min({moment}), max({moment}), min(unit_id) FROM {machine.table} AS t"
            f" WHERE {where.sql} AND {_dismissed(dismissed=dismissed)} GROUP BY {reason}",
            machine=machine.name,
            **where.values,
        )
        for why, count, oldest, newest, example in rows:
            cause = cause_of(why)
            name = fingerprint(machine.name, state, cause)
            group = found.setdefault(name, _Group(machine, state, cause))
            group.add(why, int(count), instant(oldest), instant(newest), example)

    ask.reader.database.read(work, patient=True)
    return found


def _kinds(machine: Machine) -> Iterator[tuple[str, Condition]]:
    """The ways in which a unit of a machine is dead. A parked one counts as parked, whatever its state."""
    from penstock.ledger.store.statements import dead_letters

    yield PARKED, Condition(f"unit_id IN (SELECT unit_id FROM {machine.table} WHERE parked_at IS NOT NULL)", {})
    for state in machine.dead:
        sql = f"{dead_letters(machine)} AND status = :dead AND parked_at IS NULL"
        yield state, Condition(sql, {"dead": state})


def _said(state: str) -> tuple[str, str]:
    """The columns of the reason and of the moment."""
    return ("parked_reason", "parked_at") if state == PARKED else ("change_reason", "changed_at")


def _both(one: Condition, other: Condition) -> Condition:
    return Condition(f"{one.sql} AND {other.sql}", {**one.values, **other.values})


def _dismissed(*, dismissed: bool) -> str:
    """Whether the unit `t` was dismissed as it is."""
    found = (
        "EXISTS (SELECT 1 FROM dismissal d WHERE d.machine = :machine AND d.unit_id = t.unit_id"
        " AND d.version = t.version)"
    )
    return found if dismissed else f"NOT {found}"


def _group(ask: Ask[Any], name: str, *, dismissed: bool = False) -> _Group:
    """The group of that fingerprint. Raises UsageError where there is none."""
    found = _groups(ask, Filter(), dismissed=dismissed)
    if name not in found:
        raise UsageError(f"no dead letters have the cause {name!r}; 'penstock dead list' shows the causes that exist")
    return found[name]


def _members(
    cursor: Cursor,
    group: _Group,
    *,
    dismissed: bool = False,
    after: str | None = None,
    most: int | None = None,
) -> Iterator[Any]:
    """The units of a group, in the order of keys: id, reason, moment, who dismissed it and why."""
    where = dict(_kinds(group.machine))[group.status]
    reason, moment = _said(group.status)
    follows = "" if after is None else " AND t.unit_id > :after"
    values = {**where.values, "machine": group.machine.name} | ({} if after is None else {"after": after})
    rows = cursor.gather(
        f"SELECT t.unit_id, t.{reason}, t.{moment}, d.changed_by, d.change_reason FROM {group.machine.table} AS t"
        " LEFT JOIN dismissal d ON d.machine = :machine AND d.unit_id = t.unit_id AND d.version = t.version"
        f" WHERE {where.sql.replace('unit_id IN', 't.unit_id IN')}{follows}"
        f" AND {_dismissed(dismissed=dismissed)} ORDER BY t.unit_id",
        **values,
    )
    given = 0
    for row in rows:
        if most is not None and given >= most:
            return
        if cause_of(row[1]) == group.cause:
            given += 1
            yield row


def _chosen(ask: Ask[Any], wanted: DeadSelected) -> tuple[Machine, list[str]]:
    """The dead letters that are meant, of one machine. Raises UsageError where that is not said, or there are none."""
    said = [bool(wanted.units), wanted.cause is not None, wanted.machine is not None or bool(filters_of(wanted))]
    if sum(said) > 1:
        raise UsageError("name units, a cause, or filters; only one of the three")
    if wanted.cause is not None:
        group = _group(ask, wanted.cause)
        read = ask.reader.database.read
        return group.machine, [str(row[0]) for row in read(lambda cursor: list(_members(cursor, group)), patient=True)]
    if wanted.units:
        refs = read_refs(ask, wanted.units)
        names = sorted({ref.machine for ref in refs})
        if len(names) > 1:
            raise UsageError(f"these units are of several machines ({', '.join(names)}); name those of one at a time")
        ((machine, ids),) = select_ids(ask, wanted)
        return machine, ids
    if wanted.machine is None:
        raise UsageError("which dead letters? name units as machine:key, a cause, or a machine and filters")
    (machine,) = machines_of(ask, wanted)
    if not machine.driven:
        raise UsageError(f"{machine.name} is not driven by workers; it has no dead letters")
    return machine, _filtered(ask, machine, wanted)


def _filtered(ask: Ask[Any], machine: Machine, wanted: Filter) -> list[str]:
    """The dead letters of a machine that the filters match and nobody has dismissed: the dead, or else the parked."""
    at = Moment(ask.reader.database, ask.now)
    ids: list[str] = []

    def work(cursor: Cursor) -> None:
        ids.clear()
        for state, kind in _kinds(machine):
            if wanted.parked and state != PARKED:
                continue
            where = _both(kind, condition(at, machine, wanted))
            sql = f"SELECT unit_id FROM {machine.table} AS t WHERE {where.sql} AND {_dismissed(dismissed=False)}"
            ids.extend(str(row[0]) for row in cursor.gather(sql, machine=machine.name, **where.values))

    ask.reader.database.read(work, patient=True)
    if not ids:
        raise UsageError(f"no dead letters of {machine.name} match")
    return sorted(ids)

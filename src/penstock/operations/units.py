"""Units of any machine, to be read: lists with filters and pages, one unit whole, its history, and why it stands so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

from penstock.model.clock import instant, instant_text
from penstock.model.errors import UsageError
from penstock.model.machine import Actor, Machine
from penstock.model.unit import DRIVEN_COLUMNS, GuardedUnit, Ref, Unit, field_types, key_part
from penstock.operations.declare import Ask, Page, Reading, reading
from penstock.operations.fields import Parameters, Row, argument, column, option
from penstock.operations.past import At, unit_then
from penstock.operations.selection import (
    Condition,
    Filter,
    Moment,
    condition,
    counts_of,
    filters_of,
    machines_of,
    read_refs,
)
from penstock.operations.why import Deciding, Why, explain
from penstock.settings.kernel import KernelSettings

if TYPE_CHECKING:
    from penstock.ledger.history import AsOf, Transition
    from penstock.ledger.store.database import Cursor
    from penstock.worker.flow import AnyFlow

_LAST = 10


class UnitList(Filter, frozen=True):
    limit: Annotated[int, option("How many at most.", ge=1, le=10_000)] = 50
    after: Annotated[str | None, option("Continue after an earlier page: the cursor that it ended with.")] = None
    count: Annotated[bool, option("Count all that match, by state; a large ledger takes its time.")] = False
    at: Annotated[
        datetime | None,
        option("As they stood at this instant; by machine and state alone.", example="2026-11-15T19:31:00Z"),
    ] = None


class UnitRow(Row, frozen=True):
    unit: Annotated[str, column("Its reference.", show="reference")]
    status: Annotated[str, column("Its state.", show="state")]
    changed_at: Annotated[
        datetime | None, column("When it last changed; of the past, by its history.", heading="changed")
    ]
    due_at: Annotated[datetime | None, column("When a worker takes it; empty if nothing is scheduled.", heading="due")]
    gate: Annotated[str | None, column("The gate that its calls pass.", show="detail")]
    claimed_by: Annotated[str | None, column("The worker that holds it.", show="detail")]
    parked_at: Annotated[datetime | None, column("When it was set aside for a person.", heading="parked")]
    reason: Annotated[str | None, column("Why it is in this state.", show="text")]


class OneUnit(Parameters, frozen=True):
    unit: Annotated[str, argument("The unit, as machine:key.", example="invoice:acme/17")]


class UnitThen(OneUnit, frozen=True):
    at: At = None


class HistoryWanted(OneUnit, frozen=True):
    at: Annotated[datetime | None, option("Only those up to this instant.", example="2026-11-15T19:31:00Z")] = None


class TransitionRow(Row, frozen=True):
    at: Annotated[datetime, column("When.", heading="when")]
    source: Annotated[str | None, column("Its state before; empty if it was born.", show="state", heading="from")]
    target: Annotated[str | None, column("Its state afterwards; empty if it is gone.", show="state", heading="to")]
    trigger: Annotated[str | None, column("The edge that was pulled.", heading="by")]
    actor: Annotated[str, column("Who did it.", heading="who")]
    reason: Annotated[str | None, column("Why.", show="text", heading="why")]
    version: Annotated[int, column("Its version afterwards.", show="detail")]
    action: Annotated[str | None, column("The bulk action that it was a part of.", show="detail")]
    data: Annotated[Any, column("The tracked columns.", show="detail")]


class UnitDetail(Row, frozen=True, kw_only=True):
    unit: Annotated[str, column("Its reference.", show="reference")]
    status: Annotated[str, column("Its state.", show="state")]
    meaning: Annotated[str, column("What kind of state that is: rest, work, done, hold or fault.")]
    says: Annotated[str, column("What that state means.")]
    reason: Annotated[str | None, column("Why it is in this state, in full.")]
    changed_by: Annotated[str, column("Who changed it last.")]
    changed_at: Annotated[datetime | None, column("When it last changed; of the past, by its history.")]
    version: Annotated[
        int,
        column(
            "Rises by one with every change, from a random start; of the past, after the last that is in the history.",
            show="reference",
        ),
    ]
    due_at: Annotated[datetime | None, column("When a worker takes it; empty if nothing is scheduled.")] = None
    gate: Annotated[str | None, column("The gate that its calls pass.")] = None
    claimed_by: Annotated[str | None, column("The worker that holds it.")] = None
    parked_at: Annotated[datetime | None, column("When it was set aside for a person.")] = None
    parked_reason: Annotated[str | None, column("Why it was set aside, in full.")] = None
    attempts: Annotated[int | None, column("Retries made; empty of the past.")] = None
    crashes: Annotated[int | None, column("Steps in a row that broke; empty of the past.")] = None
    doubts: Annotated[int | None, column("Claims in a row whose end nobody knows; empty of the past.")] = None
    suspicion: Annotated[int | None, column("Workers in a row that died while they held it; empty of the past.")] = None
    parent: Annotated[str | None, column("The unit that counts it.", show="reference")] = None
    operators_can: Annotated[list[str], column("What a person may do with it in this state.")]
    columns: Annotated[dict[str, Any], column("Its own columns.")]
    history: Annotated[list[TransitionRow], column("Its last transitions, oldest first.")]


@reading("units list", "Units of all machines, or those that the filters choose.")
def list_units(ask: Ask[KernelSettings], wanted: UnitList) -> Page[UnitRow]:
    """Ordered by machine and key. A page ends with a cursor; --after it shows the next one."""
    machines = machines_of(ask, wanted)
    start = None if wanted.after is None else _cursor(ask, wanted, wanted.after)
    if wanted.at is not None:
        return _past(ask, wanted, machines, start)
    at = Moment(ask.reader.database, ask.now)

    def work(cursor: Cursor) -> tuple[list[UnitRow], dict[str, int]]:
        rows: list[UnitRow] = []
        counts: dict[str, int] = {}
        for machine in machines:
            where = condition(at, machine, wanted)
            if wanted.count:
                for state, count in counts_of(cursor, machine, where).items():
                    counts[state] = counts.get(state, 0) + count
            left = wanted.limit + 1 - len(rows)
            if left > 0 and (start is None or machine.name >= start.machine):
                after = start.unit_id if start is not None and machine.name == start.machine else None
                rows += _some(cursor, machine, where, after, left)
        return rows, counts

    rows, counts = ask.reader.database.read(work, patient=True)
    more = len(rows) > wanted.limit
    return Page(
        rows=rows[: wanted.limit],
        next=rows[wanted.limit - 1].unit if more else None,
        counts=counts if wanted.count else None,
    )


def _past(ask: Ask[Any], wanted: UnitList, machines: Sequence[Machine], start: Ref | None) -> Page[UnitRow]:
    """A page of how units stood at an instant."""
    from penstock.ledger import flow
    from penstock.ledger.history import units_as_of
    from penstock.operations.past import lacking

    at = wanted.at or ask.now
    if set(filters_of(wanted)) - {"status"}:
        raise UsageError("of the past only machine and state are known; leave the other filters out")
    database, rows, ends = ask.reader.database, list[UnitRow](), None
    for machine in (one for one in machines if start is None or one.name >= start.machine):
        after = start.unit_id if start is not None and start.machine == machine.name else ""
        left = wanted.limit - len(rows)
        page = units_as_of(database, machine.name, at, states=wanted.status, most=left, after=after)
        rows += [_stood(one) for one in page.units]
        if page.next is not None:
            ends = f"{machine.name}:{page.next}"
            break
    counts: dict[str, int] = {}
    if wanted.count:
        found = database.read(lambda cursor: flow.counts_at(database, cursor, at, wanted.machine))
        for state, n in ((s, n) for m in machines for s, n in found.get(m.name, {}).items()):
            if not wanted.status or state in wanted.status:
                counts[state] = counts.get(state, 0) + n
    note = lacking(ask, machines, at, graves=True)
    return Page(rows=rows, next=ends, counts=counts if wanted.count else None, note=note)


def _stood(one: AsOf) -> UnitRow:
    return UnitRow(
        unit=one.unit,
        status=str(one.status),
        changed_at=one.since,
        due_at=None,
        gate=None,
        claimed_by=None,
        parked_at=None,
        reason=one.reason,
    )


def _cursor(ask: Ask[Any], wanted: UnitList, text: str) -> Ref:
    """Where the page before ended. Raises UsageError for a cursor of another list."""
    (ref,) = read_refs(ask, [text])
    if wanted.machine not in (None, ref.machine):
        raise UsageError(f"{text!r:.100} is not a cursor of {wanted.machine}")
    return ref


def _some(cursor: Cursor, machine: Machine, where: Condition, after: str | None, most: int) -> Iterator[UnitRow]:
    """A page of one machine, in the order of keys."""
    driven = f"{machine.due}, gate_id, claimed_by, parked_at, COALESCE(parked_reason, change_reason)"
    picks = driven if machine.driven else "NULL, NULL, NULL, NULL, change_reason"
    follows = "" if after is None else " AND unit_id > :after"
    values = dict(where.values) if after is None else {**where.values, "after": after}
    rows = cursor.rows(
        f"SELECT unit_id, status, changed_at, {picks} FROM {machine.table} WHERE {where.sql}{follows}"
        " ORDER BY unit_id LIMIT :most",
        most=most,
        **values,
    )
    for unit_id, status, changed, due, gate, claimed, parked, reason in rows:
        yield UnitRow(
            unit=f"{machine.name}:{unit_id}",
            status=status,
            changed_at=instant(changed),
            due_at=instant(due),
            gate=gate,
            claimed_by=claimed,
            parked_at=instant(parked),
            reason=reason,
        )


@reading("units show", "One unit whole, with its last transitions.")
def show_unit(ask: Ask[KernelSettings], wanted: UnitThen) -> UnitDetail:
    """Of the past the history keeps the state, why, by whom, and the columns that the machine tracks.

    Where nobody has touched the unit since, the rest is known too.
    """
    from penstock.ledger.history import history

    ref = Ref.parse(wanted.unit)
    if wanted.at is not None:
        return _stood_whole(ask, ref, wanted.at)
    unit, machine = ask.reader.get(ref), ask.reader.machine(ref.machine)
    state = _state(machine, str(unit.status))
    return UnitDetail(
        unit=str(ref),
        status=str(unit.status),
        meaning=str(getattr(state, "meaning", "")),
        says=getattr(state, "says", ""),
        reason=unit.change_reason,
        changed_by=unit.changed_by,
        changed_at=unit.changed_at,
        version=unit.version,
        parent=_parent(machine, unit),
        operators_can=operators_can(machine, str(unit.status)),
        columns={n: shown(getattr(unit, n)) for n in field_types(machine.unit) if n not in DRIVEN_COLUMNS},
        history=_rows(history(ask.reader.database, ref)[-_LAST:]),
        **_driven(unit),
    )


def _driven(unit: GuardedUnit | None) -> dict[str, Any]:
    """What workers and schedules do with it."""
    if not isinstance(unit, Unit):
        return {}
    names = ("due_at", "claimed_by", "parked_at", "parked_reason", "attempts", "crashes", "doubts", "suspicion")
    return {name: getattr(unit, name) for name in names} | {"gate": unit.gate_id}


def _stood_whole(ask: Ask[Any], ref: Ref, at: datetime) -> UnitDetail:
    """A unit as its history knows it at an instant. Raises UnknownUnit where there was none."""
    from penstock.ledger.history import history

    machine, stood = ask.reader.machine(ref.machine), unit_then(ask, ref, at)
    assert stood.status is not None  # noqa: S101 - it was there
    told = [row for row in history(ask.reader.database, ref) if row.at <= at]
    state = _state(machine, stood.status)
    unit: Any = next(iter(ask.then(at).reader.get_many(machine, [ref.unit_id])), None)
    columns = dict(stood.data or {})
    if unit is not None:
        columns = {n: shown(getattr(unit, n)) for n in field_types(machine.unit) if n not in DRIVEN_COLUMNS}
    return UnitDetail(
        unit=str(ref),
        status=stood.status,
        meaning=str(getattr(state, "meaning", "")),
        says=getattr(state, "says", ""),
        reason=stood.reason if unit is None else unit.change_reason,
        changed_by=(unit.changed_by if unit is not None else _who(told)) or "",
        changed_at=stood.since if unit is None else unit.changed_at,
        version=stood.version or 0,
        parent=None if unit is None else _parent(machine, unit),
        operators_can=[],
        columns=columns,
        history=_rows(told[-_LAST:]),
        **_driven(unit),
    )


def _who(told: Sequence[Transition]) -> str | None:
    """Who wrote the last row; a baseline is nobody's."""
    from penstock.ledger.past import BASELINE

    return told[-1].actor if told and not told[-1].actor.startswith(BASELINE) else None


def _state(machine: Machine, status: str) -> Any:
    """The state with its sentence; that of a newer program is a bare text."""
    return next((state for state in field_types(machine.unit)["status"] if state == status), status)


def _parent(machine: Machine, unit: GuardedUnit) -> str | None:
    if machine.parent is None:
        return None
    return f"{machine.parent.machine}:" + "/".join(key_part(getattr(unit, name)) for name in machine.parent.by)


def operators_can(machine: Machine, state: str) -> list[str]:
    """What a person may do with a unit in that state, as `retry (→ queued)`."""
    return [
        f"{edge.trigger} (→ {edge.target})"
        for edge in machine.edges
        if str(edge.source) == state and Actor.OPERATOR in edge.actors
    ]


def shown(value: Any) -> Any:
    """A column's value as any surface can show it."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if not isinstance(value, date) or isinstance(value, datetime) else value.isoformat()


@reading("units history", "Every transition of one unit.")
def unit_history(ask: Ask[KernelSettings], wanted: HistoryWanted) -> Page[TransitionRow]:
    """How it stood at a moment is told by 'units show --at'."""
    from penstock.ledger.history import as_of, history

    ref = Ref.parse(wanted.unit)
    rows = _rows(history(ask.reader.database, ref))
    if wanted.at is None:
        return Page(rows=rows)
    found, moment = as_of(ask.reader.database, ref, wanted.at), instant_text(wanted.at)
    note = f"{ref} was {found.status or 'gone'} at {moment}"
    if found.since is None:
        note = f"{ref} was not born at {moment}{f'; {found.note}' if found.note else ''}"
    return Page(rows=[row for row in rows if row.at <= wanted.at], note=note)


def _rows(found: Sequence[Transition]) -> list[TransitionRow]:
    return [
        TransitionRow(
            at=one.at,
            source=one.from_status,
            target=one.to_status,
            trigger=one.trigger,
            actor=one.actor,
            reason=one.reason,
            version=one.version,
            action=one.action_id,
            data=one.data,
        )
        for one in found
    ]


@reading("units why", "What holds a unit back or moves it on, and until when.")
def why(ask: Ask[KernelSettings], wanted: UnitThen) -> Why:
    """Of the past it says what is known still, and what is not."""
    from penstock.operations.why_then import explain_then

    ref = Ref.parse(wanted.unit)
    if wanted.at is not None:
        return explain_then(ask, _deciding(ask, ask.reader.machine(ref.machine).name), ref, wanted.at)
    ask.reader.get(ref)
    return explain(ask.reader, _deciding(ask, ref.machine), ref)


def _deciding(ask: Ask[KernelSettings], machine: str) -> AnyFlow | Deciding | str:
    """How the machine's units are decided: declared, or by their flow; a sentence where that cannot be made."""
    owner = ask.program.app.owner(machine)
    if not ask.reader.machine(machine).driven:
        return f"workers do not move units of {machine}"
    declared = owner.decides().get(machine)
    if declared is not None and declared.decide is not None:
        settings = ask.program.settings(owner)
        return Deciding(declared.name or machine, declared.decide, settings, declared.peek)
    try:
        flows = ask.program.flows_of(owner)
    except UsageError as error:
        return f"its flow cannot be made: {error}"
    return next((flow for flow in flows if flow.machine.name == machine), f"this program has no flow for {machine}")


READINGS: list[Reading[KernelSettings]] = [
    list_units,
    show_unit,
    unit_history,
    why,
    # The two that are asked most, under a short name of their own.
    Reading("history", unit_history.says, unit_history.function),
    Reading("why", why.says, why.function),
]

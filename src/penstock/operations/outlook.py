"""The forecast put together: what is due, what schedules bring forth and what lifecycles expect, led through the gates.

Of now it knows when each unit is due. Of an instant in the past it knows what the history knew then: where each unit
stood and since when; when it was due follows from its lifecycle, or from how long units like it had stayed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from penstock.ledger import flow, prospect
from penstock.ledger.delivery import machine as delivery
from penstock.ledger.gates.status import gate_statuses
from penstock.ledger.history import units_as_of
from penstock.ledger.store.database import Cursor, Database
from penstock.model.errors import PenstockError, UsageError
from penstock.model.experience import Experience, kind_of
from penstock.model.forecast import Budget, Door, Expected, Foreseen, Outlook
from penstock.model.limits import limits_of
from penstock.model.machine import Actor, Machine
from penstock.model.unit import replace
from penstock.operations.reader import Reader
from penstock.operations.schedules import schedules_then
from penstock.worker.schedule_unit import S, Schedule, cadence_of
from penstock.worker.schedule_unit import machine as schedule

DAY = timedelta(days=1)
_HOUR = timedelta(hours=1)
LEARNED = timedelta(days=60)
"""So much of the past a forecast is made of."""
_ALIKE = 7
_TICKS = 2_000


@dataclass(slots=True)
class Prospect:
    """A forecast: what will happen, what is asked of the gates, and what should be known of how it was made."""

    rows: list[Foreseen]
    doors: list[Door]
    affords: dict[str, int | None]
    notes: list[str] = field(default_factory=list)


def prospect_of(program: Any, reader: Reader, now: datetime, until: datetime, *, past: bool = False) -> Prospect:
    """What will happen between two instants. `past`: as the history knew it then, and not as units stand now."""
    making = _Making(program, reader, now, until, past)
    return reader.database.read(making.made)


def budgeted(program: Any, reader: Reader) -> bool:
    """Whether any gate has a budget that could run out."""
    configured = program.limits()
    gates = reader.database.read(lambda cursor: gate_statuses(reader.database, cursor))
    return any(one.limits or ((own := limits_of(one.gate_id, configured)) and own.limits) for one in gates)


class _Making:
    def __init__(self, program: Any, reader: Reader, now: datetime, until: datetime, past: bool) -> None:
        self._program = program
        self._reader = reader
        self._now = now
        self._until = until
        self._at = now if past else None
        self._machines = {machine.name: machine for machine in reader.kept()}
        self._homes = {m.name: one.name for one in program.app.lifecycles for m in one.machines}
        self._owners = {m.name: one for one in program.app.lifecycles for m in one.machines}
        #: One unit of each kind: those that are not born yet will go through the same gates.
        self._like: dict[tuple[str, str], Any] = {}
        #: Where states are only counted, the gate is known beforehand.
        self._behind: dict[tuple[str, str], str] = {}
        self._gates: dict[str, Callable[[Any], str]] = {}
        self._notes: list[str] = []

    def made(self, cursor: Cursor) -> Prospect:
        database = self._reader.database
        history = prospect.newest_history(database, cursor, self._at)
        known = Experience(self._machines, self._homes, history)
        doors = self._doors(database, cursor)
        affords = {name: door.affords(self._until) for name, door in doors.items()}
        expected = [one for machine in self._driven() for one in self._of_units(database, cursor, known, machine)]
        expected += self._of_schedules(database, cursor, known)
        outlook = Outlook(self._machines, known, doors, self._until, expects=self.expects, gate_of=self._gate_of)
        rows = outlook.lead(expected)
        if outlook.stopped_early:
            self._notes.append("more is due than is reckoned with: what comes later is left out")
        return Prospect(rows, list(doors.values()), affords, self._notes)

    def _driven(self) -> Iterator[Machine]:
        return (one for one in self._machines.values() if one.driven and one is not schedule)

    def expects(self, unit: Any, state: str, since: datetime) -> Sequence[Expected] | None:
        """What the lifecycle of a unit expects of it, had it come into that state then."""
        machine = next(one for one in self._machines.values() if one.unit is type(unit))
        owner = self._owners[machine.name]
        if owner.expects is None:
            return None
        found = owner.expects(self._program.settings(owner), replace(unit, status=machine.status(state)), since)
        return None if found is None else list(found)

    def _gate_of(self, one: Expected) -> str | None:
        """The gate that the step of a unit needs, or of one that is like it."""
        known = self._behind.get((one.machine, one.kind))
        unit = one.unit or self._like.get((one.machine, one.kind)) or self._like.get((one.machine, ""))
        if known is not None or unit is None:
            return known
        machine = self._machines[one.machine]
        if machine.name not in self._gates:
            self._gates |= _gates_of(self._program, self._owners[machine.name], machine)
        return self._gates[machine.name](replace(unit, status=machine.status(str(one.source))))

    def _of_units(self, database: Database, cursor: Cursor, known: Experience, machine: Machine) -> Iterator[Expected]:
        if self._at is not None:
            yield from self._as_they_stood(database, cursor, known, machine, self._at)
            return
        units, all_ = prospect.due_units(database, cursor, machine, self._until)
        if not all_:
            yield from self._by_the_hour(database, cursor, machine, units)
            return
        whole = self._whole(machine, [one.unit_id for one in units])
        visits = prospect.departures(database, cursor, machine.name, whole, None)
        for one in units:
            if one.unit_id in whole:
                due = Expected(machine=machine.name, at=max(self._now, one.due), source=one.state)
                unit = whole[one.unit_id]
                yield from self._known(machine, unit, one.state, due, unit.changed_at or self._now, visits)

    def _by_the_hour(
        self, database: Database, cursor: Cursor, machine: Machine, units: Sequence[prospect.DueUnit]
    ) -> Iterator[Expected]:
        """Too many to look at each: their states are as those of the ones that were looked at."""
        states = Counter(one.state for one in units)
        for hour in prospect.due_hours(database, cursor, machine, self._now, self._until):
            for state, n in states.items():
                share = n / len(units)
                self._behind[machine.name, hour.gate] = hour.gate
                yield Expected(machine=machine.name, at=hour.hour, source=state, n=hour.n * share, kind=hour.gate)
        self._notes.append(f"of {machine.name} more than {len(units):,} units are due: their states are an estimate")

    def _as_they_stood(
        self, database: Database, cursor: Cursor, known: Experience, machine: Machine, at: datetime
    ) -> Iterator[Expected]:
        states = [state for state in machine.states if state not in machine.terminal]
        page = units_as_of(database, machine.name, at, states=states, most=prospect.UNITS)
        if page.next is not None:
            self._notes.append(f"of {machine.name} only the first {len(page.units):,} units were looked at")
        stood = {one.unit.partition(":")[2]: one for one in page.units}
        whole = self._whole(machine, list(stood))
        visits = prospect.departures(database, cursor, machine.name, whole, at)
        for unit_id, unit in whole.items():
            one = stood[unit_id]
            state, since = str(one.status), one.since or at
            visit = visits.get(unit_id, {}).get(state, 0) + 1
            stay = known.stay(machine.name, state, kind_of(unit_id), visit, (at - since).total_seconds())
            due = None
            if stay is not None:
                due = Expected(machine=machine.name, at=since + timedelta(seconds=stay), source=state)
            yield from self._known(machine, unit, state, due, since, visits)

    def _known(  # noqa: PLR0917 - all that is known of a unit
        self,
        machine: Machine,
        unit: Any,
        state: str,
        due: Expected | None,
        since: datetime,
        visits: Mapping[str, Mapping[str, int]],
    ) -> Iterator[Expected]:
        """What its lifecycle expects of it; where that says nothing, that it leaves its state when it is due."""
        said = self.expects(unit, state, since)
        expected = said if said is not None else [due] if due is not None else []
        kind = kind_of(unit.unit_id)
        self._like[machine.name, kind] = self._like[machine.name, ""] = unit
        for one in expected:
            mine = one.machine == machine.name and one.source is not None and one.source == state
            moment = max(one.at, self._now)
            if not mine:
                if one.at >= self._now:
                    yield one
                continue
            yield replace(
                one,
                at=moment,
                kind=kind,
                unit_id=unit.unit_id,
                unit=unit,
                visits=visits.get(unit.unit_id, {}),
            )

    def _whole(self, machine: Machine, unit_ids: Sequence[str]) -> dict[str, Any]:
        return {one.unit_id: one for one in self._reader.get_many(machine, unit_ids)} if unit_ids else {}

    def _of_schedules(self, database: Database, cursor: Cursor, known: Experience) -> Iterator[Expected]:
        """Births, in the hours in which a lifecycle's schedules tick: as many as in those hours of earlier days."""
        window = flow.Window(self._now - LEARNED, flow.at_instant(self._at).end)
        born = flow.births(database, cursor, window)
        seen: set[tuple[str, datetime]] = set()
        for one, tick in self._ticks():
            owner = next((x for x in self._program.app.lifecycles if any(job.name == one.job for job in x.jobs)), None)
            if owner is None:
                continue
            said = None if owner.expects is None else owner.expects(self._program.settings(owner), one, tick)
            if said is not None:
                yield from said
                continue
            hour = tick.replace(minute=0, second=0, microsecond=0)
            if (owner.name, hour) in seen:
                continue
            seen.add((owner.name, hour))
            every = cadence_of(one).every or DAY
            yield from self._births(owner, born, known, tick, max(DAY, every))

    def _births(
        self,
        owner: Any,
        born: Mapping[tuple[str, str, datetime], int],
        known: Experience,
        tick: datetime,
        apart: timedelta,
    ) -> Iterator[Expected]:
        hour = tick.replace(minute=0, second=0, microsecond=0)
        earlier = _earlier(owner, born, hour, apart)
        for machine in owner.machines:
            if not machine.driven or machine.name not in self._machines or machine in (delivery, schedule):
                continue
            for state, actors in machine.born_by.items():
                total = sum(born.get((machine.name, state, at), 0) for at in earlier)
                if Actor.SCHEDULER not in actors or not total or not known.born_by_schedule(machine.name, state):
                    continue
                for kind, share in known.kinds_born(machine.name, state, tick.hour).items():
                    n = total / len(earlier) * share
                    yield Expected(machine=machine.name, at=tick, target=state, n=n, kind=kind)

    def _ticks(self) -> Iterator[tuple[Schedule, datetime]]:
        """Every tick of the schedules that are active."""
        if schedule.name not in self._machines:
            return
        for one in self._schedules():
            if one.status is not S.ACTIVE or one.parked_at is not None:
                continue
            try:
                cadence = cadence_of(one)
                tick = cadence.next_after(self._now, one.name)
            except UsageError:
                continue
            if self._at is None and one.due_at is not None:
                tick = max(self._now, one.due_at)
            for _ in range(_TICKS):
                if tick >= self._until:
                    break
                yield one, tick
                tick = cadence.next_after(tick, one.name)

    def _schedules(self) -> list[Schedule]:
        if self._at is not None:
            return [one for one, _ in schedules_then(self._reader, self._at) if one.every or one.at]
        names = [str(row[0]) for row in self._reader.read(lambda c: c.rows(f"SELECT unit_id FROM {schedule.table}"))]
        return self._reader.get_many(schedule, names)

    def _doors(self, database: Database, cursor: Cursor) -> dict[str, Door]:
        doors = {}
        configured = self._program.limits()
        for one in prospect.gates_ahead(database, cursor, self._now, self._at):
            limits = one.limits
            if not limits and (given := limits_of(one.gate_id, configured)) is not None:
                limits = [(x.rate, x.burst, x.cost, x.burst) for x in given.limits]
            doors[one.gate_id] = Door(one.gate_id, one.opens, self._now, [Budget(*limit) for limit in limits])
        return doors


def _earlier(
    owner: Any, born: Mapping[tuple[str, str, datetime], int], hour: datetime, apart: timedelta
) -> list[datetime]:
    """The hours that one is like: of the days before, or where it comes less than daily, the last with births."""
    if apart > DAY:
        names = {machine.name for machine in owner.machines}
        return sorted({at for name, _, at in born if name in names and at < hour})[-_ALIKE:]
    begun = min((at for _, _, at in born), default=hour)
    return [hour - n * apart for n in range(1, _ALIKE + 1) if begun <= hour - n * apart]


def _gates_of(program: Any, owner: Any, machine: Machine) -> dict[str, Callable[[Any], str]]:
    """What names the gate of a unit's next step, by machine: as declared, or the flows of the lifecycle.

    Where neither can tell, it is the gate that the unit has.
    """
    declared, settings = owner.decides().get(machine.name), program.settings(owner)
    if declared is not None and declared.gate is not None:
        gate = declared.gate
        return {machine.name: lambda unit: gate(unit, settings)}
    if declared is not None:
        return {machine.name: _gate_it_has}
    try:
        built = program.flows_of(owner)
    except (PenstockError, OSError):
        built = []
    named = {one.machine.name: partial(_gate_by_flow, one) for one in built}
    return {machine.name: _gate_it_has, **named}


def _gate_it_has(unit: Any) -> str:
    return str(unit.gate_id)


def _gate_by_flow(built: Any, unit: Any) -> str:
    return str(built.gate(unit).gate_id)

"""An outcome checked and made plain: everything that can be refused without asking the database is refused here."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import astuple

from penstock.ledger.parents import Tally, step
from penstock.ledger.rows import outcome_writes, plain_update, plain_value, plain_where
from penstock.ledger.schema import seals
from penstock.ledger.schema.columns import LAND_IT, plain, python_type, readable
from penstock.ledger.sets import PreparedSet, prepare_set
from penstock.model import correlation
from penstock.model.errors import BrokenFlow, MachineError, TooLarge, UnknownMachine
from penstock.model.machine import Actor, Machine
from penstock.model.move_set import MoveSet
from penstock.model.outcome import MAX_EVENT, MAX_ROWS, Birth, Event, Move, Outcome, Update, Where, Write
from penstock.model.unit import DRIVEN_COLUMNS, FORGIVEN, GuardedUnit, Unit, field_types, key_part, replace, unit_id_of

if TYPE_CHECKING:
    from penstock.model.clock import Rng

# What only the kernel writes. The rest of a driven unit's kernel columns a step may set.
_SEALED = frozenset({"unit_id", "version", "changed_by", "change_reason", "changed_at", "wakes", "claimed_by"})
_OFTEN = frozenset({"status", "due_at"})
_WIDEST = 4  # bytes of a character
DUE = 7
"""The place of the schedule in a driven unit's row of a batch."""
# A newborn is nobody's, whatever unit it was copied from.
UNCLAIMED = {
    "claimed_by": None,
    "wakes": 0,
    "crashes": 0,
    "doubts": 0,
    "suspicion": 0,
    "parked_at": None,
    "parked_reason": None,
}


@dataclass(slots=True)
class Change:
    """One compare-and-set of a unit: which columns change, and its row of the batch (see `Preparer._change`)."""

    machine: Machine
    changed: tuple[str, ...]
    row: list[Any]
    keep_claim: bool = False

    @property
    def unit_id(self) -> str:
        return self.row[0]  # type: ignore[no-any-return]

    @property
    def version(self) -> int:
        """The version that it rests on."""
        return self.row[1]  # type: ignore[no-any-return]


@dataclass(slots=True)
class Newborn:
    """One birth: its row of the batch, in column order without `changed_at`."""

    machine: Machine
    row: list[Any]
    if_absent: bool


class PreparedOutcome:
    """One outcome, ready to commit: all values are plain, the rows of `writes` in column order.

    Most are a change of their unit and nothing else (not `more`), and there are many: what they lack costs nothing.
    """

    more = False
    moves: Sequence[Change] = ()
    births: Sequence[Newborn] = ()
    tallies: Sequence[Tally] = ()
    writes: Sequence[Write] = ()
    updates: Sequence[Update] = ()
    sets: Sequence[PreparedSet] = ()
    only_if_absent: Sequence[Where] = ()
    events: Sequence[list[Any]] = ()
    gates: Collection[str] = ()

    def __init__(self, change: Change) -> None:
        self.change = change

    @property
    def rows(self) -> int:
        """How many rows it writes, about."""
        return 1 + len(self.births) + sum(len(w.rows) for w in self.writes) + sum(s.limit for s in self.sets)


class Preparer:
    """Turns outcomes into entries; knows the machines and who is acting."""

    def __init__(self, machines: Mapping[str, Machine], rng: Rng) -> None:
        self.machines = machines
        self._rng = rng
        self._by_type = {m.unit: m for m in machines.values()}
        self._own = {m.name: _own_columns(m) for m in machines.values()}
        self._legal: dict[Any, tuple[Machine, str, str]] = {}
        for machine in machines.values():
            self._check_parent(machine)
        seals.check(machines.values())

    def machine_of(self, unit: GuardedUnit) -> Machine:
        """The machine that a unit belongs to."""
        try:
            return self._by_type[type(unit)]
        except KeyError:
            msg = f"{type(unit).__name__} belongs to no machine of this program"
            raise UnknownMachine(msg) from None

    def entry(self, outcome: Outcome[Any], who: str) -> PreparedOutcome:
        """Check one outcome. Raises IllegalMove or BrokenFlow, naming the unit and what is wrong."""
        before, after = outcome.before, outcome.after
        change = self._change(before, after, outcome.reason, outcome.actor, outcome.who or who)
        change.keep_claim = outcome.keep_claim
        if outcome.keep_crashes or outcome.keep_claim:
            _keep(change, before)
        entry = PreparedOutcome(change)
        units = (
            change.machine.parent is not None
            or after.gate_id != before.gate_id
            or outcome.others
            or outcome.move_sets
            or outcome.parent_counts
        )
        if units or outcome.writes or outcome.updates or outcome.only_if_absent or outcome.events:
            entry.more = True
            self._fill(entry, outcome, who)
        return entry

    def _fill(self, entry: PreparedOutcome, outcome: Outcome[Any], who: str) -> None:
        change, before, after = entry.change, outcome.before, outcome.after
        if after.gate_id != before.gate_id:
            entry.gates = (after.gate_id,)
        if change.machine.parent is not None or outcome.parent_counts:
            entry.tallies = self._tally(change, before, outcome.parent_counts or {})
        if outcome.others:
            self._also(entry, outcome.others, who)
            if len(outcome.others) > MAX_ROWS:
                msg = f"{_ref(change)}: {len(outcome.others):,} others; an outcome carries at most {MAX_ROWS:,}"
                raise BrokenFlow(msg)
        if outcome.move_sets:
            entry.sets = [self.move_set(_ref(change), one, who) for one in outcome.move_sets]
            entry.gates = {*entry.gates, *(gate for one in entry.sets for gate in one.gates)}
        if outcome.writes:
            entry.writes = outcome_writes(_ref(change), outcome.writes)
        if outcome.updates:
            entry.updates = [plain_update(_ref(change), amend) for amend in outcome.updates]
        if outcome.only_if_absent:
            entry.only_if_absent = [plain_where(_ref(change), rows) for rows in outcome.only_if_absent]
        if outcome.events:
            entry.events = [_event(change, event) for event in outcome.events]

    def move(self, before: GuardedUnit, after: GuardedUnit, reason: str, actor: Actor, who: str) -> PreparedOutcome:
        """A change pulled from outside a claim: an operator's, a validator's, the API's."""
        change = self._from_outside(before, after, reason, actor, who)
        gate = getattr(after, "gate_id", None)
        entry = PreparedOutcome(change)
        entry.more = True
        entry.tallies = self._tally(change, before, {})
        entry.gates = () if gate is None or gate == getattr(before, "gate_id", None) else (gate,)
        return entry

    def move_set(self, ref: str, given: MoveSet, who: str) -> PreparedSet:
        """A move of many, checked like any other. Raises UnknownMachine, IllegalMove or BrokenFlow, naming `ref`."""
        machine = self.machines.get(given.machine)
        if machine is None:
            raise UnknownMachine(f"{ref}: no machine is called {given.machine!r}")
        fan_in = machine.parent
        if fan_in is not None and fan_in.machine not in self.machines:
            raise UnknownMachine(f"the parent of {machine.name} is {fan_in.machine!r}, unknown to this program")
        return prepare_set(ref, machine, given, self._own[machine.name], f"{given.actor}:{given.who or who}")

    def together(
        self, others: Sequence[Birth | Move], writes: Sequence[Write], events: Sequence[Event], who: str
    ) -> PreparedOutcome:
        """Changes of several units from outside a claim, the rows and events that go with them; the first is theirs."""
        entry = PreparedOutcome(
            Change(self.machine_of(_unit(others[0])), (), [unit_id_of(_unit(others[0])), _unit(others[0]).version])
        )
        entry.more = True
        self._also(entry, others, who)
        entry.writes = outcome_writes(_ref(entry.change), writes)
        entry.events = [_event(entry.change, event) for event in events]
        return entry

    def newborn(self, birth: Birth, who: str) -> Newborn:
        """A birth as a row; a version is drawn, and the key's text is made. Raises IllegalMove."""
        unit = birth.unit
        machine = self.machine_of(unit)
        machine.check_birth(str(unit.status), birth.actor)
        made = {
            "unit_id": unit_id_of(unit),
            "version": self._rng.version(),
            "changed_by": f"{birth.actor}:{birth.who or who}",
            "change_reason": readable(birth.reason),
            **(UNCLAIMED if machine.driven else {}),
        }
        skip = machine.generated() | {"changed_at"}
        ref = f"{machine.name}:{made['unit_id']}"
        row = [
            plain_value(ref, n, made[n] if n in made else getattr(unit, n)) for n in machine.columns if n not in skip
        ]
        return Newborn(machine, row, birth.if_absent)

    def _change(self, before: GuardedUnit, after: GuardedUnit, reason: str, actor: Actor, who: str) -> Change:
        move = (type(before), type(after), before.status, after.status, actor)
        legal = self._legal.get(move)
        if legal is None:
            legal = self._legal[move] = self._check(before, after, actor)
        machine, source, target = legal
        # Most steps change state and schedule and nothing else; every step is asked, and structs compare quickly.
        often: GuardedUnit
        if isinstance(before, Unit) and isinstance(after, Unit):
            often = replace(before, status=after.status, due_at=after.due_at)
        else:
            often = replace(before, status=after.status)
        changed = () if often == after else self._changed(machine, before, after)
        if source == target and machine.tracked and any(name in machine.tracked for name in changed):
            machine.check_loop(source, actor)
        row = [before.unit_id, before.version, source, target, self._name(actor, who), readable(reason)]
        try:
            if isinstance(before, Unit) and isinstance(after, Unit):
                row += (before.wakes, None if target in machine.terminal else plain(after.due_at))
            if changed:
                row += [plain(getattr(before, n)) for n in machine.counters if n in changed]
                row += [plain(getattr(after, n)) for n in changed]
        except (TypeError, ValueError, RecursionError):
            for name in (*changed, "due_at"):
                plain_value(f"{machine.name}:{before.unit_id}", name, getattr(after, name, None))
            raise
        return Change(machine, changed, row)

    def _from_outside(self, before: GuardedUnit, after: GuardedUnit, reason: str, actor: Actor, who: str) -> Change:
        """A change that no step of the unit made: it settles no doubt, and whoever holds the unit may have acted."""
        change = self._change(before, after, reason, actor, who)
        if isinstance(before, Unit) and "doubts" not in change.changed:
            doubts = before.doubts or int(before.claimed_by is not None)
            if doubts:
                change.changed = (*change.changed, "doubts")
                change.row.append(doubts)
        return change

    def _check(self, before: GuardedUnit, after: GuardedUnit, actor: Actor) -> tuple[Machine, str, str]:
        """The machine and the two states of a legal move. Raises as `entry` does."""
        machine = self.machine_of(before)
        if type(after) is not type(before):
            msg = f"{machine.name}:{before.unit_id}: after is a {type(after).__name__}"
            raise BrokenFlow(msg)
        source, target = str(before.status), str(after.status)
        machine.check_move(source, target, actor)
        return machine, source, target

    def _changed(self, machine: Machine, before: GuardedUnit, after: GuardedUnit) -> tuple[str, ...]:
        """The columns that are now others, but for state and schedule. Raises BrokenFlow for what is not a step's."""
        values = zip(before.__struct_fields__, astuple(before), astuple(after), strict=True)
        changed = tuple([n for n, old, new in values if n not in _OFTEN and new is not old and new != old])
        sealed = ", ".join(sorted({*changed} - self._own[machine.name]))
        if sealed:
            msg = f"{machine.name}:{before.unit_id}: a step cannot change {sealed}"
            raise BrokenFlow(msg)
        return changed

    @functools.lru_cache(maxsize=64)  # noqa: B019 - a handful of actors, for the life of the program
    def _name(self, actor: Actor, who: str) -> str:
        return f"{actor}:{who}"

    def _tally(self, change: Change, before: GuardedUnit, extra: Mapping[str, int]) -> Sequence[Tally]:
        fan_in = change.machine.parent
        if fan_in is None:
            if extra:
                msg = f"{change.machine.name} has no parent to count on"
                raise BrokenFlow(msg)
            return ()
        counters, asks = step(fan_in, change.row[2], change.row[3])
        if extra:
            counters |= {name: counters.get(name, 0) + number for name, number in extra.items()}
            asks = True  # a parent may wait for what a step counts by itself
        if not counters:
            return ()
        parent = self.machines.get(fan_in.machine)
        if parent is None:
            msg = f"the parent of {change.machine.name} is {fan_in.machine!r}, unknown to this program"
            raise UnknownMachine(msg)
        unknown = ", ".join(sorted(set(counters) - set(parent.counters)))
        if unknown:
            msg = f"{_ref(change)}: {parent.name} has no counter {unknown}"
            raise BrokenFlow(msg)
        parent_id = "/".join([key_part(getattr(before, name)) for name in fan_in.by])
        return (Tally(change.machine, parent, parent_id, counters, asks),)

    def _also(self, entry: PreparedOutcome, others: Sequence[Birth | Move], who: str) -> None:
        births = [item for item in others if isinstance(item, Birth)]
        entry.births = [self.newborn(birth, who) for birth in births]
        entry.gates = {*entry.gates, *(b.unit.gate_id for b in births if isinstance(b.unit, Unit))}
        moves = [item for item in others if isinstance(item, Move)]
        entry.moves = [self._from_outside(m.before, m.after, m.reason, m.actor, m.who or who) for m in moves]
        for change, move in zip(entry.moves, moves, strict=True):
            if move.keep_crashes and isinstance(move.before, Unit):
                _keep(change, move.before)
        entry.gates = {*entry.gates, *(m.after.gate_id for m in moves if isinstance(m.after, Unit))}
        for change, move in zip(entry.moves, moves, strict=True):
            entry.tallies = (*entry.tallies, *self._tally(change, move.before, {}))

    def _check_parent(self, machine: Machine) -> None:
        """A child's declaration names columns of its parent: they must be there before anything counts on them."""
        fan_in = machine.parent
        parent = self.machines.get(fan_in.machine) if fan_in is not None else None
        if fan_in is None or parent is None:
            return
        wrong = [f"{parent.name} has no counter {n!r}" for n in fan_in.counts if n not in parent.counters]
        odd = [n for n in (*parent.counters, fan_in.expected) if n not in _numbers(parent)]
        wrong += [f"{parent.name} cannot count in {n!r}" for n in odd]
        if len(fan_in.by) != len(parent.unit.key):
            wrong.append(f"{parent.name} is found by {', '.join(parent.unit.key)}")
        if not parent.driven:
            wrong.append(f"{parent.name} is not driven, so nothing could wake it")
        if wrong:
            raise MachineError(f"machine {machine.name!r}: " + "; ".join(wrong))


def _own_columns(machine: Machine) -> frozenset[str]:
    """The columns that a step may change."""
    return frozenset(machine.columns) - _SEALED - frozenset(machine.lasting) - machine.generated()


def _numbers(machine: Machine) -> frozenset[str]:
    """The columns of its own that are whole numbers."""
    numbers = {n for n, kind in field_types(machine.unit).items() if python_type(kind)[0] is int}
    return frozenset(numbers & {*_own_columns(machine), *machine.fixed}) - frozenset(DRIVEN_COLUMNS)


def _unit(item: Birth | Move) -> GuardedUnit:
    return item.unit if isinstance(item, Birth) else item.before


def _keep(change: Change, before: Unit) -> None:
    """What a commit forgives stays as it is."""
    for name in FORGIVEN:
        if name not in change.changed:
            change.changed = (*change.changed, name)
            change.row.append(getattr(before, name))


def _ref(change: Change) -> str:
    return f"{change.machine.name}:{change.unit_id}"


def _event(change: Change, event: Event) -> list[Any]:
    # The id of the step, as in its log and its calls. Outside of steps, the row of the history that the commit makes.
    step = correlation.current() or f"{_ref(change)}@{change.row[1] + 1}"
    return [*event_row(_ref(change), event), change.machine.name, change.unit_id, step]


def event_row(ref: str, event: Event) -> list[Any]:
    """An event as a row, without what it is about. Raises TooLarge, naming `ref`."""
    payload = plain_value(ref, f"the event {event.key!r}", dict(event.payload))
    if len(payload) * _WIDEST > MAX_EVENT and (size := len(payload.encode())) > MAX_EVENT:
        msg = f"its payload has {size:,} bytes, an event's at most {MAX_EVENT:,}; {LAND_IT}"
        raise TooLarge(f"{ref}: the event {event.key!r} cannot be stored: {msg}")
    return [event.tenant, event.key, event.kind, event.severity, payload]

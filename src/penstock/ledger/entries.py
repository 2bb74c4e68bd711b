"""An outcome checked and made plain: everything that can be refused without asking the database is refused here."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import BrokenFlow, UnknownMachine
from penstock.ledger.columns import plain
from penstock.machine import Actor, Machine
from penstock.outcome import MAX_BYTES, MAX_ROWS, Birth, Event, Move, Outcome, Write
from penstock.unit import GuardedUnit, Unit, key_part, unit_id_of

if TYPE_CHECKING:
    from penstock.clock import Rng

# What only the kernel writes. The rest of a driven unit's kernel columns a step may set.
_SEALED = frozenset({"unit_id", "version", "changed_by", "change_reason", "changed_at", "wakes", "claimed_by"})
_OFTEN = frozenset({"status", "due_at"})


@dataclass(slots=True)
class Change:
    """One compare-and-set of a unit: which columns change, and its row of the batch."""

    machine: Machine
    changed: tuple[str, ...]
    row: list[Any]
    keep_claim: bool = False

    @property
    def unit_id(self) -> str:
        return self.row[0]  # type: ignore[no-any-return]


@dataclass(slots=True)
class Newborn:
    """One birth: its row of the batch, in column order without `changed_at`."""

    machine: Machine
    row: list[Any]
    if_absent: bool


@dataclass(slots=True)
class Tally:
    """Increments on one parent."""

    child: Machine
    parent: Machine
    unit_id: str
    counters: Mapping[str, int]


@dataclass(slots=True)
class Entry:
    """One outcome, ready to commit."""

    change: Change
    moves: Sequence[Change] = ()
    births: Sequence[Newborn] = ()
    tallies: Sequence[Tally] = ()
    writes: Sequence[Write] = ()
    events: Sequence[Event] = ()
    gates: Collection[str] = ()


class Preparer:
    """Turns outcomes into entries; knows the machines and who is acting."""

    def __init__(self, machines: Mapping[str, Machine], rng: Rng) -> None:
        self.machines = machines
        self._rng = rng
        self._by_type = {m.unit: m for m in machines.values()}
        self._own = {m.name: _own_columns(m) for m in machines.values()}

    def machine_of(self, unit: GuardedUnit) -> Machine:
        """The machine that a unit belongs to."""
        try:
            return self._by_type[type(unit)]
        except KeyError:
            msg = f"{type(unit).__name__} belongs to no machine of this program"
            raise UnknownMachine(msg) from None

    def entry(self, outcome: Outcome[Any], who: str) -> Entry:
        """Check one outcome. Raises IllegalMove or BrokenFlow, naming the unit and what is wrong."""
        before, after = outcome.before, outcome.after
        change = self._change(before, after, outcome.reason, outcome.actor, who)
        change.keep_claim = outcome.keep_claim
        entry = Entry(change)
        if after.gate_id != before.gate_id:
            entry.gates = (after.gate_id,)
        if change.machine.parent is not None or outcome.tally:
            entry.tallies = self._tally(change, before, outcome.tally or {})
        if outcome.also:
            self._also(entry, outcome.also, who)
        if outcome.writes:
            _check_size(outcome)
            entry.writes = outcome.writes
        entry.events = outcome.events
        return entry

    def move(self, before: GuardedUnit, after: GuardedUnit, reason: str, actor: Actor, who: str) -> Entry:
        """A change pulled from outside a claim: an operator's, a validator's, the API's."""
        change = self._change(before, after, reason, actor, who)
        gate = getattr(after, "gate_id", None)
        gates = () if gate is None or gate == getattr(before, "gate_id", None) else (gate,)
        return Entry(change, tallies=self._tally(change, before, {}), gates=gates)

    def newborn(self, birth: Birth, who: str) -> Newborn:
        """A birth as a row; a version is drawn, and the key's text is made."""
        unit = birth.unit
        machine = self.machine_of(unit)
        if str(unit.status) not in machine.births:
            msg = f"{machine.name} cannot be born as {unit.status}; it is born as {', '.join(machine.births)}"
            raise BrokenFlow(msg)
        made = {
            "unit_id": unit_id_of(unit),
            "version": self._rng.version(),
            "changed_by": f"{birth.actor}:{who}",
            "change_reason": birth.reason,
        }
        skip = machine.generated() | {"changed_at"}
        values = vars(unit)
        row = [plain(made[n] if n in made else values[n]) for n in machine.columns if n not in skip]
        return Newborn(machine, row, birth.if_absent)

    def _change(self, before: GuardedUnit, after: GuardedUnit, reason: str, actor: Actor, who: str) -> Change:
        machine = self.machine_of(before)
        if type(after) is not type(before):
            msg = f"{machine.name}:{before.unit_id}: after is a {type(after).__name__}"
            raise BrokenFlow(msg)
        source, target = str(before.status), str(after.status)
        machine.check_move(source, target, actor)
        old, new = vars(before), vars(after)
        touched = [n for n, v in new.items() if v is not old[n]]
        differ = [n for n in touched if n not in _OFTEN and new[n] != old[n]]
        own = self._own[machine.name]
        changed = tuple([n for n in differ if n in own])
        if len(changed) != len(differ):
            sealed = ", ".join(sorted(set(differ) - own))
            msg = f"{machine.name}:{before.unit_id}: a step cannot change {sealed}"
            raise BrokenFlow(msg)
        row = [before.unit_id, before.version, source, target, self._name(actor, who), reason]
        if "wakes" in old:
            row += (old["wakes"], None if target in machine.terminal else plain(new["due_at"]))
        row += [plain(new[n]) for n in changed]
        return Change(machine, changed, row)

    @functools.lru_cache(maxsize=64)  # noqa: B019 - a handful of actors, for the life of the program
    def _name(self, actor: Actor, who: str) -> str:
        return f"{actor}:{who}"

    def _tally(self, change: Change, before: GuardedUnit, extra: Mapping[str, int]) -> Sequence[Tally]:
        fan_in = change.machine.parent
        if fan_in is None:
            if extra:
                msg = f"{change.machine.name} has no parent to tally on"
                raise BrokenFlow(msg)
            return ()
        source, target = change.row[2], change.row[3]
        counters = dict(extra)
        if source != target:
            for counter, states in fan_in.counts.items():
                step = (target in states) - (source in states)
                if step:
                    counters[counter] = counters.get(counter, 0) + step
        if not counters:
            return ()
        parent = self.machines.get(fan_in.machine)
        if parent is None:
            msg = f"{change.machine.name} counts on {fan_in.machine!r}, which this program does not know"
            raise UnknownMachine(msg)
        parent_id = "/".join([key_part(getattr(before, name)) for name in fan_in.by])
        return (Tally(change.machine, parent, parent_id, counters),)

    def _also(self, entry: Entry, also: Sequence[Birth | Move], who: str) -> None:
        births = [item for item in also if isinstance(item, Birth)]
        entry.births = [self.newborn(birth, who) for birth in births]
        entry.gates = {*entry.gates, *(b.unit.gate_id for b in births if isinstance(b.unit, Unit))}
        moves = [item for item in also if isinstance(item, Move)]
        entry.moves = [self._change(m.before, m.after, m.reason, m.actor, who) for m in moves]
        for change, move in zip(entry.moves, moves, strict=True):
            entry.tallies = (*entry.tallies, *self._tally(change, move.before, {}))


def _own_columns(machine: Machine) -> frozenset[str]:
    """The columns that a step may change."""
    return frozenset(machine.columns) - _SEALED - frozenset(machine.unit.key) - machine.generated()


def _check_size(outcome: Outcome[Any]) -> None:
    rows = sum(len(w.rows) for w in outcome.writes)
    size = sum(len(v) for w in outcome.writes for r in w.rows for v in r.values() if isinstance(v, (str, bytes)))
    if rows > MAX_ROWS or size > MAX_BYTES:
        msg = f"an outcome carries at most {MAX_ROWS:,} rows or 4 MB; this one has {rows:,} rows and {size:,} bytes"
        raise BrokenFlow(msg)
